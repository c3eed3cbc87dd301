"""Checks whether the files of a time loop can be trusted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..kernel.runtime.files import check_parents, refused


class Unread(Exception):
    """Raised if a file must not be read; the text is the reason."""


def make(folder: Path) -> None:
    """Make a folder that only its owner can modify, whatever the umask, and the folders above it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o755)


def private(path: str, flags: int) -> int:
    """Open a file as an opener of `open`: only the owner can modify a new file."""
    return os.open(path, flags, 0o644)


def check_own(folder: Path) -> None:
    """Raise an error if another user could have put states into a folder."""
    if not hasattr(os, "geteuid"):
        return
    status = folder.lstat()
    if status.st_uid != os.geteuid():
        raise PermissionError(f"the folder {folder} belongs to another user")
    if status.st_mode & 0o022:
        raise PermissionError(
            f"the folder {folder} can be changed by other users (chmod go-w {folder}, if you trust it)"
        )


def check_alone(folder: Path) -> None:
    """Raise an error if another user could have created this folder: unpickling its objects can run any code."""
    if hasattr(os, "geteuid"):
        check_own(folder)
        check_parents(folder)


def refused_file(path: Path) -> str:
    """Return why a file must not be read; empty if it may be, or is absent."""
    try:
        why = refused(path.lstat())
        if not why:
            open(path, "rb").close()
    except FileNotFoundError:
        return ""
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    return why and f"{path} {why}"
