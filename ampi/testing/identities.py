"""Identities between derivatives of a program: the dot-product tests, and the symmetry of Hessians."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.structures import mapped
from ..derivatives.first_order import jvp, vjp
from ..derivatives.second_order import hvp
from .numbers import (
    checked,
    directions,
    displaced,
    epsilon,
    maximum,
    numbers,
    pairing,
    pairs,
    random_like,
    ranks,
    relative_size,
    ridders,
    varying,
)


@dataclasses.dataclass(frozen=True)
class DotTest:
    """Outcome of `dot_test`.

    Attributes
    ----------
    tangent : float
        ⟨ȳ, Jẋ⟩ from differences, summed over the ranks.
    adjoint : float
        ⟨x̄, ẋ⟩ from the reverse sweep (with ``mode="forward"``: ⟨ȳ, Jẋ⟩ from `ampi.jvp`), summed over the ranks.
    uncertainty : float
        Estimated error of ``tangent``.
    scale : float
        ``|ȳ| |Jẋ|``, to which differences are relative.
    tolerance : float
        Allowed relative difference.
    mode : str
        ``"reverse"`` or ``"forward"``: what was tested.

    Examples
    --------
    >>> found = ampi.testing.dot_test(lambda x: x**3, numpy.array([1.0, 2.0]))
    >>> found.difference < found.tolerance
    True
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
        """True if the differences converged well enough for a comparison."""
        return self.uncertainty <= self.tolerance * self.scale

    @property
    def passed(self) -> bool:
        """True if the two agree."""
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
        This rank's arguments: arrays, scalars, and tuples, lists and dictionaries of them.  Integers, and other objects
        without derivatives, are not changed.
    direction : tuple, optional
        ẋ, of the structure of ``x``; random by default.
    seed : int
        Seed of the random numbers, which differ from rank to rank.
    tolerance : float, optional
        Allowed relative difference; by default 1e-7 in double precision, 1e-2 in single.
    step : float, optional
        Largest step of the differences, relative to the size of ``x``.
    comm : mpi4py.MPI.Comm, optional
        The ranks that take part; by default all.  For an intercommunicator, both groups.
    check : bool
        Raise AssertionError if the test does not pass.
    mode : {"reverse", "forward"}
        What is compared with the differences: the adjoint, or the tangent from `ampi.jvp`.

    Notes
    -----
    Ẏ comes from central differences, extrapolated to step zero after Ridders (1982), "Accurate computation of F'(x) and
    F'(x)F''(x)", which also gives the uncertainty; a test whose differences do not converge fails.

    Examples
    --------
    >>> ampi.testing.dot_test(lambda x: x**3, numpy.array([1.0, 2.0])).passed
    True
    """
    with ranks(comm) as comm:
        if mode not in ("reverse", "forward"):
            raise ValueError(f"mode must be 'reverse' or 'forward', not {mode!r}")
        return _dot_test(f, x, direction, seed, tolerance, step, comm, check, mode)


@dataclasses.dataclass(frozen=True)
class JvpTest:
    """Outcome of `jvp_test`.

    Attributes
    ----------
    tangent : float
        ⟨ȳ, Jẋ⟩ from forward mode, summed over the ranks.
    adjoint : float
        ⟨x̄, ẋ⟩ from the reverse sweep, summed over the ranks.
    scale : float
        The larger of ``|ȳ| |Jẋ|`` and ``|x̄| |ẋ|``.
    tolerance : float
        Allowed relative difference.

    Examples
    --------
    >>> ampi.testing.jvp_test(np.sin, numpy.ones(3)).difference < 1e-14
    True
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
        """True if the two agree."""
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
        Seed of the random numbers, which differ from rank to rank.
    tolerance : float, optional
        Allowed relative difference; by default 1e-11 in double precision, 1e-3 in single.
    comm : mpi4py.MPI.Comm, optional
        The ranks that take part; by default all.  For an intercommunicator, both groups.
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
    with ranks(comm) as comm:
        generator = np.random.default_rng((seed, comm.Get_rank()))
        f, x, x_dot = varying(f, x, directions(x, direction, generator))
        _, y_dot = jvp(f, x, x_dot)
        y, pullback = vjp(f, *x)
        y_bar = mapped(lambda leaf: None if leaf is None else random_like(leaf, generator), y)
        x_bar = pullback(y_bar)
        y_dot = mapped(lambda leaf: 0 if leaf is None else leaf, y_dot)
        tangent, adjoint = comm.allreduce(pairing(y_bar, y_dot)), comm.allreduce(pairing(x_bar, x_dot))
        sizes = [comm.allreduce(pairing(a, a)) for a in (y_bar, y_dot, x_bar, x_dot)]
        scale = max(math.sqrt(sizes[0] * sizes[1]), math.sqrt(sizes[2] * sizes[3]))
        eps = comm.allreduce(epsilon((x, y)), op=maximum())
    tolerance = (1e-11 if eps < 1e-10 else 1e-3) if tolerance is None else tolerance
    return checked(JvpTest(tangent, adjoint, scale, tolerance), check)


@dataclasses.dataclass(frozen=True)
class SymmetryTest:
    """Outcome of `symmetry_test`.

    Attributes
    ----------
    there : float
        ⟨u, H v⟩, summed over the ranks.
    back : float
        ⟨H u, v⟩, summed over the ranks.
    scale : float
        The larger of ``|u| |H v|`` and ``|H u| |v|``.
    tolerance : float
        Allowed relative difference.

    Examples
    --------
    >>> found = ampi.testing.symmetry_test(lambda x: np.sum(x**3), numpy.array([1.0, 2.0]))
    >>> abs(found.there - found.back) <= found.tolerance * found.scale
    True
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
        """True if the two agree."""
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
        Seed of the random numbers, which differ from rank to rank.
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
    with ranks(comm) as comm:
        generator = np.random.default_rng((seed, comm.Get_rank()))
        f, x, u = varying(f, x, directions(x, None, generator))
        v = directions(x, None, generator)
        hu, hv = hvp(f, x, u, objective, comm), hvp(f, x, v, objective, comm)
        there, back = comm.allreduce(pairing(u, hv)), comm.allreduce(pairing(hu, v))
        sizes = [comm.allreduce(pairing(a, a)) for a in (u, v, hu, hv)]
        scale = max(math.sqrt(sizes[0] * sizes[3]), math.sqrt(sizes[1] * sizes[2]))
        eps = comm.allreduce(epsilon(x), op=maximum())
    tolerance = (1e-11 if eps < 1e-10 else 1e-3) if tolerance is None else tolerance
    return checked(SymmetryTest(there, back, scale, tolerance), check)


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
    f, x, x_dot = varying(f, x, directions(x, direction, generator))
    if mode == "forward":
        y, y_dot = jvp(f, x, x_dot)
        y_bar = mapped(lambda leaf: None if leaf is None else random_like(leaf, generator), y)
        adjoint = comm.allreduce(pairing(y_bar, mapped(lambda leaf: 0 if leaf is None else leaf, y_dot)))
    else:
        y, pullback = vjp(f, *x)
        y_bar = mapped(lambda leaf: None if leaf is None else random_like(leaf, generator), y)
        adjoint = comm.allreduce(pairing(pullback(y_bar), x_dot))
    eps = comm.allreduce(epsilon((x, y)), op=maximum())
    step = (0.02 if eps < 1e-10 else 0.2) if step is None else step
    h = step * relative_size(comm, x, x_dot)

    def difference(h: float) -> float:
        forward, backward = (f(*displaced(x, x_dot, s * h)) for s in (1, -1))
        return comm.allreduce((pairing(y_bar, forward) - pairing(y_bar, backward)) / (2 * h))

    tangent, uncertainty = ridders(difference, h)
    ahead = f(*displaced(x, x_dot, h / 8))
    size = comm.allreduce(sum(float(np.linalg.norm(numbers(a) - numbers(b))) ** 2 for a, b in pairs(ahead, y)))
    weight = comm.allreduce(pairing(y_bar, y_bar))
    if not weight:
        raise ValueError("dot_test: the function returned no floating-point values on any rank, so nothing is tested")
    scale = math.sqrt(size * weight) / (h / 8)
    tolerance = (1e-7 if eps < 1e-10 else 1e-2) if tolerance is None else tolerance
    return checked(DotTest(tangent, adjoint, uncertainty, scale, tolerance, mode), check)
