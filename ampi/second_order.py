"""Second derivatives of functions: `hvp` and `hessian`, forward over reverse."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .activity import is_active, plain_of
from .array import value
from .derivatives import (
    OBJECTIVES,
    frames_of_ampi,
    has_tangent,
    leaves_of,
    map_leaves,
    ranks_of,
    seed_of,
    with_arrays,
    with_tangents,
)
from .errors import ActivityError, ActivityWarning, TapeError
from .memory import TrackedArray, tracked_copy
from .recording import restored
from .tape import SecondTape, second_order


class Products:
    """What one run of a function gives.

    Attributes
    ----------
    value
        What the function returned on this rank.
    value_dot
        Its tangent.
    gradient, product : tuple
        The gradient and H v, in the structure of the arguments; None for what cannot be differentiated.
    """

    def __init__(self, value: Any, value_dot: Any, gradient: tuple, product: tuple) -> None:
        self.value = value
        self.value_dot = value_dot
        self.gradient = gradient
        self.product = product


def products(f: Callable, primals: tuple, v: tuple, objective: str, comm: Any) -> Products:
    """Run a function of these arguments once, and sweep over it once."""
    comm = ranks_of(comm)
    with restored(), SecondTape() as tape:
        arguments = _watched(tape, with_arrays(primals), v)
        leaves = [x for x in leaves_of(arguments) if isinstance(x, TrackedArray) and tape.is_active(x)]
        error: BaseException | None = None
        try:
            y = f(*arguments)
        except BaseException as problem:
            error = problem
            tape.refuse(problem)  # others may be about to sweep
            raise
        finally:
            tape.finish(error)
        try:
            seed = seed_of(y, objective, comm)
        except Exception as problem:
            tape.refuse(problem)
            raise
        outputs = [] if seed is None else [y]
        if outputs and not tape.is_active(y):
            outputs = []
            if seed:
                warnings.warn(
                    "what the function returned depends on nothing that was differentiated, so its derivatives are "
                    "zero; was it computed from ampi.value(x), integers or other arrays?",
                    ActivityWarning,
                    stacklevel=frames_of_ampi() + 1,
                )
        y_dot = map_leaves(lambda leaf: tape.tangent_at(leaf)[()] if has_tangent(leaf) else None, y)
        gradient, product = second_order(tape, outputs, leaves, [seed] * len(outputs))
    found = {id(x): k for k, x in enumerate(leaves)}

    def of(some: list) -> tuple:
        return map_leaves(lambda x: some[found[id(x)]][()] if id(x) in found else None, arguments)

    result = Products(value(y), y_dot, of(gradient), of(product))
    tape.dismantle()
    return result


def _watched(tape: SecondTape, primals: tuple, v: tuple) -> tuple:
    """Watched copies of the leaves of arguments, with tangents."""

    def watch(x: Any, x_dot: Any) -> Any:
        if not has_tangent(x):
            return x
        array = tape.watch(plain_of(x))
        if x_dot is not None:
            tape.start(array, x_dot)
        return array

    return with_tangents(tape, primals, v, "primals", "ampi.hvp", watch)


def hvp(f: Callable, primals: Any, v: Any, objective: str = "sum", comm: Any = None) -> Any:
    """The Hessian of a function times a vector (forward over reverse).

    Collective over the ranks that communicate inside ``f``: all of them call it, each with its own part of the
    arguments and of the vector, and get their own part of the product.  The function runs once, and its gradient is
    swept once; both carry tangents along.

    Parameters
    ----------
    f : callable
        Function of arrays, scalars, and tuples, lists and dictionaries of them, that returns a real scalar (as for
        `grad`).
    primals : tuple
        Its arguments; they are not modified (``f`` works on copies).  What is no tuple is the only one.
    v : tuple
        The vector, of the structure and shapes of ``primals``; None for zeros, as for integers.
    objective : {"sum", "replicated", "root"}
        What is differentiated, as for `value_and_grad`.
    comm : mpi4py.MPI.Comm, optional
        The ranks that call together, for ``"replicated"`` and ``"root"``; by default `ampi.COMM_WORLD`.

    Returns
    -------
    H v
        In the structure of ``primals``, of its shapes and dtypes: Σ over ranks ∂²F/∂x∂x' v'.  None for what cannot be
        differentiated.  For complex arguments: the derivative of the gradient in the direction v, in the real inner
        product Re⟨x̄, ẋ⟩.

    Raises
    ------
    ActivityError
        An operation has no second derivative yet (the message names it and the line), or no tangent.
    CommunicationError
        The ranks disagree about a message, a rank stopped with an error, or made no progress in time.
    TapeError
        The vector does not fit, ``f`` did not return one real number, or an argument carries derivatives on a tape that
        records.

    Warns
    -----
    ActivityWarning
        What ``f`` returned depends on none of the arguments.

    Examples
    --------
    >>> import numpy as np
    >>> import ampi
    >>> ampi.hvp(lambda x: (x**3).sum(), np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([  6., 120.])
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(map(repr, OBJECTIVES))}, not {objective!r}")
    if not isinstance(primals, tuple):
        return products(f, (primals,), (v,), objective, comm).product[0]
    if not isinstance(v, tuple):
        raise TapeError(f"ampi.hvp: primals is a tuple of {len(primals)}, and v is a {type(v).__name__}")
    return products(f, primals, v, objective, comm).product


def hessian(f: Callable, x: Any, objective: str = "sum", comm: Any = None, *, pattern: Any = None) -> Any:
    """The Hessian of a function, row by row on the ranks that have them: of few parameters, or sparse.

    Collective over ``comm``: all ranks call it with their own parameters, which may be none (an array of size zero).
    The function runs once for each parameter of all ranks, with `hvp`; with a pattern, once for each group of
    parameters that have no row in common, and once more.

    Parameters
    ----------
    f : callable
        Function of one array (or number) that returns a real scalar, as for `grad`.
    x : array_like of float
        This rank's parameters, n_r of them, of any shape.
    objective : {"sum", "replicated", "root"}
        What is differentiated, as for `value_and_grad`.
    comm : mpi4py.MPI.Comm, optional
        The ranks that call together; by default `ampi.COMM_WORLD`.
    pattern : sparse array of SciPy's, optional
        Where this rank's block of rows has entries that may not be zero; of its shape, as for `jacfwd`.

    Returns
    -------
    numpy.ndarray, or scipy.sparse.csr_array if there is a pattern
        This rank's block of rows: shape (n_r, Σ n_s).  A row belongs to each of this rank's parameters, and a column to
        each of all ranks', those of rank 0 first; in C order.

    Raises
    ------
    ActivityError
        ``x`` is no array of real floating-point numbers, or an operation has no second derivative yet.
    CommunicationError, TapeError
        As for `hvp`; TapeError on all ranks if the pattern has another shape, or leaves out an entry that is not zero.

    Examples
    --------
    >>> import numpy as np
    >>> import ampi
    >>> ampi.hessian(lambda x: x[0] ** 2 * x[1], np.array([1.0, 2.0]), comm=ampi.COMM_SELF)
    array([[4., 2.],
           [2., 0.]])
    """
    here = np.array(plain_of(x))
    if here.dtype.kind != "f":
        raise ActivityError(f"ampi.hessian: x is of dtype {here.dtype}; pass real floating-point numbers")
    everywhere = ranks_of(comm)
    if pattern is not None:
        from .jacobians import sparse_hessian

        return sparse_hessian(lambda v: hvp(f, (x,), (v,), objective, comm)[0], here, pattern, everywhere)
    sizes = everywhere.allgather(here.size)
    columns = []
    for rank, size in enumerate(sizes):
        for k in range(size):
            unit = np.zeros_like(here, order="C")
            if rank == everywhere.Get_rank():
                unit.reshape(-1)[k] = 1
            columns.append(np.reshape(hvp(f, (x,), (unit,), objective, comm)[0], -1))
    return np.stack(columns, axis=1) if columns else np.zeros((0, 0), here.dtype)


def of_forward_mode(
    f: Callable,
    numbers: tuple[int, ...],
    arguments: tuple,
    keywords: dict,
    objective: str,
    comm: Any,
    outer: Any,
) -> tuple[Any, tuple]:
    """`value_and_grad` inside of `jvp`: value and gradient with their tangents on the outer tape."""

    def is_moving(leaf: Any) -> bool:
        return isinstance(leaf, np.ndarray) and is_active(outer, leaf)

    chosen = [k for k, x in enumerate(arguments) if k in numbers or any(map(is_moving, leaves_of(x)))]

    def function(*moving: Any) -> Any:
        given = list(arguments)
        for k, x in zip(chosen, moving):
            given[k] = x
        return f(*given, **keywords)

    def copied(leaf: Any) -> Any:
        return np.array(plain_of(leaf))[()] if isinstance(leaf, np.ndarray) else leaf

    primals = tuple(map_leaves(copied, with_arrays(arguments[k])) for k in chosen)
    v = tuple(
        map_leaves(lambda leaf: outer.tangent_at(leaf) if is_moving(leaf) else None, with_arrays(arguments[k]))
        for k in chosen
    )
    found = products(function, primals, v, objective, comm)

    def on_outer(x: Any, x_dot: Any) -> Any:
        if x_dot is None:
            return x
        made = tracked_copy(x)
        outer.start(made, x_dot)
        return made

    gradient = []
    for k in numbers:
        dots = iter(leaves_of(found.product[chosen.index(k)]))
        gradient.append(map_leaves(lambda leaf, dots=dots: on_outer(leaf, next(dots)), found.gradient[chosen.index(k)]))
    dots = iter(leaves_of(found.value_dot))
    return map_leaves(lambda leaf: on_outer(leaf, next(dots, None)), found.value), tuple(gradient)
