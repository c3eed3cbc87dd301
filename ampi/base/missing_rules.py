"""The error for functions that have no derivative rule."""

import numpy as np

from ..errors import ActivityError
from .program_lines import where_called


def public_name(name: str) -> str:
    """Return a function's dotted name as programs write it, without private modules."""
    *modules, function = name.split(".")
    return ".".join([*[part for part in modules if not part.startswith("_")], function])


def no_rule(function: object, why: str = "") -> ActivityError:
    """Return the error for a function that has no derivative rule; ``why`` may add for which arguments."""
    name = getattr(function, "__name__", str(function))
    module = getattr(function, "__module__", None) or ("numpy" if hasattr(np, name) else "")
    name = public_name(f"{module}.{name}" if module else name)
    return ActivityError(
        f"{where_called()}: {name} has no derivative rule{why} and was given an active array; write it with functions "
        "that have one, wrap it with ampi.custom_vjp, or pass ampi.value(x) if its result is a constant"
    )
