"""Gradients of a LULESH run: what the end of it owes to the state some cycles before.

The independents are fields of the state (:data:`INDEPENDENTS`) as they are at the beginning of the recorded cycles.
Nodal mass and reference volumes are properties of the material: they stay as they are when a node is moved, as in a
restart from a changed state. Ranks that share a node have a copy each; the gradient with respect to a node is the sum
over its copies, so it does not depend on how the mesh is divided.

At kinks (the limiter of the viscosity, cut-offs, the branches of the equation of state) the derivative is a one-sided
one: that of the branch the run takes; at a tie of ``min``, ``max`` the first argument's. The undisturbed gas around
the blast sits on such kinks; gradients there are finite, but a difference quotient need not agree with them.
"""

import dataclasses
import itertools
import time

import numpy

import ampi

from . import hydro, output
from .backend import MPI, np, value

STATE = ("x", "v", "energy", "pressure", "viscosity", "sound_speed", "relative_volume", "time", "dt", "step_limit")
INDEPENDENTS = {"energy": "energy of each element", "x": "node coordinates", "v": "node velocities"}


def origin_energy(domain):
    """Energy of the element at the origin, which the first rank has; None elsewhere."""
    return domain.energy[0] if domain.box.place == (0, 0, 0) else None


def kinetic_energy(domain):
    """This rank's part of ½ Σ m v², each node counted on the one rank that owns it."""
    return 0.5 * np.sum(domain.owned_mass * domain.v * domain.v)


FUNCTIONALS = {"origin": origin_energy, "kinetic": kinetic_energy}


def save(domain):
    """A copy of the state."""
    return {name: numpy.array(value(getattr(domain, name))) for name in STATE} | {"cycle": domain.cycle}


def restore(domain, state):
    """Put a saved state back."""
    domain.cycle = state["cycle"]
    for name in STATE:
        getattr(domain, name)[...] = state[name]


@dataclasses.dataclass
class Gradient:
    """A functional and its gradient.

    Attributes: ``value`` (sum over ranks), ``fields`` (name → this rank's array, shared nodes summed over their
    copies), ``partial`` (name → the same before that sum), ``seconds`` (recording plus sweep, longest over ranks),
    ``saved_bytes`` (old values that the tape kept, sum over ranks).
    """

    value: float
    fields: dict
    partial: dict
    seconds: float
    saved_bytes: int


def total(comm, part):
    """The sum of what the ranks have; a rank that has nothing gives None. Collective."""
    return comm.allreduce(0.0 if part is None else float(value(part)))


def run_cycles(domain, cycles):
    for _ in range(cycles):
        hydro.advance(domain)


def gradient(domain, functional, independents, cycles, **kept):
    """Run ``cycles`` cycles and differentiate ``functional(domain)``, summed over ranks. Collective.

    Parameters: ``functional`` gives this rank's part as a scalar, or None; ``independents`` are names from
    :data:`INDEPENDENTS`; with options of ``ampi.timeloop`` (``checkpoints=K``, ``memory=SIZE``, ``storage=FOLDER`` …) a
    few states are kept instead of all cycles.
    """
    comm = domain.comm
    comm.Barrier()
    start = time.perf_counter()
    with ampi.Tape() as tape:
        watched = [tape.watch(getattr(domain, name)) for name in independents]
        if kept:
            ampi.timeloop(hydro.advance, domain, cycles, comm=comm, **kept)
        else:
            run_cycles(domain, cycles)
        result = functional(domain)
    adjoints = tape.gradient(result, watched)
    seconds = comm.allreduce(time.perf_counter() - start, op=MPI.MAX)
    partial = dict(zip(independents, adjoints))
    return Gradient(
        value=total(comm, result),
        fields={name: sum_copies(domain, name, adjoint) for name, adjoint in partial.items()},
        partial=partial,
        seconds=seconds,
        saved_bytes=comm.allreduce(tape.saved_bytes),
    )


def sum_copies(domain, name, adjoint):
    """Add up the adjoints of the copies of each shared node. Collective."""
    if name == "energy":
        return adjoint
    total = np.array(adjoint)
    domain.force_sum.post()
    domain.force_sum.send(total)
    domain.force_sum.finish(total)
    return numpy.asarray(value(total))


def evaluate(domain, state, functional, cycles):
    """``functional`` after ``cycles`` cycles from a saved state, summed over ranks. Collective."""
    restore(domain, state)
    run_cycles(domain, cycles)
    return total(domain.comm, functional(domain))


def random_direction(domain, independents, seed=0, symmetric=True):
    """A direction in the independents, the same for every division of the mesh into ranks.

    Each component is about as large as the field it belongs to, so that all of them count. Nodes on a plane of
    symmetry do not leave it. A ``symmetric`` direction stays the same when the axes are exchanged, as the Sedov
    problem does: elements that are images of each other tie in the choice of the time step, and only along such a
    direction is the run differentiable there.
    """
    direction = {}
    for name in independents:
        edge = domain.size * domain.box.side + (name != "energy")
        shape = (edge,) * 3 if name == "energy" else (3, edge, edge, edge)
        whole = numpy.random.default_rng([seed, *name.encode()]).standard_normal(shape)
        if symmetric:
            whole = symmetrized(whole)
        place = output.place_of(domain, "element" if name == "energy" else "node", domain.comm.Get_rank())
        mine = whole[place].reshape(value(getattr(domain, name)).shape)
        if name != "energy":
            mine = mine * (value(domain.mobility) != 0.0)
        direction[name] = mine * field_scale(domain, name)
    return direction


def symmetrized(whole):
    """The mean of a field (z, y, x), or vector field (direction, z, y, x), over all exchanges of the axes."""
    orders = list(itertools.permutations(range(3)))
    if whole.ndim == 3:
        return sum(whole.transpose(order) for order in orders) / len(orders)
    # Component c belongs to axis x, y, z = array axis 2, 1, 0.
    images = [numpy.stack([whole[2 - order[2 - c]].transpose(order) for c in range(3)]) for order in orders]
    return sum(images) / len(orders)


def field_scale(domain, name):
    """How large a perturbation counts as 1: an element's edge, or the energy and velocity that is there.

    Gas at rest stays at rest: what is slower than LULESH's cut-off does not move.
    """
    return domain.edge if name == "x" else value(getattr(domain, name))


def check(domain, state, functional, cycles, found, steps=(1e-6, 5e-7)):
    """Compare the gradient with central differences in a random symmetric direction. Collective; the state is lost.

    Returns the directional derivative by the gradient and, for each step, by differences.
    """
    restore(domain, state)
    independents = list(found.fields)
    direction = random_direction(domain, independents)
    exact = domain.comm.allreduce(sum(float(numpy.vdot(found.partial[n], direction[n])) for n in independents))
    differences = []
    for step in steps:
        ends = []
        for sign in (1, -1):
            moved = dict(state)
            for name in independents:
                moved[name] = state[name] + sign * step * direction[name]
            ends.append(evaluate(domain, moved, functional, cycles))
        differences.append((ends[0] - ends[1]) / (2 * step))
    return exact, dict(zip(steps, differences))
