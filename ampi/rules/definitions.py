"""Derivative rules for functions of any package: `ampi.rules.define`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arrays import elementwise
from ..arrays.activity import is_active, is_inexact, plain_of
from ..arrays.known_classes import mapped, member, opened, parts
from ..arrays.nested import from_nested
from ..base.program_lines import line_outside
from ..errors import ActivityError, TapeError
from ..interception.hooks import Hook, hook, when_imported
from ..memory.handouts import settle_all
from ..memory.storages import TrackedArray, is_view_of, region_of, wrapped
from ..tape import (
    BaseAdjoint,
    Bystander,
    Push,
    SecondOrder,
    Sweep,
    Tape,
    current,
    no_tangent,
    passive,
    transposed,
)
from . import functions
from .known_parameters import forget


def define(
    function: Any,
    formula: Callable | None = None,
    *,
    adjoint: Mapping[str, Callable | None] | None = None,
    partials: tuple | None = None,
    constant: bool = False,
    communicates: bool = False,
    calls_back: bool = False,
    require: Callable | None = None,
) -> Any:
    """Define the derivative of a function that ampi does not know.

    ::

        ampi.rules.define(
            "mylib:solve",                                     # x = mylib.solve(a, b, transposed=False)
            adjoint={
                "b": lambda g, a, transposed: mylib.solve(a, g, not transposed),
                "a": lambda g, a, transposed, result: ...,
            },
        )

        @ampi.rules.define("mylib:softplus")                   # the same in functions of ampi.numpy
        def softplus(x):
            return np.log1p(np.exp(x))

    While a tape records, calls of the function are differentiated, under any name and whenever the program has imported
    it (a built-in function must be an attribute of a module). Without a tape nothing changes. Values are always those
    of the function itself.

    Parameters
    ----------
    function : callable or str
        A function, a method of a class, a ufunc, or a name such as ``"package.module:Class.method"``; with a name the
        module is not imported: the rule waits until the program imports it.
    formula : callable, optional
        The same function, with the same parameters, written with functions that have derivatives. If neither this nor
        another rule is given, `define` is a decorator for the formula.
    adjoint : dict, optional
        For each parameter of the function that may be active, the adjoint: a function whose first parameter is ``g``,
        the adjoint of the result, in the result's structure. The names of its other parameters request values of the
        call: parameters of the function (for ``**keywords`` their dictionary), ``result``, or the ``shape`` and
        ``dtype`` of the argument itself. It gets plain arrays, must not change them, and returns the argument's
        adjoint with the argument's structure and shape, in the real inner product Re⟨x̄, ẋ⟩; None means zero. None
        instead of the function: the result does not depend on the argument. For an argument that is an object
        (`define_class`), the adjoint is the tuple of the adjoints of its arrays. An active argument without an entry
        is an error. In forward mode ``g`` is an `ampi.ndarray`, and the adjoint is transposed: arrays into which it
        writes parts of ``g`` must be made from it, as ``np.zeros_like(g, shape=...)``; writing them into plain arrays
        is an error.
    partials : tuple, optional
        For a ufunc: for each argument the partial derivative, a function whose parameters request the values it needs
        (``x``, ``y``, ``w``: the arguments; ``z``: the result), a number, or None.
    constant : bool, optional
        The result has no derivative.
    communicates : bool, optional
        The adjoint communicates: every call is recorded while a tape records, and the adjoint runs in every sweep on
        all ranks that called, whether or not their arguments are active.
    calls_back : bool, optional
        The function calls functions of the program. If one of these returns an active value, an error is raised.
    require : callable, optional
        With an adjoint: called before a call is recorded, and raises an error if the adjoint does not apply. Its
        parameters name the (plain) arguments of the call that it gets.

    Raises
    ------
    TypeError
        The kind of rule does not fit the kind of function, or an adjoint requests a value that does not exist.

    See also
    --------
    ampi.custom_vjp : for your own functions.

    Examples
    --------
    >>> import colorsys  # stands for a library
    >>> colorsys.square = lambda x: x * x
    >>> ampi.rules.define(colorsys.square, adjoint={"x": lambda g, x: 2.0 * x * g})
    >>> ampi.grad(lambda x: np.sum(colorsys.square(x)))(numpy.array([1.0, 2.0]))
    array([2., 4.])
    """
    if formula is None and adjoint is None and partials is None and not constant:
        return lambda formula: define(function, formula)
    options = {"communicates": communicates, "calls_back": calls_back, "require": require}
    if isinstance(function, str):
        module, _, path = function.partition(":")
        if not path:
            raise TypeError(f"ampi.rules.define({function!r}, ...): write it as 'package.module:name'")
        when_imported(
            module,
            lambda: _install(member(sys.modules[module], path), formula, adjoint, partials, constant, options),
        )
    else:
        _install(function, formula, adjoint, partials, constant, options)
    return formula


def _install(
    function: Any,
    formula: Callable | None,
    adjoint: Mapping | None,
    partials: tuple | None,
    constant: bool,
    options: dict[str, Any],
) -> None:
    if isinstance(function, np.ufunc):
        if constant:
            elementwise.CONSTANTS.add(function)
        elif partials is not None:
            elementwise.RULES[function] = elementwise.rule(function.__name__, partials)
        else:
            raise TypeError(f"ampi.rules.define: give the ufunc {function.__name__} its partials=")
        return
    if isinstance(function, type):
        raise TypeError(f"ampi.rules.define: {function.__name__} is a class; name the method, e.g. __init__")
    if constant:
        handle = _as_constant
    elif formula is not None:
        handle = functools.partial(_by_formula, formula)
    elif adjoint is not None:
        handle = Adjoint(adjoint, **options)
    else:
        raise TypeError("ampi.rules.define: partials= are for ufuncs")
    if hasattr(function, "_implementation"):  # functions that dispatch on their arguments' classes
        forget(function)
        found = Hook(function, f"{function.__module__}.{function.__name__}", handle)
        functions.RULES[function] = lambda *arguments, **keywords: handle(found, current(), arguments, keywords)
    else:
        found = hook(function, handle)
    if isinstance(handle, Adjoint):
        try:
            handle.prepare(found)
        except TypeError as error:
            if not_fitting is None:
                raise
            not_fitting(found, error)


not_fitting: Callable[[Hook, TypeError], None] | None = None
"""Called with one of ampi's own rules that does not fit the installed version of the function."""


def any_active(tape: Tape, *given: Any) -> bool:
    """Return whether a part of an argument is active."""
    return any(is_active(tape, x) for x in parts(given) if isinstance(x, np.ndarray))


# ------------------------------------------------------------------------------------------------------- kinds of rules


def refusal(name: str, why: str, instead: str = "") -> ActivityError:
    """The error for a function without a rule, with the program's line."""
    instead = instead or "write it with functions that have one, wrap it with ampi.custom_vjp"
    return ActivityError(
        f"{line_outside(name)}: {name} has no derivative rule{why} and was given an active array; {instead}, "
        "or pass ampi.value(x) if its result is a constant"
    )


def _plainly(found: Hook, arguments: tuple, keywords: dict) -> Any:
    """Call the function without active arguments; results from tracked arrays are tracked."""
    if not any(isinstance(x, TrackedArray) for x in parts((arguments, keywords))):
        return found.original(*arguments, **keywords)
    if _may_write(found, arguments, keywords):
        return found.original(*arguments, **keywords)  # writes are handled as for any code outside ampi
    result = found.original(*mapped(plain_of, arguments), **mapped(plain_of, keywords))
    return mapped(wrapped, result)


def _may_write(found: Hook, arguments: tuple, keywords: dict) -> bool:
    """Return whether a call may write into its arguments."""
    try:
        given = found.signature.bind(*arguments, **keywords).arguments
    except TypeError:
        return True
    return any(
        (name in _OUTPUTS and any(isinstance(x, np.ndarray) for x in parts(x)))
        or (name.startswith("overwrite_") and x is not None and x is not False)
        for name, x in given.items()
    )


_OUTPUTS = {"out", "output", "distances", "indices"}


def _as_constant(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    return _plainly(found, arguments, keywords)


def _by_formula(formula: Callable, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    if not any_active(tape, arguments, keywords):
        return _plainly(found, arguments, keywords)
    _require_no_output(found, arguments, keywords)
    with passive():  # the formula gets copies: it may compute in place
        exact = found.original(*mapped(_copied, arguments), **mapped(_copied, _unharmed(keywords)))
    with np.errstate(all="ignore"):
        result = formula(*arguments, **keywords)
    return exactly(found.name, tape, result, exact, [x for x in parts((arguments, keywords)) if _is_array(x)])


def _require_no_output(found: Hook, arguments: tuple, keywords: dict) -> None:
    """Raise an error if the call has an output array."""
    given = found.signature.bind(*arguments, **keywords).arguments
    for name in ("out", "output"):
        if isinstance(given.get(name), np.ndarray):
            raise refusal(
                found.name,
                f" that writes into an array ({name}=)",
                f"assign its result: array[...] = {found.__name__}(...)",
            )


def _unharmed(keywords: dict) -> dict:
    """Keyword arguments without those that allow arguments to be overwritten."""
    return {name: False if name.startswith("overwrite_") else x for name, x in keywords.items()}


def _is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def exactly(name: str, tape: Tape, result: Any, exact: Any, given: list) -> Any:
    """The result of a formula, with the values of the function itself."""
    from ..arrays.indexing import copied
    from ..memory.storages import as_scalar, is_scalar, writable

    made, wanted = list(parts(result)), list(parts(exact))
    if len(made) != len(wanted):
        raise refusal(name, f" for these arguments (its formula gives {len(made)} results and not {len(wanted)})")
    found = []
    for r, e in zip(made, wanted):
        if not (isinstance(e, (np.ndarray, np.inexact, float, complex)) and is_inexact(np.asarray(e))):
            found.append(wrapped(e))
            continue
        e = e if isinstance(e, (np.ndarray, np.generic)) else np.asarray(e)[()]
        if not is_active(tape, r):
            found.append(wrapped(e))  # one of several results, which depends on no active value
            continue
        if r.shape != e.shape:
            raise refusal(name, f" for these arguments (its formula gives the shape {r.shape} and not {e.shape})")
        if r.dtype != e.dtype:
            r = r.astype(e.dtype)
        if is_view_of(r, [x for x in given if isinstance(x, TrackedArray)]) or (
            e.ndim
            and [s for s, n in zip(r.strides, r.shape) if n > 1] != [s for s, n in zip(e.strides, e.shape) if n > 1]
        ):
            r = copied(r, np.array(e, order="K"))
        if not is_scalar(r) and not e.ndim and not isinstance(e, np.ndarray):
            writable(r)[...] = e
            r = as_scalar(r) if r.base is None else r[()]
        else:
            writable(r)[...] = e
        settle_all([r])
        found.append(r)
    if not any(is_active(tape, r) for r in found):
        if any(is_inexact(r) for r in found):
            raise refusal(name, " that keeps derivatives for these arguments")
        return exact
    rest = iter(found)
    return mapped(lambda _: next(rest), exact)


class Adjoint:
    """A rule given by the adjoints of the arguments.

    Attributes
    ----------
    second_order : str or None
        ``"differentiated"`` if the adjoints use only functions that have derivatives, and arrays that NumPy's functions
        return: then second derivatives exist as well.
    """

    second_order: SecondOrder | None = None

    def __init__(
        self,
        adjoints: Mapping[str, Callable | None],
        communicates: bool = False,
        calls_back: bool = False,
        require: Callable | None = None,
    ) -> None:
        self.adjoints = dict(adjoints)
        self.require = require
        self.calls_back = calls_back
        self.communicates = communicates
        self.needs: dict[str, list[str]] = {}

    def prepare(self, found: Hook) -> None:
        """Check the values that the adjoints request."""
        known = set(found.signature.parameters)
        for name, adjoint in self.adjoints.items():
            if name not in known:
                raise TypeError(f"ampi.rules.define: {found.name} has no parameter {name!r} (but {', '.join(known)})")
            wanted = [] if adjoint is None else list(inspect.signature(adjoint).parameters)[1:]
            for wish in wanted:
                if wish not in known and wish not in ("result", "shape", "dtype"):
                    raise TypeError(
                        f"ampi.rules.define: the adjoint of {found.name} requests {wish!r}, which is not one "
                        f"of its parameters {', '.join(known)}"
                    )
            self.needs[name] = wanted

    def __call__(self, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
        recorded = not isinstance(tape, Bystander)
        if not any_active(tape, arguments, keywords) and not (self.communicates and recorded):
            return _plainly(found, arguments, keywords)
        return self.record(found, tape, arguments, keywords)

    def record(self, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
        """Record a call with active arguments."""
        _require_no_output(found, arguments, keywords)
        bound = found.signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        given, parameters = bound.arguments, found.signature.parameters
        for name in given:
            if name.startswith("overwrite_"):
                given[name] = False  # the argument must not be overwritten
            elif parameters[name].kind not in _SEVERAL and _is_numbers(given[name]):
                given[name] = from_nested(given[name])
        active = [name for name, x in given.items() if any_active(tape, x)]
        for name in active:
            if name not in self.adjoints:
                raise refusal(found.name, f" with respect to its argument {name}")
        if self.communicates:  # the other ranks' adjoints wait for this one, even if nothing is active here
            active = [name for name in given if name in self.adjoints]
        active = [name for name in active if self.adjoints[name] is not None]
        wanted = {wish for name in active for wish in self.needs[name]}
        values = {name: _kept(tape, given[name]) for name in wanted if name in given}
        # Plain views of the same memory are active as well.
        out = _copied if self.calls_back else plain_of
        plainly = {name: mapped(out, x) for name, x in given.items()}
        call = inspect.BoundArguments(found.signature, plainly)
        if self.require is not None:
            self.require(*[plainly[name] for name in inspect.signature(self.require).parameters])
        with contextlib.nullcontext() if self.calls_back else passive():
            result = found.original(*call.args, **call.kwargs)
        owned = [x for x in parts(plainly) if isinstance(x, np.ndarray)]
        result = mapped(lambda r: _new(r, owned), result)
        outputs = [r for r in parts(result) if is_inexact(r)]
        if not outputs or not (active or self.communicates):
            return result
        for r in outputs:
            tape.activate(r)
        if "result" in wanted and "result" not in given:
            values["result"] = _kept(tape, result)
        record = _ByAdjoint()
        record.name, record.adjoints, record.always = found.name, self, self.communicates
        record.second_order = self.second_order
        record.sources = {
            name: [region_of(x) if is_active(tape, x) else None for x in parts(given[name])] for name in active
        }
        record.values = values
        record.kinds = {name: _kind_of(given[name], record.sources[name]) for name in active}
        record.result = opened(lambda r: region_of(r) if is_inexact(r) else None, result)
        tape.append(record, created=outputs)
        return result


_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_numbers(x: Any) -> bool:
    """Return whether a list is one array and not several."""
    if not isinstance(x, (list, tuple)):
        return False
    flat = list(parts(x))
    return any(isinstance(a, TrackedArray) for a in flat) and all(np.ndim(a) == 0 for a in flat)


def _copied(x: Any) -> Any:
    return np.array(plain_of(x))[()] if isinstance(x, TrackedArray) else x


def _kept(tape: Tape, x: Any) -> Any:
    return mapped(lambda a: tape.need(a) if isinstance(a, np.ndarray) else a, x)


def _new(r: Any, owned: list) -> Any:
    if isinstance(r, (float, complex)) and not isinstance(r, np.generic):
        r = np.asarray(r)[()]
    elif type(r) is np.ndarray and any(np.may_share_memory(r, x) for x in owned):
        r = np.array(r)
    return wrapped(r) if isinstance(r, np.generic) or is_inexact(r) else r


def _kind_of(x: Any, sources: list) -> dict[str, Any]:
    """Shape and dtype of an argument, for its adjoint: those of its first active array, or else of its first array."""
    arrays = [a for a in parts(x) if isinstance(a, np.ndarray)]
    first = next((r for r in sources if r is not None), arrays[0] if arrays else np.asarray(plain_of(x)))
    return {"shape": first.shape, "dtype": first.dtype}


class _ByAdjoint(BaseAdjoint):
    __slots__ = ("adjoints", "always", "kinds", "name", "result", "second_order", "sources", "values")

    def __call__(self, sweep: Sweep) -> None:
        regions = [r for r in parts(self.result) if r is not None]
        if not self.always and not any(sweep.has_shadow(r) for r in regions):
            return
        g = opened(lambda r: None if r is None else sweep.shadow(r)[()], self.result)
        for name, sources in self.sources.items():
            known = {**self.kinds[name], **self.values}
            bar = self.adjoints.adjoints[name](g, **{wish: known[wish] for wish in self.adjoints.needs[name]})
            if bar is None:
                continue
            bars = (
                list(parts(bar)) if isinstance(bar, (tuple, list, dict)) else [bar] if len(sources) == 1 else list(bar)
            )
            if len(bars) != len(sources):
                raise TapeError(
                    f"the adjoint of {self.name} returned {len(bars)} arrays for {name}, which has {len(sources)}"
                )
            for source, value in zip(sources, bars):
                if source is None or value is None:
                    continue
                value = np.asanyarray(value)
                if value.shape != source.shape:
                    raise TapeError(
                        f"the adjoint of {self.name} returned shape {value.shape} for {name} of shape {source.shape}"
                    )
                sweep.add(source, value)

    def tangent(self, push: Push) -> None:
        """Apply the transposed adjoint."""
        if self.always:
            raise no_tangent(f"{self.name}, whose adjoint communicates,")
        results = [r for r in parts(self.result) if r is not None]
        sources = [s for several in self.sources.values() for s in several if s is not None]
        transposed(push, self, sources, results)
