"""The energies of a deck's poses, shared out over ranks."""

import numba

from . import kernels
from .backend import ThreadPoolExecutor, np
from .deck import DEGREES_OF_FREEDOM, Deck


def share_out(comm, deck, root=0):
    """Each rank's part of the root's deck: all of the molecules, an even share of the poses. Collective.

    ``deck`` counts on the root alone. The known energies stay there.
    """
    names = ("protein", "protein_type", "ligand", "ligand_type", "kind", "parameters")
    root_has = comm.Get_rank() == root
    layout = [(getattr(deck, name).shape, getattr(deck, name).dtype.str) for name in names] if root_has else None
    layout, count, dtype = comm.bcast((layout, deck.poses.shape[1], deck.poses.dtype.str) if root_has else None, root)
    arrays = {}
    for name, (shape, kind) in zip(names, layout):
        arrays[name] = np.asarray(getattr(deck, name)) if root_has else np.empty(shape, kind)
        comm.Bcast(arrays[name], root)
    counts = shares(count, comm.Get_size())
    poses = np.empty((DEGREES_OF_FREEDOM, counts[comm.Get_rank()]), dtype)
    for row in range(DEGREES_OF_FREEDOM):
        comm.Scatterv([deck.poses[row], counts] if root_has else None, poses[row], root)
    return Deck(poses=poses, **arrays)


def collect(comm, energies, root=0):
    """The energies of all poses on the root, in the deck's order; None elsewhere. Collective."""
    counts = comm.gather(energies.size, root)
    if comm.Get_rank() != root:
        comm.Gatherv(energies, None, root)
        return None
    every = np.empty(sum(counts), energies.dtype)
    comm.Gatherv(energies, [every, counts], root)
    return every


def shares(count, ranks):
    """How many of ``count`` poses each rank has."""
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


def pose_energies(deck, energies=None, tasks=0):
    """Energies of the deck's poses, shape (poses,), of its dtype; written to ``energies`` if given. Local.

    With ``tasks`` on so many threads: one task makes the table, which those for blocks of poses wait for.
    """
    types = deck.kind.size
    table = np.empty((types, types, 4), deck.parameters.dtype)
    reach = np.empty((types, types, 2), deck.parameters.dtype)
    if energies is None:
        energies = np.empty(deck.poses.shape[1], deck.poses.dtype)
    molecules = deck.protein, deck.protein_type, deck.ligand, deck.ligand_type, table, reach
    if not tasks:
        kernels.pair_table(deck.kind, deck.parameters, table, reach)
        kernels.pose_energies(*molecules, deck.poses, energies)
        return energies

    def of_block(block, table_made):
        table_made.result()
        kernels.pose_energies(*molecules, deck.poses[:, block], energies[block])

    with ThreadPoolExecutor(tasks, initializer=numba.set_num_threads, initargs=(1,)) as pool:
        table_made = pool.submit(kernels.pair_table, deck.kind, deck.parameters, table, reach)
        for done in [pool.submit(of_block, block, table_made) for block in blocks(energies.size, tasks)]:
            done.result()
    return energies


def blocks(count, tasks):
    """Slices of ``count`` poses: two for each thread, of whole blocks of the kernel if there are enough."""
    length = -(-count // (2 * tasks))
    if count > 2 * tasks * kernels.BLOCK:
        length = -(-length // kernels.BLOCK) * kernels.BLOCK
    return [slice(first, min(first + length, count)) for first in range(0, count, length)] if count else []
