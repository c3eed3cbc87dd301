"""Post-import hooks: functions that are called once a module has been imported by any code."""

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
    """Call a function once a module has been imported; immediately if it already has been."""
    with _lock:
        _install_finder()
        _waiting.setdefault(name, []).append(then)
    settle(name)


def around_imports(package: str, context: Callable[[], AbstractContextManager]) -> None:
    """Run each module of a package that is imported from now on inside a context."""
    with _lock:
        _install_finder()
        _around[package] = context


def settle(*names: str) -> None:
    """Call the functions that wait for modules which were imported without `_Finder`."""
    if not names and _waiting.keys().isdisjoint(sys.modules.keys()):
        return  # the usual case when a tape is opened
    for name in names or tuple(_waiting):
        if _is_complete(name):
            for then in _take_due(name):
                then()


def _take_due(name: str) -> Sequence[Callable[[], None]]:
    with _lock:
        return _waiting.pop(name, ())


def _is_complete(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


class _Finder:
    """A finder that lets the other finders find a module, and calls the hooks after it has run."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Return the spec of another finder, with a loader that calls the hooks."""
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
            while due := _take_due(name):  # a function may register another one for the same module
                for then in due:
                    then()

        spec.loader.exec_module = run_and_go_on
        return spec


class _Asking(threading.local):
    """The modules that a thread is looking up: some finders call all others, which would recurse."""

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


def _install_finder() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
