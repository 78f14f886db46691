"""The events of the auction are the same however they are cut, and have the published shape."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.common.columns import Column
from headrace.connectors.base import Admission
from headrace.connectors.nexmark_events import Events, EventShape
from headrace.connectors.sources import infer_columns, open_source
from headrace.errors import InvalidParameter

KINDS = ("person", "auction", "bid")


def source(kind=None, columns=None, **options):
    merged = {"connector": "nexmark", "rows_per_second": "unlimited", "event_num": "3000", **options}
    merged |= {"nexmark.table.type": kind.title()} if kind else {}
    return open_source(merged, infer_columns(merged) if columns is None else columns)


def table(src, start, stop, parallelism=1):
    tasks = json.loads(json.dumps(src.plan({"0": start}, {"0": stop}, parallelism)))
    batches = [found.batch for task in tasks for found in src.read(task)]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=src.schema)


def events(kind, count=50_000, **options):
    return table(source(kind, **options), 0, count)


@pytest.mark.parametrize("kind", [*KINDS, None])
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 3000), max_size=6), parallelism=st.integers(1, 7), seed=st.integers(0, 3))
def test_any_cut_is_the_whole(kind, cuts, parallelism, seed):
    src, other = source(kind, seed=str(seed)), source(kind, seed=str(seed))
    whole = table(src, 0, 3000)
    marks = [0, *sorted(cuts), 3000]
    parts = [table(other, a, b, parallelism) for a, b in pairwise(marks)]
    assert pa.concat_tables(parts).equals(whole)
    assert [len(part) for part in parts] == [src.rows_between({"0": a}, {"0": b}) for a, b in pairwise(marks)]


def test_another_seed_gives_other_events():
    assert not events("bid", 500).equals(events("bid", 500, seed="1"))


def test_sources_with_equal_options_are_views_of_one_stream():
    combined = table(source(), 0, 3000)
    assert Counter(combined["event_type"].to_pylist()) == {0: 60, 1: 180, 2: 2760}
    for i, kind in enumerate(KINDS):
        rows = combined.filter(pa.compute.equal(combined["event_type"], i))
        assert rows[kind].to_pylist() == events(kind, 3000).to_pylist()
        assert rows["date_time"].equals(events(kind, 3000)["date_time"])
        assert all(rows[other].null_count == len(rows) for other in KINDS if other != kind)


def test_only_some_columns():
    some = table(source("bid").only(["date_time", "auction"]), 0, 500)
    assert some.equals(events("bid", 500).select(["auction", "date_time"]))
    assert len(table(source("bid").only([]), 0, 500)) == 460


def test_proportions_and_other_proportions():
    assert [len(events(kind)) for kind in KINDS] == [1000, 3000, 46_000]
    shaped = {"nexmark.person.proportion": "2", "auction_proportion": "3", "bid_proportion": "5"}
    assert [len(events(kind, 1007, **shaped)) for kind in KINDS] == [202, 303, 502]


def test_ids_are_dense_and_references_are_to_what_there_is():
    persons, auctions, bids = (events(kind) for kind in KINDS)
    assert persons["id"].to_pylist() == list(range(1000, 2000))
    assert auctions["id"].to_pylist() == list(range(1000, 4000))
    shape = EventShape()
    newest_person = shape.last_person(shape.numbers("auction", 0, 50_000)) + 1000
    lead = np.asarray(auctions["seller"]) - newest_person
    assert lead.max() <= shape.person_id_lead and lead.min() > -shape.active_people
    of_bid = shape.numbers("bid", 0, 50_000)
    lead = np.asarray(bids["bidder"]) - shape.last_person(of_bid) - 1000
    assert lead.max() <= shape.person_id_lead and lead.min() > -shape.active_people
    lead = np.asarray(bids["auction"]) - shape.last_auction(of_bid) - 1000
    assert lead.max() <= shape.auction_id_lead and lead.min() >= -shape.in_flight_auctions
    assert (lead <= 0).mean() > 0.9


def test_hot_ids_take_their_share():
    auctions, bids = events("auction"), events("bid")
    assert 0.74 < np.mean(np.asarray(auctions["seller"]) % 100 == 0) < 0.77
    assert 0.50 < np.mean(np.asarray(bids["auction"]) % 100 == 0) < 0.52
    assert 0.74 < np.mean(np.asarray(bids["bidder"]) % 100 == 1) < 0.77
    assert not (np.asarray(events("bid", hot_auction_ratio="1")["auction"]) % 100 == 0).mean() > 0.02
    hot = Counter(bids["channel"].to_pylist())
    assert 0.49 < sum(hot[name] for name in ("Google", "Facebook", "Baidu", "Apple")) / len(bids) < 0.51
    assert len(hot) > 5000


def test_prices_are_even_in_their_logarithm():
    prices = np.asarray(events("bid")["price"])
    assert prices.min() >= 100 and prices.max() <= 10**8
    shares = np.histogram(np.log10(prices), bins=6, range=(2, 8))[0] / len(prices)
    assert np.abs(shares - 1 / 6).max() < 0.01
    auctions = events("auction")
    assert (np.asarray(auctions["reserve"]) > np.asarray(auctions["initial_bid"])).all()
    assert Counter(auctions["category"].to_pylist()).keys() == {10, 11, 12, 13, 14}


def test_event_time_follows_the_rate():
    times = events("bid", 3000, **{"nexmark.min.event.gap.in.ns": "2000000"})["date_time"].to_pylist()
    first, last = (t.isoformat() for t in (times[0], times[-1]))
    assert (first, last) == ("2015-07-15T00:00:00.008000", "2015-07-15T00:00:05.998000")
    later = events("bid", 50, events_per_second="1", base_time="2024-02-29T00:00:00")["date_time"][0].as_py()
    assert later.isoformat() == "2024-02-29T00:00:04"
    auctions = events("auction")
    open_ms = np.asarray(auctions["expires"].cast("int64")) - np.asarray(auctions["date_time"].cast("int64"))
    # 100 auctions in flight are 1,666 events or 166 ms; an auction is open for up to twice that.
    assert open_ms.min() >= 1000 and open_ms.max() <= 334_000 and 155_000 < open_ms.mean() < 180_000


def test_events_have_their_sizes():
    def octets(rows, fixed):
        texts = [c for c in rows.columns if c.type == pa.string()]
        return fixed + np.mean(sum(np.asarray(pa.compute.binary_length(c)) for c in texts))

    assert abs(octets(events("person"), 8) - 200) < 5
    assert abs(octets(events("auction"), 48) - 500) < 10
    extra = pa.compute.binary_length(events("bid")["extra"])
    assert pa.compute.min(extra).as_py() > 50 and pa.compute.max(extra).as_py() < 85


def test_urls_tell_the_channel():
    bids = events("bid", 5000)
    known = dict(zip(bids["channel"].to_pylist(), bids["url"].to_pylist()))
    cold = {int(name.removeprefix("channel-")): url for name, url in known.items() if name.startswith("channel-")}
    with_id = {i: int(url.partition("&channel_id=")[2]) for i, url in cold.items() if "&channel_id=" in url}
    assert 0.85 < len(with_id) / len(cold) < 0.95
    assert all(0 <= value < 2**31 + 1 for value in with_id.values())
    assert len(set(with_id.values())) > 0.8 * len(with_id)
    assert all(url.startswith("https://www.nexmark.com/") and url.count("/") == 6 for url in known.values())


def test_limits_count_events_of_all_kinds():
    src = source("person")
    a = src.latest_offsets(src.start_offsets(), Admission(1000), 5)
    assert (a.rows, a.finished, a.behind, a.offsets["0"]) == (20, False, True, 1000)
    b = src.latest_offsets(json.loads(json.dumps(a.offsets)), Admission(None), 6)
    assert (b.rows, b.finished, b.behind, b.offsets["0"]) == (40, True, False, 3000)
    assert b.watermark_us == 1_436_918_400_000_000 + 300_000
    assert src.latest_offsets(b.offsets, Admission(None), 7).rows == 0


def test_rate_is_that_of_event_time_unless_told():
    paced = open_source({"connector": "nexmark", "table_type": "bid", "events_per_second": "500"}, [])
    first = paced.latest_offsets(paced.start_offsets(), Admission(), 0)
    assert paced.latest_offsets(first.offsets, Admission(), 2000).offsets["0"] == 1001
    faster = open_source({"connector": "nexmark", "table_type": "bid", "rows_per_second": "2000"}, [])
    assert faster.latest_offsets(first.offsets, Admission(), 2000).offsets["0"] == 4001


def test_declared_columns_may_be_fewer_and_spelled_otherwise():
    declared = [Column("dateTime", "timestamp"), Column("PRICE", "double"), Column("auction", "int")]
    found = table(source("bid", declared), 0, 50)
    assert found.column_names == ["dateTime", "PRICE", "auction"]
    assert found["PRICE"].cast("int64").equals(events("bid", 50)["price"])
    struct = [Column("bid", "struct<price:bigint,auction:int>"), Column("event_type", "int")]
    assert table(source(None, struct), 0, 50)["bid"][4].as_py().keys() == {"price", "auction"}


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        ({"table_type": "bids"}, [], "option table_type must be one of person, auction, bid"),
        ({"rows_per_second": "unlimited"}, [], "needs event_num or max_rows_per_epoch"),
        ({"hot_auction_ratio": "0"}, [], "option hot_auction_ratio must be a whole number of at least 1"),
        ({"events_per_second": "5", "min_event_gap_in_ns": "5"}, [], "exclude each other"),
        ({"nexmark.event.num": "5", "event_num": "5"}, [], "option event_num is given twice"),
        ({"base_time": "soon"}, [], "option base_time must be a time"),
        ({"colour": "x"}, [], "unknown option colour"),
        ({"table_type": "bid"}, [Column("seller", "bigint")], "events of type bid have no column seller"),
        ({"table_type": "bid"}, [Column("price", "date")], "makes column price as bigint"),
        ({}, [Column("bid", "bigint")], "must be a struct"),
        ({}, [Column("bid", "struct<seller:bigint>")], "events of type bid have no column seller"),
    ],
)
def test_bad_options(options, columns, message):
    with pytest.raises(InvalidParameter, match=message):
        open_source({"connector": "nexmark", **options}, columns)


def test_no_two_columns_share_their_randomness():
    e = Events(EventShape(), np.arange(20_000, dtype=np.int64))
    columns = [e.uniform(lane, 1000) for lane in range(17, 70)]
    correlation = np.corrcoef(np.array(columns)) - np.eye(len(columns))
    assert np.abs(correlation).max() < 0.05
