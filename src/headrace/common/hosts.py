"""Addresses of this host, as others reach it."""

from __future__ import annotations

import socket


def bind_address(host: str) -> str:
    """Where to listen so that others who connect to `host` get through: there, or on all of this host's addresses.

    A name that stands for a service or a gateway is no address of this host.
    """
    try:
        with socket.create_server((host, 0)):
            return host
    except OSError:
        return "0.0.0.0"


def address_towards(host: str, port: int) -> str | None:
    """The address of this host from which `host` is reached; None if there is no way. Sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError:
        return None
