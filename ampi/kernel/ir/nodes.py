"""The intermediate representation of a kernel: small, structured, typed, immutable.

A kernel's Python source is parsed into this form, every pass takes and gives this form, and ``emit`` writes it out as
Python source in Numba's subset again.  Nodes are frozen dataclasses; a pass builds new nodes with
``dataclasses.replace``.

Conventions that hold after parsing

* Calls of other kernels are inlined; tuples and named tuples are taken apart into one variable per leaf.  What remains
  are scalars, arrays and the statements below.
* The types are Numba's (``numba.types``); every expression carries its own in ``type``.
* An array is always named by a ``Var``; ``Load`` and ``Store`` touch a single element.  Array arguments keep the same
  memory for the whole call; a local array gets its memory from ``Alloc``; ``Alias`` names a part of another array.
* ``Accumulate`` is ``a[i] += v`` and friends kept whole, so that a linear increment is seen as one.
* An argument is never assigned, and a name of an array stands for one array: it has one ``Alloc`` or ``Alias`` (or, in
  a loop, one per iteration).  A ``For``'s variable is assigned by the loop alone and not read after it.
* A scalar's ``Assign`` converts with an explicit ``cast``; ``Store`` and ``Accumulate`` convert to the array's type as
  Numba does.  A ``Const`` whose type is not that of its Python literal (``float32``) is written with its constructor.
* ``and``, ``or`` and ``select`` evaluate only what they need.
* ``View``, ``Elementwise`` and ``Agree`` stand for operations on parts of arrays and on whole arrays.  They are
  statements of the parsed form only: ``views`` and ``expand`` write them as loops.
* After ``lower`` there is no ``Break``, ``Continue`` or early ``Return``: one ``Return`` ends the function body.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from ctypes import c_float
from dataclasses import dataclass, field, fields
from typing import Any

# --------------------------------------------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Expr:
    """Base of all expressions; ``type`` is a ``numba.types.Type``."""


@dataclass(frozen=True)
class Const(Expr):
    """A literal, or a global or closure constant: bool, int, float or complex; rounded to its type."""

    value: Any
    type: Any

    def __post_init__(self) -> None:
        match str(self.type):
            case "float32":
                value: Any = c_float(self.value).value
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
    """Base of all statements; ``line`` is the 1-based line in ``Function.filename`` it came from (0: none)."""

    line: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Assign(Stmt):
    """``target = value`` for a scalar."""

    target: Var
    value: Expr


@dataclass(frozen=True)
class Store(Stmt):
    """``array[index] = value`` for one element."""

    array: Var
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class Accumulate(Stmt):
    """``array[index] += value`` for one element (``op`` is ``add``; ``a[i] -= v`` is parsed as ``add`` of ``neg v``;
    other augmented assignments are parsed as a ``Store`` of an ``Op`` on a ``Load``).  ``atomic``: other threads may
    add to the same element at the same time; only made by the derivative passes."""

    array: Var
    index: tuple[Expr, ...]
    value: Expr
    atomic: bool = False


@dataclass(frozen=True)
class Alloc(Stmt):
    """``target = np.empty/zeros/ones/full(shape, dtype)``; ``fill`` is None (empty), a scalar expression, or an array
    of the same shape (a ``Var``) whose elements are copied.  ``scratch``: it is small, of one dimension and a constant
    size, filled with zeros, and nobody has it when the program has ended: only made by passes, for buffers of loops."""

    target: Var
    shape: tuple[Expr, ...]
    fill: Expr | None
    scratch: bool = False


@dataclass(frozen=True)
class Grow(Stmt):
    """Make the one-dimensional local array ``target`` at least ``size`` long, by doubling, keeping its elements:
    for what is saved in loops whose length is not known before, for frames of recursive functions, and for lists.  Its
    size is another one before and after, and not what it was allocated with: nothing but statements like this and
    allocations of arrays that end as long as it does may ask for it."""

    target: Var
    size: Expr


@dataclass(frozen=True)
class Fill(Stmt):
    """``target[:] = function(*arguments)`` for an operation on whole arrays (``matrices`` has the table).

    The target is a local array, allocated in the same block, that nothing else writes; nothing writes the arguments
    after it, in other iterations either.
    """

    target: Var
    function: str
    arguments: tuple[Var, ...]


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
    """Two sizes are the same: an operation on whole arrays relies on it, or what ``problem`` says.

    With ``into``, elements go from the second into the first, which does not stretch.
    """

    first: Expr
    second: Expr
    problem: str = ""
    into: bool = False


@dataclass(frozen=True)
class For(Stmt):
    """``for var in range(start, stop, step)``; ``parallel`` means ``prange``: the iterations are independent, except
    for the scalars in ``reductions`` (``name -> 'add' | 'mul' | 'min' | 'max'``), and whole arrays if it
    ``reduces_arrays``.  ``whole``: it is an operation on whole arrays."""

    var: Var
    start: Expr
    stop: Expr
    step: Expr
    body: tuple[Stmt, ...]
    parallel: bool = False
    reductions: tuple[tuple[str, str], ...] = ()
    whole: bool = False
    reduces_arrays: bool = False


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
    """``body``, whose derivatives are not those of its statements but its author's: ``rule``.

    ``arguments`` are the leaves of the call's arguments; ``results`` are numbers and arrays that the body computes, the
    former assigned to ``outputs`` (an array stands for itself there).  ``residuals`` are what the adjoint takes besides
    the adjoints of the results.
    """

    body: tuple[Stmt, ...]
    arguments: tuple[Expr, ...]
    results: tuple[Expr, ...]
    outputs: tuple[Var, ...]
    residuals: tuple[Expr, ...]
    rule: Any


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
    """``raise E("...")`` or a failed ``assert``; kept as source text, constants only.  A derivative program leaves it
    out, since the kernel itself has run without it, unless the exception is ``own``: of derivative programs alone.
    Unless ``exact``, the kernel raises another class, or with other arguments: it is run besides a tangent program."""

    text: str
    own: bool = False
    exact: bool = True


@dataclass(frozen=True)
class Reduced:
    """A scalar that the parts of a loop compute together; ``init`` is what it is before the loop.

    ``operation`` says what is made of the results of the parts: ``"add"`` (the parts begin with zero), ``"min"``,
    ``"max"``, or ``"place"``: the iteration from which the extreme comes that is number ``of`` among the scalars of the
    loop, of equal ones the first (``last``: the last).
    """

    var: Var
    init: Expr
    operation: str
    of: int = -1
    last: bool = False


@dataclass(frozen=True)
class Reach:
    """The elements that an iteration touches along one axis of an array in which iterations meet.

    They are those which ``index`` names, in its rows from ``first`` to ``last`` after the number of the iteration, and
    if ``own`` those from ``low`` to ``high`` after that number.
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
    where that is quicker: only made by ``parallel``, which says what the forms are.

    ``reduced`` are the scalars that the parts compute together, in the order in which a part returns them.  ``shared``
    are the arrays in whose elements parts may meet, which excludes threads (unless ``added``: they are only added to
    there) except if all of ``distinct`` are true (if there are any), or if parts that are ``distance`` iterations apart
    do not meet (if it is not zero).  ``reaches`` tell for arrays in ``shared`` how far apart iterations are that meet
    (if there are any).  ``atomic`` is the part with atomic increments of ``shared``.  ``work`` is about
    how many operations an iteration has and ``increments`` how many of them add to ``shared``.  ``count`` is the number
    of parts (None: that of threads).  ``temporaries`` are the names which the emitted text needs.
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
    """An argument: one leaf of the user's, of which ``path`` says where it was (``("state", "x")`` for ``state.x``), or
    one that a derivative program takes besides: ``role`` says as what (``"shadow"``, ``"seed"``, …) and of what."""

    name: str
    type: Any
    path: tuple[Any, ...] = ()
    role: tuple[str, Any] | None = None

    @property
    def shown(self) -> str:
        """What the user calls it."""
        return ".".join(map(str, self.path))

    def is_a(self, role: str) -> bool:
        return self.role is not None and self.role[0] == role


@dataclass(frozen=True)
class Drawn:
    """The array of the random numbers that a call draws, and how many there are so far."""

    array: Var
    place: Var


@dataclass(frozen=True)
class Function:
    """A kernel for one signature.  ``result`` says how the values of ``Return`` are put together for the caller
    (None, ``"scalar"``, ``"array"``, or ``("tuple", named tuple class or None, (structure, ...))``).  ``constants`` are
    global arrays and tables which the body reads: a ``Var`` of that name is the array; nothing writes it.
    ``agreeing`` are sizes that have to be equal, in terms of the arguments.  ``drawn`` says where the random numbers of
    each type go (see ``random_draws``), and ``generators`` are the random generators among the arguments."""

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

    def where(self, line: int) -> str:
        """A place in the kernel, as errors begin."""
        return f"{self.filename}:{line}: in kernel '{self.name}'"


# --------------------------------------------------------------------------------------------------- walking


@functools.cache
def places(node: type) -> tuple[str, ...]:
    """The fields of a kind of node which may hold expressions and statements."""
    return tuple(f.name for f in fields(node) if f.name not in ("name", "type", "line"))


def children(node: Any) -> tuple[Any, ...]:
    """The expressions and statements directly inside a node, in order of evaluation."""
    known = node.__dict__
    found = known.get("_children")
    if found is None:
        found = known["_children"] = tuple(_children(node))  # it does not change
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
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(reversed(node))
        elif isinstance(node, Expr):
            yield from _within(node)
        else:
            yield node
            waiting.extend(reversed(children(node)))


def _within(value: Any) -> tuple[Any, ...]:
    """An expression and all that are inside of it."""
    if isinstance(value, (Var, Const)):
        return (value,)
    known = value.__dict__
    found = known.get("_within")
    if found is None:
        found = known["_within"] = (value, *(n for child in children(value) for n in _within(child)))
    return found
