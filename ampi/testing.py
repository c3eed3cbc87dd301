"""Checks of derivatives for programs of your own, on any communicator: the dot-product tests and the Taylor test.

All are collective and compare numbers summed over all ranks, so that all ranks come to the same verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .derivatives import grad, jvp, value_and_grad, vjp
from .memory import carries_derivatives, is_scalar, plain, tracked_copy
from .second_order import hvp
from .structures import leaves, mapped

_RATIO = 2.0


@dataclasses.dataclass(frozen=True)
class DotTest:
    """Outcome of `dot_test`.

    Attributes
    ----------
    tangent, adjoint : float
        ⟨ȳ, Jẋ⟩ from differences, and ⟨x̄, ẋ⟩ from the reverse sweep (with ``mode="forward"``: ⟨ȳ, Jẋ⟩ from `ampi.jvp`),
        summed over the ranks.
    uncertainty : float
        Estimated error of ``tangent``.
    scale : float
        ``|ȳ| |Jẋ|``, to which differences are relative.
    tolerance : float
        Allowed relative difference.
    """

    tangent: float
    adjoint: float
    uncertainty: float
    scale: float
    tolerance: float
    mode: str = "reverse"

    @property
    def difference(self) -> float:
        """Relative difference of the two."""
        return abs(self.tangent - self.adjoint) / self.scale if self.scale else abs(self.tangent - self.adjoint)

    @property
    def conclusive(self) -> bool:
        """Whether the differences converged well enough to judge by."""
        return self.uncertainty <= self.tolerance * self.scale

    @property
    def passed(self) -> bool:
        """Whether the two agree."""
        return self.conclusive and self.difference <= self.tolerance

    @property
    def _other(self) -> str:
        if self.mode == "forward":
            return f"<y_bar, J x_dot>  {self.adjoint: .15e}   by forward mode"
        return f"<x_bar, x_dot>    {self.adjoint: .15e}   by the reverse sweep"

    def __str__(self) -> str:
        verdict = (
            "passed" if self.passed else "FAILED" if self.conclusive else "FAILED: the differences do not converge"
        )
        return (
            f"dot-product test: {verdict}\n"
            f"  <y_bar, J x_dot>  {self.tangent: .15e}   by differences, uncertain by {self.uncertainty:.1e}\n"
            f"  {self._other}\n"
            f"  relative difference {self.difference:.1e}, allowed {self.tolerance:.1e}"
        )


@dataclasses.dataclass(frozen=True)
class TaylorTest:
    """Outcome of `taylor_test`.

    Attributes
    ----------
    steps : list of float
        h, each half of the one before.
    zeroth, first : list of float
        ``|J(x + h v) − J(x)|`` and ``|J(x + h v) − J(x) − h ⟨g, v⟩|``, which must go like h and h²; with ``order=2``
        ``|g(x + h v) − g(x)|`` and ``|g(x + h v) − g(x) − h H v|``, of all ranks together.
    floor : float
        Remainders below this are rounding.
    order : {1, 2}
        Of the derivative that was looked at.
    """

    steps: list[float]
    zeroth: list[float]
    first: list[float]
    floor: float
    order: int = 1

    @property
    def orders(self) -> list[float]:
        """Observed orders of the first remainder from each step to the next; nan where it is rounding."""
        return [_order(a, b) if b > self.floor else math.nan for a, b in zip(self.first, self.first[1:])]

    @property
    def passed(self) -> bool:
        """Whether the remainder is of second order down to rounding."""
        if not all(map(math.isfinite, self.first)):
            return False
        seen = [order for order in self.orders if not math.isnan(order)]
        if not seen:
            return True
        # A remainder that has met rounding before three orders could be seen is as small as can be told.
        return min(seen[-3:]) >= 1.9

    def __str__(self) -> str:
        names = " of second order: ", "|g(x+hv)-g(x)|   order   |... - h H v|  "
        if self.order == 1:
            names = ": ", "|J(x+hv)-J(x)|   order   |... - h<g,v>| "
        lines = [
            f"Taylor test{names[0]}{'passed' if self.passed else 'FAILED'}",
            f"  h          {names[1]}  order",
        ]
        for k, h in enumerate(self.steps):
            orders = ("", "")
            if k:
                first = self.orders[k - 1]
                orders = (
                    f"{_order(self.zeroth[k - 1], self.zeroth[k]):5.2f}",
                    "rounding" if math.isnan(first) else f"{first:5.2f}",
                )
            lines.append(f"  {h:.3e}  {self.zeroth[k]:.6e}   {orders[0]:>7} {self.first[k]:.6e}   {orders[1]}")
        return "\n".join(lines)


def _order(a: float, b: float) -> float:
    return math.log(a / b) / math.log(_RATIO) if a > 0 and b > 0 else math.nan


# ------------------------------------------------------------------------------------------------------ the tests


def dot_test(
    f: Callable,
    *x: Any,
    direction: tuple | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    step: float | None = None,
    comm: Any = None,
    check: bool = True,
    mode: str = "reverse",
) -> DotTest:
    """Compare ⟨ȳ, Jẋ⟩ with ⟨x̄, ẋ⟩ for random ȳ: the adjoint of ``f`` against its finite differences.

    Collective over ``comm``.

    Parameters
    ----------
    f : callable
        ``f(*x)`` on every rank; returns arrays, scalars, tuples, lists and dictionaries of them, or None.
    *x
        This rank's arguments: arrays, scalars, and tuples, lists and dictionaries of them.  Integers and whatever else
        has no derivative stay as they are.
    direction : tuple, optional
        ẋ, of the structure of ``x``; random by default.
    seed : int
        Of the random numbers, which differ from rank to rank.
    tolerance : float, optional
        Allowed relative difference; by default 1e-7 in double precision, 1e-2 in single.
    step : float, optional
        Largest step of the differences, relative to the size of ``x``.
    comm : mpi4py.MPI.Comm, optional
        The ranks that take part; by default all.  Of an intercommunicator both groups.
    check : bool
        Raise AssertionError if the test does not pass.
    mode : {"reverse", "forward"}
        What is compared with the differences: the adjoint, or the tangent that `ampi.jvp` gives.

    Notes
    -----
    Ẏ comes from central differences, extrapolated to step zero after Ridders (1982), "Accurate computation of F'(x) and
    F'(x)F''(x)", which also gives the uncertainty; a test whose differences do not converge fails.

    Examples
    --------
    >>> ampi.testing.dot_test(lambda x: x**3, numpy.array([1.0, 2.0])).passed
    True
    """
    with _ranks(comm) as comm:
        if mode not in ("reverse", "forward"):
            raise ValueError(f"mode must be 'reverse' or 'forward', not {mode!r}")
        return _dot_test(f, x, direction, seed, tolerance, step, comm, check, mode)


@dataclasses.dataclass(frozen=True)
class JvpTest:
    """Outcome of `jvp_test`.

    Attributes
    ----------
    tangent, adjoint : float
        ⟨ȳ, Jẋ⟩ from forward mode and ⟨x̄, ẋ⟩ from the reverse sweep, summed over the ranks.
    scale : float
        The larger one of ``|ȳ| |Jẋ|`` and ``|x̄| |ẋ|``.
    tolerance : float
        Allowed relative difference.
    """

    tangent: float
    adjoint: float
    scale: float
    tolerance: float

    @property
    def difference(self) -> float:
        """Relative difference of the two."""
        return abs(self.tangent - self.adjoint) / self.scale if self.scale else abs(self.tangent - self.adjoint)

    @property
    def passed(self) -> bool:
        """Whether the two agree."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        return (
            f"forward and reverse mode: {'passed' if self.passed else 'FAILED'}\n"
            f"  <y_bar, J x_dot>  {self.tangent: .15e}   by forward mode\n"
            f"  <x_bar, x_dot>    {self.adjoint: .15e}   by the reverse sweep\n"
            f"  relative difference {self.difference:.1e}, allowed {self.tolerance:.1e}"
        )


def jvp_test(
    f: Callable,
    *x: Any,
    direction: tuple | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    comm: Any = None,
    check: bool = True,
) -> JvpTest:
    """Compare ⟨ȳ, Jẋ⟩ from `ampi.jvp` with ⟨x̄, ẋ⟩ from `ampi.vjp`, which are the same to rounding.

    Collective over ``comm``.

    Parameters
    ----------
    f : callable
        ``f(*x)`` on every rank, as for `dot_test`.
    *x
        This rank's arguments.
    direction : tuple, optional
        ẋ, of the structure of ``x``; random by default.
    seed : int
        Of the random numbers, which differ from rank to rank.
    tolerance : float, optional
        Allowed relative difference; by default 1e-11 in double precision, 1e-3 in single.
    comm : mpi4py.MPI.Comm, optional
        The ranks that take part; by default all.  Of an intercommunicator both groups.
    check : bool
        Raise AssertionError if the test does not pass.

    Raises
    ------
    ActivityError
        Forward mode does not cover an operation of ``f``.

    Examples
    --------
    >>> ampi.testing.jvp_test(lambda x: x**3, numpy.array([1.0, 2.0])).passed
    True
    """
    with _ranks(comm) as comm:
        generator = np.random.default_rng((seed, comm.Get_rank()))
        f, x, x_dot = _varying(f, x, _directions(x, direction, generator))
        _, y_dot = jvp(f, x, x_dot)
        y, pullback = vjp(f, *x)
        y_bar = mapped(lambda leaf: None if leaf is None else _random_like(leaf, generator), y)
        x_bar = pullback(y_bar)
        y_dot = mapped(lambda leaf: 0 if leaf is None else leaf, y_dot)
        tangent, adjoint = comm.allreduce(_pairing(y_bar, y_dot)), comm.allreduce(_pairing(x_bar, x_dot))
        sizes = [comm.allreduce(_pairing(a, a)) for a in (y_bar, y_dot, x_bar, x_dot)]
        scale = max(math.sqrt(sizes[0] * sizes[1]), math.sqrt(sizes[2] * sizes[3]))
        eps = comm.allreduce(_epsilon((x, y)), op=_max())
    tolerance = (1e-11 if eps < 1e-10 else 1e-3) if tolerance is None else tolerance
    return _judged(JvpTest(tangent, adjoint, scale, tolerance), check)


@dataclasses.dataclass(frozen=True)
class SymmetryTest:
    """Outcome of `symmetry_test`.

    Attributes
    ----------
    there, back : float
        ⟨u, H v⟩ and ⟨H u, v⟩, summed over the ranks.
    scale : float
        The larger one of ``|u| |H v|`` and ``|H u| |v|``.
    tolerance : float
        Allowed relative difference.
    """

    there: float
    back: float
    scale: float
    tolerance: float

    @property
    def difference(self) -> float:
        """Relative difference of the two."""
        return abs(self.there - self.back) / self.scale if self.scale else abs(self.there - self.back)

    @property
    def passed(self) -> bool:
        """Whether the two agree."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        return (
            f"symmetry of the Hessian: {'passed' if self.passed else 'FAILED'}\n"
            f"  <u, H v>  {self.there: .15e}\n"
            f"  <H u, v>  {self.back: .15e}\n"
            f"  relative difference {self.difference:.1e}, allowed {self.tolerance:.1e}"
        )


def symmetry_test(
    f: Callable,
    *x: Any,
    objective: str = "sum",
    seed: int = 0,
    tolerance: float | None = None,
    comm: Any = None,
    check: bool = True,
) -> SymmetryTest:
    """Compare ⟨u, H v⟩ with ⟨H u, v⟩ from `ampi.hvp` for random u and v, which are the same to rounding.

    Collective over ``comm``.

    Parameters
    ----------
    f : callable
        ``f(*x)`` on every rank; returns a real scalar, as for `ampi.grad`.
    *x
        This rank's arguments.
    objective : {"sum", "replicated", "root"}
        What is differentiated, as for `ampi.grad`.
    seed : int
        Of the random numbers, which differ from rank to rank.
    tolerance : float, optional
        Allowed relative difference; by default 1e-11 in double precision, 1e-3 in single.
    comm : mpi4py.MPI.Comm, optional
        The ranks that take part; by default all.
    check : bool
        Raise AssertionError if the test does not pass.

    Raises
    ------
    ActivityError
        An operation of ``f`` has no second derivative yet.

    Examples
    --------
    >>> import numpy as np
    >>> import ampi
    >>> ampi.testing.symmetry_test(lambda x: (x**3).sum() ** 2, np.array([1.0, 2.0])).passed
    True
    """
    with _ranks(comm) as comm:
        generator = np.random.default_rng((seed, comm.Get_rank()))
        f, x, u = _varying(f, x, _directions(x, None, generator))
        v = _directions(x, None, generator)
        hu, hv = hvp(f, x, u, objective, comm), hvp(f, x, v, objective, comm)
        there, back = comm.allreduce(_pairing(u, hv)), comm.allreduce(_pairing(hu, v))
        sizes = [comm.allreduce(_pairing(a, a)) for a in (u, v, hu, hv)]
        scale = max(math.sqrt(sizes[0] * sizes[3]), math.sqrt(sizes[1] * sizes[2]))
        eps = comm.allreduce(_epsilon(x), op=_max())
    tolerance = (1e-11 if eps < 1e-10 else 1e-3) if tolerance is None else tolerance
    return _judged(SymmetryTest(there, back, scale, tolerance), check)


def _dot_test(
    f: Callable,
    x: tuple,
    direction: tuple | None,
    seed: int,
    tolerance: float | None,
    step: float | None,
    comm: Any,
    check: bool,
    mode: str,
) -> DotTest:
    generator = np.random.default_rng((seed, comm.Get_rank()))
    f, x, x_dot = _varying(f, x, _directions(x, direction, generator))
    if mode == "forward":
        y, y_dot = jvp(f, x, x_dot)
        y_bar = mapped(lambda leaf: None if leaf is None else _random_like(leaf, generator), y)
        adjoint = comm.allreduce(_pairing(y_bar, mapped(lambda leaf: 0 if leaf is None else leaf, y_dot)))
    else:
        y, pullback = vjp(f, *x)
        y_bar = mapped(lambda leaf: None if leaf is None else _random_like(leaf, generator), y)
        adjoint = comm.allreduce(_pairing(pullback(y_bar), x_dot))
    eps = comm.allreduce(_epsilon((x, y)), op=_max())
    step = (0.02 if eps < 1e-10 else 0.2) if step is None else step
    h = step * _relative_size(comm, x, x_dot)

    def difference(h: float) -> float:
        forward, backward = (f(*_moved(x, x_dot, s * h)) for s in (1, -1))
        return comm.allreduce((_pairing(y_bar, forward) - _pairing(y_bar, backward)) / (2 * h))

    tangent, uncertainty = _ridders(difference, h)
    ahead = f(*_moved(x, x_dot, h / 8))
    size = comm.allreduce(sum(float(np.linalg.norm(_numbers(a) - _numbers(b))) ** 2 for a, b in _pairs(ahead, y)))
    weight = comm.allreduce(_pairing(y_bar, y_bar))
    if not weight:
        raise ValueError("dot_test: the function returned no floating-point values on any rank, so nothing is tested")
    scale = math.sqrt(size * weight) / (h / 8)
    tolerance = (1e-7 if eps < 1e-10 else 1e-2) if tolerance is None else tolerance
    return _judged(DotTest(tangent, adjoint, uncertainty, scale, tolerance, mode), check)


def taylor_test(
    f: Callable,
    *x: Any,
    direction: tuple | None = None,
    objective: str = "sum",
    seed: int = 0,
    step: float | None = None,
    steps: int = 12,
    comm: Any = None,
    check: bool = True,
    verbose: bool = True,
    order: int = 1,
) -> TaylorTest:
    """Check that J(x + h v) − J(x) − h ⟨g, v⟩ goes like h², with g from `ampi.grad`; or g(x + h v) − g(x) − h H v.

    Collective over ``comm``.

    Parameters
    ----------
    f : callable
        ``f(*x)`` on every rank; returns a real scalar, as for `ampi.grad`.
    *x
        This rank's arguments.
    direction : tuple, optional
        v, of the structure of ``x``; random by default.
    objective : {"sum", "replicated", "root"}
        What J is, as for `ampi.grad`.
    seed : int
        Of the random numbers, which differ from rank to rank.
    step : float, optional
        Largest h, relative to the size of ``x``; by default 1e-2 in double precision, 0.2 in single.
    steps : int
        Number of halvings of h.
    comm : mpi4py.MPI.Comm, optional
        The ranks that take part; by default all.  Of an intercommunicator both groups.
    check : bool
        Raise AssertionError if the test does not pass.
    verbose : bool
        Print the table on rank 0.
    order : {1, 2}
        Whether the gradient is compared with differences of ``f``, or H v from `ampi.hvp` with differences of
        gradients: the norm over all ranks' arguments.

    Raises
    ------
    ActivityError
        With ``order=2``: an operation of ``f`` has no second derivative yet.

    Examples
    --------
    >>> ampi.testing.taylor_test(lambda x: (x**3).sum(), numpy.array([1.0, 2.0]), verbose=False).passed
    True
    >>> ampi.testing.taylor_test(lambda x: (x**3).sum(), numpy.array([1.0, 2.0]), verbose=False, order=2).passed
    True
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, not {order!r}")
    with _ranks(comm) as comm:
        generator = np.random.default_rng((seed, comm.Get_rank()))
        f, x, v = _varying(f, x, _directions(x, direction, generator))
        eps = comm.allreduce(_epsilon(x), op=_max())
        largest = (1e-2 if eps < 1e-10 else 0.2) if step is None else step
        hs = [largest * _relative_size(comm, x, v) / _RATIO**k for k in range(steps + 1)]
        test = _taylor_test if order == 1 else _taylor_test_of_gradients
        result = test(f, x, v, objective, hs, eps, comm)
        if verbose and comm.Get_rank() == 0:
            print(result, flush=True)
    return _judged(result, check)


def _taylor_test(f: Callable, x: tuple, v: tuple, objective: str, hs: list[float], eps: float, comm: Any) -> TaylorTest:
    mine, gradient = value_and_grad(f, tuple(range(len(x))), objective, comm)(*x)
    slope = comm.allreduce(_pairing(gradient, v))
    start = _objective(comm, mine, objective)
    values = [_objective(comm, f(*_moved(x, v, h)), objective) for h in hs]
    zeroth = [abs(value - start) for value in values]
    first = [abs(value - start - h * slope) for value, h in zip(values, hs)]
    return TaylorTest(hs, zeroth, first, 200 * eps * max(abs(start), *map(abs, values)))


def _taylor_test_of_gradients(
    f: Callable, x: tuple, v: tuple, objective: str, hs: list[float], eps: float, comm: Any
) -> TaylorTest:
    gradient = grad(f, tuple(range(len(x))), objective, comm)
    norm = lambda parts: math.sqrt(comm.allreduce(sum(_pairing(part, part) for part in parts)))
    start, product = gradient(*x), hvp(f, x, v, objective, comm)
    zeroth, first, sizes = [], [], [norm(start)]
    for h in hs:
        there = gradient(*_moved(x, v, h))
        zeroth.append(norm([_numbers(a) - _numbers(b) for a, b in zip(there, start)]))
        first.append(norm([_numbers(a) - _numbers(b) - h * _numbers(c) for a, b, c in zip(there, start, product)]))
        sizes.append(norm(there))
    return TaylorTest(hs, zeroth, first, 200 * eps * max(sizes), 2)


def _judged(result: Any, check: bool) -> Any:
    if check and not result.passed:
        raise AssertionError(str(result))
    return result


# ------------------------------------------------------------------------------------------------------- numbers


@contextlib.contextmanager
def _ranks(comm: Any) -> Iterator[Any]:
    """The communicator of the ranks that take part: of an intercommunicator both groups."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD if comm is None else comm
    if not comm.Is_inter():
        yield comm
        return
    both = comm.Merge()
    try:
        yield both
    finally:
        both.Free()


def _max() -> Any:
    from mpi4py import MPI

    return MPI.MAX


def _numbers(x: Any) -> np.ndarray:
    return plain(np.asarray(x))


def _varying(f: Callable, x: tuple, x_dot: Any) -> tuple[Callable, tuple, tuple]:
    """The function of its floating-point arguments alone, these, and their directions; the others are held fixed."""
    moving = [_varies(leaf) for leaf in leaves(x)]

    def function(*values: Any) -> Any:
        given, moves = iter(values), iter(moving)
        return f(*mapped(lambda leaf: next(given) if next(moves) else leaf, x))

    chosen = [[leaf for leaf, moves in zip(leaves(part), moving) if moves] for part in (x, x_dot)]
    return function, tuple(chosen[0]), tuple(chosen[1])


def _varies(x: Any) -> bool:
    return x is not None and carries_derivatives(_numbers(x).dtype)


def _pairs(a: Any, b: Any) -> list:
    return [(p, q) for p, q in zip(leaves(a), leaves(b)) if _varies(p) and _varies(q)]


def _pairing(a: Any, b: Any) -> float:
    """Real inner product of two structures of arrays."""
    return sum(float(np.real(np.vdot(_numbers(p), _numbers(q)))) for p, q in _pairs(a, b))


def _random_like(x: Any, generator: np.random.Generator) -> Any:
    x = _numbers(x)
    if not carries_derivatives(x.dtype):
        return np.zeros(x.shape)
    draw = generator.standard_normal(x.shape)
    if x.dtype.kind == "c":
        draw = draw + 1j * generator.standard_normal(x.shape)
    return np.asarray(draw, x.dtype)


def _directions(x: tuple, direction: tuple | None, generator: np.random.Generator) -> Any:
    if direction is None:
        return mapped(lambda leaf: None if leaf is None else _random_like(leaf, generator), x)
    given, wanted = list(leaves(direction)), list(leaves(x))
    if [np.shape(leaf) for leaf in given] != [np.shape(leaf) for leaf in wanted]:
        raise ValueError("direction must be a tuple with the structure and the shapes of the arguments")
    return direction


def _moved(x: tuple, x_dot: Any, h: float) -> tuple:
    """Fresh arrays at x + h ẋ."""
    ahead = iter(list(leaves(x_dot)))

    def move(leaf: Any) -> Any:
        d = next(ahead)
        if not _varies(leaf):
            return leaf
        here = _numbers(leaf)
        moved = np.asarray(here + h * _numbers(d), here.dtype)
        return tracked_copy(moved[()] if is_scalar(leaf) or not isinstance(leaf, np.ndarray) else moved)

    return mapped(move, x)


def _epsilon(x: Any) -> float:
    found = [np.finfo(_numbers(leaf).dtype).eps for leaf in leaves(x) if _varies(leaf)]
    return float(max(found, default=np.finfo(float).eps))


def _relative_size(comm: Any, x: tuple, x_dot: Any) -> float:
    """|x| / |ẋ| over all ranks; 1 / |ẋ| where x is zero."""
    size, speed = comm.allreduce(_pairing(x, x)), comm.allreduce(_pairing(x_dot, x_dot))
    return math.sqrt((size or 1.0) / (speed or 1.0))


def _objective(comm: Any, y: Any, objective: str) -> float:
    mine = 0.0 if y is None else float(_numbers(y).reshape(()))
    if objective == "sum":
        return comm.allreduce(mine)
    return comm.bcast(mine, root=0)


def _ridders(difference: Callable[[float], float], h: float, rows: int = 8) -> tuple[float, float]:
    """Derivative by central differences extrapolated to step zero, and its uncertainty."""
    previous = [difference(h)]
    best, uncertainty = previous[0], math.inf
    for k in range(1, rows):
        row = [difference(h / _RATIO**k)]
        for m in range(1, k + 1):
            factor = _RATIO ** (2 * m)
            row.append((factor * row[m - 1] - previous[m - 1]) / (factor - 1))
            error = max(abs(row[m] - row[m - 1]), abs(row[m] - previous[m - 1]))
            if error <= uncertainty:
                best, uncertainty = row[m], error
        previous = row
    return best, uncertainty
