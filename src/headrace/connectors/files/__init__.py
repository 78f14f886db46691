"""Files of a file system or of stores of objects.

Where files are:

store_access.py  a file system or stores of objects, behind one interface
clients.py       clients of object stores: their options, and what their errors mean
object_files.py  files that are objects, read by ranges that name the content that was seen
file_listing.py  which files there are, in which order, and whether they have changed

Reading:

admission.py   what a limit leaves of a binding, file by file
source.py      the `files` source: CSV, JSON lines, Parquet and Avro
options.py     its options: where the files are, how they are laid out, at what pace they are replayed
formats.py     reads a piece of a file as rows
row_groups.py  row groups of Parquet files, where read tasks begin and end
later_columns.py  columns that have come since a source was made: NULL in files without them
avro_files.py  Avro's files: their schema, their blocks, and the records in these
lines.py       where records begin and end, and how to reach a range of bytes
infer.py       finds the columns of files that were declared without any
replay.py      replays files in the order of their event times

Writing:

out.py      rows into a file of Parquet, JSON lines or CSV
folders.py  folders that many tasks write to, and that are there whole or not at all
sink.py     the `files` sink: one file for each epoch that has rows

epoch_files.py  where the file of an epoch goes: a directory or an object store

What must hold. Files leave out only columns in which no value can be at fault (those of Parquet files stored as
declared): a row that `on_error` drops for one reader is dropped for all. Files are bound by ranges of bytes: a whole
file by its size, and where a limit ends inside it, at the next line break behind an estimate. Tasks are cut the same
way, so nobody knows a line's number before it is at fault; then the task counts the lines before it, once for each
file and process.
"""
