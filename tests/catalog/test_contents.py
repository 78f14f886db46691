"""Contents of objects: typed, and of the very bytes that programs before them wrote."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog.contents import (
    CONTENTS,
    Content,
    DeclaredWatermark,
    FunctionContent,
    IndexContent,
    MaterializedViewContent,
    RoleContent,
    SinkContent,
    SourceContent,
    SubscriptionContent,
    TableContent,
    ViewContent,
)
from headrace.catalog.records import JobPlan, JobRecord, ObjectRecord, decode, encode
from headrace.errors import CorruptObject
from headrace.session.stored_roles import Role

OBJECTS = (Path(__file__).parent / "frozen" / "objects.jsonl").read_text().splitlines()
"""Records of objects as the programs before typed contents wrote them, and of shared sources; long texts were cut."""

JOBS = (Path(__file__).parent / "frozen" / "jobs.jsonl").read_text().splitlines()
"""The same of jobs: of a table, a view, views that could share a side, that look rows up, and of an early program."""
NOT_OF_THE_KIND = {"more", "stored_as", "pipeline", "called"}
"""Fields that all contents have."""


def stored(text: str) -> ObjectRecord:
    found = decode("object", str(json.loads(text)["id"]), text)
    assert isinstance(found, ObjectRecord)
    return found


def read(kind: str, payload: dict[str, Any]) -> Content:
    return CONTENTS[kind].from_json(payload)


def shown(content: Content) -> str:
    """The stored form with the order of its names."""
    return json.dumps(content.to_json())


@pytest.mark.parametrize("text", OBJECTS, ids=lambda text: f"{json.loads(text)['kind']} {json.loads(text)['name']}")
def test_bytes_of_earlier_programs_are_encoded_as_they_were(text: str) -> None:
    record = stored(text)
    assert encode(record) == text
    assert type(record.content) is CONTENTS[json.loads(text)["kind"]] and record.content.more == {}
    if record.name != "older":  # which has less than is written now
        made_now = replace(record.content, stored_as=None)
        assert encode(replace(record, content=made_now)) == text, "what is made now is stored in the same way"


def test_there_are_bytes_of_every_kind() -> None:
    assert {json.loads(text)["kind"] for text in OBJECTS} == CONTENTS.keys()


def test_every_field_of_a_content_is_somewhere_in_the_bytes() -> None:
    names: dict[str, set[str]] = {}
    for text in OBJECTS:
        found = json.loads(text)
        names.setdefault(found["kind"], set()).update(found["payload"])
    for kind, content in CONTENTS.items():
        own = {f.name for f in fields(content)} - NOT_OF_THE_KIND  # type: ignore[arg-type]
        unseen = own - names[kind]
        # What a kind has of all contents, or of all that are planned, and what none of the bytes happens to have.
        allowed = {"plan", "leaves", "last_id", "emit_on_window_close", "watermark_column", "time_zone"}
        assert unseen <= allowed, f"{kind}: {sorted(unseen - allowed)} is in none of the bytes"


@pytest.mark.parametrize("text", JOBS)
def test_plans_of_jobs_are_encoded_as_they_were(text: str) -> None:
    job = decode("job", "1", text)
    assert isinstance(job, JobRecord) and not job.plan.more
    if '"v":1' not in text:  # its own fields that came later are stored from then on
        assert encode(job) == text
        assert encode(replace(job, plan=replace(job.plan, stored_as=None))) == text
    assert json.dumps(job.plan.to_json()) == json.dumps(json.loads(text)["plan"])


def test_plans_of_jobs_are_typed() -> None:
    plans = [decode("job", "1", text) for text in JOBS]
    found = {plan for job in plans if isinstance(job, JobRecord) for plan in job.plan.sharable}
    assert found and all(isinstance(relation, int) and isinstance(key, tuple) for relation, key in found)
    assert [job.plan.kind for job in plans if isinstance(job, JobRecord) and job.plan.kind] == ["table"]
    assert JobPlan.from_json({"new": [1], "upstreams": [7]}) == JobPlan(upstreams=(7,), more={"new": [1]})


@pytest.mark.parametrize("kind", sorted(CONTENTS))
def test_what_a_newer_program_has_added_stays_where_it_was(kind: str) -> None:
    payload = next(json.loads(text)["payload"] for text in OBJECTS if json.loads(text)["kind"] == kind)
    more = {"before": [1, {"x": None}], **payload, "after": {"deep": [True]}}
    content = read(kind, more)
    assert content.more == {"before": [1, {"x": None}], "after": {"deep": [True]}}
    assert json.dumps(content.to_json()) == json.dumps(more)


def test_a_change_keeps_the_order_and_what_is_unknown() -> None:
    table = read("table", {"on_conflict": "ignore", "x": 1, "append_only": False})
    assert isinstance(table, TableContent)
    assert shown(replace(table, append_only=True)) == '{"on_conflict": "ignore", "x": 1, "append_only": true}'
    assert shown(replace(table, defaults={"a": "1"})).endswith('"append_only": false, "defaults": {"a": "1"}}')
    promise = read("subscription", {"retention_ms": 5})
    assert isinstance(promise, SubscriptionContent) and promise.since == 0
    assert shown(promise) == '{"retention_ms": 5}'
    assert shown(replace(promise, since=7)) == '{"retention_ms": 5, "since": 7}'


def test_records_inside_of_a_content_keep_what_is_unknown_too() -> None:
    payload = {"watermark": {"kind": "new", "column": "t", "delay_ms": 5}, "append_only": True}
    table = read("table", payload)
    assert isinstance(table, TableContent) and table.watermark is not None
    assert table.watermark == DeclaredWatermark(column="t", delay_ms=5, more={"kind": "new"})
    assert shown(table) == json.dumps(payload)


def test_what_earlier_programs_did_not_say_has_a_meaning() -> None:
    assert read("table", {}) == TableContent()
    assert read("view", {"query": "SELECT 1"}) == ViewContent(query="SELECT 1", search_path=("public",), typed=False)
    assert read("role", {"can_login": False}) == RoleContent(can_login=False, superuser=True)
    for kind, payload in (("table", {}), ("view", {"query": "SELECT 1"}), ("role", {"can_login": False})):
        assert read(kind, payload).to_json() == payload


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("index", {"on": 3}), ("view", {}), ("connection", {}), ("subscription", {}), ("function", {"form": "scalar"}),
        ("table", {"watermark": {"column": "t"}}), ("role", {"member_of": {"x": True}}), ("nonsense", {}),
        ("table", []), ("role", {"defaults": [["s"]]}),
    ],
)  # fmt: skip
def test_what_cannot_be_such_a_content_is_refused_by_name(kind: str, payload: Any) -> None:
    text = json.dumps({**json.loads(OBJECTS[0]), "kind": kind, "payload": payload})
    with pytest.raises(CorruptObject, match="catalog record object/"):
        stored(text)


def test_rights_of_a_role_are_stored_all_together_or_not() -> None:
    assert list(Role("r").content.to_json()) == ["can_login", "password", "connection_limit", "valid_until_ms"]
    some = Role("r", create_db=True).content
    assert list(some.to_json()) == [f.name for f in fields(RoleContent) if f.name not in NOT_OF_THE_KIND]
    assert (Role("r").content.version, some.version) == (3, 4)
    older = read("role", {"can_login": True})
    assert isinstance(older, RoleContent)
    assert list(replace(older, superuser=False).to_json())[1:4] == ["superuser", "create_role", "create_db"]


def test_a_role_of_a_session_has_all_that_is_stored_of_it() -> None:
    own = {f.name for f in fields(RoleContent)} - NOT_OF_THE_KIND
    assert {f.name for f in fields(Role)} == {"name", "kept", *own}
    made = RoleContent(can_login=False, member_of={7: True}, superuser=False)
    assert Role.of(ObjectRecord(1, made, "pg_authid", "r")).content == made


def test_a_role_that_is_changed_keeps_what_a_newer_program_has_said_of_it() -> None:
    newer = RoleContent.from_json({**RoleContent().to_json(), "fresh": 2})
    changed = replace(Role.of(ObjectRecord(1, newer, "pg_authid", "r")), create_db=True).content
    assert changed.create_db and changed.to_json()["fresh"] == 2


def test_which_kinds_can_do_what() -> None:
    """Capabilities as they follow from what a kind is; a new kind has to say how it fits in."""
    for content in CONTENTS.values():
        assert content.in_graph or not (content.has_job or content.external), "what runs or is read is in the graph"
        assert content.readable or not (content.keeps_rows or content.writable or content.external)
        assert content.relation or not content.readable
        assert not (content.has_job and content.stands_alone), "a job needs a plan"
        assert content.in_graph == (content.has_job or content.writable or content.external)
    assert {c for c in CONTENTS.values() if c.has_job} == {MaterializedViewContent, SinkContent, IndexContent}
    assert {c for c in CONTENTS.values() if c.keeps_rows} == {TableContent, MaterializedViewContent}
    assert {c.kind for c in CONTENTS.values() if not c.relation} == {
        "schema", "function", "secret", "role", "subscription", "connection",
    }  # fmt: skip
    assert [c.kind for c in CONTENTS.values() if c.external] == [SourceContent.kind]
    assert {c.kind for c in CONTENTS.values() if c.granted_as is None} == {"sink", "index", "role", "subscription"}


def test_content_as_what_it_is_not_is_an_assertion() -> None:
    record = ObjectRecord(1, TableContent(), "public", "t")
    assert record.content_as(TableContent) is record.content and record.kind == "table"
    with pytest.raises(AssertionError, match="object 1 is a table"):
        record.content_as(FunctionContent)
