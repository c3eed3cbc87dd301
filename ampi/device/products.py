"""Products of arrays on a device, and functions of `numpy.linalg`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.elementwise import unbroadcast
from ..base.missing_rules import no_rule
from ..tape import recording
from .elementwise import ON_DEVICE, call
from .operations import active, any_active, compute, each, operand, operands, record


def matmul(a: Any, b: Any) -> Any:
    """`numpy.matmul`: ā = ḡ bᴴ, b̄ = aᴴ ḡ, summed over the axes along which a stack was broadcast."""
    return _product(np.matmul, a, b)


def _product(function: Callable, a: Any, b: Any) -> Any:
    a, b = operands((a, b), f"numpy.{function.__name__}")
    result = compute(function, a, b)
    tape = recording()
    values = a if active(tape, b) else None, b if active(tape, a) else None
    row, column = a.ndim == 1, b.ndim == 1
    shapes = a.shape, b.shape

    def adjoint(k: int, g: Any, values: Any) -> Any:
        a, b = values
        g = g[..., None] if column else g
        g = g[..., None, :] if row else g
        if k == 0:
            b = b[:, None] if column else b
            found = np.matmul(g, np.conj(np.swapaxes(b, -1, -2)))
            return unbroadcast(found[..., 0, :] if row else found, shapes[0])
        a = a[None, :] if row else a
        found = np.matmul(np.conj(np.swapaxes(a, -1, -2)), g)
        return unbroadcast(found[..., 0] if column else found, shapes[1])

    def push(dots: dict[int, Any], values: Any) -> Any:
        a, b = values
        parts = [np.matmul(dots[0], b)] if 0 in dots else []
        parts += [np.matmul(a, dots[1])] if 1 in dots else []
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    return record(f"numpy.{function.__name__}", [a, b], result, values, each(adjoint), push)


def dot(a: Any, b: Any) -> Any:
    """`numpy.dot`."""
    a, b = operands((a, b), "numpy.dot")
    if not getattr(a, "ndim", 0) or not getattr(b, "ndim", 0):
        return call(np.multiply, (a, b))
    if a.ndim <= 2 and b.ndim <= 2:
        return _product(np.matmul, a, b)
    return tensordot(a, b, (-1, -2 if b.ndim > 1 else -1))


def inner(a: Any, b: Any) -> Any:
    """`numpy.inner`."""
    a, b = operands((a, b), "numpy.inner")
    if not getattr(a, "ndim", 0) or not getattr(b, "ndim", 0):
        return call(np.multiply, (a, b))
    return tensordot(a, b, (-1, -1))


def vdot(a: Any, b: Any) -> Any:
    """`numpy.vdot`."""
    a, b = operands((a, b), "numpy.vdot")
    return _product(np.matmul, np.ravel(call(np.conjugate, (a,))), np.ravel(b))


def outer(a: Any, b: Any) -> Any:
    """`numpy.outer`."""
    a, b = operands((a, b), "numpy.outer")
    return call(np.multiply, (np.reshape(a, (-1, 1)), np.reshape(b, (1, -1))))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """`numpy.tensordot`, as a sum over named axes."""
    a, b = operands((a, b), "numpy.tensordot")
    if isinstance(axes, int):
        of_a, of_b = list(range(a.ndim - axes, a.ndim)), list(range(axes))
    else:
        of_a, of_b = [[int(k) for k in (x if isinstance(x, (list, tuple)) else [x])] for x in axes]
    letters = "abcdefghijklmnopqrstuvwxyz"
    names_a = list(letters[: a.ndim])
    names_b = list(letters[a.ndim : a.ndim + b.ndim])
    for k, m in zip(of_a, of_b):
        names_b[m % b.ndim] = names_a[k % a.ndim]
    shared = {names_a[k % a.ndim] for k in of_a}
    target = [n for n in names_a if n not in shared] + [n for n in names_b if n not in shared]
    return _sum_of_products(
        np.tensordot,
        lambda a, b: np.tensordot(a, b, (of_a, of_b)),
        ["".join(names_a), "".join(names_b)],
        "".join(target),
        [a, b],
    )


def einsum(subscripts: Any, *arrays: Any, optimize: Any = False) -> Any:
    """`numpy.einsum`: the adjoint is the same sum with the operand and the result exchanged."""
    arrays = operands(arrays, "numpy.einsum")
    if not any_active(arrays):
        return compute(np.einsum, subscripts, *arrays)
    if not isinstance(subscripts, str) or "." in subscripts:
        raise no_rule(np.einsum, f" without subscripts as text, or with an ellipsis{ON_DEVICE}")
    inputs, arrow, target = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not arrow:
        every = "".join(terms)
        target = "".join(sorted({n for n in every if every.count(n) == 1}))
    if any(len(set(term)) < len(term) for term in terms):
        raise no_rule(np.einsum, f" with a repeated subscript in one operand{ON_DEVICE}")
    return _sum_of_products(np.einsum, lambda *arrays: np.einsum(subscripts, *arrays), terms, target, list(arrays))


def _sum_of_products(function: Callable, run: Callable, terms: list[str], target: str, arrays: list[Any]) -> Any:
    result = compute(run, *arrays)
    tape = recording()
    found = [k for k, a in enumerate(arrays) if active(tape, a)]
    kept = [a if any(k != n for k in found) else None for n, a in enumerate(arrays)]
    shapes = [a.shape for a in arrays]

    def adjoint(k: int, g: Any, values: Any) -> Any:
        others = [n for n in range(len(terms)) if n != k]
        names = [target, *[terms[n] for n in others]]
        present = "".join(letter for letter in terms[k] if any(letter in name for name in names))
        bar = np.einsum(f"{','.join(names)}->{present}", g, *[np.conj(values[n]) for n in others])
        missing = tuple([i for i, letter in enumerate(terms[k]) if letter not in present])
        bar = np.expand_dims(bar, missing) if missing else bar
        ones = tuple([1 if n == 1 else m for n, m in zip(shapes[k], bar.shape)])
        return np.broadcast_to(unbroadcast(bar, ones), shapes[k])

    def push(dots: dict[int, Any], values: Any) -> Any:
        total: Any = None
        for k, dot in dots.items():
            part = np.einsum(f"{','.join(terms)}->{target}", *[dot if n == k else x for n, x in enumerate(values)])
            total = part if total is None else total + part
        return total

    return record(f"numpy.{function.__name__}", arrays, result, kept, each(adjoint), push)


def convolve(a: Any, v: Any) -> Any:
    """The full convolution of two arrays with one axis; the adjoint correlates with the other one."""
    result = compute(np.convolve, a, v)
    tape = recording()
    lengths = len(a), len(v)

    def adjoint(k: int, g: Any, values: Any) -> Any:
        other = values[1 - k]
        found = np.convolve(g, np.conj(other[::-1]))
        return found[len(other) - 1 : len(other) - 1 + lengths[k]]

    def push(dots: dict[int, Any], values: Any) -> Any:
        total: Any = 0
        for k, dot in dots.items():
            total = np.convolve(dot, values[1 - k]) + total
        return total

    values = a if active(tape, v) else None, v if active(tape, a) else None
    return record("numpy.convolve", [a, v], result, values, each(adjoint), push)


# --------------------------------------------------------------------------------------------------------- linalg


def _transposed(a: Any) -> Any:
    return np.conj(np.swapaxes(a, -1, -2))


def inv(a: Any) -> Any:
    """`numpy.linalg.inv`: ā = -a⁻ᴴ ḡ a⁻ᴴ."""
    a = operand(a, "numpy.linalg.inv")
    result = compute(np.linalg.inv, a)

    def adjoint(k: int, g: Any, inverse: Any) -> Any:
        other = _transposed(inverse)
        return -np.matmul(np.matmul(other, g), other)

    def push(dots: dict[int, Any], inverse: Any) -> Any:
        return -np.matmul(np.matmul(inverse, dots[0]), inverse)

    return record("numpy.linalg.inv", [a], result, result, each(adjoint), push)


def solve(a: Any, b: Any) -> Any:
    """`numpy.linalg.solve`: b̄ = a⁻ᴴ ḡ, ā = -b̄ xᴴ."""
    a, b = operands((a, b), "numpy.linalg.solve")
    result = compute(np.linalg.solve, a, b)
    vector = b.ndim == 1
    shapes = a.shape, b.shape

    def adjoint(ks: list[int], g: Any, values: Any) -> Any:
        a, x = values
        g, x = (v[..., None] if vector else v for v in (g, x))
        bar = np.linalg.solve(_transposed(a), g)
        found = []
        if 0 in ks:
            found.append((0, unbroadcast(-np.matmul(bar, _transposed(x)), shapes[0])))
        if 1 in ks:
            found.append((1, unbroadcast(bar[..., 0] if vector else bar, shapes[1])))
        return found

    def push(dots: dict[int, Any], values: Any) -> Any:
        a, x = values
        right: Any = 0
        if 0 in dots:
            right = -(np.matmul(dots[0], x[..., None])[..., 0] if vector else np.matmul(dots[0], x))
        if 1 in dots:
            right = dots[1] + right
        if vector:
            return np.linalg.solve(a, right[..., None])[..., 0]
        return np.linalg.solve(a, right)

    return record("numpy.linalg.solve", [a, b], result, (a, result), adjoint, push)


def det(a: Any) -> Any:
    """`numpy.linalg.det`: ā = conj(det) a⁻ᴴ ḡ; a singular matrix has no derivative here."""
    a = operand(a, "numpy.linalg.det")
    result = compute(np.linalg.det, a)

    def adjoint(k: int, g: Any, values: Any) -> Any:
        a, d = values
        return (g * np.conj(d))[..., None, None] * _transposed(np.linalg.inv(a))

    def push(dots: dict[int, Any], values: Any) -> Any:
        a, d = values
        product = np.matmul(np.linalg.inv(a), dots[0])
        return d * np.trace(product, 0, -2, -1)

    return record("numpy.linalg.det", [a], result, (a, result), each(adjoint), push)


def cholesky(a: Any, *, upper: bool = False) -> Any:
    """`numpy.linalg.cholesky`, which reads the lower triangle (Murray, arXiv:1602.07527)."""
    if upper:
        raise no_rule(np.linalg.cholesky, f" with upper=True{ON_DEVICE}")
    a = operand(a, "numpy.linalg.cholesky")
    result = compute(np.linalg.cholesky, a)

    def halved(x: Any) -> Any:
        lower = np.tril(x)
        return lower - 0.5 * (lower - np.tril(x, -1))

    def adjoint(k: int, g: Any, lower: Any) -> Any:
        inner = halved(np.matmul(_transposed(lower), np.tril(g)))
        left = np.linalg.solve(_transposed(lower), inner)
        full = _transposed(np.linalg.solve(_transposed(lower), _transposed(left)))
        both = 0.5 * (full + _transposed(full))
        return np.tril(both) + np.tril(both, -1)

    def push(dots: dict[int, Any], lower: Any) -> Any:
        below = np.tril(dots[0], -1)
        whole = np.tril(dots[0]) + _transposed(below)
        left = np.linalg.solve(lower, whole)
        return np.matmul(lower, halved(_transposed(np.linalg.solve(lower, _transposed(left)))))

    return record("numpy.linalg.cholesky", [a], result, result, each(adjoint), push)


RULES: dict[Callable, Callable] = {
    np.linalg.cholesky: cholesky,
    np.dot: dot,
    np.einsum: einsum,
    np.inner: inner,
    np.linalg.det: det,
    np.linalg.inv: inv,
    np.linalg.solve: solve,
    np.outer: outer,
    np.tensordot: tensordot,
    np.vdot: vdot,
}
