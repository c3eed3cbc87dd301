"""Examples of CUDA kernels: resonances (RSBench), and what examples do with a card."""

import argparse
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from example import EXAMPLES, load
from numba import config

import ampi

device = load("device", "gpu")
resonances = load("resonances", "gpu")
in_python = pytest.mark.skipif(not config.DISABLE_JIT, reason="runs where nothing is compiled: see test_in_python")
compiled = pytest.mark.skipif(config.DISABLE_JIT, reason="Numba compiles nothing")


def in_a_process(*command, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, command)], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@compiled
def test_in_python():
    """Derivatives are compared in a process in which nothing is compiled, which would take far longer."""
    in_a_process("-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, NUMBA_DISABLE_JIT="1")


# ------------------------------------------------------------------------------------------------------ a card


def test_no_card(monkeypatch):
    monkeypatch.setattr(device.cuda, "is_available", lambda: False)
    assert device.device("cpu") == "cpu"
    with pytest.raises(argparse.ArgumentTypeError, match="no card with a CUDA driver"):
        device.device("cuda")


@compiled
def test_comparison_in_the_simulator():
    """With a card, kernels and adjoints run there as well, and are compared: here with Numba's simulator."""
    program = EXAMPLES / "gpu" / "docking.py"
    simulated = {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    text = in_a_process(program, "--poses", "2", "--device", "cuda", **simulated)
    differences = re.search(r"from the processor (\S+), of the adjoint (\S+)", text)
    assert max(map(float, differences.groups())) < 1e-12


# -------------------------------------------------------------------------------------------------- resonances


@pytest.fixture(scope="module")
def small():
    """Few poles, and the events of a few energies; one is near a pole."""
    tables, others = resonances.data(poles=12, windows=4)
    energies, materials = resonances.events(12)
    return tables, others, energies, materials


@in_python
@pytest.mark.parametrize("cold", [False, True])
def test_resonances(small, cold):
    """Cross sections are those of NumPy; gradients, those of tangents and of differences of NumPy's."""
    tables, *given = small
    given.append(cold)
    value, gradients = ampi.value_and_grad(resonances.total)(tables, *given)
    expected = resonances.reference(tables, *given)
    np.testing.assert_allclose(ampi.value(resonances.sections(tables, *given)), expected, rtol=1e-9)
    assert value == pytest.approx(expected.sum(), rel=1e-9)
    draw = np.random.default_rng(1)
    directions = tuple(draw.standard_normal(t.shape) * t for t in tables)
    tangent = float(ampi.jvp(lambda t: resonances.total(t, *given), (tables,), (directions,))[1])
    products = [(np.conj(g) * d).real for g, d in zip(gradients, directions)]
    scale = sum(np.abs(p).sum() for p in products)
    assert abs(sum(p.sum() for p in products) - tangent) < 1e-11 * scale
    up, down = (
        resonances.reference([t + s * 1e-6 * d for t, d in zip(tables, directions)], *given).sum() for s in (1, -1)
    )
    assert abs((up - down) / 2e-6 - tangent) < 1e-6 * scale


@compiled
@pytest.mark.parametrize(
    ("lookups", "cold"), [(1000, False), *(pytest.param(*case, marks=pytest.mark.slow) for case in
                                           [(10_000, False), (1000, True), (10_000, True)])]
)  # fmt: skip
def test_checksum_of_resonances(lookups, cold):
    tables, others = resonances.data()
    found = ampi.value(resonances.sections(tables, others, *resonances.events(lookups), cold))
    assert resonances.checksum(found) == resonances.CHECKSUMS[lookups, cold]


@compiled
@pytest.mark.slow
def test_program_of_resonances(mpiexec, tmp_path):
    picture = tmp_path / "resonances.png"
    done = mpiexec(1, EXAMPLES / "gpu" / "resonances.py", "--lookups", "1000", "--picture", picture, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checksum 3533; RSBench: 3533" in done.stdout
    assert picture.stat().st_size > 3000
