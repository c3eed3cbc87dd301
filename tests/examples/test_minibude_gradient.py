"""miniBUDE's gradient: against difference quotients, whatever the ranks, and good for moving poses downhill."""

import dataclasses
import pathlib
import sys

import numba
import numpy as np
import pytest

import ampi

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "minibude" / "minibude.py"

sys.path.insert(0, str(PROGRAM.parent))
pytest.importorskip("scipy")
from docking import deck, descent, energy, optimise, sensitivity  # noqa: E402

numba.set_num_threads(1)  # ranks and other programs have the other cores

ALL = tuple(sensitivity.INPUTS)


def small(poses=21, seed=3):
    return deck.synthetic_deck(poses, protein_atoms=30, ligand_atoms=5, seed=seed)


@pytest.mark.parametrize("step", [1e-6, 1e-7])
def test_gradient_agrees_with_differences(step):
    found = sensitivity.compare(ampi.COMM_SELF, small(), ALL, step)
    assert set(found) == set(ALL)
    for name, (exact, difference) in found.items():
        assert exact == pytest.approx(difference, rel=1e-6), name


def test_each_element_for_a_few_poses():
    made = small(3).in_double()
    adjoints = sensitivity.gradient(ampi.COMM_SELF, made, ALL)
    for name in ALL:
        field, step = sensitivity.INPUTS[name], 1e-6
        original = getattr(made, field)
        places = np.argwhere(original) if name == "forcefield" else list(np.ndindex(original.shape))
        for place in map(tuple, places[::7]):
            unit = np.zeros_like(original)
            unit[place] = 1
            ahead, behind = (
                sensitivity.total_energy(ampi.COMM_SELF, sensitivity.moved(made, field, s * step, unit))
                for s in (1, -1)
            )
            quotient = (ahead - behind) / (2 * step)
            assert adjoints[name][place] == pytest.approx(quotient, rel=1e-5, abs=1e-5), (name, place)


@pytest.mark.mpi
@pytest.mark.parametrize("poses", [2, 21])
def test_ranks_agree_with_one(poses):
    comm = ampi.COMM_WORLD
    whole = small(poses).in_double()
    found = sensitivity.gradient(comm, whole if comm.Get_rank() == 0 else None, ALL)
    if comm.Get_rank() != 0:
        assert found is None
        return
    for name, expected in sensitivity.gradient(ampi.COMM_SELF, whole, ALL).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-11, atol=1e-9, err_msg=name)


@pytest.mark.slow  # kernels are compiled once more, to release the GIL
@pytest.mark.parametrize("poses, tasks", [(21, 1), (21, 3), (3, 2), (6000, 2)])
def test_tasks_agree_with_the_serial_run(poses, tasks):
    whole = small(poses).in_double()
    np.testing.assert_array_equal(energy.pose_energies(whole, tasks=tasks), energy.pose_energies(whole))
    found = sensitivity.gradient(ampi.COMM_SELF, whole, ALL, tasks=tasks)
    for name, expected in sensitivity.gradient(ampi.COMM_SELF, whole, ALL).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-11, atol=1e-9, err_msg=name)


def test_a_ligand_out_of_reach_has_gradient_zero():
    away = small()
    away.poses[3:] = 1000.0
    energies, slopes = sensitivity.pose_gradient(away, away.poses)
    assert not energies.any() and not slopes.any()


@pytest.mark.parametrize("batch", [4, 1000])
def test_poses_move_downhill(batch):
    made = small(30)
    before = energy.pose_energies(made)
    poses, after = optimise.lower(made, iterations=15, batch=batch)
    assert (after <= before).all() and np.sum(after < before - 0.1) >= 10
    assert after.min() < before.min()
    moved = energy.pose_energies(dataclasses.replace(made, poses=poses))
    np.testing.assert_allclose(moved, after, rtol=1e-4, atol=1e-2)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("kept", [{"checkpoints": 3}, {"checkpoints": 1}, {"memory": "1MiB"}])
def test_gradient_of_a_descent_with_few_states_is_that_of_all_steps(kept):
    """To the last bit; and it is the one of a single rank, but for the order of additions."""
    comm = ampi.COMM_WORLD
    made = small(9).in_double()
    mine = made if comm.Get_rank() == 0 else None
    expected, whole = descent.gradient(comm, mine, ALL, 6)
    energies, found = descent.gradient(comm, mine, ALL, 6, **kept)
    assert energies.tobytes() == expected.tobytes()
    if comm.Get_rank() != 0:
        assert found is None
        return
    _, alone = descent.gradient(ampi.COMM_SELF, made, ALL, 6)
    for name in ALL:
        assert found[name].tobytes() == whole[name].tobytes(), name
        np.testing.assert_allclose(found[name], alone[name], rtol=1e-11, atol=1e-9, err_msg=name)


@pytest.mark.slow  # compiles for half a minute what no other test needs
def test_gradient_of_a_descent_agrees_with_differences():
    made = small().in_double()
    before = np.sum(energy.pose_energies(made))
    energies, found = descent.gradient(ampi.COMM_SELF, made, ALL, 6, checkpoints=2)
    assert energies.sum() < before - 1.0
    random = np.random.default_rng(0)
    for name, adjoint in found.items():
        field = sensitivity.INPUTS[name]
        direction = sensitivity.random_direction(random, getattr(made, field), name)
        ends = []
        for step in (1e-6, -1e-6):
            moved = sensitivity.moved(made, field, step, direction)
            ends.append(np.sum(energy.pose_energies(dataclasses.replace(moved, poses=descent.descend(moved, 6)))))
        assert np.vdot(adjoint, direction) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_program_prints_a_descent(mpiexec, ranks):
    options = ("-n", 40, "-i", 1, "--gradient", "forcefield", "--descend", 4)
    said = [mpiexec(ranks, PROGRAM, *options, *kept, timeout=300) for kept in ((), ("--checkpoints", 2))]
    assert [result.returncode for result in said] == [0, 0], said[0].stderr + said[1].stderr
    slopes = [[line for line in result.stdout.splitlines() if "Largest entry" in line] for result in said]
    assert len(slopes[0]) == 1 and slopes[0] == slopes[1]
    assert "Steps executed: 6," in said[1].stdout


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_program_prints_gradient_and_optimum(mpiexec, ranks):
    options = ("-n", 40, "-i", 1, "--gradient", "poses", "--check", "--optimise", 3)
    result = mpiexec(ranks, PROGRAM, *options, timeout=200)  # it compiles
    assert result.returncode == 0, result.stderr
    assert "Gradient with respect to: poses" in result.stdout and "times as long" in result.stdout
    assert result.stdout.count("Verified") == 2
    before, after = next(
        line.split(":")[1].split("->") for line in result.stdout.splitlines() if "Lowest energy" in line
    )
    assert float(after) < float(before)


@pytest.mark.parametrize(
    "given, said", [(["--check"], "--check needs --gradient"), (["--memory", "1MiB"], "--memory needs --descend")]
)
def test_an_option_without_the_one_it_needs_is_refused(mpiexec, given, said):
    result = mpiexec(1, PROGRAM, *given)
    assert result.returncode == 2 and said in result.stderr
