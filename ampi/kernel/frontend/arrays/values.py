"""Parts of arrays and whole-array expressions, from NumPy's notation to IR.

A part of an array is a view: an ``ir.View`` gives it a name.  A whole-array expression is ``Lazy``: it has the
expression of one element.  It is computed into a new array where it is bound to a name, and into the target where it is
assigned; operations on it only make the expression longer.  The functions here take the parser that builds the kernel
(``parse``).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.index_algebra import INT, ONE, ZERO
from ampi.kernel.ir.intrinsics import cast, constant, into_array
from ampi.kernel.ir.rewrite import substitute

AXES = "ijkl"

INPLACE: dict[type[ast.operator], Callable] = {
    ast.Add: operator.iadd,
    ast.Sub: operator.isub,
    ast.Mult: operator.imul,
    ast.Div: operator.itruediv,
    ast.FloorDiv: operator.ifloordiv,
    ast.Mod: operator.imod,
    ast.Pow: operator.ipow,
}


@dataclass(frozen=True)
class Lazy:
    """A whole-array expression, not computed yet: ``value`` is its element at ``axes``."""

    type: types.Array
    axes: tuple[ir.Var, ...]
    shape: tuple[ir.Expr, ...]
    value: ir.Expr


@dataclass(frozen=True)
class Range:
    """A slice in an index."""

    lower: ir.Expr | None
    upper: ir.Expr | None
    step: ir.Expr | None


@dataclass(frozen=True)
class Place:
    """The elements of an array that an index selects: ``array[index]`` for all ``axes``.

    ``fancy`` is true if the index has an array of integers, so that it may select an element more than once.
    """

    array: ir.Var
    type: types.Array
    axes: tuple[ir.Var, ...]
    shape: tuple[ir.Expr, ...]
    index: tuple[ir.Expr, ...]
    fancy: bool


def is_array(value: Any) -> bool:
    """Return whether a value is an array: a named one, or a whole-array expression."""
    return isinstance(value, Lazy) or (isinstance(value, ir.Var) and inference.is_array(value.type))


def axes_for(builder: Any, number: int) -> tuple[ir.Var, ...]:
    """New variables that count along the axes of an array."""
    return tuple(ir.Var(builder.names.fresh(AXES[k % len(AXES)]), INT) for k in range(number))


def shape_of(builder: Any, value: Any) -> tuple[ir.Expr, ...]:
    """The sizes of an array, as constants where they are known."""
    if isinstance(value, Lazy):
        return value.shape
    known = builder.extents.get(value.name)
    sizes = tuple(
        ONE if (value.name, axis) in builder.single else ir.Size(value, axis, types.intp)
        for axis in range(value.type.ndim)
    )
    return sizes if known is None else tuple(k if isinstance(k, ir.Const) else n for k, n in zip(known, sizes))


def single_axes(builder: Any, value: Any) -> frozenset[int]:
    """The axes of an array that are known to have size one."""
    return frozenset(axis for axis, size in enumerate(shape_of(builder, value)) if size == ONE)


# --------------------------------------------------------------------------------------------------- elements


def element_of(builder: Any, value: Any, axes: tuple[ir.Var, ...]) -> ir.Expr:
    """The element of an array, or the scalar, that broadcasting pairs with these indices."""
    if not is_array(value):
        return value
    shape = shape_of(builder, value)
    index = tuple(ZERO if n == ONE else a for n, a in zip(shape, axes[len(axes) - len(shape) :], strict=True))
    return element_at(value, index)


def element_at(value: Any, index: tuple[ir.Expr, ...]) -> ir.Expr:
    if isinstance(value, Lazy):
        return substitute(value.value, {a.name: i for a, i in zip(value.axes, index, strict=True)})
    return ir.Load(value, index, value.type.dtype)


def refuse(builder: Any, wrong: ir.Expr, text: str, exact: bool = True, error: str = "ValueError") -> None:
    """Emit the check of an operation that raises an error with this text."""
    if "prange" in builder.loops:  # threads raise no exceptions
        builder.has_effects = True
    elif not (isinstance(wrong, ir.Const) and not wrong.value):
        raised = ir.Raise(f"raise {error}({text!r})", exact=exact, implied=True, line=builder.line)
        builder.emit(ir.If(wrong, (raised,)))


def refuse_number(builder: Any, relation: str, value: ir.Expr, text: str) -> None:
    """Emit the check of an operation that takes no zero (``eq``), or no negative number (``lt``)."""
    if not isinstance(value, (ir.Const, ir.Size)):
        refuse(builder, ir.Op(relation, (value, constant(0, value.type)), types.boolean), text)


def require_elements(builder: Any, a: Any, text: str, exact: bool = True) -> None:
    """Emit the check of an operation that takes no empty array."""
    sizes = [n for n in shape_of(builder, a) if not isinstance(n, ir.Const)]
    if sizes:
        refuse(builder, ir.Op("eq", (index_algebra.product(tuple(sizes)), ZERO), types.boolean), text, exact)


def only_element(builder: Any, value: Any, otherwise: str) -> ir.Expr:
    """The single element of an array; emits a check that raises a ValueError with the text ``otherwise``."""
    for size in shape_of(builder, value):
        if size != ONE:
            wrong = ir.Op("ne", (size, ONE), types.boolean)
            refuse(builder, wrong, otherwise, exact=False)
    return builder.temporary("item", element_at(value, (ZERO,) * value.type.ndim))


def broadcast(builder: Any, node: ast.AST, *values: Any) -> tuple[ir.Expr, ...]:
    """The broadcast shape of arrays and scalars; emits ``ir.Agree`` where it is not known that sizes agree."""
    shapes = [shape_of(builder, v) for v in values if is_array(v)]
    result: list[ir.Expr] = [ONE] * max(map(len, shapes))
    for shape in shapes:
        for axis, size in enumerate(shape, len(result) - len(shape)):
            if size == ONE:
                continue
            if result[axis] == ONE:
                result[axis] = size
            else:
                agree(builder, node, result[axis], size)
    return tuple(result)


def agree(builder: Any, node: ast.AST, first: ir.Expr, second: ir.Expr, into: bool = False) -> None:
    if first == second:
        return
    if isinstance(first, ir.Const) and isinstance(second, ir.Const):
        builder.fail(node, f"arrays of sizes {first.value} and {second.value} in one operation")
    builder.emit(ir.Agree(first, second, into=into))


def stretched(builder: Any, node: ast.AST, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands of an operation; slices of one element that are broadcast get axes of size one.

    An axis such as that of ``x[:, 0:1]`` is broadcast against one of another size; ``ir.Agree`` then checks that the
    slice is not empty.
    """
    arrays = [v for v in operands if is_array(v)]
    if not builder.narrow or len(arrays) < 2 or "prange" in builder.loops:  # threads raise no errors
        return operands
    ndim = max(v.type.ndim for v in arrays)
    shapes = [[ONE] * (ndim - v.type.ndim) + list(shape_of(builder, v)) for v in arrays]
    is_wide = [any(n != ONE and not _is_narrow(builder, n) for n in sizes) for sizes in zip(*shapes)]

    def widened(value: Any) -> Any:
        if not is_array(value):
            return value
        first = ndim - value.type.ndim
        sizes = enumerate(shape_of(builder, value))
        narrow = [k for k, n in sizes if is_wide[first + k] and _is_narrow(builder, n)]
        if not narrow:
            return value
        value = computed(builder, value)
        items: list[Any] = []
        for k, size in enumerate(shape_of(builder, value)):
            if k in narrow:
                builder.emit(ir.Agree(size, ONE, problem="a slice of one element, which is to stretch, is empty"))
            items += [ZERO, None] if k in narrow else [Range(None, None, None)]
        return part(builder, node, value, items, None)

    return tuple(map(widened, operands))


def _is_narrow(builder: Any, size: ir.Expr) -> bool:
    """Return whether a size is that of a slice of at most one element."""
    while isinstance(size, ir.Size) and size not in builder.narrow:
        known = builder.extents.get(size.array.name)
        if known is None or known[size.axis] == size:
            return False
        size = known[size.axis]
    return size in builder.narrow


def settled(builder: Any, value: Any) -> Any:
    """A scalar operand, computed once."""
    if isinstance(value, ir.Expr) and not isinstance(value, (ir.Const, ir.Var)):
        return builder.temporary("value", value)
    return value


def operation(builder: Any, node: ast.AST, function: Any, make: Callable[..., ir.Expr], *operands: Any) -> Any:
    """An operation on arrays and scalars, element by element.

    ``make`` builds the operation on scalars; Numba infers the type of the result from ``function``.
    """
    for value in operands:
        if not (is_array(value) or isinstance(value, ir.Expr)):
            builder.fail(node, "arithmetic of an array and something that is neither array nor number")
    type_ = result_type(builder, node, function, *operands)
    operands = stretched(builder, node, tuple(settled(builder, v) for v in operands))
    shape = broadcast(builder, node, *operands)
    axes = axes_for(builder, len(shape))
    value = make(*(element_of(builder, v, axes) for v in operands))
    if not inference.is_array(type_):  # all operands are 0-dimensional
        return settled(builder, cast(value, type_))
    return Lazy(type_, axes, shape, cast(value, type_.dtype))


def result_type(builder: Any, node: ast.AST, function: Any, *operands: Any) -> types.Type:
    """Numba's type of a result."""
    given = tuple(v.type for v in operands)
    type_ = inference.result_type(function, given)
    if type_ is None:
        shown = ", ".join(map(str, given))
        name = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', function)}"
        builder.fail(node, f"Numba has no {name}({shown})", "loop over the elements")
    assert type_ is not None
    return type_


def computed(builder: Any, value: Any, word: str = "local", variable: str | None = None) -> ir.Var:
    """An array with a name: an expression is computed into a new local array (see ``new_array``)."""
    if not isinstance(value, Lazy):
        return value
    dtype, ndim = value.type.dtype, len(value.axes)
    target = new_array(builder, word, dtype, value.shape, variable=variable)
    if ndim == 0:
        builder.emit(ir.Store(target, (), value.value))
    else:
        builder.emit(ir.Elementwise(target, value.axes, value.shape, value.axes, value.value))
    return target


def new_array(
    builder: Any,
    word: str,
    dtype: types.Type,
    shape: tuple[ir.Expr, ...],
    fill: Any = None,
    variable: str | None = None,
) -> ir.Var:
    """A new local array filled with a scalar; its name is that of ``variable``, to which it is bound, or ``word``."""
    target = ir.Var(builder.new_array_name(variable, word), types.Array(dtype, len(shape), "C"))
    shape = tuple(cast(n, types.intp) if n.type == types.uint64 else n for n in shape)
    builder.emit(ir.Alloc(target, shape, fill))
    builder.extents[target.name] = shape
    builder.owned.add(target.name)
    return target


def copied(builder: Any, value: Any, word: str) -> ir.Var:
    """A copy of an array."""
    if isinstance(value, Lazy):
        return computed(builder, value, word)
    axes = axes_for(builder, value.type.ndim)
    return computed(builder, Lazy(value.type, axes, shape_of(builder, value), element_at(value, axes)), word)


# --------------------------------------------------------------------------------------------------- parts


def view(builder: Any, place: Place, hint: str | None) -> ir.Var:
    """A name for a part of an array."""
    target = ir.Var(builder.new_array_name(hint, f"{place.array.name}_part"), place.type)
    builder.emit(ir.View(target, place.array, place.axes, place.shape, place.index))
    builder.extents[target.name] = place.shape
    if place.array.name in builder.owned:
        builder.parts.add(target.name)
    return target


def rearranged(
    builder: Any, array: ir.Var, type_: types.Array, axes: tuple[ir.Var, ...], shape: Any, index: Any, hint: str | None
) -> ir.Var:
    return view(builder, Place(array, type_, axes, tuple(shape), tuple(index), False), hint)


def part(builder: Any, node: ast.AST, array: ir.Var, items: list[Any], hint: str | None) -> Any:
    """``array[items]`` where an item is a slice, None, an ellipsis or an array of integers."""
    found = place(builder, node, array, items)
    if not found.fancy:
        return view(builder, found, hint)
    value = ir.Load(array, found.index, array.type.dtype)
    return Lazy(found.type, found.axes, found.shape, value)


def is_simple(items: list[Any]) -> bool:
    """Return whether an index consists of integers only."""
    return all(isinstance(v, ir.Expr) and inference.is_scalar(v.type) for v in items)


def without_idle_ellipsis(array: ir.Var, items: list[Any]) -> list[Any]:
    """An index without an ellipsis that selects no axis: in Numba, ``a[..., k]`` of a vector is a number."""
    axes = [item for item in items if item is not None and item is not Ellipsis]
    return [item for item in items if item is not Ellipsis] if len(axes) == array.type.ndim else items


def place(builder: Any, node: ast.AST, array: ir.Var, items: list[Any]) -> Place:
    """The place in an array that an index selects."""
    items = completed(builder, node, array, items)
    type_ = inference.part(array.type, tuple(map(_item_type, items)))
    if type_ is None or not inference.is_array(type_):
        builder.fail(node, f"Numba has no such index of an {array.type}", "use integers and slices, or a loop")
    sizes = iter(range(array.type.ndim))
    axes: list[ir.Var] = []
    shape: list[ir.Expr] = []
    index: list[ir.Expr] = []
    fancy = False
    for item in items:
        if item is None:
            axes += axes_for(builder, 1)
            shape.append(ONE)
            continue
        size = shape_of(builder, array)[next(sizes)]
        if isinstance(item, Range):
            new, length, at = _range(builder, node, item, size)
            axes.append(new)
            shape.append(length)
            index.append(at)
        elif is_array(item):
            own = axes_for(builder, item.type.ndim)
            axes += own
            shape += shape_of(builder, item)
            index.append(element_at(item, own))
            fancy = True
        else:
            last = isinstance(item, ir.Const) and item.value < 0
            index.append(index_algebra.add(size, item) if last else steady(builder, item))
    if len(axes) != type_.ndim:
        builder.fail(node, "an index with arrays of integers and other items", "use one array, next to slices")
    return Place(array, type_, tuple(axes), tuple(shape), tuple(index), fancy)


def completed(builder: Any, node: ast.AST, array: ir.Var, items: list[Any]) -> list[Any]:
    """The items of an index, with one for every axis."""
    items = [chosen(builder, node, array, items, k) for k in range(len(items))]
    items = [computed(builder, v, "index") if isinstance(v, Lazy) else v for v in items]
    for item in items:
        if is_array(item) and not isinstance(item.type.dtype, types.Integer):
            builder.fail(node, f"an index must be integers, not {item.type.dtype}")
        if isinstance(item, ir.Expr) and inference.is_scalar(item.type) and not isinstance(item.type, types.Integer):
            builder.fail(node, f"an index must be an integer, not {item.type}", "use integers; loop over masks")
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > array.type.ndim:
        builder.fail(node, f"{used} indices for an array of {array.type.ndim} dimensions")
    rest: list[Any] = [Range(None, None, None)] * (array.type.ndim - used)
    if Ellipsis in [i for i in items if i is Ellipsis]:
        at = next(k for k, i in enumerate(items) if i is Ellipsis)
        return [*items[:at], *rest, *items[at + 1 :]]
    return [*items, *rest]


def chosen(builder: Any, node: ast.AST, array: ir.Var, items: list[Any], place: int) -> Any:
    """An item of an index; for a mask, the indices at which it is true."""
    item = items[place]
    if not (is_array(item) and isinstance(item.type.dtype, types.Boolean)):
        return item
    if item.type.ndim != 1 or Ellipsis in [i for i in items[:place] if i is Ellipsis]:
        builder.fail(node, "a mask of several dimensions, or after an ellipsis", "use np.where, or a loop with if")
    axis = sum(i is not None for i in items[:place])
    if axis < array.type.ndim:
        agree(builder, node, shape_of(builder, array)[axis], shape_of(builder, item)[0])
    return places(builder, node, item)


def places(builder: Any, node: ast.AST, mask: Any) -> ir.Var:
    """The indices of the elements of a vector that are true, as an array."""
    mask = computed(builder, mask, "mask")
    (size,) = shape_of(builder, mask)
    counts = []
    for word in ("many", "at"):
        count = builder.names.variable(word, INT)
        counts.append((count, ir.Assign(count, ir.Op("add", (count, ONE), INT), line=builder.line)))
    (many, more), (at, step) = counts

    def where_true(*body: ir.Stmt) -> None:
        (axis,) = axes_for(builder, 1)
        put = (ir.Store(found, (at,), axis, line=builder.line),) if step in body else ()
        branch = ir.If(builder.truth(node, element_at(mask, (axis,))), (*put, *body), line=builder.line)
        builder.emit(ir.For(axis, ZERO, size, ONE, (branch,), line=builder.line))

    builder.emit(ir.Assign(many, ZERO))
    where_true(more)
    found = new_array(builder, "places", INT, (builder.temporary("count", many),))
    builder.emit(ir.Assign(at, ZERO))
    where_true(step)
    return found


def _item_type(item: Any) -> types.Type:
    if item is None:
        return types.none
    if isinstance(item, Range):
        return types.slice2_type if item.step is None else types.slice3_type
    return item.type


def steady(builder: Any, value: ir.Expr) -> ir.Expr:
    """A size or index, saved if later assignments could change its value."""
    for n in ir.walk(value):
        changing = isinstance(n, ir.Var) and inference.is_scalar(n.type) and not builder.is_assigned_once(n.name)
        if isinstance(n, ir.Load) or changing:
            return builder.temporary("at", value)
    return value


def _range(builder: Any, node: ast.AST, item: Range, size: ir.Expr) -> tuple[ir.Var, ir.Expr, ir.Expr]:
    """The axis of a slice: its variable, its length, and the index into the array.

    Bounds are clipped as in Python, but only as far as results need it: where the length is zero, start and step do not
    matter.
    """
    if item.step is not None and not isinstance(item.step, ir.Const):
        return _range_of_any_step(builder, item, size)
    step = 1 if item.step is None else item.step.value
    if step == 0:
        builder.fail(node, "the step of a slice is zero")
    start, stop = _ends(builder, item, size)
    span = index_algebra.sub(stop, start) if step > 0 else index_algebra.sub(start, stop)
    trips = index_algebra.floordiv(index_algebra.add(span, ir.Const(abs(step) - 1, INT)), abs(step))
    below = index_algebra.lowest(trips, builder.lowest)
    length = trips if below is not None and below >= 0 else index_algebra.maximum(trips, ZERO)
    (axis,) = axes_for(builder, 1)
    index = index_algebra.add(start, index_algebra.mul(axis, ir.Const(step, INT)))
    length = steady(builder, length)
    if _is_of_one(item) and length != ONE:
        builder.narrow.add(length)
    return axis, length, index


def _is_of_one(item: Range) -> bool:
    """Return whether a slice has at most one element: ``0:1``, ``-1:``."""
    bounds = [0 if b is None else getattr(b, "value", None) for b in (item.lower, item.upper)]
    if item.step is not None or None in bounds:
        return False
    lower, upper = bounds
    if item.upper is None:
        return lower == -1
    return upper - lower == 1 and (lower >= 0) == (upper > 0)


def _ends(builder: Any, item: Range, size: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Start and stop of a slice with a constant step."""
    lower = None if item.lower is None else steady(builder, item.lower)
    upper = None if item.upper is None else steady(builder, item.upper)
    if item.step is None or item.step.value > 0:
        start = ZERO if lower is None else index_algebra.maximum(_from_end(builder, lower, size), ZERO)
        return start, size if upper is None else _cut(builder, upper, size, size)
    last, none = index_algebra.sub(size, ONE), ir.Const(-1, INT)
    start = last if lower is None else _cut(builder, lower, size, last)
    return start, none if upper is None else index_algebra.maximum(_from_end(builder, upper, size), none)


def _range_of_any_step(builder: Any, item: Range, size: ir.Expr) -> tuple[ir.Var, ir.Expr, ir.Expr]:
    """The axis of a slice whose step is not constant (compare `_range`)."""
    step = steady(builder, cast(item.step, INT))
    refuse(builder, ir.Op("eq", (step, ZERO), types.boolean), "slice step cannot be zero")
    ways = []
    for sign in (1, -1):
        one_way = replace(item, step=ir.Const(sign, INT))
        start, stop = _ends(builder, one_way, size)
        span, length = (
            (index_algebra.sub(stop, start), step)
            if sign > 0
            else (index_algebra.sub(start, stop), index_algebra.sub(ZERO, step))
        )
        rounded = index_algebra.add(span, index_algebra.sub(length, ONE))
        ways.append((start, ir.Op("floordiv", (rounded, length), INT)))
    forward = ir.Op("gt", (step, ZERO), types.boolean)
    start, trips = (ir.Op("select", (forward, a, b), INT) for a, b in zip(*ways))
    below = index_algebra.lowest(step, builder.lowest)
    if below is not None and below > 0:
        start, trips = ways[0]
    (axis,) = axes_for(builder, 1)
    first = steady(builder, start if not isinstance(start, ir.Op) else builder.temporary("first", start))
    length = builder.temporary("length", index_algebra.maximum(trips, ZERO))
    return axis, length, index_algebra.add(first, ir.Op("mul", (axis, step), INT))


def _from_end(builder: Any, bound: ir.Expr, size: ir.Expr) -> ir.Expr:
    """A bound of a slice, counted from the start; negative only if it lies before the start."""
    below = index_algebra.lowest(bound, builder.lowest)
    if below is not None and below >= 0:
        return bound
    if isinstance(bound, ir.Const):
        return index_algebra.add(size, bound)
    negative = ir.Op("lt", (bound, ZERO), types.boolean)
    return ir.Op("select", (negative, index_algebra.add(bound, size), bound), INT)


def _cut(builder: Any, bound: ir.Expr, size: ir.Expr, most: ir.Expr) -> ir.Expr:
    """A bound of a slice, counted from the start, and at most ``most``."""
    if isinstance(bound, ir.Const) and bound.value < 0:
        return index_algebra.add(size, bound)
    return index_algebra.minimum(_from_end(builder, bound, size), most)


# --------------------------------------------------------------------------------------------------- assignment


def assign(builder: Any, node: ast.AST, place: Place, value: Any) -> None:
    """``array[index] = value`` for a part of an array."""
    builder.require_store(node, place.array, value.type.dtype if is_array(value) else value.type)
    value = settled(builder, value)
    require_fit(builder, node, place, value)
    element = element_of(builder, value, place.axes)
    builder.emit(ir.Elementwise(place.array, place.axes, place.shape, place.index, element))


def is_mask(array: ir.Var, items: list[Any]) -> bool:
    """Return whether an index of a vector is a boolean mask."""
    if len(items) != 1 or not is_array(items[0]) or array.type.ndim != 1:
        return False
    return isinstance(items[0].type.dtype, types.Boolean) and items[0].type.ndim == 1


def assign_masked(builder: Any, node: ast.AST, array: ir.Var, mask: Any, value: Any) -> None:
    """``array[mask] = value`` for a vector and a number."""
    builder.require_store(node, array, value.type)
    value, mask = settled(builder, value), computed(builder, mask, "mask")
    (axis,) = axes_for(builder, 1)
    agree(builder, node, shape_of(builder, array)[0], shape_of(builder, mask)[0])
    store = ir.Store(array, (axis,), into_array(value, array.type.dtype), line=builder.line)
    chosen = ir.If(element_at(mask, (axis,)), (store,), line=builder.line)
    builder.emit(ir.For(axis, ZERO, shape_of(builder, array)[0], ONE, (chosen,), whole=True, line=builder.line))


def require_fit(builder: Any, node: ast.AST, place: Place, value: Any) -> None:
    """Require that a value has the shape of a place, or is broadcast to it; emits ``ir.Agree``."""
    if not is_array(value):
        return
    shape = shape_of(builder, value)
    if len(shape) > len(place.shape):
        builder.fail(node, f"an array of {len(shape)} dimensions for a place of {len(place.shape)}")
    for size, room in zip(reversed(shape), reversed(place.shape)):
        if size != ONE:
            agree(builder, node, room, size, into=True)


def update(builder: Any, node: ast.AST, op: ast.operator, place: Place, value: Any) -> None:
    """``array[index] += value`` and the like for a part of an array.

    For slices Numba works in place, one element after the other, even if the value is a part of the same array.  With
    an array of integers in the index it computes all new values first: an element that is selected several times keeps
    the last one.
    """
    result = result_type(builder, node, INPLACE.get(type(op)), _Typed(place.type), value)
    builder.require_store(node, place.array, result.dtype)
    value = settled(builder, value)
    require_fit(builder, node, place, value)
    element = element_of(builder, value, place.axes)
    old = ir.Load(place.array, place.index, place.array.type.dtype)
    statement = ir.Elementwise(place.array, place.axes, place.shape, place.index, element)
    if place.fancy or not isinstance(op, (ast.Add, ast.Sub)):
        new = cast(builder.binary(node, op, old, element), result.dtype)
        builder.emit(replace(statement, value=new, snapshot=place.fancy or isinstance(value, Lazy)))
        return
    element = builder.negated(node, element) if isinstance(op, ast.Sub) else element
    builder.emit(replace(statement, value=element, accumulate=True, snapshot=isinstance(value, Lazy)))


@dataclass(frozen=True)
class _Typed:
    type: types.Type


def whole(builder: Any, array: ir.Var) -> Place:
    """The place of all elements of an array."""
    axes = axes_for(builder, array.type.ndim)
    return Place(array, array.type, axes, shape_of(builder, array), axes, False)
