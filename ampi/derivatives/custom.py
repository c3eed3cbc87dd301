"""Custom derivatives: `custom_vjp`, a function with an adjoint that its author writes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import is_active
from ..base.structures import leaves, mapped
from ..errors import ActivityError, TapeError
from ..memory.storages import (
    Region,
    TrackedArray,
    carries_derivatives,
    is_scalar,
    plain,
    region_of,
    storage_of,
    tracked_copy,
)
from ..tape import (
    BaseAdjoint,
    Push,
    SecondTape,
    Sweep,
    Tape,
    Undo,
    lanes_of,
    no_second_derivative,
    passive,
    recording,
    where_called,
)
from ..tape.apart import is_active_at, is_apart


class custom_vjp:
    """A function with a custom adjoint.

    ::

        @ampi.custom_vjp
        def f(x, y): ...

        f.defvjp(forward, backward)

    ``forward(*arguments)`` returns ``(result, residuals)``; ``backward(residuals, result_bar)`` returns a tuple with
    the adjoint of each argument, in its structure and shapes (None for an argument without one).  Arguments and result
    are as in `f` itself; ``result_bar`` has the structure of the result and holds plain arrays and numbers.  Adjoints
    are those of the real inner product Re⟨x̄, ẋ⟩.

    `f` may be a kernel (``@ampi.custom_vjp`` above ``@ampi.kernel``).  Other kernels can then call it if `forward` and
    `backward` are kernels too; a call of `f` inside of these two is the plain function.  If kernels call `f`, arrays of
    the caller that `forward` overwrites must be part of its result.

    The operations of `forward` are not recorded.  It may overwrite its arguments: an argument that is overwritten and
    returned is a result; one that is only overwritten becomes constant.  Residuals keep the values that they have when
    `forward` returns.  Both functions may communicate: while a tape records, each call is recorded, and `backward` runs
    in each sweep, on all ranks that called, whether or not this rank's arguments carry derivatives.

    Examples
    --------
    >>> @ampi.custom_vjp
    ... def square(x):
    ...     return x * x
    >>> def forward(x):
    ...     return x * x, x
    >>> def backward(x, result_bar):
    ...     return (2.0 * x * result_bar,)
    >>> square.defvjp(forward, backward)
    >>> ampi.grad(lambda x: np.sum(square(x)))(numpy.array([1.0, 2.0]))
    array([2., 4.])
    """

    def __init__(self, f: Callable) -> None:
        functools.update_wrapper(self, f)
        self.f = f
        self.forward: Callable | None = None
        self.backward: Callable | None = None
        self.tangent: Callable | None = None

    @property
    def _numba_type_(self) -> Any:
        """The type of the plain function: kernels call that."""
        import numba

        return numba.typeof(self.f)

    def defvjp(self, forward: Callable, backward: Callable) -> None:
        """Define the forward function and the adjoint."""
        self.forward = forward
        self.backward = backward

    def defjvp(self, tangent: Callable) -> Callable:
        """Define the tangent: without it, forward mode (`ampi.jvp`, `ampi.linearize`) and second order are errors, and
        so is `Tape.tangent` over a tape that recorded a call before the tangent was defined.

        ``tangent(arguments, tangents)`` takes two tuples.  The second has the same structure and shapes, with plain
        arrays and numbers (zeros for constants, None for parts that cannot carry derivatives).  It returns the result
        of `f` and its tangent, in the same structure (None for zero).  It may communicate, on all ranks that call.  If
        `f` is a kernel, `tangent` is written as one (see `custom_jvp`), and the tangents of its callers use it, too.
        """
        self.tangent = tangent
        return tangent

    def identity_parts(self) -> tuple[Any, ...]:
        """Return the functions that determine what a call computes (None: not given)."""
        return self.f, self.forward, self.backward, self.tangent

    def __call__(self, *arguments: Any) -> Any:
        tape = recording()
        if tape is None:
            return self.f(*arguments)
        for x in leaves(arguments):
            if is_apart(x) and is_active_at(tape, x):
                raise ActivityError(
                    f"{where_called()}: {self.__name__}, which has a custom rule, is given an array on a device "
                    "that carries derivatives; pass d.copy_to_host(), or let a kernel call a function with the rule"
                )
        if tape.forward is not None:
            return self._call_forward(tape, arguments)
        if self.forward is None or self.backward is None:
            raise TypeError(f"{self.__name__} has no adjoint yet: call {self.__name__}.defvjp(forward, backward)")
        if tape.tangents is not None:
            return self._call_second(tape, arguments)
        sources = mapped(lambda x: region_of(x) if is_active(tape, x) else None, arguments)
        given = None if self.tangent is None else mapped(lambda x: _given(tape, x), arguments)
        start = len(tape)
        with passive():
            result, residuals = _pair_of(self.forward(*arguments), f"the forward function of {self.__name__}")
        undo, overwritten = tape.absorb(start)
        kept = mapped(lambda x: _kept(tape, x, undo), residuals)
        written = {region.storage for action in overwritten for region in action.regions}
        active = [x for x in leaves(arguments) if is_active(tape, x)]
        result = mapped(lambda x: _output(x, active, written), result)
        outputs = mapped(lambda x: region_of(x) if _can_be_active(x) else None, result)
        record = _Custom(self, sources, overwritten, kept, outputs)
        record.arguments = given
        produced = [x for x in leaves(result) if _can_be_active(x)]
        created = [x for x in produced if not tape.is_active(x)]
        for x in produced:
            tape.activate(x)
        tape.append(record, undo, created=created)
        return result

    def _call_forward(self, tape: Any, arguments: tuple) -> Any:
        """Call the function in forward mode."""
        self.require_tangent()
        dots = mapped(lambda x: _tangent_of(tape, x), arguments)
        active = [x for x in leaves(arguments) if is_active(tape, x)]
        lanes = tape.forward.lanes
        if lanes is None:
            with passive(), tape.noting_overwritten() as overwritten:
                result, dot = self._pushed(arguments, dots)
        else:
            several = _in_each(dots, lanes)
            with passive():  # the last call gets the arguments themselves, which it may overwrite
                others = [self._pushed(mapped(_copied, arguments), some)[1] for some in several[:-1]]
            with passive(), tape.noting_overwritten() as overwritten:
                result, dot = self._pushed(arguments, several[-1])
        written = {region.storage for region in overwritten}
        result = mapped(lambda x: _output(x, active, written), result)
        given = _tangents_for(self.__name__, result, dot)
        if lanes is not None:
            given = _stacked([*(_tangents_for(self.__name__, result, other) for other in others), given])
        for x, x_dot in zip(leaves(result), given):
            if _can_be_active(x):
                value = plain(np.asarray(0.0 if x_dot is None else x_dot))
                wanted = x.shape if lanes is None else (len(lanes), *x.shape)
                if x_dot is not None and value.shape != wanted:
                    raise TapeError(
                        f"the tangent of {self.__name__} returned shape {value.shape} for a result of shape {x.shape}"
                    )
                tape.start(x, value)
        return result

    def _pushed(self, arguments: tuple, dots: tuple) -> tuple:
        """Return the result and its tangent."""
        return _pair_of(self.tangent(arguments, dots), f"the tangent of {self.__name__}")  # type: ignore[misc]

    def require_tangent(self, known: bool = True) -> None:
        """Raise an error if there is no tangent, or none was known at the call."""
        if self.tangent is None or not known:
            raise ActivityError(
                f"{where_called()}: {self.__name__} has a custom adjoint and no tangent, so forward mode cannot "
                f"go through it; define the tangent by {self.__name__}.defjvp, or use ampi.vjp"
            )

    def _call_second(self, tape: Any, arguments: tuple) -> Any:
        """Call the function in second order: the custom tangent computes the tangent of the result; those of the
        residuals come from forward mode, which runs `forward` on copies."""
        self.require_tangent()
        sources = mapped(lambda x: region_of(x) if is_active(tape, x) else None, arguments)
        dots = mapped(lambda x: _tangent_of(tape, x), arguments)
        lanes = tape.tangents.lanes
        several = [dots] if lanes is None else _in_each(dots, lanes)
        given = [mapped(_copied, arguments) for _ in several]
        with passive():
            found = [self._pushed(mine, its)[1] for mine, its in zip(given, several)]
        inner = SecondTape(tape.tangents.like)
        inner.sweep_begins()  # it only pushes tangents
        with inner:
            copies = mapped(_copied, arguments)
            for x, x_dot in zip(leaves(copies), leaves(dots)):
                if x_dot is not None and isinstance(x, TrackedArray):
                    inner.start(x, x_dot)
            found_here = self.forward(*copies)  # type: ignore[misc]
            result, residuals = _pair_of(found_here, f"the forward function of {self.__name__}")
            kept = mapped(lambda x: _Pair(plain(x), inner.tangent_at(x)) if _can_be_active(x) else x, residuals)
        inner.dismantle()
        for some in (*given, copies):
            for x, copy in zip(leaves(arguments), leaves(some)):
                if isinstance(x, np.ndarray) and plain(x).tobytes() != plain(copy).tobytes():
                    raise no_second_derivative(f"{self.__name__}, which overwrites an argument,")
        kept = mapped(lambda x: tape.pair(x.value[()], x.tangent) if isinstance(x, _Pair) else x, kept)
        rest = iter(zip(*(_tangents_for(self.__name__, result, dot) for dot in found)))
        result = mapped(lambda x: _result(tape, self.__name__, x, next(rest)), result)
        outputs = mapped(lambda x: region_of(x) if _can_be_active(x) else None, result)
        record = _CustomPairs(self, sources, [], kept, outputs)
        tape.append(record, created=[x for x in leaves(result) if _can_be_active(x)])
        return result


def _pair_of(found: Any, what: str) -> tuple:
    """Return what a function has returned, if that is a pair."""
    if isinstance(found, tuple) and len(found) == 2:
        return found
    second = "its tangent" if what.startswith("the tangent") else "residuals"
    raise TapeError(f"{what} must return a tuple of the result and {second}, not {_described(found)}")


def _in_each(dots: Any, lanes: Any) -> list[Any]:
    """Return tangents in several directions as one structure for each direction."""
    return [mapped(lambda x, j=j: x[j] if isinstance(x, np.ndarray) else x, dots) for j in range(len(lanes))]


def _tangents_for(name: str, result: Any, dot: Any) -> list[Any]:
    """Return the tangent of each leaf of a result, as a custom tangent has returned them; None stands for zeros."""
    if dot is None:
        return [None for _ in leaves(result)]
    if not isinstance(result, (tuple, list, dict)) and not isinstance(dot, (tuple, list, dict)):
        return [dot]
    if _keys_of(result) != _keys_of(dot):
        raise TapeError(
            f"the tangent of {name} returned {_described(dot)} as the tangent of {_described(result)}; return the same "
            "structure, with None for zeros"
        )
    names = result if isinstance(result, dict) else range(len(result))
    return [part for key in names for part in _tangents_for(name, result[key], dot[key])]


def _keys_of(x: Any) -> Any:
    """Return what has to agree between a structure and its tangent: names, or the number of items."""
    return set(x) if isinstance(x, dict) else len(x) if isinstance(x, (tuple, list)) else None


def _described(x: Any) -> str:
    if isinstance(x, dict):
        return f"a dictionary with {list(x)}"
    return f"a {type(x).__name__} of {len(x)}" if isinstance(x, (tuple, list)) else f"a {type(x).__name__}"


def _stacked(rows: list[list]) -> list[np.ndarray | None]:
    """Stack tangents of several results in several directions; None stands for zero."""
    found: list[np.ndarray | None] = []
    for several in zip(*rows):
        known = [plain(np.asarray(x)) for x in several if x is not None]
        stacked = [np.zeros_like(known[0]) if x is None else plain(np.asarray(x)) for x in several] if known else None
        found.append(stacked and np.stack(stacked))
    return found


class _Pair:
    """A value and its tangent."""

    def __init__(self, value: np.ndarray, tangent: np.ndarray) -> None:
        self.value = value
        self.tangent = tangent


def _copied(x: Any) -> Any:
    return tracked_copy(plain(x)[()] if is_scalar(x) else plain(x)) if isinstance(x, np.ndarray) else x


def _result(tape: Any, name: str, x: Any, dots: tuple) -> Any:
    """Return a result of a call with its custom tangents, one for each direction."""
    if not isinstance(x, (np.ndarray, float, complex, np.inexact)) or not carries_derivatives(np.asarray(x).dtype):
        return x
    value = plain(x) if isinstance(x, np.ndarray) else np.asarray(x)
    tangents = [np.zeros(value.shape, value.dtype) if dot is None else plain(np.asarray(dot)) for dot in dots]
    for tangent in tangents:
        if tangent.shape != value.shape:
            raise TapeError(f"the tangent of {name} returned shape {tangent.shape} for a result of shape {value.shape}")
    is_number = is_scalar(x) or not isinstance(x, np.ndarray)
    return tape.pair(value[()] if is_number else value, tape.stacked(tangents))


def _tangent_of(tape: Any, x: Any) -> Any:
    """Return the tangent of a leaf of the arguments."""
    if isinstance(x, np.ndarray):
        return tape.tangent_at(x)[()] if carries_derivatives(x.dtype) else None
    return _zero_of(x)


def _zero_of(x: Any) -> Any:
    """Return the tangent of a constant that is no array: zero, also of infinities; None for what cannot have one."""
    return type(x)() if isinstance(x, (float, complex, np.inexact)) else None


def _given(tape: Tape, x: Any) -> Any:
    """Return a leaf of the arguments for a walk: when it visits the record, arrays will have their present values."""
    return _Array(tape.need(x), is_scalar(x)) if isinstance(x, np.ndarray) else x


class _Array:
    """An array among a call's arguments; ``is_number``: it stands for a number."""

    __slots__ = ("is_number", "values")

    def __init__(self, values: np.ndarray, is_number: bool) -> None:
        self.values = values
        self.is_number = is_number

    def copy(self) -> Any:
        """Return a new array of the values, for the custom tangent."""
        return tracked_copy(self.values[()] if self.is_number else self.values)

    def tangent(self, push: Any, region: Region | None) -> Any:
        """Return the tangent: zeros without a region, None for what has none."""
        if region is not None:
            return np.array(push.get(region))[()]
        if not carries_derivatives(self.values.dtype):
            return None
        return np.zeros(self.values.shape, self.values.dtype)[()]


class _Custom(BaseAdjoint):
    """The record of a call.

    Attributes
    ----------
    rule : custom_vjp
    sources, outputs
        Regions in the structure of the arguments and of the result; None for inactive ones.
    overwritten : list of Zero
        What `forward` overwrote.
    residuals
        The residuals that it returned.
    arguments
        For walks, where the rule has a tangent: the arguments.
    """

    __slots__ = ("arguments", "backward", "name", "outputs", "overwritten", "residuals", "rule", "sources")

    def __init__(self, rule: custom_vjp, sources: Any, overwritten: list, residuals: Any, outputs: Any) -> None:
        self.rule = rule
        self.name = rule.__name__
        self.backward: Any = rule.backward
        self.arguments: Any = None
        self.sources = sources
        self.overwritten = overwritten
        self.residuals = residuals
        self.outputs = outputs

    def __call__(self, sweep: Sweep) -> None:
        result_bar = mapped(lambda region: None if region is None else _taken(sweep, region), self.outputs)
        for action in reversed(self.overwritten):
            action(sweep)
        bars = self.backward(self.residuals, result_bar)
        if not isinstance(bars, tuple) or len(bars) != len(self.sources):
            raise TapeError(
                f"the adjoint of {self.name} must return a tuple with one item for each of its {len(self.sources)} "
                f"arguments, not {type(bars).__name__}{f' of {len(bars)}' if isinstance(bars, tuple) else ''}"
            )
        for number, (source, bar) in enumerate(zip(self.sources, bars)):
            self._add(sweep, number, source, bar)

    @property
    def tangent(self) -> Callable[[Push], None]:
        """In a walk: apply the custom tangent; without one it is an error."""
        self.rule.require_tangent(self.arguments is not None)
        return self._tangent

    def _tangent(self, push: Push) -> None:
        function: Any = self.rule.tangent
        sources = iter(list(leaves(self.sources)))
        regions = [next(sources) for _ in leaves(self.arguments)]
        for lane in lanes_of(push):
            given, of = mapped(lambda x: x.copy() if isinstance(x, _Array) else x, self.arguments), iter(regions)
            dots = mapped(lambda x, of=of, lane=lane: _dot(lane, x, next(of)), self.arguments)
            _, dot = _pair_of(function(given, dots), f"the tangent of {self.name}")
            for action in self.overwritten:
                action.tangent(lane)
            for region, x_dot in zip(leaves(self.outputs), _tangents_for(self.name, self.outputs, dot)):
                if region is None:
                    continue
                value = np.zeros(region.shape) if x_dot is None else plain(np.asarray(x_dot))
                if value.shape != region.shape:
                    raise TapeError(
                        f"the tangent of {self.name} returned shape {value.shape} for a result of shape {region.shape}"
                    )
                lane.put(region, value)

    def _add(self, sweep: Sweep, number: int, source: Any, bar: Any) -> None:
        if bar is None or source is None:
            return
        if isinstance(source, (tuple, list, dict)):
            if _keys_of(source) != (len(bar) if isinstance(bar, np.ndarray) and bar.ndim else _keys_of(bar)):
                raise TapeError(
                    f"the adjoint of {self.name} returned {_described(bar)} for argument {number}, "
                    f"{_described(source)}; return the same structure, with None for zeros"
                )
            for name in source if isinstance(source, dict) else range(len(source)):
                self._add(sweep, number, source[name], bar[name])
        else:
            value = plain(np.asarray(bar))
            if value.shape != source.shape:
                raise TapeError(
                    f"the adjoint of {self.name} returned shape {value.shape} for argument {number} of shape "
                    f"{source.shape}"
                )
            sweep.add(source, value)


class _CustomPairs(_Custom):
    """The record of a call in second order; what `backward` computes is differentiated."""

    __slots__ = ()
    second_order = "differentiated"

    def tangent(self, push: Push) -> None:
        """Do nothing: the tangents are already set."""


def _dot(push: Any, x: Any, region: Region | None) -> Any:
    if isinstance(x, _Array):
        return x.tangent(push, region)
    return _zero_of(x)


def _taken(sweep: Sweep, region: Region) -> np.ndarray:
    g = sweep.take(region)
    g = np.zeros(region.shape, region.dtype) if g is None else g
    return g if region.shape else g[()]


def _kept(tape: Tape, x: Any, undo: list[Undo]) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    if any(np.may_share_memory(x, action.view) for action in undo):
        # The sweep undoes what `forward` wrote before it calls the adjoint.
        return np.array(plain(x))
    return tape.need(x)


def _can_be_active(x: Any) -> bool:
    return isinstance(x, TrackedArray) and carries_derivatives(x.dtype)


def _output(x: Any, active: list, written: set) -> Any:
    if isinstance(x, TrackedArray):
        passed_through = storage_of(x) in {storage_of(a) for a in active} - written
        return tracked_copy(x) if passed_through else x
    if isinstance(x, (np.ndarray, float, complex, np.inexact)) and carries_derivatives(np.asarray(x).dtype):
        return tracked_copy(x)
    return x
