"""Loops that have proved hot in earlier runs of a program: empty files in the folder of compiled kernels."""

from __future__ import annotations

import ast
import contextlib
from typing import Any

from .loops import Loop


def _file(loop: Loop) -> Any:
    from ...kernel.runtime import cache, files

    return files.folder() / f"loop_{cache.key(loop.function, ast.dump(loop.node))}.hot"


def was_hot(loop: Loop) -> bool:
    """Return whether a loop has been compiled in an earlier run."""
    try:
        return _file(loop).exists()
    except OSError:
        return False


def note_hot(loop: Loop) -> None:
    """Remember that a loop is compiled."""
    with contextlib.suppress(OSError):
        _file(loop).touch(mode=0o600)
