"""Webhooks: tables whose rows come in signed HTTP requests. `headrace/web/` listens for these.

options.py     the options of such a table
validation.py  how a request proves that it comes from who may send: `VALIDATE SECRET ... AS secure_compare(...)`
body.py        the body of a request as rows

A table of this connector is a table like any other: SQL changes it, too, and a request is one more INSERT. All that is
kept of the connector stands in the table's options, and the secret among its secrets.
"""
