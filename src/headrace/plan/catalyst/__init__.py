"""The seam around Catalyst: the only place that calls Spark's Java process.

bridge.py     the one place that touches Catalyst's internals
handles.py    what is asked of Java about plans, as seldom as possible
answers.py    errors of calls: what Java raised, and whether anybody answered at all
process.py    the Java process: started, left behind, ended
running.py    what runs there beside plans: jobs to cancel, rows to fetch, functions to register, what is still held
"""
