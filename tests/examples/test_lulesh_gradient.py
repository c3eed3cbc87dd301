"""LULESH's gradient, against difference quotients, against another division of the mesh into ranks, and at kinks."""

import pathlib
import sys

import numba
import numpy as np
import pytest

import ampi

pytestmark = pytest.mark.timeout(400)  # the first test compiles LULESH's kernels and their adjoints

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "lulesh" / "lulesh.py"
sys.path.insert(0, str(PROGRAM.parent))
h5py = pytest.importorskip("h5py")
from sedov import hydro, output, sensitivity  # noqa: E402
from sedov.domain import Domain  # noqa: E402

ALL = list(sensitivity.INDEPENDENTS)


def state_after(comm, size, cycles, disturbance=0.0):
    """A domain some cycles in; a disturbance breaks the symmetry and with it the ties for the time step."""
    domain = Domain(comm, size)
    sensitivity.run_cycles(domain, cycles)
    if disturbance:
        for name, field in sensitivity.random_direction(domain, ALL, seed=7, symmetric=False).items():
            getattr(domain, name)[...] += disturbance * field
    return domain, sensitivity.save(domain)


def directional(domain, partial, direction):
    return domain.comm.allreduce(sum(float(np.vdot(partial[n], direction[n])) for n in direction))


def quotient(domain, state, functional, cycles, direction, step):
    ends = []
    for sign in (1, -1):
        moved = state | {n: state[n] + sign * step * d for n, d in direction.items()}
        ends.append(sensitivity.evaluate(domain, moved, functional, cycles))
    return (ends[0] - ends[1]) / (2 * step)


ALONE = [False, pytest.param(True, marks=pytest.mark.slow, id="alone")]
"""Whether no other field is active; then other adjoints are compiled, for a minute."""


def assert_taylor(domain, state, functional, name, cycles, symmetric, alone=False):
    """The derivative is the difference quotient's limit, and the first-order remainder falls with the step's square."""
    sensitivity.restore(domain, state)
    found = sensitivity.gradient(domain, functional, [name] if alone else ALL, cycles)
    direction = sensitivity.random_direction(domain, [name], symmetric=symmetric)
    exact = directional(domain, found.partial, direction)
    assert exact != 0.0
    # Cut-offs of very slow nodes make kinks that a wider step would run into.
    assert quotient(domain, state, functional, cycles, direction, 1e-7) == pytest.approx(exact, rel=1e-6)
    remainders = []
    for step in (4e-4, 2e-4, 1e-4):
        moved = state | {name: state[name] + step * direction[name]}
        remainders.append(sensitivity.evaluate(domain, moved, functional, cycles) - found.value - step * exact)
    # The step is small enough where the next-order term is small against the second.
    orders = np.log2(np.abs(remainders[:-1]) / np.abs(remainders[1:]))
    assert orders[-1] == pytest.approx(2.0, abs=0.25)


@pytest.mark.parametrize("alone", ALONE)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("functional", sensitivity.FUNCTIONALS)
def test_taylor_on_one_rank(name, functional, alone):
    domain, state = state_after(ampi.COMM_SELF, 4, 40, disturbance=1e-3)
    assert_taylor(domain, state, sensitivity.FUNCTIONALS[functional], name, 6, symmetric=False, alone=alone)


def test_taylor_along_a_symmetric_direction():
    """At the undisturbed symmetric state elements tie for the time step; symmetric directions do not see the kink."""
    domain, state = state_after(ampi.COMM_SELF, 6, 30)
    assert_taylor(domain, state, sensitivity.origin_energy, "energy", 8, symmetric=True)


@pytest.mark.mpi(min_size=8)
@pytest.mark.parametrize("alone", ALONE)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("functional", sensitivity.FUNCTIONALS)
def test_taylor_on_eight_ranks(name, functional, alone):
    if ampi.COMM_WORLD.size != 8:
        pytest.skip("8 ranks make a cube")
    domain, state = state_after(ampi.COMM_WORLD, 2, 40, disturbance=1e-3)
    assert_taylor(domain, state, sensitivity.FUNCTIONALS[functional], name, 6, symmetric=False, alone=alone)


def whole(domain, name, field):
    """All ranks' pieces in their places (no rank sees another's pieces of a shared node: they are equal)."""
    kind = "element" if name == "energy" else "node"
    result = np.zeros(output.whole_shape(domain, kind))
    for rank, piece in enumerate(domain.comm.allgather(np.asarray(field))):
        place = output.place_of(domain, kind, rank)
        result[place] = piece.reshape(result[place].shape)
    return result


@pytest.mark.mpi(min_size=8)
@pytest.mark.parametrize("functional", sensitivity.FUNCTIONALS)
def test_eight_ranks_have_the_gradient_of_one(functional):
    """-s 5 on 8 ranks and -s 10 on 1 rank are the same mesh: every entry to 1e-9 of the largest, over 20 cycles."""
    if ampi.COMM_WORLD.size != 8:
        pytest.skip("8 ranks make a cube")
    gradients = []
    for comm, size in ((ampi.COMM_WORLD, 5), (ampi.COMM_SELF, 10)):
        domain, _ = state_after(comm, size, 20)
        found = sensitivity.gradient(domain, sensitivity.FUNCTIONALS[functional], ALL, 20)
        gradients.append({n: whole(domain, n, f) for n, f in found.fields.items()})
    for name in ALL:
        many, one = gradients[0][name], gradients[1][name]
        assert np.abs(one).max() > 0
        np.testing.assert_allclose(many, one, rtol=0, atol=1e-9 * np.abs(one).max(), err_msg=name)


@pytest.mark.slow
@pytest.mark.mpi(max_size=3)
@pytest.mark.parametrize("kept", [{"checkpoints": 2}, {"memory": "1MiB"}])
def test_a_few_states_in_the_place_of_all_cycles(kept):
    if ampi.COMM_WORLD.size not in (1, 8):
        pytest.skip("8 ranks make a cube")
    domain, state = state_after(ampi.COMM_WORLD, 3, 12)
    expected = sensitivity.gradient(domain, sensitivity.origin_energy, ALL, 6)
    sensitivity.restore(domain, state)
    found = sensitivity.gradient(domain, sensitivity.origin_energy, ALL, 6, **kept)
    assert domain.cycle == 18 and found.value == expected.value
    for name, field in found.partial.items():
        largest = np.abs(expected.partial[name]).max()
        np.testing.assert_allclose(field, expected.partial[name], rtol=1e-12, atol=1e-13 * largest)


def gradient_with_all_fields_active(comm, size, cycles, **kept):
    """That of the origin's energy. In a loop's steps the whole state carries derivatives; without, the first cycle's
    adjoint, of fewer fields, is another compiled function, which rounds in its own way (5e-16 of the largest entry).
    """
    domain = Domain(comm, size)
    with ampi.Tape() as tape:
        watched = [tape.watch(getattr(domain, name)) for name in ALL]
        for field in vars(domain).values():
            if isinstance(field, ampi.ndarray) and field.dtype == float and field.flags.writeable:
                if not any(field is known for known in watched):
                    tape.watch(field)
        if kept:
            ampi.timeloop(hydro.advance, domain, cycles, comm=comm, **kept)
        else:
            sensitivity.run_cycles(domain, cycles)
        result = sensitivity.origin_energy(domain)
    return [np.array(found) for found in tape.gradient(result, watched)]


@pytest.mark.mpi
@pytest.mark.parametrize("size, cycles", [(3, 20), pytest.param(None, 231, marks=pytest.mark.slow)])
def test_a_few_states_give_the_gradient_of_all_cycles_to_the_last_bit(size, cycles):
    """The whole run: -s 10 on one rank, -s 5 on eight."""
    if ampi.COMM_WORLD.size not in (1, 8):
        pytest.skip("8 ranks make a cube")
    size = size or {1: 10, 8: 5}[ampi.COMM_WORLD.size]
    expected = gradient_with_all_fields_active(ampi.COMM_WORLD, size, cycles)
    for kept in (5, 10, 30):
        found = gradient_with_all_fields_active(ampi.COMM_WORLD, size, cycles, checkpoints=kept)
        for name, a, b in zip(ALL, found, expected, strict=True):
            assert a.tobytes() == b.tobytes(), f"{name}, {kept} kept"
    assert np.abs(expected[0]).max() > 0 or ampi.COMM_WORLD.rank


def test_the_undisturbed_state_has_a_finite_one_sided_gradient():
    """Gas at rest sits on kinks of the limiter and of the equation of state: a one-sided derivative, and no NaN."""
    domain = Domain(ampi.COMM_SELF, 4)
    for functional in sensitivity.FUNCTIONALS.values():
        state = sensitivity.save(domain)
        found = sensitivity.gradient(domain, functional, ALL, 10)
        for name, field in found.fields.items():
            assert np.isfinite(field).all(), name
        assert np.abs(found.fields["energy"]).max() > 0
        sensitivity.restore(domain, state)


@pytest.mark.slow
def test_energy_scales_with_energy():
    """Energies, and the squares of speeds and of the inverse time step, times one factor: an exact symmetry.

    The derivative of the kinetic energy along it is the kinetic energy itself (the cut-offs are far below what moves).
    """
    domain, state = state_after(ampi.COMM_SELF, 5, 15)
    with ampi.Tape() as tape:
        names = ["energy", "v", "pressure", "viscosity", "sound_speed", "dt", "time", "step_limit"]
        watched = [tape.watch(getattr(domain, n)) for n in names]
        sensitivity.run_cycles(domain, 3)
        kinetic = sensitivity.kinetic_energy(domain)
    powers = [1.0, 0.5, 1.0, 1.0, 0.5, -0.5, -0.5, -0.5]
    adjoints = tape.gradient(kinetic, watched)
    along = sum(p * float(np.vdot(a, state[n])) for p, n, a in zip(powers, names, adjoints, strict=True))
    assert along == pytest.approx(float(ampi.value(kinetic)), rel=1e-8)


def test_state_is_as_after_the_run_and_a_second_sweep_agrees():
    domain, state = state_after(ampi.COMM_SELF, 4, 12)
    sensitivity.run_cycles(domain, 3)
    after = sensitivity.save(domain)
    sensitivity.restore(domain, state)
    with ampi.Tape() as tape:
        watched = [tape.watch(getattr(domain, name)) for name in ALL]
        sensitivity.run_cycles(domain, 3)
        result = sensitivity.kinetic_energy(domain)
    first, second = tape.gradient(result, watched), tape.gradient(result, watched)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    for name in sensitivity.STATE:
        np.testing.assert_array_equal(ampi.value(getattr(domain, name)), after[name], err_msg=name)


@pytest.mark.parametrize("ranks", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_command_line_writes_file_and_picture(mpiexec, tmp_path, ranks):
    pytest.importorskip("matplotlib")
    data, picture = tmp_path / "gradient.h5", tmp_path / "gradient.png"
    options = ["-s", "3", "-i", "6", "--gradient", "origin", "--last", "4"]
    if ranks == 1:
        options += ["--check", "--cost", "--repeat", "1"]
    done = mpiexec(ranks, "-m", "ampi.run", PROGRAM, *options, "--output", data, "--plot", picture, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("x primal" in done.stdout) is (ranks == 1)
    assert picture.stat().st_size > 1000
    edge = 3 * round(ranks ** (1 / 3))
    with h5py.File(data) as file:
        assert file["gradient_energy"].shape == (edge,) * 3
        assert file["gradient_x"].shape == (3, edge + 1, edge + 1, edge + 1)
        assert np.isfinite(file["gradient_v"][...]).all()
        assert file.attrs["differentiated"] == 4


@pytest.mark.slow  # kernels are compiled twice more: for parts of arrays, and to release the GIL
@pytest.mark.timeout(900)
@pytest.mark.parametrize("functional", sensitivity.FUNCTIONALS)
def test_tasks_have_the_gradient_of_the_serial_run(functional):
    found = []
    for tasks in (0, 1, 3, 8):  # at most one for each layer of elements
        domain = Domain(ampi.COMM_SELF, 4, tasks=tasks)
        assert len(domain.blocks) == min(tasks, 4)
        sensitivity.run_cycles(domain, 10)
        found.append(sensitivity.gradient(domain, sensitivity.FUNCTIONALS[functional], ALL, 6))
    for gradient in found[1:]:
        assert gradient.value == pytest.approx(found[0].value, rel=1e-13)
        for name, expected in found[0].fields.items():
            np.testing.assert_allclose(gradient.fields[name], expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kept", [{}, {"checkpoints": 2}, {"memory": "1MiB"}], ids=lambda kept: "".join(kept) or "all")
@pytest.mark.parametrize("threads", [1, 2])
def test_tasks_with_threads_with_checkpoints_and_on_ranks(threads, kept):
    if ampi.COMM_WORLD.size not in (1, 8):
        pytest.skip("8 ranks make a cube")
    if threads > numba.config.NUMBA_NUM_THREADS:
        pytest.skip("one core")
    runs = [(0, 1, {}), (2, threads, kept), (3, threads, kept), (2, threads, kept)]
    found, before = [], numba.get_num_threads()
    for tasks, count, options in runs:
        numba.set_num_threads(count)
        try:
            domain = Domain(ampi.COMM_WORLD, 3, tasks=tasks)
            sensitivity.run_cycles(domain, 6)
            found.append(sensitivity.gradient(domain, sensitivity.origin_energy, ALL, 5, **options))
        finally:
            numba.set_num_threads(before)
        assert domain.cycle == 11
    for gradient in found[1:]:
        assert gradient.value == pytest.approx(found[0].value, rel=1e-13)
        for name, expected in found[0].partial.items():
            np.testing.assert_allclose(gradient.partial[name], expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    for name, field in found[1].partial.items():
        assert np.asarray(field).tobytes() == np.asarray(found[3].partial[name]).tobytes(), "another run, other bits"
