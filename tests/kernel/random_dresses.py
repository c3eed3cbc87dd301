"""Other layouts of a random CUDA kernel's arrays ``a``, ``b`` and ``u``: fields of one structured array, or views.

The kernel of a structured array is the same text with ``points[i].a`` where it was ``a[i]``.
"""

import ast

import numpy as np

from ampi.numpy import zeros

ARRAYS = ("a", "b", "u")
VIEWS = {
    "every second element": lambda shape: zeros(tuple(2 * n + 1 for n in shape))[
        tuple(slice(1, None, 2) for _ in shape)
    ],
    "reversed": lambda shape: zeros(shape)[tuple(slice(None, None, -1) for _ in shape)],
    "columns": lambda shape: zeros((*shape, 3))[..., 1],
    "Fortran order": lambda shape: zeros((2, *shape), order="F")[1],
    "transposed": lambda shape: zeros(shape[::-1]).T,
    "a corner": lambda shape: zeros((2, *shape, 2))[1, ::-1, ..., 0],
}


class Fields(ast.NodeTransformer):
    """Turns elements of the arrays into fields of elements of ``points``."""

    def visit_FunctionDef(self, function):
        names = [argument.arg for argument in function.args.args]
        if function.name != "kernel":
            return function
        function.args.args = [ast.arg("points")] + [ast.arg(name) for name in names if name not in ARRAYS]
        return self.generic_visit(function)

    def visit_Attribute(self, attribute):
        self.generic_visit(attribute)
        if isinstance(attribute.value, ast.Name) and attribute.value.id in ARRAYS:
            attribute.value = ast.Name("points", ast.Load())
        return attribute

    def visit_Subscript(self, element):
        self.generic_visit(element)
        if not (isinstance(element.value, ast.Name) and element.value.id in ARRAYS):
            return element
        base = ast.Subscript(ast.Name("points", ast.Load()), element.slice, ast.Load())
        return ast.Attribute(base, element.value.id, element.ctx)


def with_fields(source):
    """The kernel's text on a structured array."""
    return ast.unparse(ast.fix_missing_locations(Fields().visit(ast.parse(source))))


class Dressed:
    """A launch of a kernel of the plain arrays, which copies them to another layout and back."""

    def __init__(self, kernel, launch, draw):
        self.kernel, self.grid, self.block, self.shared = launch.kernel, launch.grid, launch.block, launch.shared
        self.launch = launch
        self.name = draw.choice(["fields", "fields", "one array", *VIEWS])
        if self.name == "fields":
            text = with_fields(kernel.source)
            run = kernel.load(f"<cuda kernel {kernel.seed} on fields>", text)
            self.launch = run[launch.grid, launch.block, 0, launch.shared]
        names = list(ARRAYS)
        draw.shuffle(names)
        self.dtype = np.dtype([("mark", "i4"), *((name, "f8") for name in names)], align=draw.random() < 0.5)

    def __call__(self, a, b, u, *rest):
        given = dict(zip(ARRAYS, (a, b, u)))
        if self.name == "fields":
            points = zeros(a.shape, self.dtype)
            places = {name: points[name] for name in ARRAYS}
        elif self.name == "one array":
            columns = zeros((*a.shape, 3))
            places = {name: columns[..., k] for k, name in enumerate(ARRAYS)}
        else:
            places = {name: VIEWS[self.name](a.shape) for name in ARRAYS}
        for name, place in places.items():
            place[...] = given[name]
        self.launch(*([points] if self.name == "fields" else places.values()), *rest)
        for name in ("b", "u"):
            given[name][...] = places[name]
