"""CUDA kernels written from lowered programs: Python source for ``numba.cuda.jit``.

A loop over blocks or threads becomes an index of the thread, and its body is written once.  A barrier separates two
statements if one stores into memory of the block that the other uses.  A sum over threads becomes an atomic addition,
unless a single thread owns the element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from numba import types
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.codegen import emit
from ampi.kernel.cuda.dialect import in_dialect
from ampi.kernel.cuda.kernel_text import Kernel
from ampi.kernel.cuda.loops import OF_LAUNCH, Geometry
from ampi.kernel.cuda.spaces import Spaces, innermost
from ampi.kernel.cuda.together import Used, combined
from ampi.kernel.frontend.cuda.language import AXES
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.rewrite import mapped

Refuse = Callable[[int, str, str], NoReturn]
BOUND = "give the loop a number of iterations that the launch knows: for k in range(n) with break"


class Writer:
    """Writer of one launch (a statement) of a program whose names are all identifiers."""

    def __init__(self, function: ir.Function, number: int, geometry: Geometry, refuse: Refuse) -> None:
        self.function, self.geometry, self.refuse = function, geometry, refuse
        self.arguments = {a.name: a for a in function.arguments}
        self.of_host = {s.target.name for s in function.body if isinstance(s, ir.Alloc)}
        self.launch = function.body[number]
        self.body = (*self.before(function.body[:number]), self.launch)
        self.spaces = Spaces(self.body, geometry, frozenset(self.arguments))
        self.kernel = Kernel()
        self.depth = 1
        self.line_number = function.first_line
        self.phase = 0
        self.used = Used()
        taken = {n.name for n in ir.walk(function.body) if isinstance(n, ir.Var)} | set(self.arguments)
        self.fresh = _Fresh(taken)
        self.threads = geometry.threads
        self.rank = self.fresh("rank")
        self.totals: dict[str, str] = {}  # for each sum of the launch, the argument that holds it
        self.block_number, self.thread_number = self.fresh("block"), self.fresh("thread")

    # ------------------------------------------------------------------------------------------- text

    def line(self, text: str, number: int = 0) -> None:
        self.kernel.lines.append("    " * self.depth + text + (f"  # line {number}" if number else ""))

    def inside(self, write: Callable[[], None]) -> None:
        self.depth += 1
        before = len(self.kernel.lines)
        write()
        if len(self.kernel.lines) == before:
            self.line("pass")
        self.depth -= 1

    def text(self, e: ir.Expr) -> str:
        """Return an expression as source for a GPU."""
        return in_dialect(emit.expression(mapped(e, self.moved)), self._no_function)

    def _no_function(self, name: str) -> NoReturn:
        self.refuse(self.line_number, f"{name}() cannot be called in source for a GPU",
                    "write it with functions of Python's math module")  # fmt: skip

    def moved(self, e: ir.Expr) -> ir.Expr:
        """Return an access to an array in the memory space of the array."""
        if isinstance(e, ir.Load):
            return self.element(e.array, e.index, e.type)
        return e

    def element(self, array: ir.Var, index: tuple[ir.Expr, ...], ty: Any) -> Any:
        name, spaces = array.name, self.spaces
        if name in spaces.registers:
            return ir.Load(array, index[1:], ty) if spaces.registers[name] else ir.Var(name, ty)
        if name in spaces.buffers:
            own = spaces.buffers[name][1]
            one = ir.Var(self.thread_number if own else self.block_number, types.int64)
            return ir.Load(array, (*index, one) if own else (one, *index), ty)
        return ir.Load(array, index, ty)

    # ------------------------------------------------------------------------------------------- the whole

    def run(self) -> Kernel:
        later = self.function.body[self.function.body.index(self.launch) + 1 :]
        read = {n.name for s in later for n in ir.walk(s) if isinstance(n, ir.Var)}
        assert isinstance(self.launch, ir.For)
        for name, _ in self.launch.reductions:
            if name in read:
                self.totals[name] = self.fresh(f"{name}_total")
        self.declarations()
        self.statements(self.body)
        for name in self.totals:
            self.add_total(name)
        return self.kernel

    def before(self, body: tuple[ir.Stmt, ...]) -> Iterator[ir.Stmt]:
        """Iterate over the statements before a launch that each of its threads repeats."""
        made = {name for s in body if is_launch(s) for name, _ in s.reductions}  # type: ignore[attr-defined]
        for s in body:
            if is_launch(s) or isinstance(s, ir.Alloc):
                continue
            inside = tuple(ir.walk(s))
            if any(isinstance(n, ir.Var) and n.name in made for n in inside):
                self.refuse(s.line, "blocks of this launch depend on one another", "split it into two launches")
            if any(isinstance(n, (ir.Store, ir.Accumulate)) for n in inside):
                self.refuse(s.line, "an array is filled before the launch", "fill it in a separate launch")
            yield s

    def declarations(self) -> None:
        """Write the indices of the thread, the arrays, and the sizes of the launch."""
        names = {n.name for n in ir.walk(self.body) if isinstance(n, ir.Var)}
        for axis, blocks in zip(AXES, self.blocks()):
            if blocks in names:
                self.line(f"{blocks} = cuda.gridDim.{axis}")
        block = self.geometry.block
        places = [f"cuda.threadIdx.{a}" for k, a in enumerate(AXES) if block[k] > 1]
        sizes = [size for size in block if size > 1]
        ranks = places[-1] if places else "0"
        for k in range(len(places) - 2, -1, -1):
            ranks = f"{places[k]} + {sizes[k]} * ({ranks})"
        self.line(f"{self.rank} = {ranks}")
        blocks = "cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)"
        if self.spaces.buffers:
            self.line(f"{self.block_number} = {blocks}")
            self.line(f"{self.thread_number} = {self.threads} * {self.block_number} + {self.rank}")
        alloc = {n.target.name: n for n in ir.walk(self.body) if isinstance(n, ir.Alloc)}
        for space, known in (("shared", self.spaces.shared), ("local", {**self.spaces.each, **self.spaces.registers})):
            for name, shape in known.items():
                if shape:
                    dtype = alloc[name].target.type.dtype
                    self.line(f"{name} = cuda.{space}.array({_shape(shape)}, {emit.numpy_name(dtype)})")
                    if space == "shared":
                        self.kernel.shared_bytes += numpy_support.as_dtype(dtype).itemsize * math.prod(shape)
        for name, (extents, own) in self.spaces.buffers.items():
            self.buffer(alloc[name], extents, own)
        for s in ir.walk(self.body):
            if isinstance(s, ir.Grow):
                self.refuse(s.line, "the number of values that this loop saves for its adjoint is only known after it "
                            "has run", BOUND)  # fmt: skip

    def buffer(self, s: ir.Alloc, sizes: tuple[ir.Expr, ...], own: bool) -> None:
        known = [self.spaces.of_host(n) for n in sizes]
        if any(n is None for n in known):
            self.refuse(s.line, "the adjoint saves values of a loop whose length is not known before the launch", BOUND)
        shape = [f"max({emit.expression(index_algebra.tidy(n)) if n else 0}, 0)" for n in known]
        shape = [*shape, f"{self.threads} * blocks"] if own else ["blocks", *shape]
        of_kernel = types.Array(s.target.type.dtype, len(shape), "C")
        self.kernel.buffers.append((s.target.name, ", ".join(shape), of_kernel))

    def blocks(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.function.arguments if _is_of_launch(a))

    # ------------------------------------------------------------------------------------------- statements

    def statements(self, body: Iterable[ir.Stmt]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: ir.Stmt) -> None:
        self.line_number = s.line or self.line_number
        match s:
            case ir.For() if s.axis:
                self.place(s)
            case ir.For():
                self.common_loop(s) if not self.phase and self.threads > 1 else self.plain_loop(s)
            case ir.While():
                self.settle()
                self.use_expressions((s.condition,))
                self.line(f"while {self.text(s.condition)}:", s.line)
                self.inside(lambda: self.loop_body(s.body, (s.condition,)))
                self.use_expressions((s.condition,))
            case ir.If():
                self.branch(s)
            case ir.Assign():
                self.use_expressions((s.value,))
                self.line(f"{s.target.name} = {self.text(s.value)}", s.line)
            case ir.Alloc():
                self.fill(s)
            case ir.Store() | ir.Accumulate():
                self.store(s)
            case ir.Raise():
                pass  # the kernel has already run without an error
            case ir.Alias():
                self.refuse(s.line, "a part of an array is given its own name here", "index the array itself")
            case _:
                raise AssertionError(s)

    def branch(self, s: ir.If) -> None:
        self.use_expressions((s.condition,))
        self.line(f"if {self.text(s.condition)}:", s.line)
        before, sides = self.used, []
        for block, word in ((s.then, ""), (s.orelse, "else:")):
            if word and not block:
                sides.append(before)
                continue
            if word:
                self.line(word)
            self.used = Used(set(before.loads), set(before.stores), set(before.adds))
            self.inside(lambda b=block: self.statements(b))  # type: ignore[misc]
            sides.append(self.used)
        self.used = Used()
        for side in sides:
            self.used.include(side)

    def plain_loop(self, s: ir.For) -> None:
        self.use_expressions((s.start, s.stop, s.step))
        self.line(f"for {s.var.name} in {self.range(s)}:", s.line)
        self.inside(lambda: self.statements(s.body))

    def loop_body(self, body: tuple[ir.Stmt, ...], controls: tuple[ir.Expr, ...]) -> None:
        self.use_expressions(controls)
        self.statements(body)
        if not self.phase:
            self.settle()

    def common_loop(self, s: ir.For) -> None:
        """Write a loop that all threads of a block run together."""
        if self.spaces.own_loop(s):
            self.phase_units(s)
            self.line(f"{s.var.name} = {self.rank}", s.line)
            around, self.phase = self.phase, -1
            self.statements(s.body)
            self.phase = around
            return
        written = {n.array.name for n in ir.walk(s) if isinstance(n, (ir.Store, ir.Accumulate))}
        has_phase = any(isinstance(n, ir.For) and n.axis for n in ir.walk(s))
        if written - set(self.spaces.each) and not has_phase:
            self.shared_loop(s)
            return
        self.settle()
        self.use_expressions((s.start, s.stop, s.step))
        self.line(f"for {s.var.name} in {self.range(s)}:", s.line)
        self.inside(lambda: self.loop_body(s.body, ()))

    def phase_units(self, s: ir.For) -> None:
        """Emit a barrier before a loop if it needs one."""
        found = self.uses_in(s.body, -1)
        if self.used.needs_barrier(found):
            self.barrier()
        self.used.include(found)

    def shared_loop(self, s: ir.For) -> None:
        """Write a loop that stores into arrays: threads share its iterations if it fills them, else one thread runs."""
        inside = tuple(innermost(s))
        found = self.uses_in((s,), 0)
        if self.used.needs_barrier(found):
            self.barrier()
        loaded = {n.array.name for n in ir.walk(s) if isinstance(n, ir.Load)}
        fills = all(isinstance(n, ir.Store) and n.index[0] == s.var and n.array.name not in loaded for n in inside)
        if fills:
            step = f"{self.rank} + {self.text(s.start)}" if not _is(s.start, 0) else self.rank
            self.line(f"for {s.var.name} in range({step}, {self.text(s.stop)}, {self.threads}):", s.line)
            around, self.phase = self.phase, -1
            self.inside(lambda: self.statements(s.body))
            self.phase = around
        else:
            names = {n.target.name for n in ir.walk(s) if isinstance(n, ir.Assign)}
            elsewhere = self.reads_without(s)
            if names & elsewhere:
                self.refuse(s.line, "a loop that the threads of a block share changes both an array and a number",
                            "write a loop for each")  # fmt: skip
            self.line(f"if {self.rank} == 0:", s.line)
            around, self.phase = self.phase, -1
            self.inside(lambda: self.plain_loop(s))
            self.phase = around
        self.used.include(found)

    def reads_without(self, loop: ir.For) -> set[str]:
        inside = {id(n) for n in ir.walk(loop)}
        found: set[str] = set()
        for n in ir.walk(self.body):
            if isinstance(n, ir.Stmt) and id(n) not in inside and not isinstance(n, (ir.For, ir.While, ir.If)):
                value = getattr(n, "value", None)
                found |= {v.name for v in ir.walk(value) if isinstance(v, ir.Var)} if value is not None else set()
        return found

    # ------------------------------------------------------------------------------------------- loops over a launch

    def place(self, s: ir.For) -> None:
        kind, _, axis = s.axis.partition(".")
        outermost = not self.phase and kind in ("threadIdx", "grid", "stride")
        if kind in ("threadIdx", "blockIdx"):
            self.check_range(s)
        carried = [name for name, _ in s.reductions if outermost and kind == "threadIdx"]
        sums = [self.begin_sum(s, name) for name in carried]
        if outermost and kind == "threadIdx":
            self.use(self.uses_in(s.body, self.spaces.numbers[id(s)]))
        if kind != "threadIdx":
            for name, _ in s.reductions:
                self.check_sum(s, name)
        self.phase, around = (self.spaces.numbers[id(s)] if outermost else self.phase), self.phase
        if kind == "stride":
            first = "cuda.grid(1)" if _is(s.start, 0) else f"{self.text(s.start)} + cuda.grid(1)"
            if not _is(s.step, 1):
                self.refuse(s.line, "a loop over the grid whose step is not the grid's size",
                            "let its step be cuda.gridsize(1)")  # fmt: skip
            self.line(f"for {s.var.name} in range({first}, {self.text(s.stop)}, cuda.gridsize(1)):", s.line)
            self.inside(lambda: self.statements(s.body))
        elif kind == "grid":
            index = f"cuda.threadIdx.{axis} + cuda.blockIdx.{axis} * cuda.blockDim.{axis}"
            self.line(f"{s.var.name} = {index}", s.line)
            low, high = (s.start, s.stop) if not _is(s.step, -1) else (_plus(s.stop, 1), _plus(s.start, 1))
            least = "" if _is(low, 0) else f"{self.text(low)} <= "
            self.line(f"if {least}{s.var.name} < {self.text(high)}:", s.line)
            self.inside(lambda: self.statements(s.body))
        else:
            self.line(f"{s.var.name} = cuda.{s.axis}", s.line)
            self.statements(s.body)
        self.phase = around
        for name, how in zip(carried, sums):
            self.end_sum(name, how)

    def check_range(self, s: ir.For) -> None:
        """Assert that a loop runs over the whole of an axis, in either direction."""
        kind, _, axis = s.axis.partition(".")
        k = AXES.index(axis)
        forward = _is(s.start, 0) and _is(s.step, 1)
        backward = self.spaces.constant(s.stop) == -1 and _is(s.step, -1)
        if kind == "threadIdx":
            size = self.geometry.block[k]
            whole = self.spaces.constant(s.stop) == size if forward else self.spaces.constant(s.start) == size - 1
        else:
            blocks = index_algebra.Sum(0, {ir.Var(self.blocks()[k], types.int64): 1})
            total = self.spaces.total(s.stop if forward else _plus(s.start, 1))
            whole = total == blocks
        if not whole or not (forward or backward):
            raise AssertionError(s)

    # ------------------------------------------------------------------------------------------- sums of threads

    def check_sum(self, s: ir.For, name: str) -> str:
        """Return how threads combine a scalar; an error if they do not."""
        kind = combined(s.body, name)
        return self.no_sum(s, name) if kind is None else kind

    def no_sum(self, s: ir.For, name: str) -> NoReturn:
        self.refuse(
            s.line, "the result of a thread here depends on the threads before it", "let the threads compute a sum"
        )

    def begin_sum(self, s: ir.For, name: str) -> tuple[str, str, str]:
        """Begin a scalar with the contribution of one thread."""
        kind = self.check_sum(s, name)
        if kind == "or":
            return kind, "", ""
        ty = next(n.type for n in ir.walk(self.body) if isinstance(n, ir.Var) and n.name == name)
        total = self.fresh(f"{name}_total")
        self.line(f"{total} = cuda.shared.array(1, {emit.numpy_name(ty)})")
        self.kernel.shared_bytes += numpy_support.as_dtype(ty).itemsize
        self.barrier()
        self.line(f"if {self.rank} == 0:")
        self.inside(lambda: self.line(f"{total}[0] = {name}"))
        if kind == "add":
            zero = "0" if isinstance(ty, types.Integer) else f"{emit.numpy_name(ty)}(0.0)"
            self.line(f"{name} = {zero}")
        return kind, total, name

    def end_sum(self, name: str, how: tuple[str, str, str]) -> None:
        kind, total, _ = how
        if kind == "or":
            self.line(f"{name} = cuda.syncthreads_or(np.int32({name})) != 0")
            self.used = Used()
            return
        self.barrier()
        self.require_real(next(n.type for n in ir.walk(self.body) if isinstance(n, ir.Var) and n.name == name))
        self.line(f"cuda.atomic.{kind}({total}, 0, {name})")
        self.barrier()
        self.line(f"{name} = {total}[0]")
        self.used.stores.add((total, None))

    def add_total(self, name: str) -> None:
        """Add the contribution of a thread, or a block, to the sum of a launch."""
        ty = next(n.type for n in ir.walk(self.body) if isinstance(n, ir.Var) and n.name == name)
        self.kernel.sums.append(ir.Var(name, ty))

        def write() -> None:
            self.add_atomically(self.totals[name], ("0",), name, ty)

        if self.of_block():
            self.line(f"if {self.rank} == 0:")
            self.inside(write)
        else:
            write()

    def add_atomically(self, array: str, index: tuple[str, ...], value: str, ty: Any, number: int = 0) -> None:
        """Add to an element to which other threads may add; for complex numbers, to one part after the other."""
        if not isinstance(ty, types.Complex):
            self.line(f"cuda.atomic.add({array}, {_place(index)}, {value})", number)
            return
        if array in self.spaces.shared:
            self.require_real(ty)
        if array not in self.kernel.parts:
            self.kernel.parts[array] = self.fresh(f"{array}_parts")
        added = self.fresh("added")
        self.line(f"{added} = {value}", number)
        for k, part in enumerate(("real", "imag")):
            self.line(f"cuda.atomic.add({self.kernel.parts[array]}, ({', '.join([*index, str(k)])}), {added}.{part})")

    def require_real(self, ty: Any) -> None:
        """Refuse to add up complex numbers in shared memory, where their parts cannot be addressed."""
        if isinstance(ty, types.Complex):
            self.refuse(
                self.line_number,
                "a sum of complex numbers over the threads of a block, in source for a GPU: there are no atomic "
                "additions of complex numbers",
                "store real and imaginary parts in separate shared arrays",
            )

    def of_block(self) -> bool:
        return any(v.startswith("threadIdx") for v in self.spaces.axis.values())

    # ------------------------------------------------------------------------------------------- memory

    def fill(self, s: ir.Alloc) -> None:
        """Fill the elements of a new array."""
        if s.fill is None:
            return
        name, spaces = s.target.name, self.spaces
        value = self.text(s.fill)
        self.use_expressions((s.fill,))
        if name in spaces.registers and not spaces.registers[name]:
            self.line(f"{name} = {value}", s.line)
            return
        own = name in spaces.registers or name in spaces.each or (name in spaces.buffers and spaces.buffers[name][1])
        shape: list[str] = [self.text(n) for n in s.shape]
        if name in spaces.registers:
            shape = shape[1:]
        if not own:
            self.use(Used(stores={(name, None)}))
        variables = [self.fresh("k") for _ in shape]
        for k, (v, n) in enumerate(zip(variables, shape)):
            self.line(f"for {v} in range({n if own or k else f'{self.rank}, {n}, {self.threads}'}):", s.line)
            self.depth += 1
        index: list[str] = variables
        if name in spaces.buffers:
            index = [*variables, self.thread_number] if own else [self.block_number, *variables]
        self.line(f"{name}[{', '.join(index)}] = {value}", s.line)
        self.depth -= len(variables)

    def store(self, s: Any) -> None:
        name = s.array.name
        alone = not self.phase and name not in self.spaces.each
        if not self.phase:
            self.use(self.uses_in((s,), 0))
        if alone:
            self.line(f"if {self.rank} == 0:", s.line)
            self.depth += 1
        target = self.element(s.array, s.index, s.array.type.dtype)
        is_register = isinstance(target, ir.Var)
        place = target.name if is_register else f"{name}[{', '.join(map(self.text, target.index))}]"
        value = self.text(s.value)
        if isinstance(s, ir.Accumulate) and s.kind != "add":
            self.line(f"cuda.atomic.{s.kind}({name}, {_place(map(self.text, target.index))}, {value})", s.line)
            self.note(name, s.kind, s.line, place)
        elif isinstance(s, ir.Store):
            self.line(f"{place} = {value}", s.line)
            self.note(name, "own" if self.is_plain(name, self.phase) else "stored", s.line, place)
        elif self.is_plain(name, self.phase):
            self.line(f"{place} += {value}", s.line)
            self.note(name, "own", s.line, place)
        else:
            self.add_atomically(name, tuple(map(self.text, target.index)), value, s.array.type.dtype, s.line)
            self.note(name, "add", s.line, place)
        if alone:
            self.depth -= 1

    def is_plain(self, name: str, phase: int) -> bool:
        """Return whether no other thread adds to the same element at the same time."""
        spaces = self.spaces
        if name in spaces.registers or name in spaces.each or (name in spaces.buffers and spaces.buffers[name][1]):
            return True
        if name in spaces.shared or name in spaces.buffers:
            return phase <= 0 or spaces.is_own(name, phase)
        return spaces.is_own(name, None)

    def note(self, name: str, how: str, line: int, place: str) -> None:
        if name in self.arguments:
            self.kernel.stores.setdefault((name, how), {}).setdefault(line, place)

    # ------------------------------------------------------------------------------------------- barriers

    def is_common(self, name: str) -> bool:
        """Return whether threads of a block use the same elements of an array."""
        spaces = self.spaces
        own = name in spaces.buffers and spaces.buffers[name][1]
        return not (name in spaces.registers or name in spaces.each or own)

    def uses_in(self, body: Iterable[ir.Stmt], phase: int) -> Used:
        """Return how statements use memory that the threads of a block share."""
        found = Used()

        def key(array: ir.Var, index: tuple[ir.Expr, ...]) -> tuple[str, Any]:
            if phase and self.spaces.is_own(array.name, phase):
                return array.name, tuple(str(self.spaces.total(i)) for i in index)
            return array.name, None

        for n in ir.walk(tuple(body)):
            if isinstance(n, ir.Load) and self.is_common(n.array.name):
                found.loads.add(key(n.array, n.index))
            elif isinstance(n, ir.Store) and self.is_common(n.array.name):
                found.stores.add(key(n.array, n.index))
            elif isinstance(n, ir.Accumulate) and self.is_common(n.array.name):
                plain = self.is_plain(n.array.name, phase)
                (found.stores if plain else found.adds).add(key(n.array, n.index))
        return found

    def use_expressions(self, expressions: Iterable[ir.Expr]) -> None:
        if self.phase:
            return
        found = Used()
        for e in expressions:
            found.loads |= {(n.array.name, None) for n in ir.walk(e)
                            if isinstance(n, ir.Load) and self.is_common(n.array.name)}  # fmt: skip
        self.use(found)

    def use(self, found: Used) -> None:
        if self.used.needs_barrier(found):
            self.barrier()
        self.used.include(found)

    def settle(self) -> None:
        """Emit a barrier, after which no access is pending."""
        if not self.phase and self.used and self.of_block():
            self.barrier()

    def barrier(self) -> None:
        if self.of_block():
            self.line("cuda.syncthreads()")
            self.kernel.barriers += 1
        self.used = Used()

    def range(self, s: ir.For) -> str:
        bounds = (s.start, s.stop, s.step)
        if _is(s.step, 1):
            bounds = (s.stop,) if _is(s.start, 0) else (s.start, s.stop)  # type: ignore[assignment]
        return f"range({', '.join(map(self.text, bounds))})"


class _Fresh:
    def __init__(self, taken: set[str]) -> None:
        self.taken = taken | {"cuda", "math", "np", "blocks", "griddim", "stream"}

    def __call__(self, hint: str) -> str:
        name, count = hint, 0
        while name in self.taken:
            count += 1
            name = f"{hint}_{count}"
        self.taken.add(name)
        return name


def _is(e: ir.Expr, value: int) -> bool:
    return isinstance(e, ir.Const) and e.value == value and not isinstance(e.value, bool)


def _plus(e: ir.Expr, amount: int) -> ir.Expr:
    return index_algebra.tidy(ir.Op("add", (e, ir.Const(amount, types.int64)), types.int64))


def is_launch(s: ir.Stmt) -> bool:
    return isinstance(s, ir.For) and bool(s.axis)


def _is_of_launch(a: ir.Argument) -> bool:
    return a.path in OF_LAUNCH[:3]


def _place(index: Iterable[str]) -> str:
    """Return the index of an atomic operation as text."""
    items = tuple(index)
    return items[0] if len(items) == 1 else f"({', '.join(items)})"


def _shape(shape: tuple[int, ...]) -> str:
    shape = tuple(max(n, 1) for n in shape)
    return str(shape[0]) if len(shape) == 1 else str(shape)
