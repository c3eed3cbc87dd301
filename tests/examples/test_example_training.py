"""Data-parallel training, against the same loss on one rank, and by what the network has learned."""

import numpy as np
import pytest
from example import complex_step, few_ranks, load, started

training = load("training")
POINTS, WIDTH = 30, 3


def serial_loss(weights):
    x, label = training.spirals(POINTS)
    w1, b1, w2, b2, w3, b3 = np.split(weights, np.cumsum([int(np.prod(s)) for s in training.shapes(WIDTH)])[:-1])
    hidden = np.tanh(4 * (np.tanh(4 * (x @ w1.reshape(2, -1) + b1)) @ w2.reshape(WIDTH, -1) + b2))
    odds = hidden @ w3 + b3
    return np.mean(np.log(1 + np.exp(odds)) - label * odds) + 1e-5 * np.sum(weights**2)


@pytest.mark.mpi
def test_gradient_is_that_of_complex_step():
    comm = training.comm
    x, label = training.spirals(POINTS)
    weights = training.begin(WIDTH)
    mine = slice(comm.rank, None, comm.size)
    value, gradient = training.ampi.value_and_grad(training.loss)(weights, x[mine], label[mine], WIDTH, POINTS)
    assert comm.allreduce(value) == pytest.approx(serial_loss(weights), rel=1e-13)
    np.testing.assert_allclose(comm.allreduce(gradient), complex_step(serial_loss, weights), rtol=1e-11, atol=1e-15)


@pytest.mark.mpi
def test_network_learns():
    few_ranks()
    weights, found = training.train(200, 8, 200)
    assert found.fun < 0.1
    assert training.accuracy(weights, 8) > 0.95


def test_program(mpiexec, tmp_path):
    pytest.importorskip("matplotlib")
    options = ("--points", "60", "--width", "4", "--steps", "20")
    printed = started(mpiexec, 3, "training", "training", tmp_path / "training.png", *options)
    assert "right of unseen points" in printed
