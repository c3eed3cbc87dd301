"""miniBUDE: its energies against the original's, against double precision, and whatever the ranks."""

import dataclasses
import pathlib
import struct
import sys

import numba
import numpy as np
import pytest
from mpi4py import MPI

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "minibude" / "minibude.py"
REFERENCE = ROOT / "tests" / "data" / "bm1"

sys.path.insert(0, str(PROGRAM.parent))
from docking import check, deck, energy, kernels  # noqa: E402

numba.set_num_threads(1)  # ranks and other programs have the other cores


@pytest.fixture(scope="module")
def bm1():
    return deck.read_deck(REFERENCE)


def in_double(single):
    return dataclasses.replace(
        single, **{name: getattr(single, name).astype(float) for name in ("protein", "ligand", "parameters", "poses")}
    )


# The energies


def test_bm1_agrees_with_the_originals_energies(bm1):
    difference, _ = check.largest_difference(energy.pose_energies(bm1), bm1.known)
    assert difference < 0.006  # the original's tolerance is 0.025 %; 0.0036 % is reached


def test_plain_formulas_give_the_originals_energies(bm1):
    some = bm1.first(48)
    # What is left is the original's own rounding, in single precision.
    np.testing.assert_allclose(check.energies_in_double(some), some.known, rtol=2e-5)


@pytest.mark.parametrize("poses", [1, 17, kernels.BLOCK - 1, kernels.BLOCK, kernels.BLOCK + 1])
def test_double_precision_gives_the_plain_formulas_digits(poses):
    synthetic = in_double(deck.synthetic_deck(poses, protein_atoms=31, ligand_atoms=5, seed=poses))
    found = energy.pose_energies(synthetic)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, check.energies_in_double(synthetic), rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_single_precision_is_within_the_originals_tolerance(seed):
    synthetic = deck.synthetic_deck(100, seed=seed)
    found = energy.pose_energies(synthetic)
    assert found.dtype == np.float32
    difference, _ = check.largest_difference(found, check.energies_in_double(synthetic))
    assert difference < check.TOLERANCE


def test_the_order_of_the_poses_does_not_matter():
    synthetic = deck.synthetic_deck(700, protein_atoms=50, ligand_atoms=4)
    order = np.random.default_rng(1).permutation(700)
    shuffled = dataclasses.replace(synthetic, poses=np.ascontiguousarray(synthetic.poses[:, order]))
    difference = energy.pose_energies(shuffled) - energy.pose_energies(synthetic)[order]
    assert np.abs(difference).max() < 1e-3  # the last poses of a block may be rounded in another way


def test_a_ligand_out_of_reach_has_no_energy():
    synthetic = deck.synthetic_deck(10)
    synthetic.poses[3:] = 1000.0
    assert not energy.pose_energies(synthetic).any()


def test_energies_are_written_to_the_given_file():
    synthetic = deck.synthetic_deck(20, protein_atoms=10, ligand_atoms=3)
    wanted = np.full(20, np.nan, np.float32)
    assert energy.pose_energies(synthetic, wanted) is wanted
    assert np.array_equal(wanted, energy.pose_energies(synthetic))


@pytest.mark.parametrize("a", range(34))
def test_energy_of_each_pair_of_types(a):
    """One atom against another, at distances in every part of the three functions."""
    synthetic = deck.synthetic_deck(1, 1, 1)
    distances = np.linspace(0.5, 12.0, 60)
    for b in range(34):
        pair = in_double(
            dataclasses.replace(
                synthetic,
                protein=np.zeros((3, 1)),
                protein_type=np.array([b], np.uint32),
                ligand=np.zeros((3, 1)),
                ligand_type=np.array([a], np.uint32),
                poses=np.vstack([np.zeros((3, 60)), np.outer([2, -1, 2], distances / 3)]),
            )
        )
        np.testing.assert_allclose(energy.pose_energies(pair), check.energies_in_double(pair), atol=1e-12, err_msg=b)


# Ranks


@pytest.mark.mpi
def test_bm1_shared_out_over_the_ranks(bm1):
    comm = MPI.COMM_WORLD
    mine = energy.share_out(comm, bm1 if comm.rank == 0 else None)
    every = energy.collect(comm, energy.pose_energies(mine))
    if comm.rank == 0:
        difference, _ = check.largest_difference(every, bm1.known)
        assert difference < 0.006


@pytest.mark.mpi
@pytest.mark.parametrize("poses", [1, 3, 1000])
def test_shares_are_put_together_in_order(poses):
    comm = MPI.COMM_WORLD
    whole = deck.synthetic_deck(poses, protein_atoms=40, ligand_atoms=6)
    mine = energy.share_out(comm, whole if comm.rank == 0 else None)
    assert comm.allreduce(mine.poses.shape[1]) == poses
    every = energy.collect(comm, energy.pose_energies(mine))
    if comm.rank == 0:
        np.testing.assert_allclose(every, energy.pose_energies(whole), rtol=1e-5, atol=1e-3)
    else:
        assert every is None


@pytest.mark.parametrize("count, ranks", [(0, 1), (1, 3), (10, 4), (65536, 8), (7, 7)])
def test_shares_are_even(count, ranks):
    parts = energy.shares(count, ranks)
    assert len(parts) == ranks and sum(parts) == count and max(parts) - min(parts) <= 1


# The program


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_program_verifies_a_synthetic_deck(mpiexec, ranks, tmp_path):
    out = tmp_path / "energies"
    result = mpiexec(ranks, PROGRAM, "-n", 300, "--seed", 5, "-i", 2, "-t", 1, "-o", out)
    assert result.returncode == 0, result.stderr
    assert "\nVerified" in result.stdout
    assert all(word in result.stdout for word in ("Average time", "Interactions/s", "GFLOP/s"))
    expected = energy.pose_energies(deck.synthetic_deck(300, seed=5))
    np.testing.assert_allclose(np.loadtxt(out), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("ranks", [1, 4, pytest.param(2, marks=pytest.mark.slow)])
def test_program_verifies_bm1(mpiexec, ranks, bm1):
    result = mpiexec(ranks, PROGRAM, "--deck", REFERENCE, "-i", 1)
    assert result.returncode == 0, result.stderr
    assert "Verified" in result.stdout and "4096 poses, from the energies of the deck" in result.stdout


def test_program_reports_wrong_energies(mpiexec, tmp_path):
    small = deck.synthetic_deck(20, protein_atoms=10, ligand_atoms=3)
    write_deck(tmp_path, small, energy.pose_energies(small) + np.float32(2))
    result = mpiexec(2, PROGRAM, "--deck", tmp_path, "-i", 1)
    assert result.returncode != 0
    assert "VERIFICATION FAILED" in result.stdout


@pytest.mark.parametrize("problem", ["no folder", "too many poses"])
def test_program_reports_what_is_wrong_with_a_deck(mpiexec, tmp_path, problem):
    write_deck(tmp_path, deck.synthetic_deck(20, protein_atoms=10, ligand_atoms=3))
    folder = tmp_path / "missing" if problem == "no folder" else tmp_path
    result = mpiexec(2, PROGRAM, "--deck", folder, "-n", 21)
    assert result.returncode != 0
    assert result.stderr.count("minibude.py: ") == 1 and "Traceback" not in result.stderr
    assert ("no deck" if problem == "no folder" else "21 poses are asked for") in result.stderr


# Decks


def write_deck(folder, made, energies=None):
    """miniBUDE's files, packed number by number."""
    for name in "protein", "ligand":
        atoms = zip(getattr(made, name).T.tolist(), getattr(made, f"{name}_type").tolist(), strict=True)
        (folder / f"{name}.in").write_bytes(b"".join(struct.pack("<fffi", *place, kind) for place, kind in atoms))
    types = zip(made.kind.tolist(), *made.parameters.tolist(), strict=True)
    (folder / "forcefield.in").write_bytes(b"".join(struct.pack("<ifff", *numbers) for numbers in types))
    (folder / "poses.in").write_bytes(struct.pack(f"<{made.poses.size}f", *made.poses.ravel().tolist()))
    if energies is not None:
        (folder / "ref_energies.out").write_text("".join(f"{e:.6f}\n" for e in energies))


@pytest.mark.parametrize("known", [None, [1.5, -2.25]])
def test_a_deck_is_read_as_it_was_written(tmp_path, known):
    made = deck.synthetic_deck(2, protein_atoms=6, ligand_atoms=3)
    write_deck(tmp_path, made, known)
    read = deck.read_deck(tmp_path)
    for field in dataclasses.fields(deck.Deck):
        if field.name != "known":
            expected, found = getattr(made, field.name), getattr(read, field.name)
            assert found.dtype == expected.dtype and found.flags.c_contiguous, field.name
            assert np.array_equal(found, expected), field.name
    assert (read.known is None) if known is None else np.array_equal(read.known, known)


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("protein.in", lambda data: None, "no deck"),
        ("protein.in", lambda data: b"", "has 0 bytes"),
        ("ligand.in", lambda data: data[:-1], "not 16 for each entry"),
        ("ligand.in", lambda data: data[:-4] + struct.pack("<i", 34), "type 34; forcefield.in has 34 types"),
        ("protein.in", lambda data: data[:-4] + struct.pack("<i", -1), "type -1"),
        ("poses.in", lambda data: data[:-4], "11 numbers, not 6 for each pose"),
        ("ref_energies.out", lambda data: b"energy\n", "energy"),
    ],
)
def test_a_damaged_deck_is_an_error(tmp_path, name, change, message):
    write_deck(tmp_path, deck.synthetic_deck(2, protein_atoms=6, ligand_atoms=3), [1.0, 2.0])
    data = change((tmp_path / name).read_bytes())
    if data is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(deck.DeckError, match=message):
        deck.read_deck(tmp_path)


def test_the_seed_makes_the_deck():
    one, same, other = (deck.synthetic_deck(9, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.protein, same.protein) and np.array_equal(one.poses, same.poses)
    assert not np.array_equal(one.protein, other.protein)


# The criterion


def test_small_energies_do_not_count():
    known = np.array([0.5, -100.0, 0.9])
    assert check.largest_difference(np.array([-0.5, -99.9, 0.0]), known) == (pytest.approx(0.1), 1)
    assert check.largest_difference(np.array([1.5, -100.0, 0.9]), known) == (pytest.approx(200.0), 0)


def test_what_is_not_a_number_is_infinitely_wrong():
    assert check.largest_difference(np.array([1.0, np.nan]), np.array([1.0, 2.0])) == (np.inf, 1)
