"""Calls in loops: functions of ``math`` and NumPy on numbers, conversions, sums, extrema, ranges."""

from __future__ import annotations

import ast
import math
import types
from typing import Any

import numpy as np

from .expressions import constant_value
from .inlining import is_library
from .kinds import (
    EXACT,
    FLOAT,
    FLOAT64,
    INT,
    INT32,
    INT64,
    LARGEST,
    LOGICAL,
    Number,
    Refused,
    number,
)
from .loops import comprehension_of, listed_in
from .states import State
from .vectors import COPIES, FILLED, METHODS, is_vector, name_of

_MATH = set(
    "sin cos tan asin acos atan sinh cosh tanh exp expm1 log log1p log2 log10 sqrt fabs atan2 hypot copysign "
    "pow".split()
)
_SURE = {"atan", "tanh", "fabs", "copysign", "atan2"}
"""Functions that raise no exception, and give no warning, for any number (as the sine of infinity does)."""
_OF_NUMPY: dict[Any, str] = {
    **{getattr(np, name): name for name in "sin cos tan sinh cosh tanh exp expm1 log log1p log2 log10 sqrt".split()},
    **{getattr(np, f"arc{name}"): f"a{name}" for name in "sin cos tan".split()},
    np.fabs: "fabs", np.arctan2: "atan2", np.hypot: "hypot", np.copysign: "copysign", np.absolute: "abs",
    np.maximum: "maximum", np.minimum: "minimum", np.rint: "rint", np.floor: "floor",
    np.ceil: "ceil", np.trunc: "trunc", np.sign: "sign",
}  # fmt: skip
_ROUNDING = {"rint", "floor", "ceil", "trunc", "sign"}


class Calls:
    """Lowering of calls; a base of `lowering.Lowering`."""

    # ------------------------------------------------------------------------------------------------------- calls

    def call(self, node: ast.Call, state: State) -> tuple[str, Any]:
        name = ast.unparse(node.func)
        receiver = self.receiver(node.func, state)
        function = f"numpy.{node.func.attr}" if receiver else self.constant_of(node.func, state)  # type: ignore[attr-defined]
        if function is sum and (found := comprehension_of(node)) is not None:
            return self.summed(node, found, state)
        if node.keywords or any(isinstance(x, ast.Starred) for x in node.args):
            raise Refused(node, f"the arguments of {name}()")
        if function is len and len(node.args) == 1:
            return self.of_shape(node, self.anything(node.args[0], state)[1], 0)
        if function is None:
            raise Refused(node, f"a call of {name}()")
        if isinstance(function, types.FunctionType) and not is_library(function):
            return self.inlined(node, function, state)  # type: ignore[attr-defined]
        listed = listed_in(node)
        if listed is not None and name_of(function) in COPIES:
            return self.listed(node, listed.elts, state)  # type: ignore[attr-defined]
        arguments = receiver + [self.anything(x, state) for x in node.args]
        if any(is_vector(found) for _, found in arguments):
            return self.of_vectors(node, function, arguments, state)  # type: ignore[attr-defined]
        if name_of(function) in FILLED:
            return self.filled(node, function, arguments)  # type: ignore[attr-defined]
        for argument, (_, found) in zip(node.args, arguments):
            if not isinstance(found, Number):
                raise Refused(argument, f"{ast.unparse(argument)} is no number")
        if any(found.kinds & (LOGICAL | {INT32}) for _, found in arguments):
            raise Refused(node, f"{name}() of truth values or short integers")
        if function in (max, min) and len(arguments) >= 2:
            return self.extremes(node, function, arguments)
        if function is abs and len(arguments) == 1:
            return self.absolute(*arguments[0])
        if function in (float, np.float64) and len(arguments) == 1:
            text, found = arguments[0]
            if found.form == INT and found.magnitude > LARGEST // 2:
                raise Refused(node, "a large integer as a floating-point number")
            return f"float({text})", number(FLOAT if function is float else FLOAT64)
        if function is int and len(arguments) == 1 and arguments[0][1].form == INT:
            text, found = arguments[0]
            return text, number(INT, magnitude=found.magnitude, low=found.low, high=found.high)
        return self.of_library(node, name, function, arguments)

    def receiver(self, function: Any, state: State) -> list[tuple[str, Any]]:
        """The vector of whose class a called method is, as the first argument; nothing for other functions."""
        if not (isinstance(function, ast.Attribute) and function.attr in METHODS):
            return []
        try:
            found = self.anything(function.value, state)
        except Refused:
            if not isinstance(function.value, (ast.Name, ast.Attribute)):
                raise
            return []  # a module
        return [found] if is_vector(found[1]) else []

    def summed(self, node: ast.Call, found: Any, state: State) -> tuple[str, Number]:
        """Lower ``sum(x[i] for i in range(n))`` of NumPy's numbers; Python's floats are summed with compensation."""
        name = f"sum_at_{node.lineno}_{node.col_offset}"
        self.assigned.add(name)
        load, store = ast.Name(name, ast.Load()), ast.Name(name, ast.Store())
        body: ast.stmt = ast.Assign([store], ast.BinOp(load, ast.Add(), found.elt))
        for g in reversed(found.generators):
            for test in reversed(g.ifs):
                body = ast.If(test, [body], [])
            body = ast.For(g.target, g.iter, [body], [])
        for part in (start := ast.Assign([store], ast.Constant(0)), body):
            for inner in ast.walk(part):
                if isinstance(inner, (ast.expr, ast.stmt)) and not hasattr(inner, "lineno"):
                    ast.copy_location(inner, node)
        after = self.block([start, body], state.copy())  # type: ignore[attr-defined]
        value = after.env[name]
        if FLOAT in value.kinds:
            raise Refused(node, "sum() of Python's floating-point numbers, or of none")
        state.env.update(after.env)
        state.maybe, state.checked, state.same = after.maybe, after.checked, after.same
        result = self.temporary("sum")  # type: ignore[attr-defined]
        self.emit(f"{result} = {name}")  # type: ignore[attr-defined]
        return result, value.as_value()

    def of_library(self, node: Any, name: str, function: Any, arguments: Any) -> tuple[str, Number]:
        """A function of `math` or NumPy."""
        kind = FLOAT
        word = getattr(function, "__name__", "") if getattr(function, "__module__", "") == "math" else ""
        if word not in _MATH or function is not getattr(math, word, None):
            kind = FLOAT64
            word = "rint" if name_of(function) == "numpy.round" else _OF_NUMPY.get(function, "")
        count = 2 if word in ("atan2", "hypot", "copysign", "pow", "maximum", "minimum") else 1
        if not word or len(arguments) != count:
            raise Refused(node, f"a call of {name}()")
        if any(found.form == INT and found.magnitude > EXACT for _, found in arguments):
            raise Refused(node, f"{name}() of large integers")
        if word in ("abs", "maximum", "minimum"):
            if any(found.form == INT for _, found in arguments):
                raise Refused(node, f"{name}() of integers")
            if word == "abs":
                return f"abs({arguments[0][0]})", number(FLOAT64)
            text, _ = self.extremes(node, max if word == "maximum" else min, arguments, numpys=True)
            return text, number(FLOAT64)
        if word in _ROUNDING:
            if any(found.kinds & {INT, INT64} for _, found in arguments):
                raise Refused(node, f"{name}() of integers")
            return f"_np.{word}({arguments[0][0]})", number(FLOAT64)
        texts = [f"float({text})" if found.form == INT else text for text, found in arguments]
        whole = f"math.{word}({', '.join(texts)})"
        return (whole if word in _SURE else self.finite(whole)), number(kind)

    def absolute(self, text: str, found: Number) -> tuple[str, Number]:
        low = high = None
        return f"abs({text})", Number(found.kinds, frozenset(), found.magnitude, low, high, found.real)

    def extremes(self, node: Any, function: Any, arguments: Any, numpys: bool = False) -> tuple[str, Number]:
        """Lower ``max(a, b)``, which returns the first of equal values."""
        forms = {found.form for _, found in arguments}
        if len(forms) > 1 and any(found.form == INT and found.magnitude > EXACT for _, found in arguments):
            raise Refused(node, "large integers beside floating-point numbers")
        self.note_comparison(*[found for _, found in arguments])
        kinds = frozenset().union(*[found.kinds for _, found in arguments])
        symbol = ">" if function is max else "<"
        texts = [f"float({text})" if len(forms) > 1 and f.form == INT else text for text, f in arguments]
        name = self.temporary("extreme")  # type: ignore[attr-defined]
        self.emit(f"{name} = {texts[0]}")  # type: ignore[attr-defined]
        if numpys:
            self.require(f"{name} != {name}", "FloatingPointError")  # type: ignore[attr-defined]
        for text in texts[1:]:
            item = self.temporary("item")  # type: ignore[attr-defined]
            self.emit(f"{item} = {text}")  # type: ignore[attr-defined]
            if numpys:
                self.require(f"{item} != {item}", "FloatingPointError")  # type: ignore[attr-defined]
            with self.indented(f"if {item} {symbol} {name}:"):  # type: ignore[attr-defined]
                self.emit(f"{name} = {item}")  # type: ignore[attr-defined]
        magnitude = max(found.magnitude for _, found in arguments)
        return name, Number(kinds, frozenset(), magnitude, None, None, len(forms) > 1)

    # ------------------------------------------------------------------------------------------------------ ranges

    def range_of(self, node: ast.Call, state: State) -> tuple[str, Number, str, str | None]:
        """Return the range of a loop: its text, its numbers, their count, and the condition that it is empty."""
        if node.keywords or not 1 <= len(node.args) <= 3:
            raise Refused(node, "the arguments of range()")
        found = [self.expression(x, state) for x in node.args]
        if any(known.form != INT for _, known in found):
            raise Refused(node, "range() of something else than integers")
        if any(known.magnitude > LARGEST // 4 for _, known in found):
            raise Refused(node, "range() of large integers")
        (a, start), (b, stop) = (
            [("0", number(INT, magnitude=0, low="0", high="0")), found[0]] if len(found) == 1 else found[:2]
        )
        step = 1
        text = f"range({b})" if len(found) == 1 else f"range({a}, {b})"
        if len(found) == 3:
            given = constant_value(found[2][1])
            if not given:
                raise Refused(node, "a range() whose step is no constant")
            step = given
            text = f"range({a}, {b}, {step})"
        low = high = None
        if start.low is not None and stop.low is not None:
            if step > 0:
                low, high = start.low, f"({stop.high} - 1)"
            else:
                low, high = f"({stop.low} + 1)", start.high
        magnitude = max(start.magnitude, stop.magnitude)
        trips = "10"
        empty = None
        if low is not None and start.low == start.high and stop.low == stop.high:
            empty = f"{start.low} {'>=' if step > 0 else '<='} {stop.low}"
        if low is not None:
            middle = "" if abs(step) == 1 else f" // {abs(step)}"
            trips = f"max(({high} - {low} + 1){middle}, 0)"
        return text, number(INT, magnitude=magnitude, low=low, high=high), trips, empty
