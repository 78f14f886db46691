"""Which sides of a join are looked up in rows that lie by the join's key already, instead of being kept once more.

Such rows are a table's own, by its primary key, or those of an index. A side is shared if it is nothing but columns of
a relation whose rows lie by just the columns that the join compares, and if no row of it comes out without a match.
The optimizer puts filters that leave out nulls below joins; those are done after the look-up. With any other filter a
side keeps its own state, which holds only what passes. Where an index is used the changes are the index's, too: so
they and the rows looked up are never of different epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.plan.catalyst.expressions import Attribute, Expr
from headrace.plan.tree import Operator, Sharable, Shared

if TYPE_CHECKING:
    from headrace.plan.derive import Derivation
    from headrace.plan.inputs import Input
    from headrace.plan.joins import JoinSide

_EXACT = ("boolean", "tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz", "string", "binary")
"""Key types of which equal values are stored and hashed alike; decimals are, too. Floating point has two zeros."""


def share(d: Derivation, left: tuple[Operator, JoinSide], right: tuple[Operator, JoinSide]) -> None:
    """Note on the sides of a join which of them are shared, and on the input of one that its content is not read.

    Of one only: what both hold at first is joined by reading one and looking up the other.
    """
    inputs = [_share(d, *left), _share(d, *right)]
    found = inputs[1] or inputs[0]
    if found is not None:
        found.changes_only = True


def _share(d: Derivation, child: Operator, side: JoinSide) -> Input | None:
    picked = child.picked()
    if picked is None or side.preserved or not side.keys or not all(_exact(k) for k in side.keys):
        return None
    leaf, names, present = picked.leaf, picked.names, picked.present
    if any(r.id == leaf.relation and r.watermark is not None for r in d.relations.values()):
        return None  # its own state can be bounded by the watermark
    ids = [*(k.id for k in side.keys if isinstance(k, Attribute)), *(a.id for a in side.values)]
    columns = [names.get(i) for i in ids]
    found = tuple(c for c in columns if c is not None)
    if len(found) < len(columns):
        return None
    keys, values = found[: len(side.keys)], found[len(side.keys) :]
    for path in d.paths(leaf.relation):
        fits = sorted(path.key) == sorted(keys) and path.columns.issuperset([*leaf.columns, *present])
        if fits and path.relation in d.arrangements:
            leaf.relation, leaf.relation_name = path.relation, path.name
            rest = tuple(c for c in dict.fromkeys(present) if c not in keys)  # a null in the key finds nothing
            side.shared = Shared(path.relation, path.name, keys, values, rest)
            return leaf
    if len(set(keys)) == len(keys):
        side.sharable = Sharable(leaf.relation, tuple(sorted(keys)))
    return None


def _exact(key: Expr) -> bool:
    if not isinstance(key, Attribute):
        return False
    kind = key.type
    return kind in _EXACT or kind.startswith("decimal(")
