"""Expressions of loops, as a kernel computes them: texts, and the kinds of their values."""

from __future__ import annotations

import ast
import math
from typing import Any

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
    Slice,
    Vector,
    View,
    as_view,
    number,
    of_operation,
)
from .states import State
from .vectors import CHOSEN, keys_of

_OPERATORS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
}  # fmt: skip
_COMPARISONS: dict[type, str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_BIGGEST = "1.7976931348623157e308"
DERIVED = {"T", "shape", "size", "ndim"}


def unwrapped(value: Any) -> Any:
    """Return the original object of NumPy or Python for that of a stand-in."""
    return getattr(value, "numpy_function", value)


class Expressions:
    """Lowering of expressions; a base of `lowering.Lowering`."""

    loop: Any
    assigned: set[str]
    conditional: int
    prologue: dict[str, int]
    line: int

    # ------------------------------------------------------------------------------------------------- any value

    def anything(self, node: Any, state: State) -> tuple[str, Any]:
        """Lower an expression with any value."""
        match node:
            case ast.Name(id=name):
                return self.name(node, name, state)
            case ast.Attribute():
                return self.attribute(node, state)
            case ast.Subscript():
                return self.subscript(node, state)
            case ast.Constant(value=value):
                return self.literal(node, value)
            case ast.BinOp(left=left, op=op, right=right):
                one = self.anything(left, state)
                return self.operation(node, one, op, self.anything(right, state), right, state)
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

    def expression(self, node: Any, state: State) -> tuple[str, Number]:
        """Lower an expression whose value is a number."""
        text, found = self.anything(node, state)
        if not isinstance(found, Number):
            raise Refused(node, f"{ast.unparse(node)} is no number")
        return text, found

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
            if isinstance(found, (Array, View, Slice, Vector)):
                ndim = getattr(found, "ndim", 1)
                if node.attr == "ndim":
                    return f"({ndim})", number(INT, magnitude=ndim, low=str(ndim), high=str(ndim))
                if node.attr == "size" and ndim == 1:
                    return self.of_shape(node, found, 0)
        raise Refused(node, f"{ast.unparse(node)} is no plain attribute")

    def constant_of(self, node: Any, state: State) -> Any:
        """Return the function that a name or an attribute denotes; None for other objects."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            _, found = self.anything(node, state)
            if isinstance(found, Constant):
                return unwrapped(found.value)
        return None

    # ------------------------------------------------------------------------------------------------- subscripts

    def subscript(self, node: ast.Subscript, state: State) -> tuple[str, Any]:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            _, found = self.anything(node.value.value, state)
            if isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
                return self.of_shape(node, found, node.slice.value)
            raise Refused(node, ast.unparse(node))
        if any(isinstance(n, ast.Slice) for n in keys_of(node)):
            return "", self.sliced(node, state)  # type: ignore[attr-defined]
        vector = self.vector_named(node.value, state)
        if vector is not None:
            return self.read_item(node, vector, state)  # type: ignore[attr-defined]
        view = self.indexed(node, state)
        if view.ndim:
            return "", view
        return self.read(view)

    def vector_named(self, node: Any, state: State) -> Vector | None:
        """The new array that a name denotes."""
        if isinstance(node, ast.Name) and isinstance(state.env.get(node.id), Vector):
            return self.name(node, node.id, state)[1]
        return None

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
        found = as_view(self.anything(node.value, state)[1])
        if isinstance(found, Slice):
            return self.place_in(node, found, state)  # type: ignore[attr-defined]
        if not isinstance(found, View):
            raise Refused(node, f"{ast.unparse(node.value)} is no array")
        keys = keys_of(node)
        if len(keys) > found.ndim:
            raise Refused(node, f"{ast.unparse(node)} has too many indices")
        indices = list(found.indices)
        for key in keys:
            text, known = self.expression(key, state)
            if known.form != INT:
                raise Refused(node, f"{ast.unparse(key)} as an index is no integer")
            indices.append(self.checked(found.array, len(indices), text, known, state))
        return View(found.array, tuple(indices))

    def checked(self, array: Array, axis: int, text: str, known: Number, state: State) -> str:
        """Return the text of an index, and make the kernel raise an exception if it is out of bounds."""
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

    def of_shape(self, node: Any, found: Any, axis: int) -> tuple[str, Number]:
        """The length of an axis of an array."""
        if isinstance(found, (Vector, Slice)):
            count = len(found.elements) if isinstance(found, Vector) else found.count
            return f"({count})", number(INT, magnitude=count, low=f"({count})", high=f"({count})")
        view = as_view(found)
        if not isinstance(view, View) or not -view.ndim <= axis < view.ndim:
            raise Refused(node, f"{ast.unparse(node)}, of what is no array")
        axis %= view.ndim
        text = f"{view.array.name}.shape[{axis + len(view.indices)}]"
        return text, number(INT, low=text, high=text)

    def store_element(self, target: ast.Subscript, text: str, found: Any, state: State) -> None:
        """``x[i] = value``"""
        vector = self.vector_named(target.value, state)
        is_number = isinstance(found, Number)
        if is_number and not text.isidentifier() and (vector or _may_emit(target)):
            name = self.temporary("item")  # type: ignore[attr-defined]
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            text = name
        if is_number and vector is not None:
            self.put_item(target, vector, text, found, state)
            return
        view = None if any(isinstance(n, ast.Slice) for n in keys_of(target)) else self.indexed(target, state)
        if view is None or view.ndim:
            self.fill(target, text, found, state)  # type: ignore[attr-defined]
            return
        if not is_number:
            raise Refused(target, "an assignment of an array to an element")
        self.put(target, view, text, found)

    def put_item(self, target: ast.Subscript, vector: Vector, text: str, found: Number, state: State) -> None:
        """``d[k] = value``"""
        if not found.kinds <= {FLOAT, FLOAT64}:
            raise Refused(target, f"a {'/'.join(sorted(found.kinds))} in an array of float64")
        self.note_change(vector)  # type: ignore[attr-defined]
        candidates, index = self.item(target, vector, state)  # type: ignore[attr-defined]
        if not index:
            self.emit(f"{candidates[0]} = {text}")  # type: ignore[attr-defined]
            return
        for k, element in enumerate(candidates):
            with self.indented(f"if {index} == {k} or {index} == {k - len(candidates)}:"):  # type: ignore[attr-defined]
                self.emit(f"{element} = {text}")  # type: ignore[attr-defined]

    def put(self, target: Any, view: View, text: str, found: Number) -> None:
        """Assign a number to an element of an array that the loop has been given."""
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

    def operation(
        self, node: Any, one: tuple[str, Any], op: Any, other: tuple[str, Any], right: Any, state: State
    ) -> tuple[str, Any]:
        """An operation on two numbers, or on vectors; ``right`` is the second operand in the source."""
        if isinstance(op, ast.MatMult):
            return self.product(node, [one, other], state)  # type: ignore[attr-defined]
        if not (isinstance(one[1], Number) and isinstance(other[1], Number)):
            pairs = self.together(node, [one, other], state)  # type: ignore[attr-defined]
            return self.made(node, [self.operation(node, a, op, b, right, state) for a, b in pairs])  # type: ignore[attr-defined]
        symbol = _OPERATORS.get(type(op))
        if symbol is None:
            raise Refused(node, f"the operator in {ast.unparse(node)}")
        (a, x), (b, y) = one, other
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
                    factor = constant_value(one)
                    if factor is not None:
                        ends = [f"({one.low} * {other.low})", f"({one.low} * {other.high})"]
                        low, high = ends if factor >= 0 else ends[::-1]
            elif (divisor := constant_value(y)) is not None and divisor > 0:
                if symbol == "//":
                    low, high = f"({x.low} // {divisor})", f"({x.high} // {divisor})"
                else:
                    low, high = "(0)", f"({divisor - 1})"
        if low is not None and len(low) + len(high or "") > 400:
            low = high = None
        return Number(kinds, frozenset(), magnitude, low, high)

    def nonzero(self, text: str, node: Any) -> str:
        """Return the text of a divisor, and make the kernel raise an exception if it is zero."""
        if isinstance(node, ast.Constant) and node.value:
            return text
        if not text.isidentifier():
            name = self.temporary("divisor")  # type: ignore[attr-defined]
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            text = name
        self.require(f"{text} == 0", "ZeroDivisionError")  # type: ignore[attr-defined]
        return text

    def power(self, node: Any, a: str, x: Number, b: str, y: Number, right: Any) -> tuple[str, Number]:
        exponent = constant_value(y)
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
        """Return the text of a result, and make the kernel raise an exception if it is infinite or no number."""
        name = self.temporary("value")  # type: ignore[attr-defined]
        self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
        self.require(f"not ({name} <= {_BIGGEST} and {name} >= -{_BIGGEST})", "FloatingPointError")  # type: ignore[attr-defined]
        return name

    def unary(self, node: ast.UnaryOp, state: State) -> tuple[str, Any]:
        if isinstance(node.op, ast.Not):
            text, found = self.expression(node.operand, state)
            return f"(not {self.truth(text, found)})", number(BOOL)
        text, found = self.anything(node.operand, state)
        if not isinstance(found, Number):
            rows = self.together(node, [(text, found)], state)  # type: ignore[attr-defined]
            return self.made(node, [self.signed(node, *element) for (element,) in rows])  # type: ignore[attr-defined]
        return self.signed(node, text, found)

    @staticmethod
    def signed(node: ast.UnaryOp, text: str, found: Number) -> tuple[str, Number]:
        """``-x`` or ``+x``"""
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
        if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return self.membership(node, state)
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

    def membership(self, node: ast.Compare, state: State) -> tuple[str, Number]:
        """``k in (2, 3)``"""
        values = constants_of(node.comparators[0])
        if not values or not isinstance(node.left, ast.Name):
            raise Refused(node, ast.unparse(node))
        parts: list[ast.expr] = [ast.Compare(node.left, [ast.Eq()], [ast.Constant(value)]) for value in values]
        tests = ast.copy_location(ast.BoolOp(ast.Or(), parts), node)
        for part in (p for n in parts for p in ast.walk(n) if isinstance(p, ast.expr)):
            ast.copy_location(part, node)
        text, _ = self.logical(tests, state)
        return (text if isinstance(node.ops[0], ast.In) else f"(not {text})"), number(BOOL)

    def logical(self, node: ast.BoolOp, state: State) -> tuple[str, Number]:
        """Lower ``a and b``, in which operands are evaluated when Python would evaluate them."""
        start = len(self.lines)  # type: ignore[attr-defined]
        text, found = self.expression(node.values[0], state)
        kinds = set(found.kinds)
        word = "and" if isinstance(node.op, ast.And) else "or"
        self._require_truth(node, found)
        name = None
        state = state.copy()  # indices in the other operands may not be checked when the program runs
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

    def choice(self, node: ast.IfExp, state: State) -> tuple[str, Any]:
        """``a if test else b``"""
        test = self.condition(node.test, state)
        name = self.temporary("choice")  # type: ignore[attr-defined]
        self.conditional += 1
        found: list[Any] = []
        places = []
        for head, value in ((f"if {test}:", node.body), ("else:", node.orelse)):
            with self.indented(head):  # type: ignore[attr-defined]
                inside = state.copy()
                text, one = self.anything(value, inside)
                if not isinstance(one, Number):
                    elements = self.elements(value, one, inside)  # type: ignore[attr-defined]
                    found.append(Vector(tuple(f"{name}_{k}" for k in range(len(elements))), CHOSEN))
                    self.copy_into(found[-1].elements, [text for text, _ in elements])  # type: ignore[attr-defined]
                    self.made(value, elements)  # type: ignore[attr-defined]
                    continue
                places.append((len(self.lines), text))  # type: ignore[attr-defined]
                self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
                found.append(one)
        self.conditional -= 1
        one, other = found
        if isinstance(one, Vector) or isinstance(other, Vector):
            if one != other:
                raise Refused(node, f"{ast.unparse(node)}, of several types")
            return "", one
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


def _may_emit(target: ast.Subscript) -> bool:
    """Return whether the indices of a target need statements of their own."""
    return any(isinstance(n, (ast.Call, ast.BoolOp)) for n in ast.walk(target))


def constants_of(node: Any) -> list[int] | None:
    """The values of a tuple of small integers in the source."""
    try:
        found = ast.literal_eval(node) if isinstance(node, ast.Tuple) else ()
    except ValueError:
        return None
    return list(found) if found and all(type(v) is int and abs(v) < SAFE for v in found) else None


def constant_value(found: Number) -> int | None:
    """The value of an integer constant."""
    if found.low is None or found.low != found.high or not found.kinds <= INTEGER:
        return None
    try:
        value = ast.literal_eval(found.low)
    except (ValueError, SyntaxError):
        return None
    return value if type(value) is int else None
