"""Gradients: how the energies of all poses together change with the protein, the poses and the force field.

The program that is differentiated is all of :mod:`docking.energy`, messages included. The root's deck goes out to the
ranks, so its gradient comes back to the root.

Where two spheres touch, or a reach ends, an energy has a kink; the derivative there is that of one of the two sides.
"""

import dataclasses

import numpy

import ampi

from . import energy
from .backend import value

INPUTS = {"protein": "protein", "poses": "poses", "forcefield": "parameters"}
"""What can be differentiated with respect to, and the field of the deck that it is."""


def gradient(comm, deck, inputs, root=0, tasks=0):
    """The gradient of the sum of all poses' energies, with respect to the root's deck. Collective.

    Parameters
    ----------
    deck : Deck
        Counts on the root alone.
    inputs : sequence of str
        Names in :data:`INPUTS`.
    tasks : int
        See :func:`docking.energy.pose_energies`.

    Returns
    -------
    dict of str to array, or None
        On the root, arrays like those of the deck.
    """
    names = [INPUTS[name] for name in inputs] if comm.Get_rank() == root else []
    with ampi.Tape() as tape:
        watched = {name: tape.watch(getattr(deck, name)) for name in names}
        mine = energy.share_out(comm, dataclasses.replace(deck, **watched) if watched else None, root)
        energies = energy.pose_energies(mine, tasks=tasks)
    adjoints = tape.gradient(energies, list(watched.values()), seed=numpy.ones(energies.size, energies.dtype))
    return dict(zip(inputs, adjoints)) if names else None


def pose_gradient(deck, poses):
    """Energies of some poses, shape (n,), and their derivatives with respect to the poses, shape (6, n). Local."""
    with ampi.Tape() as tape:
        watched = tape.watch(poses)
        energies = energy.pose_energies(dataclasses.replace(deck, poses=watched))
    slopes = tape.gradient(energies, watched, seed=numpy.ones(energies.size, energies.dtype))
    return value(energies), slopes


def compare(comm, deck, inputs, step=1e-6, seed=0, root=0):
    """The derivative in a random direction, by the gradient and by a central difference. Collective.

    Both are computed in double precision. Returns the two numbers on the root, for each input; None elsewhere.
    """
    root_has = comm.Get_rank() == root
    deck = deck.in_double() if root_has else None
    adjoints = gradient(comm, deck, inputs, root)
    random = numpy.random.default_rng(seed)
    found = {}
    for name in inputs:
        field = INPUTS[name]
        direction = random_direction(random, getattr(deck, field), name) if root_has else None
        ahead, behind = (
            total_energy(comm, moved(deck, field, sign * step, direction) if root_has else None, root)
            for sign in (1, -1)
        )
        if root_has:
            found[name] = float(numpy.vdot(adjoints[name], direction)), (ahead - behind) / (2 * step)
    return found if root_has else None


def random_direction(random, array, name):
    """A parameter of the force field that is zero stays so: it says that atoms of this type have no such energy."""
    direction = random.normal(size=array.shape)
    return numpy.where(array == 0, 0.0, direction) if name == "forcefield" else direction


def moved(deck, field, step, direction):
    return dataclasses.replace(deck, **{field: getattr(deck, field) + step * direction})


def total_energy(comm, deck, root=0):
    """The sum of all poses' energies, on all ranks. Collective."""
    return comm.allreduce(float(value(energy.pose_energies(energy.share_out(comm, deck, root))).sum()))
