"""Second order across ranks: Hessians known by formula, time loops with halos, objects, and what is refused."""

import numpy
import pytest
from mpi4py import MPI
from second_check import check_at_minimum, check_second

import ampi
import ampi.numpy as np

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD  # mpi4py's own
COMM = ampi.COMM_WORLD


def add(value):
    return WORLD.allreduce(value)


def parameters():
    """This rank's parameters, whose number differs between ranks."""
    return numpy.linspace(0.5, 1.5, 1 + WORLD.rank % 2) + 0.1 * WORLD.rank


def cubes(x):
    """S² on each rank, for the sum S of all cubes."""
    total = np.zeros(())
    COMM.Allreduce((x**3).sum() + 0.0, total)
    return total * total


def block_of_cubes(count):
    x = numpy.concatenate(WORLD.allgather(parameters()))
    total = (x**3).sum()
    whole = count * (18.0 * numpy.outer(x**2, x**2) + 12.0 * total * numpy.diag(x))
    first = sum(WORLD.allgather(parameters().size)[: WORLD.rank])
    return whole[first : first + parameters().size]


@pytest.mark.parametrize("objective", ["sum", "replicated", "root"])
def test_hessian_by_blocks_of_rows(objective):
    found = ampi.hessian(cubes, parameters(), objective=objective)
    numpy.testing.assert_allclose(found, block_of_cubes(WORLD.size if objective == "sum" else 1), rtol=1e-12)


def test_jvp_of_grad_is_the_same():
    x = parameters()
    v = numpy.cos(numpy.arange(x.size) + WORLD.rank)
    gradient, product = ampi.jvp(ampi.grad(cubes, objective="replicated"), x, v)
    numpy.testing.assert_allclose(gradient, ampi.grad(cubes, objective="replicated")(x), rtol=1e-13)
    numpy.testing.assert_allclose(product, ampi.hvp(cubes, x, v, objective="replicated"), rtol=1e-13)


@ampi.kernel
def diffuse(u, k, new):
    """A step of a heat equation whose conductivity depends on temperature."""
    for i in range(1, len(u) - 1):
        east = k * (1.0 + u[i] * u[i + 1]) * (u[i + 1] - u[i])
        west = k * (1.0 + u[i] * u[i - 1]) * (u[i] - u[i - 1])
        new[i] = u[i] + east - west


def heat(u, k):
    """Some steps, in place, with halos from both neighbours by nonblocking messages."""
    before, after = (WORLD.rank - 1) % WORLD.size, (WORLD.rank + 1) % WORLD.size
    field, new = np.zeros(len(u) + 2), np.zeros(len(u) + 2)
    field[1:-1] = u
    for _ in range(3):
        requests = [COMM.Irecv(field[:1], before, 1), COMM.Irecv(field[-1:], MPI.ANY_SOURCE, 2)]
        requests += [COMM.Isend(field[-2:-1], after, 1), COMM.Isend(field[1:2], before, 2)]
        ampi.Request.Waitall(requests)
        diffuse(field, k, new)
        field[1:-1] = new[1:-1]
    hottest = np.zeros(())
    COMM.Allreduce((field[1:-1] ** 4).sum() + 0.0, hottest, MPI.SUM)
    return field[1:-1] * hottest


@pytest.mark.parametrize("n", [3, 6])
def test_heat_loop_with_halos(n):
    u, k = numpy.random.default_rng(WORLD.rank).uniform(0.2, 0.9, n), numpy.array(0.1 + 0.01 * WORLD.rank)
    check_second(lambda u, k: (heat(u, 1.0 * k) ** 2).sum(), [u, k], 1e-12, add=add)
    check_at_minimum(lambda u, k: heat(u, k), [u, k], 1e-11, add=add)


def test_nonblocking_collectives_that_are_waited_for_in_another_order():
    def f(x):
        a, b, c = np.zeros(4), np.zeros(4), np.zeros(4 * WORLD.size)
        requests = [COMM.Iallreduce(x * x, a), COMM.Ibcast(b, 0) if WORLD.rank else COMM.Ibcast(x, 0)]
        requests.append(COMM.Iallgather(numpy.sin(x), c))
        for k in (1, 2, 0) if WORLD.rank % 2 else (2, 0, 1):
            requests[k].Wait()
        other = b if WORLD.rank else x
        return (a * a * other).sum() * (c * c).sum()

    check_second(f, [numpy.linspace(0.2, 0.9, 4) + 0.03 * WORLD.rank], 1e-12, add=add)


def test_largest_of_all():
    def f(x):
        top = np.zeros(3)
        COMM.Allreduce(x**3, top, MPI.MAX)
        return (top * top).sum()

    x = numpy.array([0.3, 0.5, 0.9]) + 0.1 * WORLD.rank
    found = ampi.hvp(f, x, numpy.ones(3))
    wins = WORLD.rank == WORLD.size - 1
    numpy.testing.assert_allclose(found, 30.0 * WORLD.size * x**4 if wins else numpy.zeros(3), rtol=1e-13)


REDUCED = ["Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter_block", "Reduce_scatter"]


def reduced(name, x, op, nonblocking, in_place):
    """This rank's result of a reduction of n elements for each rank."""
    method = getattr(COMM, f"I{name[0].lower()}{name[1:]}" if nonblocking else name)
    y = x * 1.0 if in_place else np.zeros(x.shape, x.dtype)
    if name.startswith("Reduce_scatter") and not in_place:
        y = y[: x.size // WORLD.size]
    given = [MPI.IN_PLACE if in_place and not (name == "Reduce" and WORLD.rank) else y if in_place else x, y]
    if name == "Reduce" and WORLD.rank:
        given[1] = None
    if name == "Reduce_scatter":
        given.append([x.size // WORLD.size] * WORLD.size)
    request = method(*given, op=op)
    if nonblocking:
        request.Wait()
    return y[: x.size // WORLD.size] if name.startswith("Reduce_scatter") else y


def contributions(dtype):
    generator = numpy.random.default_rng(WORLD.rank)
    x = generator.uniform(0.5, 1.5, 2 * WORLD.size).astype(dtype)
    x[1] = 0  # on each rank
    if numpy.dtype(dtype).kind == "c":
        x += 1j * generator.uniform(0.5, 1.5, x.size)
    if WORLD.rank == 0:
        x[-1] = 0
    return x


@pytest.mark.parametrize("nonblocking, in_place, dtype", [(0, 0, "f8"), (0, 1, "c16"), (1, 0, "c16"), (1, 1, "f8")])
@pytest.mark.parametrize("name", REDUCED)
def test_products(name, nonblocking, in_place, dtype):
    def f(x):
        y = reduced(name, x, MPI.PROD, nonblocking, in_place)
        z = y * y + y
        return (z * z.conj()).real.sum() + (x * x.conj()).real.sum()

    check_second(f, [contributions(dtype)], 1e-12, add=add)


def test_product_of_all_ranks_by_formula():
    """∂²/∂x_r∂x_s of Π x is the product of the others, even if some are zero."""
    x = numpy.array([WORLD.rank + 0.5, WORLD.rank - 1.0])

    def f(x):
        y = np.zeros(2)
        COMM.Allreduce(x, y, MPI.PROD)
        return y.sum()

    found = ampi.hessian(f, x, objective="replicated")
    everywhere = numpy.array(WORLD.allgather(x))
    expected = numpy.zeros((2, WORLD.size, 2))
    for k in range(2):
        for other in range(WORLD.size):
            rest = [everywhere[r, k] for r in range(WORLD.size) if r not in (other, WORLD.rank)]
            expected[k, other, k] = 0.0 if other == WORLD.rank else numpy.prod(rest)
    numpy.testing.assert_allclose(found, expected.reshape(2, -1), rtol=1e-13)


@ampi.kernel
def affine(a, b):
    """Composition of maps x -> p x + q; not linear in their coefficients."""
    for k in range(0, len(b), 2):
        q = a[k + 1] * b[k] + b[k + 1]
        b[k], b[k + 1] = a[k] * b[k], q


@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.parametrize("name", ["Allreduce", "Scan", "Exscan", "Reduce"])
def test_kernels_as_operations(name, nonblocking):
    op = ampi.Op.Create(affine)

    def f(x):
        y = reduced(name, x, op, nonblocking, False)
        return (y * y).sum() + (x * x).sum()

    check_second(f, [contributions("f8") + 0.1], 1e-12, add=add)
    op.Free()


@pytest.mark.parametrize("op", [MPI.MINLOC, MPI.MAXLOC, MPI.MIN, MPI.MAX])
@pytest.mark.parametrize("name", ["Allreduce", "Reduce", "Scan", "Exscan"])
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_choices_are_linear_through_the_winner(name, op):
    pair = numpy.dtype([("value", "f8"), ("location", "i4")], align=True)
    located = op in (MPI.MINLOC, MPI.MAXLOC)

    def f(x):
        given, y = (np.zeros(3, pair if located else "f8") for _ in range(2))
        if located:
            given["value"], given["location"] = x**3, WORLD.rank
        else:
            given[:] = x**3
        datatype = MPI.DOUBLE_INT if located else MPI.DOUBLE
        root = name != "Reduce" or WORLD.rank == 0
        getattr(COMM, name)([given, datatype], [y, datatype] if root else None, op=op)
        found = y["value"] if located else y
        return (found * found).sum()

    x = numpy.random.default_rng(WORLD.rank).uniform(0.2, 0.9, 3)
    check_second(f, [x], 1e-12, add=add)


def test_objects():
    f = lambda x: COMM.allreduce(x**3).sum() ** 2
    check_second(f, [numpy.linspace(0.5, 1.5, 2) + 0.1 * WORLD.rank], 1e-12, add=add)


@pytest.mark.skipif(WORLD.size == 1, reason="of several ranks")
@pytest.mark.parametrize("error", [ampi.ActivityError, ValueError])
def test_error_on_one_rank_is_one_on_all(error):
    """If all ranks wait for each other; otherwise those that need nothing more of a failing rank may be done."""
    comm = COMM.Dup()  # which is of no more use afterwards

    def f(x):
        total = np.zeros(2)
        comm.Allreduce(x * x, total)
        if WORLD.rank == 0 and error is ValueError:
            raise ValueError("something else")
        return ampi.value(total).sum() if WORLD.rank == 0 else (total * total).sum()

    with pytest.raises(error if WORLD.rank == 0 else ampi.CommunicationError):
        ampi.hvp(f, numpy.ones(2), numpy.ones(2))


def test_windows_of_before():
    """Windows made before are no obstacle if unused, and can be used after a fence."""
    memory = np.zeros(2)
    window = ampi.Win.Create(memory, 8, comm=COMM)
    x = numpy.array([1.0, 2.0]) + WORLD.rank
    numpy.testing.assert_allclose(ampi.hvp(lambda x: (x**3).sum(), x, numpy.ones(2)), 6 * x)

    def f(x, fences=True):
        if fences:
            window.Fence()
        else:
            window.Lock(WORLD.rank)
        window.Put(x * x, (WORLD.rank + 1) % WORLD.size if fences else WORLD.rank)
        if fences:
            window.Fence()
        else:
            window.Unlock(WORLD.rank)
        return (memory * memory * x).sum()

    check_second(f, [x], 1e-12, add=add)
    with pytest.raises(ampi.ActivityError, match=r"made before ampi.hvp, and is used there before its first Fence"):
        ampi.hvp(lambda x: f(x, False), x, numpy.ones(2))
    assert nothing_records()
    window.Unlock(WORLD.rank)
    window.Free()


def test_memory_of_another_rank_in_a_shared_window():
    """Loads and stores; tangents are in MPI's memory while the program runs, and in ampi's during the sweep."""
    node = COMM.Split_type(MPI.COMM_TYPE_SHARED)

    def f(x):
        window = ampi.Win.Allocate_shared(3 * 8, 8, comm=node)
        mine = np.frombuffer(window.Shared_query(node.rank)[0], "d")
        there = np.frombuffer(window.Shared_query((node.rank + 1) % node.size)[0], "d")
        window.Fence()
        mine[:] = x * x
        window.Fence()
        y = there * x
        window.Fence()
        there[1:] *= y[:2]
        window.Fence()
        total = (mine * mine * x).sum() + (y * y).sum()
        window.Fence()
        window.Free()
        return total

    check_second(f, [numpy.linspace(0.5, 1.0, 3) + 0.1 * WORLD.rank], 1e-12, add=add)
    node.Free()


def test_a_window_whose_memory_is_the_result():
    """Values that others put there after this rank's last operation are outputs, with tangents."""

    def f(x):
        memory = np.zeros(2)
        window = ampi.Win.Create(memory, 8, comm=COMM)
        window.Lock_all()
        for rank in range(COMM.size):
            window.Accumulate(x * x * (1 + rank), rank)
            window.Flush(rank)
        window.Unlock_all()
        COMM.Barrier()
        objective = (memory * memory).sum()
        window.Free()
        return objective

    check_second(f, [numpy.linspace(0.5, 1.0, 2) + 0.1 * WORLD.rank], 1e-12, add=add)


def nothing_records():
    from ampi.tape import current, open_tapes

    return current() is None and not open_tapes


@pytest.mark.skipif(WORLD.size == 1, reason="of several ranks")
@pytest.mark.parametrize("where", ["program", "rule", "sweep"])
def test_nothing_records_after_an_error_on_one_rank(where):
    comm = COMM.Dup()  # which is of no more use afterwards

    @ampi.custom_vjp
    def bad(x):
        return x * x

    def backward(kept, g):
        if WORLD.rank == 0:
            raise ValueError("in the sweep")
        return (g,)

    bad.defvjp(lambda x: (x * x, x), backward)
    bad.defjvp(lambda primals, tangents: (primals[0] ** 2, 2 * primals[0] * tangents[0]))

    def f(x):
        came = np.zeros(2)
        comm.Sendrecv(x * x, (WORLD.rank + 1) % WORLD.size, 0, came, (WORLD.rank - 1) % WORLD.size, 0)
        if WORLD.rank == 0 and where == "program":
            raise ValueError("in the program")
        if WORLD.rank == 0 and where == "rule":
            np.sum(x, axis=7)
        return (bad(came) if where == "sweep" else came * came).sum()

    try:
        ampi.hvp(f, numpy.ones(2), numpy.ones(2))
        stopped = False
    except (ValueError, ampi.AmpiError):
        stopped = True
    assert nothing_records()
    assert stopped or WORLD.rank != 0  # a rank that had done its part may be done


FILES = {
    "Read_at": lambda file, y, at: file.Read_at(at, y),
    "Read_at_all": lambda file, y, at: file.Read_at_all(at, y),
    "Iread_at": lambda file, y, at: file.Iread_at(at, y).Wait(),
    "Read_at_all_begin": lambda file, y, at: (file.Read_at_all_begin(at, y), file.Read_at_all_end(y)),
    "Read": lambda file, y, at: (file.Seek(at), file.Read(y)),
    "Read beyond the end": lambda file, y, at: file.Read_at(8 * 39, y),
    "Read_ordered": lambda file, y, at: file.Read_ordered(y),
    "Write_at": lambda file, y, at: file.Write_at(800 + at, y),
    "Iwrite_shared": lambda file, y, at: file.Iwrite_shared(y).Wait(),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name, tmp_path):
    """Values read are constant, values written are not differentiated."""
    path = WORLD.bcast(str(tmp_path / "file"))
    if WORLD.rank == 0:
        numpy.arange(1.0, 41.0).tofile(path)
    WORLD.Barrier()

    def f(x):
        file = ampi.MPI.File.Open(COMM, path, MPI.MODE_RDWR)
        y = x * x * x
        FILES[name](file, y[1:3], 24 * WORLD.rank)
        file.Close()
        total = np.zeros(1)
        COMM.Allreduce(np.reshape(np.sum(y * y * x), 1), total)
        return total[0] * total[0] * 1e-3

    check_second(f, [numpy.linspace(0.5, 1.5, 4) + 0.1 * WORLD.rank], rough=1e-8, add=add, objective="replicated")
