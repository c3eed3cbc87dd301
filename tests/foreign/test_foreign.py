"""Code outside ampi that reads and writes arrays: derivatives are right, or there is a warning or an error."""

import warnings

import numba
import numpy
import pytest
from foreign_code import READERS, SEEN, UNSEEN, N, Program

import ampi
import ampi.numpy as np
from ampi.arrays import losses as outside
from ampi.base import checks
from ampi.memory import storages as memory

X0 = numpy.linspace(0.6, 1.4, N)


@pytest.fixture
def full(monkeypatch):
    """As with AMPI_CHECK=full."""
    monkeypatch.setattr(checks, "level", checks.FULL)
    monkeypatch.setattr(checks, "strict", True)
    monkeypatch.setattr(memory, "first_guard", memory.CHECKED)


def differences(program, **code):
    """The gradient by central differences, in NumPy alone."""
    h = 1e-6
    return numpy.array(
        [(program(numpy, X0 + h * e, **code) - program(numpy, X0 - h * e, **code)) / (2 * h) for e in numpy.eye(N)]
    )


def outcome(program, **code):
    """The gradient, or the warning or error."""
    outside._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with ampi.Tape() as tape:
                x = tape.watch(X0)
                y = program(np, x, **code)
            found = tape.gradient(y, x)
        except ampi.ActivityError as error:
            return str(error)
    said = [str(w.message) for w in caught if w.category is ampi.ActivityWarning]
    return said[0] if said else found


def check(program, **code):
    found = outcome(program, **code)
    if isinstance(found, str):
        return found
    numpy.testing.assert_allclose(found, differences(program, **code), rtol=1e-6, atol=1e-7, err_msg=str(program))
    return None


def written_between(writer, active):
    """u is used, written by others, used again."""

    def program(np, x):
        u = np.ones(N)
        if active:
            u[...] = x * x
        y = np.sum(u * x)
        writer(u, 1)
        y = y + np.sum(np.sin(u) * x)
        writer(u, 2)
        return y + np.sum(u)

    return program


@pytest.mark.parametrize("name", SEEN)
def test_passive_arrays_that_others_write_are_right(name):
    assert check(written_between(SEEN[name], False)) is None


@pytest.mark.parametrize("name", SEEN)
def test_active_arrays_that_others_write_are_right_or_an_error(name):
    check(written_between(SEEN[name], True))


@pytest.mark.parametrize("name", [*SEEN, *UNSEEN])
@pytest.mark.parametrize("active", [True, False])
def test_nothing_is_missed_in_full(full, name, active):
    found = check(written_between({**SEEN, **UNSEEN}[name], active))
    assert found is None if name in SEEN and not active else True


WITH_RULES = {"scipy.fft", "scipy.ndimage", "scipy.linalg"}


@pytest.mark.parametrize("name", READERS)
def test_what_leaves_draws_one_warning_for_each_line(name):
    found = outcome(lambda np, x: np.sum(READERS[name](x) * x))
    if name in ("dot", "asanyarray"):
        numpy.testing.assert_allclose(found, 2 * X0)
    elif name in WITH_RULES:
        assert check(lambda np, x: np.sum(READERS[name](x) * x)) is None
    else:
        assert "foreign_code.py:" in found or "normal has no derivative rule" in found


@pytest.mark.parametrize("name", READERS)
def test_what_leaves_is_an_error_in_full(full, name):
    check(lambda np, x: np.sum(READERS[name](x) * x))


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an error where C code asks
def test_random_programs_with_foreign_code(seed):
    program = Program(numpy.random.default_rng(seed), SEEN, READERS)
    check(program, writers=SEEN, readers=READERS)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_with_any_foreign_code_in_full(full, seed):
    writers = {**SEEN, **UNSEEN}
    program = Program(numpy.random.default_rng(seed), writers, READERS)
    check(program, writers=writers, readers=READERS)


def test_random_programs_are_not_all_refused():
    programs = [Program(numpy.random.default_rng(seed), SEEN, READERS) for seed in range(30)]
    refused = [outcome(program, writers=SEEN, readers=READERS) for program in programs]
    assert 3 < sum(isinstance(found, str) for found in refused) < 27


def test_numba_compiles_as_usual_while_a_tape_records():
    """Its tables are keyed by functions, which hash by what is redirected."""

    @numba.njit
    def chosen(x):
        return numpy.where(x > 0.5, x, 0.0), numpy.asarray(x)

    @ampi.kernel
    def halves(x, y):
        y[:] = np.where(x > 0.5, 0.5 * x, 0.25)

    with ampi.Tape() as tape:
        found = chosen(numpy.arange(3.0))
        x = tape.watch(numpy.arange(3.0))
        y = np.zeros(3)
        halves(x, y)
        plain = numpy.zeros(3)
        with pytest.warns(ampi.ActivityWarning, match="assignment into a plain"):
            plain[:] = x
    numpy.testing.assert_array_equal(found[0], [0.0, 1.0, 2.0])
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(3)), [0.0, 0.5, 0.5])


class Derived(numpy.ndarray):
    """As other libraries have them."""


class WithAccess(numpy.ndarray):
    def __getitem__(self, key):
        return numpy.ndarray.__getitem__(self, key)


def derived_late(x):
    """A class that is new."""
    return x.view(type("Late", (numpy.ndarray,), {}))


CLASSES = {
    "plain": lambda x: x,
    "derived": lambda x: x.view(Derived),
    "with item access of its own": lambda x: x.view(WithAccess),
    "made late": derived_late,
    "matrix": lambda x: x.view(numpy.matrix),
    "recarray": lambda x: x.view(numpy.recarray),
    "memmap": lambda x: x.view(numpy.memmap),
    "masked": lambda x: x.view(numpy.ma.MaskedArray),
}
WRITES = {
    "slice": lambda z, x: z.__setitem__(slice(None), x),
    "statement": "z[...] = x",
    "element": "z[(0,) * z.ndim] = x[0]",
    "flat": "z.flat[:] = x",
    "fill": lambda z, x: z.fill(x[0]),
    "in place": "z += x",
    "put": lambda z, x: numpy.put(z, [0, 1], x[:2]),
    "copyto": lambda z, x: numpy.copyto(z, x),
}


@pytest.mark.parametrize("made", ["before the tape", "inside"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_active_values_in_arrays_of_other_classes_are_refused(kind, write, made, monkeypatch):
    monkeypatch.setattr(checks, "strict", True)
    run = WRITES[write]
    early = CLASSES[kind](numpy.zeros(N))
    with ampi.Tape() as tape:
        x = tape.watch(X0)
        z = early if made == "before the tape" else CLASSES[kind](numpy.zeros(N))
        with pytest.raises(ampi.ActivityError):
            exec(run, {"z": z, "x": x}) if isinstance(run, str) else run(z, x)


PRODUCTS = {
    "dot": numpy.dot,
    "vdot": numpy.vdot,
    "inner": numpy.inner,
    "einsum": lambda a, x: numpy.einsum("i,i->i", a, x),
    "concatenate": lambda a, x: numpy.concatenate([a, x * x]),
    "where": lambda a, x: numpy.where(a > 1.0, a, x),
    "hstack": lambda a, x: numpy.hstack((a, x)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("kind", ["derived", "recarray", "memmap"])
def test_functions_of_constants_of_other_classes_and_active_arrays(kind, name):
    def program(a):
        return lambda x: (PRODUCTS[name](a, x) ** 2).sum()

    found = ampi.grad(program(CLASSES[kind](X0.copy())))(X0[::-1].copy())
    numpy.testing.assert_array_equal(found, ampi.grad(program(X0.copy()))(X0[::-1].copy()))
    assert numpy.any(found)
