"""miniBUDE's molecular docking in Python: ``mpiexec -n 4 python minibude.py --deck bm1``.

How well does a small molecule, the ligand, fit a protein? For each of many poses of the ligand the program computes an
energy, from the distances between all atoms of the one and all atoms of the other. It reads the decks of miniBUDE, or
makes one up, shares the poses out over the ranks, checks the energies and prints miniBUDE's figures.

The problem is miniBUDE's (https://github.com/UoB-HPC/miniBUDE); the program is written from the published algorithm.
:mod:`docking.kernels` has the local work, :mod:`docking.energy` shares it out, :mod:`docking.deck` reads decks,
:mod:`docking.check` says whether the energies are right.
"""

import argparse
import sys
import time

import numba
import numpy
from docking import check, energy, kernels
from docking.backend import COMM_WORLD, MPI, np, value
from docking.deck import DeckError, read_deck, synthetic_deck

SYNTHETIC_POSES = 65536
WARM_UP = 2
CHECKED_POSES = 64  # of a deck that brings no energies


def parse_arguments(arguments=None):
    """miniBUDE's command line, as far as it applies."""
    parser = argparse.ArgumentParser(description="The docking energies of miniBUDE.")
    parser.add_argument("--deck", metavar="DIR", help="folder with a deck of miniBUDE (default: a synthetic one)")
    parser.add_argument("--seed", type=natural, default=0, help="of the synthetic deck (default: 0)")
    parser.add_argument("-i", "--iter", dest="iterations", type=positive, default=8, help="repetitions (default: 8)")
    poses = f"number of poses (default: all of the deck, {SYNTHETIC_POSES} if synthetic)"
    parser.add_argument("-n", "--poses", type=positive, help=poses)
    parser.add_argument("-o", "--out", metavar="FILE", help="write the energies to this file, one in a line")
    parser.add_argument("-t", "--threads", type=positive, default=1, help="threads of each rank (default: 1)")
    return parser.parse_args(arguments)


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def natural(text):
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


def load(options):
    """The deck that the options ask for. Raises :class:`DeckError`."""
    if options.deck is None:
        return synthetic_deck(options.poses or SYNTHETIC_POSES, seed=options.seed)
    deck = read_deck(options.deck)
    available = deck.poses.shape[1]
    if options.poses is None:
        return deck
    if options.poses > available:
        raise DeckError(f"{options.poses} poses are asked for; {options.deck} has {available}")
    return deck.first(options.poses)


def compile_kernels(comm):
    """Compute a very small deck, first on one rank so that the others find what it has compiled."""
    if comm.Get_rank() == 0:
        energy.pose_energies(synthetic_deck(1, 1, 1))
    comm.Barrier()
    if comm.Get_rank() != 0:
        energy.pose_energies(synthetic_deck(1, 1, 1))
    comm.Barrier()


def measure(comm, work, iterations):
    """Milliseconds that each of so many calls of ``work`` took on the slowest rank, once it is warm. Collective."""
    times = []
    for _ in range(WARM_UP + iterations):
        comm.Barrier()
        start = time.perf_counter()
        work()
        times.append(comm.allreduce(time.perf_counter() - start, op=MPI.MAX) * 1e3)
    return numpy.array(times[WARM_UP:])


def print_problem(options, deck, ranks):
    print(f"Deck:        {options.deck or f'synthetic, seed {options.seed}'}")
    print(f"Poses:       {deck.poses.shape[1]}")
    print(f"Ligands:     {deck.ligand.shape[1]}")
    print(f"Proteins:    {deck.protein.shape[1]}")
    print(f"Iterations:  {options.iterations}")
    print(f"MPI tasks:   {ranks}")
    print(f"Threads:     {options.threads} per task\n", flush=True)


def print_timings(deck, times):
    """Time per iteration and the rates that miniBUDE derives from it."""
    poses, ligand, protein = deck.poses.shape[1], deck.ligand.shape[1], deck.protein.shape[1]
    interactions = poses * ligand * protein
    # miniBUDE's count of operations: what is done once for a block of poses, and for each pose.
    operations = poses * (28 + ligand * (18 + 30 * protein)) + poses / kernels.BLOCK * ligand * (2 + 10 * protein)
    seconds = times.mean() / 1e3
    print(f"- Total time:     {times.sum():8.3f} ms")
    print(f"- Average time:   {times.mean():8.3f} ms   (least {times.min():.3f}, most {times.max():.3f})")
    print(f"- Interactions/s: {interactions / seconds / 1e9:8.3f} billion")
    print(f"- GFLOP/s:        {operations / seconds / 1e9:8.3f}")
    print(f"- GFInst/s:       {25 * interactions / seconds / 1e9:8.3f}", flush=True)


def verify(deck, energies):
    """Compare with the energies that are known, print the result; whether they agree."""
    if deck.known is None:
        known, origin = check.energies_in_double(deck.first(CHECKED_POSES)), "double precision"
    else:
        known, origin = deck.known, "the deck"
    compared = min(len(known), len(energies))
    difference, pose = check.largest_difference(energies[:compared], known[:compared])
    agrees = difference < check.TOLERANCE
    print(
        f"Largest difference was {difference:.4f}% over {compared} poses, from the energies of {origin} (pose {pose})."
    )
    print(f"{'Verified' if agrees else 'VERIFICATION FAILED'}: the tolerance is {check.TOLERANCE}%.", flush=True)
    return agrees


def main(arguments=None):
    """Exit status: 0 if the energies are right, 1 if not, 2 if there is no such deck."""
    options = parse_arguments(arguments)
    numba.set_num_threads(options.threads)
    comm = COMM_WORLD
    root = comm.Get_rank() == 0
    deck, problem = None, None
    if root:
        try:
            deck = load(options)
        except DeckError as error:
            problem = error
    if comm.bcast(problem is not None):
        if root:
            print(f"minibude.py: {problem}", file=sys.stderr)
        return 2
    if root:
        print_problem(options, deck, comm.Get_size())
    compile_kernels(comm)

    mine = energy.share_out(comm, deck)
    energies = np.empty(mine.poses.shape[1], mine.poses.dtype)
    times = measure(comm, lambda: energy.pose_energies(mine, energies), options.iterations)
    every = energy.collect(comm, energies)

    agrees = True
    if root:
        print_timings(deck, times)
        agrees = verify(deck, value(every))
        if options.out:
            numpy.savetxt(options.out, value(every), fmt="%.6f")
    return 0 if comm.bcast(agrees) else 1


if __name__ == "__main__":
    try:
        status = main()
    except Exception as error:  # the other ranks wait for messages that will not come
        print(f"rank {COMM_WORLD.Get_rank()}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        COMM_WORLD.Abort(1)
    sys.exit(status)
