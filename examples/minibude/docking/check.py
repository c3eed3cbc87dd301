"""Whether energies are right: miniBUDE's criterion, and energies to compare with where a deck brings none."""

import numpy as np

from .kernels import CHARGE, HYDROPHOBICITY, KIND_E, KIND_F, RADIUS

TOLERANCE = 0.025  # per cent, for single precision


def largest_difference(energies, known):
    """The largest difference, in per cent of the known energy, and the pose it is at.

    Poses of which both energies are below 1 in size do not count. Not a number counts as infinitely far off.
    """
    energies = np.asarray(energies, np.float64)
    counts = ~((np.abs(energies) < 1.0) & (np.abs(known) < 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = 100.0 * np.abs(energies - known) / np.abs(known)
    difference = np.where(counts, np.nan_to_num(difference, nan=np.inf), 0.0)
    pose = int(difference.argmax())
    return float(difference[pose]), pose


def energies_in_double(deck):
    """Energies of the deck's poses in double precision, written as the formulas are; shape (poses,). Slow."""
    return np.array([energy_of(deck, pose) for pose in deck.poses.T.astype(np.float64)])


def energy_of(deck, pose):
    ligand = rotation(pose[:3]) @ deck.ligand.astype(np.float64) + pose[3:, None]
    distance = np.linalg.norm(ligand[:, :, None] - deck.protein.astype(np.float64)[:, None, :], axis=0)
    parameters = deck.parameters.astype(np.float64)
    ours, theirs = parameters[:, deck.ligand_type, None], parameters[:, None, deck.protein_type]
    our_kind, their_kind = deck.kind[deck.ligand_type, None], deck.kind[None, deck.protein_type]

    contact = ours[RADIUS] + theirs[RADIUS]
    gap = distance - contact
    steric = np.where(gap < 0, 76 * (1 - distance / contact), 0)

    reach = np.where((our_kind == KIND_F) & (their_kind == KIND_F), 4.0, 2.0)
    charge = 45 * ours[CHARGE] * theirs[CHARGE] * ramp(gap, reach)
    charge = np.where((our_kind == KIND_E) | (their_kind == KIND_E), -np.abs(charge), charge)

    our_water, their_water = ours[HYDROPHOBICITY], theirs[HYDROPHOBICITY]
    sign = np.where(our_water * their_water < 0, -1.0, 1.0)  # of the nonpolar one's share
    desolvation = np.where(our_water < 0, sign, 1) * our_water + np.where(their_water < 0, sign, 1) * their_water
    nonpolar = (our_water < 0).astype(int) + (their_water < 0)
    reach = np.choose(nonpolar, [1.0, 1.0, 5.5])
    desolvation = np.where((nonpolar > 0) & (their_water != 0), desolvation * ramp(gap, reach), 0)
    return 0.5 * (steric + charge + desolvation).sum()


def ramp(gap, reach):
    """1 inside, falling to 0 at ``reach``."""
    return np.where(gap < 0, 1, np.where(gap < reach, 1 - gap / reach, 0))


def rotation(angles):
    """About x, then y, then z."""
    (sx, sy, sz), (cx, cy, cz) = np.sin(angles), np.cos(angles)
    about_x = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_z = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    return about_z @ about_y @ about_x
