"""Expressions of loops, as a kernel computes them: texts, and the kinds of their values."""

from __future__ import annotations

import ast
import math
import types
from typing import Any

import numpy as np

from .inlining import is_library
from .kinds import (
    BOOL,
    BOOL_,
    EXACT,
    FLOAT,
    FLOAT64,
    INT,
    INT32,
    INT64,
    INTEGER,
    LARGEST,
    LOGICAL,
    SAFE,
    Array,
    Constant,
    Number,
    Refused,
    View,
    number,
    of_operation,
)
from .loops import comprehension_of
from .states import State

_OPERATORS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
}  # fmt: skip
_COMPARISONS: dict[type, str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_MATH = set(
    "sin cos tan asin acos atan sinh cosh tanh exp expm1 log log1p log2 log10 sqrt fabs atan2 hypot copysign "
    "pow".split()
)
_SURE = {"sin", "cos", "tan", "atan", "tanh", "fabs", "copysign", "atan2"}
"""Functions that have a finite value for every finite number."""
_OF_NUMPY: dict[Any, str] = {
    **{getattr(np, name): name for name in "sin cos tan sinh cosh tanh exp expm1 log log1p log2 log10 sqrt".split()},
    **{getattr(np, f"arc{name}"): f"a{name}" for name in "sin cos tan".split()},
    np.fabs: "fabs", np.arctan2: "atan2", np.hypot: "hypot", np.copysign: "copysign", np.absolute: "abs",
    np.maximum: "maximum", np.minimum: "minimum",
}  # fmt: skip
_BIGGEST = "1.7976931348623157e308"
DERIVED = {"T", "shape", "size", "ndim"}


def unwrapped(value: Any) -> Any:
    """NumPy's and Python's own object for that of a stand-in."""
    return getattr(value, "numpy_function", value)


class Expressions:
    """Lowers expressions; a part of `lowering.Lowering`."""

    loop: Any
    assigned: set[str]
    conditional: int
    prologue: dict[str, int]
    line: int

    # ------------------------------------------------------------------------------------------------- any value

    def anything(self, node: Any, state: State) -> tuple[str, Any]:
        """An expression of any value."""
        match node:
            case ast.Name(id=name):
                return self.name(node, name, state)
            case ast.Attribute():
                return self.attribute(node, state)
            case ast.Subscript():
                return self.subscript(node, state)
        return self.expression(node, state)

    def expression(self, node: Any, state: State) -> tuple[str, Number]:
        """An expression whose value is a number."""
        match node:
            case ast.Constant(value=value):
                return self.literal(node, value)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                text, found = self.anything(node, state)
                if not isinstance(found, Number):
                    raise Refused(node, f"{ast.unparse(node)} is no number")
                return text, found
            case ast.BinOp(left=left, op=op, right=right):
                return self.operation(node, left, op, right, state)
            case ast.UnaryOp():
                return self.unary(node, state)
            case ast.Call():
                return self.call(node, state)
            case ast.Compare():
                return self.comparison(node, state)
            case ast.BoolOp():
                return self.logical(node, state)
            case ast.IfExp():
                return self.choice(node, state)
        raise Refused(node, f"an expression that is not compiled ({type(node).__name__.lower()})")

    def literal(self, node: Any, value: Any) -> tuple[str, Number]:
        if type(value) is bool:
            return repr(value), number(BOOL)
        if type(value) is int:
            if abs(value) > SAFE:
                raise Refused(node, f"the integer {value}")
            text = f"({value})"
            return text, number(INT, magnitude=abs(value), low=text, high=text)
        if type(value) is float:
            if not math.isfinite(value):
                raise Refused(node, f"the number {value}")
            return f"({value!r})", number(FLOAT)
        raise Refused(node, f"the constant {value!r}")

    def name(self, node: Any, name: str, state: State) -> tuple[str, Any]:
        if name in self.assigned:
            found = state.env.get(name)
            if found is None or name in state.maybe:
                raise Refused(node, f"'{name}' may be read before it is assigned")
            return name, found
        return self.path(node, (name,))  # type: ignore[attr-defined]

    def attribute(self, node: ast.Attribute, state: State) -> tuple[str, Any]:
        path: list[str] = []
        inner: Any = node
        while isinstance(inner, ast.Attribute):
            path.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id not in self.assigned:
            whole = (inner.id, *path)
            if whole in self.values or whole in self.others:  # type: ignore[attr-defined]
                return self.path(node, whole)  # type: ignore[attr-defined]
        if node.attr in DERIVED:
            _, found = self.anything(node.value, state)
            view = View(found, ()) if isinstance(found, Array) else found
            if isinstance(view, View):
                if node.attr == "ndim":
                    return f"({view.ndim})", number(INT, magnitude=view.ndim, low=str(view.ndim), high=str(view.ndim))
                if node.attr == "size" and view.ndim == 1:
                    return self._of_shape(view, 0)
        raise Refused(node, f"{ast.unparse(node)} is no plain attribute")

    def constant_of(self, node: Any, state: State) -> Any:
        """The function that a name or an attribute means; None if it means something else."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            _, found = self.anything(node, state)
            if isinstance(found, Constant):
                return unwrapped(found.value)
        return None

    # ------------------------------------------------------------------------------------------------- subscripts

    def subscript(self, node: ast.Subscript, state: State) -> tuple[str, Any]:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            _, found = self.anything(node.value.value, state)
            view = View(found, ()) if isinstance(found, Array) else found
            if isinstance(view, View) and isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
                axis = node.slice.value
                if -view.ndim <= axis < view.ndim:
                    return self._of_shape(view, axis % view.ndim)
            raise Refused(node, ast.unparse(node))
        view = self.indexed(node, state)
        if view.ndim:
            return "", view
        return self.read(view)

    def read(self, view: View) -> tuple[str, Number]:
        kind = view.array.element
        text = self.element(view)
        if kind in (INT64, INT32):
            name = self.temporary("number")  # type: ignore[attr-defined]
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            if kind == INT64:
                self.require(f"{name} > {SAFE} or {name} < -{SAFE}", "OverflowError")  # type: ignore[attr-defined]
            text = name
        return text, number(kind)

    def indexed(self, node: ast.Subscript, state: State) -> View:
        """The part of an array that a subscript selects, with its indices checked."""
        _, found = self.anything(node.value, state)
        if isinstance(found, Array):
            found = View(found, ())
        if not isinstance(found, View):
            raise Refused(node, f"{ast.unparse(node.value)} is no array")
        keys = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(keys) > found.ndim:
            raise Refused(node, f"{ast.unparse(node)} has too many indices")
        indices = list(found.indices)
        for key in keys:
            if isinstance(key, ast.Slice):
                raise Refused(node, f"{ast.unparse(node)}, a slice outside of a sum or product that is assigned to one")
            text, known = self.expression(key, state)
            if known.form != INT:
                raise Refused(node, f"{ast.unparse(key)} as an index is no integer")
            indices.append(self.checked(found.array, len(indices), text, known, state))
        return View(found.array, tuple(indices))

    def checked(self, array: Array, axis: int, text: str, known: Number, state: State) -> str:
        """An index that is within the bounds of an axis, or else the kernel raises an exception."""
        length = f"{array.name}.shape[{axis}]"
        if known.low is not None and (self.hopeful or not self.conditional):  # type: ignore[attr-defined]
            self.prologue.setdefault(f"{known.high} >= {length} or {known.low} < -{length}", self.line)
            return text
        if (text, length) in state.checked:
            return text
        if not text.isidentifier():
            name = self.temporary("index")  # type: ignore[attr-defined]
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            text = name
        self.require(f"{text} >= {length} or {text} < -{length}", "IndexError")  # type: ignore[attr-defined]
        if text in self.assigned:
            state.checked = state.checked | {(text, length)}
        return text

    @staticmethod
    def element(view: View) -> str:
        return f"{view.array.name}[{', '.join(view.indices)}]"

    def length_of(self, view: View) -> str:
        return f"{view.array.name}.shape[{len(view.indices)}]"

    def _of_shape(self, view: View, axis: int) -> tuple[str, Number]:
        text = f"{view.array.name}.shape[{axis + len(view.indices)}]"
        return text, number(INT, low=text, high=text)

    def store_element(self, target: ast.Subscript, text: str, found: Any, state: State) -> None:
        """``x[i] = value``"""
        if not isinstance(found, Number):
            raise Refused(target, "an assignment of an array to a part of one")
        if not text.isidentifier() and any(isinstance(n, (ast.Call, ast.BoolOp)) for n in ast.walk(target)):
            name = self.temporary("item")  # type: ignore[attr-defined]
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            text = name
        view = self.indexed(target, state)
        if view.ndim:
            raise Refused(target, "an assignment to a part of an array")
        kind = view.array.element
        if kind in (BOOL_, INT32) or found.form == BOOL or (kind == INT64 and found.form != INT):
            raise Refused(target, f"a {'/'.join(sorted(found.kinds))} in an array of {view.array.dtype}")
        if found.form == INT and kind == FLOAT64 and found.magnitude > EXACT:
            raise Refused(target, "a large integer in an array of floating-point numbers")
        if found.form == INT and kind == FLOAT64:
            text = f"float({text})"
        self.emit(f"{self.element(view)} = {text}")  # type: ignore[attr-defined]
        self.stores += 1  # type: ignore[attr-defined]
        self.done.writes.add(view.array.name)  # type: ignore[attr-defined]

    # ------------------------------------------------------------------------------------------------- arithmetic

    def operation(self, node: Any, left: Any, op: Any, right: Any, state: State) -> tuple[str, Number]:
        symbol = _OPERATORS.get(type(op))
        if symbol is None:
            raise Refused(node, f"the operator in {ast.unparse(node)}")
        a, x = self.expression(left, state)
        b, y = self.expression(right, state)
        for one in (x, y):
            if one.kinds & (LOGICAL | {INT32}):
                raise Refused(node, f"arithmetic with {'/'.join(sorted(one.kinds))}")
        if symbol == "**":
            return self.power(node, a, x, b, y, right)
        kinds = of_operation(symbol, x, y)
        if symbol in ("/", "//", "%"):
            b = self.nonzero(b, right)
        text = f"({a} {symbol} {b})"
        if x.form == INT and y.form == INT:
            if symbol == "/":
                if max(x.magnitude, y.magnitude) > EXACT:
                    raise Refused(node, "a quotient of large integers")
                return text, Number(kinds)
            return text, self.integer(node, symbol, kinds, x, y)
        for one in (x, y):
            if one.form == INT and one.magnitude > EXACT:
                raise Refused(node, "arithmetic of a large integer and a floating-point number")
        return text, Number(kinds, real=True)

    def integer(self, node: Any, symbol: str, kinds: Any, x: Number, y: Number) -> Number:
        """An integer result, with its bounds."""
        magnitude = {
            "+": x.magnitude + y.magnitude,
            "-": x.magnitude + y.magnitude,
            "*": x.magnitude * y.magnitude,
            "//": x.magnitude + 1,
            "%": y.magnitude,
        }[symbol]
        if magnitude > LARGEST:
            raise Refused(node, f"{ast.unparse(node)} may exceed 64 bits")
        low = high = None
        if x.low is not None and y.low is not None and magnitude <= LARGEST:
            if symbol == "+":
                low, high = f"({x.low} + {y.low})", f"({x.high} + {y.high})"
            elif symbol == "-":
                low, high = f"({x.low} - {y.high})", f"({x.high} - {y.low})"
            elif symbol == "*":
                for one, other in ((x, y), (y, x)):
                    factor = _constant(one)
                    if factor is not None:
                        ends = [f"({one.low} * {other.low})", f"({one.low} * {other.high})"]
                        low, high = ends if factor >= 0 else ends[::-1]
            elif (divisor := _constant(y)) is not None and divisor > 0:
                if symbol == "//":
                    low, high = f"({x.low} // {divisor})", f"({x.high} // {divisor})"
                else:
                    low, high = "(0)", f"({divisor - 1})"
        if low is not None and len(low) + len(high or "") > 400:
            low = high = None
        return Number(kinds, frozenset(), magnitude, low, high)

    def nonzero(self, text: str, node: Any) -> str:
        """A divisor for which the kernel raises an exception if it is zero."""
        if isinstance(node, ast.Constant) and node.value:
            return text
        if not text.isidentifier():
            name = self.temporary("divisor")  # type: ignore[attr-defined]
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            text = name
        self.require(f"{text} == 0", "ZeroDivisionError")  # type: ignore[attr-defined]
        return text

    def power(self, node: Any, a: str, x: Number, b: str, y: Number, right: Any) -> tuple[str, Number]:
        exponent = _constant(y)
        if x.form == INT:
            if y.form != INT or exponent is None or not 0 <= exponent <= 4:
                raise Refused(node, f"{ast.unparse(node)}, a power of an integer")
            magnitude = max(x.magnitude**exponent, 1)
            if magnitude > LARGEST:
                raise Refused(node, f"{ast.unparse(node)} may exceed 64 bits")
            return f"({a} ** {b})", Number(of_operation("*", x, y), frozenset(), magnitude)
        kinds = of_operation("/", x, y)
        if y.form == INT and exponent is None:
            b = f"float({b})"
        if exponent in (1, 2, 3) and FLOAT not in kinds:
            return f"({a} ** {b})", Number(kinds, real=True)
        return self.finite(f"{a} ** {b}"), Number(kinds, real=True)

    def finite(self, text: str) -> str:
        """A result for which the kernel raises an exception if it is infinite or no number."""
        name = self.temporary("value")  # type: ignore[attr-defined]
        self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
        self.require(f"not ({name} <= {_BIGGEST} and {name} >= -{_BIGGEST})", "FloatingPointError")  # type: ignore[attr-defined]
        return name

    def unary(self, node: ast.UnaryOp, state: State) -> tuple[str, Number]:
        if isinstance(node.op, ast.Not):
            text, found = self.expression(node.operand, state)
            return f"(not {self.truth(text, found)})", number(BOOL)
        text, found = self.expression(node.operand, state)
        if found.kinds & (LOGICAL | {INT32}) or isinstance(node.op, ast.Invert):
            raise Refused(node, ast.unparse(node))
        if isinstance(node.op, ast.UAdd):
            return text, found.as_value()
        low, high = (None, None) if found.low is None else (f"(-{found.high})", f"(-{found.low})")
        return f"(-{text})", Number(found.kinds, frozenset(), found.magnitude, low, high, found.real)

    # -------------------------------------------------------------------------------------------------- conditions

    def condition(self, node: Any, state: State) -> str:
        """The text of a test."""
        text, found = self.expression(node, state)
        return self.truth(text, found)

    def truth(self, text: str, found: Number) -> str:
        if found.form == BOOL:
            return text
        self.note_comparison(found, found)
        return f"({text} != 0)"

    def note_comparison(self, *numbers: Number) -> None:
        if any(one.form == FLOAT for one in numbers):
            self.done.compares = True  # type: ignore[attr-defined]

    def comparison(self, node: ast.Compare, state: State) -> tuple[str, Number]:
        if len(node.ops) > 1:
            if not all(isinstance(x, (ast.Name, ast.Constant)) for x in node.comparators[:-1]):
                raise Refused(node, "a comparison of several values")
            operands = [node.left, *node.comparators]
            parts: list[ast.expr] = [
                ast.copy_location(ast.Compare(a, [op], [b]), node) for a, op, b in zip(operands, node.ops, operands[1:])
            ]
            return self.logical(ast.copy_location(ast.BoolOp(ast.And(), parts), node), state)
        symbol = _COMPARISONS.get(type(node.ops[0]))
        if symbol is None:
            raise Refused(node, ast.unparse(node))
        a, x = self.expression(node.left, state)
        b, y = self.expression(node.comparators[0], state)
        if BOOL in (x.form, y.form):
            raise Refused(node, "a comparison of truth values")
        if x.form != y.form and max(m.magnitude for m in (x, y) if m.form == INT) > EXACT:
            raise Refused(node, "a comparison of a large integer and a floating-point number")
        self.note_comparison(x, y)
        kinds = {BOOL_ if {p, q} & {FLOAT64, INT64, INT32} else BOOL for p in x.kinds for q in y.kinds}
        return f"({a} {symbol} {b})", number(*kinds)

    def logical(self, node: ast.BoolOp, state: State) -> tuple[str, Number]:
        """``a and b``: what follows is evaluated where it is in Python."""
        start = len(self.lines)  # type: ignore[attr-defined]
        text, found = self.expression(node.values[0], state)
        kinds = set(found.kinds)
        word = "and" if isinstance(node.op, ast.And) else "or"
        self._require_truth(node, found)
        name = None
        for value in node.values[1:]:
            start = len(self.lines)  # type: ignore[attr-defined]
            self.conditional += 1
            self.depth += 1  # type: ignore[attr-defined]
            other, found = self.expression(value, state)
            self._require_truth(node, found)
            self.depth -= 1  # type: ignore[attr-defined]
            self.conditional -= 1
            kinds |= found.kinds
            if len(self.lines) == start:  # type: ignore[attr-defined]
                text = f"({text} {word} {other})"
                continue
            if name is None:
                name = self.temporary("test")  # type: ignore[attr-defined]
            inner = self.lines[start:]  # type: ignore[attr-defined]
            del self.lines[start:]  # type: ignore[attr-defined]
            if text != name:
                self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            with self.indented(f"if {'' if word == 'and' else 'not '}{name}:"):  # type: ignore[attr-defined]
                self.lines += inner  # type: ignore[attr-defined]
                self.emit(f"{name} = {other}")  # type: ignore[attr-defined]
            text = name
        return text, number(*kinds)

    @staticmethod
    def _require_truth(node: Any, found: Number) -> None:
        if found.form != BOOL:
            raise Refused(node, f"{ast.unparse(node)}, whose value may be a number")

    def choice(self, node: ast.IfExp, state: State) -> tuple[str, Number]:
        """``a if test else b``"""
        test = self.condition(node.test, state)
        name = self.temporary("choice")  # type: ignore[attr-defined]
        self.conditional += 1
        found = []
        places = []
        for head, value in ((f"if {test}:", node.body), ("else:", node.orelse)):
            with self.indented(head):  # type: ignore[attr-defined]
                text, one = self.expression(value, state)
                places.append((len(self.lines), text))  # type: ignore[attr-defined]
                self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
                found.append(one)
        self.conditional -= 1
        one, other = found
        real = one.form != other.form
        if real and BOOL in (one.form, other.form):
            raise Refused(node, f"{ast.unparse(node)}, a number or a truth value")
        if real:
            for (at, text), value in zip(places, found):
                if value.form == INT:
                    line, old = self.lines[at]  # type: ignore[attr-defined]
                    indent = old[: len(old) - len(old.lstrip())]
                    self.lines[at] = line, f"{indent}{name} = float({text})"  # type: ignore[attr-defined]
        magnitude = max(one.magnitude, other.magnitude)
        return name, Number(one.kinds | other.kinds, frozenset(), magnitude, None, None, real)

    # ------------------------------------------------------------------------------------------------------- calls

    def call(self, node: ast.Call, state: State) -> tuple[str, Number]:
        function = self.constant_of(node.func, state)
        name = ast.unparse(node.func)
        if function is sum and (found := comprehension_of(node)) is not None:
            return self.summed(node, found, state)
        if node.keywords or any(isinstance(x, ast.Starred) for x in node.args):
            raise Refused(node, f"the arguments of {name}()")
        if function is len and len(node.args) == 1:
            _, found = self.anything(node.args[0], state)
            view = View(found, ()) if isinstance(found, Array) else found
            if not isinstance(view, View):
                raise Refused(node, f"len() of {ast.unparse(node.args[0])}, which is no array")
            return self._of_shape(view, 0)
        if function is None:
            raise Refused(node, f"a call of {name}()")
        if isinstance(function, types.FunctionType) and not is_library(function):
            return self.inlined(node, function, state)  # type: ignore[attr-defined]
        arguments = [self.expression(x, state) for x in node.args]
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

    def summed(self, node: ast.Call, found: Any, state: State) -> tuple[str, Number]:
        """``sum(x[i] for i in range(n))`` of NumPy's numbers; Python's floats it adds in another way."""
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
        state.maybe, state.checked = after.maybe, after.checked
        result = self.temporary("sum")  # type: ignore[attr-defined]
        self.emit(f"{result} = {name}")  # type: ignore[attr-defined]
        return result, value.as_value()

    def of_library(self, node: Any, name: str, function: Any, arguments: Any) -> tuple[str, Number]:
        """A function of `math` or NumPy."""
        kind = FLOAT
        word = getattr(function, "__name__", "") if getattr(function, "__module__", "") == "math" else ""
        if word not in _MATH or function is not getattr(math, word, None):
            kind = FLOAT64
            word = _OF_NUMPY.get(function, "") if isinstance(function, np.ufunc) else ""
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
        texts = [f"float({text})" if found.form == INT else text for text, found in arguments]
        whole = f"math.{word}({', '.join(texts)})"
        return (whole if word in _SURE else self.finite(whole)), number(kind)

    def absolute(self, text: str, found: Number) -> tuple[str, Number]:
        low = high = None
        return f"abs({text})", Number(found.kinds, frozenset(), found.magnitude, low, high, found.real)

    def extremes(self, node: Any, function: Any, arguments: Any, numpys: bool = False) -> tuple[str, Number]:
        """``max(a, b)``: the first of equal ones."""
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
        """The range of a loop: its text, its numbers, how many they are, and the condition of its being empty."""
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
            given = _constant(found[2][1])
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


def _constant(found: Number) -> int | None:
    """The value of an integer constant."""
    if found.low is None or found.low != found.high or not found.kinds <= INTEGER:
        return None
    try:
        value = ast.literal_eval(found.low)
    except (ValueError, SyntaxError):
        return None
    return value if type(value) is int else None
