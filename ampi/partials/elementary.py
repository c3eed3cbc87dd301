"""Partial derivatives of NumPy's ufuncs.

At a kink the derivative is one-sided: that of ``absolute`` and ``hypot`` from the right, that of an extremum of equal
arguments with respect to the first, and that of a maximum or minimum that is NaN with respect to the first NaN.  Where
a derivative is infinite (``sqrt`` at zero), an adjoint that is exactly zero gives zero, and any other one the result of
IEEE arithmetic.  The derivative of a power is zero with respect to the base
where the exponent is zero, and with respect to the exponent where the power is zero.  At 0**0 that with respect to the
exponent is minus infinity, the limit of log(x).

On a branch cut of a complex function the sign of an imaginary zero determines the side: ``x - -1`` preserves it,
``x + 1`` does not.
"""

from __future__ import annotations

import math

_LN2, _LN10 = repr(math.log(2.0)), repr(math.log(10.0))
_DEGREES, _RADIANS = repr(180.0 / math.pi), repr(math.pi / 180.0)
_SIDE = "1 if x >= 0 else -1"
POWER = ("y * x ** (y - 1) if y != 0 else y / x if abs(x) > 0 else 0", "r * log(x) if r != 0 else 0")
_FIRST, _SECOND = "1 if x == r else 0", "0 if x == r else 1"
_AROUND = "0 if (h := hypot(x, y)) == 0 else 0 if isinf(h) else {0} / h / h"  # the squares may overflow or underflow
_SHARE = "0.5 if x == y else 1 if {0} == r else {1}({0} - r)"  # both may be infinite
_LEG = "1 if {0} == r else -1 if {0} == -r else 0 if isinf(r) else {0} / r"  # the other one may be NaN
_OTHER_LEG = "(sqrt(-(x - 1)) * sqrt(x - -1))"

PARTIALS: dict[str, tuple[str | None, ...]] = {
    "add": ("1", "1"),
    "subtract": ("1", "-1"),
    "multiply": ("y", "x"),
    "divide": ("1 / y", "-(r / y)"),
    "power": POWER,
    "float_power": POWER,
    "remainder": ("1", "-floordiv(x, y)"),
    "fmod": ("1", "-round((x - r) / y)"),
    "maximum": ("1 if x >= y else 0 if x == x else 1", "0 if x >= y else 1 if x == x else 0"),
    "minimum": ("1 if x <= y else 0 if x == x else 1", "0 if x <= y else 1 if x == x else 0"),
    "fmax": (_FIRST, _SECOND),
    "fmin": (_FIRST, _SECOND),
    "logaddexp": (_SHARE.format("x", "exp"), _SHARE.format("y", "exp")),
    "logaddexp2": (_SHARE.format("x", "exp2"), _SHARE.format("y", "exp2")),
    "arctan2": (_AROUND.format("y"), _AROUND.format("-x")),
    "hypot": (_LEG.format("x"), _LEG.format("y")),
    "nextafter": ("1", None),
    "heaviside": (None, "1 if x == 0 else 0"),
    "copysign": ("1 if (x >= 0) == (copysign(1, y) >= 0) else -1", None),
    "ldexp": ("exp2(trunc(y))", None),
    "negative": ("-1",),
    "positive": ("1",),
    "absolute": (_SIDE,),
    "fabs": (_SIDE,),
    "sqrt": ("0.5 / r",),
    "cbrt": ("1 / (3 * r * r)",),
    "square": ("2 * x",),
    "reciprocal": ("-(r * r)",),
    "exp": ("r",),
    "exp2": (f"r * {_LN2}",),
    "expm1": ("exp(x)",),
    "log": ("1 / x",),
    "log2": (f"1 / (x * {_LN2})",),
    "log10": (f"1 / (x * {_LN10})",),
    "log1p": ("1 / (1 + x)",),
    "sin": ("cos(x)",),
    "cos": ("-sin(x)",),
    "tan": ("1 + r * r",),
    "arcsin": ("1 / sqrt((1 - x) * (1 + x))",),
    "arccos": ("-1 / sqrt((1 - x) * (1 + x))",),
    "arctan": ("1 / (1 + x * x)",),
    "sinh": ("cosh(x)",),
    "cosh": ("sinh(x)",),
    "tanh": ("(1 - r) * (1 + r)",),
    "arcsinh": ("1 / hypot(x, 1)",),
    "arccosh": ("1 / (sqrt(x - 1) * sqrt(x - -1))",),
    "arctanh": ("1 / ((1 - x) * (1 + x))",),
    "degrees": (_DEGREES,),
    "rad2deg": (_DEGREES,),
    "radians": (_RADIANS,),
    "deg2rad": (_RADIANS,),
}

_COMPLEX_POWER = (
    "y * x ** (y - 1) if y != 0 else y / (x if x != 0 else 1)",  # Numba raises at a complex zero
    "r * log(x - 0j if x != 0 else 1)",  # also for negative numbers
)
COMPLEX: dict[str, tuple[str | None, ...]] = {
    "power": _COMPLEX_POWER,
    "float_power": _COMPLEX_POWER,
    "arcsin": (f"1 / {_OTHER_LEG}",),
    "arccos": (f"-1 / {_OTHER_LEG}",),
    "arcsinh": ("1 / sqrt(x * x - -1)",),
}
"""Partial derivatives for complex numbers, where they differ from `PARTIALS`."""

UNBOUNDED = frozenset(
    "divide power float_power remainder fmod arctan2 sqrt cbrt reciprocal exp exp2 expm1 log log2 log10 log1p tan "
    "arcsin arccos sinh cosh arccosh arctanh".split()
)
"""Functions whose derivative may be infinite or NaN where an adjoint is zero, which then stays zero."""
