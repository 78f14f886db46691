"""HTTP: changes of a query as requests.

sink.py    the `http` sink: an epoch is a few requests, each with a key by which the receiver knows one that comes again
ordering.py  lines in the order of their bytes, as many as there are
client.py  requests over one connection, which is made again where the receiver has closed it
"""
