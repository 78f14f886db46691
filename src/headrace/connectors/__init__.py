"""Sources, read by offset range, and sinks, written by epoch.

A connector that needs more than one module has a folder.

What a connector is:

base.py     what a source is: splits, offsets, admission, tasks, errors by row
sources.py  the sources that there are, by their connectors' names
sinks.py    what a sink is: it takes whole epochs of changes

refusals.py  rows that a target refuses for good: how they are found, and what is kept of them

Options:

declared.py            options declared once: checks, error texts and manual tables follow from them
job_options.py         options of whatever a job keeps up to date
option_reader.py       reads and checks the WITH options of a source
policy.py              `on_error`: what becomes of a row that could not be understood
confidential.py        a connector whose options hold secrets: no error shows their values
connection_options.py  what a connection has, and what may stand beside it
other_names.py         connectors and options by the names that RisingWave gives them

Values:

spelling.py       which of the names that are there a column stands for
parsed_values.py  text and JSON to Arrow columns, one verdict for each value
json_in.py        records of JSON as rows, many at once where they are plain
json_out.py       rows as JSON objects, as sinks write them
leaving.py        values of types that only headrace has, written as text
held_changes.py   an epoch's changes, held in pieces: in memory, or on local disk where they are many
netting.py        what an epoch's changes come to: rows added, keys gone or replaced
pacing.py         when the rows of a source that follows the wall clock become due

Sources made by headrace:

datagen.py         the `datagen` connector: made-up rows at a rate
datagen_fields.py  its columns: values computed from row numbers
nexmark.py         the `nexmark` connector
nexmark_events.py  the events of the Nexmark auction, computed from their numbers

Other systems:

files/        files of a file system or of object stores: source, sink, COPY
kafka/        Kafka: source and sink
postgres/     PostgreSQL: change source and sink
lake/         Iceberg and Delta tables: sources and sinks
http/         the `http` sink
webhook/      tables whose rows come in HTTP requests
blackhole.py  the `blackhole` sink, which drops all rows

What must hold. A connector imports a package that it alone needs where it uses it: every Python worker loads this
part. The options stand in one table (`declared.py`); from it follow the checks, the errors and the tables of
`docs/connectors/`. `tests/connectors/contract/` holds all connectors to the same law, with faults;
`tests/e2e/test_delivery_crash.py` kills servers and workers around them.

Most sources only add rows. One that takes rows back says so (`Source.retracts`) before it is opened: what is built on
it is then planned as on a table, and what lies between two offsets is the difference of what is at both.

A source learns which columns the query needs (`Source.only`), because reading the others can cost more than all the
rest. A source that keeps something for its readers where it reads (`Source.holds`: a replication slot) is told by
the ticker what all of them have committed. docs/design/0010 says how a sink delivers.
"""
