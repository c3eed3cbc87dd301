"""Three ways to use ampi in a program: replace its communicator, `from ampi import MPI`, or change nothing at all."""

import pickle
import textwrap

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD

import ampi
from ampi.mpi.base.rules import TABLE
from ampi.mpi.guards import guard
from ampi.mpi.namespace import BASE

RING = """
    comm = {comm}
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(2, comm.rank + 2.0))
        u, v = x * x, np.zeros(2)
        w = u * 1.0
        requests = [comm.Irecv(v, MPI.ANY_SOURCE), comm.Isend(u, after)]
        {waitall}(requests)
        comm.Sendrecv(w * v, after, 1, u, before, 1)
        y = u * v
    expected = tape.gradient(y, x, seed=numpy.ones(2))
    before2 = (comm.rank - 2) % comm.size
    b, a, a2 = before + 2.0, after + 2.0, (comm.rank + 2) % comm.size + 2.0
    # y_r = (x_{{r-1}} x_{{r-2}} x_{{r-1}})²
    value = (b * b * (before2 + 2.0)) ** 2
    m = comm.rank + 2.0
    slope = 2 * (m * m * b) * 2 * m * b + 2 * (a * a * m) * a * a
    if comm.size == 1:
        slope = 6 * m**5
    numpy.testing.assert_allclose(ampi.value(y), value)
    numpy.testing.assert_allclose(expected, slope)
    print("right")
"""

HEADS = {
    "communicator": ("import ampi\nfrom mpi4py import MPI", "ampi.COMM_WORLD", "MPI.Request.Waitall"),
    "communicator, mpi4py first": ("from mpi4py import MPI\nimport ampi", "ampi.COMM_WORLD", "MPI.Request.Waitall"),
    "namespace": ("import ampi\nfrom ampi import MPI", "MPI.COMM_WORLD", "MPI.Request.Waitall"),
    "names": (
        "import ampi\nfrom ampi import MPI\nfrom ampi.MPI import COMM_WORLD, Request",
        "COMM_WORLD",
        "Request.Waitall",
    ),
    "request's method": ("import ampi\nfrom mpi4py import MPI", "ampi.COMM_WORLD", "requests[0].Waitall"),
}
RUN_HEADS = {
    "module": ("from mpi4py import MPI\nimport ampi", "MPI.COMM_WORLD", "MPI.Request.Waitall"),
    "names": (
        "from mpi4py import MPI\nfrom mpi4py.MPI import COMM_WORLD, Request\nimport ampi",
        "COMM_WORLD",
        "Request.Waitall",
    ),
}


def script(head, comm, waitall):
    body = textwrap.dedent(RING).format(comm=comm, waitall=waitall)
    return f"{head}\nimport numpy\nimport ampi.numpy as np\n{body}"


@pytest.mark.parametrize("way", HEADS)
def test_import(mpiexec, tmp_path, way):
    path = tmp_path / "program.py"
    path.write_text(script(*HEADS[way]))
    done = mpiexec(3, path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 3


@pytest.mark.parametrize("way", RUN_HEADS)
def test_run(mpiexec, tmp_path, way):
    path = tmp_path / "program.py"
    path.write_text(script(*RUN_HEADS[way]))
    done = mpiexec(3, "-m", "ampi.run", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 3


def test_original_request_class(mpiexec, tmp_path):
    """A program that uses mpi4py's own class: wildcards are refused by name, everything else is right."""
    head = "from mpi4py.MPI import Request, ANY_SOURCE\nimport ampi\nclass MPI: ANY_SOURCE = {source}"
    path = tmp_path / "program.py"
    path.write_text(script(head.format(source="(ampi.COMM_WORLD.rank - 1) % 3"), "ampi.COMM_WORLD", "Request.Waitall"))
    done = mpiexec(3, path)
    assert done.returncode == 0, done.stdout + done.stderr
    path.write_text(script(head.format(source="ANY_SOURCE"), "ampi.COMM_WORLD", "Request.Waitall"))
    done = mpiexec(3, path)
    assert done.returncode
    assert "Irecv from any rank with any tag" in done.stderr and "mpi4py's own class" in done.stderr


# ------------------------------------------------------------------------------------------------- the same names


def test_namespace():
    for name in vars(MPI):
        if not name.startswith("__"):
            assert hasattr(ampi.MPI, name)


@pytest.mark.parametrize("name", ["Intracomm", "Cartcomm", "Request", "Prequest", "Message", "Win", "File"])
def test_classes_have_all_methods_documented(name):
    ours = getattr(ampi.MPI, name)
    for method in dir(ours._base):
        if not method.startswith("_"):
            assert getattr(ours, method).__doc__


@pytest.mark.mpi
def test_windows_and_files_are_ours(tmp_path_factory):
    win = MPI.Win.Allocate(8, comm=ampi.COMM_WORLD)
    assert isinstance(win, MPI.Win) and isinstance(win, ampi.Win)
    win.Fence()
    win.Put(numpy.ones(1), WORLD.rank)
    win.Fence()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        win.Fence()
        win.Put(x, WORLD.rank)
        win.Fence()
        y = ampi.numpy.zeros(1)
        win.Get(y, WORLD.rank)
        win.Fence()
    win.Free()
    assert tape.gradient(y, x) == 1


def test_methods_without_a_rule_refuse_active_buffers(monkeypatch):
    """A method that is not in the table, such as one of a newer mpi4py, is guarded."""

    class Guarded(BASE["Intracomm"]):
        pass

    for name in ("Comm.Bcast", "Comm.Send_init"):
        monkeypatch.delitem(TABLE, name)
    guard("Comm", Guarded)
    comm = Guarded(WORLD)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        y = x * x
        with pytest.raises(ampi.ActivityError, match="Bcast has no derivative rule"):
            comm.Bcast([y, 2, MPI.DOUBLE])
        with pytest.raises(ampi.ActivityError, match="Send_init"):
            comm.Send_init(y, MPI.PROC_NULL)
        later = ampi.numpy.zeros(2)
        request = comm.Send_init(later, MPI.PROC_NULL)
        later[...] = x
        with pytest.raises(ampi.ActivityError, match="Send_init"):
            request.Start()
        comm.Bcast(numpy.ones(2))
        comm.Bcast(ampi.value(y))


def test_idle_calls_return_what_mpi4py_returns():
    comm = ampi.COMM_SELF
    a, b = numpy.ones(2), numpy.zeros(2)
    requests = [comm.Irecv(b, 0), comm.Isend(a, 0)]
    assert MPI.Request.Waitall(requests) is True
    assert comm.Sendrecv(a, 0, 0, b, 0) is None
    assert comm.Iprobe() is False and comm.Improbe() is None
    request = comm.Irecv(b, MPI.PROC_NULL)
    assert request.Test() is True


@pytest.mark.parametrize("name", ["DOUBLE", "SUM"])
def test_predefined_handles_are_not_freed(name):
    constant = getattr(ampi.MPI, name)
    constant.free()
    assert constant


@pytest.mark.parametrize("protocol", range(6))
def test_handles_of_rebound_classes_are_pickled(protocol):
    for constant in (MPI.REQUEST_NULL, MPI.WIN_NULL, MPI.SUM, MPI.COMM_NULL):
        assert pickle.loads(pickle.dumps(constant, protocol)) is constant
        copy = type(constant)(constant)
        again = pickle.loads(pickle.dumps(copy, protocol))
        assert type(again) is type(constant) and again == constant


def test_names_of_topologies_are_those_of_what_is_made():
    cart = ampi.COMM_SELF.Create_cart([1])
    assert type(cart) is MPI.Cartcomm is ampi.MPI.Cartcomm
    cart.Free()
