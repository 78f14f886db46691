"""Apache Kafka, and what speaks its protocol.

Both ways:

options.py       the options of the connector, and its clients' configuration
avro.py          records in Avro, with Confluent's framing
avro_columns.py  the same decoded by columns, where they are plain
framed.py        values that name their schema, as readers of all encodings see them
protobuf.py      records in Protobuf, with Confluent's framing
protobuf_schemas.py  schemas of Protobuf: texts of the registry, compiled
registry.py      a schema registry: schemas by id, and the newest of a subject

Reading:

source.py        the source: a partition is a split, an offset a position
topics.py        which topic a name stands for: one that was made again is another
looking.py       how wide records are before any has been read
reading.py       reads ranges of offsets in Spark's workers, one consumer for each process
bulk.py          a consumer that takes many records at once out of the client library
packed.py        records of which values and offsets are known, side by side in one buffer
message_rows.py  records as rows, and the columns that `INCLUDE` adds
csv_records.py   records of CSV, a row each
changes.py       records that are changes of a table: `FORMAT UPSERT` and `FORMAT DEBEZIUM`

Writing:

sink.py       the sink: an epoch is one transaction of a producer
producing.py  the producers, one of each sink in a process, which outlives epochs
envelopes.py  changes as records of a topic
plain_keys.py keys that are encoded otherwise than values
refused.py    which records a broker refuses for good
"""
