"""Connectors with secrets: what they raise says nothing of them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.common.columns import Column
from headrace.connectors import base, sinks, sources
from headrace.connectors.base import Admission, Offsets, ReadBatch
from headrace.connectors.confidential import hiding
from headrace.connectors.datagen import DatagenSource
from headrace.connectors.sources import check_secret_options, infer_columns, open_source
from headrace.errors import CorruptObject, HeadraceError, InvalidParameter, SinkError, SourceError

VALUE = "hunter2 'quoted'\n/\"x\""
COLUMNS = [Column("a", "int")]


class Leaky(DatagenSource):
    """Says its password wherever it can."""

    fails_in = ""
    opened: list[str] = []

    def __init__(self, options: Mapping[str, str], columns: Sequence[Column]):
        self.password = options["password"]
        Leaky.opened.append(self.password)
        super().__init__({k: v for k, v in options.items() if k != "password"}, columns)
        self.fail("open")

    @classmethod
    def takes_secret(cls, option: str) -> bool:
        return option == "password"

    @classmethod
    def infer_columns(cls, options: Mapping[str, str]) -> list[Column]:
        raise InvalidParameter(f"no columns for {options['password']!r}", hint=options["password"])

    def fail(self, where: str) -> None:
        if where == self.fails_in:
            try:
                raise OSError(f"login with {self.password} failed")
            except OSError as error:
                raise SourceError(
                    f"{where}: {error}", hint=f"not {self.password}", detail=repr(self.password)
                ) from error

    def start_offsets(self) -> Offsets:
        self.fail("start")
        return super().start_offsets()

    def latest_offsets(self, after: Offsets, limit: Admission, now_ms: int) -> base.Binding:
        self.fail("latest")
        return super().latest_offsets(after, limit, now_ms)

    def plan(self, from_: Offsets, to: Offsets, parallelism: int) -> list[base.ReadTask]:
        self.fail("plan")
        return super().plan(from_, to, parallelism)

    def read(self, task: base.ReadTask) -> Iterator[ReadBatch]:
        yield from super().read(task)
        self.fail("read")

    def gone(self, held: pa.RecordBatch, task: base.ReadTask) -> ReadBatch:
        self.fail("gone")
        return ReadBatch(held)


@pytest.fixture(autouse=True)
def leaky(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setitem(sources._CONNECTORS, "leaky", (__name__, "Leaky"))
    monkeypatch.setattr(Leaky, "fails_in", "")
    Leaky.opened.clear()
    return {"connector": "leaky", "number_of_rows": "3", "rows_per_second": "unlimited"}


def use(options: dict[str, str], value: str = VALUE) -> None:
    source = open_source(options, COLUMNS, lambda: {"password": value}).only(["a"])
    offsets = source.latest_offsets(source.start_offsets(), Admission(), 0).offsets
    for task in source.plan(source.start_offsets(), offsets, 1):
        assert sum(found.batch.num_rows for found in source.read(task)) == 3
    held = pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int32())})
    assert source.gone(held, {}).batch == held


def test_it_is_used(leaky: dict[str, str]) -> None:
    use(leaky)
    assert set(Leaky.opened) == {VALUE}


@pytest.mark.parametrize("where", ["open", "start", "latest", "plan", "read", "gone"])
def test_no_error_says_a_value(where: str, leaky: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leaky, "fails_in", where)
    with pytest.raises(SourceError, match=rf"{where}: login with \*\*\* failed") as raised:
        use(leaky)
    error = raised.value
    assert error.hint == "not ***" and error.detail == "'***'" and error.sqlstate == SourceError.sqlstate
    assert "hunter2" not in "".join(traceback.format_exception(error)).replace("VALUE", "")


def test_columns_that_cannot_be_inferred(leaky: dict[str, str]) -> None:
    with pytest.raises(InvalidParameter, match=r"no columns for '\*\*\*'") as raised:
        infer_columns(leaky, lambda: {"password": "hunter2"})
    assert raised.value.hint == "***"


def test_another_value_opens_it_again(leaky: dict[str, str]) -> None:
    values = {"password": "one"}
    source = open_source(leaky, COLUMNS, lambda: dict(values))
    source.start_offsets()
    values["password"] = "two"
    source.start_offsets()
    assert Leaky.opened == ["one", "two"]


def test_errors_of_others_stay_as_they_are() -> None:
    wrong = ValueError("nothing to hide")
    with pytest.raises(ValueError) as raised, hiding(["hunter2"]):
        raise wrong
    assert raised.value is wrong
    with pytest.raises(CorruptObject) as kept, hiding(["hunter2", ""]):
        raise CorruptObject("object hunter2%20 is gone", sqlstate="XX002")
    assert kept.value.message == "object ***%20 is gone" and kept.value.sqlstate == "XX002"
    with pytest.raises(HeadraceError, match=r"KeyError: '\*\*\*'"), hiding(["hunter2"]):
        raise KeyError("hunter2")


def test_options_that_have_to_be_readable() -> None:
    files = {"connector": "files"}
    with pytest.raises(InvalidParameter, match="option path of connector files cannot be a secret"):
        check_secret_options(files, ["path"])
    with pytest.raises(InvalidParameter, match="option on_error of connector datagen cannot be a secret"):
        check_secret_options({"connector": "datagen"}, ["seed", "on_error"])
    check_secret_options({"connector": "datagen"}, ["seed"])
    with pytest.raises(InvalidParameter, match="option type of connector blackhole cannot be a secret"):
        sinks.check_secret_options({"connector": "blackhole"}, ["type"])
    with pytest.raises(InvalidParameter, match="needs the option connector"):
        check_secret_options({}, ["connector"])


def test_a_sink_gets_its_secrets_with_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from headrace.dataflow.operators.deliver import DeliverStage
    from headrace.dataflow.params import EpochParams, decode
    from headrace.state.stores import StoreRoot

    monkeypatch.setitem(sinks._SINKS, "leaky", (__name__, "LeakySink"))
    params = EpochParams("a", 1, 2, False, StoreRoot("memory:x"), "p", sink_secrets={"password": VALUE})
    assert "hunter2" not in params.encode() and "hunter2" not in repr(params)
    key, other = b"k" * 32, b"o" * 32
    sent = params.encode_secrets(key)
    assert sent is not None and "hunter2" not in sent
    told = decode(params.encode()).with_secrets(sent, key)
    assert told == params and replace(params, sink_secrets={}).encode_secrets(key) is None
    assert decode(params.encode()).with_secrets(None, key).sink_secrets == {}
    for wrong, with_key in ((params, other), (replace(params, attempt="b"), key)):
        with pytest.raises(HeadraceError):
            wrong.with_secrets(sent, with_key)
    stage = DeliverStage((("connector", "leaky"),), tuple(COLUMNS), (0,))
    task: Any = SimpleNamespace(params=told, partition=0, rows_out=0, spool=SimpleNamespace(folder=None))
    rows = pa.RecordBatch.from_pydict({"a": [1], "__w": [1]})
    with pytest.raises(SourceError, match=r"OSError: cannot log in with \*\*\*") as raised:
        list(stage.run(task, iter([rows])))
    assert "hunter2" not in "".join(traceback.format_exception(raised.value)).replace("VALUE", "")


def test_what_a_sink_leaves_undone_says_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.dataflow.operators.deliver import DeliverStage
    from headrace.dataflow.params import EpochParams
    from headrace.state.stores import StoreRoot

    monkeypatch.setitem(sinks._SINKS, "lazy", (__name__, "LazySink"))
    params = EpochParams("a", 1, 2, False, StoreRoot("memory:x"), "p", sink_secrets={"password": VALUE})
    task: Any = SimpleNamespace(params=params, partition=0, rows_out=0, spool=SimpleNamespace(folder=None))
    stage = DeliverStage((("connector", "lazy"),), tuple(COLUMNS), (0,))
    assert list(stage.run(task, iter([pa.RecordBatch.from_pydict({"a": [1], "__w": [1]})]))) == []
    assert task.rows_out == 1 and task.remark == "files stay as they are: *** is no password"


class LazySink(sinks.Sink):
    @classmethod
    def takes_secret(cls, option: str) -> bool:
        return option == "password"

    def write(self, position: sinks.SinkPosition, batches: Iterator[Any]) -> int:
        self.undone = SinkError(f"files stay as they are: {self.options['password']} is no password")
        return sum(batch.num_rows for batch in batches)


class LeakySink(sinks.Sink):
    @classmethod
    def takes_secret(cls, option: str) -> bool:
        return option == "password"

    def write(self, position: sinks.SinkPosition, batches: Iterator[Any]) -> int:
        raise OSError(f"cannot log in with {self.options['password']}")
