"""Rules are bound to the functions that they were written for: those of another SciPy are refused by name.

A rule that asks for a parameter which this version's function does not have, or whose function has parameters (or a
place) that `known_parameters` does not list, is not used: active arguments are an error that names the function and the
version.  Nothing is raised while rules are put in, so that the rest of SciPy keeps its rules.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import scipy

from .. import libraries
from ..libraries import Hook
from ..rules import definitions
from ..rules.definitions import any_active, refusal
from ..tape import Tape
from . import guards
from .known_parameters import PARAMETERS

problems: dict[str, Exception] = {}
"""Parts of SciPy whose rules could not be put in, or not all of them."""

unfit: dict[str, str] = {}
"""Functions whose rules do not fit this SciPy, and why."""


@contextlib.contextmanager
def bound(part: str) -> Iterator[None]:
    """While the rules of a part are put in."""
    before = set(libraries.all_hooks())
    definitions.not_fitting = _ask_too_much
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
    """Keep a function's rule if it is one that the rule was written for, or else have active arguments refused."""
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


def _ask_too_much(found: Hook, error: TypeError) -> None:
    _refuse(found, f"it does not take the parameters that ampi's rule knows ({error})")


def _refuse(found: Hook, why: str) -> None:
    unfit[found.name] = why
    found.handle = functools.partial(_refused, why)


def _refused(why: str, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    raise refusal(found.name, f" in SciPy {scipy.__version__} ({why})")
