"""The queries of the Nexmark benchmark, q0 to q22, over `person`, `auction`, `bid` and (q13) `side_input`.

They say what the suites of Apache Beam, Flink and RisingWave say, with these differences: where rows can tie in an
order that decides what comes out, the order goes on to other columns, so that there is one right answer; q12 counts in
windows of event time, because processing time cannot be repeated; q14 counts characters with `replace` in place of a
user-defined function; q13's side input is a table.
"""

from __future__ import annotations

SIDE_INPUT_ROWS = 10_000

_HOT_ITEMS = """SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
    FROM HOP(bid, date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND) GROUP BY auction, window_start, window_end"""

_WINNING = """SELECT a.*, b.auction, b.bidder, b.price, b.date_time AS bid_date_time, b.extra AS bid_extra,
      row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.bidder, b.extra) AS rownum
    FROM auction a JOIN bid b ON a.id = b.auction WHERE b.date_time BETWEEN a.date_time AND a.expires"""

_RANKS = """count(*) AS total_bids,
      count(*) FILTER (WHERE price < 10000) AS rank1_bids,
      count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
      count(*) FILTER (WHERE price >= 1000000) AS rank3_bids"""


def _distinct(column: str) -> str:
    return f"""count(DISTINCT {column}) AS total_{column}s,
      count(DISTINCT {column}) FILTER (WHERE price < 10000) AS rank1_{column}s,
      count(DISTINCT {column}) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_{column}s,
      count(DISTINCT {column}) FILTER (WHERE price >= 1000000) AS rank3_{column}s"""


QUERIES: dict[str, str] = {
    # row by row
    "q0": "SELECT auction, bidder, price, date_time FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, date_time FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE mod(auction, 123) = 0",
    # joins and aggregates
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
    WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """SELECT category, avg(final) AS final FROM (
      SELECT max(b.price) AS final, a.category FROM auction a JOIN bid b ON a.id = b.auction
      WHERE b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category) q GROUP BY category""",
    "q5": f"""SELECT c.auction, c.num FROM ({_HOT_ITEMS}) c JOIN (
      SELECT max(num) AS maxn, starttime, endtime FROM ({_HOT_ITEMS}) n GROUP BY starttime, endtime) m
    ON c.starttime = m.starttime AND c.endtime = m.endtime AND c.num >= m.maxn""",
    "q6": f"""SELECT seller, avg(price) AS avg_price FROM (
      SELECT seller, price, row_number() OVER (PARTITION BY seller ORDER BY bid_date_time DESC, id DESC) AS latest
      FROM ({_WINNING}) w WHERE rownum = 1) s WHERE latest <= 10 GROUP BY seller""",
    "q7": """SELECT b.auction, b.price, b.bidder, b.date_time FROM bid b JOIN (
      SELECT max(price) AS maxprice, window_end AS date_time FROM TUMBLE(bid, date_time, INTERVAL '10' SECOND)
      GROUP BY window_end) m ON b.price = m.maxprice
    WHERE b.date_time BETWEEN m.date_time - INTERVAL '10' SECOND AND m.date_time""",
    "q8": """SELECT p.id, p.name, p.starttime FROM (
      SELECT id, name, window_start AS starttime, window_end AS endtime
      FROM TUMBLE(person, date_time, INTERVAL '10' SECOND) GROUP BY id, name, window_start, window_end) p JOIN (
      SELECT seller, window_start AS starttime, window_end AS endtime
      FROM TUMBLE(auction, date_time, INTERVAL '10' SECOND) GROUP BY seller, window_start, window_end) a
    ON p.id = a.seller AND p.starttime = a.starttime AND p.endtime = a.endtime""",
    "q9": f"""SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, auction,
      bidder, price, bid_date_time, bid_extra FROM ({_WINNING}) w WHERE rownum <= 1""",
    "q10": """SELECT auction, bidder, price, date_time, extra, to_char(date_time, 'YYYY-MM-DD') AS date,
      to_char(date_time, 'HH24:MI') AS time FROM bid""",
    "q11": """SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
    FROM SESSION(bid, date_time, INTERVAL '10' SECOND, bidder) GROUP BY bidder, window_start, window_end""",
    "q12": """SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
    FROM TUMBLE(bid, date_time, INTERVAL '10' SECOND) GROUP BY bidder, window_start, window_end""",
    "q13": """SELECT b.auction, b.bidder, b.price, b.date_time, s.value FROM bid b
    JOIN side_input s ON mod(b.auction, 10000) = s.key""",
    "q14": """SELECT auction, bidder, 0.908 * price AS price,
      CASE WHEN extract(hour FROM date_time) BETWEEN 8 AND 18 THEN 'dayTime'
           WHEN extract(hour FROM date_time) <= 6 OR extract(hour FROM date_time) >= 20 THEN 'nightTime'
           ELSE 'otherTime' END AS bid_time_type,
      date_time, extra, char_length(extra) - char_length(replace(extra, 'c', '')) AS c_counts
    FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    # many aggregates
    "q15": f"""SELECT to_char(date_time, 'YYYY-MM-DD') AS day, {_RANKS}, {_distinct("bidder")}, {_distinct("auction")}
    FROM bid GROUP BY to_char(date_time, 'YYYY-MM-DD')""",
    "q16": f"""SELECT channel, to_char(date_time, 'YYYY-MM-DD') AS day, max(to_char(date_time, 'HH24:MI')) AS minute,
      {_RANKS}, {_distinct("bidder")}, {_distinct("auction")}
    FROM bid GROUP BY channel, to_char(date_time, 'YYYY-MM-DD')""",
    "q17": f"""SELECT auction, to_char(date_time, 'YYYY-MM-DD') AS day, {_RANKS}, min(price) AS min_price,
      max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
    FROM bid GROUP BY auction, to_char(date_time, 'YYYY-MM-DD')""",
    # the last, the best, and look-ups
    "q18": """SELECT auction, bidder, price, channel, url, date_time, extra FROM (
      SELECT *, row_number() OVER (PARTITION BY bidder, auction
        ORDER BY date_time DESC, price DESC, url, extra) AS rank_number FROM bid) b WHERE rank_number <= 1""",
    "q19": """SELECT * FROM (
      SELECT *, row_number() OVER (PARTITION BY auction
        ORDER BY price DESC, date_time, bidder, url, extra) AS rank_number FROM bid) b WHERE rank_number <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra, a.item_name, a.description,
      a.initial_bid, a.reserve, a.date_time AS auction_date_time, a.expires, a.seller, a.category,
      a.extra AS auction_extra
    FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": """SELECT auction, bidder, price, channel,
      CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1'
           WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3'
           ELSE split_part(split_part(url, 'channel_id=', 2), '&', 1) END AS channel_id
    FROM bid WHERE url LIKE '%channel_id=%' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
      split_part(url, '/', 6) AS dir3 FROM bid""",
}

SPARKS_OWN = {
    "q11": """SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime
    FROM bid GROUP BY bidder, session_window(date_time, '10 seconds')""",
}
"""What Spark, streaming and batch, has a way of its own to say."""

LOOKED_UP = {
    "q13": """SELECT b.auction, b.bidder, b.price, b.date_time, s.value FROM bid b
    JOIN side_input FOR SYSTEM_TIME AS OF PROCTIME() s ON mod(b.auction, 10000) = s.key""",
}
"""As the suites have it: each bid meets the side input as it is then. Peers read that once, and join as above."""
