"""The ``@ampi.kernel`` decorator: compile, call, differentiate.

Numba, and the differentiator (see `ampi.kernel.pipeline`), are imported when a kernel is first called.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload
from weakref import WeakSet

import numpy as np

from ampi import tape
from ampi.errors import KernelError
from ampi.kernel import arguments
from ampi.kernel.frontend.base.declared import converted, declared, is_signature, names_code, present, with_types
from ampi.kernel.frontend.language.custom import custom_jvp
from ampi.kernel.function_copies import original, with_names, with_prange, with_rest_as_tuple
from ampi.kernel.runtime.progress import counted
from ampi.memory import storages as memory
from ampi.tape.recording import at_first_task

if TYPE_CHECKING:
    from numba import types

    from ampi.kernel import ir

MAX_PARSED = 4  # programs of a kernel

_OPTIONS = frozenset(
    "parallel fastmath error_model boundscheck inline nogil debug cache nopython forceinline looplift "
    "no_cpython_wrapper no_cfunc_wrapper no_rewrites".split()
)


@overload
def kernel(function: Callable[..., Any], /, *, target: str = ..., without: Any = ..., **options: Any) -> Any: ...
@overload
def kernel(
    function: str | Sequence[Any] | None = ..., *, target: str = ..., without: Any = ..., **options: Any
) -> Callable[[Callable[..., Any]], Any]: ...
def kernel(
    function: Any = None, *, target: str = "cpu", without: Any = None, locals: Any = None, **options: Any
) -> Any:
    """Compile a function with Numba, and differentiate it where a tape records.

    Use it as ``@ampi.kernel``, ``@ampi.kernel(parallel=True, fastmath=True)`` or ``@ampi.kernel("f8(f8[:], f8)")``.

    Parameters
    ----------
    function : callable
        Python in Numba's subset: scalars, arrays, (named) tuples of these, loops, conditions, calls of other kernels.
        Alternatively a Numba signature, or a list of signatures: numbers among the arguments, and the result, are
        converted to these types; arguments that do not fit raise a TypeError.  A function compiled by ``numba.njit``
        keeps its declared options, signatures and types of variables.
    target : str, optional
        ``"cuda"`` for a function written for ``numba.cuda.jit``: ``kernel[grid, block](...)`` launches it (see
        `ampi.cuda`).  With NumPy arrays it runs on the CPU, as loops over blocks and threads.
    without : str or iterable of str, optional
        Analyses to switch off, to find out whether one is at fault or too expensive; none changes a result.  Names from
        `ampi.kernel.ANALYSES`, separated by commas.  By default ``$AMPI_WITHOUT``.
    locals : dict, optional
        Numba types for variables, by their names; values assigned to them are converted.
    **options
        Those of ``numba.njit``; code is always cached on disk.  ``error_model`` is ``"numpy"`` by default: division by
        zero results in infinity or nan, as in IEEE arithmetic.  With ``"python"`` it raises an exception in the kernel,
        but never in its derivatives.

        With ``boundscheck=True`` (or ``NUMBA_BOUNDSCHECK=1``, or ``AMPI_CHECK=full``) an index out of bounds raises an
        IndexError that names the array and the index, in the kernel and in its derivatives, which then run on one
        thread.  Otherwise the kernel reads out of bounds, as with Numba, and its adjoint writes there: it may overwrite
        other memory.

        With ``parallel=True``, kernel and adjoint run on ``numba.get_num_threads()`` threads; on one thread both are
        compiled without threads.  Results on the same number of threads are bitwise identical, except where an adjoint
        adds atomically (see `Kernel.explain`).  With ``deterministic=True`` they are bitwise identical on any number of
        threads: sums and products over a parallel loop of the kernel itself then run on one thread.

    Returns
    -------
    Kernel
        Called like the function.  Arrays that carry derivatives on a recording tape are differentiated through: a
        result that depends on them is an `ampi.ndarray` (0-d for a number) of the dtype that it has in the kernel.
        Other results are Numba's (a Python float for a ``float32``).

    Raises
    ------
    KernelError
        At the first call with arguments of new types: the function uses a feature that cannot be differentiated.

    Notes
    -----
    At a kink the derivative is one-sided.  ``abs`` and ``hypot`` take the derivative from the right; of equal arguments
    ``min`` and ``max`` take the first; a condition takes the branch that the kernel took; steps (``floor``, ``sign``,
    comparisons, conversion to integers) have derivative zero.  An infinite derivative (``sqrt`` at zero) is infinite,
    but values that do not depend on it do not become nan: zero times it is zero.

    Examples
    --------
    >>> @ampi.kernel
    ... def norm(x):
    ...     total = 0.0
    ...     for i in range(len(x)):
    ...         total += x[i] * x[i]
    ...     return total
    >>> ampi.grad(norm)(numpy.array([1.0, 2.0]))
    array([2., 4.])
    """
    make = _make if target == "cpu" else functools.partial(_make_for, target)
    if function is None or is_signature(function):
        return lambda f: make(f, function, without, locals, options)
    return make(function, None, without, locals, options)


def _make_for(target: str, function: Any, signature: Any, without: Any, locals: Any, given: dict[str, Any]) -> Any:
    """A kernel for a target other than the CPU."""
    if target != "cuda":
        raise KernelError(f"@ampi.kernel: unknown target {target!r}; write 'cpu' or 'cuda'")
    from ampi.kernel.cuda.launch import CudaKernel

    function = getattr(function, "py_func", function)
    make = lambda f, options: _make(f, None, without, locals, options)
    make(function, given)  # raises an error for what kernels do not support
    return CudaKernel(function, given, make)


def _make(function: Any, signature: Any, without: Any, locals: Any, options: dict[str, Any]) -> Kernel:
    if hasattr(function, "targetoptions"):  # a function compiled by Numba keeps its options
        of_numba = {n: v for n, v in function.targetoptions.items() if n in _OPTIONS and v is not None}
        options = {"error_model": "python", **of_numba, **options}
        locals = {**function.locals, **(locals or {})}
        if signature is None and not function._can_compile:
            signature = list(function.nopython_signatures)
    elif isinstance(function, Kernel):
        options = {**function.options, **options}
    function = getattr(function, "py_func", function)
    if not inspect.isfunction(function):
        raise KernelError(f"@ampi.kernel takes a Python function, not {function!r}")
    unknown = sorted(set(options) - _OPTIONS - {"deterministic"})
    if unknown:
        raise KernelError(f"@ampi.kernel of '{function.__name__}': unknown option {', '.join(unknown)}; see numba.njit")
    options = {name: value for name, value in options.items() if name not in ("cache", "nopython")}
    function = with_types(function, signature, locals)
    return Kernel(function, {"error_model": "numpy", **options}, switched_off(without))


@functools.cache
@counted()
def recorder() -> Callable[[Any, tuple[Any, ...]], Any]:
    """`recording.record`; imports the differentiator on first use."""
    from ampi.kernel.recording import record

    return record


@functools.cache
def counter() -> Callable[[], int]:
    """`threads.thread_count`, imported on first use."""
    from ampi.kernel.runtime.threads import thread_count

    return thread_count


def analyses() -> tuple[str, ...]:
    """`ampi.kernel.ANALYSES`, imported on first use."""
    from ampi.kernel.pipeline import ANALYSES

    return ANALYSES


def switched_off(without: Any) -> frozenset[str]:
    """The names of the analyses that are switched off."""
    given = os.environ.get("AMPI_WITHOUT", "") if without is None else without
    if not given:
        return frozenset()
    from ampi.kernel.options import names_among

    return names_among(given, analyses(), "AMPI_WITHOUT" if without is None else "without", "analysis")


class Kernel:
    """A compiled function that can be differentiated; made by `kernel`.

    Attributes
    ----------
    py_func : function
        The Python function.
    options : dict
        Options of ``numba.njit``.
    without : frozenset of str
        Analyses that are switched off.
    deterministic : bool
        Whether results are bitwise identical on any number of threads.
    """

    exist = False  # whether any kernel has been made
    living: WeakSet[Kernel] = WeakSet()

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], without: frozenset[str] = frozenset()):
        Kernel.exist = True
        Kernel.living.add(self)
        functools.update_wrapper(self, function)
        self.py_func = function
        self._is_compiled = False
        self.deterministic = bool(options.pop("deterministic", False))
        self.options = options
        self.without = without
        self._signature = inspect.signature(function)
        self._count = len(self._signature.parameters)
        self._declared = declared(function)
        self._conversions: dict[Any, tuple[np.dtype | None, ...]] = {}  # by the kinds of arguments
        kinds = {p.kind for p in self._signature.parameters.values()}
        self.has_rest = inspect.Parameter.VAR_POSITIONAL in kinds  # *args: bound, they are one tuple
        self._to_bind = self.has_rest or inspect.Parameter.KEYWORD_ONLY in kinds or self._declared is not None
        self.primals: dict[Any, Any] = {}  # by argument types
        self.contracts: dict[Any, Any] = {}  # by types and activity
        self._parsed: dict[Any, ir.Function] = {}  # the last programs, for their derivatives
        self.untaped: dict[Any, Any] = {}  # code and written arrays of calls without a tape, by types
        self.untaped_repeated: dict[Any, Any] = {}  # the same, by arrays
        self.prepared: dict[Any, Any] = {}  # recorded calls, by arrays
        self.recorded_again: dict[Any, Any] = {}  # those that have been seen twice

    def __repr__(self) -> str:
        return f"<ampi kernel {self.__qualname__}>"

    def __reduce__(self) -> Any:
        return _rebuild, (self.__module__, self.__qualname__)

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @functools.cached_property
    def checked(self) -> bool:
        """True if indices out of bounds raise an error, in the kernel and in its derivatives."""
        from ampi.kernel.runtime.bounds import are_checked

        return are_checked(self.options)

    @property
    def unchecked(self) -> bool:
        """True if nothing checks indices; Python does where code is not compiled."""
        from numba.core import config

        return not (self.checked or config.DISABLE_JIT)

    @property
    def _numba_type_(self) -> types.Type:
        """Numba's type of a kernel in other compiled functions: the dispatcher.

        A kernel without a parallel loop is compiled without threads, since its caller's loops use them, and compiling
        for threads takes several times as long.
        """
        from numba import types

        if self.has_rest:
            return types.Dispatcher(self._spread)
        return types.Dispatcher(self.dispatcher if self.has_parallel_loop else self.serial)

    # ------------------------------------------------------------------------------------------------- calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or self._to_bind:
            args = self.bind(args, kwargs)
        if tape.living:
            return recorder()(self, args)
        for a in args:
            if isinstance(a, (memory.TrackedArray, tuple, list)):
                return arguments.like(self.dispatcher(*map(arguments.plain, args)), args)
        return self.dispatcher(*args)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[Any, ...]:
        """All arguments by position, with defaults, and with numbers converted to the declared types."""
        if not kwargs and len(args) == self._count and not self.has_rest:
            return args if self._declared is None else self._converted(args)
        try:
            bound = self._signature.bind(*args, **(kwargs or {}))
        except TypeError as problem:
            raise TypeError(f"{self.__name__}(): {problem}") from None
        bound.apply_defaults()
        args = tuple(bound.arguments.values())
        return args if self._declared is None else self._converted(args)

    def _converted(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        key = tuple(map(arguments.kind, args))
        wanted = self._conversions.get(key)
        if wanted is None:
            given = self.types_of(tuple(map(arguments.plain, args)))
            wanted = self._declared.conversions(self.__name__, given)  # type: ignore[union-attr]
            self._conversions[key] = wanted
        return tuple(map(converted, args, wanted))

    @property
    def dispatcher(self) -> Any:
        """Numba's dispatcher of the primal: of a serial program if it runs on one thread."""
        return self.dispatcher_for(self.is_threaded())

    def dispatcher_for(self, threaded: bool) -> Any:
        """Numba's dispatcher of the primal, on threads or not."""
        return self._on_threads if threaded else self.serial

    @functools.cached_property
    def _on_threads(self) -> Any:
        parallel = self.options["parallel"]
        if self.deterministic:
            parallel = {**(parallel if isinstance(parallel, dict) else {}), "reduction": False}
        return self._dispatcher({**self.options, "parallel": parallel})

    @functools.cached_property
    def serial(self) -> Any:
        return self._dispatcher({**self.options, "parallel": False})

    @property
    def has_parallel_loop(self) -> bool:
        """True if the function refers to ``numba.prange``, under any name."""
        from numba import prange

        from ampi.kernel.runtime.cache import names_in

        named = names_in(self.py_func.__code__)
        spaces = [self.py_func.__globals__]
        spaces += [with_prange(m) for name in named if isinstance(m := spaces[0].get(name), ModuleType)]
        known = [space.get(name) for space in spaces for name in named]
        for cell in self.py_func.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell not assigned yet
                known.append(cell.cell_contents)
        return any(value is prange for value in known)

    @functools.cached_property
    def _spread(self) -> Any:
        """The primal of a kernel with ``*args``, for calls from other functions that Numba compiles."""
        return self._dispatcher({**self.options, "parallel": False}, spread=True)

    @counted()  # the first one imports Numba
    def _dispatcher(self, options: dict[str, Any], spread: bool = False) -> Any:
        from numba.core import config

        from ampi.kernel.runtime import cache
        from ampi.kernel.runtime.bounds import checking

        if config.DISABLE_JIT:
            function = without_kernels(self)
            return arguments.opaque(with_rest_as_tuple(function) if self.has_rest else function)
        if self.checked:
            options = checking(options)
        name = f"{self.__name__}_{cache.key(self.identity, cache.of_options(options))}"
        function = with_names(self.frozen_func, original)
        if self.has_rest and not spread:
            function, name = with_rest_as_tuple(function), f"{name}_of_tuple"
        if self._declared is None:
            return cache.compiled(function, name, options, self._checked)
        made = cache.compiled(function, name, {**options, "locals": self._declared.locals}, self._checked)
        for taken, result in self._declared.signatures:  # there are no others: its callers convert to these
            made.compile(taken if result is None else result(*taken))
        made.disable_compile(bool(self._declared.signatures))
        return made

    @functools.cached_property
    def frozen_func(self) -> Any:
        """The Python function with the globals of its first compilation: it is compiled and differentiated."""
        from ampi.kernel.runtime.frozen import frozen

        return frozen(self.py_func)

    def release_gil(self) -> None:
        """Forget compiled code: newly compiled code releases the GIL, since the program now runs tasks in threads."""
        calls = self.untaped, self.untaped_repeated, self.prepared, self.recorded_again
        for known in (self.primals, self.contracts, *calls):
            known.clear()
        for name in ("serial", "_on_threads", "_spread"):
            vars(self).pop(name, None)

    def _thaw(self) -> None:
        """Forget the values of globals after a failed first compilation: the next one reads them again."""
        if not self._is_compiled:
            for name in ("frozen_func", "identity", "placed_identity", "serial", "_on_threads", "_spread"):
                vars(self).pop(name, None)

    @functools.cached_property
    def identity(self) -> Any:
        """A key of everything on which this kernel's compiled code depends."""
        return self._identity(True if self.checked else None)

    @functools.cached_property
    def placed_identity(self) -> Any:
        """The same key with file and line, for generated sources that contain them."""
        return self._identity(True)

    def _identity(self, placed: bool | None) -> Any:
        from ampi.kernel.runtime import cache

        found = cache.identity(self.frozen_func, self.options, placed)
        return self.deterministic, self.checked, self.unchecked, found, sorted(self.without)

    @contextlib.contextmanager
    def _checked(self, dispatcher: Any, sig: Any) -> Iterator[None]:
        """A context for compiling the primal for one signature; raises an error if it cannot be differentiated."""
        from ampi.kernel.analysis.exactness import has_parallel_sum

        given = present(tuple(sig.args if hasattr(sig, "args") else sig))
        if any(map(names_code, given)):
            yield
            self._is_compiled = True
            return
        try:
            code = self.ir_of(given)
        except KernelError as problem:
            self._thaw()
            raise problem.with_traceback(None) from None
        parallel = dispatcher.targetoptions.get("parallel")
        if self.deterministic and has_parallel_sum(code):
            dispatcher.targetoptions["parallel"] = False
        try:
            yield
            self._is_compiled = True
        except AssertionError as problem:  # Numba's own, which gives neither place nor reason
            raise KernelError(
                f"{code.filename}:{code.first_line}: in kernel '{code.name}': Numba itself fails to compile this "
                f"(AssertionError: {', '.join(map(str, problem.args)) or 'without a message'})\n"
                "  pass arguments to stencils one by one, without *; or leave out parallel=True"
            ) from None
        finally:
            dispatcher.targetoptions["parallel"] = parallel
            self._thaw()

    # ------------------------------------------------------------------------------------------------- differentiation

    def is_threaded(self) -> bool:
        """Return whether to run on several threads.

        On one thread the serial program is faster, and compiles faster; but a deterministic kernel runs the same
        program on any number of threads.
        """
        return self._may_be_threaded and (self.deterministic or counter()() > 1)

    @functools.cached_property
    def _may_be_threaded(self) -> bool:
        return bool(self.options.get("parallel")) and not self.checked

    def types_of(self, args: tuple[Any, ...]) -> tuple[types.Type, ...]:
        """The Numba types of all arguments of a call."""
        return tuple(self._type_of(name, a) for name, a in zip(self._signature.parameters, args, strict=True))

    def _type_of(self, name: str, value: Any) -> types.Type:
        import numba
        from numba.core.errors import NumbaError

        try:
            return numba.types.literal(value) if isinstance(value, str) else numba.typeof(value)
        except (NumbaError, ValueError):
            raise KernelError(
                f"{self.__name__}(): argument '{name}' is a {type(value).__name__}, which kernels do not take; "
                "pass numbers, arrays, and (named) tuples of these"
            ) from None

    def ir_of(
        self,
        argument_types: tuple[types.Type, ...],
        same: tuple[tuple[int, int], ...] = (),
        single: frozenset[tuple[int, int]] = frozenset(),
    ) -> ir.Function:
        """The kernel's IR for arguments of these types, ready to be differentiated.

        ``same`` are array leaves that are the same memory (later, first), ``single`` the axes (leaf, axis) of size one
        that are broadcast.
        """
        key = self.frozen_func, argument_types, same, single
        if key not in self._parsed:
            if len(self._parsed) >= MAX_PARSED:
                self._parsed.clear()
            self._parsed[key] = self._parse(*key)
        return self._parsed[key]

    def _parse(self, function: Any, argument_types: Any, same: Any, single: Any) -> ir.Function:
        from ampi.kernel.separate_functions import primal

        code = primal(function, argument_types, same, single, self.without)
        if code.drawn and self.options.get("parallel"):
            raise KernelError(
                f"{code.filename}:{code.first_line}: in kernel '{code.name}': random numbers in a kernel with "
                "parallel=True, where each thread has its own generator\n"
                "  draw them in a kernel without parallel=True, and pass them as an array"
            )
        return code

    def lower_ir(self, *args: Any, **kwargs: Any) -> ir.Function:
        """The kernel's IR for these arguments."""
        return self.ir_of(self.types_of(self.bind(tuple(map(arguments.plain, args)), kwargs)))

    def contract(self, argument_types: tuple[types.Type, ...], active: frozenset[str]) -> Any:
        """The facts about the kernel that a tape needs: an `ampi.kernel.contract.Contract`.

        Parameters
        ----------
        argument_types : tuple of numba types
            One per parameter.
        active : frozenset of str
            The arguments that carry derivatives (``"x"``, or ``"state.x"``).
        """
        with counted():
            from ampi.kernel.case import Case
            from ampi.kernel.contract import make_contract
            from ampi.kernel.programs import positions_of

            made = make_contract(self, Case(argument_types, positions_of(self, argument_types, active)))
            return made if made.whole is None else made.whole()

    def explain(self, *args: Any, active: Any = None, passes: bool = False, **kwargs: Any) -> str:
        """Print and return a description of the adjoint for these arguments.

        It reports for each argument whether it is differentiated, and whether the adjoint needs its values; for each
        loop whether it runs on threads and in which form (see `ampi.kernel.optimise.parallel`), with the cost estimates
        that decide, and how it is vectorised; and which values are saved instead of recomputed.

        Parameters
        ----------
        *args, **kwargs
            As in a call.
        active : iterable of str, optional
            As for `adjoint_source`.
        passes : bool, optional
            Whether to add a table of the passes (see `ampi.kernel.pipeline`) with the time of each and the number of
            statements after it.
        """
        from ampi.kernel import programs
        from ampi.kernel.explain import explain, explain_passes
        from ampi.kernel.observations import watched

        bound = self.bind(args, kwargs)
        argument_types = self.types_of(tuple(map(arguments.plain, bound)))
        self._parsed.clear()  # the table of passes begins with parsing
        with watched() as seen:
            case = programs.whole_case(self, argument_types, None if active is None else frozenset(active))
            primal, derivative, split = programs.derive(self, case)
        wanted = [a.name for k, a in enumerate(primal.arguments) if k in case.active]
        text = explain(self, bound, primal, derivative, split, wanted)
        if passes:
            text += f"\n\n{explain_passes(seen)}"
        print(text)
        return text

    def adjoint_source(self, *args: Any, active: Any = None, **kwargs: Any) -> str:
        """The adjoint program for these arguments, as Python source.

        Parameters
        ----------
        *args, **kwargs
            As in a call.
        active : iterable of str, optional
            Names of the arguments to differentiate (``"x"``, or ``"state.x"``); by default all that are
            floating-point or complex.
        """
        from ampi.kernel.programs import adjoint_source

        argument_types = self.types_of(self.bind(tuple(map(arguments.plain, args)), kwargs))
        return adjoint_source(self, argument_types, None if active is None else frozenset(active))

    def tangent_source(self, *args: Any, active: Any = None, **kwargs: Any) -> str:
        """The tangent program for these arguments, as Python source; for parameters see `adjoint_source`."""
        from ampi.kernel.programs import tangent_source

        argument_types = self.types_of(self.bind(tuple(map(arguments.plain, args)), kwargs))
        return tangent_source(self, argument_types, None if active is None else frozenset(active))


def without_kernels(value: Any) -> Any:
    """A kernel as a Python function that calls Python functions, to step through it (NUMBA_DISABLE_JIT)."""
    return with_names(value.frozen_func, without_kernels) if isinstance(value, Kernel) else value


def _rebuild(module: str, qualname: str) -> Kernel:
    """The kernel of this name (kernels are pickled by reference)."""
    import importlib

    value: Any = importlib.import_module(module)
    for part in qualname.split("."):
        value = getattr(value, part)
    return value


custom_jvp.make_kernel = staticmethod(kernel)


def _release_gil() -> None:
    for kernel in list(Kernel.living):
        kernel.release_gil()


at_first_task.append(_release_gil)
