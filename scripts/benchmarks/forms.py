"""Costs of all forms in which programs write loops over elements: recorded and swept, beside plain NumPy.

A form is the body of a loop over ``i`` and ``j``, with arrays ``x``, ``y`` (n x n), results ``c`` (n x n), ``z`` (n),
``w`` (0-d) and ``o`` (an object), and a number ``s``.  Times are of the processor, of one process.
"""

import gc
import statistics
import textwrap
import time
import tracemalloc
import types

import numpy

import ampi
import ampi.numpy

N = 60
RECORDED, SWEPT, BYTES = 15.0, 10.0, 200.0

FORMS = {
    "number += product": "s += x[i, j] * y[i, j]",
    "number -= quotient": "s -= x[i, j] / y[i, j]",
    "number *= element": "s *= 1 + x[i, j] / 1e4",
    "element of a vector += product": "z[0] += x[i, j] * y[i, j]",
    "element -= product": "z[i] -= x[i, j] * y[i, j]",
    "element *= element": "z[i] *= 1 + x[i, j] / 1e4",
    "element /= element": "c[i, j] /= y[i, j]",
    "element **= 2": "c[i, j] **= 2",
    "element += product": "c[i, j] += x[i, j] * y[i, j]",
    "element = product": "c[i, j] = x[i, j] * y[i, j]",
    "element = constant + product": "c[i, j] = 1.5 + 2 * x[i, j]",
    "element of what was computed": "c[i, j] = c[i - 1, j] + c[i, j - 1] - c[i - 1, j - 1]",
    "stencil": "c[i, j] = 0.25 * (x[i - 1, j] + x[i, j - 1] + x[i - 1, j - 1] + x[i, j])",
    "swap": "c[i, j], c[j, i] = c[j, i], c[i, j]",
    "0-d array += product": "w[()] += x[i, j] * y[i, j]",
    "0-d array in place": "w += x[i, j] * y[i, j]",
    "chained subscripts": "s += x[i][j] * y[i][j]",
    "chained target": "c[i][j] = x[i][j] * y[i][j]",
    "chained +=": "c[i][j] += x[i, j] * y[i, j]",
    "mixed subscripts": "s += x[i][j] * y[i, j]",
    "NumPy's integers": "s += x[k, l] * y[k, l]",
    "negative indices": "s += x[-i, -j] * y[-i, -j]",
    "indices of a vector": "s += z[i] * z[j]",
    "slice of few += product": "t += x[i, j - 1 : j + 2] * y[i, j]",
    "slice of few = sum": "c[i, j - 1 : j + 2] = x[i, j - 1 : j + 2] + y[i, j - 1 : j + 2]",
    "slice of few += sum": "c[i, j - 1 : j + 2] += x[i, j - 1 : j + 2] * y[i, j]",
    "slice of few, a new array": "t = x[i, j - 1 : j + 2] * y[i, j - 1 : j + 2]",
    "sum of a slice of few": "s += numpy.sum(x[i, j - 1 : j + 2])",
    "product of slices of few": "s += x[i, j - 1 : j + 2] @ y[i, j - 1 : j + 2]",
    "sine": "s += numpy.sin(x[i, j]) * y[i, j] ** 2",
    "exponential of a product": "s += numpy.exp(-x[i, j] * y[i, j])",
    "square root": "c[i, j] = numpy.sqrt(x[i, j] * y[i, j])",
    "power of a variable": "s += x[i, j] ** y[i, j]",
    "inverse": "s += 1.0 / x[i, j]",
    "minus": "s += -x[i, j]",
    "abs": "s += abs(x[i, j] - y[i, j])",
    "max": "s = max(s, x[i, j] * y[i, j])",
    "min": "c[i, j] = min(x[i, j], y[i, j])",
    "numpy.maximum": "s += numpy.maximum(x[i, j], y[i, j])",
    "comparison": "if x[i, j] > y[i, j]:\n    s += x[i, j]",
    "comparison with zero": "if x[i, j] - y[i, j] < 0.0:\n    s += x[i, j]\nelse:\n    s -= y[i, j]",
    "conversion by numpy.float64": "s += numpy.float64(x[i, j]) * y[i, j]",
    "numpy.float32": "s += numpy.float32(x[i, j]) * y[i, j]",
    "int of a value": "s += x[i, j] * int(i * 0.5)",
    "list comprehension": "if j == 1:\n    s += sum([a * 2 for a in x[i]])",
    "list of numbers": "if j == 1:\n    q = [x[i, m] for m in range(n)]\ns += q[j] * y[i, j]",
    "sum of a list": "if j == 1:\n    s += sum([x[i, m] * y[i, m] for m in range(n)])",
    "append": "if j == 1:\n    q = []\nq.append(x[i, j] * y[i, j])",
    "item of a list += product": "q[0] += x[i, j] * y[i, j]",
    "item of a dictionary += product": "d['a'] += x[i, j] * y[i, j]",
    "attribute += product": "o.a += x[i, j] * y[i, j]",
    "element of an attribute += product": "o.v[i] += x[i, j] * y[i, j]",
    "elements of attributes": "o.c[i, j] = o.x[i, j] * o.y[i, j]",
    "array of a list": "if j == 1:\n    t = numpy.array([x[i, 0], x[i, 1], y[i, 0]])\ns += t[1] * y[i, j]",
    "elements in an array": "t = numpy.array([x[i, j], y[i, j]])",
    "function of numbers": "s += f(x[i, j], y[i, j])",
    "enumerate and zip": "if j == 1:\n    for a, b in zip(x[i], y[i]):\n        s += a * b",
    "iteration over rows": "if i == 1 and j == 1:\n    for row in x:\n        for a in row:\n            s += a",
    "flat": "s += x.flat[i * n + j]",
        "transposed": "s += x.T[j, i] * y[i, j]",
    "three numbers": "a = x[i, j]\nb = y[i, j]\ns = s + a * b - a / (b + 2)",
}  # fmt: skip


def function_of(statement: str):
    """A function that runs the loops of a form; it returns a number or array that depends on everything."""
    body = textwrap.indent(statement, " " * 12)
    text = f"""
def loops(numpy, x, y, c, z, w, t, o, n):
    s, q, d = x[0, 0] * 0.0, [x[0, 0] * 0.0], {{"a": x[0, 0] * 0.0}}
    f = lambda a, b: a * b + a
    numbers = [numpy.int64(i) for i in range(n)]
    for i in range(1, n):
        k = numbers[i]
        for j in range(1, n - 1):
            l = numbers[j]
{body}
    return s, q, d, c, z, w, t, o
"""
    names: dict = {"__name__": "program"}
    exec(compile(text, f"<{statement.splitlines()[0]}>", "exec"), names)
    return names["loops"]


def data():
    rng = numpy.random.default_rng(5)
    return rng.uniform(0.5, 1.0, (N, N)), rng.uniform(1.0, 1.5, (N, N))


def arguments(np, x, y):
    """What the loops get, of plain NumPy or of ampi.numpy."""
    z, c = x[0] * 1.0, x * 1.0
    t, w = x[0, :3] * 1.0, np.zeros(())
    o = types.SimpleNamespace(a=x[0, 0] * 0.0, v=x[0] * 1.0, x=x, y=y, c=x * 1.0)
    return x, y, c, z, w, t, o, N


def outputs(found):
    """Everything that a form may have changed, as a list of numbers and arrays."""
    s, q, d, c, z, w, t, o = found
    return [s, *q, *d.values(), c, z, w, t, o.a, o.v, o.c]


def of(statement: str, repeat: int):
    """Processor time of NumPy's loops, recorded and swept, and the bytes of an iteration on the tape."""
    loops, start = function_of(statement), data()
    state: dict = {}

    def plain() -> float:
        given = arguments(numpy, *(a.copy() for a in start))
        return seconds(lambda: loops(numpy, *given))

    def record() -> float:
        state.clear()
        with ampi.Tape() as tape:
            x, y = (tape.watch(a) for a in start)
            given = arguments(ampi.numpy, x, y)
            found: list = []
            taken = seconds(lambda: found.extend(loops(ampi.numpy, *given)))
            out = [a for a in outputs(found) if tape.is_active(a)]
        state.update(tape=tape, x=[x, y], out=out, seeds=[numpy.ones(a.shape, a.dtype) for a in out])
        return taken

    def sweep() -> float:
        return seconds(lambda: state["tape"].gradient(state["out"], state["x"], seed=state["seeds"]))

    for part in (plain, record, sweep):
        part()
    times = []
    for _ in range(repeat):
        times.append((plain(), record(), sweep()))
    state.clear()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    record()
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    primal, recorded, swept = (statistics.median(t) for t in zip(*times))
    return primal, recorded, swept, used / ((N - 1) * (N - 2))


def seconds(work) -> float:
    gc.collect()
    gc.disable()
    begin = time.process_time()
    work()
    taken = time.process_time() - begin
    gc.enable()
    return taken


def rows(repeat: int) -> list[dict]:
    """Two rows for each form, the worst last."""
    found = []
    for name, statement in FORMS.items():
        primal, recorded, swept, used = of(statement, repeat)
        for kind, taken, bar in (("recorded", recorded, RECORDED), ("swept", swept, SWEPT)):
            row = {
                "name": f"form_{kind}_{name.replace(' ', '_')}",
                "what": f"{name}: {kind}",
                "primal": primal,
                "gradient": taken,
                "value": taken / primal,
                "unit": "x",
                "bar": bar,
                "stretch": bar / 2,
                "note": statement.replace("\n", "; "),
            }
            if kind == "recorded":
                row["note"] = f"{used:.0f} bytes an iteration  {row['note']}"
            found.append(row)
    return sorted(found, key=lambda row: row["value"] / row["bar"])
