"""Operations of slices with a few elements: statements on the tape, with the same bits as records of their own."""

import random

import numpy as np
import pytest
from test_elements import by_complex_step

import ampi
import ampi.numpy as anp
from ampi.arrays import few_writes

N = 6
FORMS = {
    "product": "t = x[i, j : j + 3] * y[i, j : j + 3]\nz += t",
    "sum of slices": "c[i, j : j + 3] = x[i, j : j + 3] + y[j, i % 3 : i % 3 + 3]",
    "difference with a number": "z -= x[i, j : j + 3] - y[i, j]",
    "added in place": "c[i, j : j + 3] += x[i, j : j + 3] * y[i, j]",
    "a row shifted along itself": "c[i, 1:4] = c[i, 0:3]\nc[i, 1:5] += x[i, 0:4]\nc[i, 0:3] -= c[i, 2:5]",
    "every second element": "z += x[i, ::2] * y[::2, j]\nc[::2, j] = z",
    "backwards": "z += x[i, 3:0:-1] * y[i, j]",
    "quotient": "z /= 1.5\nz += 2.0 / (x[i, j : j + 3] + y[i, j : j + 3])",
    "functions": "z += numpy.sin(x[i, j : j + 3]) * numpy.exp(-y[i, j : j + 3]) + numpy.sqrt(x[j, :3])",
    "powers": "z += x[i, j : j + 3] ** 2 + x[i, :3] ** y[j, :3]",
    "sum": "w += numpy.sum(x[i, j : j + 3]) * y[i, j] + x[i, :2].sum()",
    "inner product": "w += x[i, j : j + 3] @ y[i, j : j + 3] - numpy.dot(x[i, 1:5:2], y[j, :2])",
    "of one vector": "w += x[i, j : j + 3] @ x[i, j : j + 3]",
    "array of numbers": "t = numpy.array([x[i, j], 2.5, y[i, j] * x[j, i]])\nz += t * t[1]",
    "with a plain array": "z += x[i, j : j + 3] * plain - plain",
    "elements of a result": "t = x[i, j : j + 3] * 2.0\nt[0] = t[2] * y[i, j]\nz += t",
    "constants in a slice": "c[i, j : j + 3] = x[i, j : j + 3]\nc[i, j + 1 : j + 2] = 0.5\nz += c[i, j : j + 3]",
    "an unused result": "x[i, j : j + 3] * y[i, j : j + 3]",
    "in place by numbers": "z *= 1.01\nz /= y[i, j] + 0.5\nz -= x[i, j]",
    "in place by slices": "c[i, j : j + 3] *= y[j, i % 3 : i % 3 + 3]\nc[::2, j] /= x[i, :3]\nz -= c[i, :3] * y[i, j]",
    "in place by a result": "t = x[i, j : j + 3] * y[i, j]\nz += t\nz -= t * t",
    "in place by itself": "z *= z\nz += z\nz /= 4.0 + z",
    "a result changed through a view": "t = x[i, j : j + 3] * y[i, j]\nz += t\nu = t[1:]\nu *= t[0]\nz += t",
    "a result changed before its use": "t = x[i, j : j + 3] * y[i, j]\nu = t * 2.0\nt[1] = u[2]\nz += t * u",
    "a number in a slice": "c[i, j : j + 3] = x[i, j]\nz += c[i, j : j + 3]\nc[::2, j] = y[i, j] * c[0, j]",
    "constants in slices": "c[i, 1:4] = 0.5\nz += c[i, 0:3] * x[i, j]\nc[::3, j] = i\nc[i, 1:4] = x[i, 1:4]\nz[1:] = 2",
    "flat": "c.flat[i * N + j] = x[i, j] * y[i, j]\nw += c.flat[-i] * c.flat[j]\nc.flat[-1 - j] += x[i, j]",
    "extrema": "w += numpy.max(x[i, j : j + 3]) * y[i, j] - (x[i, :3] * y[i, j]).min() + numpy.fmax.reduce(c[i, ::2])",
    "products": "w += numpy.prod(x[i, j : j + 3]) * (x[i, :2] - x[i, 1:3]).prod()",
    "means": "w += numpy.mean(x[i, j : j + 3]) * y[i, j] + (x[i, :3] * y[i, j]).mean()",
    "copies": "t = x[i, j : j + 3].copy()\nt *= y[i, j]\nz += t.copy() * t",
    "clipped": "w += numpy.clip(x[i, j], 0.6, 0.8) * numpy.clip(x[j, i], y[i, j], 0.9)",
    "unpacked views": "a, b, d = x[i, j : j + 3]\nw += a * b - d\nfor a in c[i, ::2]:\n    w += a",
    "unpacked": "a, b, d = x[i, j : j + 3] * y[i, j]\nw += a * b - d",
    "elements of results": "t = x[i, j : j + 3] * y[i, j]\nfor a in t:\n    w += a * t[-1]\nz += t * t[k]",
    "a result assigned to itself": "t = x[i, j : j + 3] * y[i, j]\nt[:] = t\nt[1:] = t[:-1]\nz += t",
    "a result in another shape": "t = x[i, j : j + 3] * y[i, j]\nz += t.reshape(3, 1)[:, 0] + numpy.sin(t)[::-1]",
    "a list of results": "q.append(x[i, j : j + 3] * y[i, j])\nz += q[i] * q[-1]",
    "copied into": "t = numpy.array([x[i, j], y[i, j], 2.0])\nnumpy.copyto(t[:2], x[i, :2])\nz += t",
    "a matrix of few": "t = x[:2, :3] * y[:2, :3]\nz += t[i % 2]",
}


def function_of(form):
    body = form.replace("\n", "\n            ")
    text = f"""
def loops(numpy, x, y):
    z, c, w = x[0, :3] * 1.0, x * 1.0, x[0, 0] * 0.0
    plain, k, q = PLAIN, numpy.int64(1), []
    for i in range(N - 1):
        for j in range(N - 3):
            {body}
    return numpy.concatenate((z, c.reshape(-1), numpy.array([w]), c[2, 1:3] * z[1]))
"""
    names = {"PLAIN": np.linspace(1.0, 2.0, 3), "N": N}
    exec(compile(text, "<few>", "exec"), names)
    return names["loops"]


def starts():
    rng = np.random.default_rng(3)
    return rng.uniform(0.5, 1.0, (N, N)), rng.uniform(0.5, 1.0, (N, N))


def gradient(function, monkeypatch, most):
    monkeypatch.setattr(few_writes, "MOST", most)
    with ampi.Tape() as tape:
        x, y = map(tape.watch, starts())
        out = function(anp, x, y)
    seed = np.linspace(1.0, 2.0, out.size)
    return ampi.value(out), tape.gradient(out, [x, y], seed=seed), tape, (out, x, y, seed)


@pytest.mark.parametrize("name", FORMS)
def test_forms(name, each_sweep, monkeypatch):
    function = function_of(FORMS[name])
    value, found, tape, (out, x, y, seed) = gradient(function, monkeypatch, 7)
    np.testing.assert_array_equal(value, function(np, *starts()))
    by_records = gradient(function, monkeypatch, 0)
    np.testing.assert_array_equal(found, by_records[1])
    expected = [
        by_complex_step(
            lambda v, k=k: function(np, *[v if n == k else a + 0j for n, a in enumerate(starts())]), s, seed
        )
        for k, s in enumerate(starts())
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    x_dot = [np.linspace(-1.0, 1.0, N * N).reshape(N, N), np.linspace(0.5, 2.0, N * N).reshape(N, N)]
    by_tangent = np.vdot(tape.tangent(out, [x, y], x_dot), seed)
    np.testing.assert_allclose(by_tangent, sum(np.vdot(a, b) for a, b in zip(expected, x_dot)), rtol=1e-12)


PARTS = ("x[i, j : j + 3]", "y[j, i % 3 : i % 3 + 3]", "z", "c[i, ::2]", "t", "x[i, j]", "w", "s[1]", "0.75", "plain")
TARGETS = (
    "z {o} {e}",
    "c[i, j : j + 3] {o} {e}",
    "c[::2, j] {o} {e}",
    "t = {e} + z * 0",
    "w = w + ({e} + z * 0).sum()",
)
LAST = ("s = numpy.array([w, z[0], 0.5])", "w = z @ c[i, j : j + 3] * 0.1", "z[j % 3] = w", "t = numpy.sin(z)")


def drawn(seed):
    rng = random.Random(seed)
    lines = ["t, s = z * 1.0, z * 0.5"]
    for _ in range(rng.randint(2, 6)):
        a, b = rng.choice(PARTS), rng.choice(PARTS)
        e = rng.choice((f"({a} * {b})", f"({a} - {b})", f"({a} / (4.0 + {b}))", f"numpy.cos({a})", a))
        lines.append(rng.choice(TARGETS).format(e=e, o=rng.choice(("=", "+=", "-=", "*="))))
        lines.append(rng.choice(LAST))
    return "\n".join(line.replace("z = ", "z[:] = ") if line.startswith("z = ") else line for line in lines)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 400, 10))])
def test_drawn_programs(first, each_sweep, monkeypatch):
    for seed in range(first, first + 10):
        text = drawn(seed)
        function = function_of(text)
        with np.errstate(all="ignore"):
            value, found, tape, (out, x, y, weights) = gradient(function, monkeypatch, 7)
            by_records = gradient(function, monkeypatch, 0)
            np.testing.assert_array_equal(value, function(np, *starts()), err_msg=text)
            x_dot = [np.full((N, N), 0.5), np.full((N, N), -0.25)]
            by_tangent = np.vdot(tape.tangent(out, [x, y], x_dot), weights)
        np.testing.assert_array_equal(found, by_records[1], err_msg=text)
        if not np.isfinite(found).all():
            continue  # it has grown beyond all numbers
        by_gradient = sum(np.vdot(a, b) for a, b in zip(found, x_dot))
        scale = sum(np.abs(a * b).sum() for a, b in zip(found, x_dot))
        np.testing.assert_allclose(by_tangent, by_gradient, rtol=1e-9, atol=1e-12 * scale, err_msg=text)


def test_what_slices_of_few_elements_keep(monkeypatch):
    monkeypatch.setattr(few_writes, "MOST", 7)
    with ampi.Tape() as tape:
        x = tape.watch(np.ones((40, 5)))
        z = x[0, :3] * 1.0
        for i in range(40):
            z += x[i, :3] * x[i, 1] + x[i, 1:4]
            z += anp.array([x[i, 0], x[i, 1], 1.0]) * anp.sum(x[i, :2])
    assert len(tape) < 6


def test_a_result_is_an_output_and_an_independent():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([2.0, 3.0, 5.0]))
        a = x * 2.0
        b = x * a[1]
        assert tape.is_active(b)
        assert tape.watch(a) is a
        y = a * b
    np.testing.assert_array_equal(tape.gradient(b, x, seed=np.ones(3)), [6.0, 2 * (2 + 3 + 5) + 6.0, 6.0])
    np.testing.assert_array_equal(tape.gradient(y, a, seed=np.ones(3)), [12.0, 18.0, 30.0])


def test_a_result_that_code_outside_overwrites():
    """Its elements are no variables any more once its address has been handed out."""
    with ampi.Tape() as tape:
        x = tape.watch(np.array([2.0, 3.0, 5.0]))
        a = x * 2.0
        with pytest.warns(ampi.ActivityWarning):
            memory = np.asarray(memoryview(a))
        memory[:] = 7.0
        with pytest.raises(ampi.ActivityError, match="changed by code that ampi does not see"):
            a * x


def test_a_result_makes_no_storage(monkeypatch):
    monkeypatch.setattr(few_writes, "MOST", 7)
    with ampi.Tape() as tape:
        x = tape.watch(np.ones((4, 5)))
        t = np.sin(x[0, :3] * x[1, 1]) * x[2, 1:4]
        s = t[0] * t[-1] + np.sum(t)
    assert not hasattr(t, "_storage") and len(tape.elements.current.storages) == 1
    assert tape.is_active(t) and not hasattr(t, "_storage")
    tape.gradient(s, x)


@pytest.mark.parametrize("operation", ["__iadd__", "__imul__"])
def test_what_an_error_leaves_in_a_slice_has_no_derivative(operation, monkeypatch):
    """NumPy has written a part of it."""
    monkeypatch.setattr(few_writes, "MOST", 7)
    start = np.array([1.0, 2.0, 3.0]) * 5.9e307

    def program(x, again):
        b = x * 1.0
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            getattr(b, operation)(x * 1.0 if operation == "__iadd__" else 5.0)
        if again:
            b[:] = x * 0.5
        return b

    kept = []
    with pytest.raises(ampi.ActivityError, match="raised FloatingPointError"):
        ampi.grad(lambda x: anp.sum(kept.append(program(x, False)) or kept[-1] * 1e-10))(start)
    np.testing.assert_array_equal(ampi.value(kept[0]), program(start, False))
    assert (ampi.grad(lambda x: anp.sum(program(x, True) * 1e-10))(start) == 0.5e-10).all()


@pytest.mark.parametrize("axis", [1, -2, (0, 1)])
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min"])
def test_reductions_along_an_axis_that_a_vector_has_not(name, axis):
    """They are NumPy's errors."""
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(3.0))
        for call in (lambda: getattr(anp, name)(x, axis=axis), lambda: getattr(x * 2.0, name)(axis)):
            with pytest.raises(np.exceptions.AxisError, match="out of bounds for array of dimension 1"):
                call()
        assert tape.is_active(getattr(anp, name)(x, axis=-1))
