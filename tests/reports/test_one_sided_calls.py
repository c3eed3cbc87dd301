"""Reports of one-sided operations, however the program writes their arguments."""

import re

PROGRAM = """
import numpy
from mpi4py import MPI
comm = MPI.COMM_WORLD
x, y, win = numpy.ones(3), numpy.ones(3), MPI.Win.Allocate(24, 8, comm=comm)
other = numpy.int64(1 - comm.rank)
win.Fence()
win.Put(x, other)
win.Put(target_rank=other, origin=x)
win.Get(target_rank=int(other), origin=y)
win.Fence()
win.Get_accumulate(x, y, other, op=MPI.NO_OP)
win.Fence()
win.Fetch_and_op(x[:1], y[:1], other, numpy.int64(1))
win.Fence()
win.Get_accumulate([None, 0, MPI.DOUBLE], y, other, op=MPI.NO_OP)
win.Fence()
win.Lock_all()
win.Rget_accumulate(x, y, other).Wait()
win.Unlock_all()
win.Free()
print("over")
"""


def test_ranks_of_numpy_and_keywords_in_any_order(mpiexec, tmp_path):
    """A target's rank that NumPy had computed ended the program with StopIteration."""
    program = tmp_path / "accesses.py"
    program.write_text(PROGRAM)
    done = mpiexec(2, "-m", "ampi.run", "--profile", program)
    assert not done.returncode and done.stdout.count("over") == 2, done.stderr
    sizes = {line: 48 for line in (8, 9, 10, 12, 16)} | {14: 16 * 2, 19: 48 * 2}
    for line, size in sizes.items():
        assert re.search(rf"accesses\.py:{line} [\w.]+ +2 +0 +0 +{size} B ", done.stdout), done.stdout
