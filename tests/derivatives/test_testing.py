"""The tests that users run must pass for right derivatives and fail for wrong ones."""

import numpy as np
import pytest

import ampi
import ampi.numpy as anp
from ampi.testing import dot_test, jvp_test, taylor_test

X = np.linspace(0.2, 0.9, 6)


def wrong_by(relative):
    """A sine whose adjoint is wrong by a relative amount."""

    @ampi.custom_vjp
    def sine(x):
        return np.sin(x)

    sine.defvjp(lambda x: (np.sin(x), x), lambda x, g: ((1.0 + relative) * np.cos(x) * g,))
    return sine


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128, np.complex64])
def test_right_derivatives_pass(dtype):
    x = X.astype(dtype) * (1 + 0.5j if np.dtype(dtype).kind == "c" else 1)
    f = lambda x, p: {"y": np.sin(x) * p[0], "z": (x[1:] * x[:-1]).sum(), "n": 3}
    result = dot_test(f, x, (2.0, None))
    assert result.passed and "passed" in str(result)
    assert taylor_test(lambda x: np.sum(np.abs(np.sin(x)) ** 2), x, verbose=False).passed
    result = dot_test(f, x, (2.0, None), mode="forward")
    assert result.passed and "forward mode" in str(result)
    result = jvp_test(f, x, (2.0, None))
    assert result.passed and "passed" in str(result)


def test_modes_that_disagree_fail():
    sine = wrong_by(1e-8)
    sine.defjvp(lambda x, x_dot: (np.sin(x[0]), np.cos(x[0]) * x_dot[0]))
    with pytest.raises(AssertionError, match="FAILED"):
        jvp_test(sine, X)
    assert dot_test(sine, X, mode="forward").passed
    with pytest.raises(ValueError, match="mode"):
        dot_test(np.sin, X, mode="both")


def test_linear_functions_pass():
    assert taylor_test(lambda x: (3.0 * x).sum(), X, verbose=False).passed
    assert dot_test(lambda x: 3.0 * x[::-1], X).passed


@pytest.mark.parametrize("relative", [1.0, 1e-2, 1e-5])
def test_wrong_derivatives_fail(relative):
    f = wrong_by(relative)
    with pytest.raises(AssertionError, match="FAILED"):
        dot_test(f, X)
    with pytest.raises(AssertionError, match="FAILED"):
        taylor_test(lambda x: f(x).sum(), X, verbose=False)
    assert not dot_test(f, X, check=False).passed


def test_wrong_derivatives_in_single_precision_fail():
    f = wrong_by(0.1)
    with pytest.raises(AssertionError, match="FAILED"):
        dot_test(f, X.astype(np.float32))
    with pytest.raises(AssertionError, match="FAILED"):
        taylor_test(lambda x: f(x).sum(), X.astype(np.float32), verbose=False)


def test_a_kink_fails():
    with pytest.raises(AssertionError, match="FAILED"):
        dot_test(lambda x: np.where(x > X, 2.0 * x, x), X)


def test_directions_and_seeds():
    f = lambda x, y: (x * y * y).sum()
    first = taylor_test(f, X, X, direction=(np.ones(6), np.zeros(6)), verbose=False)
    assert first.passed and max(first.first) <= first.floor
    assert dot_test(f, X, X, seed=1).tangent != dot_test(f, X, X, seed=2).tangent
    with pytest.raises(ValueError, match="structure"):
        dot_test(f, X, X, direction=(np.ones(5), np.ones(6)))
    with pytest.raises(ValueError, match="nothing is tested"):
        dot_test(lambda x: None, X)


def test_the_table_is_printed(capsys):
    taylor_test(rosenbrock, X)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Taylor test: passed" and len(lines) == 15
    assert lines[-1].split()[-1].startswith("2.0")


def test_second_order_is_compared_with_differences_of_gradients(capsys):
    assert taylor_test(rosenbrock, X, order=2).passed
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Taylor test of second order: passed" and "|g(x+hv)-g(x)|" in lines[1]
    assert lines[-1].split()[-1].startswith("2.0")
    assert taylor_test(lambda x: np.sum(np.abs(x) ** 4), X * (1 + 0.5j), verbose=False, order=2).passed
    assert taylor_test(lambda x: (x * x).sum(), X, verbose=False, order=2).passed  # nothing but rounding
    with pytest.raises(ValueError, match="order must be 1 or 2"):
        taylor_test(rosenbrock, X, order=3)


@pytest.mark.parametrize("relative", [1e-2, 1e-5])
def test_wrong_second_derivatives_fail(relative):
    sine = ampi.custom_vjp(lambda x: np.sin(x))
    sine.defvjp(lambda x: (np.sin(x), x), lambda x, g: (anp.cos(x) * g,))
    sine.defjvp(lambda x, x_dot: (np.sin(x[0]), (1.0 + relative) * np.cos(x[0]) * x_dot[0]))
    f = lambda x: (sine(x) ** 2).sum()
    assert taylor_test(f, X, verbose=False).passed
    with pytest.raises(AssertionError, match="of second order: FAILED"):
        taylor_test(f, X, verbose=False, order=2)


def rosenbrock(x):
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def ring(x, comm):
    """Each rank multiplies what its left neighbour sends by its own."""
    got = anp.empty_like(x)
    comm.Sendrecv(x, (comm.rank + 1) % comm.size, recvbuf=got, source=(comm.rank - 1) % comm.size)
    return got * x


@pytest.mark.mpi(min_size=2)
def test_several_ranks():
    comm = ampi.COMM_WORLD
    x = X + 0.1 * comm.rank
    assert dot_test(lambda x: ring(x, comm), x).passed
    taylor_test(lambda x: ring(x, comm).sum(), x, verbose=False)

    def replicated(x):
        total = anp.empty(1)
        comm.Allreduce(ring(x, comm).sum().reshape(1), total)
        return total[0]

    for order in (1, 2):
        taylor_test(lambda x: (ring(x, comm) ** 2).sum(), x, verbose=False, order=order)
        taylor_test(replicated, x, objective="replicated", verbose=False, order=order)
    counted_once = ampi.grad(replicated, objective="replicated")(x)
    np.testing.assert_allclose(ampi.grad(replicated)(x), comm.size * counted_once)


@pytest.mark.mpi(min_size=3)
def test_a_part_of_the_ranks():
    world = ampi.COMM_WORLD
    comm = world.Split(world.rank == 0, world.rank)
    x = X + 0.1 * comm.rank
    assert dot_test(lambda x: ring(x, comm), x, comm=comm).passed


@pytest.mark.mpi(min_size=2)
def test_an_error_on_one_rank_fails_on_all():
    comm = ampi.COMM_WORLD
    f = wrong_by(0.1 if comm.rank == 1 else 0.0)
    with pytest.raises(AssertionError, match="FAILED"):
        dot_test(lambda x: ring(f(x), comm), X)


def test_what_has_no_derivative_stays_as_it_is():
    f = lambda options, x: anp.sin(x["field"]) * options["power"] if options["name"] == "sine" else None
    options = {"power": 3, "name": "sine", "mask": X > 0.5}
    assert dot_test(f, options, {"field": X}).passed
    assert taylor_test(lambda *given: f(*given).sum(), options, {"field": X}, verbose=False).passed


@pytest.mark.mpi(min_size=2)
def test_both_groups_of_an_intercommunicator():
    world = ampi.COMM_WORLD
    half = world.Split(world.rank % 2)
    inter = half.Create_intercomm(0, world, 1 - world.rank % 2)

    def program(x, p):
        y = anp.zeros(6)
        inter.Allreduce(anp.sin(x) * p, y)
        return y * y, x

    assert dot_test(program, X + world.rank, 1.5, comm=inter).passed
    assert taylor_test(lambda x: anp.sum(program(x, 2.0)[0]), X + world.rank, comm=inter, verbose=False).passed
    inter.Free()
    half.Free()
