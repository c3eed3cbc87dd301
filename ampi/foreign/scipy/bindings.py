"""Checks that rules fit the functions of the installed SciPy; functions without a fitting rule are refused.

A rule is not used if it requests a parameter that the function does not have, or if the function has parameters (or a
module) that `known_parameters` does not list: active arguments then raise an error that names the function and the
version.  If the release or the function's source was not tested (`known_sources`), the first call with active arguments
is compared with finite differences, and a rule with another derivative is refused in the same way.  Installing rules
raises no error, so that the rest of SciPy keeps its rules.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import scipy

from ...arrays.known_classes import mapped, parts
from ...base import versions
from ...interception import hooks as libraries
from ...interception.hooks import Hook
from ...rules import definitions, trials
from ...rules.definitions import any_active, refusal
from ...tape import Tape
from . import guards
from .known_parameters import PARAMETERS
from .known_sources import SOURCES

problems: dict[str, Exception] = {}
"""Parts of SciPy whose rules could not all be installed."""

unfit: dict[str, str] = {}
"""Functions whose rules do not fit the installed SciPy, and the reasons."""


absent: set[str] = set()
"""Functions with rules that the installed SciPy does not have."""


def install(part: str, modules: list[str]) -> None:
    """Import the modules with the rules of a part of SciPy."""
    with bound(part):
        for name in modules:
            _import_rules(name)
    if part in problems:
        guards.without_rules[part] = f" in SciPy {scipy.__version__} (ampi's rules: {problems[part]})"


def _import_rules(name: str) -> None:
    """Import a module with rules; functions that the installed SciPy does not have are skipped."""
    stand_ins: list[tuple[types.ModuleType, str]] = []
    try:
        while True:
            try:
                importlib.import_module(name)
                return
            except AttributeError as error:
                module = error.obj
                if not isinstance(module, types.ModuleType) or not module.__name__.startswith("scipy."):
                    raise
                setattr(module, error.name, types.FunctionType(_missing.__code__, {}, error.name))
                stand_ins.append((module, error.name))
    finally:
        for module, missing in stand_ins:
            delattr(module, missing)
            absent.add(f"{module.__name__}.{missing}")


def _missing() -> None:
    """Stand-in for a function that the installed SciPy does not have, while rules are installed."""


@contextlib.contextmanager
def bound(part: str) -> Iterator[None]:
    """Context in which the rules of a part are installed."""
    before = set(libraries.all_hooks())
    definitions.not_fitting = _refuse_unfit
    try:
        yield
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        problems[part] = error
    finally:
        definitions.not_fitting = None
    for found in libraries.all_hooks():
        if found not in before:
            bind(found)


def bind(found: Hook) -> None:
    """Keep a function's rule if it fits the function; otherwise refuse active arguments."""
    place = f"{getattr(found.original, '__module__', '')}:{getattr(found.original, '__qualname__', '')}"
    if (
        found.handle in (None, guards.refuse)
        or found.name in unfit
        or place.startswith("ampi.")
        or not hasattr(found.original, "__code__")
    ):
        return
    known = PARAMETERS.get(place)
    others = [name for name in found.signature.parameters if known is None or name not in known.split()]
    if known is None:
        _refuse(found, f"it is another function ({place}) than ampi's rule was written for")
    elif others:
        _refuse(found, f"it takes parameters that ampi's rule does not know ({', '.join(others)})")
    elif place.partition(":")[0].partition("._")[0] not in _BY_SCIPY and place not in _HOLDING_VALUES:
        found.handle = _UntilTested(place, found.handle)


_BY_SCIPY = {"scipy.sparse"}
"""Parts whose rules run SciPy's own functions to find where elements come from."""

_HOLDING_VALUES = {
    "scipy.interpolate._polyint:_Interpolator1D.__call__",
    "scipy.interpolate._rgi:RegularGridInterpolator.__call__",
}
"""Methods of objects that hold active values beside SciPy's plain ones."""


class _UntilTested:
    """The handler of a function until its rule is known to fit, which is checked at the first call."""

    def __init__(self, place: str, handle: Callable) -> None:
        self.place = place
        self.handle = handle
        self.trial = trials.Trial()

    def __call__(self, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
        handle = self.handle
        if is_tested(self.place, found.original):
            found.handle = handle
        elif any_active(tape, arguments, keywords):
            found.handle = handle  # used by the trial
            rule = lambda tape, arguments, keywords: handle(found, tape, arguments, keywords)
            if self.trial.refutes(found.original, rule, tape, arguments, keywords, (parts, mapped)):
                _refuse(found, "its derivative is not that of the function that ampi's rule was written for")
                return found.handle(found, tape, arguments, keywords)
            if not self.trial.is_over:
                found.handle = self
        return handle(found, tape, arguments, keywords)


def is_tested(place: str, function: Callable) -> bool:
    """Return whether a function's source in this release is one that ampi was tested with."""
    if versions.untested({"scipy": scipy.__version__}):
        return False
    return source_of(function) in (*SOURCES.get(place, "").split(), "")


def source_of(function: Callable) -> str:
    """A digest of a function's source; empty if there is no source."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:8]


def _refuse_unfit(found: Hook, error: TypeError) -> None:
    _refuse(found, f"it does not take the parameters that ampi's rule knows ({error})")


def _refuse(found: Hook, why: str) -> None:
    unfit[found.name] = why
    found.handle = functools.partial(_refused, why)


def _refused(why: str, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    raise refusal(found.name, f" in SciPy {scipy.__version__} ({why})")
