"""The proof that processes on other hosts use the same store as the server.

A directory is a different one on each host unless it is mounted; so is a bucket behind a wrong endpoint. A task there
would write to a place that nobody reads, and acknowledge it. So the server puts an object with a random name into its
store, and tells it along with the store's address: whoever opens the store looks for it first. That what others have
written has arrived, the server looks for before it counts (`confirm`).
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from headrace.errors import HeadraceError, StorageError
from headrace.state.schema import RunRef
from headrace.state.stores import ONE_STORE, ObjectStore, Root, StoreRoot, store_of, store_root

FOLDER = "proof"


def asking_for_proof(root: StoreRoot) -> StoreRoot:
    """The root as it is told to processes on other hosts. They cannot open it before `put_proof`."""
    return replace(root, proof=f"{FOLDER}/{secrets.token_hex(16)}")


def put_proof(root: StoreRoot) -> None:
    """Put the object that others look for; those of earlier servers go, which have been shut out."""
    store = store_of(replace(root, proof=""))
    for old in list(store.list(FOLDER)):
        store.delete(old.path)
    _put(store, root.proof)


def remove_proof(root: StoreRoot) -> None:
    """Nobody will look for it any more."""
    with suppress(HeadraceError):
        store_of(replace(root, proof="")).delete(root.proof)


def answer_proof(root: StoreRoot) -> tuple[str, str, str]:
    """What a process on another host says: which host it is, the object that it has put, and what went wrong."""
    answer = f"{root.proof}-{secrets.token_hex(8)}"
    try:
        _put(store_of(root), answer)
    except HeadraceError as error:
        return socket.gethostname(), "", error.message
    return socket.gethostname(), answer, ""


def check_answers(root: StoreRoot, answers: Iterable[tuple[str, str, str]]) -> None:
    """Raise `StorageError` if a host does not see what the server has put, or the server not what a host has put."""
    store = store_of(replace(root, proof=""))
    for host, answer, error in answers:
        if not error and store.head(answer) is None:
            error = f"the server does not see object {answer} that it has put there"
        if error:
            raise StorageError(
                f"host {host} does not use the same store for the state as the server, {root.url}: {error}",
                hint=ONE_STORE,
            )
        store.delete(answer)


def confirm(root: Root, refs: Iterable[RunRef]) -> None:
    """Raise `StorageError` unless the server sees all objects that tasks elsewhere say they have written."""
    whole = store_root(root)
    store = store_of(whole)
    paths = sorted({ref.path for ref in refs})
    with ThreadPoolExecutor(max(1, min(whole.concurrency, len(paths)))) as pool:
        for path, found in zip(paths, pool.map(store.head, paths), strict=True):
            if found is None:
                raise StorageError(
                    f"object {path} that a task has written is not in the server's store {whole.url}",
                    hint="the task's host has another store of that name: nothing of it counts",
                )


def _put(store: ObjectStore, path: str) -> None:
    with store.create(path) as sink:
        sink.begin()
        sink.write(os.urandom(64))
        sink.end()
        sink.commit()
