"""miniBUDE's molecular docking in Python: ``mpiexec -n 4 python minibude.py --deck bm1``.

How well does a small molecule, the ligand, fit a protein? For each of many poses of the ligand the program computes an
energy, from the distances between all atoms of the one and all atoms of the other. It reads the decks of miniBUDE, or
makes one up, shares the poses out over the ranks, checks the energies and prints miniBUDE's figures. ``--gradient``
differentiates all of this, and ``--optimise`` moves the poses to where the ligand fits better. ``--descend STEPS`` does
so in short steps, and differentiates all of these as one time loop, of which ``--checkpoints K`` or ``--memory SIZE``
keeps a few states::

    mpiexec -n 2 python minibude.py -n 4096 --descend 50 --checkpoints 5

The problem is miniBUDE's (https://github.com/UoB-HPC/miniBUDE); the program is written from the published algorithm.
:mod:`docking.kernels` has the local work, :mod:`docking.energy` shares it out, :mod:`docking.deck` reads decks,
:mod:`docking.check` says whether the energies are right, :mod:`docking.sensitivity` differentiates them,
:mod:`docking.optimise` makes use of that, and :mod:`docking.descent` differentiates what does.
"""

import argparse
import sys
import time

import numba
import numpy
from docking import check, descent, energy, kernels, optimise, sensitivity
from docking.backend import COMM_WORLD, MPI, ArgumentParser, np, value
from docking.deck import DeckError, read_deck, synthetic_deck

SYNTHETIC_POSES = 65536
WARM_UP = 2
CHECKED_POSES = 64  # of a deck that brings no energies, and for gradients
GRADIENT_TOLERANCE = 1e-4  # of a difference quotient in double precision, with kinks within its step
BEST = 10  # poses to be told about


def parse_arguments(arguments=None):
    """miniBUDE's command line, as far as it applies."""
    parser = ArgumentParser(description="The docking energies of miniBUDE.")
    parser.add_argument("--deck", metavar="DIR", help="folder with a deck of miniBUDE (default: a synthetic one)")
    parser.add_argument("--seed", type=natural, default=0, help="seed of the synthetic deck (default: 0)")
    parser.add_argument("-i", "--iter", dest="iterations", type=positive, default=8, help="repetitions (default: 8)")
    poses = f"number of poses (default: all of the deck, {SYNTHETIC_POSES} if synthetic)"
    parser.add_argument("-n", "--poses", type=positive, help=poses)
    parser.add_argument("-o", "--out", metavar="FILE", help="write the energies to this file, one in a line")
    parser.add_argument("-t", "--threads", type=positive, default=1, help="threads of each rank (default: 1)")
    parser.add_argument(
        "--tasks", type=natural, default=0, metavar="N",
        help="divide the poses of each rank among tasks on this many threads, each of which computes with one",
    )  # fmt: skip
    parser.add_argument(
        "--gradient", choices=(*sensitivity.INPUTS, "all"), help="compute and time the gradient with respect to this"
    )
    parser.add_argument("--check", action="store_true", help="compare the gradient with a difference quotient")
    parser.add_argument(
        "--optimise", metavar="STEPS", type=positive, nargs="?", const=optimise.ITERATIONS,
        help=f"move the poses downhill by this many steps of L-BFGS-B (default: {optimise.ITERATIONS})",
    )  # fmt: skip
    parser.add_argument(
        "--descend", metavar="STEPS", type=positive,
        help="move the poses downhill by this many short steps, and compute the gradient of the final energies with "
        "respect to the inputs of --gradient (all)",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoints", metavar="K", type=positive, help="with --descend: keep K states, not all steps"
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="with --descend: keep as many states as fit in this, e.g. 64MiB"
    )
    options = parser.parse_args(arguments)
    if options.tasks and options.threads > 1:
        parser.error("--tasks or --threads, not both: kernels on several threads cannot run at once")
    if options.check and not options.gradient:
        parser.error("--check needs --gradient")
    if options.checkpoints and options.memory:
        parser.error("--checkpoints or --memory, not both")
    for name in ("checkpoints", "memory"):
        if getattr(options, name) and not options.descend:
            parser.error(f"--{name} needs --descend")
    return options


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


def wanted_inputs(options):
    return tuple(sensitivity.INPUTS) if options.gradient == "all" else (options.gradient,)


def compile_kernels(comm, options):
    """Compute a very small deck. One rank compiles, the others find what it has compiled. Collective."""
    smallest = synthetic_deck(1, 1, 1)
    energy.pose_energies(smallest, tasks=options.tasks)
    if options.gradient:
        sensitivity.gradient(comm, smallest, wanted_inputs(options), tasks=options.tasks)
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
    print(f"Threads:     {options.tasks or options.threads} per task\n", flush=True)


def print_timings(deck, times):
    """Time per iteration and the rates that miniBUDE derives from it (those of a gradient count no operation twice)."""
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


def report_gradient(comm, deck, options, primal):
    """Time the gradient and, if that is wanted, check it; whether it is right. Collective."""
    inputs = wanted_inputs(options)
    times = measure(comm, lambda: sensitivity.gradient(comm, deck, inputs, tasks=options.tasks), options.iterations)
    root = comm.Get_rank() == 0
    if root:
        print(f"\nGradient with respect to: {', '.join(inputs)}")
        print_timings(deck, times)
        print(f"- To the energies: {times.mean() / primal.mean():7.2f} times as long", flush=True)
    if not options.check:
        return True
    found = sensitivity.compare(comm, deck.first(CHECKED_POSES) if root else None, inputs)
    right = True
    for name, (exact, difference) in (found or {}).items():
        error = abs(exact - difference) / max(abs(exact), abs(difference), 1e-300)
        right &= error < GRADIENT_TOLERANCE
        print(f"Derivative along a random direction of {name}: {exact:.8g}, by differences {difference:.8g}")
        print(f"{'Verified' if error < GRADIENT_TOLERANCE else 'VERIFICATION FAILED'}: they differ by {error:.1e}.")
    return right


def report_optimum(comm, mine, energies, steps):
    """Move the poses downhill and say how far they fell. Collective."""
    start = time.perf_counter()
    _, lowered = optimise.lower(mine, steps)
    seconds = comm.allreduce(time.perf_counter() - start, op=MPI.MAX)
    before, after = energy.collect(comm, energies), energy.collect(comm, np.array(lowered))
    if comm.Get_rank() != 0:
        return
    before, after = numpy.array(value(before)), numpy.array(value(after))
    best = min(BEST, before.size)
    fell = numpy.sort(before)[:best].mean(), numpy.sort(after)[:best].mean()
    print(f"\nMoved {before.size} poses downhill in at most {steps} steps, {seconds:.1f} s:")
    print(f"- Lowest energy:  {before.min():12.3f} -> {after.min():.3f}")
    print(f"- Mean of best {best}:{fell[0]:12.3f} -> {fell[1]:.3f}")
    print(f"- Poses that fell: {numpy.mean(after < before):.0%}", flush=True)


def report_descent(comm, deck, options, energies):
    """Move the poses by short steps, differentiate that, and say what came out. Collective."""
    inputs = tuple(sensitivity.INPUTS) if options.gradient is None else wanted_inputs(options)
    kept, figures = {name: v for name in ("checkpoints", "memory") if (v := getattr(options, name))}, []
    if kept:
        kept["progress"] = figures.append
    start = time.perf_counter()
    lowered, slopes = descent.gradient(comm, deck, inputs, options.descend, **kept)
    seconds = comm.allreduce(time.perf_counter() - start, op=MPI.MAX)
    before, after = (comm.allreduce(float(value(e).sum(dtype=float))) for e in (energies, lowered))
    if comm.Get_rank() != 0:
        return
    print(f"\nMoved {deck.poses.shape[1]} poses downhill in {options.descend} steps, {seconds:.1f} s with gradient:")
    print(f"- Sum of energies: {before:12.3f} -> {after:.3f}")
    for name in inputs:
        print(f"- Largest entry of its gradient with respect to {name}: {numpy.abs(slopes[name]).max():.9e}")
    if figures:
        most = figures[-1].memory_peak / 2**10
        print(f"- Steps executed: {figures[-1].executed}, with at most {most:.0f} KiB of states and steps", flush=True)


def main(arguments=None):
    """Exit status: 0 if energies and gradient are right, 1 if not, 2 if there is no such deck."""
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
    compile_kernels(comm, options)

    mine = energy.share_out(comm, deck)
    energies = np.empty(mine.poses.shape[1], mine.poses.dtype)
    times = measure(comm, lambda: energy.pose_energies(mine, energies, options.tasks), options.iterations)
    every = energy.collect(comm, energies)

    agrees = True
    if root:
        print_timings(deck, times)
        agrees = verify(deck, value(every))
        if options.out:
            numpy.savetxt(options.out, value(every), fmt="%.6f")
    if options.gradient:
        agrees = report_gradient(comm, deck, options, times) and agrees
    if options.optimise:
        report_optimum(comm, mine, energies, options.optimise)
    if options.descend:
        report_descent(comm, deck, options, energies)
    return 0 if comm.bcast(agrees) else 1


if __name__ == "__main__":
    try:
        status = main()
    except Exception as error:  # the other ranks wait for messages that will not come
        print(f"rank {COMM_WORLD.Get_rank()}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        COMM_WORLD.Abort(1)
    sys.exit(status)
