"""Vectors of a few numbers: rows ``x[i]``, slices ``x[i, j:j + 3]``, and what is computed from them.

Each element is an expression of the kernel, so a statement on vectors becomes one statement for each element.  The
length of a slice is in the source; that of a row is the one it has when the loop is compiled, which is checked before
the loop runs again.  A vector that is assigned to a variable is an array of its own, as in NumPy: its elements are
variables of the kernel.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np

from .kinds import (
    EXACT,
    FLOAT,
    FLOAT64,
    INT,
    INT64,
    LARGEST,
    Array,
    Number,
    Refused,
    Slice,
    Vector,
    View,
    as_view,
    is_known_array,
    number,
)
from .states import State

LONGEST = 7
"""Most elements of a vector: NumPy adds up to seven numbers one after the other."""
LONGEST_SLICE = 8
CHOSEN = "a if test else b"
"""The name of a vector that is one array or another: its elements may be read, but no name given to it."""

# by names: while a tape records, some of NumPy's functions are others
_SUMS = {"numpy.sum", "builtins.sum", "numpy.mean"}
_EXTREMES: dict[str, Any] = {"numpy.max": max, "numpy.amax": max, "numpy.min": min, "numpy.amin": min}
_PRODUCTS = {"numpy.dot", "numpy.inner", "numpy.vdot"}
COPIES = {"numpy.copy", "numpy.array"}
FILLED = {"numpy.zeros": "0.0", "numpy.ones": "1.0", "numpy.empty": "0.0"}
_LIKE = {"numpy.zeros_like": "0.0", "numpy.ones_like": "1.0", "numpy.empty_like": "0.0"}
_ROUND = {"numpy.round", "numpy.around"}
METHODS = {"sum", "mean", "max", "min", "dot", "copy", "round"}
DIFFERENT = "slices whose lengths are not all the same, or not in the source"


def length_of(part: ast.Slice) -> int | None:
    """The length of ``j:j + 3``, if it is in the source."""
    lower = part.lower or ast.Constant(0)
    if part.step is not None or part.upper is None:
        return None
    if isinstance(lower, ast.Constant) and isinstance(part.upper, ast.Constant):
        found = _difference(part.upper.value, lower.value)
    elif isinstance(part.upper, ast.BinOp) and isinstance(part.upper.op, ast.Add):
        one, other = part.upper.left, part.upper.right
        if ast.dump(one) != ast.dump(lower):
            one, other = other, one
        same = ast.dump(one) == ast.dump(lower) and isinstance(other, ast.Constant)
        found = _difference(other.value, 0) if same else None  # type: ignore[attr-defined]
    else:
        found = None
    return found if found is not None and 0 < found <= LONGEST_SLICE else None


def _difference(one: Any, other: Any) -> int | None:
    return one - other if type(one) is type(other) is int and other >= 0 else None


def keys_of(node: ast.Subscript) -> list[Any]:
    """The indices and slices of a subscript."""
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def is_whole(part: Any) -> bool:
    """Return whether a key of a subscript is ``:``."""
    return isinstance(part, ast.Slice) and part.lower is part.upper is part.step is None


def name_of(function: Any) -> str:
    """The name of a function with its module: ``numpy.sum``."""
    return f"{getattr(function, '__module__', None)}.{getattr(function, '__name__', None)}"


def is_vector(found: Any) -> bool:
    return isinstance(found, (Vector, Slice)) or (isinstance(found, (Array, View)) and found.ndim == 1)


def is_short(value: Any) -> bool:
    """Return whether a value is an array that may be a vector with a variable for each element."""
    return is_known_array(value) and value.ndim == 1 and value.dtype == np.float64 and 0 < len(value) <= LONGEST


class Vectors:
    """Lowering of vectors; a base of `lowering.Lowering`.

    Attributes
    ----------
    shared : set of str
        Variables that may stand for one array with another variable.
    changed : set of str
        Variables whose arrays change in place.
    """

    shared: set[str]
    changed: set[str]

    # -------------------------------------------------------------------------------------------------- elements

    def elements(self, node: Any, found: Any, state: State) -> list[tuple[str, Number]]:
        """The elements of a vector."""
        if isinstance(found, Vector):
            return [(text, number(FLOAT64)) for text in found.elements]
        return [self.read(view) for view in self.parts(node, found, state)]  # type: ignore[attr-defined]

    def parts(self, node: Any, found: Any, state: State) -> list[View]:
        """The elements of a row or a slice, as parts of the array."""
        if isinstance(found, Slice):
            view = found.view
            return [View(view.array, (*view.indices, f"({found.first} + {k})")) for k in range(found.count)]
        view = as_view(found)
        if not isinstance(view, View) or view.ndim != 1:
            raise Refused(node, f"{ast.unparse(node)}, which is no vector")
        length = view.array.shape[-1]
        if not 0 < length <= LONGEST:
            raise Refused(node, f"{ast.unparse(node)}, an array of {length} elements, in an expression")
        self.prologue.setdefault(f"{self.length_of(view)} != {length}", self.line)  # type: ignore[attr-defined]
        return [View(view.array, (*view.indices, f"({k})")) for k in range(length)]

    def sliced(self, node: ast.Subscript, state: State) -> Any:
        """The part of an array that a subscript with a slice selects."""
        *before, last = keys_of(node)
        if any(isinstance(key, ast.Slice) for key in before):
            raise Refused(node, ast.unparse(node))
        whole = node.value
        if before:
            keys_before = ast.Tuple(before, ast.Load()) if len(before) > 1 else before[0]
            whole = ast.copy_location(ast.Subscript(whole, keys_before, ast.Load()), node)
        _, found = self.anything(whole, state)  # type: ignore[attr-defined]
        if isinstance(found, Vector):
            return self._part_of(node, found, last)
        view = as_view(found)
        if not isinstance(view, View) or view.ndim != 1:
            raise Refused(node, f"{ast.unparse(node)}, which is no vector")
        if is_whole(last):
            return view
        count = length_of(last)  # type: ignore[arg-type]
        if count is None:
            raise Refused(node, DIFFERENT)
        text, first = self.expression(last.lower or ast.Constant(0), state)  # type: ignore[attr-defined]
        self._not_negative(text, first)
        if not text.isidentifier() and first.low != text:
            name = self.temporary("first")  # type: ignore[attr-defined]
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            text = name
        low = high = None
        if first.low is not None:
            low, high = f"({first.low} + {count - 1})", f"({first.high} + {count - 1})"
        end = number(*first.kinds, magnitude=min(first.magnitude + count, LARGEST), low=low, high=high)
        self.checked(view.array, len(view.indices), f"({text} + {count - 1})", end, state)  # type: ignore[attr-defined]
        return Slice(view, text, count)

    def _part_of(self, node: ast.Subscript, vector: Vector, part: Any) -> Vector:
        """``d[1:3]``, which has the same variables."""
        try:
            bounds = [None if n is None else ast.literal_eval(n) for n in (part.lower, part.upper, part.step)]
            elements = vector.elements[slice(*bounds)]
        except (ValueError, TypeError):
            raise Refused(node, DIFFERENT) from None
        if not elements:
            raise Refused(node, f"{ast.unparse(node)}, which has no elements")
        return Vector(elements, vector.name)

    def _not_negative(self, text: str, first: Number) -> None:
        """A slice that begins before the first element counts from the end: then the loop runs in Python."""
        if first.low is not None and (self.hopeful or not self.conditional):  # type: ignore[attr-defined]
            self.prologue.setdefault(f"{first.low} < 0", self.line)  # type: ignore[attr-defined]
        else:
            self.require(f"{text} < 0", "IndexError")  # type: ignore[attr-defined]

    def item(self, node: ast.Subscript, vector: Vector, state: State) -> tuple[list[str], str]:
        """The element that an index selects: its candidates, and the index if there is more than one."""
        text, known = self.expression(node.slice, state)  # type: ignore[attr-defined]
        if known.form != INT:
            raise Refused(node, f"{ast.unparse(node.slice)} as an index is no integer")
        count = len(vector.elements)
        try:
            k = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            name = self.temporary("index")  # type: ignore[attr-defined]
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            self.require(f"{name} >= {count} or {name} < -{count}", "IndexError")  # type: ignore[attr-defined]
            return list(vector.elements), name
        if not -count <= k < count:
            raise Refused(node, f"{ast.unparse(node)}, an index out of bounds")
        return [vector.elements[k]], ""

    def read_item(self, node: ast.Subscript, vector: Vector, state: State) -> tuple[str, Number]:
        """``d[k]``"""
        candidates, index = self.item(node, vector, state)
        if not index:
            return candidates[0], number(FLOAT64)
        name = self.temporary("element")  # type: ignore[attr-defined]
        self.emit(f"{name} = {candidates[0]}")  # type: ignore[attr-defined]
        for k, text in enumerate(candidates[1:], 1):
            with self.indented(f"if {index} == {k} or {index} == {k - len(candidates)}:"):  # type: ignore[attr-defined]
                self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
        return name, number(FLOAT64)

    # ------------------------------------------------------------------------------------------------ arithmetic

    def together(self, node: Any, operands: list[tuple[str, Any]], state: State) -> list[list[tuple[str, Number]]]:
        """The operands of each element's operation: numbers are the same for all."""
        vectors = [self.elements(node, found, state) for _, found in operands if is_vector(found)]
        if len({len(elements) for elements in vectors}) != 1:
            raise Refused(node, DIFFERENT)
        rows: list[list[tuple[str, Number]]] = []
        for text, found in operands:
            if is_vector(found):
                rows.append(vectors.pop(0))
                continue
            if not isinstance(found, Number):
                raise Refused(node, f"{ast.unparse(node)}, which is no vector")
            if not (text.isidentifier() or found.low == text):
                name = self.temporary("factor")  # type: ignore[attr-defined]
                self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
                text = name
            rows.append([(text, found)] * len(rows[0] if rows else vectors[0]))
        return [list(each) for each in zip(*rows)]

    def made(self, node: Any, elements: list[tuple[str, Number]]) -> tuple[str, Vector]:
        """The vector of some elements."""
        for _, found in elements:
            if found.kinds != {FLOAT64}:
                raise Refused(node, f"{ast.unparse(node)}, an array of {'/'.join(sorted(found.kinds))}")
        return "", Vector(tuple(text for text, _ in elements))

    def of_vectors(self, node: Any, function: Any, arguments: list[tuple[str, Any]], state: State) -> tuple[str, Any]:
        """A call of one of NumPy's functions, or of an array's method, with vectors."""
        name = ast.unparse(node.func)
        known = function if isinstance(function, str) else name_of(function)
        if known in COPIES and len(arguments) == 1:
            return self.made(node, self.elements(node, arguments[0][1], state))
        if known in _LIKE and len(arguments) == 1:
            return "", Vector((_LIKE[known],) * len(self.elements(node, arguments[0][1], state)))
        if known in _PRODUCTS and len(arguments) == 2:
            return self.product(node, arguments, state)
        if isinstance(function, np.ufunc) or known in _ROUND:
            found = [
                self.of_library(node, name, np.rint if known in _ROUND else function, each)
                for each in self.together(node, arguments, state)
            ]  # type: ignore[attr-defined]
            return self.made(node, found)
        if known == "numpy.cross" and len(arguments) == 2 and all(is_vector(x) for _, x in arguments):
            return self.cross(node, arguments, state)
        if len(arguments) == 1:
            if known == "numpy.linalg.norm":
                text, _ = self.product(node, [self.once(*arguments[0])] * 2, state)
                return self.finite(f"math.sqrt({text})"), number(FLOAT64)  # type: ignore[attr-defined]
            elements = self.elements(node, arguments[0][1], state)
            if known in _SUMS and len(elements) <= LONGEST:
                self.made(node, elements)
                text = f"({' + '.join(text for text, _ in elements)})"
                return (f"({text} / {len(elements)})" if known == "numpy.mean" else text), number(FLOAT64)
            if known in _EXTREMES:
                text, _ = self.extremes(node, _EXTREMES[known], elements, numpys=True)  # type: ignore[attr-defined]
                return text, number(FLOAT64)
        raise Refused(node, f"{name}() of an array")

    def once(self, text: str, found: Any) -> tuple[str, Any]:
        """A vector whose elements are computed once, though they are used several times."""
        return self.kept(text, found) if isinstance(found, Vector) and not found.name else (text, found)

    def product(self, node: Any, operands: list[tuple[str, Any]], state: State) -> tuple[str, Number]:
        """The scalar product of two vectors."""
        if not all(is_vector(found) for _, found in operands):
            raise Refused(node, ast.unparse(node))
        pairs = self.together(node, operands, state)
        for pair in pairs:
            self.made(node, pair)
        return f"({' + '.join(f'{a} * {b}' for (a, _), (b, _) in pairs)})", number(FLOAT64)

    def cross(self, node: Any, operands: list[tuple[str, Any]], state: State) -> tuple[str, Vector]:
        """The cross product of two vectors of three elements."""
        pairs = self.together(node, [self.once(*operand) for operand in operands], state)
        if len(pairs) != 3:
            raise Refused(node, "a cross product of other vectors than of three elements")
        for pair in pairs:
            self.made(node, pair)
        a, b = [pair[0][0] for pair in pairs], [pair[1][0] for pair in pairs]
        return "", Vector(tuple(f"({a[i]} * {b[j]} - {a[j]} * {b[i]})" for i, j in ((1, 2), (2, 0), (0, 1))))

    def filled(self, node: Any, function: Any, arguments: list[tuple[str, Any]]) -> tuple[str, Vector]:
        """``np.zeros(3)``"""
        text, found = arguments[0] if len(arguments) == 1 else ("", None)
        if not isinstance(found, Number) or found.low != text or not text.strip("()").isdigit():
            raise Refused(node, f"{ast.unparse(node)}, whose length is not in the source")
        count = int(text.strip("()"))
        if not 0 < count <= LONGEST:
            raise Refused(node, f"{ast.unparse(node)}, an array of {count} elements")
        return "", Vector((FILLED[name_of(function)],) * count)

    def listed(self, node: Any, items: list[Any], state: State) -> tuple[str, Vector]:
        """``np.array([a, b, c])``"""
        found = [self.expression(item, state) for item in items]  # type: ignore[attr-defined]
        kinds = frozenset().union(*[value.kinds for _, value in found])
        if not kinds & {FLOAT, FLOAT64} or not kinds <= {FLOAT, FLOAT64, INT, INT64}:
            raise Refused(node, f"{ast.unparse(node)}, an array of {'/'.join(sorted(kinds)) or 'nothing'}")
        if len(items) > LONGEST or any(value.form == INT and value.magnitude > EXACT for _, value in found):
            raise Refused(node, f"{ast.unparse(node)}, of many elements, or of large integers")
        return "", Vector(tuple(f"float({text})" if value.form == INT else text for text, value in found))

    # ----------------------------------------------------------------------------------------------- assignments

    def vector_at_entry(self, name: str, value: Any) -> Vector:
        """The vector that a variable has before the loop, which gives it other ones, and changes none in place."""
        array = Array(self.argument((name,), "array"), value.dtype, value.shape)  # type: ignore[attr-defined]
        own = self.own(name, len(value))
        for view, element in zip(self.parts(self.loop.node, array, State({}, frozenset())), own.elements):  # type: ignore[attr-defined]
            self.emit(f"{element} = {self.element(view)}")  # type: ignore[attr-defined]
        self.done.copied.add(array.name)  # type: ignore[attr-defined]
        return own

    def kept(self, text: str, found: Any) -> tuple[str, Any]:
        """A value in variables of its own, while others are assigned."""
        if isinstance(found, Number):
            name = self.temporary("item")  # type: ignore[attr-defined]
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            return name, found
        if isinstance(found, Vector):
            elements = tuple(self.kept(element, number(FLOAT64))[0] for element in found.elements)
            return "", Vector(elements, found.name)
        if isinstance(found, (View, Slice)):
            return "", self.fixed(found, self.temporary("row"))  # type: ignore[attr-defined]
        return text, found

    def fixed(self, found: View | Slice, stem: str) -> View | Slice:
        """A part of an array whose indices are variables that do not change with others."""
        if isinstance(found, Slice):
            first = self.fresh(f"{stem}_first")  # type: ignore[attr-defined]
            if first != found.first:
                self.emit(f"{first} = {found.first}")  # type: ignore[attr-defined]
            view = self.fixed(found.view, stem)
            return Slice(view, first, found.count)  # type: ignore[arg-type]
        indices = []
        for k, index in enumerate(found.indices):
            name = self.fresh(f"{stem}_index_{k}")  # type: ignore[attr-defined]
            if name != index:
                self.emit(f"{name} = {index}")  # type: ignore[attr-defined]
            indices.append(name)
        return View(found.array, tuple(indices))

    def own(self, name: str, count: int) -> Vector:
        """The array of a variable, whose elements are variables of the kernel."""
        return Vector(tuple(self.fresh(f"{name}_{k}") for k in range(count)), name)  # type: ignore[attr-defined]

    def assign_vector(self, target: Any, vector: Vector, state: State) -> State:
        """Assign a new vector to a variable."""
        name = target.id
        own = self.own(name, len(vector.elements))
        if not isinstance(state.env.get(name, own), Vector):
            raise Refused(target, f"'{name}' is an array and a number in turn")
        if vector.name == CHOSEN:
            raise Refused(target, f"'{name}' is one array or another")
        body = self.bodies[-1] if self.bodies else None  # type: ignore[attr-defined]
        is_returned = body and name == body.result and vector.name in body.own - self.shared
        is_shared = bool(vector.name) and not is_returned
        if is_shared:  # an array that is not changed in place may as well be two
            self.shared |= {name, vector.name}
            if self.shared & self.changed:
                raise Refused(target, f"'{name}' and '{vector.name}' are names of an array that changes in place")
        self.copy_into(own.elements, vector.elements)
        state = state.copy()
        state.env[name] = own
        state.same = frozenset(pair for pair in state.same if name not in pair)
        if is_shared:
            others = frozenset().union(*[pair for pair in state.same if vector.name in pair])
            state.same |= {frozenset((name, other)) for other in others | {vector.name} if other != name}
        return state

    def copy_into(self, targets: tuple[str, ...], texts: Any) -> None:
        """Assign expressions to variables, all of which are computed first if they read one of these."""
        read = set(re.findall(r"\w+", " ".join(texts)))
        if read & set(targets):
            texts = [self.kept(text, number(FLOAT64))[0] for text in texts]
        for name, text in zip(targets, texts):
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]

    def fill(self, target: Any, text: str, found: Any, state: State) -> None:
        """Overwrite the elements of the vector that an expression denotes, with those of another one or a number."""
        _, place = self.anything(target, state)  # type: ignore[attr-defined]
        pairs = self.together(target, [("", place), (text, found)], state)
        if isinstance(place, Vector):
            self.made(target, [value for _, value in pairs] if is_vector(found) else [])
            if isinstance(found, Number) and not found.kinds <= {FLOAT64, FLOAT, INT}:
                raise Refused(target, f"a {'/'.join(sorted(found.kinds))} in an array of float64")
            texts = [f"float({text})" if value.form == INT else text for _, (text, value) in pairs]
            self.copy_into(place.elements, texts)
            self.note_change(place)
            return
        kept = [self.kept(*value) for _, value in pairs]
        for view, (text, value) in zip(self.parts(target, place, state), kept):
            self.put(target, view, text, value)  # type: ignore[attr-defined]

    def place_in(self, node: ast.Subscript, found: Slice, state: State) -> View:
        """The element that an index of a slice with a name selects."""
        text, known = self.expression(node.slice, state)  # type: ignore[attr-defined]
        if known.form != INT:
            raise Refused(node, f"{ast.unparse(node.slice)} as an index is no integer")
        name = self.temporary("index")  # type: ignore[attr-defined]
        self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
        self.require(f"{name} >= {found.count} or {name} < -{found.count}", "IndexError")  # type: ignore[attr-defined]
        with self.indented(f"if {name} < 0:"):  # type: ignore[attr-defined]
            self.emit(f"{name} += {found.count}")  # type: ignore[attr-defined]
        return View(found.view.array, (*found.view.indices, f"({found.first} + {name})"))

    def note_change(self, vector: Vector) -> None:
        """Note that a vector changes in place, which one of before the loop may not, nor one with two names."""
        if vector.name in self.done.copied or vector.name in self.shared:  # type: ignore[attr-defined]
            raise Refused(self.loop.node, f"'{vector.name}', an array that changes in place, has other names")  # type: ignore[attr-defined]
        self.changed.add(vector.name)
        if self.bodies and vector.name not in self.bodies[-1].own:  # type: ignore[attr-defined]
            self.stores += 1  # type: ignore[attr-defined]

    def unpack(self, s: Any, target: Any, found: Any, state: State) -> State:
        """``a, b, c = x[i]``"""
        elements = self.elements(s, found, state)
        if len(elements) != len(target.elts):
            raise Refused(s, f"{len(elements)} elements for {len(target.elts)} names")
        for part, (name, value) in zip(target.elts, [self.kept(*element) for element in elements]):
            state = self.store(part, name, value, state)  # type: ignore[attr-defined]
        return state
