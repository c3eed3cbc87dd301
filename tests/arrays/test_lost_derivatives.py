"""Uses of active arrays that would lose derivatives: each is an error or a warning, and nothing else is."""

import warnings

import numba
import numpy as np
import pytest
from array_kinds import arguments
from derivative_check import check_adjoint

import ampi

# --------------------------------------------------------------------------------------- nothing is lost in silence


@pytest.mark.parametrize(
    "convert", [float, int, complex, lambda x: x.item(), lambda x: x.tolist(), lambda x: np.array([x])]
)
def test_leaving_an_active_array_warns_once_per_line(convert):
    def run():
        with ampi.Tape() as tape:
            x = tape.watch(np.array([1.5]))
            for _ in range(3):
                convert(x[0])

    from ampi.arrays import losses as outside

    outside._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    messages = [str(w.message) for w in caught if w.category is ampi.ActivityWarning]
    assert len(messages) == 1
    assert "ampi.value(x)" in messages[0] and "test_lost_derivatives.py" in messages[0]


def test_leaving_a_passive_array_does_not_warn():
    with ampi.Tape() as tape, warnings.catch_warnings():
        warnings.simplefilter("error")
        tape.watch(np.ones(1))
        assert float(ampi.numpy.ones(1)[0]) == 1.0
        with ampi.passive():
            assert tape.watch is not None and (2.0 * ampi.numpy.ones(2)).tolist() == [2.0, 2.0]


def test_plain_element_assignment_warns():
    plain = np.zeros(2)
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.5]))
        with pytest.warns(ampi.ActivityWarning, match="plain numpy array of shape"):
            plain[0] = x[0]


@pytest.mark.parametrize(
    "write",
    [
        lambda plain, x: np.add(x, 1.0, out=plain),
        lambda plain, x: np.sum(np.stack([x, x]), axis=0, out=plain),
        lambda plain, x: np.copyto(plain, x),
        lambda plain, x: np.add.at(plain, [0, 1, 2], x),
        lambda plain, x: np.multiply.at(plain, [0, 1, 2], x),
        lambda plain, x: np.dot(np.eye(3), x, out=plain),
        lambda plain, x: np.take(x, [0, 1, 2], out=plain),
        lambda plain, x: np.putmask(plain, plain == 0, x),
        lambda plain, x: np.put(plain, [0], x),
        lambda plain, x: np.exp(x, out=plain, where=x > 1),
        lambda plain, x: np.cumsum(x, out=plain),
        lambda plain, x: np.matmul(np.eye(3), x, out=plain),
        lambda plain, x: plain.__iadd__(x),
    ],
)
def test_active_values_do_not_enter_plain_arrays(write):
    plain = np.zeros(3)
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0, 3.0]))
        with pytest.raises(ampi.ActivityError, match=r"ampi\.numpy"):
            write(plain, x)
    np.testing.assert_array_equal(plain, 0.0)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("spacing", lambda x: np.spacing(x)),
        ("qr", lambda x: np.linalg.qr(x[:, None] * np.ones(2), "raw")),
        ("polyadd", lambda x: np.polyadd(np.poly1d([1.0, 2.0]), x)),
        ("pinv", lambda x: np.linalg.pinv(x[:, None] * x, hermitian=True)),
        ("reduce", lambda x: np.subtract.reduce(x)),
        ("pad", lambda x: np.pad(x, 1, mode="linear_ramp")),
        ("slogdet", lambda x: np.linalg.slogdet((x[:, None] * x + np.eye(3)) * (1 + 1j))),
        ("svd", lambda x: np.linalg.svd(x[:2, None] * x)),
        ("byteswap", lambda x: x.byteswap()),
        ("resize", lambda x: x.resize(5)),
        ("sign", lambda x: np.sign(x * 1j)),
    ],
)
def test_functions_without_a_rule_are_errors(name, call):
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0, 4.0]))
        with pytest.raises(ampi.ActivityError, match=name):
            call(x)
    if name != "resize":
        call(ampi.numpy.array([1.0, 2.0, 4.0]))


def test_constant_functions_pass():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.3, 2.6, 4.1]))
        y = (
            x * np.floor(x)
            + np.sign(x)
            + np.round(x)
            + x.argsort()
            + (x > 2)
            + np.isfinite(x)
            + np.searchsorted(x, 2.0)
        )
        y += np.rint(x) * np.heaviside(x, 0.5) + np.trunc(x) + x // 2 + np.zeros_like(x) + np.count_nonzero(x)
    np.testing.assert_array_equal(tape.gradient(y, x, seed=np.ones(3)), [1.0, 2.0, 4.0])


def test_scipy_ufuncs_with_and_without_rules():
    special = pytest.importorskip("scipy.special")
    for f in (special.erf, special.gammaln, special.expit, special.j0, special.i1, special.psi):
        check_adjoint(lambda x, f=f: f(x), arguments([(5,)], float), 1e-7)
    check_adjoint(special.beta, arguments([(5,), (3, 1)], float), 1e-7)
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(2))
        with pytest.raises(ampi.ActivityError, match="modstruve"):
            special.modstruve(1.0, 0.1 * x)


def test_active_values_do_not_become_objects():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        with pytest.raises(ampi.ActivityError, match="objects"):
            x.astype(object)
        with pytest.raises(ampi.ActivityError, match="objects"):
            ampi.numpy.empty(3, object)[...] = x
        with pytest.raises(ampi.ActivityError, match="objects"):
            ampi.numpy.empty(3, object)[[0, 1]] = x[0]


def test_fields_of_structured_arrays():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0, 3.0]))
        points = ampi.numpy.zeros(3, [("position", float, (2,)), ("kind", int), ("mass", np.float32)])
        points["position"][:, 1] = x * x
        points["mass"] = 2.0 * x
        points["kind"] = 7
        z = points["position"].sum() + points[["kind", "mass"]]["mass"].sum()
    np.testing.assert_array_equal(tape.gradient(z, x), [4.0, 6.0, 8.0])


def test_functions_that_work_in_their_argument_are_seen():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        c = ampi.numpy.array([3.0, np.nan, 1.0])
        d = ampi.numpy.array([3.0, 2.0, 1.0])
        y = x * c + x * d
        np.nan_to_num(c, copy=False)
        np.median(d, overwrite_input=True)
        np.copyto(dst=d, src=x)
        np.random.default_rng(0)
    np.testing.assert_array_equal(tape.gradient(y, x, seed=[1.0, 0.0, 1.0])[[0, 2]], [6.0, 2.0])
    np.testing.assert_array_equal(c, [3.0, 0.0, 1.0])


def test_random_generators_announce_their_shuffles():
    rng = ampi.numpy.random.default_rng(1)
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(4))
        c = rng.permutation(4) * 1.0
        before = ampi.value(c)
        y = x * c
        rng.shuffle(c)
        ampi.numpy.random.shuffle(c)
        with pytest.raises(ampi.ActivityError, match="shuffle"):
            rng.shuffle(x)
        for draw in (rng.normal, ampi.numpy.random.normal, rng.permutation, ampi.numpy.random.choice):
            with pytest.raises(ampi.ActivityError, match="random"):
                draw(x)
        assert rng.normal(c).shape == (4,) and rng.choice(c) in c
    np.testing.assert_array_equal(tape.gradient(y, x, seed=np.ones(4)), before)
    assert type(rng.random(3)) is ampi.ndarray and type(rng.random()) is float


def test_numpy_scalars_on_either_side():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0]))
        y = np.float64(2.0) * x[0] + 3 * x[1] + np.sum(x, axis=0) * np.int64(2)
        quotient, rest = divmod(7.0 * x, 4.0)
        z = y + (quotient * rest).sum()
        assert isinstance(y, ampi.ndarray) and isinstance(z, ampi.ndarray)
    np.testing.assert_array_equal(tape.gradient(z, x), [4.0 + 7.0, 5.0 + 21.0])


def test_round_of_an_element():
    x = ampi.numpy.array([1.26, 2.5])
    assert round(x[0]) == 1 and type(round(x[0])) is int and round(x[0], 1) == 1.3
    with pytest.raises(TypeError, match="0-d"):
        round(x)


def test_numba_functions_given_active_arrays_are_named():
    @numba.njit
    def total(x):
        return x.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total(ampi.numpy.ones(3))
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        for _ in range(2):  # also when the function is compiled already
            with pytest.warns(ampi.ActivityWarning, match=r"test_lost_derivatives.py:\d+: .*numba.* ampi\.kernel"):
                total(x)
            ampi.arrays.losses._warned.clear()


def test_ampi_numpy_makes_tracked_arrays():
    anp = ampi.numpy
    assert all(hasattr(anp, name) for name in dir(np))
    assert anp.ndarray is ampi.ndarray and anp.sin is np.sin and anp.float64 is np.float64
    for made in (
        anp.array([1.0, 2.0]), anp.zeros(2), anp.ones((2, 2)), anp.empty(1), anp.full(2, 3.0), anp.arange(3.0),
        anp.linspace(0, 1, 3), anp.eye(2), anp.asarray(np.ones(2)), anp.zeros_like(np.ones(2)), anp.r_[0.0:1.0:3j],
        anp.mgrid[0:2, 0:2], anp.meshgrid([1.0], [2.0])[0], anp.fromfunction(lambda i: i * 1.0, (3,)),
        anp.where([True], 1.0, 2.0), anp.random.rand(2), anp.linalg.inv(np.eye(2)), anp.fft.fft(np.ones(2)),
        anp.stack([np.ones(2)]), anp.loadtxt(["1 2"]), anp.full_like(np.ones(2), 1.0), anp.tri(2), anp.sum([1.0, 2.0]),
        anp.lib.stride_tricks.as_strided(np.ones(3), (2,), (8,)),
    ):  # fmt: skip
        assert isinstance(made, ampi.ndarray)
        if made.ndim:
            made[...] = made
    a = np.ones(3)
    assert np.shares_memory(anp.asarray(a), a) and not np.shares_memory(anp.array(a), a)
    assert anp.zeros(3, order="F").dtype == float and anp.asfortranarray(np.ones((2, 2))).flags.f_contiguous
    assert anp.array([[1, 2]], ndmin=3).shape == (1, 1, 2) and anp.array(3.0).shape == ()


def test_ampi_numpy_with_active_values():
    anp = ampi.numpy

    def f(x):
        made = [
            anp.array([x[0], [x[1], 2.0][0], 3.0]),
            anp.array([[x[0], 1.0], [2.0, x[2]]]),
            anp.array([x, 2.0 * x]),
            anp.full(2, x[0]),
            anp.full_like(x, x[1]),
            anp.array(x),
            anp.array(x, copy=None, ndmin=2),
            anp.asarray(x.T, order="F"),
            anp.copy(x),
            anp.r_[x, x[0], 1.0],
            anp.c_[x, x],
            anp.vectorize(lambda a, b: a * b + a)(x, 3.0),
            anp.lib.stride_tricks.as_strided(x, (2,), (16,)),
            anp.stack([x, x]),
            anp.linalg.norm(x),
        ]
        return sum((m * m).sum() for m in made)

    x = np.array([1.0, 2.0, 3.0])
    step = 1e-6
    numbers = [(f(anp.asarray(x + d)) - f(anp.asarray(x - d))) / (2 * step) for d in step * np.eye(3)]
    np.testing.assert_allclose(ampi.grad(f)(x), numbers, rtol=1e-7)


def test_copies_of_structured_arrays():
    """Fields, nested fields and fields that are arrays; elements that a broadcast view names several times add up."""
    inner = np.dtype([("a", "f4"), ("b", "c16", (2,))])
    dtype = np.dtype([("x", "f8"), ("n", "i4"), ("inner", inner)])
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(1.0, 4.0))
        s = ampi.numpy.zeros(3, dtype)
        s["x"] = x * x
        s["inner"]["a"] = x
        s["inner"]["b"][:, 1] = 1j * x
        t = s.copy()
        u = ampi.numpy.broadcast_to(s, (2, 3)).copy()
        s["x"] = 0
        y = t["x"] + 2 * t["inner"]["a"] + 3 * t["inner"]["b"][:, 1].imag + 10 * ampi.numpy.sum(u["x"], axis=0)
    assert np.allclose(tape.gradient(y, x, seed=np.ones(3)), 2 * np.arange(1.0, 4.0) * 21 + 5)
