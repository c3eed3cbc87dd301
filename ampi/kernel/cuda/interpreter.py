"""Interpretation of CUDA kernels thread by thread, in plain Python: the reference for the lowered form.

It finds errors whose effect on a GPU is a matter of chance: races between two barriers, barriers that not all threads
of a block reach, and elements of shared arrays that are read before they have a value.  Each thread is a generator of
its function, with barriers and warp operations as ``yield``.
"""

from __future__ import annotations

import ast
import copy
import itertools
import math
import random
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import numpy as np
from numba import types
from numba.np import numpy_support

from ampi.errors import KernelError
from ampi.kernel.cuda.memory_model import Access, Memory, Watched, shown
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.cuda_names import MODULE, NAMES, WARP, Axes, Intrinsic, Place, stand_in
from ampi.kernel.frontend.base.source import Source, read_source
from ampi.kernel.frontend.language.invocations import kernel_function

WAITING = frozenset("syncthreads syncthreads_count syncthreads_and syncthreads_or".split())
OF_WARPS = frozenset(
    "syncwarp shfl_sync shfl_up_sync shfl_down_sync shfl_xor_sync all_sync any_sync eq_sync ballot_sync".split()
)
ATOMICS = frozenset(vars(NAMES["atomic"]).values())
Place3 = tuple[int, int, int]


def interpret(
    function: Any, grid: Place3, block: Place3, shared: int, args: tuple[Any, ...], seed: int | None = None
) -> None:
    """Run a launch with these arguments; arrays are modified.

    Parameters
    ----------
    function : callable
        The kernel's Python function.
    grid, block : tuple of three int
    shared : int
        Bytes of dynamic shared memory.
    args : tuple
        All arguments by position; arrays are NumPy's.
    seed : int, optional
        For the order in which threads run between barriers; by default that of their ranks.

    Raises
    ------
    KernelError
        A race, a divergent barrier, or a value that is read before it is assigned.
    """
    _Launch(function, grid, block, shared, seed).run(args)


class _Thread:
    """One thread: its position, and the barrier or operation for which it waits."""

    def __init__(self, place: Place3, rank: int) -> None:
        self.place, self.rank = place, rank
        self.warp, self.lane = divmod(rank, WARP)
        self.code: Generator[Any, Any, Any] = iter(())  # type: ignore[assignment]
        self.warp_barriers = 0
        self.answer: Any = None
        self.waits: tuple[Any, ...] | None = None
        self.ended: str | None = None  # "returned" or "ended"


class _Launch:
    def __init__(self, function: Any, grid: Place3, block: Place3, shared: int, seed: int | None) -> None:
        self.source: Source = read_source(function)
        self.grid, self.block, self.shared_bytes = grid, block, shared
        self.order = None if seed is None else random.Random(seed)
        self.converted: dict[Any, Any] = {}
        self.sites = itertools.count()
        self.namespace = _Namespace(self)
        self.function = self.convert(function)
        self.here: Place3 = (0, 0, 0)
        self.barriers = 0
        self.thread = _Thread((0, 0, 0), 0)
        self.shared: dict[Any, Watched] = {}
        self.undefined: list[tuple[Memory, int, Access]] = []  # elements without a value, read since the last barrier

    def run(self, args: tuple[Any, ...]) -> None:
        names = list(self.source.definition.args.args)
        known: dict[int, Memory] = {}
        given = []
        for name, a in zip(names, args):
            if isinstance(a, np.ndarray):
                memory = known.setdefault(id(a), Memory(name.arg, a, True, self))
                given.append(Watched.of(memory))
            else:
                given.append(a)
        for z, y, x in np.ndindex(*self.grid[::-1]):
            self.here = (x, y, z)
            self.run_block(given)

    def run_block(self, given: list[Any]) -> None:
        self.shared, self.barriers = {}, 0
        threads = []
        for rank, (z, y, x) in enumerate(np.ndindex(*self.block[::-1])):
            thread = _Thread((x, y, z), rank)
            thread.code = self.function(*given)
            threads.append(thread)
        if self.order is not None:
            self.order.shuffle(threads)
        while True:
            for thread in threads:
                if thread.ended is None and thread.waits is None:
                    self.resume(thread)
            if self.release_warps(threads):
                continue
            for memory, position, now in self.undefined:  # no race has been found meanwhile
                memory.refuse_undefined(position, now)
            if not self.release_block(threads):
                return

    def resume(self, thread: _Thread) -> None:
        self.thread = thread
        try:
            thread.waits = thread.code.send(thread.answer)
            thread.answer = None
        except StopIteration as end:
            thread.ended = "ended" if end.value is None else "returned"

    # ------------------------------------------------------------------------------------------- waiting

    def release_warps(self, threads: list[_Thread]) -> bool:
        """Answer the warp operations at which threads wait."""
        groups: dict[Any, list[_Thread]] = {}
        for t in threads:
            if t.waits is not None and t.waits[0] in OF_WARPS:
                groups.setdefault((t.warp, *t.waits[:2]), []).append(t)
        for (_, name, _), group in groups.items():
            answers = [warp_answer(name, t, group) for t in group]
            for t, answer in zip(group, answers):
                t.answer, t.waits = answer, None
                t.warp_barriers += 1
        return bool(groups)

    def release_block(self, threads: list[_Thread]) -> bool:
        waiting = [t for t in threads if t.waits is not None]
        if not waiting:
            return False
        first = waiting[0]
        assert first.waits is not None
        name, line = first.waits[:2]
        for t in threads:
            if t.waits is not None and t.waits[:2] != (name, line):
                other = f"thread {shown(t.place)} waits in line {t.waits[1]}"
            elif t.waits is None and t.ended == "ended":
                other = f"thread {shown(t.place)} has reached the end of the kernel"
            else:
                continue
            text = f"not all threads of block {shown(self.here)} reach this barrier: "
            text += f"thread {shown(first.place)} waits, {other}"
            raise self.source.error(line, text, "let all threads of the block reach it")
        votes = [bool(t.waits[2]) for t in waiting] if name != "syncthreads" else []  # type: ignore[index]
        answer = {f"syncthreads_{kind}": int(of(votes)) for kind, of in (("count", sum), ("and", all), ("or", any))}
        for t in waiting:
            t.answer, t.waits = answer.get(name), None
        self.barriers += 1
        return True

    # ------------------------------------------------------------------------------------------- for the memory model

    def access(self, line: int, atomic: bool = False) -> Access:
        t = self.thread
        return Access(self.here, t.place, t.warp, self.barriers, t.warp_barriers, line, atomic)

    def report(self, now: Access, text: str, advice: str) -> NoReturn:
        raise self.source.error(now.line, text, advice)

    # ------------------------------------------------------------------------------------------- code

    def convert(self, function: Any) -> Any:
        """Return a function as a generator, with barriers as ``yield``."""
        if function.__code__ in self.converted:
            return self.converted[function.__code__]
        source = read_source(function)
        definition = copy.deepcopy(source.definition)
        definition.decorator_list = []
        known = outside.free_names(function)
        space = {name: self.seen(value) for name, value in known.items()}
        name = definition.name
        shell: Any = lambda *args: (yield from space[name](*args))
        self.converted[function.__code__] = shell
        change = _Conversion(
            self, known, space, function is not None and not self.converted.keys() - {function.__code__}
        )
        definition.body = [change.visit(s) for s in definition.body]
        definition.body.insert(0, ast.parse("if False: yield").body[0])
        module = ast.Module([definition], [])
        ast.fix_missing_locations(module)
        exec(compile(module, source.filename, "exec"), space)
        self.converted[function.__code__] = space[name]
        return space[name]

    def seen(self, value: Any) -> Any:
        """Return the object that a global name has while the launch is interpreted."""
        mark = stand_in(value)
        if mark is MODULE:
            return self.namespace
        if isinstance(mark, Place):
            return _LazyPlace(self, mark.name)
        if isinstance(mark, Axes):
            return getattr(self.namespace, mark.name)
        if isinstance(mark, Intrinsic):
            return self.namespace.function(mark.name)
        for space in ("shared", "local", "const", "atomic"):
            if mark is getattr(MODULE, space):
                return getattr(self.namespace, space)
        return value


class _LazyPlace:
    """An index of the thread that was imported by its own name."""

    def __init__(self, launch: _Launch, name: str) -> None:
        self.launch, self.name = launch, name

    def __index__(self) -> int:
        return self.launch.thread.lane

    __int__ = __index__


class _Conversion(ast.NodeTransformer):
    """Conversion of calls that wait to ``yield``, and of calls of device functions to ``yield from``."""

    def __init__(self, launch: _Launch, known: dict[str, Any], space: dict[str, Any], is_kernel: bool) -> None:
        self.launch, self.known, self.space, self.is_kernel = launch, known, space, is_kernel
        self.target = ""

    def meant(self, node: ast.expr) -> Any:
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        value = stand_in(self.known.get(node.id))
        for name in reversed(path):
            value = stand_in(getattr(value, name, None))
        return value

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if self.is_kernel:
            node.value = ast.Constant(True)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.target = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
        self.generic_visit(node)
        self.target = ""
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        meant = self.meant(node.func)
        named = self.target
        self.generic_visit(node)
        if isinstance(meant, Intrinsic):
            if meant.name in WAITING | OF_WARPS:
                given = [k.value for k in node.keywords]
                items = [ast.Constant(meant.name), ast.Constant(node.lineno), *node.args, *given]
                return ast.copy_location(ast.Yield(ast.Tuple(items, ast.Load())), node)
            if meant.name in ("shared.array", "local.array"):
                node.keywords += [ast.keyword("site", ast.Constant((next(self.launch.sites), node.lineno, named)))]
            elif meant in ATOMICS:
                node.keywords += [ast.keyword("line", ast.Constant(node.lineno))]
            return node
        function = kernel_function(meant) if not isinstance(meant, (type, types.Type)) else None
        if function is None:
            return node
        name = f"__device_{len(self.space)}"
        self.space[name] = self.launch.convert(function)
        node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
        return ast.copy_location(ast.YieldFrom(node), node)


def warp_answer(name: str, t: _Thread, group: list[_Thread]) -> Any:
    """Return the result of a warp operation in one of its threads."""
    assert t.waits is not None
    by_lane = {other.lane: other.waits[2:] for other in group}  # type: ignore[index]
    if name == "syncwarp":
        return None
    if name.startswith("shfl"):
        _, value, lane = t.waits[2:]
        source = {
            "shfl_sync": lambda: int(lane) % WARP,
            "shfl_up_sync": lambda: t.lane - int(lane),
            "shfl_down_sync": lambda: t.lane + int(lane),
            "shfl_xor_sync": lambda: t.lane ^ int(lane),
        }[name]()
        return by_lane[source][1] if source in by_lane else value
    mask = int(t.waits[2])
    votes = {lane: bool(given[1]) for lane, given in by_lane.items() if mask >> lane & 1}
    answers = {
        "all_sync": lambda: all(votes.values()),
        "any_sync": lambda: any(votes.values()),
        "eq_sync": lambda: len(set(votes.values())) <= 1,
        "ballot_sync": lambda: sum(1 << lane for lane, yes in votes.items() if yes),
    }
    return answers[name]()


def _of_bits(name: str) -> Callable[[Any], int]:
    """Return a function of ``cuda`` that counts or reverses bits."""

    def function(x: Any) -> int:
        width = 32 if getattr(x, "itemsize", 8) <= 4 else 64
        bits = format(int(x) & ((1 << width) - 1), f"0{width}b")
        ends = {"clz": bits, "ffs": bits[::-1]}
        if name == "popc":
            return bits.count("1")
        if name == "brev":
            return int(bits[::-1], 2)
        place = ends[name].find("1")
        return (width if place < 0 else place) if name == "clz" else place + 1

    return function


class _Axes:
    def __init__(self, read: Any) -> None:
        self.read = read

    x = property(lambda self: self.read()[0])
    y = property(lambda self: self.read()[1])
    z = property(lambda self: self.read()[2])


class _Functions:
    """Functions of a part of ``cuda``."""

    def __init__(self, **functions: Any) -> None:
        vars(self).update(functions)


class _Namespace:
    """``cuda`` in an interpreted launch."""

    warpsize = WARP

    def __init__(self, launch: _Launch) -> None:
        self.launch = launch
        self.threadIdx = _Axes(lambda: launch.thread.place)
        self.blockIdx = _Axes(lambda: launch.here)
        self.blockDim = _Axes(lambda: launch.block)
        self.gridDim = _Axes(lambda: launch.grid)
        self.shared, self.local = _Functions(array=self.shared_array), _Functions(array=self.local_array)
        self.const = _Functions(array_like=lambda ary: ary)
        two = {
            "add": lambda old, new: old + new,
            "sub": lambda old, new: old - new,
            "max": max,
            "min": min,
            "nanmax": np.fmax,
            "nanmin": np.fmin,
            "exch": lambda old, new: new,
            "and_": lambda old, new: old & new,
            "or_": lambda old, new: old | new,
            "xor": lambda old, new: old ^ new,
            "inc": lambda old, new: old + 1 if old < new else 0,
            "dec": lambda old, new: new if old == 0 or old > new else old - 1,
        }
        self.atomic = _Functions(
            **{name: self.changing(change) for name, change in two.items()},
            cas=lambda ary, idx, old, val, line: ary.update(idx, lambda v: val if v == old else v, line),
            compare_and_swap=lambda ary, old, val, line: ary.update(0, lambda v: val if v == old else v, line),
        )

    laneid = property(lambda self: self.launch.thread.lane)

    @staticmethod
    def changing(change: Any) -> Any:
        return lambda ary, idx, val, line: ary.update(idx, lambda old: change(old, val), line)

    def function(self, name: str) -> Any:
        """Return a function that was imported by its own name."""
        value: Any = self
        for part in name.split("."):
            value = getattr(value, part, None)
        return value

    def grid(self, ndim: int) -> Any:
        launch = self.launch
        found = tuple(b * n + t for b, n, t in zip(launch.here, launch.block, launch.thread.place))
        return found[0] if ndim == 1 else found[:ndim]

    def gridsize(self, ndim: int) -> Any:
        found = tuple(g * n for g, n in zip(self.launch.grid, self.launch.block))
        return found[0] if ndim == 1 else found[:ndim]

    def new(self, shape: Any, dtype: Any, site: Any, private: bool) -> Watched:
        _, line, name = site
        found = numpy_support.as_dtype(dtype) if isinstance(dtype, types.Type) else np.dtype(dtype)
        data = np.full(shape, np.nan if found.kind in "fc" else 0, found)
        return Watched.of(Memory(name or f"the array of line {line}", data, False, self.launch, private))

    def shared_array(self, shape: Any, dtype: Any, site: Any) -> Watched:
        if site[0] not in self.launch.shared:
            if shape == 0 or shape == (0,):
                found = numpy_support.as_dtype(dtype) if isinstance(dtype, types.Type) else np.dtype(dtype)
                shape = self.launch.shared_bytes // found.itemsize
            self.launch.shared[site[0]] = self.new(shape, dtype, site, False)
        return self.launch.shared[site[0]]

    def local_array(self, shape: Any, dtype: Any, site: Any) -> Watched:
        return self.new(shape, dtype, site, True)

    def threadfence(self) -> None:
        pass

    threadfence_block = threadfence_system = threadfence

    @staticmethod
    def fma(a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    @staticmethod
    def selp(a: Any, b: Any, c: Any) -> Any:
        return b if a else c

    @staticmethod
    def rsqrt(x: Any) -> Any:
        return 1 / math.sqrt(x)

    cbrt = staticmethod(np.cbrt)
    random = _Functions()  # launches with structured arrays are not interpreted
    popc, brev, clz, ffs = (staticmethod(_of_bits(name)) for name in ("popc", "brev", "clz", "ffs"))

    def __getattr__(self, name: str) -> Any:
        raise KernelError(f"the interpreter of CUDA kernels does not know cuda.{name}")
