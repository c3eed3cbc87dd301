"""Steps that run again have their effects once: `ampi.once`, and writes to files."""

import os
import random as randomness

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi import MPI
from ampi.checkpoint import folder
from ampi.mpi import COMM_WORLD

RANK, SIZE = COMM_WORLD.rank, COMM_WORLD.size
N = 3
X = numpy.array([0.3, 0.7, 1.1]) + 0.1 * RANK
MODE = MPI.MODE_CREATE | MPI.MODE_RDWR
ETYPES = {"bytes": MPI.BYTE, "doubles": MPI.DOUBLE}


def place(n):
    return (n * SIZE + RANK) * 8 * N


def seek(f, n):
    f.Seek(place(n) // f.size_of_etype)


# Each writes u as what step n of this rank has to say; collective ones on all ranks.
WRITES = {
    "Write_at": lambda f, n, u: f.Write_at(place(n), u),
    "Write_at_all": lambda f, n, u: f.Write_at_all(place(n), u),
    "Iwrite_at": lambda f, n, u: f.Iwrite_at(place(n), u).Wait(),
    "Iwrite_at_all": lambda f, n, u: MPI.Request.Waitall([f.Iwrite_at_all(place(n), u)]),
    "Write_at_all_begin": lambda f, n, u: (f.Write_at_all_begin(place(n), u), f.Write_at_all_end(u)),
    "Write": lambda f, n, u: (seek(f, n), f.Write(u)),
    "Write_all": lambda f, n, u: (seek(f, n), f.Write_all(u)),
    "Iwrite": lambda f, n, u: (seek(f, n), f.Iwrite(u).Wait()),
    "Iwrite_all": lambda f, n, u: (seek(f, n), f.Iwrite_all(u).Wait()),
    "Write_all_begin": lambda f, n, u: (seek(f, n), f.Write_all_begin(u), f.Write_all_end(u)),
    "Write_ordered": lambda f, n, u: f.Write_ordered(u),
    "Write_ordered_begin": lambda f, n, u: (f.Write_ordered_begin(u), f.Write_ordered_end(u)),
    "set view and write": lambda f, n, u: (f.Set_view(place(n), MPI.DOUBLE), f.Write_all(u)),
    "one after the other": lambda f, n, u: f.Write(u),
    "two files at the end": lambda f, n, u: (f.Write(u[:1].copy()), f.Write(u[1:].copy())),
}
APPEND = ("Write_ordered", "Write_ordered_begin")
OWN = ("one after the other", "two files at the end")


class Drawn:
    """A loop whose steps print and write in random ways."""

    def __init__(self, seed, top):
        draw = randomness.Random(seed)
        self.top = top
        self.ways = draw.sample(sorted(WRITES), 3)
        self.steps = draw.choice([1, 2, 5, 9, 16])
        self.etype = draw.choice(sorted(ETYPES))
        self.reads = draw.random() < 0.5
        self.closes = not self.reads and draw.random() < 0.4
        self.options = draw.choice(
            [{"checkpoints": 1}, {"checkpoints": 2}, {"checkpoints": 3}, {"checkpoints": 40}, {"memory": "1MiB"}]
        )
        self.until = draw.random() < 0.3
        if draw.random() < 0.3:
            self.options = {**self.options, "storage": f"{top}/states-{seed}"}
        self.inner = draw.random() < 0.3

    def run(self, x, name, loops):
        """The objective, and all that is left of it beside: what was said, files' bytes, where pointers are."""
        said, files, paths = [], [], [f"{self.top}/{name}-{k}" for k in range(len(self.ways))]
        for way, path in zip(self.ways, paths):
            named, comm = (f"{path}-{RANK}", ampi.COMM_SELF) if way in OWN else (path, COMM_WORLD)
            files.append(MPI.File.Open(comm, named, MODE))
            files[-1].size_of_etype = 1
            if way == "Write" or way in OWN:
                files[-1].Set_view(0, ETYPES[self.etype])
                files[-1].size_of_etype = ETYPES[self.etype].Get_size()
        with open(f"{self.top}/{name}-input-{RANK}", "wb") as file:
            file.write((numpy.arange(20.0) * 0.01).tobytes())
        source = MPI.File.Open(ampi.COMM_SELF, f"{self.top}/{name}-input-{RANK}", MPI.MODE_RDONLY)

        def step(state):
            n, u = state["n"], state["u"]
            came = numpy.zeros(1)
            if self.reads:
                source.Read(came)  # one after the other
            u *= 1.0 - 0.1 * u + came[0]
            for way, file in zip(self.ways, files):
                WRITES[way](file, n, u)
            if self.inner:
                self.loop(lambda v: ampi.once(said.append, ("inner", n)), u, 2, loops)
            if ampi.once():
                said.append(n)
            assert ampi.once(lambda a, b: a + b, n, b=1) in (n + 1, None)
            state["n"] += 1

        state = {"u": x * 1.0, "n": 0}
        state = self.loop(step, state, self.steps, loops, **(self.options if loops else {}))
        for file, way in zip(files, self.ways):
            if way in OWN:
                file.Write(ampi.constant(numpy.full(2, 7.0)))  # after the loop the pointers are where they are to be
        left = lambda: self.closed(said, files, [*paths, *(f"{path}-{RANK}" for path in paths)], source)
        found = left() if self.closes else None  # before the sweep
        self.left = lambda: found or left()
        return np.sum(state["u"] ** 2)

    def loop(self, step, state, steps, loops, **options):
        if loops:
            how = {"until": lambda state: state["n"] >= steps} if self.until and options else {"steps": steps}
            comm = COMM_WORLD.Dup() if "storage" in options or self.until else COMM_WORLD
            return ampi.timeloop(step, state, comm=comm, **how, **options)
        for _ in range(steps):
            step(state)
        return state

    def closed(self, said, files, paths, source):
        COMM_WORLD.Barrier()  # all ranks have written
        pointers = [file.Get_position() for file in (*files, source)]
        sizes = [file.Get_size() for file in files]
        COMM_WORLD.Barrier()
        for way, file in zip(self.ways, files):
            if way in OWN:
                file.Write(ampi.constant(numpy.full(1, 8.0)))
            file.Close()
        source.Close()
        COMM_WORLD.Barrier()
        contents = [open(path, "rb").read() for path in paths if os.path.exists(path)]
        return said, pointers, sizes, contents


@pytest.mark.mpi
@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.slow) if n & 2 else n for n in range(40)])
def test_output_and_files_are_those_of_the_plain_loop(seed, tmp_path):
    drawn = Drawn(seed, COMM_WORLD.bcast(str(tmp_path)))
    folder._opened.clear()
    expected, back = ampi.vjp(lambda x: drawn.run(x, "plain", False), X)
    wanted, plain = back(1.0), drawn.left()
    found, back = ampi.vjp(lambda x: drawn.run(x, "loop", True), X)
    again = [back(1.0) for _ in range(2)]
    left = drawn.left()
    assert found == expected and plain[0][-1] == drawn.steps - 1
    for x_bar in again:
        numpy.testing.assert_allclose(x_bar, wanted, rtol=1e-12)
    for name, a, b in zip(("said", "pointers", "sizes", "contents"), left, plain, strict=True):
        assert a == b, f"{name}: {drawn.ways} {drawn.options}"


@pytest.mark.mpi
def test_files_that_a_step_makes_and_removes(tmp_path):
    top = COMM_WORLD.bcast(str(tmp_path))

    def step(state):
        name = f"{top}/{RANK}-{state['n']}"
        file = MPI.File.Open(ampi.COMM_SELF, name, MODE | MPI.MODE_EXCL)
        state["u"] *= 0.5
        status = MPI.Status()
        file.Write(state["u"], status)
        assert status.Get_count(MPI.DOUBLE) == N
        file.Set_size(8 * N + 1 + state["n"])
        file.Preallocate(8 * N)
        file.Close()
        if state["n"] % 2:
            with open(name, "rb") as there:
                state["bytes"] = len(there.read())
        state["n"] += 1

    def final(x):
        return np.sum(ampi.timeloop(step, {"u": x * 1.0, "n": 0, "bytes": 0}, 7, checkpoints=2)["u"])

    numpy.testing.assert_array_equal(ampi.grad(final)(X), numpy.full(N, 0.5**7))
    for n in range(7):
        text = open(f"{top}/{RANK}-{n}", "rb").read()
        assert len(text) == 8 * N + 1 + n and numpy.array_equal(numpy.frombuffer(text[: 8 * N]), X * 0.5 ** (n + 1))

    def removing(state):
        MPI.File.Delete(f"{top}/{RANK}-{state['n']}")
        state["u"] *= 0.5
        state["n"] += 1

    ampi.grad(lambda x: np.sum(ampi.timeloop(removing, {"u": x * 1.0, "n": 0}, 7, checkpoints=2)["u"]))(X)
    assert not [name for name in os.listdir(top) if name.startswith(f"{RANK}-")]


@pytest.mark.mpi
def test_views_sizes_and_reads_between_writes(tmp_path):
    """What a file is after the sweep, and what steps read behind what they would write, is as in the plain loop."""
    top = COMM_WORLD.bcast(str(tmp_path))

    def run(loops):
        paths = [f"{top}/{name}-{loops}-{RANK}" for name in ("viewed", "both", "grown")]
        for path in paths[:2]:
            with open(path, "wb") as file:
                file.write((0.01 * numpy.arange(100.0)).tobytes())
        viewed, both, grown = (MPI.File.Open(ampi.COMM_SELF, path, MODE) for path in paths)

        def step(state):
            n, came = state["n"], numpy.zeros(2)
            viewed.Set_view(16 * n, MPI.DOUBLE)
            both.Write(state["u"])
            both.Read(came)
            state["u"] *= 1.0 - came[1]
            viewed.Write(state["u"][:1].copy())
            grown.Set_size(8 * n + 1)
            state["n"] += 1

        def final(x):
            state = {"u": x * 1.0, "n": 0}
            if loops:
                ampi.timeloop(step, state, 9, checkpoints=2)
            else:
                for _ in range(9):
                    step(state)
            return np.sum(state["u"] ** 2)

        x_bar = ampi.grad(final)(X)
        for file in (viewed, both):
            file.Write(numpy.full(1, 8.0))
        for file in (viewed, both, grown):
            file.Close()
        return x_bar, [open(path, "rb").read() for path in paths]

    (x_bar, contents), (expected, plain) = run(True), run(False)
    numpy.testing.assert_allclose(x_bar, expected, rtol=1e-12)
    assert contents == plain


@pytest.mark.mpi
def test_reads_by_the_shared_pointer_are_refused_where_they_cannot_be_right(tmp_path):
    path = COMM_WORLD.bcast(str(tmp_path / "shared"))
    file = MPI.File.Open(COMM_WORLD, path, MODE)
    file.Set_size(8 * 100)

    def gradient(read, last):
        def step(u):
            read(numpy.zeros(1))
            u *= 0.5

        def final(x):
            found = np.sum(ampi.timeloop(step, x * 1.0, 5, checkpoints=1, comm=COMM_WORLD.Dup()))
            last()
            return found

        return ampi.grad(final)(X)

    with pytest.raises(ampi.CommunicationError, match=r"File.Read_ordered in a step of ampi.timeloop.*Read_at"):
        gradient(file.Read_ordered, lambda: None)
    with pytest.raises(ampi.CommunicationError, match=r"from .*shared, which has been closed"):
        gradient(lambda values: file.Read_at(8, values), file.Close)


class Killed(Exception):
    """Raised instead of a signal."""


@pytest.mark.mpi
@pytest.mark.parametrize("n", [2, 6, 12, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 8, 10))])
def test_after_a_kill_only_the_steps_since_the_last_state_are_done_again(n, tmp_path, monkeypatch):
    """All that a step writes is there in the end, at its place; what it says, it says again for some steps at most."""
    top = COMM_WORLD.bcast(str(tmp_path))
    said, left = [], [n]
    save = folder.Folder.save

    def save_or_stop(self, *arguments):
        save(self, *arguments)
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    def final(x, name):
        file = MPI.File.Open(ampi.COMM_SELF, f"{top}/{name}-{RANK}", MODE)

        def step(state):
            state["u"] *= 1.0 - 0.1 * state["u"]
            file.Write(state["u"])
            ampi.once(said.append, state["n"])
            state["n"] += 1

        state = {"u": x * 1.0, "n": 0}
        options = {"checkpoints": 2, "storage": f"{top}/states-{name}", "resume": True, "comm": COMM_WORLD.Dup()}
        try:
            return np.sum(ampi.timeloop(step, state, 20, **options)["u"])
        finally:
            file.Close()

    folder._opened.clear()
    expected = ampi.grad(lambda x: final(x, "whole"))(X)
    assert said == list(range(20))
    said.clear()
    folder._opened.clear()
    with monkeypatch.context() as patch:
        patch.setattr(folder.Folder, "save", save_or_stop)
        with pytest.raises((Killed, ampi.CommunicationError)):  # of one that still waits for another
            ampi.grad(lambda x: final(x, "killed"))(X)
    first = len(said)
    assert said == list(range(first))
    folder._opened.clear()
    found = ampi.grad(lambda x: final(x, "killed"))(X)
    assert found.tobytes() == expected.tobytes()
    again = said[first:]
    assert sorted(set(said)) == list(range(20)) and again == list(range(20 - len(again), 20))
    assert len(said) <= 20 + 3  # that is the distance of states
    whole, killed = (open(f"{top}/{name}-{RANK}", "rb").read() for name in ("whole", "killed"))
    assert whole == killed


def test_outside_of_a_loop_everything_is_done():
    assert ampi.once() and ampi.once(max, 1, 2) == 2
    with ampi.Tape():
        assert ampi.once()
