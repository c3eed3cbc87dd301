"""Functions of NumPy that find indices of elements, split arrays, or take elements along an axis.

Some are rules, as in ``arrays.functions``, and some kernels, as in ``written.functions``.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import functions as array_functions
from ampi.kernel.frontend.arrays import sequences
from ampi.kernel.frontend.arrays import shapes as array_shapes
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import array, axis_of, is_none, rule
from ampi.kernel.frontend.arrays.values import Lazy, Range, axes_for, computed, element_at, is_array, shape_of
from ampi.kernel.frontend.base.values import Group
from ampi.kernel.frontend.written.functions import written
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.index_algebra import INT, ONE, ZERO
from ampi.kernel.ir.intrinsics import cast

# --------------------------------------------------------------------------------------- places


@rule(np.flatnonzero)
def flatnonzero(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return array_values.places(builder, node, array_shapes.ravel(builder, node, array(builder, node, a)))


@rule(np.nonzero, method="nonzero")
def nonzero(builder: Any, node: ast.Call, a: Any) -> Group:
    """The indices of the elements that are not zero, an array for each axis."""
    found = flatnonzero(builder, node, a)
    sizes = shape_of(builder, a)
    if len(sizes) == 1:
        return Group((found,))
    (axis,), (count,) = axes_for(builder, 1), shape_of(builder, found)
    places, rest = [], element_at(found, (axis,))
    for size in reversed(sizes[1:]):
        places.append(ir.Op("mod", (rest, size), INT))
        rest = ir.Op("floordiv", (rest, size), INT)
    kind = types.Array(INT, 1, "C")
    return Group(tuple(computed(builder, Lazy(kind, (axis,), (count,), v), "places") for v in (rest, *places[::-1])))


@rule(np.where)
def where(builder: Any, node: ast.Call, condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return nonzero(builder, node, condition)
    if x is None or y is None:
        builder.fail(node, "np.where of a condition and one value", "give both values: np.where(condition, x, y)")
    return array_functions.where(builder, node, condition, x, y)


@rule(np.argwhere)
def argwhere(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    rows = array_shapes.vstack(builder, node, nonzero(builder, node, a))
    return array_shapes.transpose(builder, node, rows)


@written(np.triu_indices, of_anything=True)
def triu_indices(n, k=0, m=None):
    return np.nonzero(np.tri(n, m, k - 1) == 0.0)


@written(np.tril_indices, of_anything=True)
def tril_indices(n, k=0, m=None):
    return np.nonzero(np.tri(n, m, k))


@written(np.triu_indices_from)
def triu_indices_from(arr, k=0):
    return np.triu_indices(arr.shape[0], k, arr.shape[1])


@written(np.tril_indices_from)
def tril_indices_from(arr, k=0):
    return np.tril_indices(arr.shape[0], k, arr.shape[1])


@rule(np.indices, of_anything=True)
def indices(builder: Any, node: ast.Call, dimensions: Any) -> ir.Var:
    items = getattr(dimensions, "items", ())
    if not 1 <= len(items) <= 3 or not all(isinstance(getattr(n, "type", None), types.Integer) for n in items):
        builder.fail(node, "np.indices takes a tuple of one to three integers here")
    sizes = tuple(array_values.steady(builder, n) for n in items)
    target = array_values.new_array(builder, "indices", INT, (ir.Const(len(sizes), INT), *sizes))
    for k in range(len(sizes)):
        axes = axes_for(builder, len(sizes))
        builder.emit(ir.Elementwise(target, axes, sizes, (ir.Const(k, INT), *axes), axes[k]))
    return target


# --------------------------------------------------------------------------------------- parts


@rule(np.dstack)
def dstack(builder: Any, node: ast.Call, tup: Any) -> ir.Var:
    def deep(a: ir.Var) -> ir.Var:
        if a.type.ndim == 1:
            a = array_shapes.with_axis(builder, node, a, 0)
        return array_shapes.with_axis(builder, node, a, 2) if a.type.ndim == 2 else a

    return array_shapes.joined(builder, node, tup, 2, deep)


@rule(np.array_split)
def array_split(builder: Any, node: ast.Call, ary: Any, indices_or_sections: Any, axis: Any = ZERO) -> Group:
    """Views of consecutive parts: a number of parts of nearly the same size, or parts cut at given indices."""
    ary = computed(builder, array(builder, node, ary))
    along = axis_of(builder, node, ary, axis)
    cuts: list[Any] = list(getattr(indices_or_sections, "items", ()))
    if isinstance(indices_or_sections, ir.Const) and indices_or_sections.value > 0:
        many, size = indices_or_sections.value, shape_of(builder, ary)[along]
        each = index_algebra.floordiv(size, many)
        longer = builder.temporary("longer", index_algebra.sub(size, index_algebra.mul(each, ir.Const(many, INT))))
        each = builder.temporary("each", each)
        for k in range(1, many):
            count = ir.Const(k, INT)
            before = index_algebra.add(index_algebra.mul(each, count), index_algebra.minimum(longer, count))
            cuts.append(builder.temporary("cut", before))
    elif not cuts or not all(isinstance(getattr(k, "type", None), types.Integer) for k in cuts):
        problem = f"{ast.unparse(node.func)} into a variable number of parts"
        builder.fail(node, problem, "write a constant number, or a tuple of indices; or take slices in a loop")
    whole = [Range(None, None, None)] * along
    bounds = zip((None, *cuts), (*cuts, None))
    return Group(tuple(array_values.part(builder, node, ary, [*whole, Range(*b, None)], None) for b in bounds))


@rule(np.split)
def split(builder: Any, node: ast.Call, ary: Any, indices_or_sections: Any, axis: Any = ZERO) -> Group:
    ary = computed(builder, array(builder, node, ary))
    if isinstance(indices_or_sections, ir.Const) and indices_or_sections.value > 0:
        size = shape_of(builder, ary)[axis_of(builder, node, ary, axis)]
        rest = ir.Op("mod", (size, cast(indices_or_sections, INT)), INT)
        text = 'raise ValueError("array split does not result in an equal division")'
        builder.emit(ir.If(ir.Op("ne", (rest, ZERO), types.boolean), (ir.Raise(text, line=builder.line),)))
    return array_split(builder, node, ary, indices_or_sections, axis)


def split_along(function: Any, axis: int) -> None:
    @rule(function)
    def split_it(builder: Any, node: ast.Call, ary: Any, indices_or_sections: Any) -> Group:
        last = array(builder, node, ary).type.ndim - 1
        along = 0 if function is np.hsplit and last == 0 else axis
        return split(builder, node, ary, indices_or_sections, ir.Const(along, INT))


for _function, _axis in ((np.vsplit, 0), (np.hsplit, 1), (np.dsplit, 2)):
    split_along(_function, _axis)


# --------------------------------------------------------------------------------------- elements


@rule(np.take_along_axis)
def take_along_axis(builder: Any, node: ast.Call, arr: Any, indices: Any, axis: Any) -> Lazy:
    arr, indices = (computed(builder, array(builder, node, v), "elements") for v in (arr, indices))
    if not isinstance(indices.type.dtype, types.Integer):
        builder.fail(node, "np.take_along_axis takes an array of integers")
    if is_none(axis):
        arr, axis = array_shapes.ravel(builder, node, arr), ZERO
    if arr.type.ndim != indices.type.ndim:
        builder.fail(node, "np.take_along_axis takes two arrays of equally many dimensions")
    along = axis_of(builder, node, arr, axis)
    sizes, axes = shape_of(builder, arr), axes_for(builder, arr.type.ndim)
    shape = list(shape_of(builder, indices))
    of_indices: list[ir.Expr] = list(axes)
    of_elements: list[ir.Expr] = list(axes)
    for k, (mine, other) in enumerate(zip(sizes, shape)):
        if k == along or mine == other:
            continue
        if ONE in (mine, other):
            (of_indices if other == ONE else of_elements)[k] = ZERO
            shape[k] = mine if other == ONE else other
        else:
            array_values.agree(builder, node, mine, other)
    place = cast(element_at(indices, tuple(of_indices)), INT)
    below = ir.Op("lt", (place, ZERO), types.boolean)
    of_elements[along] = ir.Op("select", (below, index_algebra.add(place, sizes[along]), place), INT)
    value = element_at(arr, tuple(of_elements))
    return Lazy(arr.type.copy(layout="C", readonly=False), axes, tuple(shape), value)


@rule(sorted, of_anything=True)
def sorted_(builder: Any, node: ast.Call, iterable: Any, key: Any = None, reverse: Any = None) -> ir.Var:
    """A new, sorted list."""
    from ampi.kernel.frontend.arrays.orders import sorted_vector

    if not is_none(key):
        builder.fail(node, "sorted with a key", "take np.argsort of an array of the keys")
    if not (reverse is None or isinstance(reverse, ir.Const)):
        builder.fail(node, "sorted with a 'reverse' that is not constant", "write reverse=True or reverse=False")
    values = iterable if is_array(iterable) else sequences.array_of(builder, node, iterable)
    found = computed(builder, sorted_vector(builder, node, values))
    if reverse is not None and reverse.value:
        found = array_shapes.flip(builder, node, found)
    return sequences.copied_list(builder, node, found)
