"""Folders of time loops that are refused: of other runs, damaged, of other users, or not writable."""

import errno
import os
import random as randomness
import threading
import types

import numpy
import pytest
from new_processes import as_new_process

import ampi
import ampi.numpy as np
from ampi.checkpoint import folder, safety
from ampi.mpi import COMM_WORLD


@pytest.mark.mpi(min_size=2)
def test_another_number_of_ranks_is_refused(shared):
    def final(u0, comm):
        return np.sum(
            ampi.timeloop(lambda u: u * u, u0, steps=4, checkpoints=1, storage=shared, resume=True, comm=comm) ** 2
        )

    as_new_process()
    ampi.grad(lambda u: final(u, COMM_WORLD))(numpy.ones(2))
    as_new_process()
    if COMM_WORLD.rank == 0:
        with pytest.raises(ampi.TapeError, match="more ranks than the present 1"):
            ampi.grad(lambda u: final(u, ampi.COMM_SELF))(numpy.ones(2))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"resume": True}, "needs storage"),
    ],
)
def test_arguments_that_do_not_fit(options, message):
    with pytest.raises(ampi.TapeError, match=message):
        ampi.grad(lambda u: np.sum(ampi.timeloop(lambda u: u * u, u, steps=3, **options)))(numpy.ones(2))


def test_damage_is_seen(tmp_path):
    """A byte that is another one, anywhere in a file, changes nothing of what is read, or the file does not count."""
    files = folder.Folder(tmp_path, ampi.COMM_SELF, "here")
    files.path.mkdir(parents=True)
    values = numpy.random.default_rng(0).uniform(size=200)
    files.save("state-0", "said", [values])
    path = files.path / "state-0.h5"
    text = path.read_bytes()
    draw = randomness.Random(0)
    damaged = 0
    for _ in range(60):
        k = draw.randrange(len(text))
        path.write_bytes(text[:k] + bytes([text[k] ^ 255]) + text[k + 1 :])
        found = files.load("state-0")
        damaged += found is None
        assert found is None or (found[0] == "said" and found[1][0].tobytes() == values.tobytes())
    assert damaged > 5


def test_an_object_that_no_file_can_hold_is_named(tmp_path):
    def step(state):
        state["u"] *= 0.5
        state["f"] = lambda: 1

    with pytest.raises(ampi.TapeError, match=r"state\['f'\] is a function"):
        ampi.grad(lambda u: np.sum(ampi.timeloop(step, {"u": u * 1.0}, steps=3, checkpoints=1, storage=tmp_path)["u"]))(
            numpy.ones(2)
        )


PROGRAM = """
import resource, signal, sys, numpy, ampi, ampi.numpy as np
comm, limit = ampi.COMM_WORLD, int(sys.argv[2])
if limit and comm.rank == comm.size - 1:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
def step(u):
    u *= 0.99
    u += 0.1 * np.sin(u)
def f(x):
    u = np.zeros(5000) + np.sum(x)
    return np.sum(ampi.timeloop(step, u, steps=12, checkpoints=3, storage=sys.argv[1], resume=True))
try:
    print("gradient", numpy.round(ampi.grad(f)(numpy.arange(3.0)), 6))
except ampi.TapeError as error:
    print("TapeError", error)
"""


def test_a_full_disk(tmp_path, mpiexec, ranks=2):
    """A limit on the size of files, on one rank, stands for a full disk: an error on all, and resuming goes on."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    outcomes = [mpiexec(ranks, script, tmp_path / name, limit).stdout for name, limit in FULL]
    first, again, without = outcomes
    assert first.count("TapeError") == ranks
    assert first.count(f"rank {ranks - 1} cannot write 40000 bytes of {tmp_path / 'states'}") == ranks
    assert not list((tmp_path / "states").rglob("*.part"))
    assert again == without
    assert again.count("gradient") == ranks


FULL = [("states", 20000), ("states", 0), ("others", 0)]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners of files")
@pytest.mark.parametrize("which", ["folder", "file"])
def test_states_of_other_users_are_not_read(tmp_path, which):
    """What others can write is not unpickled."""
    storage = tmp_path / "states"

    def f(x):
        return np.sum(ampi.timeloop(np.sin, x * 1.0, steps=4, checkpoints=2, storage=storage, resume=True))

    folder._opened.clear()
    ampi.grad(f)(numpy.ones(3))
    written = next(storage.rglob("about.h5"))
    (written if which == "file" else written.parent).chmod(0o777)
    folder._opened.clear()
    with pytest.raises(ampi.TapeError, match="can be changed by other users"):
        ampi.grad(f)(numpy.ones(3))


def squares(storage, step=np.sin, **options):
    def f(x):
        loop = ampi.timeloop(step, x * 1.0, steps=4, checkpoints=2, storage=storage, resume=True, **options)
        return np.sum(loop)

    folder._opened.clear()
    return ampi.grad(f)(numpy.ones(3))


def test_a_umask_that_lets_groups_write(tmp_path):
    before = os.umask(0o002)
    try:
        first = squares(tmp_path / "new" / "states")
        assert squares(tmp_path / "new" / "states").tobytes() == first.tobytes()
        (tmp_path / "new").chmod(0o775)  # a folder of a project, in which there are arrays and plain data only
        assert squares(tmp_path / "new" / "states").tobytes() == first.tobytes()
    finally:
        os.umask(before)


class Ran:
    """Made again by its own means, which a file can hold as a pickle only."""

    times = 0

    def __init__(self, x):
        self.x = x

    def __reduce__(self):
        return Ran.made, (self.x,)

    def __repr__(self):
        return f"Ran({self.x})"

    @staticmethod
    def made(x):
        Ran.times += 1
        return Ran(x)


def halved(state):
    state["u"] *= 0.5
    return state


def test_pickled_objects_are_not_read_where_others_could_put_them(tmp_path):
    def f(u):
        state = {"u": u * 1.0, "objects": numpy.array([Ran(1.0), Ran(2.0)])}
        folder._opened.clear()
        loop = ampi.timeloop(halved, state, steps=4, checkpoints=2, storage=tmp_path / "of all" / "states", resume=True)
        return np.sum(loop["u"])

    before = os.umask(0o022)
    try:
        expected = ampi.grad(f)(numpy.ones(2))
        Ran.times = 0
        assert ampi.grad(f)(numpy.ones(2)).tobytes() == expected.tobytes()
        assert Ran.times
        (tmp_path / "of all").chmod(0o777)
        Ran.times = 0
        with pytest.raises(ampi.TapeError, match=r"-4.h5 contains pickled objects.*of all.*can be changed"):
            ampi.grad(f)(numpy.ones(2))
        assert not Ran.times
    finally:
        os.umask(before)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", ["missing", "text", "unreadable", "no folder", "pickle"])
def test_an_error_on_one_rank_is_raised_on_all(kind, shared, monkeypatch):
    comm, last = COMM_WORLD, COMM_WORLD.rank == COMM_WORLD.size - 1
    first = squares(shared / kind, comm=comm)
    comm.Barrier()
    mine = shared / kind / "loop-0" / f"rank-{comm.rank}"
    if last and kind in ("missing", "text"):
        (mine / "about.h5").unlink() if kind == "missing" else (mine / "about.h5").write_bytes(b"nothing")
    if last and kind == "pickle":
        monkeypatch.setattr(folder, "packed", lambda data: b"\x80\x04N.")
        files = folder.Folder(shared / kind, ampi.COMM_SELF, "here")
        files.path = mine
        files.save("about", {}, [])
        monkeypatch.undo()
    if last and kind == "unreadable":

        def refused(path, *arguments, **keywords):
            if str(path).startswith(str(mine)):
                raise PermissionError(13, "Permission denied", str(path))
            return open(path, *arguments, **keywords)

        monkeypatch.setattr(safety, "open", refused, raising=False)
    if last and kind == "no folder":

        def unmade(path):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(folder, "make", unmade)
    comm.Barrier()
    if kind == "missing":  # the last rank has nothing to go on from, and so none has
        assert squares(shared / kind, comm=comm).tobytes() == first.tobytes()
        return
    expected = {
        "text": "about.h5 is damaged",
        "unreadable": "about.h5 cannot be read: Permission denied",
        "no folder": "Permission denied",
        "pickle": "about.h5 is of another program, or of another version of ampi",
    }
    with pytest.raises(ampi.TapeError, match=f"rank {comm.size - 1}: .*{expected[kind]}"):
        squares(shared / kind, comm=comm)


@pytest.mark.mpi
def test_an_object_that_cannot_be_pickled_is_an_error_on_all_ranks(shared):
    def f(u):
        objects = numpy.array([None, None])
        if COMM_WORLD.rank == COMM_WORLD.size - 1:
            objects[1] = threading.Lock()
        folder._opened.clear()
        state = {"u": u * 1.0, "objects": objects}
        return np.sum(ampi.timeloop(halved, state, steps=4, checkpoints=2, storage=shared / "states")["u"])

    with pytest.raises(ampi.TapeError, match=f"rank {COMM_WORLD.size - 1} cannot write .*cannot be stored.*lock"):
        ampi.grad(f)(numpy.ones(2))
    COMM_WORLD.Barrier()
    assert not [*shared.rglob(f"rank-{COMM_WORLD.size - 1}/state-*"), *shared.rglob("*.part")]


@pytest.mark.mpi(min_size=2)
def test_a_file_of_a_node_that_cannot_be_made(shared, monkeypatch):
    """The rank that writes cannot; the others send it more than MPI keeps for them."""

    def f(x):
        folder._opened.clear()
        u = np.zeros(40000) + np.sum(x)
        how = ampi.Storage(shared / "states", per="node")
        return np.sum(ampi.timeloop(np.sin, u, steps=6, checkpoints=2, storage=how))

    def refused(path, flags):
        if "state-" in str(path) and "state-0" not in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return os.open(path, flags, 0o644)

    monkeypatch.setattr(folder, "private", refused)
    with pytest.raises(ampi.TapeError, match=r"rank 0 cannot write 320000 bytes of .*state-.*No space left on device"):
        ampi.grad(f)(numpy.ones(3))


class Killed(Exception):
    """Stands for a kill."""


def killed_after(folder, n):
    """Return the gradient of a loop in a folder; its step is called n times at most."""
    left = [n]

    def step(u):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        u *= 1.1
        u[0] += 0.1 * u[1]

    as_new_process()
    comm = COMM_WORLD.Dup()
    options = {"steps": 20, "checkpoints": 2, "storage": folder, "resume": True, "comm": comm}
    return ampi.grad(lambda u: np.sum(ampi.timeloop(step, np.array(u), **options)), comm=comm)(numpy.ones(3))


@pytest.mark.parametrize("lost", ["state-0", "state-3", "state-*"])
@pytest.mark.parametrize("n", [12, 20, 25, 30])
def test_a_folder_without_some_of_its_states(n, lost, tmp_path):
    """It is not continued: the sweep needs them (it had been a KeyError)."""
    with pytest.raises(Killed):
        killed_after(tmp_path / "found", n)
    removed = [path.unlink() for path in (tmp_path / "found").rglob(f"{lost}.h5")]
    assert removed
    numpy.testing.assert_array_equal(killed_after(tmp_path / "found", 1000), killed_after(tmp_path / "whole", 1000))


class Model:
    """A simulation whose step is a method."""

    def __init__(self, rate):
        self.rate = rate

    def step(self, u):
        u *= self.rate


def test_another_parameter_of_a_method_is_refused(tmp_path):
    """The attribute of a method's object is neither in the state nor a name of its module."""

    def final(u, rate):
        options = {"steps": 6, "checkpoints": 1, "storage": tmp_path, "resume": True}
        return np.sum(ampi.timeloop(Model(rate).step, np.array(u), **options))

    as_new_process()
    ampi.grad(lambda u: final(u, 0.9))(numpy.ones(2))
    as_new_process()
    with pytest.raises(ampi.TapeError, match=r"rate of the Model of Model\.step is '0\.8', there '0\.9'"):
        ampi.grad(lambda u: final(u, 0.8))(numpy.ones(2))


def test_another_function_of_a_module_is_refused(tmp_path):
    """Functions that a step uses by the name of their module belong to its code."""
    module = types.ModuleType("equations_of_the_program")

    def final(u):
        options = {"steps": 6, "checkpoints": 1, "storage": tmp_path, "resume": True}
        return np.sum(ampi.timeloop(lambda u: module.change(u), np.array(u), **options))

    module.change = lambda u: 0.9 * u
    as_new_process()
    ampi.grad(final)(numpy.ones(2))
    module.change = lambda u: 0.9 * u + 0.1
    as_new_process()
    with pytest.raises(ampi.TapeError, match="belongs to another run: its code is"):
        ampi.grad(final)(numpy.ones(2))
