"""Files that a sink writes: one for each epoch that has rows.

sink.py  the `files` sink: names, formats and the link that delivers
"""
