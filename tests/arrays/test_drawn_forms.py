"""Loops in all forms of Python, drawn by chance: NumPy's values bit by bit, and gradients against differences.

Numbers go through lists, dictionaries, attributes, chained subscripts, generators, comparisons and conversions.
"""

import random
import types
import warnings

import numpy as np
import pytest

import ampi
import ampi.numpy as anp
from ampi.errors import ActivityError
from ampi.tape import element_places

LEAVES = [
    "x[i, j]",
    "x[i][j]",
    "y[j][i]",
    "y[-i, j]",
    "z[i]",
    "s",
    "o.a",
    "o.v[j]",
    "q[0]",
    "q[-1]",
    "d['a']",
    "d['v'][i]",
    "x.T[i, j]",
    "x[i].flat[j]",
    "w[()]",
    "1.5",
    "(2)",
    "o.m[i][j]",
    "x[:, j][i]",
    "y[i, ::2][j // 2]",
    "pair[0]",
    "float32(x[i, j])",
]
FUNCTIONS = [
    "abs({a})",
    "-{a}",
    "+{a}",
    "max({a}, {b})",
    "min({a}, {b}, 1.0)",
    "({a} + {b})",
    "({a} - {b})",
    "({a} * {b})",
    "({a} / (3.0 + {b} * {b}))",
    "numpy.sin({a})",
    "numpy.exp(-{a} * {a})",
    "{a} ** 2",
    "(0.1 + abs({a})) ** {b}",
    "numpy.sqrt(1.0 + {a} * {a})",
    "numpy.float64({a})",
    "({a} if {b} > 0.7 else {b})",
    "divmod({a}, 0.37)[1]",
    "({a} % 0.41)",
    "numpy.hypot({a}, {b})",
    "numpy.maximum({a}, {b})",
    "numpy.arctan2({a}, 1.0 + {b} ** 2)",
    "({a} * int({b} * 0 + 2.3))",
    "({a} * round(1.7))",
    "({a} * ({b} > 0.5))",
    "({a} // 0.3 * {b})",
    "numpy.where({a} > {b}, {a}, {b})",
    "f({a}, {b})",
    "g({a}, k={b})",
    "sum([{a}, {b}])",
    "sum(({a}, {b}), start=0.5)",
    "numpy.array([{a}, {b}])[1]",
    "numpy.array([{a}, {b}]).sum()",
    "numpy.sum([{a}, {b}])",
    "numpy.max([{a}, {b}])",
    "numpy.abs({a})",
    "numpy.clip({a}, 0.2, 0.9)",
    "numpy.power({a} + 2.0, 1.5)",
    "numpy.stack([{a}, {b}]).prod()",
    "(lambda u: u * {a})({b})",
    "({a}).real",
    "({a}).conjugate()",
    "({a}).item() * 0 + {a}",
]
STATEMENTS = [
    "{t} = {e}",
    "{t} += {e}",
    "{t} -= {e} * 0.3",
    "{t} *= 0.5 + 0.1 * {e}",
    "{t} /= 2.0 + abs({e})",
    "{t}, s = s, {e}",
    "a, *rest = [{e}, {f}, 1.0]; {t} = a + rest[0]",
    "if {e} > {f}:\n    {t} = {e}\nelse:\n    {t} = {f} * 0.5",
    "for m, v in enumerate(x[i]):\n    {t} += v * m * 0.1",
    "for u, v in zip(x[i], reversed(y[j])):\n    {t} += u * v * 0.1",
    "{t} = sum(v * {e} for v in z) * 0.1",
    "{t} = max((v for v in q), default=0.0)",
    "q = sorted(q, key=lambda v: -v)",
    "q.append({e}); q.pop(0)",
    "q = [v * 0.9 for v in q if v < 5.0]; q.append({e})",
    "d = {{k: v * 0.9 for k, v in d.items()}} if 'v' not in d else d",
    "o.v[:] = o.v[::-1]",
    "z[:2] = [{e}, {f}]",
    "z[1:3] += {e}",
    "z[[0, 2]] = {e}, {f}",
    "{t} = max(q) - min(q)",
    "x2 = [[{e}, {f}], [1.0, s]]; {t} = x2[0][1] * x2[1][1]",
    "pair = ({e}, {f})",
    "while s > 3.0:\n    s = s * 0.5",
    "{t} = numpy.mean([v for v in z])",
    "try:\n    {t} = {e} / 0\nexcept ZeroDivisionError:\n    {t} = {f}",
    "{t} = next(iter(z)) * {e}",
    "o.m[i, :2] *= {e}",
    "{t} = numpy.dot(z[:3], x[i, :3]) * 0.1",
    "t3 = numpy.array([{e}, {f}, 0.5]); {t} = t3 @ z[:3]",
    "t3 = numpy.array([[{e}, {f}], [0.5, s]]); {t} = t3[0, 1] + t3.sum()",
    "assert {e} == {e}",
    "{t} = float('%.17g' % 0.25) * {e}",
    "w += {e}",
    "w[...] = {e}",
    "z = numpy.array([v * 0.5 for v in z])",
    "z = z + numpy.array([{e}] * 4) * 0.1",
    "x[i, j], y[j, i] = y[j, i], x[i, j]",
    "z[i % 4] = z[i % 4] if z[i % 4] < 2.0 else 1.0 / z[i % 4]",
]
TARGETS = [
    "s",
    "z[i]",
    "z[-1]",
    "c[i, j]",
    "c[i][j]",
    "o.a",
    "o.v[j]",
    "q[0]",
    "d['a']",
    "w[()]",
    "o.m[i, j]",
    "c[j, i]",
    "d['v'][i]",
    "x[i, j]",
]

PROGRAM = """
def program(numpy, float32, x0, y0):
    x, y = x0 * 1.0, y0 * 1.0
    z, c, w = x[0] * 1.0, x * 0.5, numpy.zeros(()) + x[0, 0]
    s = x[1, 1] * 1.0
    o = types.SimpleNamespace(a=s * 0.5, v=y[1] * 1.0, m=y * 0.5)
    q, d = [s, s * 0.3], {"a": s, "v": x[2] * 1.0}
    pair = (s, 1.0)
    f = lambda a, b: a * b + a
    g = lambda a, k=1.0: a + k * 0.1
    for i in range(3):
        for j in range(3):
            BODY
            if not abs(s) < 50:
                s = s * 0.0 + 0.1
    return [s, z, c, w, o.a, o.v, o.m, *q, *d.values()]
"""


def drawn(seed):
    """The statements of a loop's body."""
    rng = random.Random(seed)

    def value(depth=2):
        if depth == 0 or rng.random() < 0.25:
            return rng.choice(LEAVES)
        return rng.choice(FUNCTIONS).format(a=value(depth - 1), b=value(depth - 1))

    found = [
        rng.choice(STATEMENTS).format(t=rng.choice(TARGETS), e=value(), f=value()) for _ in range(rng.randint(2, 5))
    ]
    return "\n".join(found)


def function_of(body):
    names = {"types": types}
    exec(compile(PROGRAM.replace("BODY", body.replace("\n", "\n" + 12 * " ")), "<drawn>", "exec"), names)
    return names["program"]


def flat(out):
    return np.concatenate([np.ravel(np.asarray(ampi.value(v), float)) for v in out])


def problem_of(seed):
    """What is wrong with a program; None: nothing, or NumPy raises an error as well."""
    rng = np.random.default_rng(seed)
    starts, dots = rng.uniform(0.3, 1.0, (2, 4, 4)), rng.standard_normal((2, 4, 4))
    body = drawn(seed)
    function = function_of(body)
    error, expected = None, None
    try:
        expected = flat(function(np, np.float32, *starts.copy()))
    except Exception as problem:
        error = problem
    try:
        with ampi.Tape() as tape:
            watched = [tape.watch(a) for a in starts]
            out = function(anp, anp.float32, *watched)
            active = [k for k, v in enumerate(out) if tape.is_active(v)]
        found = flat(out)
    except ActivityError:
        return None
    except Exception as problem:
        return None if type(problem) is type(error) else f"{problem!r} instead of {error!r}: {body}"
    if error is not None:
        return f"no {error!r}: {body}"
    if not np.array_equal(found, expected, equal_nan=True):
        return f"values differ: {body}"
    if not active or not np.isfinite(expected).all() or np.abs(expected).max() > 1e4 or "float32" in body:
        return None
    seeds = [np.linspace(1.0, 2.0, np.size(out[k])).reshape(np.shape(out[k])) for k in active]
    g = np.vdot(tape.gradient([out[k] for k in active], watched, seed=seeds), dots)

    def objective(h):
        out = function(np, np.float32, *(starts + h * dots))
        return sum(np.vdot(s, out[k]) for s, k in zip(seeds, active)) if len(out) > max(active) else np.nan

    slopes = [(objective(h) - objective(-h)) / (2 * h) for h in (1e-5, 3e-6, 1e-6)]
    if not np.std(slopes) < 1e-5 * max(1.0, abs(slopes[0])):
        return None  # not smooth here
    return None if abs(slopes[1] - g) < 2e-5 * max(1.0, abs(g)) else f"gradient {g}, differences {slopes}: {body}"


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1000, 9000, 400))])
def test_drawn_forms(first, monkeypatch):
    monkeypatch.setattr(element_places, "FEWEST", 1)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        problems = {seed: problem_of(seed) for seed in range(first, first + (400 if first else 40))}
    assert not {seed: problem for seed, problem in problems.items() if problem}
