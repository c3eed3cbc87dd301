"""Loops over complex elements: pairs of variables, compared with records, differences and NumPy."""

import numpy as np
import pytest

import ampi
import ampi.numpy as anp

MOST_ELEMENTS = 64
N = 4
FORMS = {
    "product": "s = s + x[i] * y[j]",
    "quotient": "s = s / y[j] + x[i] / (2.0 + s)",
    "difference": "s = x[i] - s * 0.5 - 1j",
    "constants": "s = s * 0.5 + (1 - 2j) * x[i] + 3 - x[j] * numpy.complex128(0.25j)",
    "real and complex": "s = s * 0.5 + r[i] * x[j] + r[j] * 1j - r[i] / x[i]",
    "parts": "w = w + x[i].real * y[j].imag - s.imag\ns = s * w",
    "absolute value": "w = w + abs(x[i] - y[j]) * numpy.absolute(x[i])\ns = s + w",
    "conjugate": "s = s * 0.5 + numpy.conj(x[i]) * y[j]",
    "powers": "s = s * 0.1 + x[i] ** 2 + y[j] ** 0.5 + x[i] ** -1 + x[i] ** y[j]",
    "power of a number": "s = s * 0.1 + 2.0 ** x[i] + x[i] ** r[j]",
    "functions": "s = s * 0.1 + numpy.exp(x[i]) * numpy.sqrt(y[j]) + numpy.sin(x[i]) + numpy.log(y[j])",
    "signs": "s = -(+s) * 0.5 - x[i]",
    "elements": "c[i] = x[i] * y[j]\nc[j] += c[i] * 0.5\ns = s * 0.5 + c[j]",
    "elements of matrices": "m[i, j] = x[i]\nm[j, 0] = m[i, j] * y[j]\ns = s * 0.5 + m[j, 0]",
    "constants into elements": "c[i] = 2.0\nc[j] = 1j\ns = s * 0.5 + c[i] * x[i]\nc[i] = x[i]\nc[j] += s",
    "a real number into an element": "c[i] = r[i] * r[j]\ns = s * 0.5 + c[i] * x[j]",
    "a number in arrays": "s = s * 0.5 + numpy.sum(s * x) + numpy.array([s, x[i]])[0] * x[i]",
    "a number from arrays": "s = s * 0.5 + numpy.sum(x) * x[i] + (x @ y) * 0.1",
    "comparison": "s = s * 0.5 + (x[i] if abs(x[i]) > abs(y[j]) else y[j]) * (2.0 if s == s else 1.0)",
    "zeros": "z = x[i] * 0.0\nw = w + abs(z)\ns = s * 0.5 + z * y[j] + x[i] * 0j",
    "a complex number in a real element": "p[i] = x[i] * y[j]\nw = w + p[i] * r[j]\ns = s * 0.5 + w",
    "in a list": "q.append(x[i] * y[j])\ns = s * 0.5 + q[i] * q[-1]",
}


def function_of(form):
    text = f"""
def loops(numpy, x, y, r):
    c, m, q = x * 1.0, numpy.zeros(({N}, {N}), complex), []
    s, w, p = x[0] * 0.5, r[0] * 0.5, r * 1.0
    for i in range({N}):
        for j in range({N}):
            {form.replace(chr(10), chr(10) + " " * 12)}
    return numpy.concatenate((numpy.array([s, s * w]), c, m.reshape(-1)))
"""
    names = {}
    exec(compile(text, "<complex>", "exec"), names)
    return names["loops"]


def starts():
    rng = np.random.default_rng(4)
    x, y = (rng.uniform(0.5, 1.0, N) + 1j * rng.uniform(-1.0, 1.0, N) for _ in range(2))
    return x, y, rng.uniform(0.5, 1.0, N)


def gradient(function, of_elements, monkeypatch):
    with monkeypatch.context() as patch, ampi.Tape() as tape:
        if not of_elements:
            patch.setattr(tape, "pen", None)
        given = [tape.watch(a) for a in starts()]
        out = function(anp, *given)
    return ampi.value(out), tape, out, given


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_forms(name, each_sweep, monkeypatch):
    function = function_of(FORMS[name])
    value, tape, out, given = gradient(function, True, monkeypatch)
    np.testing.assert_array_equal(value, function(np, *starts()))
    seed = np.linspace(1.0, 2.0, out.size) - 1j * np.linspace(0.5, 1.0, out.size)
    found = tape.gradient(out, given, seed=seed)
    _, other, out_by_records, given_by_records = gradient(function, False, monkeypatch)
    by_records = other.gradient(out_by_records, given_by_records, seed=seed)
    dots = [np.linspace(-1.0, 1.0, N) + 1j, np.linspace(0.5, 2.0, N) * 1j, np.linspace(1.0, 2.0, N)]
    for a, b in zip(found, by_records):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13 * np.abs(b).max())
    along = sum(np.vdot(a, d).real for a, d in zip(found, dots))
    np.testing.assert_allclose(np.vdot(seed, tape.tangent(out, given, dots)).real, along, rtol=1e-12)
    if "zeros" not in name:
        h = 1e-6
        ends = [function(np, *[a + k * h * d for a, d in zip(starts(), dots)]) for k in (1, -1)]
        np.testing.assert_allclose(np.vdot(seed, (ends[0] - ends[1]) / (2 * h)).real, along, rtol=1e-6)


def test_a_loop_of_complex_numbers_makes_no_records():
    with ampi.Tape() as tape:
        x = tape.watch(np.full(50, 1.0 + 0.5j))
        s = x[0] * 1.0
        c = x * 1.0
        for k in range(50):
            c[k] = s * x[k] + abs(x[k])
            s = s + c[k - 1] / 2.0
        assert tape.is_active(s) and tape.is_active(s.real) and not tape.is_active(np.sign(s.real))
    assert len(tape) <= 6
