"""Files and folders that only the user of this process may write to: what is unpickled, or believed, must be such."""

from __future__ import annotations

import os
import stat
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700


class NotPrivate(OSError):
    """A file or folder of another user, or one that others may write to."""


def is_private(status: os.stat_result) -> bool:
    """Return True if what has this status is this user's, and nobody else may write to it."""
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read_private(path: Path) -> bytes:
    """Return what a file holds. Raises `NotPrivate` unless it and its folder are private, `OSError` where it is not."""
    if not is_private(os.lstat(path.parent)):
        raise NotPrivate(f"others may write to the folder {path.parent}")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        if not is_private(os.fstat(descriptor)):
            raise NotPrivate(f"others may write to {path}")
        return file.read()


def write_private(path: Path, data: bytes) -> None:
    """Write a file anew for this user alone, in a folder that is made where there is none. Raises `OSError`."""
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # whoever made it could go on writing to it
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    with open(descriptor, "wb") as file:
        file.write(data)
