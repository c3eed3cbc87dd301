"""The table of operations on whole matrices: source and derivatives of each.

Such an operation is an ``ir.Fill``: a local array, filled once, from arrays that no statement changes between the
operation and its derivative (the frontend makes copies where necessary).  The derivatives are made of the same
operations, so that they can be differentiated again.  ``turned`` in a name means transposed.  With ``C = f(A, B)``,
``^H`` the conjugate transpose and ``tril`` a lower triangle:

==========  ========================================  ==========================================================
operation   tangent                                   adjoint
==========  ========================================  ==========================================================
dot         ``dA B + A dB``                           ``A_bar += C_bar B^H``, ``B_bar += A^H C_bar`` (a real factor
                                                      is not copied: ``dot_with_turned``, ``dot_of_turned``)
solve       ``A^-1 (dB - dA C)``                      ``W = A^-H C_bar``, ``B_bar += W``, ``A_bar -= W C^H``
inv         ``-C dA C``                               ``A_bar -= C^H C_bar C^H``
det         ``C tr(A^-1 dA)``                         ``A_bar += conj(C) C_bar A^-H``
logdet      ``tr(A^-1 dA)``                           ``A_bar += C_bar A^-H``
cholesky    ``C P(C^-1 dA C^-H)``                     ``S = C^-H P(C^H C_bar) C^-1``, ``A_bar += tril(S + S^H)``,
                                                      the diagonal of ``S`` once
==========  ========================================  ==========================================================

``P`` takes the lower triangle with half of the diagonal.  ``cholesky`` reads only the lower triangle of ``A``, so only
that has an adjoint.  ``logdet`` takes only real matrices.  The other operations return integers, are in
``decompositions``, or are calls of functions (see ``calls``).  (M. Giles, An extended collection of matrix derivative
results, 2008; I. Murray, Differentiation of the Cholesky decomposition, 2016.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Size, Var, calls
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.intrinsics import arithmetic, conjugate, constant
from ampi.kernel.ir.ssa import INT, ZERO, Loop

SOURCES = {
    "dot": "np.dot({})",
    "dot_of_turned": "np.dot({0}.T, {1})",
    "dot_with_turned": "np.dot({0}, {1}.T)",
    "solve": "np.linalg.solve({})",
    "solve_upper": "solve_upper({})",
    "inv": "np.linalg.inv({})",
    "det": "np.linalg.det({})",
    "cholesky": "np.linalg.cholesky({})",
    "logdet": "np.linalg.slogdet({})[1]",
    "eigenvalues": "np.linalg.eigvalsh({})",
    "eigenvectors": "np.linalg.eigh({})[1]",
    "singular_values": "np.linalg.svd({}, False)[1]",
    "left_vectors": "np.linalg.svd({}, False)[0]",
    "right_vectors": "np.linalg.svd({}, False)[2]",
    "pinv": "np.linalg.pinv({})",
    "digitize": "np.digitize({})",
    "digitize_right": "np.digitize({}, True)",
    "sign": "np.linalg.slogdet({})[0]",
    "argsort": "np.argsort({})",
    "argpartition": "np.argpartition({})",
    "stable_argsort": "np.argsort({}, kind='mergesort')",
    "searchsorted": "np.searchsorted({})",
    "searchsorted_right": "np.searchsorted({}, side='right')",
}

RAISING = ("inv", "solve", "cholesky")
"""Operations that raise an exception for some matrices."""

PRODUCTS = ("dot", "dot_of_turned", "dot_with_turned")
NUMBERS = ("det", "logdet", "sign")
Element = Callable[[tuple[Expr, ...]], Expr]


def is_known(name: str) -> bool:
    """Return whether there is an operation of this name."""
    return name in SOURCES or calls.is_separate(name)


def source(s: ir.Fill) -> str:
    """The statement as Python source."""
    names = [a.name for a in s.arguments]
    if calls.is_separate(s.function):
        return f"put_into({s.target.name}, {s.function}({', '.join(names)})[0])"
    template = SOURCES[s.function]
    called = template.format(*names) if "{0}" in template else template.format(", ".join(names))
    if s.function in PRODUCTS and all(_is_like(a, s.target) for a in s.arguments) and s.target.type.layout == "C":
        return f"{called[:-1]}, {s.target.name})"
    return f"{s.target.name}[0] = {called}" if s.function in NUMBERS else f"put_into({s.target.name}, {called})"


def _is_like(a: Var, target: Var) -> bool:
    """Return whether Numba accepts the array as a factor in a product with this output array."""
    return a.type.dtype == target.type.dtype and a.type.layout in "CF"


def adjoint(b: Builder, s: ir.Fill, target: Var, arguments: tuple[Var, ...], bar: Var, bars: list[Var | None]) -> None:
    """Add the contributions of the target's adjoint ``bar`` to those of the arguments (``bars``; None if passive)."""
    derive = partial(_adjoint_of_call, s.function) if calls.is_separate(s.function) else ADJOINTS[s.function]
    derive(Writer(b, s.line), target, arguments, bar, bars)


def tangent(b: Builder, s: ir.Fill, target: Var, arguments: tuple[Var, ...], dot: Var, dots: list[Var | None]) -> None:
    """Set the tangent ``dot`` of the target."""
    derive = partial(_tangent_of_call, s.function) if calls.is_separate(s.function) else TANGENTS[s.function]
    derive(Writer(b, s.line), target, arguments, dot, dots)


class Writer:
    """Writes matrix arithmetic as loops and ``Fill`` statements."""

    def __init__(self, builder: Builder, line: int):
        self.b = builder
        self.line = line

    @contextmanager
    def loop(self, stop: Expr, changed: Var, start: Expr = ZERO) -> Iterator[Var]:
        i = self.b.inner("i", INT)
        with self.b.nested({changed.name}) as block:
            yield i
        self.b.emit(Loop(i.name, i, start, stop, tuple(block.statements), line=self.line))

    def each(self, target: Var, element: Callable[[tuple[Expr, ...]], None], index: tuple[Expr, ...] = ()) -> None:
        """Loop over all indices of an array that ``element`` changes."""
        if len(index) == target.type.ndim:
            element(index)
            return
        with self.loop(Size(target, len(index), INT), target) as i:
            self.each(target, element, (*index, i))

    def array(self, hint: str, dtype: Any, shape: tuple[Expr, ...], fill: Expr | None = None) -> Var:
        target = self.b.fresh(hint, types.Array(dtype, len(shape), "C"))
        self.b.emit(ir.Alloc(target, shape, fill, line=self.line))
        self.b.forget(target.name)
        return target

    def set(self, target: Var, value: Element) -> Var:
        self.each(target, lambda index: self.b.store(target, index, self.b.value(value(index))))
        return target

    def add(self, target: Var, value: Element) -> None:
        self.each(target, lambda index: self.b.accumulate(target, index, self.b.value(value(index))))

    def fill(self, target: Var, function: str, *arguments: Var) -> Var:
        self.b.emit(ir.Fill(target, function, arguments, line=self.line))
        self.b.forget(target.name)
        return target

    def like(self, a: Var, hint: str) -> Var:
        return self.array(hint, a.type.dtype, shape(a))

    def adjoint_matrix(self, a: Var) -> Var:
        """``a^H``."""
        transposed = self.array(f"{a.name}_turned", a.type.dtype, shape(a)[::-1])
        return self.set(transposed, lambda k: conjugate(self.b.load(a, k[::-1])))

    def solve(self, a: Var, right: Var) -> Var:
        return self.fill(self.like(right, "solution"), "solve", a, right)

    def solve_upper(self, a: Var, right: Var) -> Var:
        """``a^-1 right`` for a matrix with zeros below its diagonal."""
        return self.fill(self.like(right, "solution"), "solve_upper", a, right)

    def dot(self, a: Var, c: Var) -> Var:
        target = self.array("product", a.type.dtype, (*shape(a)[:-1], *shape(c)[1:]))
        return self.fill(target, "dot", a, c)

    def dot_of_turned(self, a: Var, c: Var) -> Var:
        """``a^H c`` for matrices; without a copy of real ones."""
        if isinstance(a.type.dtype, types.Complex):
            return self.dot(self.adjoint_matrix(a), c)
        target = self.array("product", a.type.dtype, (shape(a)[1], shape(c)[1]))
        return self.fill(target, "dot_of_turned", a, c)

    def dot_with_turned(self, a: Var, c: Var) -> Var:
        """``a c^H`` for matrices; without a copy of real ones."""
        if isinstance(c.type.dtype, types.Complex):
            return self.dot(a, self.adjoint_matrix(c))
        target = self.array("product", a.type.dtype, (shape(a)[0], shape(c)[0]))
        return self.fill(target, "dot_with_turned", a, c)

    def flat(self, a: Var, first: Expr, index: tuple[Expr, ...]) -> Expr:
        """The index of an element of ``a`` in a vector in which the elements of ``a`` begin at ``first``."""
        place: Expr = ZERO
        for axis, i in enumerate(index):
            place = arithmetic("add", arithmetic("mul", place, Size(a, axis, INT)), i) if axis else i
        return self.b.value(arithmetic("add", first, place))

    def lower_half(self, a: Var) -> Var:
        """The lower triangle of a matrix with half of its diagonal."""

        def element(k: tuple[Expr, ...]) -> Expr:
            half = arithmetic("mul", self.b.load(a, k), constant(0.5, real(a)))
            return self.select(k, constant(0, a.type.dtype), half, self.b.load(a, k))

        return self.set(self.like(a, "half"), element)

    def select(self, k: tuple[Expr, ...], above: Expr, on: Expr, below: Expr) -> Expr:
        """One of three values, for elements above, on and below the diagonal."""
        type_ = below.type
        lower = ir.Op("select", (ir.Op("gt", k, types.boolean), below, above), type_)
        return ir.Op("select", (ir.Op("eq", k, types.boolean), on, lower), type_)


def shape(a: Var) -> tuple[Expr, ...]:
    return tuple(Size(a, k, INT) for k in range(a.type.ndim))


def real(a: Var) -> Any:
    return a.type.dtype.underlying_float if isinstance(a.type.dtype, types.Complex) else a.type.dtype


# --------------------------------------------------------------------------------------------------- products


def _dot_adjoint(w: Writer, c: Var, arguments: tuple[Var, ...], bar: Var, bars: list[Var | None]) -> None:
    (a, d), (a_bar, d_bar), load = arguments, bars, w.b.load
    if a.type.ndim == d.type.ndim == 2:
        _add_to_both(w, bars, lambda: w.dot_with_turned(bar, d), lambda: w.dot_of_turned(a, bar))
    elif a.type.ndim == 2:  # c[i] = a[i, k] d[k]
        if a_bar is not None:
            w.add(a_bar, lambda k: arithmetic("mul", load(bar, k[:1]), conjugate(load(d, k[1:]))))
        if d_bar is not None:
            _add_product(w, d_bar, a, bar, lambda i, k: (i, k))
    else:  # c[j] = a[k] d[k, j]
        if d_bar is not None:
            w.add(d_bar, lambda k: arithmetic("mul", conjugate(load(a, k[:1])), load(bar, k[1:])))
        if a_bar is not None:
            if isinstance(bar.type.dtype, types.Complex):
                transposed = w.set(w.like(bar, "conjugate"), lambda k: conjugate(load(bar, k)))
            else:
                transposed = bar
            increment = w.dot(d, transposed)
            w.add(a_bar, lambda k: conjugate(load(increment, k)))


def _dot_of_turned_adjoint(w: Writer, c: Var, arguments: tuple[Var, ...], bar: Var, bars: list[Var | None]) -> None:
    a, d = arguments
    _add_to_both(w, bars, lambda: w.dot_with_turned(d, bar), lambda: w.dot(a, bar))


def _dot_with_turned_adjoint(w: Writer, c: Var, arguments: tuple[Var, ...], bar: Var, bars: list[Var | None]) -> None:
    a, d = arguments
    _add_to_both(w, bars, lambda: w.dot(bar, d), lambda: w.dot_of_turned(bar, a))


def _add_to_both(w: Writer, bars: list[Var | None], *increments: Callable[[], Var]) -> None:
    """Add a matrix to the adjoint of each active factor; it is computed only then."""
    for bar, compute in zip(bars, increments, strict=True):
        if bar is not None:
            increment = compute()
            w.add(bar, partial(w.b.load, increment))


def _add_product(w: Writer, target: Var, matrix: Var, vector: Var, position: Any) -> None:
    """``target[k] += conj(matrix[i, k]) * vector[i]``, row by row."""
    with w.loop(Size(vector, 0, INT), target) as i:
        with w.loop(Size(target, 0, INT), target) as k:
            factor = conjugate(w.b.load(matrix, position(i, k)))
            w.b.accumulate(target, (k,), w.b.value(arithmetic("mul", factor, w.b.load(vector, (i,)))))


def _dot_tangent(
    w: Writer,
    c: Var,
    arguments: tuple[Var, ...],
    dot: Var,
    dots: list[Var | None],
    product: Callable[[Writer, Var, Var], Var] = Writer.dot,
) -> None:
    a, d = arguments
    parts = []
    if dots[0] is not None:
        parts.append(product(w, dots[0], d))
    if dots[1] is not None:
        parts.append(product(w, a, dots[1]))
    w.set(dot, lambda k: _sum([w.b.load(p, k) for p in parts], dot))


def _sum(values: list[Expr], like: Var) -> Expr:
    if not values:
        return constant(0, like.type.dtype)
    return values[0] if len(values) == 1 else arithmetic("add", *values)


# --------------------------------------------------------------------------------------------------- linear systems


def _solve_adjoint(w: Writer, x: Var, arguments: tuple[Var, ...], bar: Var, bars: list[Var | None]) -> None:
    a, _ = arguments
    a_bar, right_bar = bars
    solution = w.solve(w.adjoint_matrix(a), bar)
    if right_bar is not None:
        w.add(right_bar, lambda k: w.b.load(solution, k))
    if a_bar is None:
        return
    if x.type.ndim == 1:
        product = lambda k: arithmetic("mul", w.b.load(solution, k[:1]), conjugate(w.b.load(x, k[1:])))
        w.add(a_bar, lambda k: ir.Op("neg", (product(k),), a_bar.type.dtype))
    else:
        outer = w.dot(solution, w.adjoint_matrix(x))
        w.add(a_bar, lambda k: ir.Op("neg", (w.b.load(outer, k),), a_bar.type.dtype))


def _solve_tangent(w: Writer, x: Var, arguments: tuple[Var, ...], dot: Var, dots: list[Var | None]) -> None:
    a, _ = arguments
    a_dot, right_dot = dots
    right = w.like(x, "right")
    moved = None if a_dot is None else w.dot(a_dot, x)

    def element(k: tuple[Expr, ...]) -> Expr:
        value = constant(0, x.type.dtype) if right_dot is None else w.b.load(right_dot, k)
        return value if moved is None else arithmetic("sub", value, w.b.load(moved, k))

    w.set(right, element)
    w.fill(dot, "solve", a, right)


def _inv_adjoint(w: Writer, c: Var, arguments: tuple[Var, ...], bar: Var, bars: list[Var | None]) -> None:
    (a_bar,) = bars
    if a_bar is None:
        return
    transposed = w.adjoint_matrix(c)
    change = w.dot(w.dot(transposed, bar), transposed)
    w.add(a_bar, lambda k: ir.Op("neg", (w.b.load(change, k),), a_bar.type.dtype))


def _inv_tangent(w: Writer, c: Var, arguments: tuple[Var, ...], dot: Var, dots: list[Var | None]) -> None:
    (a_dot,) = dots
    if a_dot is None:
        w.set(dot, lambda k: constant(0, dot.type.dtype))
        return
    change = w.dot(w.dot(c, a_dot), c)
    w.set(dot, lambda k: ir.Op("neg", (w.b.load(change, k),), dot.type.dtype))


def _unit(w: Writer, a: Var) -> Var:
    one, zero = constant(1, a.type.dtype), constant(0, a.type.dtype)
    return w.set(w.like(a, "unit"), lambda k: w.select(k, zero, one, zero))


def _det_adjoint(w: Writer, d: Var, arguments: tuple[Var, ...], bar: Var, bars: list[Var | None]) -> None:
    (a,), (a_bar,) = arguments, bars
    if a_bar is None:
        return
    _add_inverse(w, a, a_bar, w.b.value(arithmetic("mul", conjugate(w.b.load(d, (ZERO,))), w.b.load(bar, (ZERO,)))))


def _logdet_adjoint(w: Writer, d: Var, arguments: tuple[Var, ...], bar: Var, bars: list[Var | None]) -> None:
    (a,), (a_bar,) = arguments, bars
    if a_bar is not None:
        _add_inverse(w, a, a_bar, w.b.value(w.b.load(bar, (ZERO,))))


def _add_inverse(w: Writer, a: Var, a_bar: Var, factor: Expr) -> None:
    """``a_bar += factor * a^-H``."""
    inverse = w.solve(w.adjoint_matrix(a), _unit(w, a))
    w.add(a_bar, lambda k: arithmetic("mul", factor, w.b.load(inverse, k)))


def _det_tangent(w: Writer, d: Var, arguments: tuple[Var, ...], dot: Var, dots: list[Var | None]) -> None:
    _logdet_tangent(w, d, arguments, dot, dots)
    w.set(dot, lambda k: arithmetic("mul", w.b.load(d, k), w.b.load(dot, k)))


def _logdet_tangent(w: Writer, d: Var, arguments: tuple[Var, ...], dot: Var, dots: list[Var | None]) -> None:
    (a,), (a_dot,) = arguments, dots
    w.set(dot, lambda k: constant(0, dot.type.dtype))
    if a_dot is None:
        return
    quotient = w.solve(a, a_dot)
    with w.loop(Size(a, 0, INT), dot) as i:
        w.b.accumulate(dot, (ZERO,), w.b.value(w.b.load(quotient, (i, i))))


def _cholesky_adjoint(w: Writer, c: Var, arguments: tuple[Var, ...], bar: Var, bars: list[Var | None]) -> None:
    (a_bar,) = bars
    if a_bar is None:
        return
    transposed = w.adjoint_matrix(c)
    inner = w.solve_upper(transposed, w.lower_half(w.dot(transposed, _lower(w, bar))))
    s = w.solve_upper(transposed, w.adjoint_matrix(inner))  # S^H

    def element(k: tuple[Expr, ...]) -> Expr:
        other = conjugate(w.b.load(s, k[::-1]))
        both = arithmetic("add", w.b.load(s, k), other)
        on = arithmetic("mul", both, constant(0.5, real(c)))
        return w.select(k, constant(0, c.type.dtype), on, both)

    w.add(a_bar, element)


def _lower(w: Writer, a: Var) -> Var:
    """The lower triangle of a matrix."""
    element = lambda k: w.select(k, constant(0, a.type.dtype), w.b.load(a, k), w.b.load(a, k))
    return w.set(w.like(a, "lower"), element)


def hermitian(w: Writer, a: Var) -> Var:
    """The Hermitian matrix with the lower triangle of ``a``."""

    def element(k: tuple[Expr, ...]) -> Expr:
        below, above = w.b.load(a, k), conjugate(w.b.load(a, k[::-1]))
        on = below
        if isinstance(below.type, types.Complex):
            on = ir.Op("cast", (ir.Op("real", (below,), real(a)),), below.type)
        return w.select(k, above, on, below)

    return w.set(w.like(a, "change"), element)


def _cholesky_tangent(w: Writer, c: Var, arguments: tuple[Var, ...], dot: Var, dots: list[Var | None]) -> None:
    (a_dot,) = dots
    if a_dot is None:
        w.set(dot, lambda k: constant(0, dot.type.dtype))
        return
    change = hermitian(w, a_dot)
    inner = w.solve(c, change)
    both = w.solve(c, w.adjoint_matrix(inner))  # (C^-1 dA C^-H)^H, which is the same
    product = w.dot(c, w.lower_half(both))
    w.set(dot, lambda k: w.b.load(product, k))


# --------------------------------------------------------------------------------------------------- calls


def _adjoint_of_call(
    name: str, w: Writer, result: Var, arguments: tuple[Var, ...], bar: Var, bars: list[Var | None]
) -> None:
    active = [k for k, own in enumerate(bars) if own is not None]
    size = lambda a: w.b.value(arithmetic("mul", *shape(a))) if a.type.ndim > 1 else shape(a)[0]
    begin: Expr = ZERO
    begins = []
    for k in active:
        begins.append(begin)
        begin = w.b.value(arithmetic("add", begin, size(arguments[k])))
    increments = w.array("increments", types.float64, (begin,))
    w.fill(increments, calls.adjoint(name, tuple(active)), *arguments, bar)
    for k, first in zip(active, begins, strict=True):
        own = bars[k]
        assert own is not None
        w.add(own, lambda index, a=arguments[k], first=first: w.b.load(increments, (w.flat(a, first, index),)))


def _tangent_of_call(
    name: str, w: Writer, result: Var, arguments: tuple[Var, ...], dot: Var, dots: list[Var | None]
) -> None:
    active = tuple(k for k, own in enumerate(dots) if own is not None)
    if not active:
        w.set(dot, lambda k: constant(0, dot.type.dtype))
        return
    w.fill(dot, calls.tangent(name, active), *arguments, *(own for own in dots if own is not None))


ADJOINTS: dict[str, Any] = {
    "dot": _dot_adjoint,
    "dot_of_turned": _dot_of_turned_adjoint,
    "dot_with_turned": _dot_with_turned_adjoint,
    "solve": _solve_adjoint,
    "solve_upper": _solve_adjoint,
    "inv": _inv_adjoint,
    "det": _det_adjoint,
    "cholesky": _cholesky_adjoint,
    "logdet": _logdet_adjoint,
}
TANGENTS: dict[str, Any] = {
    "dot": _dot_tangent,
    "dot_of_turned": partial(_dot_tangent, product=Writer.dot_of_turned),
    "dot_with_turned": partial(_dot_tangent, product=Writer.dot_with_turned),
    "solve": _solve_tangent,
    "solve_upper": _solve_tangent,
    "inv": _inv_tangent,
    "det": _det_tangent,
    "cholesky": _cholesky_tangent,
    "logdet": _logdet_tangent,
}


def derivatives(name: str) -> Callable[[Any], Any]:
    """Register the adjoint or tangent of an operation: ``@derivatives("pinv")`` above ``def _pinv_adjoint``."""

    def register(function: Any) -> Any:
        (ADJOINTS if function.__name__.endswith("adjoint") else TANGENTS)[name] = function
        return function

    return register
