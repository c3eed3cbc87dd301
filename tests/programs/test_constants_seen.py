"""What a source file's expressions surely are: integers are no places where a derivative is lost."""

import ast
import random

import numpy
import pytest

from ampi.programs import lint
from ampi.programs.constants_seen import INTEGER, Seen

HEAD = "import numpy as np\nimport ampi\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
INTEGERS = [
    "n = np.arange(6)\nm = n.reshape(2, 3).T.astype(np.int32)",
    "m = (x > 0.5).astype(int)",
    "m = np.argsort(x).astype('i4')",
    "n = len(x) // 2\nm = np.array([n, n + 1, x.size]).astype(np.int64)",
    "m = np.flatnonzero(x > 0)[::2].astype(np.uint32)",
    "n = np.zeros(3, dtype=int)\nn[:] = 4\nm = np.concatenate([n, np.ones(2, np.int8)]).astype(int)",
    "for i, a in enumerate(x):\n    m = np.asarray(i).astype(int)",
    "m = np.array([i * comm.rank + comm.Get_size() for i in range(5)]).astype(int)",
    "rng = np.random.default_rng(0)\nn = rng.integers(0, 9, 4)\nn += 1\nm = n.astype(np.int8)",
    "n, c = np.unique(np.arange(5) % 2, return_counts=True)\nm = c.astype(int)",
    "m = (ampi.value(x)[:2] * 3.5 % 1.0).astype(int)",
    "v = ampi.value(x)[:2] % 1.0\nm = (v * comm.size).astype(int)",
    "class A:\n  def __init__(self):\n    self.n = np.arange(4)\n  def f(self):\n    return self.n.astype(int)",
    "def f(a):\n    k = np.searchsorted(a, 0.5)\n    return np.where(k > 0, k, 0).astype(int)",
    "m = np.ones(3).astype(int)",
    "m = np.unique(np.argsort(x))",
]
PLACES = [
    "m = x.astype(int)",
    "n = np.arange(3.0)\nm = n.astype(int)",
    "k = 2.0\nm = np.array([k]).astype(int)",
    "def f(a):\n    return a.astype(np.int32)",
    "n = 1\nn = n * x\nm = n.astype(int)",
    "n = np.arange(4)\nn = n / 2\nm = n.astype(int)",
    "n = [1, 2]\nn[0] = x[0]\nm = np.array(n).astype(int)",
    "class A:\n  def __init__(self, n):\n    self.n = 1\n    self.n = n\n  def f(self):\n    return self.n.astype(int)",
    "class A:\n    def f(self, other):\n        return other.n.astype(int)",
    "m = (np.mean(np.arange(3)) * x).astype(int)",
    "def f():\n    global n\n    return n.astype(int)\nn = np.arange(3)",
    "n = np.arange(3)\nfor n in x:\n    m = n.astype(int)",
    "n = np.arange(3)\nm = [n.astype(int) for n in x]",
    "n = np.zeros(3)\nm = n.astype(int)",
    "n = np.arange(0, 1, 0.1)\nm = n.astype(int)",
    "m = np.spacing(x)",
]


@pytest.mark.parametrize("number, source", [*enumerate(INTEGERS), *enumerate(PLACES, 100)], ids=lambda x: str(x)[:3])
def test_casts(number, source, tmp_path):
    path = tmp_path / "prog.py"
    path.write_text(HEAD + "x = np.array([float(v) for v in '123'])\n" + source + "\n")
    found = [str(one) for one in lint.look(path)]
    assert len(found) == (number >= 100), found


def drawn(draw, depth, names):
    """An expression of NumPy's, of arrays of three elements and numbers."""
    some = lambda: drawn(draw, depth - 1, names)
    if depth == 0 or draw.random() < 0.2:
        return draw.choice([*names, *names, str(draw.randrange(1, 4)), "0.5", "True"])
    kind = draw.randrange(12)
    if kind < 3:
        return f"({some()} {draw.choice(['+', '-', '*', '/', '//', '%', '>', '==', '&'])} {some()})"
    if kind < 6:
        name = draw.choice("abs minimum maximum add where sqrt cumsum argsort mean floor sign rint square flip".split())
        count = {"minimum": 2, "maximum": 2, "add": 2, "where": 3}.get(name, 1)
        return f"np.{name}({', '.join(some() for _ in range(count))})"
    if kind == 6:
        dtype = draw.choice(["int", "float", "np.int32", "np.float32", "'i2'", "'f8'", "bool"])
        return f"np.asarray({some()}).astype({dtype})"
    if kind == 7:
        return f"np.{draw.choice(['array', 'asarray'])}([{some()}, {some()}, 1], dtype={draw.choice(['int', 'float'])})"
    if kind == 8:
        method = draw.choice("sum max argmin mean copy ravel cumsum prod std any round".split())
        return f"np.asarray({some()}).{method}()"
    if kind == 9:
        return f"({some()} if {draw.random():.1f} > 0.5 else {some()})"
    if kind == 10:
        return f"np.{draw.choice(['zeros', 'ones'])}(3{draw.choice(['', ', int', ', dtype=np.int8', ', dtype=float'])})"
    return f"-{some()}"


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(n, marks=pytest.mark.slow) for n in range(30, 4000))])
def test_what_is_inferred_to_be_integers_is(seed):
    """Drawn programs are run: names that are said to hold integers hold nothing else, in all of their values."""
    draw = random.Random(seed)
    names, lines = ["i", "f"], ["i = np.arange(3)", "f = np.array([float(v) for v in '123'])"]
    for _ in range(draw.randrange(2, 8)):
        target = draw.choice([*names, f"v{len(names)}"])
        operation = draw.choice(["=", "=", "=", "+=", "//=", "/=", "*="]) if target in names else "="
        lines.append(f"{target} {operation} {drawn(draw, draw.randrange(1, 4), names)}")
        if target not in names:
            names.append(target)
    held = {name: [] for name in names}
    space = {"np": numpy}
    for line in lines:
        try:
            with numpy.errstate(all="ignore"):
                exec(line, space)
        except (TypeError, ValueError, ArithmeticError, LookupError, NameError):
            pass  # in the source all the same
        for name in names:
            if name in space:
                held[name].append(space[name])
    tree = ast.parse("\n".join(lines))
    paths = lambda node: ast.unparse(node).replace("np.", "numpy.") if ast.unparse(node).startswith("np.") else ""
    seen = Seen(tree, paths)
    for name in names:
        if seen.kind(next(n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name)) == INTEGER:
            assert all(numpy.asarray(value).dtype.kind in "biu" for value in held[name]), (name, lines)


def test_libraries_that_are_given_gradients_or_written_with_ampi(tmp_path):
    other = tmp_path / "other" / "solver"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("import ampi.numpy as np\n")
    (tmp_path / "prog.py").write_text(
        "import pathlib, sys\n"
        "sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / 'other'))\n"
        "from solver import run\n"
        "from optimisers import bfgs, newton\n"
        "from optimisers.tools import Reduction\n"
        "bfgs(run, 0.0, jac=True, comm=Reduction(1))\n"
    )
    assert not lint.look(tmp_path / "prog.py")
    with open(tmp_path / "prog.py", "a") as file:
        file.write("newton(run)\n")
    assert [one.line for one in lint.look(tmp_path / "prog.py")] == [4]


def test_paths_of_imports_run_nothing(tmp_path):
    hostile = (
        "__import__('os').mkdir('made')",
        "exit()",
        "os.path.join(os.sep, open('made', 'w').name)",
        "os.remove('x')",
    )
    for source in hostile:
        assert lint.folder_named(ast.parse(source, mode="eval").body, tmp_path / "prog.py") == []
    found = lint.folder_named(
        ast.parse("os.path.join(os.path.dirname(__file__), 'a')", mode="eval").body, tmp_path / "p"
    )
    assert found == [tmp_path / "a"]
