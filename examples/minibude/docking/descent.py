"""Moving the poses downhill as a time loop: how do the energies that they end with depend on what there was at first?

Each step moves each pose along the slopes of its energy, by no more than a length. So a step has derivatives in it, and
the gradient of all steps has second ones: `slopes` is differentiated by products with the Hessian. A few poses on the
way are kept instead of all (``ampi.timeloop``).
"""

import dataclasses

import numpy

import ampi

from . import energy, sensitivity
from .backend import np, value
from .optimise import ARM

LENGTH = 0.05  # Å: how far a step moves a pose at most
STEEP = 10.0  # slopes per Å, from which on it moves about that far


def descend(deck, steps, **kept):
    """Poses after so many steps, shape (6, poses). Local: every rank has its own poses.

    ``kept`` are options of ``ampi.timeloop`` (``checkpoints=K``, ``memory=SIZE`` …); without any all steps are kept on
    a tape, where there is one.
    """
    scale = numpy.array([ARM, ARM, ARM, 1, 1, 1], value(deck.poses).dtype)[:, None]
    slopes = slopes_of(deck)

    def step(state):
        steep = slopes(state["poses"], deck.protein, deck.parameters) / scale
        size = np.sqrt(np.sum(steep * steep, axis=0) + STEEP**2)
        state["poses"] = state["poses"] - LENGTH * steep / size / scale

    state = {"poses": deck.poses}
    if kept:
        return ampi.timeloop(step, state, steps, **kept)["poses"]
    for _ in range(steps):
        step(state)
    return state["poses"]


def slopes_of(deck):
    """A function ``slopes(poses, protein, parameters)``: derivatives of the poses' energies with respect to the poses,
    shape (6, poses), which has derivatives of its own."""

    def energies(poses, protein, parameters):
        return energy.pose_energies(dataclasses.replace(deck, poses=poses, protein=protein, parameters=parameters))

    @ampi.custom_vjp
    def slopes(poses, protein, parameters):
        given = dataclasses.replace(deck, protein=value(protein), parameters=value(parameters))
        return sensitivity.pose_gradient(given, value(poses))[1]

    def forward(*inputs):
        return slopes(*inputs), inputs

    def backward(inputs, weights):
        direction = weights, *map(numpy.zeros_like, inputs[1:])
        return ampi.hvp(lambda *inputs: np.sum(energies(*inputs)), inputs, direction)

    slopes.defvjp(forward, backward)
    return slopes


def gradient(comm, deck, inputs, steps, root=0, **kept):
    """Energies after so many steps, and the gradient of their sum with respect to the root's deck. Collective.

    Parameters
    ----------
    deck : Deck
        Counts on the root alone.
    inputs : sequence of str
        Names in `sensitivity.INPUTS`.
    kept
        Options of ``ampi.timeloop``.

    Returns
    -------
    energies : array
        Of this rank's poses.
    dict of str to array, or None
        On the root, arrays like those of the deck.
    """
    names = [sensitivity.INPUTS[name] for name in inputs] if comm.Get_rank() == root else []
    with ampi.Tape() as tape:
        watched = {name: tape.watch(getattr(deck, name)) for name in names}
        mine = energy.share_out(comm, dataclasses.replace(deck, **watched) if watched else None, root)
        poses = descend(mine, steps, **(kept and {"comm": comm, **kept}))
        energies = energy.pose_energies(dataclasses.replace(mine, poses=poses))
    adjoints = tape.gradient(energies, list(watched.values()), seed=numpy.ones(energies.size, energies.dtype))
    return value(energies), dict(zip(inputs, adjoints)) if names else None
