"""SciPy's compiled special functions for programs that Numba compiles and caches.

``from ampi.kernel.runtime.scipy_calls import scipy_kv`` makes the compiled function known to the linker under a name of
ampi.  Compiled code refers to this name, since the address of the function differs from process to process.
``scipy.special`` is imported with the first of these functions.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic, overload

from ampi.kernel.runtime.scipy_parameters import PARAMETERS

ARITY = {
    **dict.fromkeys(
        "i0 i1 i0e i1e j0 j1 y0 y1 k0 k1 k0e k1e ellipk ellipe ellipkm1 exp1 expi exprel spence dawsn erfi erfinv "
        "erfcinv erfcx log_ndtr ndtri ndtri_exp rgamma expit cosm1 sindg cosdg tandg cotdg ber bei ker kei berp beip "
        "kerp keip".split(),
        1,
    ),
    **dict.fromkeys(
        "iv ive jv jve yn yv yve kn kv kve elliprc ellipkinc ellipeinc expn beta betaln poch binom owens_t hyp0f1 "
        "eval_chebyt eval_chebyu eval_laguerre eval_legendre gammainc gammaincc gammaincinv gammainccinv chdtr chdtrc "
        "chdtri stdtr stdtrit boxcox boxcox1p inv_boxcox inv_boxcox1p rel_entr kl_div huber pseudo_huber powm1".split(),
        2,
    ),
    **dict.fromkeys(
        "elliprf elliprd hyp1f1 hyperu betainc betaincc betaincinv fdtri chndtr chndtrix eval_gegenbauer "
        "eval_genlaguerre".split(),
        3,
    ),
    "hyp2f1": 4,
}
"""The number of arguments of SciPy's functions of real numbers."""
_PREFIX = "ampi_scipy_"  # of names for the linker
_FUSED = ("__pyx_fuse_1_1", "__pyx_fuse_0_1", "__pyx_fuse_1", "__pyx_fuse_0", "")


@functools.cache
def link() -> None:
    """Make SciPy's functions known to code that Numba compiles or loads from its cache."""
    from scipy.special import cython_special

    known = {name: _types_of(capsule) for name, capsule in cython_special.__pyx_capi__.items()}
    wanted = {name: ["double"] * (arity + 1) for name, arity in ARITY.items()}
    wanted["wofz"] = ["__pyx_t_double_complex"] * 2
    for name, types_of in wanted.items():
        found = next((f for prefix in _FUSED if known.get(f := prefix + name) == types_of), None)
        if found is not None:  # not in each version of SciPy
            llvm.add_symbol(_PREFIX + name, get_cython_function_address(cython_special.__name__, found))


def _types_of(capsule: Any) -> list[str]:
    """The types of a compiled function's result and arguments, from the declaration in its capsule's name."""
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    result, _, arguments = name_of(capsule).decode().partition(" (")
    return [result, *(a for a in arguments.rstrip(")").split(", ") if "skip_dispatch" not in a)]


def _declare(name: str, arity: int) -> Callable[..., float]:
    """A Python function that calls a function of SciPy, with its implementation for Numba."""
    external = types.ExternalFunction(_PREFIX + name, types.float64(*[types.float64] * arity))

    def function(*arguments: float) -> float:
        import scipy.special

        return float(getattr(scipy.special, name)(*arguments))

    forms: tuple[Callable[..., Any], ...] = (
        lambda x: lambda x: external(x),
        lambda x, y: lambda x, y: external(x, y),
        lambda x, y, z: lambda x, y, z: external(x, y, z),
        lambda x, y, z, w: lambda x, y, z, w: external(x, y, z, w),
    )
    overload(function)(forms[arity - 1])
    function.__name__ = function.__qualname__ = f"scipy_{name}"
    return function


FUNCTIONS = {name: _declare(name, arity) for name, arity in ARITY.items()}


# ------------------------------------------------------------------------------------ the Faddeeva function, in parts


def _faddeeva(typing_context: Any, part: int) -> Any:
    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        double = ir.DoubleType()
        result = ir.LiteralStructType([double, double])  # the processor's convention for a complex number
        of_complex = ir.FunctionType(result, [double, double])
        function = cgutils.get_or_insert_function(builder.module, of_complex, _PREFIX + "wofz")
        return builder.extract_value(builder.call(function, arguments), part)

    return types.float64(types.float64, types.float64), call


@intrinsic
def _wofz_real(typing_context: Any, x: Any, y: Any) -> Any:
    return _faddeeva(typing_context, 0)


@intrinsic
def _wofz_imag(typing_context: Any, x: Any, y: Any) -> Any:
    return _faddeeva(typing_context, 1)


def wofz_real(x: float, y: float) -> float:
    """The real part of ``scipy.special.wofz(x + 1j * y)``."""
    import scipy.special

    return float(scipy.special.wofz(complex(x, y)).real)


def wofz_imag(x: float, y: float) -> float:
    import scipy.special

    return float(scipy.special.wofz(complex(x, y)).imag)


overload(wofz_real)(lambda x, y: lambda x, y: _wofz_real(float(x), float(y)))  # type: ignore[call-arg]
overload(wofz_imag)(lambda x, y: lambda x, y: _wofz_imag(float(x), float(y)))  # type: ignore[call-arg]
FUNCTIONS |= {"wofz_real": wofz_real, "wofz_imag": wofz_imag}


FUNCTIONS |= PARAMETERS


def __getattr__(name: str) -> Any:
    plain = name.removeprefix("scipy_")
    if plain == name or plain not in FUNCTIONS:
        raise AttributeError(name)
    link()
    return FUNCTIONS[plain]
