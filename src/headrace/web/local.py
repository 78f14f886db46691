"""Who may write to a table without VALIDATE: programs of this machine, not pages in a browser that runs on it.

A page from anywhere can have a browser send requests to this machine's ports. It cannot hide that: a browser says where
a page is from, and under which name the page has reached this machine; and without leave, which is never given here, it
sends only bodies that do not call themselves JSON.
"""

from __future__ import annotations

from headrace.session.access import is_loopback
from headrace.web.exchange import Head

_OF_BROWSERS = ("origin", "sec-fetch-site", "sec-fetch-mode")


def strangeness(head: Head) -> str | None:
    """Why a request that proves nothing is not taken; None where a program of this machine has sent it."""
    if not is_loopback(head.address):
        return "it takes requests from the server's own machine only"
    said = next((name for name, _ in head.headers if name in _OF_BROWSERS), None)
    if said is not None:
        return f"it takes no requests of browsers, which send the header {said}"
    if not is_loopback(_host(head.value("host"))):
        return "it takes requests to localhost only, and the header host says something else"
    return None


def _host(said: str) -> str:
    """A name or an address without its port."""
    said = said.strip().lower()
    if said.startswith("["):
        return said[1:].partition("]")[0]
    return said.partition(":")[0]
