"""Outlining: a loop as the source of a kernel, for arguments of certain kinds.

The loop is interpreted abstractly, with the kinds of its numbers (`kinds`), so the classes of Python's results are
known; a loop for which they are not is refused.  Where Python would raise an exception, the kernel raises one as well,
of any class, since the loop then runs again in Python, from the state before it.  Indices whose bounds follow from
those of loops are checked first, before anything is written.
"""

from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from .calls import Calls
from .expressions import Expressions
from .inlining import Inlining, is_library
from .iterations import MOST_ROUNDS, Iterations
from .kinds import (
    BOOL,
    BOOL_,
    FLOAT,
    FLOAT64,
    INT,
    INT32,
    INT64,
    SAFE,
    Array,
    Constant,
    Number,
    Refused,
    Slice,
    Vector,
    View,
    is_known_array,
    kind_of,
    number,
)
from .loops import Loop
from .plain_attributes import MISSING, plain_attribute
from .states import Restart, State, joined
from .vectors import Vectors, is_short, is_vector


class Lowered:
    """A loop as a kernel.

    Attributes
    ----------
    text : list of (int, str)
        Lines of the kernel's body, with those of the program.
    arguments : list of (tuple of str, str, str)
        Paths of the values that it takes, their names in the kernel, and their forms there.
    outputs : list of (str, str or tuple, str or None)
        Names that may get new values, their kinds, and the variables that are 1 if they do.  For a part of an array the
        kind is the path of the array, and the number of indices; for a new array it is the number of its elements.
    returns : list
        For each ``return``: its kind, or the constant that it returns.
    writes : set of str
        Arguments that are written.
    copied : set of str
        Arguments whose elements are read before the loop: what it writes must not overlap with them.
    may_fail : bool
        True if the kernel may raise an exception after it has written something.
    compares : bool
        True if it compares floating-point numbers.
    others : dict
        Global variables of functions that it calls, by paths: namespace, name and kind.
    outside : str
        An expression of the arguments that is true if an index checked before the loop is out of bounds.
    work : str
        An expression of the arguments that estimates the number of operations.
    """

    def __init__(self) -> None:
        self.text: list[tuple[int, str]] = []
        self.arguments: list[tuple[tuple[str, ...], str, str]] = []
        self.outputs: list[tuple[str, Any, str | None]] = []
        self.returns: list[Any] = []
        self.writes: set[str] = set()
        self.copied: set[str] = set()
        self.may_fail = False
        self.compares = False
        self.others: dict[tuple[str, ...], tuple[Any, str, Any]] = {}
        self.outside = "False"
        self.work = "0"


def lower(loop: Loop, values: dict[tuple[str, ...], Any], hopeful: bool) -> Lowered:
    """Lower a loop for the present values of its paths.

    Parameters
    ----------
    loop : Loop
    values : dict
        By paths.
    hopeful : bool
        True to check indices in branches, and after exits, before the loop as if they were always used.

    Raises
    ------
    Refused
    """
    if loop.refusal is not None:
        line, reason = loop.refusal
        refused = Refused(None, reason)
        refused.line = line
        raise refused
    lowering = Lowering(loop, values, hopeful)
    for _ in range(MOST_ROUNDS):
        try:
            return lowering.run()
        except Restart:
            continue
    raise Refused(loop.node, "its numbers change their types too often")


class Lowering(Inlining, Vectors, Iterations, Calls, Expressions):
    """Lowering of one loop, which restarts when it finds facts that change earlier lines."""

    def __init__(self, loop: Loop, values: dict[tuple[str, ...], Any], hopeful: bool) -> None:
        self.loop = loop
        self.hopeful = hopeful
        self.values = values
        self.assigned = set(loop.assigned)  # with the variables of functions that it calls
        self.assigned -= {
            name
            for name in loop.updated
            if isinstance(values.get((name,)), np.ndarray) and is_known_array(values[name,])
        }
        self.bodies: list[Any] = []  # of functions that are being inlined
        self.inline: dict[Any, Any] = {}  # by calls: bodies of functions, with the names that they have here
        self.others: dict[tuple[str, ...], tuple[Any, str, Any]] = {}  # global variables of such functions
        self.reals: set[str] = set()  # names of floating-point variables that may be given integers
        self.capped: set[str] = set()  # integers that are checked when assigned
        self.flagged: set[str] = set()  # names that may not be assigned
        self.names_of_loop = {n.id for n in ast.walk(loop.node) if isinstance(n, ast.Name)}

    # ---------------------------------------------------------------------------------------------------- whole

    def run(self) -> Lowered:
        self.done = Lowered()
        self.shared, self.changed = set(), set()
        self.taken = set(self.names_of_loop)
        self.lines: list[tuple[int, str]] = []
        self.prologue: dict[str, int] = {}
        self.depth = 1
        self.stores = 0
        self.conditional = 0
        self.count = 0
        self.trips: list[str] = []
        self.work: list[str] = []
        self.names: dict[tuple[str, ...], str] = {}
        self.exits: list[tuple[list[State], list[State], str]] = []
        self.line = self.loop.node.lineno
        state = State({}, frozenset())
        for name in sorted(self.assigned & set(self.loop.inputs)):
            state.env[name] = self.at_entry(name)
        end = self.block([self.loop.node], state)
        self.finish(state if end is None else end, end is not None)
        return self.done

    def at_entry(self, name: str) -> Any:
        """The number, or the vector, that a variable has before the loop."""
        value = self.values[(name,)]
        if is_short(value):
            return self.vector_at_entry(name, value)
        kind = kind_of(value)
        if kind not in (INT, BOOL, FLOAT, INT64, BOOL_, FLOAT64):
            raise Refused(self.loop.node, f"'{name}' is {_described(value)}, and is assigned in the loop")
        found = Number(frozenset(), frozenset((kind,)), SAFE, None, None, name in self.reals)
        self.names[(name,)] = name
        self.done.arguments.append(((name,), name, found.form))
        return found

    def finish(self, end: State, reached: bool) -> None:
        done = self.done
        first: list[tuple[int, str]] = []
        line = self.loop.node.lineno
        results = []
        for name in sorted(self.loop.live):
            found = end.env.get(name)
            if found is None or not reached:
                continue
            if isinstance(found, (Array, Slice, Constant)):
                raise Refused(self.loop.node, f"'{name}', an array or an object, is used after the loop")
            is_array = isinstance(found, (View, Vector))
            if not is_array and not found.assigned:
                continue
            if not is_array and len(found.assigned) > 1:
                raise Refused(self.loop.node, f"'{name}' may be of several types after the loop")
            given = name in self.loop.inputs
            flag = None
            if name not in end.sure and (is_array or not (given and found.entry == found.assigned)):
                if name not in self.flagged:
                    self.flagged.add(name)
                    raise Restart
                flag = self.flag(name)
                first.append((line, f"{flag} = 0"))
            if isinstance(found, Vector):
                if any(name in pair for pair in end.same):
                    raise Refused(self.loop.node, f"'{name}', one of two names of an array, is used after the loop")
                done.outputs.append((name, len(found.elements), flag))
                if not given:
                    first += [(line, f"{element} = 0.0") for element in found.elements]
                results += [(element, FLOAT, None) for element in found.elements[:-1]]
                results.append((found.elements[-1], FLOAT, flag))
                continue
            if isinstance(found, View):
                path = next(path for path, known, _ in done.arguments if known == found.array.name)
                done.outputs.append((name, (path, len(found.indices)), flag))
                first += [(line, f"{index} = 0") for index in found.indices]
                results += [(index, INT, None) for index in found.indices]
                results[-1] = (results[-1][0], INT, flag)
                continue
            (kind,) = found.assigned
            if not given:
                first.append((line, f"{name} = {_zero(found.form)}"))
            done.outputs.append((name, kind, flag))
            results.append((name, found.form, flag))
        done.outside = " or ".join(f"({test})" for test in self.prologue) or "False"
        self.lines = [(n, text) for n, text in first] + [(n, text) for n, text in self.lines]
        slots = [kind for kind in done.returns if isinstance(kind, str)]
        last = self.loop.node.lineno
        zeros = [_zero(form) for _, form, _ in results for _ in range(1)]
        flags = ["0" for *_, flag in results if flag]
        text = []
        for n, t in self.lines:
            head, _, given_value = t.partition("return@")
            if given_value:
                index, _, value = given_value.partition("@")
                k = int(index)
                values = [_zero(FLOAT if s in (FLOAT, FLOAT64) else BOOL if s in (BOOL, BOOL_) else INT) for s in slots]
                if value:
                    values[[i for i, s in enumerate(done.returns) if isinstance(s, str)].index(k)] = value
                t = f"{head}return ({', '.join([str(k + 1), *values, *zeros, *flags])},)"
            text.append((n, t))
        if results or done.returns:
            values = [_zero(FLOAT if s in (FLOAT, FLOAT64) else BOOL if s in (BOOL, BOOL_) else INT) for s in slots]
            names = [name for name, *_ in results]
            flags = [flag for *_, flag in results if flag]
            text.append((last, f"return ({', '.join(['0', *values, *names, *flags])},)"))
        done.text = text
        done.others = self.others
        done.work = " + ".join(self.work) or "0"

    def flag(self, name: str) -> str:
        return self.fresh(f"set_{name}")

    def fresh(self, stem: str) -> str:
        name = stem
        while name in self.taken:
            name += "_"
        return name

    def path(self, node: Any, path: tuple[str, ...]) -> Any:
        """Return the abstract value of a path that the loop does not assign: a number, an array, or a constant."""
        if path not in self.values and path in self.others:
            space, name, _ = self.others[path]
            self.values = {**self.values, path: space[name]}
        if path not in self.values:
            raise Refused(node, f"'{'.'.join(path)}' is no plain attribute")
        value = self.values[path]
        kind = kind_of(value)
        if isinstance(kind, str) and kind in (INT, BOOL, FLOAT, INT64, BOOL_, FLOAT64):
            name = self.argument(path, number(kind).form)
            if kind in (INT, INT64):
                return name, number(kind, low=name, high=name)
            return name, number(kind)
        if is_known_array(value):
            return None, Array(self.argument(path, "array"), value.dtype, value.shape)
        if isinstance(value, type) or callable(value) or hasattr(value, "__dict__"):
            return None, Constant(value)
        raise Refused(node, f"'{'.'.join(path)}' is {_described(value)}")

    def argument(self, path: tuple[str, ...], form: str) -> str:
        if path not in self.names:
            name = self.fresh("_".join(path)) if len(path) > 1 else path[0]
            self.taken.add(name)
            self.names[path] = name
            self.done.arguments.append((path, name, form))
        return self.names[path]

    # -------------------------------------------------------------------------------------------------- emission

    def emit(self, text: str) -> None:
        self.lines.append((self.line, "    " * (self.depth - 1) + text))

    def require(self, wrong: str, error: str) -> None:
        """Raise an exception in the kernel if a condition holds."""
        self.emit(f"if {wrong}:")
        self.lines.append((self.line, "    " * self.depth + f"raise {error}"))
        self.done.may_fail = True

    def temporary(self, stem: str) -> str:
        self.count += 1
        return self.fresh(f"{stem}_{self.count}")

    @contextlib.contextmanager
    def indented(self, head: str) -> Iterator[None]:
        self.emit(head)
        start = len(self.lines)
        self.depth += 1
        yield
        if len(self.lines) == start:
            self.emit("pass")
        self.depth -= 1

    # ------------------------------------------------------------------------------------------------ statements

    def block(self, body: list[Any], state: State | None) -> State | None:
        for s in body:
            if state is None:
                return None
            self.line = s.lineno
            state = self.statement(s, state)
        return state

    def statement(self, s: Any, state: State) -> State | None:
        self.work_here(s)
        match s:
            case ast.For():
                return self.for_loop(s, state)
            case ast.While():
                return self.while_loop(s, state)
            case ast.If():
                return self.branch(s, state)
            case ast.Assign(targets=targets, value=value):
                return self.assign(s, targets, value, state)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                return self.assign(s, [target], value, state)
            case ast.AugAssign():
                return self.augmented(s, state)
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                return state
            case ast.Expr(value=ast.Call() as call):
                function = self.constant_of(call.func, state)
                if not isinstance(function, types.FunctionType) or is_library(function):
                    raise Refused(s, f"a call of {ast.unparse(call.func)}()")
                return self.inlined_statement(call, function, state)
            case ast.Break():
                breaks, _, flag = self.exits[-1]
                breaks.append(state.copy())
                if flag:
                    self.emit(f"{flag} = 1")
                self.emit("break")
                return None
            case ast.Continue():
                self.exits[-1][1].append(state.copy())
                self.emit("continue")
                return None
            case ast.Return():
                self.returned(s, state)
                return None
        raise Refused(s, f"a statement that is not compiled ({type(s).__name__.lower()})")

    def work_here(self, s: Any) -> None:
        if not isinstance(s, (ast.For, ast.While, ast.If)):
            weight = sum(isinstance(n, (ast.BinOp, ast.Subscript, ast.Call, ast.Compare)) for n in ast.walk(s)) + 1
            self.work.append(" * ".join([str(weight), *self.trips]))

    def branch(self, s: ast.If, state: State) -> State | None:
        text = self.condition(s.test, state)
        self.conditional += 1
        with self.indented(f"if {text}:"):
            one = self.block(s.body, state.copy())
        other: State | None = state.copy()
        if s.orelse:
            with self.indented("else:"):
                other = self.block(s.orelse, other)
        self.conditional -= 1
        return joined(one, other, self)

    def assign(self, s: Any, targets: list[Any], value: Any, state: State) -> State:
        if isinstance(value, ast.Tuple):
            if any(not isinstance(t, ast.Tuple) or len(t.elts) != len(value.elts) for t in targets):
                raise Refused(s, "a tuple")
            kept = []
            for item in value.elts:
                kept.append(self.kept(*self.anything(item, state)))
            for target in targets:
                for part, (name, found) in zip(target.elts, kept):
                    state = self.store(part, name, found, state)
            return state
        if isinstance(value, ast.Call) and len(targets) == 1 and isinstance(targets[0], ast.Name):
            chosen = self.extreme(s, targets[0].id, value, state)
            if chosen is not None:
                return chosen
        text, found = self.anything(value, state)
        if is_vector(found) and any(isinstance(target, ast.Tuple) for target in targets):
            if len(targets) > 1:
                raise Refused(s, "several targets of an array")
            return self.unpack(s, targets[0], found, state)
        if len(targets) > 1 and isinstance(found, Vector) and not found.name:
            raise Refused(s, "several names for a new array")
        if len(targets) > 1 and isinstance(found, Number):
            name = self.temporary("item")
            self.emit(f"{name} = {text}")
            text = name
        for target in targets:
            state = self.store(target, text, found, state)
        return state

    def extreme(self, s: Any, name: str, value: ast.Call, state: State) -> State | None:
        """``m = max(m, x)``, which leaves m as it is, or makes it x."""
        function = self.constant_of(value.func, state)
        arguments = value.args
        if function not in (max, min) or len(arguments) != 2 or name not in state.env:
            return None
        if not (isinstance(arguments[0], ast.Name) and arguments[0].id == name):
            return None
        text, found = self.expression(arguments[1], state)
        old, known = self.expression(arguments[0], state)
        if found.kinds == known.kinds:
            return None
        item = self.temporary("item")
        self.emit(f"{item} = {text}")
        self.note_comparison(found, known)
        self.conditional += 1
        with self.indented(f"if {item} {'>' if function is max else '<'} {old}:"):
            after = self.store(ast.copy_location(ast.Name(name, ast.Store()), s), item, found, state.copy())
        self.conditional -= 1
        return joined(after, state, self)  # type: ignore[return-value]

    def augmented(self, s: ast.AugAssign, state: State) -> State:
        load: Any = ast.copy_location(_as_load(s.target), s.target)
        _, before = known = self.anything(load, state)
        whole = ast.copy_location(ast.BinOp(load, s.op, s.value), s)
        text, found = self.operation(whole, known, s.op, self.anything(s.value, state), s.value, state)
        if is_vector(before):
            self.fill(load, text, found, state)
            return state
        return self.store(s.target, text, found, state)

    def store(self, target: Any, text: str, found: Any, state: State) -> State:
        """Assign a value to a name or an element."""
        if isinstance(target, ast.Subscript):
            self.store_element(target, text, found, state)
            return state
        if not isinstance(target, ast.Name):
            raise Refused(target, f"an assignment to {ast.unparse(target)}")
        name = target.id
        if isinstance(found, Vector):
            state = self.assign_vector(target, found, state)
            found = state.env[name]
        state = state.copy()
        if isinstance(found, (View, Slice)):
            state.env[name] = self.fixed(found, name)
        elif isinstance(found, Number):
            before = state.env.get(name)
            if isinstance(before, (View, Slice, Vector)):
                raise Refused(target, f"'{name}' is an array and a number in turn")
            value = found.as_value()
            if name in self.reals and value.form == INT:
                text = f"float({text})"
            if text != name:
                self.emit(f"{name} = {text}")
            if name in self.capped and value.form == INT and value.magnitude > SAFE // 2:
                self.require(f"{name} > {SAFE} or {name} < -{SAFE}", "OverflowError")
            if name in self.capped:
                value = Number(value.assigned, frozenset(), min(value.magnitude, SAFE))
            if name in self.reals:
                value = Number(value.assigned, frozenset(), SAFE, None, None, True)
            state.env[name] = value
        else:
            if state.env.get(name, found) != found:
                raise Refused(target, f"'{name}' is one array or object, or another")
            state.env[name] = found
        if name in self.flagged:
            self.emit(f"{self.flag(name)} = 1")
        state.sure, state.maybe = state.sure | {name}, state.maybe - {name}
        state.checked = frozenset(pair for pair in state.checked if pair[0] != name)
        return state

    def returned(self, s: ast.Return, state: State) -> None:
        index = len(self.done.returns)
        if s.value is None or (isinstance(s.value, ast.Constant) and not isinstance(s.value.value, (float, int))):
            self.done.returns.append((None if s.value is None else s.value.value,))
            self.emit(f"return@{index}@")
            return
        if isinstance(s.value, ast.Constant):
            self.done.returns.append((s.value.value,))
            self.emit(f"return@{index}@")
            return
        text, found = self.expression(s.value, state)
        if len(found.kinds) > 1:
            raise Refused(s, "a result of several types")
        (kind,) = found.kinds
        self.done.returns.append(kind)
        self.emit(f"return@{index}@{text}")


def _as_load(target: Any) -> Any:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Subscript):
        return ast.Subscript(target.value, target.slice, ast.Load())
    raise Refused(target, f"an assignment to {ast.unparse(target)}")


def _zero(form: str) -> str:
    return {FLOAT: "0.0", INT: "0", BOOL: "False"}[form]


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"an array of shape {shape} and dtype {value.dtype}" if shape else f"a number of dtype {value.dtype}"
    return f"a {type(value).__name__}"


__all__ = ["INT32", "INT64", "MISSING", "Lowered", "lower", "plain_attribute"]
