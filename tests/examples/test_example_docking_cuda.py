"""Docking energies in a CUDA kernel: against NumPy, and the dot product of tangent and adjoint."""

import numpy as np
import pytest
from example import EXAMPLES, load

example = load("docking", "gpu")


def test_energies_and_derivatives():
    *given, protein_type, ligand_type = example.made_up(20, 30, 5)
    of = lambda *x: example.total(*x, protein_type, ligand_type)
    value, gradients = example.ampi.value_and_grad(of, argnums=(0, 1, 2, 3))(*given)
    assert value == pytest.approx(example.reference(*given, protein_type, ligand_type), rel=1e-12)
    draw = np.random.default_rng(1)
    directions = [draw.normal(size=g.shape) for g in given]
    tangent = float(example.ampi.jvp(of, tuple(given), tuple(directions))[1])
    products = [np.sum(g * d) for g, d in zip(gradients, directions)]
    assert sum(products) == pytest.approx(tangent, rel=1e-11)
    up, down = (
        example.reference(*(g + s * 1e-7 * d for g, d in zip(given, directions)), protein_type, ligand_type)
        for s in (1, -1)
    )
    assert tangent == pytest.approx((up - down) / 2e-7, rel=1e-5)


@pytest.mark.slow
def test_program(mpiexec):
    done = mpiexec(1, EXAMPLES / "gpu" / "docking.py", "--poses", "32")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [
        line.split() for line in done.stdout.splitlines() if line.startswith(("protein", "ligand", "field", "poses"))
    ]
    assert len(rows) == 4
    for _, adjoint, tangent, _quotient in rows:
        assert float(adjoint) == pytest.approx(float(tangent), rel=1e-10)
