"""``kernel[grid, block](...)``: launches of CUDA kernels with NumPy arrays."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from ampi.base.checks import is_full
from ampi.base.program_lines import warning_level, where_called
from ampi.errors import ActivityWarning, KernelError

MOST_THREADS = 1024
MOST_ALONG = (1024, 1024, 64)
MOST_SHARED = 232448  # bytes for a block, on the GPUs that have the most
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
NUMBERS = frozenset("bool float32 float64 complex64 complex128".split())
NUMBERS |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
"""Names of the dtypes of numbers that kernels take."""
MOST_LAUNCHES = 1000  # that a kernel caches
ENOUGH = 31
"""Number of blocks along an axis above which it is worthwhile to distribute them to threads."""
HOW = "write kernel[blocks, threads](...): integers, or tuples of one to three of them"


class CudaKernel:
    """A function that is written for one thread of a CUDA grid; made by ``ampi.kernel(target="cuda")``.

    ``kernel[grid, block](*arguments)`` launches it: it is lowered to the processor, compiled by Numba, and
    differentiated where a tape records.  It returns None and writes its results into arrays.

    Attributes
    ----------
    py_func : function
        The Python function.
    options : dict
        Options of ``numba.njit`` for the lowered kernel.
    """

    def __init__(self, function: FunctionType, options: dict[str, Any], make: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self.options = options
        self.make = make
        self._signature = inspect.signature(function)
        self._count = len(self._signature.parameters)
        self._lowered: dict[Any, Any] = {}
        self._launches: dict[Any, Launch] = {}  # by the expression in brackets

    def __repr__(self) -> str:
        return f"<ampi CUDA kernel {self.__qualname__}>"

    def __getitem__(self, configuration: Any) -> Launch:
        key = configuration, types_in(configuration)  # 64.0 equals 64, and is an error
        try:
            known = self._launches.get(key)
        except TypeError:  # a list
            known = None
        if known is not None:
            return known
        given = configuration if isinstance(configuration, tuple) else (configuration,)
        if not 2 <= len(given) <= 4:
            raise KernelError(f"{self.__name__}[...]: {len(given)} numbers configure a launch\n  {HOW}")
        made = self.configure(*given)
        if len(self._launches) < MOST_LAUNCHES:
            with contextlib.suppress(TypeError):
                self._launches[key] = made
        return made

    def configure(self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Launch:
        """Return a launch with ``griddim`` blocks of ``blockdim`` threads and ``sharedmem`` bytes of shared memory."""
        grid = dimensions(self.__name__, "blocks", griddim)
        block = dimensions(self.__name__, "threads", blockdim)
        total = block[0] * block[1] * block[2]
        if total > MOST_THREADS or any(map(operator.gt, block, MOST_ALONG)):
            raise KernelError(
                f"{self.__name__}[...]: a block of {' x '.join(map(str, block))} threads; CUDA allows {MOST_THREADS}, "
                f"and {' x '.join(map(str, MOST_ALONG))} along x, y and z\n  take smaller blocks and a larger grid"
            )
        if any(map(operator.gt, grid, MOST_BLOCKS)):
            raise KernelError(
                f"{self.__name__}[...]: a grid of {' x '.join(map(str, grid))} blocks; CUDA allows "
                f"{' x '.join(map(str, MOST_BLOCKS))}\n  let each thread compute several elements: "
                "for i in range(cuda.grid(1), n, cuda.gridsize(1))"
            )
        require_stream(self.__name__, stream)
        if isinstance(sharedmem, bool) or not isinstance(sharedmem, (int, np.integer)) or sharedmem < 0:
            raise KernelError(
                f"{self.__name__}[...]: {sharedmem!r} bytes of dynamic shared memory\n  write "
                "kernel[blocks, threads, stream, bytes], an integer"
            )
        if sharedmem > MOST_SHARED:
            raise KernelError(
                f"{self.__name__}[...]: {sharedmem} bytes of dynamic shared memory; a block of CUDA has at most "
                f"{MOST_SHARED}\n  take smaller blocks, or store a part in local.array"
            )
        return Launch(self, grid, block, int(sharedmem), stream)

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Launch:
        """Return a launch of at least ``ntasks`` threads in one dimension, in blocks of ``tpb``."""
        counts = []
        for name, value in (("ntasks", ntasks), ("tpb", tpb)):
            try:
                counts.append(operator.index(value))
            except TypeError:
                counts.append(-1)
            if counts[-1] < 0:
                raise KernelError(
                    f"{self.__name__}.forall(...): {name} is {value!r}; it is a number of threads\n  write "
                    f"{self.__name__}.forall(a.size)(...)"
                )
        tasks, threads = counts[0], counts[1] or 128
        return self.configure(max(-(-tasks // threads), 1), threads, stream, sharedmem)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise KernelError(
            f"{self.__name__}() is a CUDA kernel, and is launched with a grid and a block\n  {HOW}, or forall(n)(...)"
        )

    @functools.cached_property
    def frozen_func(self) -> Any:
        """The Python function with the globals of its first launch."""
        from ampi.kernel.runtime.frozen import frozen

        return frozen(self.py_func)

    def lowered(self, launch: Launch, args: tuple[Any, ...], apart: bool = True) -> tuple[Any, tuple[int, ...]]:
        """Return the ordinary kernel for a launch with arguments like these (all of them by position).

        The second result is which of its arguments must share memory with no other; none with ``apart=False``.
        """
        geometry = launch.geometry
        key = geometry, tuple(map(kind, args)), apart
        found = self._lowered.get(key)
        if found is None:
            found = self._lowered[key] = self._lower(geometry, args, apart)
        return found

    def _lower(self, geometry: Any, args: tuple[Any, ...], apart: bool) -> tuple[Any, tuple[int, ...]]:
        from ampi.kernel import arguments
        from ampi.kernel.cuda.fits import Fitting
        from ampi.kernel.cuda.lowering import Notes, as_function, has_parallel_loop, lowered

        if any(map(is_on_device, args)):
            raise _OnDevice(*args)
        for name, value in zip(self._signature.parameters, args):
            require_argument(f"{where_called()}: {self.__name__}(): argument '{name}'", name, value)
        plain = self.make(self.py_func, {})
        types_ = plain.types_of(tuple(map(arguments.plain, args)))
        names: set[str] = set()
        notes = Notes()
        made = lowered(self.frozen_func, types_, geometry, apart=names if apart else None, notes=notes)
        kernel = self.make(as_function(made, self.py_func), {"parallel": has_parallel_loop(made), **self.options})
        kernel.stores_of_several = notes.several
        kernel.fitting = Fitting(self, notes.accesses, made.arguments)
        return kernel, tuple(k for k, a in enumerate(made.arguments) if a.name in names)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if not kwargs and len(args) == self._count:
            return args
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise KernelError(f"{self.__name__}(): {problem}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    # ------------------------------------------------------------------------------------------- as other kernels

    def explain(self, launch: Launch, *args: Any, target: str = "cpu", active: Any = None, passes: bool = False) -> str:
        """Call `Kernel.explain` for the lowered kernel: ``kernel.explain(kernel[grid, block], *arguments)``.

        With ``target="cuda"``, report on the adjoint's source for a GPU: which stores into adjoints of arguments are
        plain and which atomic, and why, and which registers, shared memory, barriers and buffers its kernels use;
        registers and spills are known where numba-cuda and ptxas are installed.
        """
        if self.is_for_gpu(target):
            from ampi.kernel.cuda.assembly import shown
            from ampi.kernel.cuda.emission import emitted, report

            made = emitted(launch, self.bind(args, {}), "adjoint", as_names(active))
            code, size = self.py_func.__code__, " x ".join(map(str, launch.block))
            title = f"{self.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
            first = f"adjoint as source for a GPU, in blocks of {size} threads"
            text = "\n".join([title, first, "", *report(made, shown(made))])
            print(text)
            return text
        kernel, given = launch.prepared(args)
        return kernel.explain(*given, active=as_names(active), passes=passes)

    def adjoint_source(self, launch: Launch, *args: Any, active: Any = None, target: str = "cpu") -> str:
        """The adjoint of a launch as Python source: `Kernel.adjoint_source` of the lowered kernel.

        With ``target="cuda"`` it is source for ``numba.cuda``: kernels, and a function that launches them on a grid of
        any size.  It is valid for blocks of this shape, arguments of these types, and this amount of dynamic shared
        memory.

        Parameters
        ----------
        launch : Launch
            ``kernel[grid, block]``.
        *args
            Arguments of the kernel: NumPy arrays and numbers.
        active : iterable of str, optional
            The arguments to differentiate; by default all arrays and numbers that can carry derivatives.
        target : str, optional
            ``"cpu"`` or ``"cuda"``.

        Raises
        ------
        KernelError
            A statement cannot run on a GPU; the message names its line.
        """
        if self.is_for_gpu(target):
            return self._written(launch, args, "adjoint", active)
        kernel, given = launch.prepared(args)
        return kernel.adjoint_source(*given, active=active)

    def tangent_source(self, launch: Launch, *args: Any, active: Any = None, target: str = "cpu") -> str:
        """The tangent of a launch as Python source, like `adjoint_source`."""
        if self.is_for_gpu(target):
            return self._written(launch, args, "tangent", active)
        kernel, given = launch.prepared(args)
        return kernel.tangent_source(*given, active=active)

    def source(self, launch: Launch, *args: Any, target: str = "cpu") -> str:
        """The lowered kernel of a launch as Python source, or with ``target="cuda"`` as source for ``numba.cuda``."""
        if self.is_for_gpu(target):
            return self._written(launch, args, "primal", None)
        kernel, _ = launch.prepared(args)
        return kernel.py_func.__ampi_text__

    @staticmethod
    def is_for_gpu(target: str) -> bool:
        if target not in ("cpu", "cuda"):
            raise KernelError(f"target {target!r}; it can be 'cpu' or 'cuda'")
        return target == "cuda"

    def _written(self, launch: Launch, args: tuple[Any, ...], mode: str, active: Any) -> str:
        from ampi.kernel.cuda.emission import source_of

        return source_of(launch, self.bind(args, {}), mode, as_names(active))


def types_in(value: Any) -> Any:
    """Return the type of a value; those of its items for a tuple."""
    return tuple([types_in(item) for item in value]) if type(value) is tuple else type(value)


def as_names(active: Any) -> frozenset[str] | None:
    """Return the names of active arguments; None for all."""
    return None if active is None else frozenset([active] if isinstance(active, str) else active)


class Launch:
    """A CUDA kernel with a grid and a block: call it with the kernel's arguments."""

    def __init__(
        self,
        kernel: CudaKernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: Any = 0,
    ) -> None:
        self.kernel, self.grid, self.block, self.shared, self.stream = kernel, grid, block, shared, stream

    @functools.cached_property
    def geometry(self) -> Any:
        """Return the geometry for which the kernel is lowered."""
        from ampi.kernel.cuda.loops import Geometry

        more, wide = (tuple(n > least for n in self.grid) for least in (1, min(max(self.grid) // 2, ENOUGH)))
        return Geometry(self.block, more, wide, self.shared > 0)  # type: ignore[arg-type]

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        try:
            kernel, given = self.prepared(args, kwargs)
        except _OnDevice as found:
            on_device[0](self, found.args)
            return
        if is_full():
            self.check(self.kernel.bind(args, kwargs))
        kernel.fitting.require(self, given)
        if kernel.stores_of_several:
            warn_of_several(self.kernel, kernel.stores_of_several, given)
        kernel(*given)

    def check(self, args: tuple[Any, ...]) -> None:
        """Interpret the launch thread by thread, with copies of arrays: races and similar errors are a KernelError.

        Launches with structured arrays are not checked.
        """
        from ampi.kernel import arguments
        from ampi.kernel.cuda.interpreter import interpret

        copies: dict[int, np.ndarray] = {}
        plain = [arguments.plain(a) for a in args]
        if any(isinstance(a, np.ndarray) and a.dtype.names for a in plain):
            return
        given = [
            copies.setdefault(original.__array_interface__["data"][0], original.copy())
            if isinstance(original, np.ndarray)
            else original
            for original in plain
        ]
        interpret(self.kernel.frozen_func, self.grid, self.block, self.shared, tuple(given))

    def prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[Any, tuple[Any, ...]]:
        """Return the lowered kernel and its arguments."""
        args = self.kernel.bind(args, kwargs or {})
        kernel, apart = self.kernel.lowered(self, args)
        leaves = leaves_of(args)
        if apart and any(_meet(leaves, k) for k in apart):
            kernel, _ = self.kernel.lowered(self, args, False)
        return kernel, (*leaves, *self.grid, self.shared)


def warn_of_several(kernel: Any, several: Sequence[Any], args: Sequence[Any]) -> None:
    """Warn that threads store to the same elements, if an argument is active."""
    from ampi.arrays.activity import is_active
    from ampi.tape import recording

    tape = recording()
    if tape is None or not any(isinstance(a, np.ndarray) and is_active(tape, a) for a in args):
        return
    for found in several:
        text = f"{where_called()}: {kernel.__name__}(), {found}"
        warnings.warn(text, ActivityWarning, stacklevel=warning_level())


def _meet(leaves: Sequence[Any], place: int) -> bool:
    """Return whether one of the arguments may share memory with another one."""
    from ampi.kernel.arguments import plain

    one = plain(leaves[place])
    others = (plain(v) for k, v in enumerate(leaves) if k != place and isinstance(v, np.ndarray))
    return any(np.may_share_memory(one, other) for other in others)


class _OnDevice(Exception):
    """Raised where a kernel would be lowered for arguments of which some are arrays on a device."""


on_device: list[Callable[[Launch, tuple[Any, ...]], None]] = []
"""The function that launches kernels with arrays on a device; `ampi.device` enters it."""


def is_on_device(value: Any) -> bool:
    """Return whether an argument is an array on a device."""
    return not isinstance(value, np.ndarray) and hasattr(value, "__cuda_array_interface__")


def require_argument(who: str, name: str, value: Any) -> None:
    """Raise an error for an argument that CUDA kernels do not take."""
    if isinstance(value, (tuple, list)):
        raise KernelError(
            f"{who} is a {type(value).__name__}, which CUDA kernels do not take\n  pass numbers and arrays: "
            f"numpy.array({name})"
        )
    if isinstance(value, (str, dict, set)) or value is None:
        raise KernelError(
            f"{who} is a {type(value).__name__}, which CUDA kernels do not take\n  pass numbers and arrays"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise KernelError(
            f"{who} is a masked array, whose mask CUDA kernels do not see\n  pass {name}.data, and the mask as an array"
        )
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind != "V" and dtype.name not in NUMBERS:
        raise KernelError(
            f"{who} is an array of {dtype.name}, which CUDA kernels do not take\n  convert it: "
            f"{name}.astype(numpy.float64)"
        )


def leaves_of(args: tuple[Any, ...]) -> Sequence[Any]:
    """Return the arguments of a lowered kernel, with structured arrays split into their fields."""
    from ampi.kernel import arguments

    return arguments.leaves_of(args)


def dimensions(name: str, what: str, given: Any) -> tuple[int, int, int]:
    """Return the size of a grid or a block along x, y and z."""
    items = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    try:
        numbers = tuple(map(operator.index, items))
    except TypeError:
        numbers = ()
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise KernelError(f"{name}[...]: {given!r} {what}; they are positive integers, one to three\n  {HOW}")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def require_stream(name: str, stream: Any) -> None:
    """Raise an error for what is no stream: a number or a container."""
    is_default = isinstance(stream, (int, np.integer)) and not isinstance(stream, bool) and stream >= 0
    others = (bool, int, float, complex, str, bytes, tuple, list, dict, set, np.ndarray, np.generic)
    if not is_default and isinstance(stream, others):
        raise KernelError(
            f"{name}[...]: the stream is {stream!r}; it is 0 or ampi.cuda.stream()\n  write "
            "kernel[blocks, threads, stream, bytes of shared memory]"
        )


LAYOUT = 0x1 | 0x2 | 0x100 | 0x400
"""NumPy's flags that belong to the type of an array: C and Fortran order, alignment, and whether it can be written."""
_NUMBERS = frozenset((float, int, bool, complex))


def kind(value: Any) -> Any:
    """Return the kind of an argument for which a kernel is lowered."""
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
            return "masked"
        return value.dtype, value.ndim, value.flags.num & LAYOUT
    if type(value) in _NUMBERS:
        return type(value)
    if is_on_device(value):
        return "device"
    return value.dtype if hasattr(value, "dtype") else type(value)
