"""Recursion removal: a function that calls itself becomes a loop with a stack of frames, before type inference.

The function is cut into blocks where it calls itself, and each iteration of the loop runs one of them.  The frame of a
call holds the values that it needs after a nested call has returned::

    def f(n, x):                              depth = block = 0
        if n == 0:                            blocks[0], ns[0], xs[0] = -1, n, x
            return x                          while block >= 0:
        return x * f(n - 1, x * x)                if block == 0:
                                       ->             if ns[depth] == 0:
                                                          result = xs[depth]
                                                          depth, block = depth - 1, blocks[depth]
                                                      else:
                                                          depth += 1
                                                          blocks[depth] = 1
                                                          ns[depth], xs[depth] = ns[depth - 1] - 1, ...
                                                          block = 0
                                                  else:
                                                      result = xs[depth] * result
                                                      depth, block = depth - 1, blocks[depth]
                                              return result

Arguments that all calls pass on unchanged, for instance arrays and functions, are not in the frames.  The stacks grow
as long as there is memory.  A tail call, whose result is returned unchanged, needs no new frame.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable
from typing import Any

from numba import types

from ampi.kernel.frontend.base.source import Source
from ampi.kernel.frontend.base.values import Static
from ampi.kernel.frontend.language.desugar import bound_names, in_order
from ampi.kernel.frontend.language.webs import Webs
from ampi.kernel.frontend.lists.nodes import Known, Length, assign, copied, increase, name_of, named, placed
from ampi.kernel.frontend.recursion.nodes import (
    FIRST_ROOM,
    OF_ARRAYS,
    Block,
    Call,
    Enter,
    Grow,
    Jump,
    PopFrame,
    PushFrame,
    Save,
    Slot,
    Slots,
    Stack,
)
from ampi.kernel.frontend.recursion.separate_calls import Separate
from ampi.kernel.ir.names import Names, stem

_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_NUMBERS = (bool, int, float, complex)
_VALUE = "a value"  # no variable has this name


def is_call_of(definition: ast.FunctionDef, is_it: Callable[[Any], bool], known: dict[str, Any]) -> Callable[..., bool]:
    """A predicate that is true for nodes that call a function for which ``is_it`` is true."""
    local = bound_names(definition)

    def is_call(node: Any) -> bool:
        named_so = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in local
        return named_so and is_it(known.get(node.func.id))

    return is_call


def remove_recursion(
    source: Source,
    signature: inspect.Signature,
    given: dict[str, Any],
    known: dict[str, Any],
    is_call: Callable[[Any], bool],
    webs: Webs,
) -> None:
    """Rewrite ``source.definition``, whose variables are ``webs``, in place.

    ``given`` has the types or values of its arguments, ``known`` the names around it; ``is_call`` recognises its calls
    of itself.
    """
    _Removal(source, signature, given, known, is_call, webs).run()


class _Removal:
    def __init__(
        self,
        source: Source,
        signature: inspect.Signature,
        given: dict[str, Any],
        known: dict[str, Any],
        is_call: Callable[[Any], bool],
        webs: Webs,
    ):
        self.source, self.definition, self.fail = source, source.definition, source.fail
        self.signature, self.given, self.known, self.webs = signature, given, known, webs
        self.fresh = Names(in_order(self.definition)).fresh
        self.local = bound_names(self.definition)
        self.written = self.local - {n for n in self.local if stem(n) != n}  # by the user
        self.is_call = is_call
        self.blocks: dict[int, list[ast.stmt]] = {}
        self.loops: list[tuple[int | None, int]] = []  # the targets of break and continue

    def run(self) -> None:
        definition = self.definition
        if definition.args.vararg:
            problem = f"'{self.source.name}' has *{definition.args.vararg.arg} and calls itself"
            self.fail(definition, problem, "name every parameter")
        parameters = [a.arg for a in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs)]
        body = Separate(self.source.name, self.is_call, self.fresh, self.fail).body(definition.body)
        if self.webs.maybe_undefined:
            node = self.webs.maybe_undefined[0]
            self.fail(node, f"'{node.id}' is used before it is assigned", "assign it first")
        calls = [n for s in body for n in ast.walk(s) if isinstance(n, Call)]
        self.arguments = {id(n): self.bound(n.call) for n in calls}
        changed = _assigned(body)
        self.same = {
            p for p in parameters if p not in changed and all(self.is_same(p, self.arguments[id(n)][p]) for n in calls)
        }
        self.passed = [p for p in parameters if p not in self.same]
        self.refuse_changing(calls)
        self.returned = self.form_of_results(body)
        self.block(body, None, 0)
        if not any(isinstance(n, PopFrame) for block in self.blocks.values() for s in block for n in ast.walk(s)):
            problem = f"'{self.source.name}' calls itself on every path"
            self.fail(calls[0], problem, "return without a call when the recursion is to end")
        self.inline()
        definition.body = self.machine()

    # ----------------------------------------------------------------------------------------------- arguments

    def bound(self, call: ast.Call) -> dict[str, ast.expr]:
        """The arguments of a call, by the names of the parameters."""
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            problem = f"* in a call of '{self.source.name}' itself"
            self.fail(call, problem, "pass the arguments one by one")
        try:
            found = self.signature.bind(*call.args, **{k.arg: k.value for k in call.keywords}).arguments
        except TypeError as problem:
            self.fail(call, f"{self.source.name}(): {problem}")
        return {name: found.get(name, p.default) for name, p in self.signature.parameters.items()}

    def is_same(self, name: str, argument: Any) -> bool:
        """Return whether a recursive call passes the parameter ``name`` on unchanged."""
        given = self.given.get(name)
        if not isinstance(argument, ast.expr):  # the default
            return isinstance(given, Static) and given.value is argument
        if isinstance(given, Static) and isinstance(argument, ast.Constant):
            return type(given.value) is type(argument.value) and given.value == argument.value
        return name_of(argument) == name

    def refuse_changing(self, calls: list[Call]) -> None:
        for name in self.passed:
            given = self.given.get(name)
            is_number = isinstance(given, Static) and isinstance(given.value, _NUMBERS)  # by default
            if isinstance(given, (types.Array, Static)) and not is_number:
                node = next((n for n in calls if not self.is_same(name, self.arguments[id(n)][name])), calls[0])
                if isinstance(given, types.Array):
                    problem = f"the array '{name}' is another one where '{self.source.name}' calls itself"
                    advice = OF_ARRAYS
                else:
                    problem = f"'{name}', which is not a number, changes where '{self.source.name}' calls itself"
                    advice = "pass it on unchanged, under its name"
                self.fail(node, problem, advice)

    def argument(self, name: str, node: ast.AST, argument: Any) -> ast.expr:
        if isinstance(argument, ast.expr):
            return argument
        if isinstance(argument, _NUMBERS):
            return ast.Constant(argument)
        return self.fail(node, f"'{name}' is not passed where '{self.source.name}' calls itself", "pass it")

    def form_of_results(self, body: list[ast.stmt]) -> str | None:
        """The form of results: `_VALUE`, the name of an unchanged argument that is returned, or None."""
        values = [n.value for s in body for n in ast.walk(s) if isinstance(n, ast.Return)]
        given = [v for v in values if v is not None and not (isinstance(v, ast.Constant) and v.value is None)]
        if not given:
            return None
        if len(given) < len(values) or self.webs.falls_through:
            self.fail(self.definition, "some paths return a value and others do not", "return a value on every path")
        names = {name_of(v) for v in given}
        only = next(iter(names))
        return only if len(names) == 1 and only in self.same else _VALUE

    # -------------------------------------------------------------------------------------------------- blocks

    def block(self, body: list[ast.stmt], after: int | None, label: int | None = None) -> int:
        """A new block of these statements, which then continues at the label ``after``; its label."""
        label = self.new_label() if label is None else label
        self.blocks.setdefault(label, [])
        self.blocks[label] = self.sequence(body, after)
        return label

    def new_label(self) -> int:
        self.blocks[len(self.blocks)] = []
        return len(self.blocks) - 1

    def jump(self, label: int | None, like: ast.AST) -> ast.stmt:
        if label is None:
            return placed(PopFrame(None), like)
        made = Jump()
        made.label = label
        return placed(made, like)

    def sequence(self, body: list[ast.stmt], after: int | None) -> list[ast.stmt]:
        """Statements that end in ``Jump``, ``PushFrame`` or ``PopFrame`` on every path."""
        out: list[ast.stmt] = []
        for k, s in enumerate(body):
            rest = body[k + 1 :]
            if not self.leaves(s):
                out.append(s)
                if isinstance(s, ast.Raise):
                    return out
                continue
            match s:
                case Call():
                    return [*out, self.push_frame(s, rest, after)]
                case ast.Return(value=value):
                    return [*out, placed(PopFrame(value if self.returned == _VALUE else None), s)]
                case ast.Break():
                    return [*out, self.jump(self.loops[-1][0], s)]
                case ast.Continue():
                    return [*out, self.jump(self.loops[-1][1], s)]
                case ast.If(test=test):
                    then, orelse = s.body, s.orelse
                    if _ends(then) or _ends(orelse):
                        then, orelse = (
                            [*then, *([] if _ends(then) else rest)],
                            [*orelse, *([] if _ends(orelse) else rest)],
                        )
                        join = after
                    else:
                        join = self.block(rest, after) if rest else after
                    branches = self.sequence(then, join), self.sequence(orelse, join)
                    return [*out, placed(ast.If(test, *branches), s)]
                case ast.While():
                    return [*out, self.loop(s, s.test, s.body, rest, after)]
                case ast.For():
                    before, test, inside = self.counted(s)
                    return [*out, *before, self.loop(s, test, [*inside, *s.body], rest, after)]
            raise AssertionError(ast.dump(s))
        return [*out, self.jump(after, body[-1] if body else self.definition)]

    def leaves(self, s: ast.AST, inside: bool = False) -> bool:
        """Return whether a statement calls, returns, or leaves an enclosing loop."""
        if isinstance(s, (ast.Break, ast.Continue)):
            return not inside
        if isinstance(s, (Call, ast.Return)):
            return True
        inside = inside or isinstance(s, (ast.For, ast.While))
        return any(self.leaves(n, inside) for n in ast.iter_child_nodes(s) if isinstance(n, ast.stmt))

    def push_frame(self, s: Call, rest: list[ast.stmt], after: int | None) -> ast.stmt:
        arguments = self.arguments[id(s)]
        made = PushFrame([self.argument(p, s, arguments[p]) for p in self.passed])
        made.back = None if self.is_last(s, rest, after) else self.block([*self.result(s), *rest], after)
        return placed(made, s)

    def result(self, s: Call) -> list[ast.stmt]:
        """The statements that assign a call's result."""
        if s.target is None:
            return []
        if self.returned is None:
            return self.fail(s, f"'{self.source.name}' returns no value, but its result is used here", "return a value")
        value = named(self.returned) if self.returned in self.same else _Result()
        return [placed(assign(s.target, value), s)]

    def is_last(self, s: Call, rest: list[ast.stmt], after: int | None) -> bool:
        """Return whether the function returns the call's result unchanged (a tail call)."""
        then = rest[0] if rest else None
        if self.returned == _VALUE:
            return isinstance(then, ast.Return) and s.target is not None and name_of(then.value) == s.target
        return isinstance(then, ast.Return) or (then is None and after is None)

    def loop(
        self, s: ast.stmt, test: ast.expr, body: list[ast.stmt], rest: list[ast.stmt], after: int | None
    ) -> ast.stmt:
        """Jump to a loop, which becomes a block that jumps back to itself."""
        done = self.block(rest, after) if rest else after
        head = self.new_label()
        self.loops.append((done, head))
        inside = self.sequence(body, head)
        self.loops.pop()
        endless = isinstance(test, ast.Constant) and test.value is True
        whole = inside if endless else [placed(ast.If(test, inside, [self.jump(done, s)]), s)]
        self.blocks[head] = whole
        return self.jump(head, s)

    def counted(self, s: ast.For) -> tuple[list[ast.stmt], ast.expr, list[ast.stmt]]:
        """A ``for`` loop as a ``while`` loop: statements before it, its test, and those that begin an iteration."""
        call = s.iter
        k = self.fresh("number")
        function = name_of(call.func) if isinstance(call, ast.Call) and not call.keywords else None
        found = None if function in self.local else self.known.get(function or "")
        if found is range or (isinstance(call, ast.Call) and getattr(found, "__name__", "") == "prange"):
            start, stop, step = _bounds(call)
            last, by = self.fresh("stop"), step if isinstance(step, ast.Constant) else named(self.fresh("step"))
            before = [assign(k, start), assign(last, stop)]
            if isinstance(by, ast.Name):
                before.append(assign(by.id, step))
            up, down = (ast.Compare(named(k), [op], [named(last)]) for op in (ast.Lt(), ast.Gt()))
            if isinstance(by, ast.Constant):
                test: ast.expr = up if by.value > 0 else down
            else:
                forward = ast.Compare(by, [ast.Gt()], [ast.Constant(0)])
                test = ast.IfExp(forward, up, down)
            inside = [ast.Assign([s.target], named(k)), increase(k, copied(by))]
        else:
            items, counter = [call], False
            if isinstance(call, ast.Call) and found is builtins.enumerate and len(call.args) == 1:
                items, counter = [call.args[0]], True
            elif isinstance(call, ast.Call) and found is builtins.zip and call.args:
                items = list(call.args)
            if not all(name_of(i) in self.same or name_of(i) not in self.local | {None} for i in items):
                problem = f"a loop over this, in which '{self.source.name}' calls itself or returns"
                self.fail(call, problem, "write for i in range(...), and index the items")
            lengths: list[ast.expr] = [Length(copied(i)) for i in items]
            length = lengths[0] if len(lengths) == 1 else ast.Call(Known(min), lengths, [])
            before, test = [assign(k, ast.Constant(0))], ast.Compare(named(k), [ast.Lt()], [length])
            taken: list[ast.expr] = [ast.Subscript(copied(i), named(k), ast.Load()) for i in items]
            value = taken[0] if len(items) == 1 and found is not builtins.zip else ast.Tuple(taken, ast.Load())
            value = ast.Tuple([named(k), value], ast.Load()) if counter else value
            inside = [ast.Assign([s.target], value), increase(k)]
        place = lambda nodes: [placed(n, s) for n in nodes]
        return place(before), placed(test, s), place(inside)

    # ------------------------------------------------------------------------------------------------- liveness

    def inline(self) -> None:
        """Move blocks to which only one jump leads to the place of this jump."""
        while True:
            jumps: dict[int, list[Any]] = {label: [] for label in self.blocks}
            for label in self.blocks:
                for s in self.blocks[label]:
                    for n in ast.walk(s):
                        target = n.label if isinstance(n, Jump) else n.back if isinstance(n, PushFrame) else None
                        if target is not None:
                            jumps[target].append((label, n))
            found = next(
                (k for k, w in jumps.items() if k and len(w) == 1 and isinstance(w[0][1], Jump) and w[0][0] != k),
                None,
            )
            if found is None:
                break
            (label, jump), body = jumps[found][0], self.blocks.pop(found)
            self.blocks[label] = _replaced(self.blocks[label], jump, body)
        for label in [k for k, w in jumps.items() if k and not w]:
            del self.blocks[label]

    def liveness(self) -> dict[int | None, set[str]]:
        """The variables that are live at the start of each block."""
        live: dict[int | None, set[str]] = {label: set() for label in self.blocks}
        while True:
            before = {k: set(v) for k, v in live.items()}
            for label, body in self.blocks.items():
                live[label] = self.live(body, set(), live, [])
            if live == before:
                return live

    def live(self, body: list[ast.stmt], after: set[str], labels: dict[int | None, set[str]], loops: list) -> set[str]:
        """The variables that are live before statements, given those live after them."""
        now = set(after)
        for s in reversed(body):
            match s:
                case Jump(label=label):
                    now = set(labels[label])
                case PushFrame(back=back):
                    now = self.used(*s.arguments) | (labels[back] if back is not None else set())
                case PopFrame(value=value):
                    now = self.used(value)
                case ast.Raise():
                    now = self.used(s)
                case ast.Break():
                    now = set(loops[-1][0])
                case ast.Continue():
                    now = set(loops[-1][1])
                case ast.If():
                    branches = (self.live(way, now, labels, loops) for way in (s.body, s.orelse))
                    now = self.used(s.test).union(*branches)
                case ast.For() | ast.While():
                    now = self.live_loop(s, now, labels, loops)
                case _:
                    now = (now - _bound(s)) | self.used(s)
        return now

    def live_loop(self, s: Any, after: set[str], labels: dict[int | None, set[str]], loops: list) -> set[str]:
        bound, tested = (_bound(s.target), set()) if isinstance(s, ast.For) else (set(), self.used(s.test))
        head = after | tested
        while True:
            inside = self.live(s.body, head, labels, [*loops, (after, head)])
            more = head | tested | (inside - bound)
            if more == head:
                return head | (self.used(s.iter) if isinstance(s, ast.For) else set())
            head = more

    def used(self, *nodes: ast.AST | None) -> set[str]:
        """The variables of a frame that expressions read."""
        found = {
            n.id
            for node in nodes
            if node is not None
            for n in ast.walk(node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        return (found & self.variables) - self.same

    # ------------------------------------------------------------------------------------------------ the loop

    def machine(self) -> list[ast.stmt]:
        """The body of the function, as a loop over its blocks."""
        everything = [s for body in self.blocks.values() for s in body]
        self.variables = {*self.passed, *_assigned(everything)}
        self.live_at = self.liveness()
        in_frames = set().union(*(self.live_at[label] for label in self.blocks))
        order = {name: k for k, name in enumerate([*self.passed, *in_order(ast.Module(everything, []))])}
        self.stacks = {name: self.fresh(f"{name}_frames") for name in sorted(in_frames, key=order.__getitem__)}
        self.depth, self.next = self.fresh("depth"), self.fresh("block")
        self.backs, self.results = self.fresh("blocks"), self.fresh("result")
        begin = [assign(self.depth, ast.Constant(0)), self.enter(0)]
        for key in (self.backs, *self.stacks.values()):
            begin.append(_stack(key, FIRST_ROOM))
        if self.returned == _VALUE:
            begin.append(_stack(self.results, 1))
        begin.append(self.save_slot(self.backs, ast.Constant(0), ast.Constant(-1), "the block"))
        begin += [self.save_variable(p, ast.Constant(0), named(p)) for p in self.passed if p in self.live_at[0]]
        made: list[Any] = []
        for label in sorted(self.blocks, reverse=True):
            body = self.block_body(label)
            made = [Block(ast.Compare(named(self.next), [ast.Eq()], [ast.Constant(label)]), body, made)]
            made[0].label, made[0].key = label, f"blocks {self.next}"
        going = ast.Compare(named(self.next), [ast.GtE()], [ast.Constant(0)])
        whole = [*begin, ast.While(going, made, [])]
        if self.returned is not None:
            value = named(self.returned) if self.returned in self.same else self.slot(self.results, ast.Constant(0))
            whole.append(ast.Return(value))
        placed_all = [placed(s, self.definition.body[0]) for s in whole]
        return [_results_in(s, lambda: self.slot(self.results, ast.Constant(0))) for s in placed_all]

    def block_body(self, label: int) -> list[ast.stmt]:
        body = self.blocks[label]
        mentioned = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)}
        first = body[0] if body else self.definition
        loads = [n for n in self.stacks if n in self.live_at[label] and n in mentioned]
        before = [placed(assign(n, self.slot(self.stacks[n], named(self.depth))), first) for n in loads]
        return [*before, *self.code(body, set())]

    def code(self, body: list[ast.stmt], changed: set[str]) -> list[ast.stmt]:
        """The final statements of a block; ``changed`` are variables whose values differ from those in the frame."""
        out: list[ast.stmt] = []
        for s in body:
            match s:
                case Jump(label=label):
                    made = [*self.save_changed(changed, label), self.enter(label)]
                case PushFrame():
                    made = self.call(s, changed)
                case PopFrame(value=value):
                    result = (
                        [] if value is None else [self.save_slot(self.results, ast.Constant(0), value, "the result")]
                    )
                    for part in result:
                        part.is_result = True
                    back = assign(self.next, self.slot(self.backs, named(self.depth)))
                    made = [*result, back, increase(self.depth, ast.Constant(-1))]
                case ast.If() if _ends_block(s):
                    branches = (self.code(way, set(changed)) for way in (s.body, s.orelse))
                    out.append(placed(ast.If(s.test, *branches), s))
                    continue
                case _:
                    changed |= _assigned([s])
                    out.append(s)
                    continue
            out += [placed(m, s) for m in made]
        return out

    def save_changed(self, changed: set[str], label: int | None) -> list[ast.stmt]:
        """Statements that save changed variables in the frame for a later block."""
        wanted = changed & self.live_at[label]
        return [self.save_variable(n, named(self.depth), named(n)) for n in self.stacks if n in wanted]

    def call(self, s: PushFrame, changed: set[str]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        values = {p: v for p, v in zip(self.passed, s.arguments, strict=True) if p in self.live_at[0]}
        names = {p: self.fresh(p) for p in values}
        if s.back is not None:
            made += self.save_changed(changed, s.back)
        made += [assign(names[p], v) for p, v in values.items()]
        if s.back is not None:
            stacks = (self.backs, *self.stacks.values())
            room = Grow(list(map(named, stacks)), named(self.depth))
            room.keys = [f"frames {n}" for n in stacks]
            made += [room, increase(self.depth)]
            made.append(self.save_slot(self.backs, named(self.depth), ast.Constant(s.back), "the block"))
            made[-1].entry = f"blocks {self.next}", s.back
        made += [self.save_variable(p, named(self.depth), named(n)) for p, n in names.items()]
        return [*made, self.enter(0)]

    def enter(self, label: int) -> ast.stmt:
        made = Enter([named(self.next, ast.Store())], ast.Constant(label))
        made.label, made.key = label, f"blocks {self.next}"
        return made

    def save_variable(self, name: str, frame: ast.expr, value: ast.expr) -> ast.stmt:
        shown = f"'{name}'" if stem(name) in self.written else "a value that is saved here"
        made = self.save_slot(self.stacks[name], frame, value, shown)
        made.given = self.given.get(name) if name in self.passed else None
        return made

    def save_slot(self, key: str, frame: ast.expr, value: ast.expr, name: str) -> Any:
        made = Save(named(key), frame, value)
        made.key, made.name = f"frames {key}", name
        return made

    def slot(self, key: str, frame: ast.expr) -> ast.expr:
        return Slot(named(key), frame)


class _Result(ast.expr):
    """The result of a call."""

    _fields = ()


def _results_in(node: Any, make: Callable[[], ast.expr]) -> Any:
    class Put(ast.NodeTransformer):
        def visit__Result(self, found: ast.AST) -> ast.AST:
            return placed(make(), found)

    return Put().visit(node)


def _stack(name: str, room: int) -> ast.stmt:
    slots = Slots()
    made = Stack([named(name, ast.Store())], slots)
    slots.key, slots.room = f"frames {name}", room
    made.key = slots.key
    return made


def _bounds(call: ast.Call) -> tuple[ast.expr, ast.expr, ast.expr]:
    zero, one = ast.Constant(0), ast.Constant(1)
    match call.args:
        case [stop]:
            return zero, stop, one
        case [start, stop]:
            return start, stop, one
        case [start, stop, ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value)))]:
            return start, stop, ast.Constant(-value)
    return call.args[0], call.args[1], call.args[2]


def _assigned(body: list[ast.stmt]) -> set[str]:
    """The variables that statements assign."""
    return {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | {
        n.target for s in body for n in ast.walk(s) if isinstance(n, Call) and n.target is not None
    }


def _bound(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _ends(body: list[ast.stmt]) -> bool:
    """Return whether code after some statements is unreachable."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _ends(last.body) and _ends(last.orelse)
    return isinstance(last, _ENDS)


def _ends_block(s: ast.If) -> bool:
    """Return whether a block ends in the branches of a condition."""
    return any(isinstance(n, (Jump, PushFrame, PopFrame)) for n in ast.walk(s))


def _replaced(body: list[ast.stmt], jump: ast.stmt, by: list[ast.stmt]) -> list[ast.stmt]:
    out: list[ast.stmt] = []
    for s in body:
        if s is jump:
            out += by
        else:
            if isinstance(s, ast.If):
                s.body, s.orelse = _replaced(s.body, jump, by), _replaced(s.orelse, jump, by)
            out.append(s)
    return out
