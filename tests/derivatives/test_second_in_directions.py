"""Second order in several directions at once: products are what they are alone, and Hessians go in chunks."""

import numpy as np
import pytest
from mpi4py import MPI
from scipy import sparse

import ampi
import ampi.numpy as anp

WORLD = MPI.COMM_WORLD
DIRECTIONS = [1, 2, 5, 9]


def check(f, x, k, rounding=1e-13, **options):
    """H v for k random v, together and alone."""
    generator = np.random.default_rng(WORLD.rank)

    def drawn(a):
        shape = (k, *np.shape(a))
        v = generator.uniform(-1.0, 1.0, shape)
        return (v + 1j * generator.uniform(-1.0, 1.0, shape) if np.iscomplexobj(a) else v).astype(np.asarray(a).dtype)

    v = tuple(None if np.asarray(a).dtype.kind == "i" else drawn(a) for a in x)
    together = ampi.hvp(f, tuple(x), v, vectorised=k, **options)
    for j in range(k):
        alone = ampi.hvp(f, tuple(x), tuple(None if d is None else d[j] for d in v), **options)
        for a, found, expected in zip(x, together, alone, strict=True):
            assert (found is None) == (expected is None)
            if found is not None:
                assert found.dtype == expected.dtype == np.asarray(a).dtype and found.shape == (k, *np.shape(a))
                size = WORLD.allreduce(np.max(np.abs(expected), initial=0.0), MPI.MAX)
                np.testing.assert_allclose(found[j], expected, rtol=0, atol=rounding * size)


# ---------------------------------------------------------------------------------------------------------- on one rank


@ampi.kernel
def turned(a, b, s):
    for i in range(a.size):
        b[i] = a[i] * np.exp(-s * a[i]) + b[i] * a[i - 1]
    return b.sum()


@ampi.kernel(parallel=True)
def turned_on_threads(a, b, s):
    for i in ampi.prange(a.size):
        b[i] = a[i] * np.exp(-s * a[i]) + b[i]


@ampi.kernel
def parted(a):
    return a[1:] * a[:-1], np.array([a[0], a[-1] ** 2]), a.sum() ** 2


def of_kernels(x, s):
    """What kernels overwrite, the same array twice among their arguments, and parts of one array."""
    a = anp.sin(x)
    b = a * s
    t = turned(a, b, s)
    turned(b, b, 0.3 * s)
    turned(a[: a.size // 2 * 2 : 2], a[1::2], s)
    turned_on_threads(a, b, s)
    c, d, e = parted(b)
    return (a * b).sum() * t + (c * c).sum() + (d**3).sum() * e


def of_views(x, s):
    """Writes through views, masks and indices, reductions, and a number that takes part."""
    a = anp.zeros((2, x.size))
    a[0] = x
    a[1, ::-1] = x * s
    a[:, 1:] *= a[:, :-1]
    a[a > 0.5] **= 2
    a.T[0, :] += s
    return anp.linalg.norm(a) * anp.max(a) + anp.prod(a[0, :2])


def of_complex(z, s):
    w = anp.fft.fft(z) * s
    w[1:] += w[:-1] * np.conj(w[0])
    return (w * np.conj(w)).real.sum()


@ampi.kernel
def weighted(g, x, out):
    for i in range(g.size):
        out[i] = g[i] * np.cos(x[i])


def sine():
    """An adjoint that calls a kernel with the adjoint that the sweep gave it."""

    @ampi.custom_vjp
    def f(x):
        return anp.sin(x)

    def backward(x, g):
        out = anp.zeros(g.size)
        weighted(g, x, out)
        return (out,)

    f.defvjp(lambda x: (anp.sin(x), x), backward)
    f.defjvp(lambda a, d: (anp.sin(a[0]), anp.cos(a[0]) * d[0]))
    return f


def of_rules(x, s):
    f = sine()
    y = f(x * s)
    return (f(y * y) * y).sum()


def of_a_loop(x, s):
    u, v = x.copy(), anp.zeros(x.size)

    def step(k):
        turned(u, v, s)
        u[...] = 0.5 * v
        u[1:3] *= v[:2]

    ampi.timeloop(step, (u, v), 4)
    return (u * u).sum()


PROGRAMS = [of_kernels, of_views, of_rules, of_a_loop]


@pytest.mark.parametrize("k", DIRECTIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_products_are_what_they_are_alone(program, k):
    check(program, (np.linspace(0.2, 1.3, 6), 0.7), k)
    check(program, (np.linspace(0.2, 1.3, 7), np.array(0.7)), k)


@pytest.mark.parametrize("k", DIRECTIONS)
def test_complex_ones(k):
    check(of_complex, (np.linspace(0.2, 1.3, 6) * (1 + 0.3j), 0.7), k)


def test_other_dtypes_and_empty_arrays():
    check(of_views, (np.linspace(0.2, 1.3, 6, dtype=np.float32), np.float32(0.7)), 5, 1e-5)
    check(lambda x, n, e: (x**3).sum() * n + e.sum(), (np.linspace(0.2, 1.3, 6), 3, np.zeros((0, 2))), 5)
    check(lambda e: 2.0 * e.sum(), (np.zeros(0),), 3)


def test_structures():
    f = lambda tree: (tree["a"][0] ** 3).sum() * tree["b"]
    v = {"a": (np.eye(2),), "b": np.array([0.0, 1.0])}
    found = ampi.hvp(f, {"a": (np.array([1.0, 2.0]),), "b": 3.0}, v, vectorised=True)
    np.testing.assert_allclose(found["a"][0], [[18.0, 0.0], [3.0, 48.0]])
    np.testing.assert_allclose(found["b"], [3.0, 12.0])


def test_a_gradient_inside_of_forward_mode():
    f = lambda x: (x**3).sum() ** 2
    x = np.linspace(0.5, 1.5, 5)
    gradient, h = ampi.jvp(ampi.grad(f), x, np.eye(5), vectorised=True)
    np.testing.assert_allclose(gradient, ampi.grad(f)(x), rtol=1e-14)
    np.testing.assert_array_equal(h, ampi.hvp(f, x, np.eye(5), vectorised=True))
    outside = lambda x: (ampi.grad(f)(2.0 * x) * x).sum()
    _, found = ampi.jvp(outside, x, np.eye(5), vectorised=True)
    expected = [ampi.jvp(outside, x, v)[1] for v in np.eye(5)]
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("v", "how", "what"),
    [
        (np.ones(3), True, r"its tangent \(3,\), which has to be \(3, 3\)"),
        (np.ones((2, 4)), True, r"its tangent \(2, 4\), which has to be \(2, 3\)"),
        (np.ones((2, 3)), 4, r"which has to be \(4, 3\)"),
        (1.0, True, "ampi.hvp: with vectorised=True tangents have a leading axis"),
        (None, True, "ampi.hvp: no tangent says how many"),
        (np.ones((0, 3)), True, "0 directions"),
    ],
)
def test_vectors_that_do_not_fit(v, how, what):
    with pytest.raises(ampi.TapeError, match=what):
        ampi.hvp(lambda x: (x * x).sum(), np.ones(3), v, vectorised=how)


# ------------------------------------------------------------------------------------------------------------ on ranks


def largest(a, b):
    """An operation of the user's: no derivative is the same as of the product."""
    for i in range(a.size):
        b[i] = a[i] * b[i] + 0.1 * a[i]


def of_messages(x):
    comm = ampi.COMM_WORLD
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    u, v = anp.sin(x), anp.zeros(x.size)
    comm.Sendrecv(u, after, 3, v, before, 3)
    turned(u, v, 0.4)
    product, mine = anp.zeros(x.size), anp.zeros(x.size)
    comm.Allreduce(v, product, MPI.PROD)
    op = MPI.Op.Create(ampi.kernel(largest), commute=False)
    comm.Scan(u, mine, op)
    op.Free()
    mine[1:] *= product[:-1]
    requests = [comm.Isend(mine, after, 4), comm.Irecv(v, before, 4)]
    MPI.Request.Waitall(requests)
    inside = anp.ones(x.size)
    total, own = comm.allreduce(u @ v), v.copy()
    MPI.SUM.Reduce_local(u, inside)
    MPI.PROD.Reduce_local(own, inside)
    return (v * v).sum() * total + inside.sum()


def of_windows(x):
    comm = ampi.COMM_WORLD
    after = (comm.rank + 1) % comm.size
    memory, got = anp.ones(2 * x.size), anp.zeros(x.size)
    win = MPI.Win.Create(memory, memory.itemsize, comm=comm)
    win.Fence()
    win.Put(x * x, after)
    win.Fence()
    turned(memory[: x.size], memory[x.size :], 0.4)
    win.Fence()
    win.Lock(after)
    win.Accumulate(anp.cos(x), after, op=MPI.PROD)
    win.Unlock(after)
    win.Fence()
    win.Get(got, after, x.size)
    win.Fence()
    win.Free()
    return (memory**2).sum() + (got**3).sum()


def on_this_rank():
    return np.linspace(0.2, 0.9, 4) + 0.1 * WORLD.rank


@pytest.mark.mpi
@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("program", [of_messages, of_windows])
def test_products_on_ranks(program, k):
    check(program, (on_this_rank(),), k)


def of_a_ring(x):
    """Each rank has a term of its own parameters, and one with the first of the rank after it, which may have none."""
    comm = ampi.COMM_WORLD
    mine, other = anp.zeros(1), anp.zeros(1)
    if x.size:
        mine[0] = x[0]
    comm.Sendrecv(mine, (comm.rank - 1) % comm.size, 0, other, (comm.rank + 1) % comm.size, 0)
    return (x**3).sum() + (x[1:] * x[:-1] ** 2).sum() + other[0] ** 2 * x.sum()


@pytest.mark.mpi
@pytest.mark.parametrize("options", [{}, {"chunk": 1}, {"chunk": 3}, {"chunk": 99}, {"memory": "1 MiB"}, {"memory": 1}])
def test_hessians_in_chunks(options):
    x = np.linspace(0.5, 1.5, WORLD.rank + 2)[: 0 if WORLD.rank == 2 else None]
    sizes = WORLD.allgather(x.size)
    expected = np.zeros((x.size, sum(sizes)))
    for rank, size in enumerate(sizes):
        for j in range(size):
            v = np.zeros(x.size)
            v[j if rank == WORLD.rank else []] = 1
            expected[:, sum(sizes[:rank]) + j] = ampi.hvp(of_a_ring, x, v)
    found = ampi.hessian(of_a_ring, x, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)
    of_pattern = ampi.hessian(of_a_ring, x, pattern=sparse.csr_array(expected != 0), **options)
    np.testing.assert_allclose(of_pattern.toarray(), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.mpi
@pytest.mark.parametrize("objective", ["sum", "replicated", "root"])
def test_objectives(objective):
    def f(x):
        comm = ampi.COMM_WORLD
        return comm.allreduce((x**3).sum()) ** 2

    found = ampi.hessian(f, on_this_rank(), objective, chunk=3)
    np.testing.assert_allclose(found, ampi.hessian(f, on_this_rank(), objective, chunk=1), rtol=1e-13)


def test_a_hessian_of_a_number_and_of_nothing():
    assert ampi.hessian(lambda x: x**3, 2.0, comm=ampi.COMM_SELF) == [[12.0]]
    assert ampi.hessian(lambda x: (x**3).sum(), np.zeros((0, 2)), comm=ampi.COMM_SELF).shape == (0, 0)
    assert ampi.hessian(lambda x: (x**3).sum(), np.ones((2, 1), np.float32), comm=ampi.COMM_SELF).dtype == np.float32


def test_memory_determines_the_number_of_directions(monkeypatch):
    from ampi.derivatives import jacobians

    counts = []
    products = jacobians.products

    def counted(*given):
        counts.append(given[-1])
        found = products(*given)
        sizes.append(found.nbytes)
        return found

    monkeypatch.setattr(jacobians, "products", counted)
    f = lambda x: of_kernels(x, 0.7)
    sizes = []
    ampi.hessian(f, np.linspace(0.2, 1.3, 40), comm=ampi.COMM_SELF, memory=1 << 30)
    assert counts == [1, 39]
    one, many = sizes
    assert 0.7 * 39 * one < many < 1.3 * 39 * one + 10_000
    counts.clear()
    ampi.hessian(f, np.linspace(0.2, 1.3, 40), comm=ampi.COMM_SELF, memory=10 * one)
    assert counts == [1, 10, 10, 10, 9]


def test_chunk_and_memory():
    f = lambda x: (x**3).sum()
    for options, what in [({"chunk": 0}, "chunk is 0"), ({"chunk": 2, "memory": 1}, "not both")]:
        with pytest.raises(ampi.TapeError, match=f"ampi.hessian: .*{what}"):
            ampi.hessian(f, np.ones(3), comm=ampi.COMM_SELF, **options)
    with pytest.raises(ValueError, match="objective must be one of"):
        ampi.hessian(f, np.ones(3), "all", comm=ampi.COMM_SELF)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("how", ["array", "object", "reduction"])
@pytest.mark.parametrize("mode", ["hvp", "jvp"])
def test_ranks_that_disagree_about_directions(mode, how):
    comm = ampi.COMM_WORLD.Dup()

    def f(x):
        y = anp.zeros(x.size)
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        if how == "array":
            comm.Sendrecv(x, after, 0, y, before, 0)
        elif how == "object":
            y = comm.sendrecv(x, after, 0, None, before, 0)
        else:
            comm.Allreduce(x, y)
        return (x * y).sum()

    k = 2 * (1 + comm.rank)
    with pytest.raises(ampi.CommunicationError, match="directions"):
        getattr(ampi, mode)(f, np.ones(4), np.ones((k, 4)), vectorised=True)


@pytest.mark.mpi
def test_more_directions_than_mpi4py_has_room_for_operations():
    f = lambda x: of_messages(x)
    x, k = on_this_rank(), 33
    v = np.random.default_rng(WORLD.rank).normal(size=(k, x.size))
    together = ampi.hvp(f, x, v, vectorised=True)
    np.testing.assert_allclose(together[-1], ampi.hvp(f, x, v[-1]), rtol=1e-12)
    _, y_dot = ampi.jvp(f, x, v, vectorised=True)
    np.testing.assert_allclose(y_dot[-1], ampi.jvp(f, x, v[-1])[1], rtol=1e-12)


@pytest.mark.mpi
def test_operations_of_programs_that_failed():
    """There is room for 32 of them in mpi4py; those that MPI might still call are used again."""
    comm = ampi.COMM_WORLD.Dup()

    def f(x, fails):
        y = anp.zeros(x.size)
        comm.Allreduce(x, y, MPI.PROD)
        if fails:
            raise RuntimeError("as it happens")
        return (y * y).sum()

    x, v = on_this_rank(), np.ones(4)
    for _ in range(40):
        with pytest.raises(RuntimeError, match="as it happens"):
            ampi.jvp(lambda x: f(x, True), x, v)
    gradient = ampi.grad(lambda x: f(x, False))(x)
    _, found = ampi.jvp(lambda x: f(x, False), x, v)
    assert np.isclose(WORLD.allreduce(found), WORLD.allreduce(gradient @ v))
