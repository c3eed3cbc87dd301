"""The effect of each pass on a small kernel: the printed program before and after it, as stored in ``data/passes``.

``python tests/kernel/test_passes.py`` rewrites these files; read the changes before committing them.
"""

import enum
import inspect
import math
import os
from dataclasses import fields, replace
from pathlib import Path

import numba
import numpy as np
import pytest

from ampi.kernel import pipeline, prange
from ampi.kernel.differentiate.facts import Facts
from ampi.kernel.ir.printer import printed
from ampi.kernel.optimise import loop_distribution
from ampi.kernel.options import Options

FOLDER = Path(__file__).parents[1] / "data" / "passes"
X, M, N = np.ones(5), np.ones((5, 5)), np.ones(3, int)


def stops(x):
    for i in range(len(x)):
        if x[i] > 1.0:
            break
        x[i] = 0.0


def shifted(x):
    y = x[1:]
    for i in range(len(y)):
        y[i] = 0.0


def swapped(u, v, n):
    for _ in range(n):
        v[0] = u[0]
        u, v = v, u


def row_before(m):
    s, row = 0.0, m[0]
    for i in range(1, len(m)):
        s += row[1] * m[i, 0]
        row = m[i]
    return s


def renewed(x, n):
    y = np.zeros(2)
    for _ in range(n):
        z = np.empty(2)
        z[0] = y[0] + x[0]
        z[1] = y[1]
        y = z
    return y[0]


def copied(x):
    y = x.copy()
    return y[0] * y[1]


def whole(x, y):
    y[:] = 2.0 * x


def folded(x):
    for k in range(2):
        if k > 0:
            x[k - 1] = 1.0


def short(x):
    s = 0.0
    for k in range(2):
        s += x[k]
    return s


def small(x):
    t = np.empty(2)
    t[0] = x[0]
    t[1] = t[0] * 2.0
    return t[1]


def summed(x, c):
    s = 0.0
    if c > 0.5:
        s = c
    for i in range(len(x)):
        s += x[i]
    return s


def scratch(x, y):
    t = np.empty(20)
    for i in range(len(x)):
        for k in range(20):
            t[k] = x[i] * k
        for k in range(20):
            y[i] += t[k] * t[k]


def on_both_sides(x, y):
    if x[0] > 0.0:
        y[0] = x[0] * x[1]
    else:
        y[0] = x[1]


def partly_passive(x, y, c):
    t = x[0] * x[0]
    s = c * c
    y[0] = t * s


def overwritten(x, y):
    for i in range(len(x)):
        y[i] = x[i] * x[i]
        x[i] = y[i] * y[i]


def relaxed(u, w, n):
    for _ in range(n):
        for i in range(1, len(u) - 1):
            w[i] = u[i - 1] * u[i + 1]
        for i in range(1, len(u) - 1):
            u[i] = w[i]


def triangle(x, n):
    for i in range(n):
        for _ in range(i):
            x[i] = x[i] * x[i]


def exponentials(x, y):
    e = np.empty(len(x))
    for i in range(len(x)):
        e[i] = math.exp(x[i])
        y[i] = e[i] * e[i]


def running(x, y):
    s = 1.0
    for i in range(len(x)):
        s *= x[i]
        y[i] = s


def squares(x, y):
    for i in range(len(x)):
        y[i] = x[i] * x[i]


def scaled_sum(x, c):
    s = 0.0
    for i in range(len(x)):
        s += c[0] * x[i]
    return s


def stencil(u, v):
    for i in range(1, len(u) - 1):
        v[i] = u[i - 1] * u[i + 1]


def quotients(x, y, z):
    for i in range(len(x)):
        z[i] = x[i] / y[i]


def rows(m, x):
    for i in range(m.shape[0]):
        t = 0.0
        for j in range(m.shape[1]):
            t += m[i, j]
        x[i] = t * t


def filtered(x, y):
    s = x[0]
    for i in range(1, len(x)):
        s = 0.75 * s - x[i] * x[i - 1]
        y[i] = s


def in_parallel(x, y):
    for i in prange(len(x)):
        y[i] = x[i] * x[i]


def chosen(x, y):
    for i in range(len(x)):
        t = 0.0
        if x[i] > 0.0:
            t = 2.0 * x[i]
        y[i] = t * x[i]


def gathered(x, index, y):
    for i in range(len(index)):
        y[i] = math.sqrt(1.0 + x[index[i]] * x[index[i]])


def shifted_copy(u, v):
    for i in range(1, len(u)):
        v[i] = u[i - 1]


def made_in_a_branch(x, c):
    if c > 0.0:
        y = np.zeros(2)
    else:
        y = np.ones(2)
    y[0] = y[1] * x[0]
    return y[0]


def long_arithmetic(x, y):
    for i in range(1, len(x)):
        a = math.sqrt(1.0 + x[i] * x[i])
        b = math.sqrt(1.0 + a * a * y[i])
        y[i] = a / b + x[i] * b


def shrinking(x):
    s = x
    while s > 1.0:
        s = 0.3 * s * s
    return s


def in_two_loops(x, y):
    t = np.empty(len(x))
    for i in range(len(x)):
        t[i] = x[i] * x[i]
    for i in range(len(x)):
        y[i] = t[i] * t[i]


def flattened(m):
    s = 0.0
    for k in range(m.size):
        s += m[k // m.shape[1], k % m.shape[1]] ** 2
    return s


def shortest(d):
    for k in range(len(d)):
        for i in range(len(d)):
            for j in range(len(d)):
                d[i, j] = min(d[i, j], d[i, k] + d[k, j])


def layers(w, x, y):
    for b in range(len(x)):
        y[b] = w @ x[b]


def product(a, b, c):
    c[:] = a @ (0.5 * b)


# Pass, stage, kernel, arguments, active arguments, options.
CASES = [
    ("parse", "read", stops, (X,), "", {}),
    ("lower", "read", stops, (X,), "", {}),
    ("merge", "normalise", shifted_copy, (X, X), "", {"same": ((1, 0),)}),
    ("carry", "normalise", row_before, (M,), "", {}),
    ("keep", "normalise", renewed, (X, 3), "", {}),
    ("views", "normalise", shifted, (X,), "", {}),
    ("references", "normalise", swapped, (X, X, 3), "", {}),
    ("hoist", "normalise", made_in_a_branch, (X, 0.7), "", {}),
    ("copies", "normalise", copied, (X,), "", {}),
    ("expand", "normalise", whole, (X, X), "", {}),
    ("simplify", "simplify", folded, (X,), "", {}),
    ("unroll", "simplify", short, (X,), "", {}),
    ("scalarise", "simplify", small, (X,), "", {}),
    ("ssa", "construct", summed, (X, 0.7), "x", {}),
    ("private", "prepare", scratch, (X, X), "x", {}),
    ("loads", "prepare", on_both_sides, (X, X), "x", {}),
    ("begin", "analyse", squares, (X, X), "x", {}),
    ("activity", "analyse", partly_passive, (X, X, 0.7), "x", {}),
    ("sources", "analyse", overwritten, (X, X), "x", {}),
    ("snapshots", "analyse", relaxed, (X, X, 3), "u w", {}),
    ("outcomes", "analyse", shortest, (M,), "d", {}),
    ("counters", "analyse", triangle, (X, 3), "x", {}),
    ("kept", "analyse", exponentials, (X, X), "x", {}),
    ("stored", "analyse", running, (X, X), "x", {"after": True}),
    ("independence", "analyse", squares, (X, X), "x", {}),
    ("ends", "analyse", squares, (X, X), "x", {"plain": True}),
    ("adjoint", "differentiate", squares, (X, X), "x", {}),
    ("tangent", "tangent", squares, (X, X), "x", {}),
    ("independence", "order", squares, (X, X), "x", {}),
    ("slice", "prune", squares, (X, X), "x", {}),
    ("products", "optimise", layers, (M, M, M), "w", {}),
    ("batched", "optimise", layers, (M, M, M), "x", {}),
    ("sums", "optimise", scaled_sum, (X, X), "c", {}),
    ("gather", "optimise", stencil, (X, X), "u", {}),
    ("reciprocals", "optimise", quotients, (X, X, X), "x y", {}),
    ("strips", "optimise", rows, (M, X), "m", {}),
    ("chains", "optimise", filtered, (X, X), "x", {}),
    ("parallel", "optimise", in_parallel, (X, X), "x", {"threads": True}),
    ("local", "vectorise", in_two_loops, (X, X), "x", {}),
    ("allocations", "vectorise", scratch, (X, X), "x", {}),
    ("branches", "vectorise", chosen, (X, X), "x", {}),
    ("strips", "vectorise", gathered, (X, N, X), "x", {}),
    ("stages", "vectorise", long_arithmetic, (X, X), "x y", {"reassociate": True}),
    ("unsigned", "part", in_parallel, (X, X), "x", {"threads": True}),
    ("new", "finish", squares, (X, X), "x", {"plain": True}),
    ("destinations", "finish", product, (M, M, M), "a b", {"plain": True}),
    ("flat", "finish", flattened, (M,), "m", {"unchecked": True}),
    ("lanes", "finish", scaled_sum, (X, X), "c", {"lanes": 8}),
    ("destruct", "finish", rows, (M, X), "m", {}),
    ("room", "finish", shrinking, (2.0,), "x", {}),
]


def name_of(case):
    return f"{case[1]}-{case[0]}"


def shown(program, other):
    """The printed form of a program; for `Facts`, only the fields in which it differs from ``other``."""
    if callable(program):
        return inspect.getsource(program).rstrip()
    if not isinstance(program, Facts):
        return "\n".join(line.split("  # ")[0].rstrip() for line in printed(pipeline._function(program)).splitlines())
    lines = []
    for field in fields(Facts):
        value = getattr(program, field.name)
        before = getattr(other, field.name, None)
        if field.name == "primal" and value != before:
            lines.append(shown(value, None))
        elif field.name not in ("primal", "names", "accesses") and other is not None and value != before:
            lines += [f"{field.name}:", *(f"  {line}" for line in said(value))]
    return "\n".join(lines) or "nothing"


def said(value):
    """The lines that print a fact."""
    if isinstance(value, dict):
        return [f"{key}: {one(v)}" for key, v in value.items()] or ["-"]
    if isinstance(value, (set, frozenset, list)):
        return sorted(map(one, value)) or ["-"]
    if hasattr(value, "__dataclass_fields__"):
        return [f"{f.name}: {', '.join(said(getattr(value, f.name)))}" for f in fields(value)]
    return [one(value)]


def one(value):
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple):
        return f"({', '.join(map(one, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(one, value)))}}}"
    if hasattr(value, "type") and hasattr(value, "__dataclass_fields__"):
        return printed(value)
    if hasattr(value, "__dataclass_fields__"):
        return ", ".join(f"{f.name} {one(getattr(value, f.name))}" for f in fields(value))
    return getattr(value, "name", None) or str(value)


def around(case, monkeypatch):
    """The program before and after the pass, for the first run that changes it (or the last run)."""
    name, stage, kernel, arguments, active, options = case
    seen = []

    def watching(step):
        def run(program, way):
            found = step.run(program, way)
            seen.append((shown(program, found), shown(found, program)))
            return found

        return replace(step, run=run) if (step.name, step.stage) == (name, stage) else step

    monkeypatch.setattr(pipeline, "PASSES", tuple(map(watching, pipeline.PASSES)))
    monkeypatch.setattr(loop_distribution, "CYCLES_OF_A_DIVISION", 1)  # long arithmetic in few lines
    options = dict(options)
    code = pipeline.primal(kernel, tuple(map(numba.typeof, arguments)), options.pop("same", ()))
    if stage in ("tangent", "order"):
        pipeline.build_tangent(code, active.split())
    elif active:
        pipeline.build_adjoint(code, active.split(), Options(**options))
    return next((pair for pair in seen if pair[0] != pair[1]), seen[-1])


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_before_and_after(case, monkeypatch):
    before, after = around(case, monkeypatch)
    assert before != after, "the pass changes nothing here"
    path = FOLDER / f"{name_of(case)}.txt"
    if os.environ.get("AMPI_WRITE_PASSES"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{before}\n\n-----\n\n{after}\n")
    assert f"{before}\n\n-----\n\n{after}\n" == path.read_text()


def test_every_pass_is_shown():
    there = {step.name for step in pipeline.PASSES if step.run is not None}
    assert {case[0] for case in CASES} == there
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(map(name_of, CASES))


if __name__ == "__main__":
    os.environ["AMPI_WRITE_PASSES"] = "1"
    pytest.main([__file__, "-q"])
