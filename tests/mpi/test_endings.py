"""Plain ``python`` on several ranks: how a program ends on one of them, for the others."""

import pytest

START = """
import os, signal, sys, threading, time
{before}
import numpy
import ampi, ampi.numpy as np
comm = ampi.COMM_WORLD
rank = comm.rank

def sweep(how):
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        y = np.zeros(2)
        comm.Sendrecv(x * x, (rank + 1) % comm.size, 0, y, (rank - 1) % comm.size)
    if rank == 1:
        tape.append(how)
    tape.gradient(y, x, seed=numpy.ones(2))

def interrupt(sweep=None):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(9)
"""


@pytest.fixture
def run(mpiexec, tmp_path):
    """``run(source)``: run a program that starts as above."""

    def run(source, *runner, ranks=2, before=""):
        path = tmp_path / "program.py"
        path.write_text(START.format(before=before) + source)
        return mpiexec(ranks, *runner, path)

    return run


ENDINGS = {
    "rank == 1 and sys.exit(3); comm.Barrier()": 3,
    "rank == 1 and exit('a message'); comm.Barrier()": 1,
    "rank == 1 and interrupt(); comm.Barrier()": 130,
    "sweep(lambda _: sys.exit(3))": 3,
    "sys.exit(4)": 4,
}
IN_SWEEPS = {"sweep(lambda _: sys.exit(3))": 3, "sweep(lambda _: sys.exit(0))": 1, "sweep(interrupt)": 130}


@pytest.mark.parametrize("statement", ENDINGS)
def test_status(run, statement):
    result = run(statement)
    assert result.returncode == ENDINGS[statement], result.stderr
    assert statement != "sys.exit(4)" or "Abort" not in result.stderr  # no rank has waited for another


@pytest.mark.parametrize("statement", IN_SWEEPS)
def test_status_of_sweeps_under_the_runner(run, statement):
    result = run(statement, "-m", "ampi.run")
    assert result.returncode == IN_SWEEPS[statement], result.stderr


def test_an_exception_is_shown_by_the_hook_before_and_ends_all_ranks(run):
    hook = "sys.excepthook = lambda *error: print('mine', error[0].__name__)"
    result = run("rank == 2 and 1 / 0; comm.Barrier()", ranks=3, before=hook)
    assert result.returncode == 1
    assert "mine ZeroDivisionError" in result.stdout
    assert "Rank 2 of 3 failed" in result.stderr


def test_what_does_not_end_the_program(run):
    result = run("""
import code, pickle
try:
    sys.exit(3)
except SystemExit as error:
    assert error.code == 3 and type(pickle.loads(pickle.dumps(error))) is SystemExit
for target, arguments in (lambda: 1 / 0, ()), (sys.exit, (3,)):
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    thread.join()
code.InteractiveInterpreter().runsource("1 / 0")
if rank == 1:
    time.sleep(2)
print(comm.allreduce(1))
""")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["2", "2"]


def test_a_rank_that_ends_while_others_wait_reports_it(run):
    result = run("""
import ampi.mpi.endings
ampi.mpi.endings.SOON = 1.0
if rank == 1:
    sys.exit(0)
request = comm.Ibarrier()
time.sleep(5)
os._exit(5)
""")
    assert "rank 1 of 2 has ended and rank 0 has not" in result.stderr


def test_it_can_be_switched_off(run, monkeypatch):
    monkeypatch.setenv("AMPI_ABORT", "0")
    result = run("print(sys.excepthook is sys.__excepthook__, sys.exit.__module__)")
    assert result.stdout.split() == ["True", "sys"] * 2


def test_wrong_setting(run, monkeypatch):
    monkeypatch.setenv("AMPI_ABORT", "no")
    result = run("")
    assert result.returncode == 1
    assert "AMPI_ABORT is 'no'; it can be 0" in result.stderr
