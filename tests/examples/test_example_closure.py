"""A network of PyTorch in a solver, trained through messages and time steps."""

import numpy
import pytest
from example import few_ranks, load, started

torch = pytest.importorskip("torch")
closure = load("closure", "training")
CELLS, STEPS = 10, 3


def serial_misfit(used):
    """The sum of the squared temperatures at the end, in PyTorch alone."""
    u = torch.cos(torch.pi * torch.arange(CELLS, dtype=torch.float64) / (CELLS - 1)) ** 2
    for _ in range(STEPS):
        padded = torch.cat([u[:1], u, u[-1:]])
        means = (padded[1:] + padded[:-1]) / 2
        flux = used(means[:, None])[:, 0] * torch.diff(padded)
        u = u + 0.5 * torch.diff(flux)
    return (u**2).sum()


@pytest.mark.mpi
def test_gradient_is_that_of_pytorch_on_one_rank():
    comm, np = closure.comm, closure.np
    used = closure.network()

    def misfit(w):
        return np.sum(closure.rod(CELLS, STEPS, lambda u: used(u[:, np.newaxis], parameters=w)[:, 0]) ** 2)

    value, gradient = closure.ampi.value_and_grad(misfit)(used.parameters())
    torch.manual_seed(1)
    module = torch.nn.Sequential(
        torch.nn.Linear(1, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1), torch.nn.Softplus()
    ).double()
    expected = serial_misfit(module)
    assert comm.allreduce(value) == pytest.approx(expected.item(), rel=1e-13)
    for found, known in zip(gradient.values(), torch.autograd.grad(expected, list(module.parameters()))):
        numpy.testing.assert_allclose(comm.allreduce(found), known.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.mpi
def test_law_is_learned():
    few_ranks()
    learned, found = closure.train(16, 25, 25)
    u = numpy.linspace(0.3, 0.7, 5)  # the temperatures of most cells for most of the time
    assert found.fun < 0.2 and numpy.max(numpy.abs(learned(u) - closure.law(u))) < 0.05, found


def test_program(mpiexec, tmp_path):
    pytest.importorskip("matplotlib")
    options = ("--cells", "10", "--steps", "5", "--iterations", "5")
    printed = started(mpiexec, 2, "closure", "training", tmp_path / "closure.png", *options)
    assert "largest error of the law" in printed
