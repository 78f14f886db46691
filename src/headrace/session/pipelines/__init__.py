"""Pipelines: relations defined by functions of a Python file, found, ordered and created together.

definitions.py     definitions, as decorated functions collect them; nothing runs here
loading.py         loads a pipeline's file
pipeline_graph.py  which definition reads which: each is evaluated over empty relations
digest.py          whether a definition is still what it was
apply.py           makes the database what the pipeline says

`pipeline_graph.py` evaluates every definition over relations that have columns and no rows, and so finds what reads
what, in whatever order they are defined. `apply.py` creates what is missing in that order. Each object keeps a digest
of its definition (SQL text, or canonical plan and the functions' code without its lines): it tells a changed definition
from one that was only moved.
"""
