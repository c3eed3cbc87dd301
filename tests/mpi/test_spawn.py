"""Programs that spawn others: a plain child is unaffected; with ampi on both sides messages carry derivatives."""

import textwrap

import pytest
from mpi4py import MPI

CHILD = """
    import numpy
    from mpi4py import MPI
    parent = MPI.Comm.Get_parent()
    assert type(parent) is MPI.Intercomm
    buf = numpy.zeros(3)
    parent.Recv(buf, 0, 5)
    parent.Send(buf * 2, 0, 6)
    both = parent.Merge(True)
    assert both.allreduce(1) == both.size
    both.Free()
    parent.Disconnect()
"""
PARENT = """
    child = comm.Spawn(sys.executable, [sys.argv[1]])
    assert type(child) is MPI.Intercomm
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(3.0))
        came = np.zeros(3)
        if comm.rank == 0:
            try:
                child.Send(x, 0, 5)
            except ampi.CommunicationError as error:
                assert "ampi.MPI.Intercomm(comm)" in str(error)
                child.Send(ampi.value(x), 0, 5)
            child.Recv(came, 0, 6)
        comm.Bcast(came)
        y = x * came
        both = child.Merge()
        assert both.allreduce(1) == comm.size + 1
        both.Free()
    assert tape.gradient(y, x, seed=numpy.ones(3)).tolist() == [0.0, 2.0, 4.0]
    child.Disconnect()
    print("right")
"""
AMPI_CHILD = """
    import ampi, numpy
    import ampi.numpy as np
    from ampi import MPI
    parent = MPI.Comm.Get_parent()
    assert type(parent) is MPI.Intercomm
    comm = parent.Dup()
    with ampi.Tape() as tape:
        v = np.zeros(3)
        for rank in range(comm.Get_remote_size()):
            comm.Recv(v, rank, 5)
            comm.Send(v * v, rank, 6)
    tape.gradient(None, None)
    comm.Free()
    parent.Disconnect()
"""
AMPI_PARENT = """
    child = comm.Spawn(sys.executable, [sys.argv[1]])
    comm = child.Dup()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(3.0) + comm.rank)
        y = np.zeros(3)
        comm.Send(x * x, 0, 5)
        comm.Recv(y, 0, 6)
        y = y * 1.0
    numpy.testing.assert_allclose(ampi.value(y), ampi.value(x) ** 4)
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=numpy.ones(3)), 4 * ampi.value(x) ** 3)
    comm.Free()
    child.Disconnect()
    print("right")
"""
HEAD = "import sys, ampi, numpy\nimport ampi.numpy as np\nfrom ampi import MPI\ncomm = ampi.COMM_WORLD\n"


@pytest.mark.skipif("Intel" in MPI.Get_library_version(), reason="Intel MPI needs its own settings to spawn")
@pytest.mark.parametrize(("parent", "child"), [(PARENT, CHILD), (AMPI_PARENT, AMPI_CHILD)], ids=["plain", "ampi"])
def test_spawn(mpiexec, tmp_path, parent, child):
    (tmp_path / "child.py").write_text(textwrap.dedent(child))
    (tmp_path / "parent.py").write_text(HEAD + textwrap.dedent(parent))
    done = mpiexec(2, tmp_path / "parent.py", tmp_path / "child.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 2
