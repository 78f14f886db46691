"""Packages that are left out."""

from __future__ import annotations

import importlib
import sys

import pytest

from headrace.common.absent import absent


def test_a_package_is_missing_while_the_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules, too; what else there is can be loaded, and afterwards it can be."""
    for name in [m for m in sys.modules if m.partition(".")[0] in ("wave", "xmlrpc")]:
        monkeypatch.delitem(sys.modules, name)
    finders = list(sys.meta_path)
    with absent("wave", "xmlrpc"):
        for name in ("wave", "xmlrpc.client"):
            with pytest.raises(ModuleNotFoundError) as raised:
                importlib.import_module(name)
            assert raised.value.name in ("wave", "xmlrpc")
        importlib.import_module("wsgiref")
    assert sys.meta_path == finders
    importlib.import_module("wave")
    importlib.import_module("xmlrpc.client")


def test_it_ends_with_an_error_in_the_block() -> None:
    finders = list(sys.meta_path)
    with pytest.raises(ZeroDivisionError), absent("wave"):
        print(1 / 0)
    assert sys.meta_path == finders
