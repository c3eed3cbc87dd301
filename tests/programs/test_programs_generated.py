"""Programs drawn by chance, with names that are in the way: gradients against the same program ported by hand.

The port is made on the text: other modules are imported, and the independent is watched where it is assigned.
"""

import random
import sys
import textwrap

import numpy
import pytest
from program_runs import check

import ampi

pytestmark = pytest.mark.mpi
WORLD = ampi.COMM_WORLD
NUMBER = 20

NAMES = """np numpy ampi _ __ MPI mpi4py tape watch Tape self cls x y k float_ dtype sys value array grad lambda_ print_
__x __ampi_watch__ __ampi_end__ main independent session name type_ O l I data __file""".split()

STEPS = [
    "{u} = {np}.sin({u}) * {k} + {u}",
    "{u}[1:] += {k} * {u}[:-1]",
    "{u} = {np}.concatenate([{u}[2:], {u}[:2]]) * float({k})",
    "{t} = {np}.zeros(2)\n{c}.Sendrecv({u}[-2:], ({c}.rank + 1) % {c}.size, recvbuf={t}, source={c}.rank - 1 + "
    "{c}.size * ({c}.rank == 0))\n{u}[:2] = {u}[:2] + {t}",
    "{t} = {np}.empty_like({u}); {c}.Allreduce({u}, {t}); {u} = {np}.tanh({t} / {c}.size) + {u} * 0.5",
    "{t} = {c}.allgather({u}[0]); {u}[0] = {t}[({c}.rank + 1) % {c}.size] * {k}",
    "{u} = {c}.bcast({u} * {k}, root={c}.size - 1) + {u}",
    "for {t} in range(2):\n    {u} = {u} + {k} * {np}.cos({u}) / ({t} + 1)",
    "{t} = [{v} * 2 for {v} in {u}]; {u} = {np}.array({t}) + {u}",
    "if {u}[0] > -1e9:\n    {u} = {np}.fft.fft({u}).real * 0.3\nelse:\n    {u} = 0 * {u}",
    "{u} = {np}.linalg.solve({np}.eye(6) * 3 + {np}.outer({u}, {u}) * {k}, {u})",
    "{t} = {u}.reshape(2, 3); {t} *= 1 + {k}; {u} = {t}.T.ravel()",
    "{u} = {np}.where({u} > 0.2171, {u}, {np}.exp({u}))",
]

BEGINNINGS = [  # with the line of them after which the independent is watched: None where it is first assigned
    ("{u} = {watch}({np}.arange(6.0) / 6 + 0.1 * {c}.rank)", None),
    ("{u} = {np}.empty(6)\n{u}[:] = {np}.arange(6.0) / 6 + 0.1 * {c}.rank", 1),
    ("{u} = {np}.full(6, {np}.nan)\n{u}.fill(0.3)\n{u}[{c}.rank] += 0.5; {u}[5] = 0.4", 2),
    ("{u} = {np}.empty((2, 3), order='F')\n{u}.flat = {np}.arange(6.0) / 6\n{u} = {u}.ravel()", 1),
    ("{u} = {np}.zeros(6)\nfor {t} in range(6):\n    {u}[{t}] = 0.1 * {t} + 0.1 * {c}.rank\n{t} = {u}.sum()", 3),
    ("{t} = 0.2; {u} = {np}.arange(6.0); {u} *= 0.1; {t} = 2 * {t}", 0),
    ("{u} = {np}.ones(6) * 0.5\nif {c}.rank == {c}.size - 1:\n    {u}[2:4] = 0.25\n{t} = [0]", 2),
    ("{u} = {np}.ones(6) * 0.5\nif {c}.rank == {c}.size - 1:\n    {u} = {np}.arange(6.0) / 6", 2),
    ("{u} = None\nif {c}.rank >= 0:\n    {u} = {watch}({np}.arange(6.0) / 6)", None),
    ("{u} = {t} = None\nif {c}.rank == 0:\n    {u} = {watch}({np}.ones(6) * 0.3)\n{u} = {c}.bcast({u})", None),
]
"""Some exist on one rank only."""

SCOPES = {
    "top": ("{body}\n{y} = {np}.sum({u} * {u}) * {k}", "{u0}", "{y}"),
    "function": (
        "def {f}({u}, {k}={k0}):\n    {body}\n    return {np}.sum({u} * {u})\n{y} = {f}(1 * {u})",
        "{u0}",
        "{f}:return",
    ),
    "method": (
        "class {f}:\n    def __init__(self, {u}):\n        self.{v} = {u}\n    def run(self):\n"
        "        {u} = 1 * self.{v}\n"
        "        {k} = {k0}\n        {body}\n        self.{y} = {np}.sum({u} * {u})\n{z} = {f}({u}); {z}.run(); "
        "{y} = {z}.{y}",
        "{f}.__init__:self.{v}",
        "{f}.run:self.{y}",
    ),
    "decorated": (
        "import functools\ndef {z}({f}):\n    @functools.wraps({f})\n    def {v}(*{u}):\n        return {f}(*{u})\n    "
        "return {v}\n@{z}\ndef {f}({u}, *, {k}={k0}):\n    'text'\n    {body}\n    {y} = {np}.sum({u} * {u})\n"
        "    return {y}\n"
        "{y} = {f}(1 * {u})",
        "{u0}",
        "{f}:{y}",
    ),
    "async": (
        "import asyncio\nasync def {f}({u}, {k}={k0}):\n    await asyncio.sleep(0)\n    {body}\n"
        "    return {np}.sum({u} * {u})\n"
        "{y} = asyncio.run({f}(1 * {u}))",
        "{u0}",
        "{y}",
    ),
    "generator": (
        "def {f}({u}, {k}={k0}):\n    {body}\n    yield {np}.sum({u} * {u})\n{y} = sum({f}(1 * {u}))",
        "{u0}",
        "{y}",
    ),
    "nested": (
        "def {z}({u}, {k}={k0}):\n    def {f}({v}):\n        nonlocal {u}\n        {deeper}\n"
        "        return {np}.sum({u} * {v})\n"
        "    return {f}(1 * {u})\n{y} = {z}(1 * {u})",
        "{u0}",
        "{z}.{f}:return",
    ),
}


def draw(seed):
    """A program's source, its port, and the names of independent and dependent."""
    rng = random.Random(seed)
    kind = list(SCOPES)[seed % len(SCOPES)]
    usable = [
        n for n in NAMES if kind != "method" or (n != "self" and (not n.startswith("__") or n.endswith("__")))
    ]  # Python mangles those
    np, c, u, t, v, k, f, y, z = rng.sample(usable, 9)
    if rng.random() < 0.5:
        v, y = y, v
    names = {"np": np, "c": c, "u": u, "t": t, "v": v, "k": k, "f": f, "y": y, "z": z, "u0": u, "k0": "0.75"}
    text, wrt, of = SCOPES[kind]
    steps = "\n".join(rng.choice(STEPS) for _ in range(rng.randint(2, 5))).format(**names)
    indent = {"method": 8, "top": 0}.get(kind, 4)
    body = textwrap.indent(steps, " " * indent).strip()
    source = text.format(body=body, deeper=textwrap.indent(steps, " " * 8).strip(), **names)
    head = [f"import {{numpy}} as {np}", f"from {{mpi}} import {{world}} as {c}", f"{k} = 0.75"]
    start, after = rng.choice(BEGINNINGS[:1] if kind == "method" else BEGINNINGS)
    start = start.format(watch="{watch}", **names).splitlines()
    if after is not None:
        indent = " " * (len(start[after]) - len(start[after].lstrip()))
        wrt += f"@{len(head) + after + 1}"
        start.insert(after + 1, f"{indent}{u} = {{watch}}({u})")
    whole = "\n".join([*head, *start, source, ""])
    if kind == "method":
        whole = whole.replace(f"self.{v} = {u}", f"self.{v} = {{inner}}({u})").replace("{watch}", "")
    plain = {"numpy": "numpy", "mpi": "mpi4py.MPI", "world": "COMM_WORLD", "watch": "", "inner": ""}
    ported = {"numpy": "ampi.numpy", "mpi": "ampi", "world": "COMM_WORLD", "watch": "WATCH", "inner": "WATCH"}
    plain_text = "".join(line for line in whole.splitlines(True) if after is None or "{watch}" not in line)
    texts = _filled(plain_text, plain), _filled(whole, ported)
    return texts, wrt.format(**names), of.format(**names), y


def _filled(text, names):
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def ported_gradient(source, y):
    """Run a port, and differentiate what it calls ``y`` at the end."""
    with ampi.Tape() as tape:
        watched = []
        space = {"WATCH": lambda x: watched.append(tape.watch(x)) or watched[0], "__name__": "ported"}
        exec(compile(source.replace("float(", "("), "<ported>", "exec"), space)
    gradients = tape.gradient(space[y], watched)
    return float(space[y]), gradients[0] if watched else None


@pytest.mark.parametrize("seed", range(NUMBER))
def test_generated(program, seed):
    (source, port), wrt, of, y = draw(seed)
    path = program(source)
    value, found = ampi.trace(path, wrt, of)
    own, expected = ported_gradient(port, y)
    assert value == pytest.approx(WORLD.allreduce(own), rel=1e-13), source
    assert (found is None) == (expected is None), source
    if found is not None:
        numpy.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14, err_msg=source)
    if seed % 4 == 0:
        check(path, [wrt], [of])


MODULE = """
    import sys
    from mpi4py import MPI
    from {package}.{module} import {name} as {other}
    import {package}.deep.{module} as deep
    {np} = deep.state({other}(MPI.COMM_WORLD.rank + 1.0))
    energy = {np}.total() + deep.offset
"""


@pytest.mark.parametrize(
    "package, module, name", [("np", "ampi", "numpy"), ("numpy_", "mpi", "_"), ("ampi_", "sum", "x")]
)
def test_modules_of_packages(program, package, module, name):
    path = program(
        MODULE.format(package=package, module=module, name=name, other="float_", np="np_"),
        {
            f"{package}/__init__.py": "import numpy as np",
            f"{package}/{module}.py": f"from . import np\ndef {name}({module}): return np.arange(4.0) * {module}\n",
            f"{package}/deep/__init__.py": "from .. import np",
            f"{package}/deep/{module}.py": textwrap.dedent("""
                from numpy import *
                from . import np
                offset = 2.0
                class state:
                    def __init__(self, place): self.place = place
                    def total(self): return np.sum(exp(self.place / 8))
            """),
        },
    )
    scale = f"{package}.{module}:{name}:{module}"
    found = check(
        path, [scale, f"{package}.deep.{module}:state.__init__:place", f"{package}.deep.{module}::offset"], ["energy"]
    )
    places = numpy.arange(4.0) * (WORLD.rank + 1)
    numpy.testing.assert_allclose(found.parts[0][1], numpy.exp(places / 8) / 8, rtol=1e-14)
    assert found.parts[0][0] == pytest.approx(numpy.sum(numpy.arange(4.0) * numpy.exp(places / 8) / 8), rel=1e-14)
    assert found.parts[0][2] == 1.0
    assert not [m for m in sys.modules if m.partition(".")[0] == package]


PI = """
    from mpi4py import MPI
    import numpy
    comm = MPI.COMM_WORLD
    n = 40
    height = 4.0
    step = 1.0 / n
    s = 0.0
    for i in range(comm.rank, n, comm.size):
        x = step * (i + 0.5)
        s += height / (1.0 + x ** 2)
    part, pi = numpy.array(s * step, dtype='d'), numpy.array(0.0, dtype='d')
    comm.Reduce(part, pi, op=MPI.SUM, root=0)
    print(pi if comm.rank == 0 else "", flush=True)
"""


def test_pi(program):
    """mpi4py's demonstration of a reduction, with a number of plain Python in the loop."""
    value, found = ampi.trace(program(PI), "height", "pi", objective="root")
    assert value == pytest.approx(numpy.pi, abs=1e-4)
    assert WORLD.allreduce(float(found)) == pytest.approx(value / 4.0, rel=1e-13)
    check(program(PI), ["height"], ["pi"], objective="root")


MATVEC = """
    from mpi4py import MPI
    import numpy
    from numpy.random import default_rng
    comm, dtype = MPI.COMM_WORLD, MPI.DOUBLE
    m = 3
    A = default_rng(comm.rank).random((m, m * comm.size))
    x = default_rng(comm.rank + 10).random(m)
    def matvec(comm, A, x):
        xg = numpy.zeros(m * comm.size, dtype='d')
        comm.Allgather([x, dtype], [xg, dtype])
        return numpy.dot(A, xg)
    for _ in range(3):
        x = matvec(comm, A, x)
        x = x / numpy.sqrt(comm.allreduce(numpy.dot(x, x)))
    rayleigh = comm.allreduce(numpy.dot(x, matvec(comm, A, x)))
"""


def test_matrix_and_vector(program):
    """mpi4py's tutorial of a product of a matrix that is spread over the ranks, as a power iteration."""
    check(program(MATVEC), ["A", "x"], ["rayleigh"], objective="replicated")
