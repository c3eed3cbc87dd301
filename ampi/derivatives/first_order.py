"""Derivatives of functions: `grad`, `value_and_grad`, `vjp`; in forward mode `jvp`, `linearize`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..arrays.activity import is_active, plain_of
from ..arrays.array import value
from ..base.program_lines import warning_level
from ..errors import ActivityWarning, TapeError
from ..tape import ForwardTape, Push, Tape, VectorPush
from ..tape.apart import copied_apart, is_active_at, is_apart, is_tracked
from ..tape.recording import recording
from .arguments import (
    has_tangent,
    is_inexact,
    leaves_of,
    map_leaves,
    number_of_directions,
    on_host,
    parts_for,
    require_readable,
    unboxed,
    with_arrays,
    with_tangents,
)
from .labelled import array_of, unlabelled
from .objectives import ranks_of, require_objective, warn_of_replicated, weight_of
from .second_order import of_forward_mode


def _watch(tape: Tape, x: Any) -> Any:
    """Return watched copies of an argument's leaves: the caller's arrays are not modified."""

    def watched(leaf: Any) -> Any:
        if is_apart(leaf):
            return tape.watch(copied_apart(leaf))
        tape.is_active(leaf)  # raises if it carries derivatives on an outer tape, which a copy would drop
        return tape.watch(plain_of(leaf))

    return map_leaves(watched, with_arrays(x))


def adjoints_of(tape: Tape, outputs: list, x: Any, seeds: list, warn: bool = True) -> Any:
    """Return adjoints in the structure of ``x``, one array per leaf; warn if an output depends on nothing."""
    # An output that depends on nothing is a constant, with adjoint zero.
    constant = [is_tracked(y) and not is_active_at(tape, y) for y in outputs]
    if warn and any(is_constant and np.any(s) for is_constant, s in zip(constant, seeds)):
        warnings.warn(
            "what the function returned depends on nothing that was differentiated, so its derivative is zero; was it "
            "computed from ampi.value(x), integers or other arrays? (Return None on a rank without a part; to a "
            "pullback, pass zeros for what is meant to be constant.)",
            ActivityWarning,
            stacklevel=warning_level(),
        )
    pairs = [(y, s) for y, s, is_constant in zip(outputs, seeds, constant) if not is_constant]
    found = iter(tape.gradient([y for y, _ in pairs], leaves_of(x), seed=[s for _, s in pairs]))
    return map_leaves(lambda leaf: unboxed(next(found)), x)


def vjp(f: Callable, *x: Any) -> tuple[Any, Callable]:
    """Run a function and return its value and its pullback.

    Collective over the ranks that communicate inside ``f``.

    Parameters
    ----------
    f : callable
        Function of arrays, scalars, and tuples, lists and dictionaries of them.
    *x
        Arguments; they are not modified (``f`` works on copies).  A list of numbers is an array, as for `Tape.watch`.

    Returns
    -------
    y
        What ``f`` returned, without derivatives.
    pullback : callable
        ``pullback(y_bar)`` gives a tuple with one adjoint per argument, of its structure, shapes and dtypes;
        ``y_bar`` has the structure of ``y`` (None stands for zeros, and for the part of a rank whose ``y`` is None;
        entries for integers and the like are ignored).  Can be called repeatedly, on all ranks alike.

    Raises
    ------
    ActivityError
        An argument is of an integer dtype.
    CommunicationError
        By ``pullback``: the ranks disagree about a message, a rank stopped with an error, or made no progress in time.
    TapeError
        An argument carries derivatives on a tape that records.  By ``pullback``: ``y_bar`` does not fit ``y``.

    Warns
    -----
    ActivityWarning
        By ``pullback``: an array of ``y`` whose adjoint is not zero depends on no argument.

    Examples
    --------
    >>> y, pullback = ampi.vjp(lambda x: x * x, numpy.array([1.0, 2.0]))
    >>> pullback(numpy.array([1.0, 0.5]))
    (array([2., 2.]),)
    """
    with Tape() as tape:
        watched = tuple(_watch(tape, argument) for argument in x)
        y = f(*watched)
    outputs = leaves_of(y)
    for leaf in outputs:
        require_readable(tape, leaf, "ampi.vjp: a result")

    def pullback(y_bar: Any) -> tuple:
        try:
            seeds = parts_for(y, y_bar, "pullback: y_bar")
        except TapeError as error:
            tape.refuse(error)
            raise
        pairs = [(leaf, seed) for leaf, seed in zip(outputs, seeds) if seed is not None and is_inexact(leaf)]
        return adjoints_of(tape, [leaf for leaf, _ in pairs], watched, [seed for _, seed in pairs])

    return value(y), pullback


def jvp(f: Callable, primals: Any, tangents: Any, *, vectorised: bool | int = False) -> tuple[Any, Any]:
    """Run a function and compute tangents along with its values (forward mode).

    Collective over the ranks that communicate inside ``f``: all of them call `jvp`.  There is no tape: each operation
    computes its tangents as soon as it has run, so that memory is twice that of the function, however long it runs.

    Parameters
    ----------
    f : callable
        Function of arrays, scalars, and tuples, lists and dictionaries of them.
    primals : tuple
        Its arguments; they are not modified (``f`` works on copies).  A single argument need not be a tuple.
    tangents : tuple
        ẋ, in the structure, shapes and (up to conversion) dtypes of ``primals``; None for an argument, or a part of
        one, that is constant, as integers must be.
    vectorised : bool or int
        Tangents in k directions at once (vector mode): each has a leading axis of k, the same on all ranks, and shape
        ``(k, *x.shape)``.  A rank without a tangent passes k itself.  ``f`` runs once.

    Returns
    -------
    y
        What ``f`` returned, as plain values.
    y_dot
        ∂f/∂x ẋ, summed over the ranks' x, in the structure of ``y``; None for parts that are not floating-point or
        complex.  If vectorised, with a leading axis of length k: shape ``(k, *y.shape)``.

    Raises
    ------
    ActivityError
        An operation has no tangent (the message names it and the line), or active values would be lost.
    CommunicationError
        The ranks disagree about k, or what is sent does not fit what is received.
    TapeError
        Primals and tangents do not fit, or a primal carries derivatives on a tape that records.

    Examples
    --------
    >>> import numpy as np
    >>> import ampi
    >>> y, y_dot = ampi.jvp(lambda x: x * x, np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    >>> y_dot
    array([ 2., 40.])
    >>> ampi.jvp(lambda x: x * x, np.array([1.0, 2.0]), np.eye(2), vectorised=True)[1]
    array([[2., 0.],
           [0., 4.]])
    """
    if not isinstance(primals, tuple):
        primals, tangents = (primals,), (tangents,)
    count = None if vectorised is False else number_of_directions("ampi.jvp", tangents, vectorised)
    return push_forward(f, primals, tangents, count)[:2]


def push_forward(f: Callable, primals: tuple, tangents: tuple, count: int | None) -> tuple[Any, Any, int]:
    """Return the results of `jvp` in ``count`` directions (None: without an axis for them), and the most bytes that
    tangents took, if there is such an axis."""
    make: Callable = Push if count is None else partial(VectorPush, count=count)
    with ForwardTape(make) as tape:
        lead = () if count is None else (count,)
        arguments = with_tangents(tape, primals, tangents, "primals", lead=lead)
        error: BaseException | None = None
        try:
            y = f(*arguments)
            y_dot = map_leaves(lambda leaf: _tangent_of(tape, leaf), y)
        except BaseException as problem:
            error = problem
            raise
        finally:
            tape.finish(error)
    found = value(y), y_dot, tape.forward.most
    tape.dismantle()
    return found


def linearize(f: Callable, *x: Any) -> tuple[Any, Callable]:
    """Run a function and return its value and a function of tangents: `jvp` at one point, many times, from a tape.

    Collective over the ranks that communicate inside ``f``.

    Parameters
    ----------
    f : callable
        Function of arrays, scalars, and tuples, lists and dictionaries of them.
    *x
        Arguments; they are not modified (``f`` works on copies).

    Returns
    -------
    y
        What ``f`` returned, as plain values.
    push : callable
        ``push(*x_dot)`` gives ẏ, in the structure of ``y`` (None for parts without a derivative), for tangents in the
        structure and shapes of ``x`` (None: zeros).  Collective; can be called repeatedly.

    Raises
    ------
    ActivityError
        An argument is of an integer dtype; from ``push``: an operation has no tangent.
    TapeError
        From ``push``: tangents that do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import ampi
    >>> y, push = ampi.linearize(lambda x: x * x, np.array([1.0, 2.0]))
    >>> push(np.array([1.0, 10.0]))
    array([ 2., 40.])
    """
    with Tape(tangents=True) as tape:
        watched = tuple(_watch(tape, leaf) for leaf in x)
        y = f(*watched)

    def push(*x_dot: Any) -> Any:
        if len(x_dot) != len(x):
            raise TapeError(f"push: {len(x)} arguments but {len(x_dot)} tangents")
        try:
            given = [
                np.zeros_like(leaf) if part is None else plain_of(part)  # of arrays on a device: themselves
                for leaf, part in zip(leaves_of(watched), parts_for(watched, with_arrays(x_dot), "push: x_dot"))
            ]
        except TapeError as error:
            tape.refuse(error)
            raise
        outputs = [leaf for leaf in leaves_of(y) if _is_leaf_of(leaf, tape)]
        found = iter(tape.tangent(outputs, leaves_of(watched), given))

        def tangent(leaf: Any) -> Any:
            require_readable(tape, leaf, "ampi.linearize: a result")
            if _is_leaf_of(leaf, tape):
                return unboxed(next(found))
            if is_apart(leaf) and has_tangent(leaf):
                return np.zeros_like(leaf)
            return np.zeros_like(np.asarray(plain_of(leaf)))[()] if has_tangent(leaf) else None

        return map_leaves(tangent, y)

    return value(y), push


def _is_leaf_of(leaf: Any, tape: Tape) -> bool:
    return has_tangent(leaf) and is_active_at(tape, leaf)


def _tangent_of(tape: ForwardTape, leaf: Any) -> Any:
    require_readable(tape, leaf, "ampi.jvp: a result")
    if not has_tangent(leaf):
        return None
    if not is_tracked(leaf) and not isinstance(leaf, np.ndarray):
        lanes = tape.forward.lanes
        return np.zeros(() if lanes is None else len(lanes), np.asarray(leaf).dtype)[()]
    return unboxed(tape.tangent_at(leaf))


def _positions(argnums: Sequence[Any], count: int) -> tuple[int, ...]:
    """Return the positions of some of the arguments of a call, from 0 on."""
    found: list[int] = []
    for number in argnums:
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool):
            raise TapeError(f"argnums has {number!r}; give the positions of arguments, as integers")
        if not -count <= number < count:
            raise TapeError(
                f"argnums has {number}, but the function was called with {count} positional arguments; an argument "
                "that is passed by keyword has no position: pass it by position"
            )
        if int(number) % count in found:
            raise TapeError(f"argnums has argument {int(number) % count} twice")
        found.append(int(number) % count)
    return tuple(found)


def value_and_grad(f: Callable, argnums: int | Sequence[int] = 0, objective: str = "sum", comm: Any = None) -> Callable:
    """A function that returns ``f``'s value and its gradient.

    Parameters
    ----------
    f : callable
        Called on every rank; returns a real scalar (a 0-d array or an array of one element).
    argnums : int or tuple of int
        Positions of the arguments that the gradient is with respect to (from the end, if negative).
    objective : {"sum", "replicated", "root"}
        What is differentiated.  ``"sum"``: the sum of what the ranks return (on several ranks, None on those without a
        part).  ``"replicated"``: all ranks return the same value, which is checked; it counts once.  ``"root"``: what
        rank 0 returns; the others' values are ignored.
    comm : mpi4py.MPI.Comm, optional
        The ranks that call together, for ``"replicated"`` and ``"root"``; by default `ampi.COMM_WORLD`.

    Returns
    -------
    callable
        Collective over the ranks that communicate inside ``f``.  Returns ``(value, gradient)``: this rank's value, and
        the gradient in the argument's structure, shapes and dtypes (a tuple of these if ``argnums`` is a tuple).
        Arguments are arrays, numbers, and tuples, lists and dictionaries of them; a list of numbers is an array.

    Raises
    ------
    ActivityError
        ``f`` returned a plain float, or an argument is of an integer dtype.
    CommunicationError
        On every rank: the values of a ``"replicated"`` objective differ.
    TapeError
        ``f`` did not return one real number (under ``"root"``: on rank 0); ``argnums`` names no argument, or one twice;
        or an argument carries derivatives on a tape that records.

    Warns
    -----
    ActivityWarning
        The result of ``f`` depends on none of these arguments.

    Examples
    --------
    >>> value, x_bar = ampi.value_and_grad(lambda x: np.sum(x * x))(numpy.array([1.0, 2.0]))
    >>> float(value), x_bar
    (5.0, array([2., 4.]))
    """
    require_objective(objective)
    several = isinstance(argnums, (tuple, list))

    def evaluate(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        numbers = _positions(argnums if several else (argnums,), len(arguments))  # type: ignore[arg-type]
        outer = recording()
        if outer is not None and outer.forward is not None and any(is_active(outer, x) for x in leaves_of(arguments)):
            y, found = of_forward_mode(f, numbers, arguments, keywords, objective, comm, outer)
            return y, found if several else found[0]
        opened, labels = zip(*(unlabelled(arguments[k]) for k in numbers)) if numbers else ((), ())
        with Tape() as tape:
            watched = tuple(_watch(tape, x) for x in opened)
            given = list(arguments)
            for k, x, label in zip(numbers, watched, labels):
                given[k] = label(x)
            y = on_host(array_of(f(*given, **keywords)))
        seed = weight_of(tape, y, objective, ranks_of(comm))
        counted = [] if seed is None else [(y, seed)]
        found = adjoints_of(tape, [y for y, _ in counted], watched, [s for _, s in counted])
        warn_of_replicated(tape.replicated)
        found = tuple(label(x_bar) for label, x_bar in zip(labels, found))
        return value(y), found if several else found[0]

    return evaluate


def grad(f: Callable, argnums: int | Sequence[int] = 0, objective: str = "sum", comm: Any = None) -> Callable:
    """A function that returns the gradient of ``f``; see `value_and_grad`.

    Examples
    --------
    >>> gradient = ampi.grad(lambda x: np.sum(x * x))
    >>> gradient(numpy.array([1.0, 2.0]))
    array([2., 4.])
    """
    evaluate = value_and_grad(f, argnums, objective, comm)

    def gradient(*arguments: Any, **keywords: Any) -> Any:
        return evaluate(*arguments, **keywords)[1]

    return gradient
