"""Kernels in second order: symmetry and differences of gradients for the corpus, called as in a user's program."""

import numpy as np
import pytest
from second_check import check_at_minimum, check_second, objective_of
from test_corpus import CORPUS
from test_kernel_forward import SOME, arguments_of, independents, program

import ampi

# Kernels without a second derivative at a kink, or whose differences of gradients are too rough.
ROUGH = {"newton", "while_in_loop"}


def check(name, dtype=np.float64):
    """Check the identities, or that an error says what has no second derivative."""
    values = arguments_of(name, dtype)
    f = program(ampi.kernel(CORPUS[name].function), values)
    try:
        check_at_minimum(f, list(independents(values)), 1e-10)
        check_second(objective_of(f), list(independents(values)), 1e-10, rough=1.0 if name in ROUGH else 1e-6)
    except ampi.ActivityError as error:
        assert "no second derivative yet" in str(error)
        return False
    return True


LONG = {  # compile for ten seconds to minutes
    *(
        "arrays: cholesky_factors",
        "arrays: choices",
        "arrays: orders",
        "language: filtered_states",
        "arrays: fancy_indices",
        "functions: elementwise_functions",
        "language: list_after_its_comprehension",
        "functions: covariances",
        "arrays: other_products",
        "functions: least_squares",
        "functions: other_places",
        "arrays: any_steps_of_-1",
    ),
}


IN_BRANCHES = [pytest.param("language: two_at_a_time", marks=pytest.mark.slow), "language: chosen_in_a_branch"]
"""Kernels in whose adjoints one branch makes an array that a later branch reads."""


@pytest.mark.parametrize("name", [*(n for n in SOME[5::100] if n not in LONG), *IN_BRANCHES])
def test_second_order_of_kernels(name):
    check(name)


@pytest.mark.slow
@pytest.mark.timeout(600)  # programs of linear systems take a minute to compile
@pytest.mark.parametrize("name", SOME)
def test_second_order_of_each_kernel(name):
    check(name)


@ampi.kernel
def flow(u, v, k):
    for i in range(1, len(u) - 1):
        v[i] = u[i] + k * u[i] * (u[i - 1] - 2.0 * u[i] + u[i + 1])
    v[0], v[-1] = u[0], u[-1]


@ampi.kernel(parallel=True)
def flow_on_threads(u, v, k):
    for i in ampi.prange(1, len(u) - 1):
        v[i] = u[i] + k * u[i] * (u[i - 1] - 2.0 * u[i] + u[i + 1])
    v[0], v[-1] = u[0], u[-1]


@pytest.mark.parametrize("kernel", [flow, pytest.param(flow_on_threads, marks=pytest.mark.slow)])
def test_time_loops_that_swap_their_arrays(kernel):
    """Overwritten arrays are restored with their tangents from saved values, without a pass over memory."""

    def f(u, k):
        u = u.copy()
        v = ampi.numpy.zeros_like(u)
        for _ in range(5):
            kernel(u, v, k)
            u, v = v, u
            v[2:4] *= u[1:3]
        return (u * u).sum()

    check_second(f, [np.sin(np.linspace(0.1, 3.0, 12)), np.array(0.1)], 1e-12)


def test_kernel_with_a_tangent_of_its_own():
    @ampi.custom_jvp
    @ampi.kernel
    def point(a):  # the x with x = a cos x
        x = 0.5
        for _ in range(200):
            x = a * np.cos(x)
        return x

    @point.defjvp
    def point_jvp(primals, tangents):
        (a,), (a_dot,) = primals, tangents
        x = point(a)
        return x, a_dot * np.cos(x) / (1.0 + a * np.sin(x))

    try:
        check_second(lambda a: point(a) ** 2, [np.array(0.7)], 1e-12)
    except ampi.ActivityError as error:
        assert "no second derivative yet" in str(error) or "no tangent yet" in str(error)


def test_calls_are_prepared_anew_for_tapes_of_other_kinds():
    """The same arrays in an unrecorded call, on a tape that is swept, one that is walked, and in second order."""
    u, v = ampi.numpy.zeros(6), ampi.numpy.zeros(6)

    def f(x):
        u[...] = x
        flow(u, v, 0.1)
        return (v * v).sum()

    x, direction = np.linspace(0.5, 1.0, 6), np.ones(6)
    with ampi.Tape() as tape:
        y = f(tape.watch(x))  # so that a tape is alive
        with ampi.passive():
            f(x)
    flow(u, v, 0.1)
    gradient = ampi.grad(f)(x)
    for _ in range(2):
        _, push = ampi.linearize(f, x)
        np.testing.assert_allclose(push(direction), gradient @ direction, rtol=1e-13)
        flow(u, v, 0.1)
        product = ampi.hvp(f, x, direction)
        h = 1e-5
        differences = (ampi.grad(f)(x + h * direction) - ampi.grad(f)(x - h * direction)) / (2 * h)
        np.testing.assert_allclose(product, differences, rtol=1e-8)
        flow(u, v, 0.1)
    del y
