"""Arguments for other people's kernels: candidates for each parameter, by its use and its name, and values for these.

An argument is written as a short text, from which `value_of` makes the same value again: ``f`` is a number, ``f2`` a
matrix of these (``c``, ``i`` and ``b``: complex numbers, integers, Booleans), ``i=3`` and ``b=True`` are constants,
``up1`` is ``arange``, ``t=8,8`` a tuple of integers, ``fn2`` a function of two numbers, ``none`` is None; ``as=f4:f1``
has another dtype.
"""

import ast
import heapq
import inspect
import itertools
import textwrap

import numba
import numpy as np

ARRAY_ATTRIBUTES = {"shape", "size", "ndim", "T", "copy", "sum", "mean", "dtype", "flatten", "ravel", "min", "max",
                    "reshape", "astype", "std", "var", "argmax", "argmin", "dot", "argsort", "fill", "real", "imag",
                    "flat", "cumsum", "prod", "any", "all", "transpose"}  # fmt: skip
SHAPE_FUNCTIONS = {"zeros", "empty", "ones", "full", "eye", "arange", "linspace", "identity"}
INTEGER_NAMES = {"n", "N", "m", "M", "k", "K", "i", "j", "l", "o", "p", "q", "nobs", "size", "num", "count", "order",
                 "degree", "window", "lag", "idx", "index", "axis", "steps", "niter", "seed", "length", "period", "dim",
                 "ncols", "nrows", "nx", "ny", "nz", "start", "stop", "end", "step", "level", "width",
                 "height"}  # fmt: skip
INTEGER_ENDS = (
    "_size",
    "_count",
    "_idx",
    "_index",
    "_len",
    "_length",
    "_num",
    "_id",
    "_dim",
    "_window",
    "_lag",
    "iter",
)
INTEGER_STARTS = ("n_", "num_", "max_iter", "idx_", "is_", "use_", "has_", "min_n", "ind_")
INDEX_ARRAYS = ("indices", "indptr", "idx", "inds", "index", "ids", "labels", "order", "perm", "starts", "ends", "rows",
                "cols", "counts", "mapping")  # fmt: skip
TRUTHS = ("is_", "use_", "has_", "do_", "with_", "normalize", "flag", "verbose", "ascending", "adjust", "log")


class Use:
    """How a function uses a parameter."""

    def __init__(self):
        self.dimensions = 0  # of an array, at least
        self.exactly = False
        self.integer = self.truth = self.called = self.strange = self.array = self.none = False
        self.number = False
        self.count = 1  # of arguments, where it is called


def uses(function, depth=3):
    """The `Use` of each parameter, from the source of a function and of those to which it passes them."""
    names = list(inspect.signature(function).parameters)
    found = {name: Use() for name in names}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return found
    for node in ast.walk(tree):
        look(node, found, function, depth)
    return found


def look(node, found, function, depth):
    if isinstance(node, ast.Subscript):
        subscripted(node, found)
    elif isinstance(node, ast.Attribute) and (use := used(node.value, found)):
        use.array = use.array or node.attr in ARRAY_ATTRIBUTES
        use.strange = use.strange or node.attr not in ARRAY_ATTRIBUTES
        use.dimensions = max(use.dimensions, 2 if node.attr == "T" else 1)
    elif isinstance(node, ast.Call):
        called(node, found, function, depth)
    elif isinstance(node, ast.For) and (use := used(node.iter, found)):
        use.dimensions = max(use.dimensions, 1)
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        value = node.value
        if isinstance(value, ast.Attribute) and value.attr == "shape" and (use := used(value.value, found)):
            use.dimensions, use.exactly = len(node.targets[0].elts), True
    elif isinstance(node, ast.Compare):
        for side in (node.left, *node.comparators):
            if use := used(side, found):
                if isinstance(node.ops[0], ast.Is | ast.IsNot):
                    use.none = True
                elif any(isinstance(c, ast.Constant) and isinstance(c.value, str) for c in node.comparators):
                    use.strange = True
                else:
                    use.number = True
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        test = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
        for part in test.values if isinstance(test, ast.BoolOp) else [test]:
            if use := used(part, found):
                use.truth = True


def used(node, found):
    return found.get(node.id) if isinstance(node, ast.Name) else None


def subscripted(node, found):
    depth, base = 0, node
    while isinstance(base, ast.Subscript):
        indices = base.slice.elts if isinstance(base.slice, ast.Tuple) else [base.slice]
        depth += sum(not (isinstance(i, ast.Constant) and i.value is None) for i in indices)
        base = base.value
    if use := used(base, found):
        use.dimensions = max(use.dimensions, depth)
    if isinstance(base, ast.Attribute) and base.attr == "shape" and (use := used(base.value, found)):
        index = node.slice
        if isinstance(index, ast.Constant) and isinstance(index.value, int):
            use.dimensions = max(use.dimensions, index.value + 1)
    indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for index in indices:
        parts = [index.lower, index.upper, index.step] if isinstance(index, ast.Slice) else [index]
        for part in parts:
            for leaf in ast.walk(part) if part is not None else ():
                if isinstance(leaf, ast.Name) and leaf.id in found:
                    found[leaf.id].integer = True
                if isinstance(leaf, ast.Subscript | ast.Call | ast.Attribute):
                    break


def called(node, found, function, depth):
    if use := used(node.func, found):
        use.called, use.count = True, len(node.args)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("range", "prange") or name in SHAPE_FUNCTIONS:
        for argument in node.args[: 3 if name in ("range", "prange") else 1]:
            for leaf in ast.walk(argument):
                if isinstance(leaf, ast.Call | ast.Attribute | ast.Subscript):
                    break
                if use := used(leaf, found):
                    use.integer = True
    if name in ("len", "zeros_like", "empty_like", "ones_like", "sum", "cumsum", "argsort", "mean", "sort"):
        for argument in node.args:
            if use := used(argument, found):
                use.dimensions = max(use.dimensions, 1)
    callee = function.__globals__.get(name) if isinstance(node.func, ast.Name) else None
    callee = getattr(callee, "py_func", None)
    if depth and inspect.isfunction(callee) and callee is not function:
        inner = None
        for parameter, argument in zip(inspect.signature(callee).parameters, node.args):
            base, taken = argument, 0
            while isinstance(base, ast.Subscript):
                indices = base.slice.elts if isinstance(base.slice, ast.Tuple) else [base.slice]
                taken += sum(not isinstance(i, ast.Slice) for i in indices)
                base = base.value
            if use := used(base, found):
                inner = inner or uses(callee, depth - 1)
                if not taken:
                    pass_on(inner[parameter], use)
                elif inner[parameter].dimensions:
                    use.dimensions = max(use.dimensions, taken + inner[parameter].dimensions)


def pass_on(inner, use):
    use.dimensions = max(use.dimensions, inner.dimensions)
    for flag in ("integer", "truth", "called", "strange", "array", "none", "exactly"):
        setattr(use, flag, getattr(use, flag) or getattr(inner, flag))
    use.count = max(use.count, inner.count)


def candidates(name, use, parameter, size):
    """Candidates for a parameter, the likeliest first, as pairs of a cost and a text."""
    low = name.lower()
    if parameter.default is not parameter.empty and not use.dimensions:
        yield 0, "default"
    if use.called:
        yield 0, f"fn{use.count}"
        return
    integer = use.integer or name in INTEGER_NAMES or low.endswith(INTEGER_ENDS) or low.startswith(INTEGER_STARTS)
    if use.dimensions:
        first = use.dimensions
        indexes = any(word in low for word in INDEX_ARRAYS) or (use.integer and not low.startswith("x"))
        kinds = ("up", "f", "i") if indexes else ("f", "up", "c", "b")
        for cost, kind in enumerate(kinds):
            yield 0.9 * cost, f"{kind}{first}"
        if not use.exactly:
            yield 0.8, f"f{first + 1}"
            yield 2.5, f"up{first + 1}"
        if first == 1:
            yield 1.8, f"t={size},{size}"
            yield 2, "tf=3"
        return
    if use.truth or low.startswith(TRUTHS):
        yield 0, "b=True"
        yield 1, "f"
    vector = name[:1].isupper() or low in ("x", "y", "z", "a", "b", "v", "u", "w", "data", "values", "arr", "array",
                                           "r", "vec", "out", "result", "signal", "points", "weights")  # fmt: skip
    if integer:
        yield 0, "i=3"
        yield 0.7, f"i={size}"
        yield 0.8, "i=1"
        yield 0.9, "i=0"
        yield 1.0, "f"
        yield 2.0, "f1"
    else:
        yield (0.5 if vector or use.array else 0), "f"
        yield (0 if vector or use.array else 0.7), "f1"
        yield (0.4 if name[:1].isupper() else 1.1), "f2"
        yield 1.2, "i=2"
        yield 2.5, "b=True"
        yield 2.6, "up1"
        yield 2.7, f"t={size},{size}"
    if use.none:
        yield 1.5, "none"


def signature_texts(dispatcher):
    """The arguments that a function with signatures takes, one list for each."""
    for types in dispatcher.nopython_signatures:
        texts = [text_of_type(t) for t in types.args]
        if None not in texts:
            yield texts


def text_of_type(type_):
    if isinstance(type_, numba.types.Array):
        kind = (
            np.dtype(str(type_.dtype)).kind if isinstance(type_.dtype, numba.types.Number | numba.types.Boolean) else ""
        )
        text = {"f": "f", "c": "c", "i": "up", "u": "up", "b": "b"}.get(kind)
        return f"as={np.dtype(str(type_.dtype)).str[1:]}:{text}{type_.ndim}" if text else None
    if isinstance(type_, numba.types.Float):
        return "f"
    if isinstance(type_, numba.types.Complex):
        return "c"
    if isinstance(type_, numba.types.Boolean):
        return "b=True"
    if isinstance(type_, numba.types.Integer):
        return "i=2"
    return None


def draws(dispatcher, size):
    """Lists of arguments to try, the likeliest first."""
    function = dispatcher.py_func
    declared = list(signature_texts(dispatcher))
    if declared:
        yield from declared
        return
    parameters = inspect.signature(function).parameters
    if any(p.kind in (p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters.values()):
        return
    found = uses(function)
    lists = []
    for name, parameter in parameters.items():
        options = sorted(candidates(name, found[name], parameter, size))
        if parameter.kind is parameter.VAR_POSITIONAL:
            options = [(0, "f"), (0.5, "f1")]
        lists.append(options)
    yield from cheapest(lists)


def cheapest(lists):
    """The combinations of entries, one from each list, by their total costs."""
    if not lists:
        yield []
        return
    count = itertools.count()
    start = (0,) * len(lists)
    heap, seen = [(sum(options[0][0] for options in lists), next(count), start)], {start}
    while heap:
        cost, _, chosen = heapq.heappop(heap)
        yield [options[k][1] for options, k in zip(lists, chosen)]
        for place, k in enumerate(chosen):
            following = (*chosen[:place], k + 1, *chosen[place + 1 :])
            if k + 1 < len(lists[place]) and following not in seen:
                seen.add(following)
                change = lists[place][k + 1][0] - lists[place][k][0]
                heapq.heappush(heap, (cost + change, next(count), following))


def value_of(text, rng, size, default=None):
    """The value that a text stands for."""
    if text == "default":
        return default
    if text.startswith("as="):
        dtype, _, rest = text[3:].partition(":")
        return value_of(rest, rng, size).astype(dtype)
    kind, _, constant = text.partition("=")
    if kind == "none":
        return None
    if constant:
        return constant_of(kind, constant, rng)
    if kind.startswith("fn"):
        return FUNCTIONS[int(kind[2:]) if int(kind[2:]) in FUNCTIONS else 1]
    dimensions = int(kind[-1]) if kind[-1].isdigit() else 0
    shape = (size,) * dimensions
    kind = kind.rstrip("0123456789")
    if kind == "up":
        return np.broadcast_to(np.arange(size), shape).copy()
    if kind == "b":
        return rng.random(shape) < 0.7
    if kind == "i":
        return rng.integers(0, 3, shape)
    found = rng.uniform(0.1, 0.9, shape)
    if kind == "c":
        found = found + 1j * rng.uniform(0.1, 0.9, shape)
    return found if dimensions else found.item() if hasattr(found, "item") else found


def constant_of(kind, constant, rng):
    if kind == "i":
        return int(constant)
    if kind == "b":
        return constant == "True"
    if kind == "t":
        return tuple(map(int, constant.split(",")))
    return tuple(rng.uniform(0.1, 0.9, int(constant)).tolist())


@numba.njit
def of_one(x):
    return x * np.exp(-x)


@numba.njit
def of_two(x, y):
    return x * np.exp(-y)


@numba.njit
def of_three(x, y, z):
    return x * np.exp(-y) + z


FUNCTIONS = {1: of_one, 2: of_two, 3: of_three}
