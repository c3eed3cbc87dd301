"""Tapes with a memory budget: what goes to a file and comes back gives the gradient that memory gives, bit by bit."""

import gc
import os
import pathlib
import subprocess
import sys
import time

import numpy
import pytest
from patience import patience

import ampi
import ampi.numpy as np
from ampi.tape.budget import bytes_of

comm = ampi.COMM_WORLD
RIGHT, LEFT = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
N = 300


@ampi.kernel
def smooth(u, v):
    for i in range(1, u.shape[0] - 1):
        v[i] = 0.9 * v[i] + 0.1 * u[i - 1] * u[i + 1]


@ampi.kernel
def wave(u, v):
    """Keeps values of its run: its local array is read by the adjoint."""
    w = u.copy()
    for _k in range(4):
        for i in range(1, u.shape[0] - 1):
            w[i] = w[i] + 0.1 * w[i - 1] * w[i] - 0.05 * w[i + 1] ** 2
    for i in range(u.shape[0]):
        v[i] = w[i]


KINDS = "slice whole key mask reversed small rows smooth wave ring item".split()


def draw(rng, length):
    """A program: what it does, step by step, to four arrays of ``N`` numbers."""
    steps = []
    for _ in range(length):
        kind = rng.choice(KINDS)
        a, b = (int(k) for k in rng.integers(4, size=2))
        begin = int(rng.integers(0, N // 2))
        end = int(rng.integers(begin + 1, N + 1))
        where = rng.permutation(N)[: int(rng.integers(1, N))]
        steps.append((kind, a, b, begin, end, where))
    return steps


def run(steps, arrays):
    for kind, a, b, begin, end, where in steps:
        u, v = arrays[a], arrays[b]
        if kind == "slice":
            u[begin:end] *= 1.0 + 0.1 * v[begin:end]
        elif kind == "whole":
            u[:] = 0.5 * u * u + 0.3 * np.sin(v)
        elif kind == "key":
            u[where] = u[where] * v[where] * 0.7 + 0.1
        elif kind == "mask":
            u[ampi.value(v) > 0.5] *= 0.9
        elif kind == "reversed":
            u[::-2] += 0.1 * v[::-2] * u[::-2]
        elif kind == "small":
            u[begin : begin + 3] = v[begin : begin + 3] * u[begin : begin + 3]
        elif kind == "rows":
            u.reshape(3, -1).T[begin % 50 :, 1:] *= 0.8 + 0.1 * v.reshape(3, -1).T[begin % 50 :, :2]
        elif kind == "smooth" and a != b:
            smooth(u, v)
        elif kind == "wave" and a != b:
            wave(u, v)
        elif kind == "ring":
            comm.Sendrecv(u[begin:end].copy(), RIGHT, recvbuf=v[begin:end], source=LEFT)
            v[begin:end] *= u[begin:end]
        elif kind == "item":
            for i in range(begin, min(end, begin + 5)):
                u[i] = u[i] * v[i]
    return sum(np.sum(x * x * (k + 1.0)) for k, x in enumerate(arrays))


def taped(steps, start, **budget):
    with ampi.Tape(**budget) as tape:
        watched = [tape.watch(x) for x in start]
        arrays = [x * 1.0 for x in watched]
        y = run(steps, arrays)
    return tape, watched, arrays, y


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        numpy.testing.assert_array_equal(a.view(numpy.uint64), b.view(numpy.uint64))


@pytest.mark.mpi
@pytest.mark.parametrize("seed", range(24))
def test_what_was_in_a_file_gives_the_same_bits(seed, tmp_path):
    """Drawn programs, on tapes without and with a budget; swept thrice, with another seed between."""
    rng = numpy.random.default_rng([seed, 16])
    steps = draw(rng, int(rng.integers(5, 60)))
    start = [numpy.random.default_rng([seed, comm.rank, k]).uniform(0.4, 0.9, N) for k in range(4)]
    tape, watched, arrays, y = taped(steps, start)
    expected = tape.gradient(y, watched)
    others = tape.gradient(arrays[0], watched, seed=start[1])
    budget = int(rng.choice([1000, 10_000, 50_000]))
    tape, watched, arrays, y = taped(steps, start, memory=budget, spill=str(tmp_path))
    assert not os.listdir(tmp_path)
    if tape.saved_bytes > 4 * budget + 20_000:
        assert tape.budget.file.nbytes > tape.saved_bytes / 4
    final = [numpy.array(ampi.value(x)) for x in arrays]
    same(tape.gradient(y, watched), expected)
    same([numpy.array(ampi.value(x)) for x in arrays], final)
    same(tape.gradient(arrays[0], watched, seed=start[1]), others)
    same(tape.gradient(y, watched), expected)
    same([numpy.array(ampi.value(x)) for x in arrays], final)


@pytest.mark.mpi
@pytest.mark.parametrize("seed", range(8))
def test_walks_exchange_what_is_in_the_file(seed, tmp_path):
    """⟨ȳ, ẏ⟩ = ⟨x̄, ẋ⟩ over all ranks, forward, back and forward again."""
    rng = numpy.random.default_rng([seed, 17])
    steps = [step for step in draw(rng, 30) if step[0] not in ("wave",)]
    start = [numpy.random.default_rng([seed, comm.rank, k]).uniform(0.4, 0.9, N) for k in range(4)]
    dots = [numpy.random.default_rng([seed, comm.rank, k, 1]).standard_normal(N) for k in range(4)]
    tape, watched, _, y = taped(steps, start)
    expected = tape.gradient(y, watched)
    tangent = tape.tangent(y, watched, dots)
    tape, watched, arrays, y = taped(steps, start, memory=5000, spill=tmp_path)
    final = [numpy.array(ampi.value(x)) for x in arrays]
    for _ in range(2):
        same([tape.tangent(y, watched, dots)], [tangent])
        same([numpy.array(ampi.value(x)) for x in arrays], final)
        same(tape.gradient(y, watched), expected)
        same([numpy.array(ampi.value(x)) for x in arrays], final)
    left = comm.allreduce(float(tangent))
    right = comm.allreduce(float(sum(numpy.vdot(g, d) for g, d in zip(expected, dots))))
    assert left == pytest.approx(right, rel=1e-10)


def test_several_tapes_share_memory_and_folder(tmp_path):
    """A tape that is closed keeps what it needs of arrays that the next one overwrites."""
    x0 = numpy.linspace(0.5, 0.9, 5000)

    def compute(u, x):
        u[:] = x
        for _ in range(20):
            u *= 1.2 - 0.2 * u
        return u * 1.0

    u = np.array(x0)
    with ampi.Tape(memory=50_000, spill=tmp_path) as first:
        x = first.watch(x0)
        z = compute(u, x)
    with ampi.Tape(memory=50_000, spill=tmp_path) as second:
        w = second.watch(numpy.full(5000, 0.5))
        for _ in range(20):
            u[:] = np.sin(w) * w
            w *= 0.9
        y = np.sum(u)
    assert first.budget.file.nbytes > 200_000 < second.budget.file.nbytes
    assert second.gradient(y, w).shape == (5000,)
    expected = ampi.grad(lambda x: np.sum(compute(np.zeros(5000), x)))(x0)
    assert expected.min() > 0.01
    numpy.testing.assert_allclose(first.gradient(z, x, seed=numpy.ones(5000)), expected, rtol=1e-12)


def test_a_gradient_inside_of_the_open_tape_leaves_the_rest_right(tmp_path):
    x0 = numpy.linspace(0.5, 0.9, 5000)

    def program(x):
        u = x * 1.0
        for _ in range(12):
            u *= 0.2 + u
        return u

    with ampi.Tape(memory=100_000, spill=tmp_path) as tape:
        x = tape.watch(x0)
        u = program(x)
        y = np.sum(u)
        middle = tape.gradient(y, x)
        u *= u
        z = np.sum(u)
    with ampi.Tape() as plain:
        x1 = plain.watch(x0)
        u1 = program(x1)
        y1 = np.sum(u1)
        same([middle], [plain.gradient(y1, x1)])
        u1 *= u1
        z1 = np.sum(u1)
    same([tape.gradient(z, x)], [plain.gradient(z1, x1)])


def test_a_time_loop_rolls_back_on_a_tape_with_a_file(tmp_path):
    def step(u):
        u *= 1.05 - 0.05 * u

    def final(u0, **budget):
        with ampi.Tape(**budget) as tape:
            x = tape.watch(u0)
            u = x * 1.0
            for _ in range(4):
                u *= u
                u = ampi.timeloop(step, u, steps=9, memory="1MiB")
            y = np.sum(u)
        return tape.gradient(y, x), tape

    u0 = numpy.linspace(0.9, 1.1, 4000)
    expected, _ = final(u0)
    found, tape = final(u0, memory=60_000, spill=tmp_path)
    assert tape.budget.file.nbytes
    same([found], [expected])


@pytest.mark.parametrize("spill", [False, True])
def test_states_of_a_time_loop_are_of_the_budget(spill, tmp_path):
    """Without checkpoints= there are as many as the budget has room for; of more it is an error."""

    def step(u):
        u *= 1.05 - 0.05 * u

    def run(**kept):
        with ampi.Tape(memory=n * u0.nbytes, spill=tmp_path if spill else None) as tape:
            x = tape.watch(u0)
            u = ampi.timeloop(step, x * 1.0, steps=60, progress=seen.append, **kept)
            y = np.sum(u * u)
        return tape.gradient(y, x)

    u0, seen, n = numpy.linspace(0.9, 1.1, 10_000), [], 40
    expected = run(memory="1GiB")  # of the loop's own
    with pytest.raises(ampi.TapeError, match=r"test_budget\.py.*(timeloop|old values)"):
        run(checkpoints=60)
    same([run()], [expected])
    assert 60 < seen[-1].executed < 240 and seen[-1].memory_peak < n * u0.nbytes
    n = 8
    with pytest.raises(ampi.TapeError, match="too small on some rank"):
        run()


def heavy(x):
    u = x * 1.0
    for _ in range(5):
        u *= u
    for _ in range(100):
        u *= u + 0.5  # most
    return np.sum(u)


def test_without_a_folder_the_lines_that_keep_most_are_named():
    x0 = numpy.full(1000, 0.4)
    with ampi.Tape(memory="400KiB") as tape:
        x = tape.watch(x0)
        with pytest.raises(ampi.TapeError, match=r"budget of 400 KiB") as caught:
            heavy(x)
    said = str(caught.value)
    lines = [line for line in said.splitlines() if "test_budget.py:" in line and " KiB " in line]
    here = pathlib.Path(__file__).read_text().splitlines()
    first = here[int(lines[0].rsplit(":", 1)[1]) - 1]
    assert "most" in first and len(lines) == 2 and "spill=True" in said
    with pytest.raises(ampi.TapeError, match="incomplete"):
        tape.gradient(x, x, seed=x0)
    with pytest.raises(ampi.TapeError, match="incomplete"):
        tape.tangent(x, x, x0)
    with ampi.Tape(memory="4MiB") as tape:
        x = tape.watch(x0)
        y = heavy(x)
    assert tape.gradient(y, x).shape == (1000,)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"memory": "much"}, "write a number of bytes"),
        ({"spill": True}, "needs memory"),
        ({"memory": 10, "spill": "/nowhere/at/all"}, "folder that exists"),
        ({"memory": 10, "spill": 3.5}, "folder that exists"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, message):
    with pytest.raises(ampi.TapeError, match=message):
        ampi.Tape(**arguments)


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with ampi.Tape(memory=100_000, spill=tmp_path) as tape:
        x = tape.watch(numpy.full(5000, 0.4))
        with pytest.raises(ampi.TapeError, match="no room for"):
            heavy(x)


def test_writing_that_fails_is_an_error(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwritev", broken)
    with ampi.Tape(memory=100_000, spill=tmp_path) as tape:
        x = tape.watch(numpy.full(5000, 0.4))
        with pytest.raises(ampi.TapeError, match=r"cannot write .* bytes"):
            heavy(x)
    monkeypatch.undo()
    with pytest.raises(ampi.TapeError, match="incomplete"):
        tape.gradient(x, x, seed=numpy.ones(5000))


def test_memory_stays_in_the_budget(tmp_path):
    """A program of its own: a tape of 400 MB with a budget of 40 MB, its sweep included."""
    code = """
import resource, sys, numpy, ampi, ampi.numpy as np
def program(n, **budget):
    with ampi.Tape(**budget) as tape:
        x = tape.watch(numpy.full(250_000, 0.4))
        u = x * 1.0
        for _ in range(n):
            np.multiply(u, u, out=u)
            np.sqrt(u, out=u)
        y = np.sum(u)
    return tape, tape.gradient(y, x)
program(2, memory=10**9)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tape, _ = program(100, memory="40MB", spill=sys.argv[1])
print(tape.saved_bytes, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "HYDRA", "OMPI"))}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=alone)
    saved, grown = map(int, done.stdout.split())
    assert saved > 390_000_000 and grown < 60_000_000


def test_files_are_closed_with_their_tapes(tmp_path):
    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def program():
        with ampi.Tape(memory=50_000, spill=tmp_path) as tape:
            x = tape.watch(numpy.full(5000, 0.4))
            heavy(x)
        assert tape.budget.file.nbytes

    program()
    before = descriptors()
    for _ in range(5):
        program()
    end = time.monotonic() + patience(5)
    while descriptors() > before and time.monotonic() < end:
        time.sleep(0.01)  # what was to be written is written first
    assert descriptors() <= before


@pytest.mark.parametrize(
    "text, nbytes", [("500 kB", 500_000), ("500KB", 500_000), ("2 KiB", 2048), ("1.5 MB", 1_500_000)]
)
def test_sizes_are_read_in_powers_of_ten_and_of_two(text, nbytes):
    assert bytes_of(text, "test") == nbytes
