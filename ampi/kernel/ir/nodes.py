"""The intermediate representation of a kernel: small, structured, typed, immutable.

A kernel's Python source is parsed into this form, passes map it to itself or to and from the form of ``ssa``, and
``emit`` writes it as Python source in Numba's subset.  Nodes are frozen dataclasses; a pass builds new nodes with
``dataclasses.replace``.

Conventions that hold after parsing

* Calls of other kernels are inlined; tuples and named tuples are taken apart into one variable per leaf.  What remains
  are scalars, arrays and the statements below.
* The types are Numba's (``numba.types``); every expression carries its own in ``type``.
* An array is always named by a ``Var``; ``Load`` and ``Store`` touch a single element.  Array arguments keep the same
  memory for the whole call; a local array gets its memory from ``Alloc``; ``Alias`` names a part of another array.
* ``Accumulate`` is ``a[i] += v`` or ``a[i] -= v`` as one statement, so that analyses see a linear increment.
* An argument is never assigned.  After ``array_phi``, a name of an array stands for one array: it has one ``Alloc`` or
  ``Alias`` (or, in a loop, one per iteration).  Only the loop assigns a ``For``'s variable, which is not read after it.
* A scalar's ``Assign`` converts with an explicit ``cast``; ``Store`` and ``Accumulate`` convert to the array's type as
  Numba does.  A ``Const`` whose type is not that of its Python literal (``float32``) is written with its constructor.
* ``and``, ``or`` and ``select`` evaluate only what they need.
* ``View``, ``Elementwise`` and ``Agree`` stand for operations on parts of arrays and on whole arrays.  They are
  statements of the parsed form only: ``views`` and ``expand`` write them as loops.
* After ``lower`` there is no ``Break``, ``Continue`` or early ``Return``: one ``Return`` ends the function body.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from ctypes import c_float
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, TypeVar

N = TypeVar("N")
S = TypeVar("S", bound="Stmt")

# --------------------------------------------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Expr:
    """Base of all expressions; ``type`` is a ``numba.types.Type``."""


_RANGES = {f"uint{n}": (0, 2**n) for n in (8, 16, 32, 64)} | {
    f"int{n}": (-(2 ** (n - 1)), 2**n) for n in (8, 16, 32, 64)
}
"""The lowest value of each type of integers, and the number of its values."""


@dataclass(frozen=True)
class Const(Expr):
    """A literal, or a global or closure constant: bool, int, float or complex; rounded to its type.

    Integers wrap around, as they do in compiled code.
    """

    value: Any
    type: Any

    def __post_init__(self) -> None:
        match name := str(self.type):
            case "int64" | "int32" | "int16" | "int8" | "uint64" | "uint32" | "uint16" | "uint8":
                lowest, count = _RANGES[name]
                if not isinstance(self.value, int) or lowest <= self.value < lowest + count:
                    return
                value: Any = (self.value - lowest) % count + lowest
            case "float32":
                value = c_float(self.value).value
            case "complex64":
                z = complex(self.value)
                value = complex(c_float(z.real).value, c_float(z.imag).value)
            case _:
                return
        object.__setattr__(self, "value", value)


@dataclass(frozen=True)
class Var(Expr):
    """A local variable or an argument, scalar or array."""

    name: str
    type: Any


@dataclass(frozen=True)
class Op(Expr):
    """A scalar operation named in the intrinsics table.

    ``name`` is the table's key: ``add sub mul truediv floordiv mod pow neg pos``, ``lt le gt ge eq ne``, ``and or not``
    (short-circuiting), ``bitand bitor xor invert lshift rshift``, ``select`` (condition, if true, if false), ``cast``
    (to ``type``), and functions: ``sqrt cbrt exp log sin … min max abs sign hypot atan2 fmod erf``.
    """

    name: str
    args: tuple[Expr, ...]
    type: Any


@dataclass(frozen=True)
class Load(Expr):
    """One element of an array: as many indices as the array has dimensions."""

    array: Var
    index: tuple[Expr, ...]
    type: Any


@dataclass(frozen=True)
class Size(Expr):
    """``array.shape[axis]``."""

    array: Var
    axis: int
    type: Any


# ---------------------------------------------------------------------------------------------------- statements


@dataclass(frozen=True)
class Stmt:
    """Base of all statements; ``line`` is the 1-based line in ``Function.filename`` from which it comes (0: none)."""

    line: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Assign(Stmt):
    """``target = value`` for a scalar."""

    target: Var
    value: Expr


@dataclass(frozen=True)
class Store(Stmt):
    """``array[index] = value`` for one element.  ``atomic``: ``value`` is computed from that element, and no other
    thread may change it in between (only in the threads' form of a CUDA kernel)."""

    array: Var
    index: tuple[Expr, ...]
    value: Expr
    atomic: bool = False


@dataclass(frozen=True)
class Accumulate(Stmt):
    """``array[index] += value`` for one element (``op`` is ``add``; ``a[i] -= v`` is parsed as ``add`` of ``neg v``;
    other augmented assignments are parsed as a ``Store`` of an ``Op`` on a ``Load``).  ``atomic``: other threads may
    add to the same element at the same time; derivative passes and CUDA kernels make these.  ``kind`` ``max`` or
    ``min``: the element becomes the larger or smaller of both (only in source for a GPU, and not differentiated)."""

    array: Var
    index: tuple[Expr, ...]
    value: Expr
    atomic: bool = False
    kind: str = "add"


@dataclass(frozen=True)
class Alloc(Stmt):
    """``target = np.empty/zeros/ones/full(shape, dtype)``; ``fill`` is None (empty), a scalar expression, or an array
    of the same shape (a ``Var``) whose elements are copied.  ``scratch``: a buffer of a loop, made by passes only:
    small, of one dimension and constant size, filled with zeros, and not returned.
    ``shared``: one array for all threads of a block (only in the threads' form of a CUDA kernel)."""

    target: Var
    shape: tuple[Expr, ...]
    fill: Expr | None
    scratch: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Grow(Stmt):
    """Make the one-dimensional local array ``target`` at least ``size`` long, by doubling, keeping its elements.

    Used for values saved in loops of unknown length, for frames of recursive functions, and for lists.  The size of the
    array changes, so that only such statements, and allocations of arrays that end with the same size, may read it.
    """

    target: Var
    size: Expr


@dataclass(frozen=True)
class Fill(Stmt):
    """``target[:] = function(*arguments)`` for an operation on whole arrays (``matrices`` has the table).

    The target is a local array, allocated in the same block, that no other statement writes; none writes the arguments
    afterwards, not even in other iterations.  One that ``raises`` the kernel's exceptions, of singular matrices, is no
    dead code.
    """

    target: Var
    function: str
    arguments: tuple[Var, ...]
    raises: bool = False


@dataclass(frozen=True)
class Alias(Stmt):
    """``target = array[index]`` with fewer indices than dimensions (leading ones): a view, no copy.
    With an empty index, ``target`` is another name of the array."""

    target: Var
    array: Var
    index: tuple[Expr, ...]


@dataclass(frozen=True)
class View(Stmt):
    """``target`` names a part of an array, or the same elements in another order: ``target[axes]`` is
    ``array[index]``.  ``axes`` are variables of this statement, each from zero up to its size in ``shape``."""

    target: Var
    array: Var
    axes: tuple[Var, ...]
    shape: tuple[Expr, ...]
    index: tuple[Expr, ...]


@dataclass(frozen=True)
class Elementwise(Stmt):
    """``array[index] = value`` for all ``axes``, each from zero up to its size in ``shape``, the last one fastest.

    ``accumulate`` adds to the elements instead.  With ``snapshot`` all values are computed before any is stored.
    """

    array: Var
    axes: tuple[Var, ...]
    shape: tuple[Expr, ...]
    index: tuple[Expr, ...]
    value: Expr
    accumulate: bool = False
    snapshot: bool = True


@dataclass(frozen=True)
class Agree(Stmt):
    """A check that two sizes are equal, for an operation on whole arrays; otherwise the error ``problem``.

    With ``into``, elements are copied from the second to the first, which is not broadcast.
    """

    first: Expr
    second: Expr
    problem: str = ""
    into: bool = False


@dataclass(frozen=True)
class For(Stmt):
    """``for var in range(start, stop, step)``; ``parallel`` means ``prange``: the iterations are independent, except
    for the scalars in ``reductions`` (``name -> 'add' | 'mul' | 'min' | 'max'``), and whole arrays if it
    ``reduces_arrays``.  ``whole``: it is an operation on whole arrays.  ``axis``: the CUDA index that it runs over:
    ``"threadIdx.x"``, ``"blockIdx.y"``, ``"grid.z"`` (threads of the grid), ``"stride.x"`` (a grid-stride loop).  It
    stays a loop; after single assignment form, the scalars that it carries are ``"carried"`` in ``reductions``."""

    var: Var
    start: Expr
    stop: Expr
    step: Expr
    body: tuple[Stmt, ...]
    parallel: bool = False
    reductions: tuple[tuple[str, str], ...] = ()
    whole: bool = False
    reduces_arrays: bool = False
    axis: str = ""


@dataclass(frozen=True)
class While(Stmt):
    condition: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class If(Stmt):
    condition: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class Custom(Stmt):
    """``body`` with custom derivatives: those of ``rule``, not those of its statements.

    ``arguments`` are the leaves of the call's arguments; ``results`` are numbers and arrays that the body computes, the
    former assigned to ``outputs`` (an array stands for itself there).  The adjoint takes ``residuals`` and the adjoints
    of the results.
    """

    body: tuple[Stmt, ...]
    arguments: tuple[Expr, ...]
    results: tuple[Expr, ...]
    outputs: tuple[Var, ...]
    residuals: tuple[Expr, ...]
    rule: Any


@dataclass(frozen=True)
class Barrier(Stmt):
    """Threads of a CUDA kernel wait for one another: all of a block (``sync``), or those of a warp (``warp``).

    Only in the threads' form of a CUDA kernel (see ``ampi.kernel.cuda``).  With a ``target``, that becomes the number
    of threads whose ``value`` is true (``count``), or True if it is for all of them (``and``) or for one (``or``).
    """

    kind: str = "sync"
    value: Expr | None = None
    target: Var | None = None


@dataclass(frozen=True)
class Break(Stmt):
    pass


@dataclass(frozen=True)
class Continue(Stmt):
    pass


@dataclass(frozen=True)
class Return(Stmt):
    """The kernel's results, scalars or arrays (a local array or an argument), one per leaf; empty for None."""

    values: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Raise(Stmt):
    """``raise E("...")`` or a failed ``assert``, as source text with constants only.

    Derivative programs omit it, since the kernel itself has run without it, unless the exception is ``own``: raised by
    derivative programs only.  Unless ``exact``, the kernel's own exception has another class or other arguments, and
    the kernel is run in addition to a tangent program.  It is ``implied`` by an operation, rather than written in the
    program.
    """

    text: str
    own: bool = False
    exact: bool = True
    implied: bool = False


@dataclass(frozen=True)
class Reduced:
    """A scalar that the parts of a loop compute together; ``init`` is its value before the loop.

    ``operation`` combines the results of the parts: ``"add"`` (the parts begin with zero), ``"min"``, ``"max"``, or
    ``"place"``: the iteration from which an extreme comes, which is scalar number ``of`` of the loop.  Of equal
    extremes it is the first one (``last``: the last).
    """

    var: Var
    init: Expr
    operation: str
    of: int = -1
    last: bool = False


@dataclass(frozen=True)
class Reach:
    """The elements that an iteration touches along one axis of an array shared with other iterations.

    They are the entries of ``index`` in the rows ``first`` to ``last``, relative to the number of the iteration, and,
    if ``own``, the elements from ``low`` to ``high``, relative to it as well.
    """

    index: Var
    first: int
    last: int
    own: bool
    low: int
    high: int


@dataclass(frozen=True)
class Launch(Stmt):
    """Cut ``range(start, stop)`` into parts and call ``part(begin, end, *arguments)`` for each, on several threads
    where that is faster.  Only the pass ``parallel`` makes these; see there for the forms.

    ``reduced`` are the scalars that the parts compute together, in the order in which a part returns them.  Several
    parts may touch elements of the arrays ``shared``, which excludes threads (unless ``added``: they only add to them),
    except if all of ``distinct`` are true (if there are any), or if parts at least ``distance`` iterations apart touch
    different elements (if it is not zero).  ``reaches`` has, for arrays in ``shared``, the elements that iterations
    touch, if known.  ``atomic`` is the part with atomic increments of ``shared``.  ``work`` is the approximate number
    of operations in an iteration, and ``increments`` the number of those that add to ``shared``.  ``count`` is the
    number of parts (None: one per thread).  ``temporaries`` are names for the emitted text.
    """

    part: Function
    start: Expr
    stop: Expr
    arguments: tuple[Expr, ...]
    reduced: tuple[Reduced, ...]
    shared: tuple[Var, ...]
    added: bool
    distinct: tuple[Expr, ...]
    distance: int
    reaches: tuple[Reach, ...]
    atomic: Function | None
    work: int
    increments: int
    count: int | None
    temporaries: dict[str, Var]


@dataclass(frozen=True)
class Argument:
    """An argument: a leaf of a user's argument, found at ``path`` (``("state", "x")`` for ``state.x``), or a further
    argument of a derivative program, with a ``role`` (``"shadow"``, ``"seed"``, …, and of what)."""

    name: str
    type: Any
    path: tuple[Any, ...] = ()
    role: tuple[str, Any] | None = None

    @property
    def shown(self) -> str:
        """The user's name for it."""
        return ".".join(map(str, self.path))

    def is_a(self, role: str) -> bool:
        return self.role is not None and self.role[0] == role


@dataclass(frozen=True)
class Drawn:
    """The array of the random numbers that a call draws, and the variable that counts them."""

    array: Var
    place: Var


@dataclass(frozen=True)
class Function:
    """A kernel for one signature.

    ``result`` is the structure of the result that the values of ``Return`` form (None, ``"scalar"``, ``"array"``, or
    ``("tuple", named tuple class or None, (structure, ...))``).  ``constants`` are global arrays and tables that the
    body only reads: a ``Var`` of that name is the array.  ``agreeing`` are sizes that have to be equal, in terms of the
    arguments.  ``drawn`` has the arrays for the random numbers of each type (see ``random_draws``), and ``generators``
    are the random generators among the arguments.  A function ``has_effects`` that
    derivative programs leave out: it prints, or may raise exceptions for which the IR has no `Raise`.
    """

    name: str
    arguments: tuple[Argument, ...]
    body: tuple[Stmt, ...]
    filename: str = ""
    first_line: int = 1
    result: Any = None
    constants: tuple[tuple[str, Any], ...] = ()
    agreeing: tuple[Agree, ...] = ()
    drawn: tuple[Drawn, ...] = ()
    generators: tuple[Argument, ...] = ()
    has_effects: bool = False

    def where(self, line: int) -> str:
        """The file, line and name of the kernel, for the beginning of an error message."""
        return f"{self.filename}:{line}: in kernel '{self.name}'"


# --------------------------------------------------------------------------------------------------- walking


@functools.cache
def places(node: type) -> tuple[str, ...]:
    """The names of the fields of a node class that may hold expressions and statements."""
    return tuple(f.name for f in fields(node) if f.name not in ("name", "type", "line"))


def children(node: Any) -> tuple[Any, ...]:
    """The expressions and statements directly inside a node, in order of evaluation."""
    known = node.__dict__
    found = known.get("_children")
    if found is None:
        found = known["_children"] = tuple(_children(node))  # nodes do not change
    return found


def _children(node: Any) -> Iterator[Any]:
    for name in places(type(node)):
        value = getattr(node, name)
        if isinstance(value, (Expr, Stmt)):
            yield value
        elif isinstance(value, tuple):
            for v in value:
                if isinstance(v, (Expr, Stmt)):
                    yield v
                elif isinstance(v, tuple):
                    yield from (e for e in v if isinstance(e, Expr))


def walk(node: Any) -> Iterator[Any]:
    """A node and everything inside it (a tuple of statements works too), parents first."""
    return chain.from_iterable(map(walk, node)) if isinstance(node, tuple) else iter(_within(node))


def _within(node: Any) -> tuple[Any, ...]:
    """A node and everything inside it."""
    if isinstance(node, (Var, Const)):
        return (node,)
    known = node.__dict__
    found = known.get("_within")
    if found is None:
        found = known["_within"] = (node, *chain.from_iterable(map(_within, children(node))))
    return found


def in_blocks(s: S, change: Callable[[tuple[Stmt, ...]], tuple[Stmt, ...]]) -> S:
    """A statement with a function applied to each block inside it; the statement itself if none of them changes."""
    made = {}
    for name in block_fields(type(s)):
        block = getattr(s, name)
        new = change(block)
        if len(new) != len(block) or any(map(operator.is_not, new, block)):
            made[name] = new
    return changed(s, **made) if made else s


@functools.cache
def block_fields(statement: type) -> tuple[str, ...]:
    """The names of a statement's fields that hold blocks of statements, in the order in which they run."""
    return tuple(f.name for f in fields(statement) if f.name in ("then", "orelse", "body"))


def changed(node: N, **values: Any) -> N:
    """A statement with other values of some fields; as `dataclasses.replace`, which takes four times as long."""
    made = object.__new__(type(node))
    known, given = made.__dict__, node.__dict__
    for name in _fields(type(node)):
        known[name] = given[name]
    known.update(values)
    return made


@functools.cache
def _fields(node: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(node))
