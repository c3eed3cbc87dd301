"""MPI-IO: values read are constants, values written can have a seed, and everything else is as with mpi4py."""

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, broken_in

import ampi
import ampi.numpy as np
from ampi.mpi.base.rules import TABLE

pytestmark = pytest.mark.mpi

N = 4  # elements that each rank writes and reads
MODE = MPI.MODE_CREATE | MPI.MODE_RDWR


@pytest.fixture
def path(tmp_path_factory):
    name = str(tmp_path_factory.mktemp("files") / "data") if WORLD.rank == 0 else None
    return WORLD.bcast(name)


@pytest.fixture
def file(path):
    file = MPI.File.Open(ampi.COMM_WORLD, path, MODE)  # mpi4py's own name
    assert type(file) is ampi.File
    yield file
    file.Close()


def mine():
    """The numbers that this rank writes, different on each rank."""
    return numpy.arange(1.0, N + 1) * (WORLD.rank + 1)


def offset():
    return WORLD.rank * N * 8


def wait(request):
    request.Wait()


def settle(file):
    """Make the data that any rank has written visible to all ranks."""
    file.Sync()
    WORLD.Barrier()
    file.Sync()


# Each of these reads or writes `buf` at this rank's place in the file.
READS = {
    "Read_at": lambda f, buf: f.Read_at(offset(), buf),
    "Read_at_all": lambda f, buf: f.Read_at_all(offset(), buf),
    "Iread_at": lambda f, buf: wait(f.Iread_at(offset(), buf)),
    "Iread_at_all": lambda f, buf: wait(f.Iread_at_all(offset(), buf)),
    "Read": lambda f, buf: (f.Seek(offset()), f.Read(buf)),
    "Read_all": lambda f, buf: (f.Seek(offset()), f.Read_all(buf)),
    "Iread": lambda f, buf: (f.Seek(offset()), wait(f.Iread(buf))),
    "Iread_all": lambda f, buf: (f.Seek(offset()), wait(f.Iread_all(buf))),
    "Read_shared": lambda f, buf: f.Read_shared(buf),
    "Iread_shared": lambda f, buf: wait(f.Iread_shared(buf)),
    "Read_ordered": lambda f, buf: f.Read_ordered(buf),
    "Read_at_all_begin": lambda f, buf: (f.Read_at_all_begin(offset(), buf), f.Read_at_all_end(buf)),
    "Read_all_begin": lambda f, buf: (f.Seek(offset()), f.Read_all_begin(buf), f.Read_all_end(buf)),
    "Read_ordered_begin": lambda f, buf: (f.Read_ordered_begin(buf), f.Read_ordered_end(buf)),
}
WRITES = {
    "Write_at": lambda f, buf: f.Write_at(offset(), buf),
    "Write_at_all": lambda f, buf: f.Write_at_all(offset(), buf),
    "Iwrite_at": lambda f, buf: wait(f.Iwrite_at(offset(), buf)),
    "Iwrite_at_all": lambda f, buf: wait(f.Iwrite_at_all(offset(), buf)),
    "Write": lambda f, buf: (f.Seek(offset()), f.Write(buf)),
    "Write_all": lambda f, buf: (f.Seek(offset()), f.Write_all(buf)),
    "Iwrite": lambda f, buf: (f.Seek(offset()), wait(f.Iwrite(buf))),
    "Iwrite_all": lambda f, buf: (f.Seek(offset()), wait(f.Iwrite_all(buf))),
    "Write_shared": lambda f, buf: f.Write_shared(buf),
    "Iwrite_shared": lambda f, buf: wait(f.Iwrite_shared(buf)),
    "Write_ordered": lambda f, buf: f.Write_ordered(buf),
    "Write_at_all_begin": lambda f, buf: (f.Write_at_all_begin(offset(), buf), f.Write_at_all_end(buf)),
    "Write_all_begin": lambda f, buf: (f.Seek(offset()), f.Write_all_begin(buf), f.Write_all_end(buf)),
    "Write_ordered_begin": lambda f, buf: (f.Write_ordered_begin(buf), f.Write_ordered_end(buf)),
}


def test_every_method_has_a_case():
    methods = {operation.name for operation in TABLE.values() if operation.owner == "File"}
    assert methods == {*READS, *WRITES} | {name.replace("_begin", "_end") for name in methods if "_begin" in name}


@pytest.mark.parametrize("name", READS)
def test_read_makes_constants(file, name):
    file.Write_at_all(offset(), mine())
    settle(file)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(N, 2.0))
        u = x * x
        before = u * 3.0
        w = u * u  # needs the values that the read overwrites
        READS[name](file, u)
        y = u * w + before
    assert sorted(ampi.value(u)) in [sorted(mine() * (r + 1) / (WORLD.rank + 1)) for r in range(WORLD.size)]
    came = ampi.value(u).copy()
    for _ in range(2):
        x_bar = tape.gradient(y, x, seed=numpy.ones(N))
        numpy.testing.assert_allclose(x_bar, came * 4 * 2.0**3 + 3.0 * 2 * 2.0, rtol=1e-14)
        assert numpy.array_equal(ampi.value(u), came)


def test_read_of_a_whole_array_makes_it_passive(file):
    file.Write_at_all(offset(), mine())
    with ampi.Tape() as tape:
        u = tape.watch(numpy.ones(N)) * 2.0
        assert tape.is_active(u)
        file.Read_at_all(offset(), u)
        assert not tape.is_active(u)


SHORT = broken_in("Open MPI", "a nonblocking read beyond the end of the file never completes")


@pytest.mark.parametrize("nonblocking", [False, pytest.param(True, marks=SHORT)])
def test_a_read_that_comes_short_leaves_the_rest_active(file, nonblocking):
    if WORLD.rank == 0:
        file.Write_at(0, numpy.array([5.0, 6.0]))
    WORLD.Barrier()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(N, 3.0))
        u = x * x
        if nonblocking:
            file.Iread_at(0, u).Wait()
        else:
            status = MPI.Status()
            file.Read_at(0, u, status)
            assert status.Get_count(MPI.DOUBLE) == 2
        y = u * 1.0
    numpy.testing.assert_array_equal(ampi.value(y), [5.0, 6.0, 9.0, 9.0])
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(N)), [0.0, 0.0, 6.0, 6.0])


def test_read_through_a_datatype_overwrites_what_it_names(file):
    file.Write_at_all(offset(), mine())
    settle(file)
    column = MPI.DOUBLE.Create_vector(N, 1, 2).Commit()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones((N, 2)))
        u = x * 2.0
        file.Read_at(offset(), [u, 1, column])
        column.Free()
        y = u * 1.0
    numpy.testing.assert_array_equal(ampi.value(y)[:, 0], mine())
    expected = numpy.array([[0.0, 2.0]] * N)
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones((N, 2))), expected)


@pytest.mark.parametrize("name", WRITES)
def test_write_is_an_output(file, name):
    with ampi.Tape() as tape:
        x = tape.watch(mine())
        u = x * x
        WRITES[name](file, u)
        u *= 0.0  # later changes do not affect the file
        y = np.sum(x)
    (output,) = tape.outputs
    assert output.shape == (N,) and name in repr(output) and "test_files" in repr(output)
    seed = numpy.arange(1.0, N + 1)
    for _ in range(2):
        numpy.testing.assert_allclose(tape.gradient(output, x, seed=seed), 2 * mine() * seed, rtol=1e-15)
        numpy.testing.assert_array_equal(tape.gradient(y, x), numpy.ones(N))  # without a seed: nothing
        both = tape.gradient((y, output), x, seed=(1.0, seed))
        numpy.testing.assert_allclose(both, 1 + 2 * mine() * seed, rtol=1e-15)
    file.Sync()
    WORLD.Barrier()
    if "shared" not in name:
        written = numpy.zeros(N)
        file.Read_at(offset(), written)
        numpy.testing.assert_array_equal(written, mine() ** 2)


def test_seed_reaches_other_ranks(file):
    """The written values depend on another rank's: the seed is propagated to them."""
    after, before = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size
    with ampi.Tape() as tape:
        x = tape.watch(mine())
        v = np.zeros(N)
        ampi.COMM_WORLD.Sendrecv(x * x, after, recvbuf=v, source=before)
        file.Write_at(offset(), v)
    seed = numpy.full(N, WORLD.rank + 1.0)
    x_bar = tape.gradient(tape.outputs[0], x, seed=seed)
    numpy.testing.assert_allclose(x_bar, 2 * mine() * (after + 1.0), rtol=1e-15)


@pytest.mark.parametrize("order", ["C", "F"])
def test_seed_has_the_shape_of_the_array(file, order):
    x0 = numpy.arange(1.0, 7).reshape(2, 3)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        u = np.asarray(numpy.zeros((2, 3), order=order))
        u[...] = x * x
        file.Write_at(offset(), u)
        part = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
        file.Write_at(offset(), [u, 1, part])
        part.Free()
    whole, elements = tape.outputs
    assert whole.shape == (2, 3) and elements.shape == (2,)
    seed = numpy.arange(6.0).reshape(2, 3)
    numpy.testing.assert_allclose(tape.gradient(whole, x, seed=seed), 2 * x0 * seed)
    picked = numpy.zeros(6)
    picked[[0, 2]] = [1.0, 2.0]
    expected = picked.reshape((2, 3), order=order) * 2 * x0
    numpy.testing.assert_allclose(tape.gradient(elements, x, seed=[1.0, 2.0]), expected)
    with pytest.raises(ampi.TapeError, match="shape"):
        tape.gradient(whole, x, seed=numpy.ones(5))
    with pytest.raises(ampi.TapeError, match="pass seed="):
        tape.gradient(whole, x)


def test_output_of_another_tape_is_refused(file):
    with ampi.Tape() as first:
        file.Write_at(offset(), first.watch(1.0))
    with ampi.Tape() as second:
        x = second.watch(1.0)
    assert first.gradient(first.outputs[0], []) == []
    with pytest.raises(ampi.TapeError, match="another tape"):
        second.gradient(first.outputs[0], x)


def test_dtypes_without_one_adjoint_are_written_without_complaint(file):
    with ampi.Tape() as tape:
        x = tape.watch(mine())
        file.Write_at(offset(), [np.asarray(x).view(numpy.uint8), 3, MPI.BYTE])
        y = np.sum(x)
    numpy.testing.assert_array_equal(tape.gradient(y, x), numpy.ones(N))
    with pytest.raises(ampi.TapeError, match="cannot carry a seed"):
        tape.gradient(tape.outputs[0], x)


def test_reading_back_what_was_written_draws_a_warning(file):
    with ampi.Tape() as tape:
        u = tape.watch(mine()) * 2.0
        file.Write_at(offset(), u)
        with pytest.warns(ampi.ActivityWarning, match="constant"):
            file.Read_at(offset(), np.zeros(N))


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_passive_data_is_no_output(file):
    with ampi.Tape() as tape:
        x = tape.watch(mine())
        file.Write_at(offset(), mine())
        file.Write_at(offset(), np.asarray(mine()))
        file.Write_at(offset(), ampi.value(x))
        with ampi.passive():
            file.Write_at(offset(), x)
    assert not tape.outputs


def test_a_read_outside_the_tape_keeps_the_values_it_needs(file):
    file.Write_at_all(offset(), mine())
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(N, 2.0))
        u = x * x
        y = u * u
    file.Read_at_all(offset(), u)
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=numpy.ones(N)), 4 * 2.0**3)
    numpy.testing.assert_array_equal(ampi.value(u), mine())
