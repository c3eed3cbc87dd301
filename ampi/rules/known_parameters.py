"""Parameters of NumPy's functions, with their defaults, for which the rules were written (NumPy 2.2 to 2.5).

A call with another parameter is refused by name: the rule would ignore it. With a release of NumPy that was not tested,
functions whose parameters have another order or other defaults are refused, and all other rules are tried at their
first call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import any_active
from ..base import versions
from ..base.missing_rules import no_rule
from ..tape import current
from .trials import Trial

PARAMETERS: dict[str, str] = {
    "append": "arr values axis=None",
    "apply_along_axis": "func1d axis arr args kwargs",
    "apply_over_axes": "func a axes",
    "array_split": "ary indices_or_sections axis=0",
    "atleast_1d": "arys",
    "atleast_2d": "arys",
    "atleast_3d": "arys",
    "bincount": "x weights=None minlength=0",
    "block": "arrays",
    "broadcast_arrays": "args subok=False",
    "broadcast_to": "array shape subok=False",
    "choose": "a choices out=None mode='raise'",
    "column_stack": "tup",
    "compress": "condition a axis=None out=None",
    "concatenate": "arrays axis=0 out=None dtype=None casting='same_kind'",
    "convolve": "a v mode='full'",
    "copy": "a order='K' subok=False",
    "copyto": "dst src casting='same_kind' where=True",
    "corrcoef": "x y=None rowvar=True bias=... ddof=... dtype=None",
    "correlate": "a v mode='valid'",
    "cov": "m y=None rowvar=True bias=False ddof=None fweights=None aweights=None dtype=None",
    "cross": "a b axisa=-1 axisb=-1 axisc=-1 axis=None",
    "delete": "arr obj axis=None",
    "diag": "v k=0",
    "diagflat": "v k=0",
    "diagonal": "a offset=0 axis1=0 axis2=1",
    "dot": "a b out=None",
    "dsplit": "ary indices_or_sections",
    "dstack": "tup",
    "einsum": "operands out=None optimize=False kwargs",
    "expand_dims": "a axis",
    "extract": "condition arr",
    "fft.fft": "a n=None axis=-1 norm=None out=None",
    "fft.fft2": "a s=None axes=(-2,-1) norm=None out=None",
    "fft.fftn": "a s=None axes=None norm=None out=None",
    "fft.fftshift": "x axes=None",
    "fft.hfft": "a n=None axis=-1 norm=None out=None",
    "fft.ifft": "a n=None axis=-1 norm=None out=None",
    "fft.ifft2": "a s=None axes=(-2,-1) norm=None out=None",
    "fft.ifftn": "a s=None axes=None norm=None out=None",
    "fft.ifftshift": "x axes=None",
    "fft.ihfft": "a n=None axis=-1 norm=None out=None",
    "fft.irfft": "a n=None axis=-1 norm=None out=None",
    "fft.irfft2": "a s=None axes=(-2,-1) norm=None out=None",
    "fft.irfftn": "a s=None axes=None norm=None out=None",
    "fft.rfft": "a n=None axis=-1 norm=None out=None",
    "fft.rfft2": "a s=None axes=(-2,-1) norm=None out=None",
    "fft.rfftn": "a s=None axes=None norm=None out=None",
    "fill_diagonal": "a val wrap=False",
    "flip": "m axis=None",
    "fliplr": "m",
    "flipud": "m",
    "gradient": "f varargs axis=None edge_order=1",
    "full_like": "a fill_value dtype=None order='K' subok=True shape=None device=None",
    "histogram": "a bins=10 range=None density=None weights=None",
    "histogram2d": "x y bins=10 range=None density=None weights=None",
    "histogram_bin_edges": "a bins=10 range=None weights=None",
    "histogramdd": "sample bins=10 range=None density=None weights=None",
    "hsplit": "ary indices_or_sections",
    "hstack": "tup dtype=None casting='same_kind'",
    "i0": "x",
    "imag": "val",
    "inner": "a b",
    "insert": "arr obj values axis=None",
    "interp": "x xp fp left=None right=None period=None",
    "intersect1d": "ar1 ar2 assume_unique=False return_indices=False",
    "lib.stride_tricks.sliding_window_view": "x window_shape axis=None subok=False writeable=False",
    "linalg.cholesky": "a upper=False",
    "linalg.cond": "x p=None",
    "linalg.cross": "x1 x2 axis=-1",
    "linalg.det": "a",
    "linalg.diagonal": "x offset=0",
    "linalg.eig": "a",
    "linalg.eigh": "a UPLO='L'",
    "linalg.eigvals": "a",
    "linalg.eigvalsh": "a UPLO='L'",
    "linalg.inv": "a",
    "linalg.lstsq": "a b rcond=None",
    "linalg.matmul": "x1 x2",
    "linalg.matrix_norm": "x keepdims=False ord='fro'",
    "linalg.matrix_transpose": "x",
    "linalg.norm": "x ord=None axis=None keepdims=False",
    "linalg.outer": "x1 x2",
    "linalg.pinv": "a rcond=None hermitian=False rtol=...",
    "linalg.qr": "a mode='reduced'",
    "linalg.slogdet": "a",
    "linalg.solve": "a b",
    "linalg.svd": "a full_matrices=True compute_uv=True hermitian=False",
    "linalg.svdvals": "x",
    "linalg.tensordot": "x1 x2 axes=2",
    "linalg.tensorinv": "a ind=2",
    "linalg.tensorsolve": "a b axes=None",
    "linalg.vecdot": "x1 x2 axis=-1",
    "linalg.vector_norm": "x axis=None keepdims=False ord=2",
    "linspace": "start stop num=50 endpoint=True retstep=False dtype=None axis=0 device=None",
    "matrix_transpose": "x",
    "moveaxis": "a source destination",
    "nan_to_num": "x copy=True nan=0.0 posinf=None neginf=None",
    "nancumprod": "a axis=None dtype=None out=None",
    "nancumsum": "a axis=None dtype=None out=None",
    "nanmax": "a axis=None out=None keepdims=... initial=... where=...",
    "nanmean": "a axis=None dtype=None out=None keepdims=... where=...",
    "nanmedian": "a axis=None out=None overwrite_input=False keepdims=...",
    "nanmin": "a axis=None out=None keepdims=... initial=... where=...",
    "nanpercentile": "a q axis=None out=None overwrite_input=False method='linear' keepdims=... weights=None "
    "interpolation=None",
    "nanprod": "a axis=None dtype=None out=None keepdims=... initial=... where=...",
    "nanquantile": "a q axis=None out=None overwrite_input=False method='linear' keepdims=... weights=None "
    "interpolation=None",
    "nanstd": "a axis=None dtype=None out=None ddof=0 keepdims=... where=... mean=... correction=...",
    "nansum": "a axis=None dtype=None out=None keepdims=... initial=... where=...",
    "nanvar": "a axis=None dtype=None out=None ddof=0 keepdims=... where=... mean=... correction=...",
    "outer": "a b out=None",
    "pad": "array pad_width mode='constant' kwargs",
    "partition": "a kth axis=-1 kind='introselect' order=None",
    "place": "arr mask vals",
    "poly": "seq_of_zeros",
    "polyadd": "a1 a2",
    "polyder": "p m=1",
    "polydiv": "u v",
    "polyfit": "x y deg rcond=None full=False w=None cov=False",
    "polyint": "p m=1 k=None",
    "polymul": "a1 a2",
    "polysub": "a1 a2",
    "polyval": "p x",
    "put": "a ind v mode='raise'",
    "put_along_axis": "arr indices values axis",
    "putmask": "a mask values",
    "ravel": "a order='C'",
    "real_if_close": "a tol=100",
    "repeat": "a repeats axis=None",
    "reshape": "a shape shape=None order='C' newshape=None copy=None",
    "resize": "a new_shape",
    "roll": "a shift axis=None",
    "rollaxis": "a axis start=0",
    "roots": "p",
    "rot90": "m k=1 axes=(0,1)",
    "select": "condlist choicelist default=0",
    "setdiff1d": "ar1 ar2 assume_unique=False",
    "setxor1d": "ar1 ar2 assume_unique=False",
    "sinc": "x",
    "sort": "a axis=-1 kind=None order=None stable=None descending=...",
    "sort_complex": "a",
    "split": "ary indices_or_sections axis=0",
    "squeeze": "a axis=None",
    "stack": "arrays axis=0 out=None dtype=None casting='same_kind'",
    "std": "a axis=None dtype=None out=None ddof=0 keepdims=... where=... mean=... correction=...",
    "swapaxes": "a axis1 axis2",
    "take": "a indices axis=None out=None mode='raise'",
    "tensordot": "a b axes=2",
    "tile": "A reps",
    "transpose": "a axes=None",
    "tril": "m k=0",
    "trim_zeros": "filt trim='fb' axis=None",
    "triu": "m k=0",
    "union1d": "ar1 ar2",
    "unique": "ar return_index=False return_inverse=False return_counts=False axis=None equal_nan=True sorted=True",
    "unique_all": "x",
    "unique_counts": "x",
    "unique_inverse": "x",
    "unique_values": "x",
    "unstack": "x axis=0",
    "unwrap": "p discont=None axis=-1 period=6.283185307179586",
    "vander": "x N=None increasing=False",
    "vdot": "a b",
    "vsplit": "ary indices_or_sections",
    "vstack": "tup dtype=None casting='same_kind'",
    "where": "condition x=None y=None",
}
"""Signatures by the functions' names below ``numpy``; ``...`` stands for `numpy._NoValue`."""

_known: dict[Callable, frozenset[str] | None] = {}


def place(function: Callable) -> str:
    """A function's name below ``numpy``."""
    return f"{function.__module__}.{function.__name__}".removeprefix("numpy.")


def require_known(function: Callable, keywords: dict) -> None:
    """Raise an error if a call has a parameter that the function's rule does not know."""
    try:
        known = _known[function]
    except KeyError:
        text = PARAMETERS.get(place(function))
        known = _known[function] = None if text is None else frozenset(x.partition("=")[0] for x in text.split())
    if known is not None and not known.issuperset(keywords) and not known.intersection(("kwargs", "kw")):
        others = ", ".join(name for name in keywords if name not in known)
        raise no_rule(function, f" in NumPy {np.__version__} with the argument {others}")


def forget(function: Callable) -> None:
    """Stop checking a function for which the program has defined a rule."""
    _known[function] = None


def tokens(function: Callable) -> list[str] | None:
    """A function's parameters in the form of `PARAMETERS`; None if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [p.name + _default(p.default) for p in parameters]


def _default(x: Any) -> str:
    if x is inspect.Parameter.empty:
        return ""
    return "=..." if x is np._NoValue else f"={x!r}".replace(" ", "")  # type: ignore[attr-defined]


def misfit(function: Callable) -> str:
    """The reason why a rule does not fit this function, for an error message; empty if it fits."""
    found, known = tokens(function), PARAMETERS.get(place(function))
    if found is None or known is None:
        return ""
    names = {token.partition("=")[0] for token in known.split()}
    rest = iter(known.split())
    for token in found:
        if token.partition("=")[0] in names and token not in rest:
            return f" in NumPy {np.__version__} (ampi's rule was written for the parameters {known})"
    return ""


def for_this_numpy(rules: dict[Callable, Callable], tried: bool = True) -> dict[Callable, Callable]:
    """The rules; if this version of NumPy was not tested, each one first checks that it fits, and is tried."""
    if not versions.untested({"numpy": np.__version__}):
        return rules
    return {function: checked_first(function, rule, tried) for function, rule in rules.items()}


def checked_first(function: Callable, rule: Callable, tried: bool = True) -> Callable:
    """A rule that checks that it fits this function, and is tried at its first calls."""
    why: list[str] = []
    trial = Trial() if tried else Trial(0)

    def run(*arguments: Any, **keywords: Any) -> Any:
        tape = current()
        if tape is None or not any_active(tape, (arguments, keywords)):
            return rule(*arguments, **keywords)
        if not why:
            why.append(misfit(function))
        if not why[0] and trial.refutes(function, lambda _, a, k: rule(*a, **k), tape, arguments, keywords):
            why[0] = f" in NumPy {np.__version__} (its derivative differs from ampi's rule, made for another version)"
        if why[0]:
            raise no_rule(function, why[0])
        return rule(*arguments, **keywords)

    return run
