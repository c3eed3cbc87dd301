"""Repeated kernel calls are recorded with known facts: every way in which a call may differ from the previous one."""

import numpy
import pytest
from mpi4py import MPI

import ampi
import ampi.numpy as np
from ampi.kernel import repeated_calls
from ampi.kernel.recording import PreparedCall
from ampi.kernel.repeated_calls import RecordedAgain

TURNS = 6
"""Calls per program: the third one with the same arrays is the first that is recognised."""


@ampi.kernel
def mixed(x, y, table, z, factor, count):
    total = 0.0
    for i in range(len(x)):
        z[i] = x[i] * y[i] + factor * table[i % len(table)] * z[i] + count
        total += z[i] * x[i]
    return total


@ampi.kernel
def moved(x, z):
    for i in range(len(x)):
        z[i] = x[i] * x[i] + 0.5 * z[i]


@ampi.kernel
def checked(x, z, limit):
    for i in range(len(x)):
        z[i] = x[i] * x[i] + limit
        if x[i] > limit:
            raise ValueError("beyond the limit")


@ampi.kernel
def weighted(x, table, z):
    for i in range(len(x)):
        z[i] += x[i] * table[i]


@ampi.kernel
def from_scalar(a, z):
    for i in range(len(z)):
        z[i] = a * z[i] + a**2


@ampi.kernel
def smoothed(x, z):
    for i in range(1, x.shape[0] - 1):
        for j in range(x.shape[1]):
            z[i, j] = 0.3 * z[i, j] + x[i - 1, j] * np.sin(x[i + 1, j])


def without_recognition(monkeypatch):
    """Record and reverse each call as if it were the first."""
    monkeypatch.setattr(RecordedAgain, "applies", staticmethod(lambda *_: False))
    monkeypatch.setattr(PreparedCall, "bind", lambda *_: None)


def counting(monkeypatch):
    """Count recognised calls."""
    counts = [0]
    plain = RecordedAgain.record

    def record(self, recording, args):
        counts[0] += 1
        return plain(self, recording, args)

    monkeypatch.setattr(RecordedAgain, "record", record)
    return counts


class Machine:
    """A program of random steps on a few arrays: mostly the same call, sometimes one that differs in one respect."""

    def __init__(self, seed):
        self.rng = numpy.random.default_rng(seed)
        self.size = int(self.rng.choice([2, 3, 4, 100]))
        self.steps = [self.draw(k) for k in range(40)]
        self.keeps_tapes = seed % 2

    def draw(self, k):
        names = list(self.CHANGES)
        if k < 4 or self.rng.random() < 0.6:
            return "same", 0
        return names[self.rng.integers(len(names))], int(self.rng.integers(3))

    def run(self, x0):
        n = self.size
        self.a = [np.array(numpy.linspace(0.3, 1.0, n) + 0.1 * k) for k in range(3)]
        self.z = [np.array(numpy.full(n, 0.2 + 0.1 * k)) for k in range(2)]
        self.tall = np.array(numpy.linspace(0.2, 0.4, 3 * n))
        self.tapes = []
        self.wide = np.array(numpy.linspace(0.1, 0.9, 2 * n))
        self.table = numpy.linspace(0.5, 1.5, n).copy()
        self.view = numpy.linspace(0.5, 1.5, 2 * n)[::2]
        self.fixed = numpy.linspace(1.0, 2.0, n).copy()
        self.fixed.flags.writeable = False
        self.factor, self.count, self.kept = 0.5, 2, []
        self.x, self.values = np.array(x0), []
        return self.gradients(), self.gradients()  # of two tapes over the same arrays

    def gradients(self):
        self.out = 0.0
        with ampi.Tape() as tape:
            self.w = tape.watch(self.x)
            args = [self.w, self.a[0], self.table, self.z[0]]
            for name, choice in self.steps:
                args = self.CHANGES[name](self, args, choice) or args
                found = mixed(*args, self.factor, self.count)
                args[3] *= 0.25
                self.out = self.out + found * 0.1
                self.values.append(float(ampi.value(found)))
                self.values += numpy.asarray(ampi.value(args[3])).tolist()
            y = self.out + np.sum(args[3])
        if self.keeps_tapes:
            self.tapes.append(tape)
        return [*self.values, *tape.gradient(y, self.w).tolist(), *tape.gradient(y, self.w).tolist()]

    def same(self, args, choice):
        return args

    def other_array(self, args, choice):
        return [args[0], self.a[choice], *args[2:]]

    def other_target(self, args, choice):
        return [*args[:3], self.z[choice % 2]]

    def strided_target(self, args, choice):
        return [*args[:3], self.tall[choice::3]]

    def part_of_input_changes(self, args, choice):
        args[1][choice % self.size :: 2] *= 0.5

    def aliased(self, args, choice):
        return [args[0], args[0], *args[2:]]

    def input_is_table(self, args, choice):
        return [args[0], args[1], args[1], args[3]]

    def strided(self, args, choice):
        return [args[0], self.wide[::2], *args[2:]]

    def shifted(self, args, choice):
        return [args[0], self.wide[choice : choice + self.size], *args[2:]]

    def single(self, args, choice):
        return [args[0], np.array(numpy.full(self.size, 0.7), dtype=numpy.float32), *args[2:]]

    def active(self, args, choice):
        self.a[choice] *= args[0]

    def passive(self, args, choice):
        self.a[choice][...] = 0.5

    def other_table(self, args, choice):
        return [*args[:2], [self.table, self.view, self.fixed][choice], args[3]]

    def table_changes(self, args, choice):
        self.table[choice % self.size] += 0.25

    def fixed_changes(self, args, choice):
        self.fixed.flags.writeable = True
        self.fixed[0] += 0.25
        if choice:
            self.fixed.flags.writeable = False

    def table_is_tracked(self, args, choice):
        self.kept.append(self.table.view(ampi.ndarray))

    def table_reshaped(self, args, choice):
        short = numpy.array(self.table[:2])
        return [*args[:2], short, args[3]]

    def number(self, args, choice):
        self.factor = (0.5, 1, numpy.float32(0.25))[choice]

    def integer(self, args, choice):
        self.count = (2, True, 1.5)[choice]

    def active_number(self, args, choice):
        self.factor = np.sum(args[0]) * 0.1

    def outside_tapes(self, args, choice):
        with ampi.passive():
            mixed(self.a[0], self.a[1], self.table, self.z[1], self.factor if choice else 0.5, 1)

    def inner_tape(self, args, choice):
        with ampi.Tape() as inner:
            v = inner.watch(numpy.ones(self.size))
            for _ in range(choice + 1):
                t = mixed(v, np.ones(self.size), self.table, np.ones(self.size), 0.5, 1)
        self.values += inner.gradient(t, v).tolist()

    def other_kernel(self, args, choice):
        moved(self.a[choice], args[3])

    def exception(self, args, choice):
        for limit in (10.0, 10.0, 10.0, float(ampi.value(args[0]).min()) - (choice > 0)):
            try:
                checked(args[0], args[3], limit)
            except ValueError as error:
                self.values.append(str(error))
                args[3][...] = 0.3 * args[0]  # what the kernel has written has no derivative

    def read_only(self, args, choice):
        target = np.zeros(self.size)
        for _ in range(3):
            moved(args[0], target)
        target.flags.writeable = False
        with pytest.raises(ampi.errors.KernelError) as caught:
            moved(args[0], target)
        self.values.append(str(caught.value))

    CHANGES = {
        name: method
        for name, method in vars().items()
        if callable(method) and name not in ("__init__", "draw", "run", "gradients")
    }


def compare(seed, monkeypatch):
    machine = Machine(seed)
    x0 = numpy.linspace(0.4, 0.9, machine.size)
    counts = counting(monkeypatch)
    again = [machine.run(x0), machine.run(x0)]
    recognised = counts[0]
    with monkeypatch.context() as patch:
        without_recognition(patch)
        for kernel in (mixed, moved, checked):
            kernel.recorded_again.clear()
            kernel.prepared.clear()
        plain = machine.run(x0)
    assert counts[0] == recognised
    assert again[0] == plain and again[1] == plain  # bitwise
    return recognised


@pytest.mark.parametrize("seed", range(4))
def test_steps_that_differ_in_one_thing(seed, monkeypatch):
    assert compare(seed, monkeypatch) > 10


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_steps_that_differ_in_one_thing(part, monkeypatch):
    for seed in range(100 + 30 * part, 130 + 30 * part):
        with monkeypatch.context() as patch:
            compare(seed, patch)


@pytest.mark.parametrize("watched", [True, False])
def test_an_array_without_axes_that_becomes_active(watched):
    """Its region may be known although earlier calls registered none for it."""
    found = []
    for first in (0, TURNS):
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(3))
            a = np.array(2.0)
            a[...] = 2.0
            z = np.zeros(3)
            z[...] = x
            for k in range(TURNS):
                if k == first:
                    a[...] = np.sum(x)
                if k == 3 and not watched:
                    a[...] = 1.5
                from_scalar(a, z)
            y = np.sum(z)
        found.append(tape.gradient(y, x))

    def program(v, first):
        a, z = 2.0, v.copy()
        for k in range(TURNS):
            if k == first:
                a = v.sum()
            if k == 3 and not watched:
                a = 1.5
            z = a * z + a**2
        return z.sum()

    for gradient, first in zip(found, (0, TURNS)):
        steps = [program(numpy.ones(3) + 1e-20j * numpy.eye(3)[k], first).imag / 1e-20 for k in range(3)]
        assert gradient.tolist() == pytest.approx(steps, rel=1e-13)


def test_a_caught_exception_in_a_recognised_call():
    """What the call wrote before it failed is undone if a record needs this."""
    start, first = numpy.append(numpy.linspace(0.1, 0.9, 99), 2.0), numpy.linspace(0.1, 0.2, 100)
    with ampi.Tape() as tape:
        x = tape.watch(start)
        z = np.array(first)
        y = 0.0
        for limit in (3.0, 3.0, 3.0, 1.0, 3.0):
            y = y + np.sum(z * z * x)
            try:
                checked(x, z, limit)
            except ValueError:
                z[...] = first

    def value(v):
        return (2 * first**2 * v + 3 * (v * v + 3.0) ** 2 * v).sum()

    assert float(ampi.value(y)) == pytest.approx(value(start))
    steps = [value(start + 1e-20j * direction).imag / 1e-20 for direction in numpy.eye(100)]
    assert tape.gradient(y, x).tolist() == pytest.approx(steps)


def test_a_read_only_array_that_is_changed(monkeypatch):
    """The values of a plain array are not copied while nothing can write to it; afterwards they are."""

    def gradient():
        table, z = numpy.linspace(1.0, 2.0, 50).copy(), np.ones(50)
        table.flags.writeable = False
        with ampi.Tape() as tape:
            x = tape.watch(numpy.linspace(0.1, 0.4, 50))
            for k in range(12):
                if k in (5, 6, 9):
                    table.flags.writeable = True
                    table += 0.25
                    table.flags.writeable = k != 6
                weighted(x, table, z)
            y = np.sum(z)
            table.flags.writeable = True
            table[...] = 0.0
        return tape.gradient(y, x).tolist()

    counts = counting(monkeypatch)
    with monkeypatch.context() as patch:
        without_recognition(patch)
        weighted.recorded_again.clear()
        weighted.prepared.clear()
        plain = gradient()
    assert not counts[0]
    assert gradient() == plain
    assert counts[0]


def test_values_that_fill_the_room(monkeypatch):
    """Kernels stop saving values when the limit is reached, also in recognised calls."""

    def gradient():
        with ampi.Tape() as tape:
            x = tape.watch(numpy.linspace(0.1, 0.4, 50))
            z = np.zeros(50)
            for _ in range(8):
                mixed(x, x, numpy.ones(3), z, 0.5, 1)
            y = np.sum(z)
        return tape.gradient(y, x).tolist(), tape.kept_bytes

    whole, kept = gradient()
    for room in (0, 1, kept // 2):
        monkeypatch.setattr(repeated_calls, "MAX_SAVED", room)
        found, bytes_kept = gradient()
        assert found == pytest.approx(whole, rel=1e-14)
        assert bytes_kept <= kept


@pytest.mark.mpi(max_size=3)
def test_received_arrays(monkeypatch):
    """A message that arrives between two recognised calls changes what they read, and its adjoint is sent back."""
    comm = ampi.COMM_WORLD
    counts = counting(monkeypatch)

    def run():
        with ampi.Tape() as tape:
            x = tape.watch(numpy.linspace(0.2, 0.6, 4) * (1 + comm.rank))
            z, halo = np.zeros(4), np.zeros(4)
            for k in range(2 * TURNS):
                moved(x if k % 2 else halo, z)
                comm.Sendrecv(z, (comm.rank + 1) % comm.size, 0, halo, (comm.rank - 1) % comm.size, 0)
            y = np.sum(halo * z)
        return tape.gradient(y, x).tolist()

    found = run()
    assert counts[0]
    with monkeypatch.context() as patch:
        without_recognition(patch)
        moved.recorded_again.clear()
        moved.prepared.clear()
        assert run() == found
    assert comm.allreduce(sum(found), op=MPI.SUM) != 0.0


def test_calls_while_an_earlier_tape_exists(monkeypatch):
    """Arrays that were active on a closed tape are recognised on the next one; both have their gradients."""
    counts = counting(monkeypatch)
    start, tapes = numpy.linspace(0.1, 0.4, 5), []
    x0, targets = np.array(start), [np.array(start) for _ in range(TURNS)]
    for turn in range(4):
        x0[...] = start * (turn + 1)
        for z in targets:
            z[...] = start
        before = counts[0]
        with ampi.Tape() as tape:
            x = tape.watch(x0)
            y = 0.0
            for z in targets:
                moved(x, z)
                y = y + np.sum(z)
        tapes.append((tape, y))
        assert counts[0] - before == (TURNS if turn > 2 else 0)
    for k, (tape, y) in enumerate(tapes):
        assert tape.gradient(y, x) == pytest.approx(2 * TURNS * start * (k + 1), rel=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("part", [np.s_[:, :], np.s_[::2, :], np.s_[:, 1:3], np.s_[::-1, ::2]])
def test_adjoints_of_recognised_calls_with_arrays_of_any_layout(order, part, monkeypatch):
    """Saved values may have another layout than the arrays that were overwritten."""

    def gradients():
        wide = np.array(numpy.linspace(0.1, 1.5, 48).reshape(8, 6), order=order)
        z = np.array(numpy.full((8, 6), 0.7), order=order)
        found, parts = [], (wide[part], z[part])
        for turn in range(3):
            wide[...] = numpy.linspace(0.1, 1.5, 48).reshape(8, 6)
            z[...] = 0.7
            with ampi.Tape() as tape:
                x = tape.watch(wide)
                for k in range(TURNS):
                    smoothed(*parts)
                    if turn and k % 2:
                        parts[0][...] *= 0.75  # what the adjoint reads is overwritten
                    if turn > 1:
                        smoothed(*parts[::-1])
                y = np.sum(x * z)
            found += [tape.gradient(y, x).tolist(), tape.gradient(y, x).tolist()]
        return found

    bound = []
    bind = PreparedCall.bind
    monkeypatch.setattr(PreparedCall, "bind", lambda self, given: (bind(self, given), bound.append(self.reverse)))
    found = gradients()
    with monkeypatch.context() as patch:
        without_recognition(patch)
        smoothed.recorded_again.clear()
        smoothed.prepared.clear()
        assert gradients() == found
    assert any(bound)
