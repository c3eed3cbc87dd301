"""Decks: a protein, a ligand, a force field, the poses to be tried, and the energies that are known for them."""

import dataclasses
import pathlib

import numpy as np

from .kernels import KIND_E, KIND_F

ATOM = np.dtype([("position", "<f4", 3), ("type", "<i4")])
ATOM_TYPE = np.dtype([("kind", "<i4"), ("radius", "<f4"), ("hydrophobicity", "<f4"), ("charge", "<f4")])
DEGREES_OF_FREEDOM = 6


class DeckError(ValueError):
    """A deck's files are missing, cut off, or do not fit together."""


@dataclasses.dataclass
class Deck:
    """What is to be computed: the arguments of the kernels.

    Attributes
    ----------
    protein, ligand : arrays of float32 (or float64), shapes (3, protein atoms) and (3, ligand atoms)
        Coordinates in Å.
    protein_type, ligand_type : uint32 arrays
        Indices into the force field.
    kind : int32 array, shape (types,)
    parameters : float32 array, shape (3, types)
        The force field: radius, hydrophobicity and charge.
    poses : float32 array, shape (6, poses)
        Three angles and a translation.
    known : float64 array or None
        The energies of the first poses, as far as they are known.
    """

    protein: np.ndarray
    protein_type: np.ndarray
    ligand: np.ndarray
    ligand_type: np.ndarray
    kind: np.ndarray
    parameters: np.ndarray
    poses: np.ndarray
    known: np.ndarray | None = None

    def first(self, count):
        """The deck with its first ``count`` poses alone."""
        known = None if self.known is None else self.known[:count]
        return dataclasses.replace(self, poses=np.ascontiguousarray(self.poses[:, :count]), known=known)

    def in_double(self):
        """The deck in double precision."""
        names = ("protein", "ligand", "parameters", "poses")
        return dataclasses.replace(self, **{name: getattr(self, name).astype(np.float64) for name in names})


def read_deck(folder):
    """The deck in miniBUDE's own files.

    They are ``protein.in``, ``ligand.in``, ``forcefield.in``, ``poses.in`` and, if there is one, ``ref_energies.out``.
    Raises :class:`DeckError`.
    """
    folder = pathlib.Path(folder)
    protein, protein_type = read_molecule(folder / "protein.in")
    ligand, ligand_type = read_molecule(folder / "ligand.in")
    types = read_records(folder / "forcefield.in", ATOM_TYPE)
    parameters = np.stack([types["radius"], types["hydrophobicity"], types["charge"]])
    for name, used in ("protein.in", protein_type), ("ligand.in", ligand_type):
        if used.max(initial=0) >= len(types):
            raise DeckError(f"{folder / name} has atoms of type {used.max()}; forcefield.in has {len(types)} types")
    poses = read_records(folder / "poses.in", np.dtype("<f4"))
    if len(poses) % DEGREES_OF_FREEDOM:
        raise DeckError(f"{folder / 'poses.in'} has {len(poses)} numbers, not {DEGREES_OF_FREEDOM} for each pose")
    poses = poses.reshape(DEGREES_OF_FREEDOM, -1)
    known = read_energies(folder / "ref_energies.out")
    return Deck(protein, protein_type, ligand, ligand_type, types["kind"].copy(), parameters, poses, known)


def read_molecule(path):
    """Coordinates, shape (3, atoms), and types of atoms."""
    atoms = read_records(path, ATOM)
    if atoms["type"].min(initial=0) < 0:
        raise DeckError(f"{path} has atoms of type {atoms['type'].min()}")
    return np.ascontiguousarray(atoms["position"].T), atoms["type"].astype(np.uint32)


def read_records(path, dtype):
    try:
        size = path.stat().st_size
        records = np.fromfile(path, dtype)
    except OSError as error:
        raise DeckError(f"no deck: {error}") from None
    if records.nbytes != size or not size:
        raise DeckError(f"{path} has {size} bytes, not {dtype.itemsize} for each entry")
    return records


def read_energies(path):
    """The known energies; None if there is no such file."""
    if not path.exists():
        return None
    try:
        return np.loadtxt(path, ndmin=1)
    except ValueError as error:
        raise DeckError(f"{path}: {error}") from None


def synthetic_deck(poses=65536, protein_atoms=938, ligand_atoms=26, seed=0):
    """A deck made of random numbers, as large as miniBUDE's bm1 and much like it.

    The ligand is a chain of atoms that starts out in a spherical pocket of a ball-shaped protein.
    """
    random = np.random.default_rng(seed)
    kind, parameters = synthetic_force_field(random)
    return Deck(
        protein=random_ball(random, protein_atoms, inner=7.0, outer=20.0),
        protein_type=random_types(random, protein_atoms),
        ligand=random_chain(random, ligand_atoms),
        ligand_type=random_types(random, ligand_atoms),
        kind=kind,
        parameters=parameters,
        poses=random.uniform([[-np.pi]] * 3 + [[-7.0]] * 3, [[np.pi]] * 3 + [[7.0]] * 3, (6, poses)).astype(np.float32),
    )


NONPOLAR_TYPES, POLAR_TYPES = 12, 20


def synthetic_force_field(random):
    """Kinds and parameters of nonpolar atoms without a charge, polar ones, and two which are special cases."""
    types = NONPOLAR_TYPES + POLAR_TYPES + 2
    other = 45
    kind = np.full(types, other, np.int32)
    kind[NONPOLAR_TYPES:] = random.choice([other, KIND_E, KIND_F], types - NONPOLAR_TYPES)
    radius = random.uniform(1.4, 2.1, types)
    hydrophobicity = random.uniform(0.1, 2.5, types)
    hydrophobicity[:NONPOLAR_TYPES] = random.uniform(-0.9, -0.1, NONPOLAR_TYPES)
    charge = random.uniform(-0.8, 0.8, types)
    charge[:NONPOLAR_TYPES] = 0.0
    hydrophobicity[-2] = 0.0
    hydrophobicity[-1], charge[-1] = -0.5, 1.0  # nonpolar, but charged
    return kind, np.stack([radius, hydrophobicity, charge]).astype(np.float32)


def random_types(random, atoms):
    """Types of atoms, nonpolar ones about as often as others."""
    nonpolar = random.integers(NONPOLAR_TYPES, size=atoms)
    others = random.integers(NONPOLAR_TYPES, NONPOLAR_TYPES + POLAR_TYPES + 2, size=atoms)
    return np.where(random.random(atoms) < 0.5, nonpolar, others).astype(np.uint32)


def random_ball(random, atoms, inner, outer):
    """Points between two spheres, evenly spread over the volume; shape (3, atoms)."""
    return (random_directions(random, atoms) * random.uniform(inner**3, outer**3, atoms) ** (1 / 3)).astype(np.float32)


def random_chain(random, atoms, step=1.5):
    """A random walk, centred; shape (3, atoms)."""
    walk = np.cumsum(step * random_directions(random, atoms), axis=1)
    return (walk - walk.mean(axis=1, keepdims=True)).astype(np.float32)


def random_directions(random, count):
    vectors = random.normal(size=(3, count))
    return vectors / np.linalg.norm(vectors, axis=0)
