"""Products of arrays and `numpy.linalg`: rules of products, and functions written with others."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import extensions, few_elements
from ..arrays.activity import is_active, is_inexact, plain_of
from ..arrays.elementwise import unbroadcast
from ..arrays.exact import exactly
from ..arrays.indexing import gathered
from ..arrays.nested import as_array as _array
from ..arrays.nested import from_nested
from ..arrays.writing import assign_as
from ..base.missing_rules import no_rule
from ..memory.storages import Region, is_view_of, plain, region_of, tracked, wrapped
from ..tape import BaseAdjoint, Push, Sweep, current
from . import factorizations
from .contractions import contracted
from .factorizations import factorized
from .roots import root

_LINALG = np.linalg

# ---------------------------------------------------------------------------------------------------------- products


@exactly(np.vdot)
def _vdot(a: Any, b: Any) -> Any:
    return np.dot(np.conj(_array(a)).ravel(), _array(b).ravel())


def _outer(a: Any, b: Any, out: None = None) -> Any:
    return np.multiply(_array(a).reshape(-1, 1), _array(b).reshape(1, -1))


@exactly(np.cross)
def _cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = np.moveaxis(_array(a), axisa, 0), np.moveaxis(_array(b), axisb, 0)
    if len(a) == len(b) == 2:
        return np.subtract(a[0] * b[1], a[1] * b[0])
    a, b = [np.concatenate([x, np.zeros_like(x[:1])]) if len(x) == 2 else x for x in (a, b)]
    parts = [np.subtract(a[j] * b[k], a[k] * b[j]) for j, k in ((1, 2), (2, 0), (0, 1))]
    return np.stack(parts, axisc)


class _Product(BaseAdjoint):
    """Adjoint of a matrix product: ā = ḡ bᴴ, b̄ = aᴴ ḡ, summed over the axes along which a stack was broadcast."""

    __slots__ = ("a", "b", "column", "result", "row", "values")
    second_order = "differentiated"

    def __init__(self, a: Region | None, b: Region | None, values: tuple, vectors: tuple, result: Region) -> None:
        self.a = a
        self.b = b
        self.values = values
        self.row, self.column = vectors
        self.result = result

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = sweep.shadow(self.result)
        a, b = self.values
        if self.row:
            g = g[..., None, :] if not self.column else g[..., None]
        if self.column:
            g = g[..., None]
        if self.a is not None:
            b = b[:, None] if self.column else b
            a_bar = contracted(np.matmul, g, np.conj(np.swapaxes(b, -1, -2)))
            sweep.add(self.a, unbroadcast(a_bar[..., 0, :] if self.row else a_bar, self.a.shape))
        if self.b is not None:
            a = a[None, :] if self.row else a
            b_bar = contracted(np.matmul, np.conj(np.swapaxes(a, -1, -2)), g)
            sweep.add(self.b, unbroadcast(b_bar[..., 0] if self.column else b_bar, self.b.shape))

    def tangent(self, push: Push) -> None:
        """ȧ b + a ḃ."""
        a, b = self.values
        total: Any = 0.0
        if self.a is not None:
            total = contracted(np.matmul, push.get(self.a), b)
        if self.b is not None:
            total = total + contracted(np.matmul, a, push.get(self.b))
        push.put(self.result, total)


def _product(function: Callable, a: Any, b: Any) -> Any:
    """Record a matrix product with ampi's own rule (`function` is matmul, or dot where they agree)."""
    tape = current()
    assert tape is not None
    found = few_elements.product(tape, function, a, b)
    if found is not None:
        return found
    result = wrapped(function(plain_of(a), plain_of(b)))
    a_active, b_active = is_active(tape, a), is_active(tape, b)
    if not is_inexact(result):
        return result
    values = (tape.need(a) if b_active else None, tape.need(b) if a_active else None)
    sources = (region_of(a) if a_active else None, region_of(b) if b_active else None)
    tape.activate(result)
    record = _Product(*sources, values, (a.ndim == 1, b.ndim == 1), region_of(result))
    tape.append(record, created=(result,))
    return result


def matmul(a: Any, b: Any) -> Any:
    """`numpy.matmul`."""
    return _product(np.matmul, _operand(a), _operand(b))


def _dot(a: Any, b: Any, out: None = None) -> Any:
    a, b = _operand(a), _operand(b)
    if a.ndim in (1, 2) and b.ndim in (1, 2):
        return _product(np.dot, a, b)
    return _dot_of_stacks(a, b)


@exactly(np.dot)
def _dot_of_stacks(a: Any, b: Any) -> Any:
    return np.tensordot(a, b, (-1, -2)) if a.ndim and b.ndim > 1 else _inner(a, b)


@exactly(np.inner)
def _inner(a: Any, b: Any) -> Any:
    a, b = _array(a), _array(b)
    return np.tensordot(a, b, (-1, -1)) if a.ndim and b.ndim else np.multiply(a, b)


def _keeping_ours(function: Callable) -> Callable:
    """A function of NumPy's Python source, with an `asarray` that keeps tracked arrays."""
    source = function._implementation  # type: ignore[attr-defined]
    names = {**source.__globals__, "asarray": _array}
    made = types.FunctionType(source.__code__, names, source.__name__, source.__defaults__, source.__closure__)
    made.__kwdefaults__ = source.__kwdefaults__
    return made


def _operand(x: Any) -> Any:
    return x if isinstance(x, np.ndarray) else np.asanyarray(from_nested(x))


def _vecdot(a: Any, b: Any, axis: int = -1) -> Any:
    a, b = np.moveaxis(_array(a), axis, -1), np.moveaxis(_array(b), axis, -1)
    return matmul(np.conj(a)[..., None, :], b[..., :, None])[..., 0, 0].copy()


def _matvec(a: Any, b: Any) -> Any:
    return matmul(a, _array(b)[..., :, None])[..., 0]


def _vecmat(a: Any, b: Any) -> Any:
    return matmul(np.conj(_array(a))[..., None, :], b)[..., 0, :]


class _Einsum(BaseAdjoint):
    """Adjoint of a sum of products over named axes: the same with the operand and the result exchanged."""

    __slots__ = ("active", "operands", "result", "shapes", "subscripts", "target")
    second_order = "differentiated"

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = sweep.shadow(self.result)
        for k, region in self.active:
            sweep.add(region, self._contribution(g, k, region.shape))

    def tangent(self, push: Push) -> None:
        """The sum of the products in which one factor is replaced by its tangent."""
        subscripts = f"{','.join(self.subscripts)}->{self.target}"
        product = functools.partial(np.einsum, subscripts, optimize=len(self.subscripts) > 2)
        total: Any = 0.0
        for k, region in self.active:
            factors = [push.get(region) if n == k else x for n, x in enumerate(self.operands)]
            total = total + contracted(product, *factors)
        push.put(self.result, total)

    def _contribution(self, g: np.ndarray, k: int, shape: tuple) -> np.ndarray:
        own = self.subscripts[k]
        others = [n for n in range(len(self.subscripts)) if n != k]
        terms = [self.target] + [self.subscripts[n] for n in others]
        axes = "".join(sorted(set(own), key=own.index))
        present = "".join(letter for letter in axes if any(letter in term for term in terms))
        values = [g] + [np.conj(self.operands[n]) for n in others]
        product = functools.partial(np.einsum, f"{','.join(terms)}->{present}", optimize=len(values) > 2)
        found = contracted(product, *values)
        lengths = {letter: n for letter, n in zip(own, shape)}
        full = np.expand_dims(found, tuple(i for i, letter in enumerate(axes) if letter not in present))
        full = unbroadcast(full, tuple(1 if lengths[letter] == 1 else n for n, letter in zip(full.shape, axes)))
        if len(axes) == len(own):
            return full
        spread = np.zeros_like(full, shape=shape)
        np.einsum(f"{own}->{axes}", spread)[...] = full
        return spread


def _einsum(*operands: Any, out: None = None, optimize: Any = False, **keywords: Any) -> Any:
    from numpy._core.einsumfunc import _parse_einsum_input

    tape = current()
    assert tape is not None
    count = len(operands) - 1 if isinstance(operands[0], str) else len(operands) // 2
    arrays = [np.asanyarray(from_nested(x)) for x in _einsum_arrays(operands)]
    given = _einsum_plain(operands, [plain_of(a) for a in arrays])
    result = wrapped(np.einsum(*given, optimize=optimize, **keywords))  # its errors come first
    inputs, target, _ = _parse_einsum_input(given)
    dtype = keywords.get("dtype")
    if dtype is not None and np.dtype(dtype).kind == "f":  # NumPy multiplies the real parts
        arrays = [tracked(a).astype(dtype) if a.dtype.kind == "c" else a for a in arrays]
    subscripts = inputs.split(",")
    assert len(subscripts) == count
    active = [k for k, a in enumerate(arrays) if is_active(tape, a)]
    if not active or not is_inexact(result) or is_view_of(result, arrays):
        return result
    record = _Einsum()
    record.subscripts = subscripts
    record.target = target
    record.operands = [tape.need(a) if any(other != k for other in active) else None for k, a in enumerate(arrays)]
    record.active = [(k, region_of(arrays[k])) for k in active]
    record.result = region_of(result)
    tape.activate(result)
    tape.append(record, created=(result,))
    return result


def _einsum_arrays(operands: tuple) -> list:
    if isinstance(operands[0], str):
        return list(operands[1:])
    return list(operands[: len(operands) // 2 * 2 : 2])


def _einsum_plain(operands: tuple, arrays: list) -> list:
    if isinstance(operands[0], str):
        return [operands[0], *arrays]
    plain_operands = [plain_of(x) for x in operands]
    plain_operands[: len(operands) // 2 * 2 : 2] = arrays
    return plain_operands


# ------------------------------------------------------------------------------------------------------------ linalg


@exactly(_LINALG.norm)
def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    x = _array(x)
    if axis is None:
        if ord is None or (x.ndim == 1 and ord == 2) or (x.ndim == 2 and ord in ("f", "fro")):
            return root(_squares(x).sum(keepdims=keepdims))
        axis = tuple(range(x.ndim))
    axis = tuple(k % x.ndim for k in (axis if isinstance(axis, tuple) else (int(axis),)))
    if len(axis) == 1:
        return _vector_power_norm(x, 2 if ord is None else ord, axis[0], keepdims)
    if len(axis) != 2:
        raise ValueError("Improper number of dimensions to norm.")
    return _matrix_norm(x, "fro" if ord in (None, "f") else ord, axis, keepdims)


def _squares(x: Any) -> Any:
    return np.square(x) if x.dtype.kind != "c" else np.square(x.real) + np.square(x.imag)


def _vector_power_norm(x: Any, p: Any, axis: int, keepdims: bool) -> Any:
    if p == np.inf:
        return np.abs(x).max(axis=axis, keepdims=keepdims, initial=0)  # defined for no elements as well
    if p == -np.inf:
        return np.abs(x).min(axis=axis, keepdims=keepdims)
    if p == 2:
        return root(_squares(x).sum(axis=axis, keepdims=keepdims))
    if p == 1:
        return np.abs(x).sum(axis=axis, keepdims=keepdims)
    if isinstance(p, str) or p == 0:
        raise no_rule(np.linalg.norm, f" for ord={p!r}")
    return root((np.abs(x) ** p).sum(axis=axis, keepdims=keepdims), p)


def _matrix_norm(x: Any, p: Any, axis: tuple, keepdims: bool) -> Any:
    moved = np.moveaxis(x, axis, (-2, -1))
    if p == "fro":
        result = root(_squares(moved).sum(axis=(-2, -1)))
    elif p in (1, -1, np.inf, -np.inf):
        sums = np.abs(moved).sum(axis=-2 if abs(p) == 1 else -1)
        result = sums.max(axis=-1, initial=0) if p > 0 else sums.min(axis=-1)
    elif p in (2, -2, "nuc"):
        s = _singular_values(moved)
        result = s.sum(axis=-1) if p == "nuc" else s.max(axis=-1, initial=0) if p > 0 else s.min(axis=-1)
    else:
        raise ValueError("Invalid norm order for matrices.")
    return np.expand_dims(result, axis) if keepdims else result


def _vector_norm(x: Any, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    x = _array(x)
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(k % x.ndim for k in axes)
    rest = [k for k in range(x.ndim) if k not in axes]
    flat = np.transpose(x, [*rest, *axes]).reshape([x.shape[k] for k in rest] + [-1])
    result = _vector_power_norm(flat, ord, -1, False)
    return np.expand_dims(result, axes) if keepdims else result


class _SingularValues(BaseAdjoint):
    """Adjoint of singular values without vectors, also defined for equal ones; zero for a zero singular value."""

    __slots__ = ("result", "source", "x")
    second_order = "differentiated"

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        u, s, vh = np.linalg.svd(self.x, full_matrices=False)
        g = np.where(s > 0, sweep.shadow(self.result), 0)
        sweep.add(self.source, np.matmul(u * g[..., None, :], vh))

    def tangent(self, push: Push) -> None:
        """ṡ = Re diag(uᴴ ẋ v)."""
        u, s, vh = np.linalg.svd(self.x, full_matrices=False)
        found = np.matmul(push.get(self.source), np.conj(np.swapaxes(vh, -1, -2)))
        push.put(self.result, np.where(s > 0, np.real((np.conj(u) * found).sum(axis=-2)), 0))


def _singular_values(x: Any) -> Any:
    tape = current()
    assert tape is not None
    result = wrapped(np.linalg.svd(plain_of(x), compute_uv=False))
    record = _SingularValues()
    record.source = region_of(x)
    record.x = tape.need(x)
    record.result = region_of(result)
    tape.activate(result)
    tape.append(record, created=(result,))
    return result


def nearest(values: Any, wanted: Any) -> np.ndarray:
    """The index of each wanted number among values that are equal to them up to rounding, along the last axis.

    LAPACK finds the eigenvalues of larger matrices in another order where it finds the eigenvectors, too.
    """
    values, wanted = np.asarray(plain_of(values)), np.asarray(plain_of(wanted))
    places = np.empty(wanted.shape, np.intp)
    for k in np.ndindex(wanted.shape[:-1]):
        gaps = np.abs(values[k] - wanted[k][:, None])
        if not np.isfinite(gaps).all():
            places[k] = np.arange(wanted.shape[-1])
            continue
        for i in np.argsort(gaps.min(-1), kind="stable"):
            places[k + (i,)] = found = gaps[i].argmin()
            gaps[:, found] = np.inf
    return places


def _eigvals(a: Any) -> Any:
    a = _array(a)
    exact = np.linalg.eigvals(plain(a))
    found = np.linalg.eig(a)[0].astype(exact.dtype)
    key: list[np.ndarray] = list(np.indices(exact.shape, sparse=True))
    key[-1] = nearest(found, exact)
    return gathered(found, tuple(key), exact)


@exactly(_LINALG.eigvalsh)
def _eigvalsh(a: Any, UPLO: Any = "L") -> Any:
    return np.linalg.eigh(a, UPLO)[0]


def _adjoint_matrix(a: Any) -> Any:
    return np.conj(np.swapaxes(a, -1, -2))


@exactly(_LINALG.cholesky)
def _cholesky(a: Any, *, upper: bool = False) -> Any:
    a = _array(a)
    lower = factorized(np.linalg.cholesky, _adjoint_matrix(a) if upper else a)
    return _adjoint_matrix(lower) if upper else lower


@exactly(_LINALG.solve)
def _solve(a: Any, b: Any) -> Any:
    """Solve systems; the rule needs right-hand sides in columns, and a matrix for each of them."""
    a, b = _array(a), _array(b)
    column = b[:, None] if b.ndim == 1 else b
    stack = np.broadcast_shapes(a.shape[:-2], column.shape[:-2])
    matrices, columns = (x if x.shape[:-2] == stack else np.broadcast_to(x, stack + x.shape[-2:]) for x in (a, column))
    x = factorized(_LINALG.solve, matrices, columns)
    return x[..., 0] if b.ndim == 1 else x


@exactly(_LINALG.lstsq)
def _lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """Multiply the right-hand sides by the pseudoinverse of the same rank."""
    a, b = _array(a), _array(b)
    _, residuals, rank, s = np.linalg.lstsq(plain(a), plain(b), plain_of(rcond))
    cut = 0.0 if rank == len(s) else (s[rank] + s[rank - 1]) / (2 * s[0]) if rank else 2.0
    x = np.matmul(factorized(np.linalg.pinv, a, rcond=cut), b)
    if residuals.size:
        rest = b - np.matmul(a, x)
        residuals = np.sum((rest * np.conj(rest)).real, axis=0).reshape(residuals.shape)
    return x, residuals, rank, _singular_values(a) if is_active(current(), a) else wrapped(s)


def _qr(a: Any, mode: str = "reduced") -> Any:
    a = _array(a)
    rows, columns = a.shape[-2:]
    if mode not in ("reduced", "r", "complete") or (mode == "complete" and rows > columns):
        raise no_rule(np.linalg.qr, f" with mode={mode!r}" + (", more rows than columns" if mode == "complete" else ""))
    return factorized(np.linalg.qr, a) if mode != "r" and rows >= columns else _qr_in_parts(a, mode)


@exactly(_LINALG.qr)
def _qr_in_parts(a: Any, mode: str) -> Any:
    """Factorize the first columns; the remaining columns of R are products with Q."""
    rows = a.shape[-2]
    q, r = factorized(np.linalg.qr, a[..., :rows])
    if a.shape[-1] > rows:
        r = np.concatenate([r, np.matmul(_adjoint_matrix(q), a[..., rows:])], -1)
    return r if mode == "r" else type(np.linalg.qr(np.eye(1)))(q, r)


@exactly(_LINALG.cond)
def _cond(x: Any, p: Any = None) -> Any:
    x = _array(x)
    if p is None or p in (2, -2):
        s = _singular_values(x)
        return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    return _norm(x, p, (-2, -1)) * _norm(factorized(np.linalg.inv, x), p, (-2, -1))


@exactly(_LINALG.tensorinv)
def _tensorinv(a: Any, ind: int = 2) -> Any:
    a = _array(a)
    shape = a.shape[ind:] + a.shape[:ind]
    return factorized(np.linalg.inv, a.reshape(math.prod(a.shape[ind:]), -1)).reshape(shape)


@exactly(_LINALG.tensorsolve)
def _tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    a, b = _array(a), _array(b)
    if axes is not None:
        kept = [k for k in range(a.ndim) if k not in axes]
        a = np.transpose(a, [*kept, *axes])
    shape = a.shape[b.ndim :]
    return np.linalg.solve(a.reshape(-1, math.prod(shape)), b.reshape(-1)).reshape(shape)


def _svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    if hermitian:
        raise no_rule(np.linalg.svd, " for hermitian=True")
    if full_matrices and compute_uv and a.shape[-1] != a.shape[-2]:
        raise no_rule(np.linalg.svd, " for full_matrices=True and a matrix that is not square")
    if not compute_uv:
        return _singular_values(a)
    return factorized(np.linalg.svd, a, full_matrices=False)


def _pinv(a: Any, rcond: Any = None, hermitian: bool = False, **keywords: Any) -> Any:
    if hermitian:
        raise no_rule(np.linalg.pinv, " for hermitian=True")
    return factorized(np.linalg.pinv, a, **({} if rcond is None else {"rcond": plain_of(rcond)}), **keywords)


RULES: dict[Callable, Callable] = {
    np.cross: _cross,
    np.dot: _dot,
    np.einsum: _einsum,
    np.inner: _inner,
    np.outer: _outer,
    np.tensordot: _keeping_ours(np.tensordot),
    np.vdot: _vdot,
    _LINALG.cholesky: _cholesky,
    _LINALG.cond: _cond,
    _LINALG.det: factorizations.rule(_LINALG.det),
    _LINALG.eig: factorizations.rule(_LINALG.eig),
    _LINALG.eigh: factorizations.rule(_LINALG.eigh, "a UPLO"),
    _LINALG.eigvals: _eigvals,
    _LINALG.eigvalsh: _eigvalsh,
    _LINALG.inv: factorizations.rule(_LINALG.inv),
    _LINALG.lstsq: _lstsq,
    _LINALG.norm: _norm,
    _LINALG.pinv: _pinv,
    _LINALG.qr: _qr,
    _LINALG.slogdet: factorizations.rule(_LINALG.slogdet, complex_too=False),
    _LINALG.solve: _solve,
    _LINALG.svd: _svd,
    _LINALG.tensorinv: _tensorinv,
    _LINALG.tensorsolve: _tensorsolve,
}
for _name, _rule in {
    "cross": lambda x1, x2, /, *, axis=-1: np.cross(x1, x2, axis=axis),
    "matmul": lambda x1, x2, /: matmul(x1, x2),
    "matrix_norm": lambda x, /, *, keepdims=False, ord="fro": _norm(x, ord, (-2, -1), keepdims),
    "outer": lambda x1, x2, /: exactly(_LINALG.outer)(_outer)(x1, x2),
    "svdvals": lambda x, /: _singular_values(x),
    "tensordot": lambda x1, x2, /, *, axes=2: np.tensordot(x1, x2, axes),
    "vector_norm": _vector_norm,
}.items():
    if hasattr(_LINALG, _name):
        RULES[getattr(_LINALG, _name)] = _rule
if hasattr(_LINALG, "vecdot"):
    RULES[_LINALG.vecdot] = exactly(_LINALG.vecdot)(lambda x1, x2, /, *, axis=-1: _vecdot(x1, x2, axis))

GENERALIZED = extensions.generalized_ufuncs
GENERALIZED[np.matmul] = matmul
for _name, _rule in {"vecdot": _vecdot, "matvec": _matvec, "vecmat": _vecmat}.items():
    if hasattr(np, _name):
        GENERALIZED[getattr(np, _name)] = exactly(getattr(np, _name))(_rule)


def ufunc_without_partials(ufunc: np.ufunc, inputs: tuple, keywords: dict) -> Any:
    """A generalized ufunc; any other one has no rule."""
    keywords = dict(keywords)
    (out,) = keywords.pop("out", (None,)) or (None,)
    named = dict(keywords)
    if ufunc is np.matmul and keywords.get("axes") == [(-2, -1)] * 3:
        # The argument of `a @= b`.
        del keywords["axes"]
    if ufunc not in GENERALIZED or not keywords.keys() <= {"axis"}:
        raise no_rule(ufunc, f" with the argument {', '.join(keywords)}" if keywords else "")
    if out is None:
        return GENERALIZED[ufunc](*inputs, **keywords)
    run = lambda scratch: ufunc(*map(plain_of, inputs), out=scratch, **named)
    derive = lambda: GENERALIZED[ufunc](*inputs, **keywords)
    return assign_as(out, f"np.{ufunc.__name__}(..., out=...)", run, derive)


extensions.call_ufunc_without_partials = ufunc_without_partials
