"""Second derivatives of functions: `hvp`, forward over reverse."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..arrays.activity import is_active, plain_of
from ..arrays.array import value
from ..base.program_lines import warning_level
from ..errors import ActivityWarning, TapeError
from ..memory.layouts import laid_out_copy
from ..memory.storages import TrackedArray, tracked_copy
from ..tape import Push, SecondTape, VectorPush, second_order
from ..tape.recording import restored
from .arguments import (
    has_tangent,
    leaves_of,
    map_leaves,
    number_of_directions,
    on_host,
    require_on_host,
    with_arrays,
    with_tangents,
)
from .objectives import ranks_of, require_objective, warn_of_replicated, weight_of


class Products:
    """The results of one run of a function in second order.

    Attributes
    ----------
    value
        What the function returned on this rank.
    value_dot
        Its tangent.
    gradient, product : tuple
        The gradient and H v, in the structure of the arguments; None for what cannot be differentiated.
    nbytes : int
        The most bytes that tangents took, if there are several directions.
    """

    def __init__(self, value: Any, value_dot: Any, gradient: tuple, product: tuple, nbytes: int) -> None:
        self.value = value
        self.value_dot = value_dot
        self.gradient = gradient
        self.product = product
        self.nbytes = nbytes


def products(f: Callable, primals: tuple, v: tuple, objective: str, comm: Any, count: int | None = None) -> Products:
    """Run a function once and sweep over it once, in ``count`` directions (None: without an axis for them)."""
    comm = ranks_of(comm)
    make: Callable = Push if count is None else partial(VectorPush, count=count)
    with restored(), SecondTape(make) as tape:
        arguments = _watched(tape, with_arrays(primals), v, () if count is None else (count,))
        leaves = [x for x in leaves_of(arguments) if isinstance(x, TrackedArray) and tape.is_active(x)]
        error: BaseException | None = None
        try:
            y = on_host(f(*arguments))
        except BaseException as problem:
            error = problem
            tape.refuse(problem)  # others may be about to sweep
            raise
        finally:
            tape.finish(error)
        seed = weight_of(tape, y, objective, comm)
        outputs = [] if seed is None else [y]
        if outputs and not tape.is_active(y):
            outputs = []
            if seed:
                warnings.warn(
                    "what the function returned depends on nothing that was differentiated, so its derivatives are "
                    "zero; was it computed from ampi.value(x), integers or other arrays?",
                    ActivityWarning,
                    stacklevel=warning_level(),
                )
        y_dot = map_leaves(lambda leaf: tape.tangent_at(leaf)[()] if has_tangent(leaf) else None, y)
        gradient, product, nbytes = second_order(tape, outputs, leaves, [seed] * len(outputs))
        warn_of_replicated(tape.replicated)
    found = {id(x): k for k, x in enumerate(leaves)}

    def of(some: list) -> tuple:
        return map_leaves(lambda x: some[found[id(x)]][()] if id(x) in found else None, arguments)

    result = Products(value(y), y_dot, of(gradient), of(product), nbytes)
    tape.dismantle()
    return result


def _watched(tape: SecondTape, primals: tuple, v: tuple, lead: tuple[int, ...]) -> tuple:
    """Return watched copies of the leaves of arguments, with tangents."""

    def watch(x: Any, x_dot: Any) -> Any:
        require_on_host(x, "ampi.hvp: an argument")
        if not has_tangent(x):
            return x
        array = tape.watch(plain_of(x))
        if x_dot is not None:
            tape.start(array, x_dot)
        return array

    return with_tangents(tape, primals, v, "primals", "ampi.hvp", watch, lead)


def hvp(
    f: Callable,
    primals: Any,
    v: Any,
    objective: str = "sum",
    comm: Any = None,
    *,
    vectorised: bool | int = False,
) -> Any:
    """The Hessian of a function times a vector (forward over reverse).

    Collective over the ranks that communicate inside ``f``: all of them call it, each with its own part of the
    arguments and of the vector, and get their own part of the product.  The function runs once and is swept once, both
    with tangents.

    Parameters
    ----------
    f : callable
        Function of arrays, scalars, and tuples, lists and dictionaries of them, that returns a real scalar (as for
        `grad`).
    primals : tuple
        Its arguments; they are not modified (``f`` works on copies).  A single argument need not be a tuple.
    v : tuple
        The vector, in the structure and shapes of ``primals``; None stands for zeros, and is required for integers.
    objective : {"sum", "replicated", "root"}
        What is differentiated, as for `value_and_grad`.
    comm : mpi4py.MPI.Comm, optional
        The ranks that call together, for ``"replicated"`` and ``"root"``; by default `ampi.COMM_WORLD`.
    vectorised : bool or int
        Vectors and products have a leading axis of length k, the same on all ranks: k products from one run and one
        sweep.  A rank without a vector passes k itself.

    Returns
    -------
    H v
        In the structure, shapes and dtypes of ``primals``: Σ over ranks ∂²F/∂x∂x' v'.  None for arguments that cannot
        be differentiated.  If vectorised, with a leading axis of length k.  For complex arguments: the derivative of
        the gradient in the direction v, in the real inner product Re⟨x̄, ẋ⟩.

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
        The result of ``f`` depends on none of the arguments.

    Examples
    --------
    >>> import numpy as np
    >>> import ampi
    >>> ampi.hvp(lambda x: (x**3).sum(), np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([  6., 120.])
    >>> ampi.hvp(lambda x: (x**3).sum(), np.array([1.0, 2.0]), np.eye(2), vectorised=True)
    array([[ 6.,  0.],
           [ 0., 12.]])
    """
    require_objective(objective)
    count = None if vectorised is False else number_of_directions("ampi.hvp", v, vectorised)
    if not isinstance(primals, tuple):
        return products(f, (primals,), (v,), objective, comm, count).product[0]
    if not isinstance(v, tuple):
        raise TapeError(f"ampi.hvp: primals is a tuple of {len(primals)}, and v is a {type(v).__name__}")
    return products(f, primals, v, objective, comm, count).product


def of_forward_mode(
    f: Callable,
    numbers: tuple[int, ...],
    arguments: tuple,
    keywords: dict,
    objective: str,
    comm: Any,
    outer: Any,
) -> tuple[Any, tuple]:
    """Return value and gradient with their tangents on the outer tape: `value_and_grad` inside `jvp`."""

    def is_moving(leaf: Any) -> bool:
        return isinstance(leaf, np.ndarray) and is_active(outer, leaf)

    chosen = [k for k, x in enumerate(arguments) if k in numbers or any(map(is_moving, leaves_of(x)))]

    def function(*moving: Any) -> Any:
        given = list(arguments)
        for k, x in zip(chosen, moving):
            given[k] = x
        return f(*given, **keywords)

    def copied(leaf: Any) -> Any:
        return laid_out_copy(plain_of(leaf))[()] if isinstance(leaf, np.ndarray) else leaf

    primals = tuple(map_leaves(copied, with_arrays(arguments[k])) for k in chosen)
    v = tuple(
        map_leaves(lambda leaf: outer.tangent_at(leaf) if is_moving(leaf) else None, with_arrays(arguments[k]))
        for k in chosen
    )
    lanes = outer.forward.lanes
    found = products(function, primals, v, objective, comm, None if lanes is None else len(lanes))

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
