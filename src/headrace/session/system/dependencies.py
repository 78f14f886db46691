"""What is built on what, as PostgreSQL's `pg_depend` and `pg_rewrite` say it: a view by the rule that it has there."""

from __future__ import annotations

from typing import Final

from headrace.catalog.contents import MaterializedViewContent, ViewContent
from headrace.catalog.records import ObjectRecord
from headrace.coordinator.decide.former import table_of
from headrace.session.context import Context
from headrace.session.system import keys, pg_catalog
from headrace.session.system.system_relations import Rows, define

_RULES: Final = 3_000_000
"""How far the oid of a view's rule lies above that of the view."""
_CLASS, _CONSTRAINT, _REWRITE = 1259, 2606, 2618


def _views(context: Context) -> list[ObjectRecord]:
    views = (ViewContent, MaterializedViewContent)
    return [o for o in pg_catalog.relations(context) if isinstance(o.content, views)]


def _rules(context: Context) -> Rows:
    return [{"oid": o.id + _RULES, "rulename": "_RETURN", "ev_class": o.id} for o in _views(context)]


def _dependencies(context: Context) -> Rows:
    state, known = context.catalog.state, {o.id for o in pg_catalog.relations(context)}
    for view in _views(context):
        rule = {"classid": _REWRITE, "objid": view.id + _RULES, "refclassid": _CLASS}
        yield {**rule, "refobjid": view.id, "deptype": "i"}
        below = (table_of(state, state.objects[i]).id for i in view.depends_on if i in state.objects)
        yield from ({**rule, "refobjid": i} for i in below if i in known)
    for index in keys.indexes(pg_catalog.relations(context)):
        numbers = index.numbers[: len(index.columns)]
        if not index.primary:
            on = {"classid": _CLASS, "objid": index.oid, "refclassid": _CLASS, "refobjid": index.on.id, "deptype": "a"}
            yield from ({**on, "refobjsubid": number} for number in numbers)
            continue
        key = {"classid": _CONSTRAINT, "objid": index.constraint_oid, "refclassid": _CLASS, "refobjid": index.on.id}
        yield from ({**key, "refobjsubid": number, "deptype": "a"} for number in numbers)
        yield {"classid": _CLASS, "objid": index.oid, "refclassid": _CONSTRAINT, "refobjid": index.constraint_oid,
               "deptype": "i"}  # fmt: skip


def load() -> None:
    """Define the relations."""
    define(
        "pg_catalog", "pg_depend",
        "classid oid, objid oid, objsubid int, refclassid oid, refobjid oid, refobjsubid int, deptype char",
        _dependencies, objsubid=0, refobjsubid=0, deptype="n",
    )  # fmt: skip
    define(
        "pg_catalog", "pg_rewrite",
        "oid oid, rulename name, ev_class oid, ev_type char, ev_enabled char, is_instead boolean, "
        "ev_qual pg_node_tree, ev_action pg_node_tree",
        _rules, ev_type="1", ev_enabled="O", is_instead=True, ev_qual="<>", ev_action="<>",
    )  # fmt: skip
