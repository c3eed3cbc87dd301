"""Many processes that need the same kernels: one compiles each kernel, the others wait, and all finish."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from patience import patience

PROGRAM = """
import json, os, random, signal, sys, time
import numpy as np
import ampi
from ampi.kernel.runtime import cache, files

COUNT = int(sys.argv[1])
KILLED = sys.argv[2:]

@ampi.kernel
def inner(x):
    return x * x + 1.0

@ampi.kernel
def left(x, y):
    for i in range(1, x.shape[0]):
        y[i] = y[i - 1] * x[i] + inner(x[i])

@ampi.kernel
def right(x, y):
    for i in range(1, x.shape[0]):
        y[i] = inner(y[i - 1]) + x[i]

@ampi.kernel
def both(x, y):
    left(x, y)
    right(y, x)

def gradient(kernel):
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0, 3.0]))
        u, y = x * 1.0, ampi.numpy.zeros(3)
        kernel(u, y)
        s = np.sum(u) + np.sum(y)
    return tape.gradient(s, x).tolist()

compiled = []
real = cache.vectorised_extremes

def counted():  # what is entered where something is compiled
    if KILLED:
        try:
            os.close(os.open(KILLED[0], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    name = next(iter(n for n in files._held if n not in compiled and not n.startswith(("costs", "done"))))
    compiled.append(name)
    return real()

cache.vectorised_extremes = counted

def work(number):
    order = [inner, left, right, both]
    random.Random(number).shuffle(order)
    found = {k.__name__: k(3.0) if k is inner else gradient(k) for k in order}
    made = [n for n in compiled]
    with open(f"answer-{number}", "w") as file:
        json.dump([found, made], file)

children = []
for number in range(COUNT):
    child = os.fork()
    if not child:
        status = 1
        try:
            work(number)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    children.append(child)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""


def run(tmp_path, count, *arguments):
    """Exit statuses of the processes, and what the successful ones found and compiled."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PROGRAM))
    environment = {**os.environ, "AMPI_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_NUM_THREADS": "1"}
    forks = "ignore:This process:DeprecationWarning"  # threads of libraries that these children do not use
    command = [sys.executable, "-W", forks, str(script), str(count), *arguments]
    answer = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=patience(250)
    )
    assert answer.returncode == 0, answer.stderr
    assert "Warning" not in answer.stderr, answer.stderr
    answers = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("answer-*"))]
    for path in tmp_path.glob("answer-*"):
        path.unlink()
    return json.loads(answer.stdout), [a[0] for a in answers], [name for a in answers for name in a[1]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [6, pytest.param(16, marks=pytest.mark.slow)])
def test_many_processes_compile_once(tmp_path, count):
    """Several kernels, some of which call others, compiled by each process in a different order."""
    statuses, found, compiled = run(tmp_path, count)
    assert statuses == [0] * count
    assert len(found) == count and all(f == found[0] for f in found)
    assert found[0]["left"] == [1.0, 17.0, 12.0] and found[0]["inner"] == 10.0
    assert len(compiled) == len(set(compiled)) >= 7, sorted(compiled)
    assert run(tmp_path, 2)[2] == []


@pytest.mark.timeout(300)
def test_a_process_killed_while_compiling_blocks_no_other(tmp_path):
    statuses, found, compiled = run(tmp_path, 6, str(tmp_path / "killed"))
    assert sorted(statuses) == [-9, 0, 0, 0, 0, 0]
    assert len(found) == 5 and all(f == found[0] for f in found)
    assert len(compiled) == len(set(compiled)), sorted(compiled)
