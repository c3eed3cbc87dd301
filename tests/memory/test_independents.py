"""Independents are what a program would see with NumPy alone: their layout in memory, and the behaviour of their class.

Generated programs look at an array in ways that are views or copies by its layout, and overwrite what they get.
"""

import itertools

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.memory.storages import tracked_copy

LAYOUTS = {
    "C": lambda a: a,
    "Fortran": numpy.asfortranarray,
    "transposed": lambda a: numpy.ascontiguousarray(a.T).T,
    "middle axis last": lambda a: numpy.ascontiguousarray(a.swapaxes(-1, a.ndim // 2)).swapaxes(-1, a.ndim // 2),
    "columns": lambda a: numpy.repeat(a, 2, -1)[..., ::2],
    "rows": lambda a: numpy.repeat(a, 3, 0)[::3],
    "Fortran rows": lambda a: numpy.repeat(a, 2, 0).copy(order="F")[::2],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "all reversed": lambda a: numpy.flip(numpy.flip(a).copy()),
    "last reversed": lambda a: a[..., ::-1].copy()[..., ::-1],
    "real part": lambda a: (a + 1j * a).real,
    "field": lambda a: _in_a_field(a),
}
SHAPES = [(6,), (2, 3), (3, 1), (1, 4), (2, 3, 2), (2, 1, 3), (0, 3), (2, 0)]


def _in_a_field(a):
    held = numpy.zeros(a.shape, "f8,f4")
    held["f0"] = a
    return held["f0"]


ORDERS = "CFAK"
VIEWS = [
    *(f"x.reshape(-1, order={o!r})" for o in "CFA"),
    *(f"x.ravel({o!r})" for o in ORDERS),
    *(f"np.ravel(x, {o!r})" for o in ORDERS),
    *(f"x.flatten({o!r})" for o in ORDERS),
    *(f"x.T.ravel({o!r})" for o in ORDERS),
    *(f"np.array(x, order={o!r})" for o in ORDERS),
    *(f"np.asarray(x, order={o!r})" for o in ORDERS),
    *(f"x.copy({o!r})" for o in ORDERS),
    *(f"x.astype(float, order={o!r}, copy=False)" for o in ORDERS),
    "x.T.reshape(-1)",
    "x.T.reshape(x.shape)",
    "x.T.reshape(x.shape, order='F')",
    "x.reshape(x.shape[0], -1)",
    "x.reshape((x.shape[0] * x.shape[1], -1) if x.ndim > 2 else -1)",
    "x.swapaxes(0, -1).reshape(-1)",
    "x[::-1].reshape(-1)",
    "x[..., ::-1].ravel()",
    "x[None].ravel('K')",
    "np.ascontiguousarray(x)",
    "np.asfortranarray(x)",
    "np.copy(x)",
    "np.resize(x, (x.size + 2,))",
    "x.squeeze()",
    "np.atleast_3d(x)",
    "x.diagonal() if x.ndim > 1 else x",
    "x * 1.0",
    "(x * 1.0).reshape(-1)",
    "(x + x.copy('K')).ravel('K')",
    "np.zeros_like(x) + x",
    "np.copyto(e := np.empty_like(x), x) or e.ravel('K')",
    "x.view(complex).ravel()",
    "x.T.view(complex).ravel('K')",
]
WRITES = ["w[...] = w * 0.5", "w *= 0.75", "w[:1] = 2.0", "w.flat[::2] = w.flat[::2] * 3.0", "w[..., -1:] += 1.0"]


def _drawn(generator):
    """A program of some statements, as source."""
    lines = []
    for _ in range(generator.integers(1, 4)):
        lines.append(f"w = {VIEWS[generator.integers(len(VIEWS))]}")
        lines.append(WRITES[generator.integers(len(WRITES))])
        lines.append("seen.append((w.flags.c_contiguous, w.flags.f_contiguous, w.shape))")
        lines.append("total = total + np.sum(np.real(w).ravel('K') * (1.0 + np.arange(w.size)))")
    lines.append("total = total + np.sum(x.ravel('K') * (0.5 + np.arange(x.size)) ** 2) + np.sum(x)")
    return lines


def _function(lines, np):
    def run(x):
        names = {"np": np, "x": x, "w": x * 1.0, "total": 0.0, "seen": []}
        for line in lines:
            try:
                exec(line, names)
            except (ValueError, IndexError) as error:  # what NumPy refuses, it has to refuse on a tape as well
                names["seen"].append(type(error).__name__)
        run.seen = names["seen"]
        return names["total"]

    return run


def _differences(run, make):
    """The gradient of a polynomial of degree one in each element: any step will do."""
    found = numpy.zeros(make().shape)
    for index in numpy.ndindex(found.shape):
        ahead, behind = make(), make()
        ahead[index] += 0.5
        behind[index] -= 0.5
        found[index] = run(ahead) - run(behind)
    return found


def _compare(seed):
    generator = numpy.random.default_rng(seed)
    layout = list(LAYOUTS)[generator.integers(len(LAYOUTS))]
    shape = SHAPES[generator.integers(len(SHAPES))]
    values = generator.standard_normal(shape)
    make = lambda: LAYOUTS[layout](values.copy())
    lines = _drawn(generator)
    what = f"seed {seed}: {layout}, {shape}\n" + "\n".join(lines)
    plainly, ours = _function(lines, numpy), _function(lines, np)
    expected, seen = plainly(make()), plainly.seen
    x = make()
    found, gradient = ampi.value_and_grad(ours)(x)
    assert ours.seen == seen, what
    assert float(found) == float(expected), what
    assert (x == values).all(), what
    numpy.testing.assert_allclose(gradient, _differences(plainly, make), 1e-9, 1e-9, err_msg=what)
    v = generator.standard_normal(shape)
    found, slope = ampi.jvp(ours, x, v)
    assert ours.seen == seen and float(found) == float(expected), what
    numpy.testing.assert_allclose(slope, numpy.sum(gradient * v), 1e-9, 1e-9, err_msg=what)


@pytest.mark.filterwarnings("ignore:what the function returned depends on nothing")  # of no elements
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_programs_see_the_layout_that_they_see_with_numpy(first):
    for seed in range(first, first + 50):
        _compare(seed)


@pytest.mark.filterwarnings("ignore:what the function returned depends on nothing")  # of no elements
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_many_programs_see_the_layout_that_they_see_with_numpy(first):
    for seed in range(first, first + 1000):
        _compare(seed)


def _signature(x):
    """What programs can tell of a layout: contiguity, and what is a view."""
    found = []
    for axes in itertools.permutations(range(x.ndim)):
        y = x.transpose(axes)
        found.append((y.flags.c_contiguous, y.flags.f_contiguous))
        found += [numpy.shares_memory(y.reshape(-1, order=order), x) for order in "CFA"]
        found += [numpy.shares_memory(y.ravel(order), x) for order in ORDERS]
        found += [y.ravel(order).tolist() for order in ORDERS]
        found.append([stride for stride, n in zip((y * 1.0).strides, y.shape) if n > 1])
        found.append(float(y.sum()))  # of which the order of summation follows the layout
    return found


@pytest.mark.parametrize("seed", range(200))
def test_copies_have_the_layout_of_what_is_copied(seed):
    generator = numpy.random.default_rng(seed)
    shape = generator.integers(1, 5, generator.integers(1, 4))
    a = generator.standard_normal(shape * 2)
    a = a[tuple(slice(None, None, int(step)) for step in generator.choice([1, 1, -1, 2, -2], len(shape)))]
    a = a.transpose(generator.permutation(a.ndim))
    assert _signature(tracked_copy(a).view(numpy.ndarray)) == _signature(a)


def test_repeated_elements_get_memory_of_their_own_which_is_not_contiguous():
    x = numpy.broadcast_to(numpy.arange(3.0), (2, 3))

    def f(x):
        flat = x.reshape(-1)
        flat[0] = 7.0  # of a copy, as with NumPy
        return np.sum(x * x)

    assert (ampi.grad(f)(x) == 2 * x).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_ways_in_keep_the_layout(layout):
    x = LAYOUTS[layout](numpy.arange(6.0).reshape(2, 3))
    v = numpy.ones((2, 3))
    seen = []

    def f(x):
        seen.append((x.flags.c_contiguous, x.flags.f_contiguous))
        return np.sum(x * x)

    ampi.grad(f)(x)
    ampi.vjp(f, x)
    ampi.jvp(f, x, v)
    ampi.jvp(f, x, v[None], vectorised=True)
    ampi.jvp(lambda y, x: f(x), (numpy.ones(1), x), (numpy.ones(1), None))
    ampi.linearize(f, x)
    ampi.hvp(f, x, v)
    ampi.jvp(ampi.grad(f), x, v)
    ampi.jacrev(f, x)
    ampi.jacfwd(f, x)
    ampi.hessian(f, x)
    ampi.testing.taylor_test(f, x)
    ampi.testing.dot_test(f, x)
    assert set(seen) == {(x.flags.c_contiguous, x.flags.f_contiguous)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_laid_out_as_numpys_copies_of_the_independents(layout):
    x = LAYOUTS[layout](numpy.arange(12.0).reshape(2, 3, 2))
    wanted = numpy.array(x).strides
    gradient = ampi.grad(lambda x: np.sum(x * x))(x)
    assert gradient.strides == wanted and (gradient == 2 * x).all()
    with ampi.Tape() as tape:
        watched = tape.watch(x)
        y = watched * 2.0
    (found,) = tape.gradient(y, [watched], seeds=numpy.ones((1, *x.shape)))
    assert found[0].strides == wanted and (found == 2).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_custom_rule_gets_the_layout_of_the_arguments(layout):
    x = LAYOUTS[layout](numpy.arange(6.0).reshape(2, 3))
    seen = []

    def forward(x):
        seen.append((x.flags.c_contiguous, x.flags.f_contiguous))
        return x * x, x

    rule = ampi.custom_vjp(lambda x: x * x)
    rule.defvjp(forward, lambda x, g: (2 * x * g,))
    assert (ampi.grad(lambda x: np.sum(rule(x)))(x) == 2 * x).all()
    assert set(seen) == {(x.flags.c_contiguous, x.flags.f_contiguous)}


@pytest.mark.parametrize("layout", ["Fortran", "rows", "all reversed"])
def test_states_of_time_loops_keep_their_layout(layout):
    x = LAYOUTS[layout](numpy.arange(6.0).reshape(2, 3))

    def step(x):
        v = x * 1.0
        v.reshape(-1)[1:] *= 0.5  # a view or a copy
        return v

    def program(x, loop):
        return np.sum((loop(x) * np.arange(6.0).reshape(2, 3)) ** 2)

    def by_hand(x):
        for _ in range(5):
            x = step(x)
        return x

    plainly = ampi.value_and_grad(lambda x: program(x, by_hand))(x)
    looped = ampi.value_and_grad(lambda x: program(x, lambda x: ampi.timeloop(step, x, steps=5, checkpoints=2)))(x)
    assert float(program(x, by_hand)) == float(plainly[0]) == float(looped[0])
    numpy.testing.assert_allclose(looped[1], plainly[1], 1e-14)


@ampi.kernel
def _weighted(u, v):
    for i in range(u.shape[0]):
        for j in range(u.shape[1]):
            v[i, j] = u[i, j] * u[i, j] * (1 + i + 3 * j)


@pytest.mark.parametrize("layout", ["C", "Fortran", "columns", "all reversed"])
def test_arguments_of_kernels_may_have_any_layout(layout):
    x = LAYOUTS[layout](numpy.arange(6.0).reshape(2, 3))
    weights = 1 + numpy.arange(2)[:, None] + 3 * numpy.arange(3)

    def f(x):
        v = np.empty_like(x)
        _weighted(x, v)
        return np.sum(v)

    assert float(ampi.value_and_grad(f)(x)[0]) == (x * x * weights).sum()
    assert (ampi.grad(f)(x) == 2 * x * weights).all()
    assert float(ampi.jvp(f, x, numpy.ones((2, 3)))[1]) == (2 * x * weights).sum()


@pytest.mark.mpi(max_size=3)
@pytest.mark.parametrize("sent", ["C", "Fortran"])
@pytest.mark.parametrize("received", ["C", "Fortran"])
def test_messages_go_by_the_order_in_memory(sent, received):
    comm = ampi.COMM_WORLD
    weights = 1.0 + numpy.arange(6).reshape(2, 3)

    def exchanged(x, comm, empty):
        came = LAYOUTS[received](empty((2, 3))) if empty is numpy.empty else np.empty_like(LAYOUTS[received](weights))
        comm.Sendrecv(x, (comm.rank + 1) % comm.size, recvbuf=came, source=(comm.rank - 1) % comm.size)
        came.reshape(-1)[1:] *= 2.0  # a view or a copy
        return (came * weights).sum()

    x = LAYOUTS[sent](weights * (1 + comm.rank))
    from mpi4py import MPI

    expected = exchanged(x, MPI.COMM_WORLD, numpy.empty)
    value, gradient = ampi.value_and_grad(lambda x: exchanged(x, comm, None))(x)
    assert float(value) == float(expected)
    _, slope = ampi.jvp(lambda x: exchanged(x, comm, None), x, numpy.asarray(x))
    assert numpy.isclose(slope, float(value))  # linear
    mine = float((gradient * x).sum())
    assert numpy.isclose(comm.allreduce(mine), comm.allreduce(float(value)))


# --------------------------------------------------------------------------------------------- classes of arrays


class Reversing(numpy.ndarray):
    """An array with its own sum."""

    def sum(self, *arguments, **keywords):
        return -numpy.asarray(self).sum(*arguments, **keywords)


class Named(numpy.ndarray):
    """An array with a name."""

    name = "u"


OTHERS = {
    "masked": (numpy.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], [[0, 1], [0, 0]]), "mask"),
    "matrix": (numpy.ones((2, 2)).view(numpy.matrix), "@"),
    "overriding": (numpy.ones((2, 2)).view(Reversing), "numpy.asarray"),
}
WAYS = {
    "grad": lambda f, x: ampi.grad(f)(x),
    "vjp": lambda f, x: ampi.vjp(f, x),
    "jvp": lambda f, x: ampi.jvp(f, x, numpy.ones((2, 2))),
    "linearize": lambda f, x: ampi.linearize(f, x),
    "hvp": lambda f, x: ampi.hvp(f, x, numpy.ones((2, 2))),
    "jacrev": lambda f, x: ampi.jacrev(f, x),
    "jacfwd": lambda f, x: ampi.jacfwd(f, x),
    "hessian": lambda f, x: ampi.hessian(f, x),
    "taylor_test": lambda f, x: ampi.testing.taylor_test(f, x),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("other", OTHERS)
def test_classes_that_compute_differently_are_refused_as_independents(way, other):
    x, instead = OTHERS[other]
    with pytest.raises(ampi.ActivityError, match=f"{type(x).__name__} cannot be an independent.*{instead}"):
        WAYS[way](lambda x: np.sum(x * x), x)


@pytest.mark.parametrize("other", OTHERS)
def test_tape_watch_refuses_classes_that_compute_differently(other):
    with ampi.Tape() as tape, pytest.raises(ampi.ActivityError, match="cannot be an independent"):
        tape.watch(OTHERS[other][0])


def test_a_constant_argument_keeps_its_class():
    kinds = []
    f = lambda x, m: kinds.append(type(m)) or np.sum(x * x)
    masked = OTHERS["masked"][0]
    ampi.grad(f)(numpy.ones(2), masked)
    ampi.jvp(f, (numpy.ones(2), masked), (numpy.ones(2), None))
    assert kinds == [numpy.ma.MaskedArray] * 2


@pytest.mark.parametrize("cls", [numpy.memmap, numpy.recarray, Named])
def test_classes_that_compute_as_arrays_do_are_taken_as_such(cls):
    assert (ampi.grad(lambda x: np.sum(x * x))(numpy.array([1.0, 2.0]).view(cls)) == [2, 4]).all()
