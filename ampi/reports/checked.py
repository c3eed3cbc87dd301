"""How checks of a gradient are shown."""

from __future__ import annotations

from typing import Any

from ..programs.differences import Comparison
from ..testing import TaylorTest


def described(check: Any) -> list[dict[str, Any]]:
    """Tests of `ampi.testing`, and comparisons of ``--check``, as the page has them.

    Each has its text, whether it passed, and, where steps were tried, the relative error of each.
    """
    if check is None:
        return []
    if isinstance(check, (list, tuple)):
        return [one for part in check for one in described(part)]
    if isinstance(check, dict):
        return [check]
    found: dict[str, Any] = {"text": str(check), "passed": bool(getattr(check, "passed", False)), "curve": []}
    if isinstance(check, Comparison):
        found["curve"] = [[step, check.error(k)] for k, step in enumerate(check.steps)]
    elif isinstance(check, TaylorTest):
        found["curve"] = [[h, first] for h, first in zip(check.steps, check.first)]
    return [found]
