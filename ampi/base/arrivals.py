"""What is done when a module has been imported, by whoever does so; it is not imported for it (post-import hooks)."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

_waiting: dict[str, list[Callable[[], None]]] = {}
_around: dict[str, Callable[[], AbstractContextManager]] = {}
_lock = threading.RLock()


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call a function once a module has been imported: at once if it has."""
    with _lock:
        _listen()
        _waiting.setdefault(name, []).append(then)
    settle(name)


def around_imports(package: str, context: Callable[[], AbstractContextManager]) -> None:
    """Have each module of a package that is imported from now on run inside of a context."""
    with _lock:
        _listen()
        _around[package] = context


def settle(*names: str) -> None:
    """Do what is due: for modules that are there, also if another finder than ours has found them."""
    if not names and _waiting.keys().isdisjoint(sys.modules.keys()):
        return  # as each time but the first few that a tape opens
    for name in names or tuple(_waiting):
        if _is_complete(name):
            for then in _taken(name):
                then()


def _taken(name: str) -> Sequence[Callable[[], None]]:
    with _lock:
        return _waiting.pop(name, ())


def _is_complete(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


class _Finder:
    """Has what others find run with what is to be done around and after it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """The module's own, with a loader that goes on."""
        context = _around.get(name.partition(".")[0])
        if context is None and name not in _waiting:
            return None
        spec = _found_by_others(name, path, target)
        run = getattr(spec and spec.loader, "exec_module", None)
        if spec is None or run is None:
            return spec

        def run_and_go_on(module: Any) -> None:
            with context() if context is not None else contextlib.nullcontext():
                run(module)
            while due := _taken(name):  # what is done may wait for the same module again
                for then in due:
                    then()

        spec.loader.exec_module = run_and_go_on
        return spec


class _Asking(threading.local):
    """The modules for which other finders are asked in a thread: there are some that ask all others themselves."""

    def __init__(self) -> None:
        self.names: set[str] = set()


_asking = _Asking()


def _found_by_others(name: str, path: Sequence[str] | None, target: Any) -> Any:
    if name in _asking.names:
        return None
    _asking.names.add(name)
    try:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and not isinstance(finder, _Finder) else None
            if spec is not None:
                return spec
        return None
    finally:
        _asking.names.discard(name)


def _listen() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
