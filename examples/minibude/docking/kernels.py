"""The local work: what a pair of atom types has in common, and the energies of poses.

The energy of a pose is a sum over all pairs of a ligand atom and a protein atom, of three functions of the distance d
between them. All are piecewise linear in the gap between the atoms' spheres, gap = d - R, with R the sum of the radii:

* steric: where the spheres overlap, the overlap times a stiffness of 38 / R;
* charge: constant where they overlap, then falling to zero over a reach of 2 Å, or 4 Å if both atoms are of kind F;
* desolvation: likewise, over 5.5 Å between two nonpolar atoms and 1 Å between a polar and a nonpolar one.

With the overlap ``max(-gap, 0)`` and the separation ``max(gap, 0)`` a pair's energy takes no branch::

    stiffness overlap + charge max(charge_reach - separation, 0) + desolvation max(desolvation_reach - separation, 0)

where the last two coefficients are energies per length. These numbers depend on the types of the two atoms alone.

The kernels compute in the type of their arrays. Their constants are of single precision, so that they do not widen it,
and exact in it.

Source: S. McIntosh-Smith, J. Price, R. B. Sessions, A. A. Ibarra, "High performance in silico virtual drug screening on
many-core processors", Int. J. High Perform. Comput. Appl. 29 (2015) 119-134, and the published program miniBUDE.
"""

import math

import numpy as np

from .backend import kernel, prange

ZERO = np.float32(0)
HALF = np.float32(0.5)
ONE = np.float32(1)

STERIC_HARDNESS = np.float32(38)
CHARGE_SCALE = np.float32(22.5)
CHARGE_REACH_F = np.float32(4)  # between two atoms of kind F
CHARGE_REACH_OTHERS = np.float32(2)
NONPOLAR_REACH = np.float32(5.5)  # desolvation between two nonpolar atoms
MIXED_REACH = np.float32(1)  # and between a polar and a nonpolar one

KIND_E = 69  # what an atom's hydrogen bonding makes of its charge
KIND_F = 70

# Rows of the force field's parameters
RADIUS, HYDROPHOBICITY, CHARGE = range(3)

# What there is for a pair of types: numbers that follow from the parameters, and reaches, which follow from kinds
CONTACT, STIFFNESS, CHARGE_SLOPE, DESOLVATION_SLOPE = range(4)
CHARGE_REACH, DESOLVATION_REACH = range(2)

BLOCK = 1344
"""Poses that are worked on together: enough to pay for what is read once per pair of atoms, few enough for the cache.
A row of a block in single precision is 1.3 times 4096 bytes: were it nearly a multiple of that, a processor would take
neighbouring rows for one another, for it compares the lowest bits of addresses alone."""


@kernel
def pair_table(kind, parameters, table, reach):
    """What the types of a pair say about its energy.

    Parameters
    ----------
    kind : array of int32, shape (types,)
        Hydrogen bonding: ``KIND_E``, ``KIND_F`` or another number.
    parameters : array, shape (3, types)
        ``RADIUS`` in Å, ``HYDROPHOBICITY`` (negative for nonpolar atoms) and ``CHARGE``.
    table, reach : arrays, shapes (types, types, 4) and (types, types, 2)
        Filled in. The ligand atom's type comes first, for the energy is not quite symmetric: a protein atom of no
        hydrophobicity has no desolvation energy.
    """
    for a in prange(table.shape[0]):
        for b in range(table.shape[1]):
            contact = parameters[RADIUS, a] + parameters[RADIUS, b]
            table[a, b, CONTACT] = contact
            table[a, b, STIFFNESS] = STERIC_HARDNESS / contact

            charge = CHARGE_SCALE * parameters[CHARGE, a] * parameters[CHARGE, b]
            if kind[a] == KIND_E or kind[b] == KIND_E:
                charge = -abs(charge)
            charge_reach = CHARGE_REACH_F if kind[a] == KIND_F and kind[b] == KIND_F else CHARGE_REACH_OTHERS
            table[a, b, CHARGE_SLOPE] = charge / charge_reach
            reach[a, b, CHARGE_REACH] = charge_reach

            ligand = parameters[HYDROPHOBICITY, a]
            protein = parameters[HYDROPHOBICITY, b]
            if (ligand < ZERO and protein > ZERO) or (ligand > ZERO and protein < ZERO):
                # The nonpolar one's share counts as repulsion.
                desolvation = HALF * (abs(ligand) + abs(protein))
            else:
                desolvation = HALF * (ligand + protein)
            if protein == ZERO or (ligand >= ZERO and protein >= ZERO):
                desolvation = ZERO
            desolvation_reach = NONPOLAR_REACH if ligand < ZERO and protein < ZERO else MIXED_REACH
            table[a, b, DESOLVATION_SLOPE] = desolvation / desolvation_reach
            reach[a, b, DESOLVATION_REACH] = desolvation_reach


@kernel
def pose_energies(protein, protein_type, ligand, ligand_type, table, reach, poses, energies):
    """The energy of each pose.

    Parameters
    ----------
    protein, ligand : arrays, shapes (3, protein atoms) and (3, ligand atoms)
        Coordinates in Å.
    protein_type, ligand_type : arrays of uint32
        Types of the atoms. Unsigned: no number of a type counts from the end.
    table, reach : arrays, shapes (types, types, 4) and (types, types, 2)
        From `pair_table`.
    poses : array, shape (6, poses)
        How the ligand is moved: angles (radians) about the axes x, y, z, in this order, and a translation in Å.
    energies : array, shape (poses,)
        Filled in.
    """
    for block in prange((energies.shape[0] + BLOCK - 1) // BLOCK):
        first = block * BLOCK
        count = min(BLOCK, energies.shape[0] - first)
        motion = np.empty((3, 4, BLOCK), poses.dtype)
        for k in range(count):
            sin_x = math.sin(poses[0, first + k])
            cos_x = math.cos(poses[0, first + k])
            sin_y = math.sin(poses[1, first + k])
            cos_y = math.cos(poses[1, first + k])
            sin_z = math.sin(poses[2, first + k])
            cos_z = math.cos(poses[2, first + k])
            motion[0, 0, k] = cos_y * cos_z
            motion[0, 1, k] = sin_x * sin_y * cos_z - cos_x * sin_z
            motion[0, 2, k] = cos_x * sin_y * cos_z + sin_x * sin_z
            motion[0, 3, k] = poses[3, first + k]
            motion[1, 0, k] = cos_y * sin_z
            motion[1, 1, k] = sin_x * sin_y * sin_z + cos_x * cos_z
            motion[1, 2, k] = cos_x * sin_y * sin_z - sin_x * cos_z
            motion[1, 3, k] = poses[4, first + k]
            motion[2, 0, k] = -sin_y
            motion[2, 1, k] = sin_x * cos_y
            motion[2, 2, k] = cos_x * cos_y
            motion[2, 3, k] = poses[5, first + k]

        placed = np.empty((ligand.shape[1], 3, BLOCK), poses.dtype)
        for a in range(ligand.shape[1]):
            x = ligand[0, a]
            y = ligand[1, a]
            z = ligand[2, a]
            for axis in range(3):
                for k in range(count):
                    placed[a, axis, k] = (
                        x * motion[axis, 0, k] + y * motion[axis, 1, k] + z * motion[axis, 2, k] + motion[axis, 3, k]
                    )

        energy = np.zeros(BLOCK, poses.dtype)
        for a in range(ligand.shape[1]):
            for b in range(protein.shape[1]):
                x = protein[0, b]
                y = protein[1, b]
                z = protein[2, b]
                contact = table[ligand_type[a], protein_type[b], CONTACT]
                stiffness = table[ligand_type[a], protein_type[b], STIFFNESS]
                charge = table[ligand_type[a], protein_type[b], CHARGE_SLOPE]
                desolvation = table[ligand_type[a], protein_type[b], DESOLVATION_SLOPE]
                charge_reach = reach[ligand_type[a], protein_type[b], CHARGE_REACH]
                desolvation_reach = reach[ligand_type[a], protein_type[b], DESOLVATION_REACH]
                for k in range(count):
                    dx = placed[a, 0, k] - x
                    dy = placed[a, 1, k] - y
                    dz = placed[a, 2, k] - z
                    gap = math.sqrt(dx * dx + dy * dy + dz * dz) - contact
                    separation = max(gap, ZERO)
                    energy[k] += (
                        stiffness * (separation - gap)
                        + charge * max(charge_reach - separation, ZERO)
                        + desolvation * max(desolvation_reach - separation, ZERO)
                    )
        for k in range(count):
            energies[first + k] = energy[k]
