"""Statements on a few neighbouring elements, ``z += x[i, j:j + 3] * y[i, j]``: one statement for each of them."""

from __future__ import annotations

import ast
import copy
from typing import Any

import numpy as np

from .kinds import Array, Constant, Number, Refused, View
from .states import State

LONGEST = 8


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
    return found if found is not None and 0 < found <= LONGEST else None


def _difference(one: Any, other: Any) -> int | None:
    return one - other if type(one) is type(other) is int and other >= 0 else None


def slices(node: Any) -> list[ast.Slice]:
    """The slices in an expression."""
    return [n for n in ast.walk(node) if isinstance(n, ast.Slice)]


class Vectors:
    """Lowering of statements on slices; a base of `lowering.Lowering`."""

    def is_vector(self, node: Any, state: State) -> bool:
        """Return whether an expression is a vector: it has a slice, or is a part of an array."""
        if slices(node):
            return True
        match node:
            case ast.BinOp(left=left, right=right):
                return self.is_vector(left, state) or self.is_vector(right, state)
            case ast.UnaryOp(operand=operand):
                return self.is_vector(operand, state)
            case ast.Name(id=name):
                known = name in self.assigned and name not in state.env  # type: ignore[attr-defined]
                return not known and isinstance(self.anything(node, state)[1], (Array, View))  # type: ignore[attr-defined]
        return False

    def vector_assignment(self, s: Any, target: Any, op: Any, value: Any, state: State) -> State:
        """``target op= value`` on slices, which have the same length."""
        found = {length_of(part) for part in (*slices(target), *slices(value))}
        if len(found) != 1 or None in found:
            raise Refused(s, "slices whose lengths are not all the same, or not in the source")
        (length,) = found
        assert length is not None
        kept = []
        for k in range(length):
            whole = self._element(value, k, length, state)
            if op is not None:
                load = self._element(_loaded(target), k, length, state)
                whole = ast.copy_location(ast.BinOp(load, op, whole), s)
            text, number = self.expression(ast.fix_missing_locations(whole), state)  # type: ignore[attr-defined]
            name = self.temporary("item")  # type: ignore[attr-defined]
            self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
            kept.append((name, number))
        for k, (name, number) in enumerate(kept):
            part = ast.fix_missing_locations(self._element(target, k, length, state))
            if not isinstance(part, ast.Subscript):
                raise Refused(s, f"an assignment of an array to {ast.unparse(target)}")
            self.store_element(part, name, number, state)  # type: ignore[attr-defined]
        return state

    def _element(self, node: Any, k: int, length: int, state: State) -> Any:
        """Return the expression of one element of a vector; for a number, the number."""
        match node:
            case ast.Subscript(value=whole, slice=key) if slices(key):
                keys = list(key.elts) if isinstance(key, ast.Tuple) else [key]
                if slices(whole) or any(slices(x) for x in keys[:-1]) or not isinstance(keys[-1], ast.Slice):
                    raise Refused(node, ast.unparse(node))
                _, known = self.anything(whole, state)  # type: ignore[attr-defined]
                if not isinstance(known, (Array, View)) or known.ndim != len(keys):
                    raise Refused(node, f"{ast.unparse(node)}, which is no vector")
                lower = keys[-1].lower or ast.Constant(0)
                if k == 0:
                    text, first = self.expression(lower, state)  # type: ignore[attr-defined]
                    self.not_negative(text, first)
                keys[-1] = ast.BinOp(lower, ast.Add(), ast.Constant(k)) if k else lower
                made = ast.Tuple(keys, ast.Load()) if len(keys) > 1 else keys[0]
                return ast.copy_location(ast.Subscript(whole, made, node.ctx), node)
            case ast.Subscript() | ast.Attribute() | ast.Name():
                _, known = self.anything(node, state)  # type: ignore[attr-defined]
                if isinstance(known, (Array, View)):
                    if known.ndim != 1:
                        raise Refused(node, f"{ast.unparse(node)}, which is no vector")
                    view = View(known, ()) if isinstance(known, Array) else known
                    self.prologue.setdefault(f"{self.length_of(view)} != {length}", self.line)  # type: ignore[attr-defined]
                    return ast.copy_location(ast.Subscript(node, ast.Constant(k), ast.Load()), node)
                return copy.copy(node)
            case ast.BinOp(left=left, op=op, right=right):
                one, other = (self._element(x, k, length, state) for x in (left, right))
                return ast.copy_location(ast.BinOp(one, op, other), node)
            case ast.UnaryOp(op=ast.USub() as op, operand=operand):
                return ast.copy_location(ast.UnaryOp(op, self._element(operand, k, length, state)), node)
            case ast.Call(func=called, args=arguments) if any(map(slices, arguments)):
                function = self.constant_of(called, state)  # type: ignore[attr-defined]
                if not isinstance(function, np.ufunc):
                    raise Refused(node, f"{ast.unparse(called)}() of a slice")
                parts = [self._element(x, k, length, state) for x in arguments]
                return ast.copy_location(ast.Call(called, parts, []), node)
        if slices(node):
            raise Refused(node, f"{ast.unparse(node)}, with a slice")
        return node

    def not_negative(self, text: str, first: Number) -> None:
        """A slice that begins before the first element counts from the end: then the loop runs in Python."""
        if first.low is not None and (self.hopeful or not self.conditional):  # type: ignore[attr-defined]
            self.prologue.setdefault(f"{first.low} < 0", self.line)  # type: ignore[attr-defined]
        else:
            self.require(f"{text} < 0", "IndexError")  # type: ignore[attr-defined]


def _loaded(target: Any) -> Any:
    if isinstance(target, ast.Subscript):
        return ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
    return ast.copy_location(ast.Name(target.id, ast.Load()), target)


__all__ = ["Constant", "Vectors", "slices"]
