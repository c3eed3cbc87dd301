"""Plans of FFTW in pyFFTW and mpi4py-fft.

When the library is imported, the class of plans is replaced by a subclass, and functions that allocate aligned memory
return `ampi.ndarray` objects.  Values are FFTW's; derivatives are those of the functions of `numpy.fft`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import numpy as ours
from ..arrays.writing import must_announce, write_constants
from ..base.arrivals import when_imported
from ..errors import ActivityError
from ..memory.storages import TrackedArray, carries_derivatives, plain, tracked
from ..rules.definitions import define, exactly
from ..tape import current


def _as_ours(array: Any) -> Any:
    if isinstance(array, np.ndarray) and not isinstance(array, TrackedArray) and carries_derivatives(array.dtype):
        return tracked(array)
    return array


def _transform(x: Any, result: np.ndarray, axes: Any, forward: bool, kinds: Any = None) -> Any:
    """FFTW's unnormalised transform as a formula; ``kinds`` gives the real-to-real transform of each axis."""
    axes = tuple(axes)
    if x.dtype.kind == result.dtype.kind == "f":
        for axis, kind in zip(axes, kinds, strict=True):
            x = _of_real_numbers(x, kind.removeprefix("FFTW_"), axis)
        return x
    if x.dtype.kind == "c" and result.dtype.kind == "c":
        return (ours.fft.fftn if forward else ours.fft.ifftn)(x, axes=axes, norm="backward" if forward else "forward")
    if result.dtype.kind == "c":
        return ours.fft.rfftn(x, axes=axes)
    return ours.fft.irfftn(x, s=[result.shape[axis] for axis in axes], axes=axes, norm="forward")


_KINDS = "R2HC HC2R DHT REDFT00 REDFT01 REDFT10 REDFT11 RODFT00 RODFT01 RODFT10 RODFT11".split()
"""FFTW's real-to-real transforms in the order of their codes (``fftw3.h``)."""
_TYPES = {"00": 1, "10": 2, "01": 3, "11": 4}
"""SciPy's types of cosine and sine transforms, which have FFTW's normalisation."""


def _of_real_numbers(x: Any, kind: str, axis: int) -> Any:
    """A real-to-real transform along an axis."""
    if kind == "R2HC":  # half a spectrum as r₀, r₁, …, i₂, i₁
        half = ours.moveaxis(ours.fft.rfft(x, axis=axis), axis, -1)
        imaginary = half.imag[..., (x.shape[axis] - 1) // 2 : 0 : -1]
        return ours.moveaxis(ours.concatenate([half.real, imaginary], axis=-1), -1, axis)
    if kind[-2:] not in _TYPES:
        raise ActivityError(
            f"FFTW_{kind}, a transform of real arrays, has no derivative rule and was given an active array; wrap it "
            "with ampi.custom_vjp, or pass ampi.value(x) if its result is a constant"
        )
    import scipy.fft

    transform = scipy.fft.dct if kind.startswith("REDFT") else scipy.fft.dst
    with scipy.fft.set_backend("scipy"):  # pyFFTW may be set as a backend
        return transform(x, _TYPES[kind[-2:]], axis=axis)


def _execute(run: Callable[[], Any], source: Any, target: Any, formula: Callable[[Any], Any], name: str) -> None:
    """Run a plan from ``source`` to ``target`` and record it; the source keeps its values."""
    tape = current()
    if tape is None and not (must_announce(source) or must_announce(target)):
        run()
        return
    source, target = _as_ours(source), _as_ours(target)
    active = tape is not None and tape.is_active(source)
    result = formula(source) if active else None
    before = plain(source).copy()

    def action() -> None:
        run()
        if not np.may_share_memory(source, target):
            plain(source)[...] = before

    write_constants([target], action)
    if result is not None:
        exact = plain(target).copy()
        target[...] = exactly(name, tape, result.astype(exact.dtype, copy=False), exact, [source])


def _plan_of_pyfftw(cls: Any) -> Any:
    class FFTW(cls):
        """pyFFTW's plan, whose transforms are recorded."""

        def __new__(kind: Any, input_array: Any, output_array: Any, *arguments: Any, **keywords: Any) -> Any:
            given = _as_ours(input_array), _as_ours(output_array)
            seen = [(plain(x), plain(x).copy(), x) for x in given if isinstance(x, TrackedArray) and must_announce(x)]
            new = cls.__new__(kind, *given, *arguments, **keywords)
            for memory, before, x in seen:
                after = memory.copy()
                if after.tobytes() != before.tobytes():  # planning (except FFTW_ESTIMATE) overwrites the arrays
                    memory[...] = before
                    write_constants([x], functools.partial(np.copyto, memory, after))
            return new

        def update_arrays(self, new_input_array: Any, new_output_array: Any) -> None:
            """Transform other arrays from now on."""
            super().update_arrays(_as_ours(new_input_array), _as_ours(new_output_array))

        def execute(self) -> None:
            """Transform the input array into the output array."""
            directions = self.direction
            kinds = (directions,) * len(self.axes) if isinstance(directions, str) else directions
            formula = lambda x: _transform(x, self.output_array, self.axes, directions == "FFTW_FORWARD", kinds)
            _execute(super().execute, self.input_array, self.output_array, formula, "pyfftw.FFTW")

        def __call__(self, input_array: Any = None, output_array: Any = None, *arguments: Any, **keywords: Any) -> Any:
            return super().__call__(_as_ours(input_array), _as_ours(output_array), *arguments, **keywords)

    FFTW.__module__, FFTW.__qualname__ = cls.__module__, cls.__qualname__
    return FFTW


def _plan_of_mpi4py_fft(cls: Any) -> Any:
    class FFT(cls):
        """mpi4py-fft's plan, whose transforms are recorded."""

        def __new__(
            kind: Any, input_array: Any, output_array: Any, axes: Any = (-1,), sign: Any = -1, *arguments: Any
        ) -> Any:
            new = cls.__new__(kind, _as_ours(input_array), _as_ours(output_array), axes, sign, *arguments)
            new._axes = tuple(axes) if np.ndim(axes) else (axes,)
            new._forward = np.ndim(sign) == 0 and sign == -1
            signs = sign if np.ndim(sign) else (sign,) * len(new._axes)
            new._kinds = [_KINDS[k] for k in signs] if min(signs) >= 0 else ()
            return new

        def __call__(
            self,
            input_array: Any = None,
            output_array: Any = None,
            implicit: bool = True,
            normalize: bool = False,
            **keywords: Any,
        ) -> Any:
            source = self.input_array if input_array is None else input_array
            target = self.output_array if output_array is None else output_array
            factor = self.get_normalization() if normalize else 1.0
            call = super().__call__
            run = lambda: call(plain(_as_ours(source)), plain(_as_ours(target)), implicit, normalize, **keywords)
            formula = lambda x: _transform(x, target, self._axes, self._forward, self._kinds) * factor
            _execute(run, source, target, formula, "mpi4py_fft.fftw.FFT")
            return target

    FFT.__module__, FFT.__qualname__ = cls.__module__, cls.__qualname__
    return FFT


def _stand_in(module: str, plan: str, derive: Callable[[Any], Any], allocating: tuple[str, ...] = ()) -> None:
    """Replace a library's class of plans, and its functions that allocate, in all modules that have them."""
    space = vars(sys.modules[module])
    stand_ins = {id(space[plan]): derive(space[plan])} if plan else {}
    for name in allocating:
        if name in space:
            stand_ins[id(space[name])] = _tracking(space[name])
    package = module.partition(".")[0]
    for key, found in list(sys.modules.items()):
        if key.partition(".")[0] == package and isinstance(vars(found), dict):
            for name, x in list(vars(found).items()):
                if id(x) in stand_ins:
                    setattr(found, name, stand_ins[id(x)])


def _tracking(function: Callable) -> Callable:
    @functools.wraps(function)
    def allocate(*arguments: Any, **keywords: Any) -> Any:
        return _as_ours(function(*arguments, **keywords))

    return allocate


_OF_PYFFTW = (
    "empty_aligned zeros_aligned ones_aligned byte_align n_byte_align n_byte_align_empty simd_align "
    "n_byte_align_zeros n_byte_align_ones"
)


def _interface(name: str) -> None:
    """A function of `pyfftw.interfaces.numpy_fft`, which has more parameters than NumPy's."""
    function = getattr(ours.fft, name)

    names = ("s", "axes", "norm") if name[-1] in "2n" else ("n", "axis", "norm")

    def formula(a: Any, *arguments: Any, **keywords: Any) -> Any:
        given = {**dict(zip(names, arguments)), **{key: keywords[key] for key in names if key in keywords}}
        return function(a, **given)

    define(f"pyfftw.interfaces.numpy_fft:{name}", formula)


for _name in "fft ifft fft2 ifft2 fftn ifftn rfft irfft rfft2 irfft2 rfftn irfftn hfft ihfft".split():
    _interface(_name)
when_imported("pyfftw.pyfftw", lambda: _stand_in("pyfftw.pyfftw", "FFTW", _plan_of_pyfftw, tuple(_OF_PYFFTW.split())))
when_imported(
    "mpi4py_fft.fftw.utilities", lambda: _stand_in("mpi4py_fft.fftw.utilities", "", type, ("aligned", "aligned_like"))
)
for _name in ("fftwf_xfftn", "fftw_xfftn"):
    _module = f"mpi4py_fft.fftw.{_name}"
    when_imported(_module, functools.partial(_stand_in, _module, "FFT", _plan_of_mpi4py_fft))
