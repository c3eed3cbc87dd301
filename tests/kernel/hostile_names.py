"""Kernels in which every variable, argument, function and global is renamed, which must change nothing.

`renamed` makes the kernel, with the names most likely to collide (`unlucky`); `require_the_same` compares the generated
programs, up to names.
"""

import ast
import builtins
import functools
import keyword
import linecache
import random
import re
from pathlib import Path

from kernel_checks import kernel_ir

from ampi.kernel import pipeline
from ampi.kernel.codegen import emit
from ampi.kernel.frontend.base.source import read_source
from ampi.kernel.ir import matrices
from ampi.kernel.ir.intrinsics import TABLE, is_differentiable
from ampi.kernel.options import Options
from ampi.kernel.programs import with_constants

FOREIGN = "ä ß λ ẋ Ω_1 数 _é ª x̄ ﬁ"
ALIKE = "t t_1 t_01 t1 t_1_1 _t t_ x_1 x_2 x_11 i_0 x_0 x_0_dot _ _1 __ _1_2 O l I x__1 x_bar_1 x_bar_bar s i_1 j_2"
PYTHONS = "__x __x__ __init__ __file__ __builtins__ __annotations__ __main__ self cls numpy numba ampi prange"
PROGRAMS = "kernel_adjoint kernel_tangent kernel_forward kernel_reverse kernel_adjoint_line_3 any_hit"


@functools.cache
def unlucky():
    """Names that occur in generated programs, in their headers, in tables, as operations, and in Python."""
    words = {*keyword.softkwlist, *dir(builtins), *emit.reserved(), *TABLE, *matrices.SOURCES, *of_the_generator()}
    words |= {w for text in (FOREIGN, ALIKE, PYTHONS, PROGRAMS) for w in text.split()}
    legal = {w for w in words if w.isidentifier() and not keyword.iskeyword(w) and w != "__debug__"}
    return tuple(sorted({ast.parse(w, mode="eval").body.id for w in legal}))  # as Python reads them


def of_the_generator():
    """All words in short strings of the generator's code, and ``x`` with the suffixes that it appends to names."""
    for path in Path(pipeline.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield from (f"x{v.value}" for v in node.values if isinstance(v, ast.Constant) and v.value[0] == "_")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from node.value.split() if len(node.value) < 60 else ()


class Rename(ast.NodeTransformer):
    """Replaces all names, including those of functions and parameters."""

    def __init__(self, names, definition):
        self.names = names
        self.inside = {n.name for n in ast.walk(definition) if isinstance(n, ast.FunctionDef)}

    def visit_Name(self, node):
        return ast.Name(self.names[node.id], node.ctx)

    def visit_arg(self, node):
        return ast.arg(self.names[node.arg])

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.name, node.decorator_list, node.returns = self.names[node.name], [], None
        return node

    def visit_Raise(self, node):  # built-in exceptions, by their names
        return node

    def visit_Assert(self, node):
        return ast.Assert(self.visit(node.test), node.msg)

    def visit_Call(self, node):
        """Rename keywords of calls of nested functions, too."""
        inside = isinstance(node.func, ast.Name) and node.func.id in self.inside
        node = self.generic_visit(node)
        for k in node.keywords if inside else ():
            k.arg = self.names[k.arg]
        return node


def names_in(definition):
    """The names of a function, without those of exceptions."""
    found, raised = {}, set()
    for node in ast.walk(definition):
        match node:
            case ast.Raise():
                raised |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                found[name] = None
    return [name for name in found if name not in raised]


def known_to(function):
    """The values of a function's nonlocal names: builtins, globals and closure variables."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    return {**vars(builtins), **function.__globals__, **{name: cell.cell_contents for name, cell in cells}}


def renamed(function, names, label="plain"):
    """A kernel like ``function`` with names replaced by ``names``, a mapping from old ones (others stay)."""
    definition = read_source(function).definition
    own = names_in(definition)
    every = {n: names.get(n, n) for n in own}
    assert len(set(every.values())) == len(every), every
    text = ast.unparse(ast.fix_missing_locations(Rename(every, definition).visit(definition))) + "\n"
    known = known_to(function)
    space = {every[n]: known[n] for n in own if n in known}
    space.setdefault("__name__", __name__)
    filename = f"<names {function.__name__} {label}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec"), space)
    made = space[every[function.__name__]]
    made.__defaults__ = function.__defaults__
    if function.__kwdefaults__:
        made.__kwdefaults__ = {every[n]: v for n, v in function.__kwdefaults__.items()}
    return made


def draw(function, seed):
    """Random new names for all names of a function."""
    own = names_in(read_source(function).definition)
    words = [w for w in unlucky() if w not in own]
    random.Random(seed).shuffle(words)
    return dict(zip(own, words, strict=False))


def programs(function, arguments):
    """The generated programs of a kernel: tangent, adjoint with and without threads, and the split adjoint's parts."""
    code = with_constants(kernel_ir(function, arguments))
    active = [a.name for a in code.arguments if is_differentiable(a.type) and a.role is None]
    made = [pipeline.build_tangent(code, active), pipeline.build_adjoint(code, active)]
    made.append(pipeline.build_adjoint(code, active, Options(threads=True, after=True)))
    split = pipeline.build_split(code, active, Options(after=True))
    if split is not None:
        made.append(split.derivative)
    return [f.function for f in made] + ([] if split is None else [split.forward])


def require_the_same(function, arguments, names, label):
    found = programs(renamed(function, names, label), arguments)
    for a, b in zip(programs(renamed(function, {}), arguments), found, strict=True):
        require_same(emit.source(a), emit.source(b))


# ------------------------------------------------------------------------------------------- the same up to names


class Different(AssertionError):
    """Two programs are not the same up to names."""


def require_same(first, second):
    """Raise unless two programs are the same up to names of functions, variables, arguments and constants."""
    require(computing(first), computing(second), Names(emit.reserved() | set(dir(builtins))))


def computing(text):
    """The functions and constants of a generated text, without docstrings and descriptions."""
    own = {"CONTRACT", "ADJOINT", "SOURCE", "PARTS", "PROGRAM", "SPLIT", "SPLIT_PROGRAM"}
    return [
        node
        for node in ast.parse(text).body
        if not (isinstance(node, ast.Expr) or (isinstance(node, ast.Assign) and node.targets[0].id in own))
    ]


class Names:
    """A mapping between the names of two texts."""

    def __init__(self, fixed, there=None, back=None):
        self.fixed, self.there, self.back = fixed, there or {}, back or {}

    def inside(self):
        return Names(self.fixed, dict(self.there), dict(self.back))

    def match(self, a, b):
        if a in self.fixed or b in self.fixed:
            good = a == b
        else:
            good = self.there.setdefault(a, b) == b and self.back.setdefault(b, a) == a
        if not good:
            raise Different(f"{a} and {b}")


def require(a, b, names):
    if type(a) is not type(b):
        raise Different(f"{show(a)}\n{show(b)}")
    if isinstance(a, list):
        if len(a) != len(b):
            raise Different("\n".join(map(show, (*a, "----", *b))))
        for x, y in zip(a, b):
            require(x, y, names)
    elif isinstance(a, ast.Name):
        names.match(a.id, b.id)
    elif isinstance(a, ast.arg):
        names.match(a.arg, b.arg)
    elif isinstance(a, ast.FunctionDef):
        names.match(a.name, b.name)
        inside = names.inside()
        require(a.args, b.args, inside)
        require(a.body, b.body, inside)
    elif isinstance(a, ast.AST):
        for field in a._fields:
            try:
                require(getattr(a, field, None), getattr(b, field, None), names)
            except Different as problem:
                if isinstance(a, ast.stmt) and "\n" not in str(problem):
                    raise Different(f"{show(a)}\n{show(b)}\n{problem}") from None
                raise
    elif without_places(a) != without_places(b):
        raise Different(f"{a!r} and {b!r}")


def without_places(value):
    """A literal; of an error message, only the part after the kernel's name, with quoted names removed."""
    if not isinstance(value, str):
        return value
    said = value.partition(": in kernel '")[2].partition("'")[2]
    return re.sub("'[^']*'", "''", said) if said else value


def show(node):
    return ast.unparse(node) if isinstance(node, ast.AST) else str(node)
