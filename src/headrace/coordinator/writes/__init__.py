"""How rows come into tables: transactions on one snapshot, committed in groups, checked for conflicts.

layout.py       a table's rows as Python tuples, and in the layout of its state
rows.py         net changes of rows by key, and the operations on single rows that make them
history.py      which keys changed when: what a transaction's reads are checked against
transaction.py  what one transaction has read and wants to write, statement by statement
requests.py     what writers hand over to be committed
group.py        what one group commit makes of the tables that it touches. Pure, apart from look-ups
gates.py        tables that a statement keeps for itself until it has committed
writer.py       takes what waits, plans it, writes one run for each table and commits it at one epoch
"""
