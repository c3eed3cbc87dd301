"""Derivatives of functions: `grad`, `value_and_grad`, `vjp`; in forward mode `jvp`, `linearize`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..arrays.activity import is_active, plain_of
from ..arrays.array import value
from ..errors import ActivityError, ActivityWarning, AmpiError, CommunicationError, TapeError
from ..memory.handouts import warning_level
from ..memory.layouts import behaves_otherwise
from ..memory.storages import TrackedArray, carries_derivatives, plain, tracked_copy
from ..tape import ForwardTape, Push, Tape, VectorPush
from ..tape.recording import recording

OBJECTIVES = ("sum", "replicated", "root")


def require_objective(objective: str) -> None:
    """Raise if there is no such objective."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(map(repr, OBJECTIVES))}, not {objective!r}")


def map_leaves(function: Callable, x: Any) -> Any:
    """Apply a function to the leaves of tuples, lists and dictionaries."""
    if x is None:
        return None
    if isinstance(x, dict):
        return {name: map_leaves(function, item) for name, item in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(map_leaves(function, item) for item in x))
    if isinstance(x, (tuple, list)):
        return type(x)(map_leaves(function, item) for item in x)
    return function(x)


def leaves_of(x: Any) -> list:
    found: list = []
    map_leaves(found.append, x)
    return found


def _is_inexact(x: Any) -> bool:
    return carries_derivatives(x.dtype if isinstance(x, np.ndarray) else np.asarray(x).dtype)


def _is_list_of_numbers(x: Any) -> bool:
    """Whether a list is what NumPy makes an array of numbers of, as `Tape.watch` takes it."""
    return isinstance(x, list) and len(x) > 0 and all(_is_number(item) or _is_list_of_numbers(item) for item in x)


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, complex, np.number)) and not isinstance(x, np.ndarray)


def with_arrays(x: Any) -> Any:
    """An argument with arrays for its lists of numbers."""
    if _is_list_of_numbers(x):
        return np.array(x)
    if isinstance(x, dict):
        return {name: with_arrays(item) for name, item in x.items()}
    if isinstance(x, (tuple, list)):
        items = [with_arrays(item) for item in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x


def _watch(tape: Tape, x: Any) -> Any:
    """Watched copies of an argument's leaves: the caller's own arrays stay as they are."""

    def watched(leaf: Any) -> Any:
        tape.is_active(leaf)  # raises if it carries derivatives on an outer tape, which a copy would drop
        return tape.watch(plain_of(leaf))

    return map_leaves(watched, with_arrays(x))


def adjoints_of(tape: Tape, outputs: list, x: Any, seeds: list, warn: bool = True) -> Any:
    """Adjoints in the structure of ``x``: one array per leaf; with a warning if an output depends on nothing."""
    # An output that depends on nothing is a constant, with adjoint zero.
    constant = [isinstance(y, TrackedArray) and not tape.is_active(y) for y in outputs]
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
    return map_leaves(lambda leaf: next(found)[()], x)


def vjp(f: Callable, *x: Any) -> tuple[Any, Callable]:
    """Run a function and return the way back.

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
        ``y_bar`` has the structure of ``y`` (None on a rank whose ``y`` is None; what stands for integers and the
        like is ignored).  May be called as often as wanted,
        by all ranks alike.

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

    def pullback(y_bar: Any) -> tuple:
        seeds = leaves_of(y_bar)
        if len(seeds) != len(outputs):
            error = TapeError(f"pullback: y has {len(outputs)} arrays, y_bar {len(seeds)}")
            tape.refuse(error)
            raise error
        pairs = [(leaf, seed) for leaf, seed in zip(outputs, seeds) if _is_inexact(leaf)]
        return adjoints_of(tape, [leaf for leaf, _ in pairs], watched, [seed for _, seed in pairs])

    return value(y), pullback


def jvp(f: Callable, primals: Any, tangents: Any, *, vectorised: bool | int = False) -> tuple[Any, Any]:
    """Run a function and carry tangents along with its values (forward mode).

    Collective over the ranks that communicate inside ``f``: all of them are in `jvp`.  Nothing is taped: each operation
    carries the tangents on when it has run, so memory is twice the function's, however long it runs.

    Parameters
    ----------
    f : callable
        Function of arrays, scalars, and tuples, lists and dictionaries of them.
    primals : tuple
        Its arguments; they are not modified (``f`` works on copies).  What is no tuple is the only one.
    tangents : tuple
        ẋ, of the structure, the shapes and (up to conversion) the dtypes of ``primals``; None for an argument, or a
        part of one, that is constant, as integers have to be.
    vectorised : bool or int
        Tangents in k directions at once (vector mode): each has a leading axis of k, the same on all ranks, and shape
        ``(k, *x.shape)``.  A rank that has no tangent passes k itself.  ``f`` runs once.

    Returns
    -------
    y
        What ``f`` returned, as plain values.
    y_dot
        ∂f/∂x ẋ, summed over the ranks' x, in the structure of ``y``; None for what is no floating-point or complex
        number or array of them.  If vectorised, with a leading axis of k: shape ``(k, *y.shape)``.

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
    """`jvp` in so many directions (None: without an axis for them); and the most bytes that tangents took, if it is
    vectorised."""
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
    """Run a function and return the way forward: `jvp` at one place for many tangents, by a tape (`Tape.tangent`).

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
        ``push(*x_dot)`` gives ẏ, in the structure of ``y`` (None for what has no derivative), for tangents of the
        structure and shapes of ``x``; collective, and to be called as often as wanted.

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
        given = [plain_of(leaf) for leaf in leaves_of(with_arrays(x_dot))]
        outputs = [leaf for leaf in leaves_of(y) if _is_leaf_of(leaf, tape)]
        found = iter(tape.tangent(outputs, leaves_of(watched), given))

        def tangent(leaf: Any) -> Any:
            if _is_leaf_of(leaf, tape):
                return next(found)[()]
            return np.zeros_like(np.asarray(plain_of(leaf)))[()] if has_tangent(leaf) else None

        return map_leaves(tangent, y)

    return value(y), push


def _is_leaf_of(leaf: Any, tape: Tape) -> bool:
    return has_tangent(leaf) and tape.is_active(leaf)


def has_tangent(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic, float, complex)) and _is_inexact(leaf)


def number_of_directions(asked: str, tangents: Any, given: bool | int) -> int:
    """In how many directions tangents go: as long as the leading axis of the first one is."""
    first = next((np.shape(plain_of(leaf)) for leaf in leaves_of(with_arrays(tangents)) if leaf is not None), None)
    if first == ():
        raise TapeError(f"{asked}: with vectorised=True tangents have a leading axis, and one is a number")
    if first is None and isinstance(given, bool):
        raise TapeError(f"{asked}: no tangent says how many directions there are; pass their number: vectorised=k")
    count = first[0] if isinstance(given, bool) else int(given)  # type: ignore[index]
    if count < 1:
        raise TapeError(f"{asked}: {count} directions; pass one at least")
    return count


def with_tangents(
    tape: Any,
    x: Any,
    x_dot: Any,
    where: str,
    asked: str = "ampi.jvp",
    start: Callable | None = None,
    lead: tuple[int, ...] = (),
) -> Any:
    """Copies of the leaves of arguments that have tangents on the tape; those without one as they are.

    ``start(x, x_dot)`` makes the copies of others than `jvp`, also of leaves of which the tangent is None; tangents
    have the leading axes ``lead``.
    """
    if _is_list_of_numbers(x):
        x = np.array(x)
    if isinstance(x, (tuple, list, dict)):
        if x_dot is None:
            x_dot = {name: None for name in x} if isinstance(x, dict) else [None] * len(x)
        kind = dict if isinstance(x, dict) else (tuple, list)
        if not isinstance(x_dot, kind) or len(x_dot) != len(x) or (isinstance(x, dict) and x_dot.keys() != x.keys()):
            raise TapeError(f"{asked}: {where} is a {type(x).__name__} of {len(x)}, and its tangent is not")
        if isinstance(x, dict):
            return {
                name: with_tangents(tape, x[name], x_dot[name], f"{where}[{name!r}]", asked, start, lead) for name in x
            }
        pairs = enumerate(zip(x, x_dot))
        items = [with_tangents(tape, a, b, f"{where}[{k}]", asked, start, lead) for k, (a, b) in pairs]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    tape.is_active(x)  # raises if it carries derivatives on an outer tape
    plainly = plain_of(x)
    if x is None or x_dot is None:
        if start is not None and x is not None:
            return start(plainly, None)
        return tracked_copy(plainly) if isinstance(x, np.ndarray) and not behaves_otherwise(type(plainly)) else x
    if not _is_inexact(plainly):
        raise ActivityError(f"{asked}: {where} is of dtype {np.asarray(plainly).dtype}; its tangent must be None")
    given = np.asarray(plain_of(x_dot))
    if given.shape != (*lead, *np.shape(plainly)):
        beside = f", which has to be {(*lead, *np.shape(plainly))}" if lead else ""
        raise TapeError(f"{asked}: {where} has the shape {np.shape(plainly)}, its tangent {given.shape}{beside}")
    if given.dtype.kind == "c" and np.asarray(plainly).dtype.kind != "c":
        raise TapeError(f"{asked}: {where} is real, its tangent complex")
    if start is not None:
        return start(plainly, given)
    copy = tracked_copy(plainly)
    tape.start(copy, given)
    return copy


def _tangent_of(tape: ForwardTape, leaf: Any) -> Any:
    if not has_tangent(leaf):
        return None
    if not isinstance(leaf, np.ndarray):
        lanes = tape.forward.lanes
        return np.zeros(() if lanes is None else len(lanes), np.asarray(leaf).dtype)[()]
    return tape.tangent_at(leaf)[()]


def value_and_grad(
    f: Callable, argnums: int | tuple[int, ...] = 0, objective: str = "sum", comm: Any = None
) -> Callable:
    """A function that returns ``f``'s value and its gradient.

    Parameters
    ----------
    f : callable
        Called on every rank; returns a real scalar (a 0-d array or an array of one element).
    argnums : int or tuple of int
        Arguments with respect to which the gradient is wanted.
    objective : {"sum", "replicated", "root"}
        What is differentiated.  ``"sum"``: the sum of what the ranks return (None on a rank without a part, if there
        are several).
        ``"replicated"``: all ranks return the same value, which is checked; it counts once.  ``"root"``: what rank 0
        returns; the others' values are ignored.
    comm : mpi4py.MPI.Comm, optional
        The ranks that call together, for ``"replicated"`` and ``"root"``; by default `ampi.COMM_WORLD`.

    Returns
    -------
    callable
        Collective over the ranks that communicate inside ``f``.  Returns ``(value, gradient)``: this rank's value (the
        argument's structure, shapes and dtypes for the gradient; a tuple of them if ``argnums`` is a tuple).  Arguments
        are arrays, numbers, and tuples, lists and dictionaries of them; a list of numbers is an array (`Tape.watch`).

    Raises
    ------
    ActivityError
        ``f`` returned a plain float, or an argument is of an integer dtype.
    CommunicationError
        On every rank: the values of a ``"replicated"`` objective differ.
    TapeError
        ``f`` did not return one real number (under ``"root"``: on rank 0), or an argument carries derivatives on a tape
        that records.

    Warns
    -----
    ActivityWarning
        What ``f`` returned depends on none of these arguments.

    Examples
    --------
    >>> value, x_bar = ampi.value_and_grad(lambda x: np.sum(x * x))(numpy.array([1.0, 2.0]))
    >>> float(value), x_bar
    (5.0, array([2., 4.]))
    """
    require_objective(objective)
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)

    def evaluate(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        outer = recording()
        if outer is not None and outer.forward is not None and any(is_active(outer, x) for x in leaves_of(arguments)):
            from .second_order import of_forward_mode

            y, found = of_forward_mode(f, numbers, arguments, keywords, objective, comm, outer)
            return y, found if isinstance(argnums, tuple) else found[0]
        with Tape() as tape:
            watched = tuple(_watch(tape, arguments[k]) for k in numbers)
            given = list(arguments)
            for k, x in zip(numbers, watched):
                given[k] = x
            y = f(*given, **keywords)
        seed = weight_of(tape, y, objective, ranks_of(comm))
        counted = [] if seed is None else [(y, seed)]
        found = adjoints_of(tape, [y for y, _ in counted], watched, [s for _, s in counted])
        warn_of_replicated(tape.replicated)
        return value(y), found if isinstance(argnums, tuple) else found[0]

    return evaluate


def grad(f: Callable, argnums: int | tuple[int, ...] = 0, objective: str = "sum", comm: Any = None) -> Callable:
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


def warn_of_replicated(call: Any) -> None:
    """After a sweep, which notes this call: warn on the first rank that one value was counted on each."""
    if call is None or call.reverse.rank:
        return
    size = call.reverse.comm.Get_size()
    warnings.warn(
        f"all {size} ranks returned the same value, which they have from {call.describe()}: their sum, which "
        f'objective="sum" differentiates, counts it {size} times, and so does the gradient. If it is one value, '
        'objective="replicated" counts it once.',
        ActivityWarning,
        stacklevel=warning_level(),
    )


def weight_of(tape: Any, y: Any, objective: str, comm: Any) -> float | None:
    """This rank's weight in the objective; None if its output has no part in it.  The sweep that follows looks whether
    a sum counts one value several times.

    Raises
    ------
    AmpiError
        There is no such objective: ranks that wait for this one's sweep are told.
    """
    tape.returned = tape.replicated = None
    try:
        seed = _seed_of(y, objective, comm)
    except Exception as error:
        tape.refuse(error)
        raise
    if seed is not None and objective == "sum" and comm.Get_size() > 1 and tape.is_active(y):
        tape.returned = float(plain(y).reshape(()))
    return seed


def _seed_of(y: Any, objective: str, comm: Any) -> float | None:
    rank = comm.Get_rank()
    if objective == "replicated":
        _check_replicated(y, comm)
        return 1.0 if rank == 0 else 0.0
    if y is None and comm.Get_size() > 1 and objective == "sum":
        return None
    if objective == "root" and rank:
        return None
    _check_scalar(y)
    return 1.0


def _check_scalar(y: Any) -> None:
    if isinstance(y, np.ndarray) and y.size == 1 and y.dtype.kind == "f":
        return
    if isinstance(y, (float, np.floating)):
        raise ActivityError(
            f"the function returned a plain {type(y).__name__}, which carries no derivative; compute it with "
            "ampi.numpy and return the 0-d array as it is (on a rank that has no part in the objective: None)"
        )
    shape = f" of shape {y.shape} and dtype {y.dtype}" if isinstance(y, np.ndarray) else ""
    raise TapeError(f"the function must return one real number to have a gradient, not a {type(y).__name__}{shape}")


def ranks_of(comm: Any) -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD if comm is None else comm


def _check_replicated(y: Any, comm: Any) -> None:
    """Raise on every rank if the values differ by more than rounding, or if one is none."""
    problem: Exception | None = None
    try:
        _check_scalar(y)
    except AmpiError as error:
        problem = error
    given = comm.allgather(str(problem) if problem else float(plain(y).reshape(())))
    if problem:
        raise problem
    for rank, found in enumerate(given):
        if isinstance(found, str):
            raise CommunicationError(f'objective="replicated": rank {rank} has no value: {found}')
    values: list[float] = given
    low, high = min(values), max(values)
    tolerance = 16 * float(np.finfo(y.dtype).eps) * max(abs(low), abs(high))
    if all(v != v for v in values) or high - low <= tolerance:
        return
    shown = ", ".join(f"rank {rank}: {v!r}" for rank, v in enumerate(values[:8]))
    raise CommunicationError(
        f'objective="replicated": the ranks returned different values ({shown}{", …" if len(values) > 8 else ""}); '
        'reduce them to one value (Allreduce) or use objective="sum"'
    )
