"""`grad`, `value_and_grad`, `vjp` and `custom_vjp`, on one rank and on several."""

import collections

import numpy as np
import pytest
from derivative_check import check_adjoint
from mpi4py import MPI

import ampi
import ampi.numpy as anp

X = np.linspace(0.2, 0.9, 5)


def rosenbrock(x):
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def rosenbrock_gradient(x):
    g = np.zeros_like(x)
    g[:-1] += -400.0 * x[:-1] * (x[1:] - x[:-1] ** 2) - 2.0 * (1.0 - x[:-1])
    g[1:] += 200.0 * (x[1:] - x[:-1] ** 2)
    return g


def test_grad_is_the_closed_form():
    g = ampi.grad(rosenbrock)(X)
    assert type(g) is np.ndarray
    np.testing.assert_allclose(g, rosenbrock_gradient(X), rtol=1e-13)
    value, again = ampi.value_and_grad(rosenbrock)(X)
    assert value == rosenbrock(X) and type(value) is np.float64
    np.testing.assert_array_equal(g, again)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [np.asarray, anp.array])
def test_arguments_are_left_alone_and_dtypes_kept(dtype, make):
    x = make(X.astype(dtype))
    kept = np.array(x)

    def f(x):
        x *= x
        return x.sum()

    g = ampi.grad(f)(x)
    assert g.dtype == dtype and type(g) is np.ndarray
    np.testing.assert_allclose(g, 2 * kept, rtol=1e-6)
    np.testing.assert_array_equal(x, kept)


def test_complex_gradients_pair_with_the_real_inner_product():
    z = X + 1j * X[::-1]
    np.testing.assert_allclose(ampi.grad(lambda z: np.sum(np.abs(z) ** 2))(z), 2 * z)
    np.testing.assert_allclose(ampi.grad(lambda z: (z * z).sum().real)(z), 2 * np.conj(z))


def test_argnums():
    f = lambda a, b, c=1.0: (a * b).sum() * c
    np.testing.assert_array_equal(ampi.grad(f, 1)(X, 2 * X), X)
    a_bar, b_bar = ampi.grad(f, (0, 1))(X, 2 * X, c=3.0)
    np.testing.assert_allclose(a_bar, 6 * X)
    np.testing.assert_allclose(b_bar, 3 * X)
    (only,) = ampi.grad(f, (0,))(X, 2 * X)
    np.testing.assert_array_equal(only, 2 * X)


State = collections.namedtuple("State", "u v")


def test_structures():
    def f(p):
        return p["a"] * (p["s"].u * p["s"].v[0]).sum() + p["l"][1][0] ** 2

    p = {"a": 2.0, "s": State(X, [X]), "l": [np.ones(2), (3.0, None)]}
    g = ampi.grad(f)(p)
    assert g["a"] == (X * X).sum() and np.ndim(g["a"]) == 0
    assert type(g["s"]) is State and type(g["s"].v) is list
    np.testing.assert_allclose(g["s"].u, 2 * X)
    np.testing.assert_array_equal(g["l"][0], 0.0)
    assert g["l"][1] == (6.0, None)


@pytest.mark.parametrize(
    "constant",
    [
        lambda x: anp.ones(3).sum(),
        lambda x: anp.sum(ampi.value(x)),
        lambda x: anp.asarray(np.sum(np.ones(3))),
        lambda x: anp.sum(x > 0) * anp.ones(()),
    ],
)
def test_a_function_of_nothing_has_gradient_zero_and_a_warning(constant):
    for differentiate in (ampi.grad, ampi.value_and_grad):
        with pytest.warns(ampi.ActivityWarning, match="depends on nothing that was differentiated") as caught:
            found = differentiate(constant)(X)
        assert [w.filename for w in caught] == [__file__]
        np.testing.assert_array_equal(found if differentiate is ampi.grad else found[1], 0.0)
    y, pullback = ampi.vjp(constant, X)
    with pytest.warns(ampi.ActivityWarning, match="zeros for what is meant") as caught:
        np.testing.assert_array_equal(pullback(np.ones(np.shape(y)))[0], 0.0)
    assert [w.filename for w in caught] == [__file__]


def test_constant_outputs_without_a_seed_do_not_warn(recwarn):
    _, pullback = ampi.vjp(lambda x: (x * x, anp.ones(2), None, 3), X)
    np.testing.assert_array_equal(pullback((np.ones(len(X)), np.zeros(2), None, 0))[0], 2 * X)
    assert not [w for w in recwarn if w.category is ampi.ActivityWarning]


@pytest.mark.parametrize(
    "x",
    [[1.0, 2.0], [1, 2.5], [[1.0, 2.0], [3.0, 4.0]], [1.0, 2j], [np.float32(1), np.float32(2)], 3.0, np.ones(2)],
    ids=repr,
)
def test_arguments_are_what_watch_takes(x):
    with ampi.Tape() as tape:
        watched = tape.watch(x)
        y = anp.sum(anp.abs(watched**2))
    expected = tape.gradient(y, watched)
    found = ampi.grad(lambda x: anp.sum(anp.abs(x**2)))(x)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype and np.shape(found) == np.shape(expected)
    inside = ampi.grad(lambda p: anp.sum(anp.abs(p["a"][0] ** 2)))({"a": (x, [X])})
    np.testing.assert_array_equal(inside["a"][0], expected)
    np.testing.assert_array_equal(inside["a"][1][0], 0 * X)


def test_wrong_results_are_named():
    with pytest.raises(ampi.TapeError, match="one real number"):
        ampi.grad(lambda x: x)(X)
    with pytest.raises(ampi.TapeError, match="one real number"):
        ampi.grad(lambda x: (x * 1j).sum())(X)
    with pytest.raises(ampi.ActivityError, match=r"ampi\.numpy"):
        ampi.grad(lambda x: 3.0)(X)
    with pytest.raises(ampi.TapeError, match="NoneType"):
        ampi.grad(lambda x: None, objective="replicated")(X)
    with pytest.raises(ValueError, match="objective"):
        ampi.grad(rosenbrock, objective="mean")
    with pytest.raises(ampi.ActivityError, match="int"):
        ampi.grad(rosenbrock)(np.arange(5))


def test_gradient_inside_a_recorded_program_is_an_error():
    with ampi.Tape() as tape:
        x = tape.watch(X)
        with pytest.raises(ampi.TapeError, match="outer tape"):
            ampi.grad(lambda a: (a * x).sum())(X)
        for inner in (ampi.grad(lambda a: a.sum()), lambda a: ampi.vjp(np.sin, a)):
            with pytest.raises(ampi.TapeError, match="outer tape"):
                inner(x * x)
            inner(ampi.value(x))


def test_no_objective_at_all_is_an_error():
    for objective in ("sum", "replicated", "root"):
        with pytest.raises(ampi.TapeError, match="NoneType"):
            ampi.grad(lambda x: None, objective=objective)(X)


def test_vjp():
    y, pullback = ampi.vjp(lambda x, s: (np.sin(x) * s["k"], {"t": x.sum()}, None), X, {"k": 2.0})
    assert type(y[0]) is np.ndarray and y[2] is None and y[1]["t"] == X.sum()
    for _ in range(2):
        x_bar, s_bar = pullback((np.ones(5), {"t": 3.0}, None))
        np.testing.assert_allclose(x_bar, 2 * np.cos(X) + 3.0)
        assert s_bar["k"] == pytest.approx(np.sin(X).sum())
    with pytest.raises(ampi.TapeError, match="y_bar"):
        pullback((np.ones(5),))


# --------------------------------------------------------------------------------------------------- custom_vjp


def test_custom_adjoint_is_used():
    @ampi.custom_vjp
    def clipped(x, limit):
        """Identity whose adjoint is limited."""
        return x * 1.0

    clipped.defvjp(lambda x, limit: (x * 1.0, limit), lambda limit, g: (np.clip(g, -limit, limit), None))
    assert clipped.__name__ == "clipped" and "Identity" in clipped.__doc__
    np.testing.assert_array_equal(clipped(X, 1.0), X)
    g = ampi.grad(lambda x: (clipped(x, 0.5) * np.array([3.0, 0.1, -7.0, 0.2, 1.0])).sum())(X)
    np.testing.assert_array_equal(g, [0.5, 0.1, -0.5, 0.2, 0.5])


def test_custom_adjoint_in_place():
    @ampi.custom_vjp
    def cube(y):
        y[...] = y**3
        return y

    def forward(y):
        old = y * 1.0
        y[...] = y**3
        return y, old

    cube.defvjp(forward, lambda old, g: (3.0 * old**2 * g,))

    def program(x):
        y = x * x
        z = y * y
        w = cube(y)
        assert w is y
        return z * y

    def plain(x):
        y = x * x
        return y * y * y**3

    x_bar = ampi.vjp(program, X)[1](np.ones(5))[0]
    np.testing.assert_allclose(x_bar, ampi.vjp(plain, X)[1](np.ones(5))[0], rtol=1e-12)


def test_custom_residuals_keep_their_values():
    @ampi.custom_vjp
    def square(x):
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, g: (2.0 * x * g,))

    def program(x):
        y = x * 1.0
        z = square(y)
        y[:] = 100.0
        return z

    np.testing.assert_allclose(ampi.vjp(program, X)[1](np.ones(5))[0], 2 * X)


def test_custom_residual_that_forward_itself_overwrites_later():
    @ampi.custom_vjp
    def double(x):
        x *= 2.0
        return x

    def forward(x):
        x *= 2.0
        return x, x

    double.defvjp(forward, lambda doubled, g: (2.0 * g + 0.0 * doubled,))

    def program(x):
        y = x * x
        s = (y * y).sum()
        double(y)
        return s + y.sum()

    np.testing.assert_allclose(ampi.grad(program)(X), 4 * X**3 + 4 * X)


def test_custom_identity_does_not_alias():
    @ampi.custom_vjp
    def reverse(x):
        return x

    reverse.defvjp(lambda x: (x, None), lambda _, g: (-g,))
    np.testing.assert_array_equal(ampi.grad(lambda x: (reverse(x) * 3.0 + x).sum())(X), -2.0)


def test_custom_structures():
    @ampi.custom_vjp
    def f(p, n):
        return {"s": p[0] * n, "t": [p[1].sum()]}

    f.defvjp(lambda p, n: (f.f(p, n), n), lambda n, g: ((g["s"] * n, np.full(5, g["t"][0])), None))
    check_adjoint(lambda a, b: tuple(_values(f((a * 1.0, b * 1.0), 3))), [X, X])


def _values(result):
    return result["s"], result["t"][0]


def test_custom_mistakes_are_named():
    @ampi.custom_vjp
    def f(x):
        return x * 2.0

    with pytest.raises(TypeError, match="defvjp"):
        ampi.grad(lambda x: f(x).sum())(X)
    f.defvjp(lambda x: (x * 2.0, None), lambda _, g: (2.0 * g[:2],))
    with pytest.raises(ampi.TapeError, match="argument 0 of shape"):
        ampi.grad(lambda x: f(x).sum())(X)
    f.defvjp(lambda x: (x * 2.0, None), lambda _, g: 2.0 * g)
    with pytest.raises(ampi.TapeError, match="tuple"):
        ampi.grad(lambda x: f(x).sum())(X)


# ------------------------------------------------------------------------------------------------- several ranks


def _total(x, comm):
    mine, total = np.sum(x * x).reshape(1), anp.empty(1)
    comm.Allreduce(mine, total)
    return total[0]


@pytest.mark.filterwarnings("ignore:all . ranks returned")
@pytest.mark.mpi(min_size=2)
def test_objectives():
    comm = ampi.COMM_WORLD
    x = X + comm.rank
    total = comm.allreduce(float((x * x).sum()))
    for objective, factor in (("replicated", 1.0), ("root", 1.0), ("sum", comm.size)):
        value, g = ampi.value_and_grad(lambda x: _total(x, comm), objective=objective)(x)
        assert value == pytest.approx(total)
        np.testing.assert_allclose(g, factor * 2 * x)


@pytest.mark.mpi(min_size=2)
def test_root_ignores_what_others_return():
    comm = ampi.COMM_WORLD

    def f(x):
        total = _total(x, comm)
        return total if comm.rank == 0 else other

    for other in (None, 0.0, X, "nothing"):
        value, g = ampi.value_and_grad(f, objective="root")(X)
        assert comm.rank == 0 or value is other
        np.testing.assert_allclose(g, 2 * X)


@pytest.mark.mpi(min_size=2)
def test_sum_of_the_ranks_parts():
    comm = ampi.COMM_WORLD

    def f(x):
        _total(x, comm)
        return (x * comm.rank).sum() if comm.rank else None

    np.testing.assert_allclose(ampi.grad(f)(X), comm.rank)


@pytest.mark.mpi(min_size=2)
def test_replicated_values_must_agree_on_every_rank():
    with pytest.raises(ampi.CommunicationError, match=r"rank 1: "):
        ampi.grad(lambda x: (x * (1.0 + ampi.COMM_WORLD.rank)).sum(), objective="replicated")(X)


@pytest.mark.mpi(min_size=2)
def test_replicated_on_a_part_of_the_ranks():
    comm = ampi.COMM_WORLD.Split(ampi.COMM_WORLD.rank % 2)
    g = ampi.grad(lambda x: _total(x, comm), objective="replicated", comm=comm)(X)
    np.testing.assert_allclose(g, 2 * X)


@pytest.mark.mpi(min_size=2)
def test_custom_adjoint_that_communicates():
    comm = MPI.COMM_WORLD

    @ampi.custom_vjp
    def total(x):
        return comm.allreduce(float(ampi.value(x).sum()))

    total.defvjp(lambda x: (total.f(x), x.shape), lambda shape, g: (np.full(shape, comm.allreduce(float(g))),))

    def f(x):
        # On the other ranks the argument carries no derivative, yet all take part in the adjoint.
        mine = x if comm.rank == 0 else anp.ones(5)
        return total(mine * 2.0) * (comm.rank + 1.0)

    g = ampi.grad(f)(X)
    weight = comm.size * (comm.size + 1) / 2
    np.testing.assert_allclose(g, 2.0 * weight if comm.rank == 0 else 0.0)
