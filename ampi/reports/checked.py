"""Checks of a gradient, in the form that the page shows."""

from __future__ import annotations

import math
from typing import Any


def described(check: Any) -> list[dict[str, Any]]:
    """Return text, outcome and errors over step sizes for tests of `ampi.testing` and comparisons of ``--check``.

    ``check`` is one of these, a list of them, or a value that this function has returned.
    """
    if check is None:
        return []
    if isinstance(check, (list, tuple)):
        return [one for part in check for one in described(part)]
    if isinstance(check, dict):
        return [check]
    passed = bool(getattr(check, "passed", False))
    curve = [list(point) for point in getattr(check, "curve", []) if all(map(math.isfinite, point))]
    return [{"text": str(check), "passed": passed, "curve": curve}]
