"""Checks of a gradient, in the form in which the page shows them."""

from __future__ import annotations

from typing import Any


def described(check: Any) -> list[dict[str, Any]]:
    """Text, outcome and curve of errors over steps, of tests of `ampi.testing` and comparisons of ``--check``.

    Takes one check, a list of them, or what this function has returned.
    """
    if check is None:
        return []
    if isinstance(check, (list, tuple)):
        return [one for part in check for one in described(part)]
    if isinstance(check, dict):
        return [check]
    passed, curve = bool(getattr(check, "passed", False)), list(map(list, getattr(check, "curve", [])))
    return [{"text": str(check), "passed": passed, "curve": curve}]
