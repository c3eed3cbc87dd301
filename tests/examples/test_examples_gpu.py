"""Examples of CUDA kernels: resonances (RSBench), Maxwell's equations, LULESH; and examples on a GPU."""

import argparse
import re

import numpy as np
import pytest
from example import EXAMPLES, load
from uncompiled import compiled, in_a_process, in_python, run_in_python

import ampi

device = load("device", "gpu")
resonances = load("resonances", "gpu")
maxwell = load("maxwell", "gpu")


@compiled
def test_in_python(request):
    """Derivatives are compared in a process in which nothing is compiled, which would take far longer."""
    run_in_python(__file__, request)


# ------------------------------------------------------------------------------------------------------ with a GPU


def test_no_gpu(monkeypatch):
    monkeypatch.setattr(device.cuda, "is_available", lambda: False)
    assert device.device("cpu") == "cpu"
    with pytest.raises(argparse.ArgumentTypeError, match="no GPU with a CUDA driver"):
        device.device("cuda")


@compiled
def test_comparison_in_the_simulator():
    """With a GPU, kernels and adjoints also run there, and are compared; here with Numba's simulator."""
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


# --------------------------------------------------------------------------------------------------- Maxwell


def test_convergence():
    """NumPy's version converges with the order of the method, and loses little energy."""
    errors = []
    for cells in (1, 2):
        mesh = maxwell.Mesh(cells)
        start, empty = maxwell.wave(mesh, 0.0), np.ones(len(mesh.points))
        end = maxwell.reference(start, empty, mesh, 0.3)
        errors.append(abs(end - maxwell.wave(mesh, 0.3)).max())
        before, after = (maxwell.energies(q, empty, mesh).sum() for q in (start, end))
        assert before * (1 - 5e-3) < after <= before == pytest.approx(1 / 8, rel=1e-2)
    assert np.log2(errors[0] / errors[1]) > 4 and errors[1] < 0.02


@in_python
def test_gradient_of_maxwell():
    """One step in a box of 6 elements, against NumPy, complex step and the tangent."""
    mesh, draw = maxwell.Mesh(1), np.random.default_rng(2)
    q, permittivity = draw.standard_normal((6, 6, 35)), draw.uniform(1, 2, 6)
    time = mesh.step
    weights = draw.standard_normal(q.shape)
    of = lambda p, x: ampi.numpy.sum(weights * maxwell.run(x, p, mesh, time))
    value, gradients = ampi.value_and_grad(of, argnums=(0, 1))(permittivity, q)
    assert value == pytest.approx(np.sum(weights * maxwell.reference(q, permittivity, mesh, time)), rel=1e-11)
    moves = draw.standard_normal(6), draw.standard_normal(q.shape)
    slope = sum(float(np.sum(np.asarray(g) * d)) for g, d in zip(gradients, moves))
    assert slope == pytest.approx(float(ampi.jvp(of, (permittivity, q), moves)[1]), rel=1e-11)
    moved = q + 1e-30j * moves[1], permittivity + 1e-30j * moves[0]
    exact = np.sum(weights * maxwell.reference(*moved, mesh, time)).imag / 1e-30
    assert slope == pytest.approx(exact, rel=1e-10)


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_program_of_maxwell(mpiexec, tmp_path, precision):
    picture = tmp_path / "maxwell.png"
    options = "--time", "0.05", "--precision", precision, "--picture", picture
    done = mpiexec(1, EXAMPLES / "gpu" / "maxwell.py", *options, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("permittivity", "start"))]
    digits = 1e-3 if precision == "float32" else 1e-11
    assert len(rows) == 2 and all(float(row[1]) == pytest.approx(float(row[2]), rel=digits) for row in rows)
    assert picture.stat().st_size > 3000


# ---------------------------------------------------------------------------------------------------- LULESH


@in_python
@pytest.mark.parametrize("last", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_kernels_of_lulesh(last):
    """Some cycles, and the gradient of the last, with CUDA kernels are those with loops."""
    blast = load("blast", "gpu")
    from sedov import sensitivity
    from sedov.domain import Domain

    found = []
    for kernels in (blast.blast_kernels.formulas, blast.blast_kernels):
        blast.use(kernels)
        domain = Domain(ampi.COMM_SELF, 2)
        blast.lulesh.run(domain, 3)
        gradient = {}
        if last:
            gradient = sensitivity.gradient(domain, sensitivity.origin_energy, ["energy", "x", "v"], last).fields
        found.append([ampi.value(getattr(domain, name)) for name in sensitivity.STATE] + [*gradient.values()])
    for loops, cuda in zip(*found):
        np.testing.assert_allclose(cuda, loops, rtol=1e-9, atol=1e-12 * np.abs(loops).max())


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 8])
def test_program_of_lulesh(mpiexec, ranks):
    """The origin's energy and its gradient are those of examples/lulesh."""
    texts = []
    for program in (("gpu", "blast.py"), ("lulesh", "lulesh.py")):
        options = "-s", 4, "-i", 12, "--gradient", "origin", "--last", 4
        done = mpiexec(ranks, EXAMPLES.joinpath(*program), *options, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        texts.append([line.split() for line in done.stdout.splitlines() if "energy" in line or "largest" in line])
    assert len(texts[0]) == len(texts[1]) >= 4
    for first, second in zip(*texts):
        for word, other in zip(first, second):
            assert word == other or float(word) == pytest.approx(float(other), rel=1e-9)
