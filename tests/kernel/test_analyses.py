"""Every analysis can be switched off, and no result changes."""

import numpy as np
import pytest
from language_cases import CASES
from switch_cases import CHANGED, kernel_and_arguments

import ampi
from ampi import KernelError
from ampi.kernel import ANALYSES, prange
from ampi.kernel.pipeline import PASSES


def stencil(u, v, c):
    for i in prange(1, len(u) - 1):
        t = u[i - 1] + u[i + 1]
        v[i] = u[i] + c * t * t


def short_loops(x, index, out):
    for i in range(len(out)):
        corner = np.empty(3)
        for k in range(3):
            corner[k] = x[index[i, k]] * (k + 1)
        volume = corner[0] * corner[1] - corner[2]
        if volume > 0.5:
            out[i] = volume * volume
        else:
            out[i] += np.sin(volume)


def recurrence(x, h):
    s = 0.3
    for i in range(len(x)):
        s += h * (x[i] - s * s)
        x[i] = s * x[i]
    return s


rng = np.random.default_rng(2)
KERNELS = {
    "stencil": (stencil, (rng.uniform(0.5, 1.5, 300), rng.uniform(0.5, 1.5, 300), 0.3)),
    "short_loops": (short_loops, (rng.uniform(0.5, 1.5, 9), rng.integers(0, 9, (20, 3)), rng.uniform(0.5, 1.5, 20))),
    "recurrence": (recurrence, (rng.uniform(0.5, 1.5, 12), 0.1)),
    "swapped": CASES["swapped_buffers"],
}


def gradient(function, arguments, without):
    """Values after the call, and adjoints of all floating-point arguments."""
    kernel = ampi.kernel(function, without=without)
    is_float = [np.asarray(a).dtype.kind == "f" for a in arguments]
    with ampi.Tape() as tape:
        watched = [tape.watch(a) if active else a for a, active in zip(arguments, is_float)]
        given = [a * 1.0 if active else a for a, active in zip(watched, is_float)]
        result = kernel(*given)
        outputs = [a * a for a, active in zip(given, is_float) if active]
        objective = sum(ampi.numpy.sum(a) for a in outputs) + (0.0 if result is None else result)
    bars = tape.gradient(objective, [a for a, active in zip(watched, is_float) if active])
    return [np.asarray(ampi.value(objective)), *map(np.asarray, bars)]


@pytest.fixture(scope="module")
def expected():
    return {name: gradient(*KERNELS[name], ()) for name in KERNELS}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "stencil")) for n in KERNELS])
def test_results_are_the_same_without_any(name, expected):
    for found, wanted in zip(gradient(*KERNELS[name], ANALYSES), expected[name], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("analysis", CHANGED)
def test_results_are_the_same_without(analysis):
    """Compiled, on a tape, for a kernel that the analysis changes; ``test_switches`` tests more, as plain Python."""
    given = kernel_and_arguments(CHANGED[analysis].split()[0])
    for found, wanted in zip(gradient(*given, analysis), gradient(*given, ()), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


def test_every_analysis_has_a_switch():
    assert {step.name for step in PASSES if step.default != "always"} == set(ANALYSES)


def test_the_environment_switches_off(monkeypatch):
    monkeypatch.setenv("AMPI_WITHOUT", "strips, unroll")
    assert ampi.kernel(stencil).without == {"strips", "unroll"}
    assert ampi.kernel(stencil, without="sums").without == {"sums"}
    monkeypatch.setenv("AMPI_WITHOUT", "")
    assert ampi.kernel(stencil).without == frozenset()


@pytest.mark.parametrize("given", ["strip", ["sums", "loops"]])
def test_unknown_names_are_refused(given):
    with pytest.raises(KernelError, match="unknown analysis"):
        ampi.kernel(stencil, without=given)
