"""LULESH 2.0's Sedov blast wave in Python, and its gradient: ``mpiexec -n 8 python lulesh.py -s 15 -p``.

A point blast in the corner of a cube of gas, with planes of symmetry through the corner: Lagrangian hydrodynamics on an
unstructured mesh of hexahedra, over 1, 8, 27, … ranks. It takes LULESH's options and prints its closing lines.

The problem is LULESH's (https://asc.llnl.gov/codes/proxy-apps/lulesh, LLNL-TR-490254, LLNL-TR-641973); the program is
written from the published algorithm. :mod:`sedov.kernels` has the local work, :mod:`sedov.exchange` the messages,
:mod:`sedov.domain` mesh and state, :mod:`sedov.hydro` the cycle, :mod:`sedov.sensitivity` the gradient.

With ``--gradient origin`` (or ``kinetic``) the run is differentiated: the final energy of the element at the origin
(the total kinetic energy) with respect to the energy field, the node coordinates and the velocities as they are
before the last cycles::

    mpiexec -n 8 python -m ampi.run lulesh.py -s 10 -i 60 --gradient origin --last 20 --check --cost --output out.h5

With ``--checkpoints K`` or ``--memory SIZE`` a few states are kept instead of all cycles: the whole run can
be differentiated; ``--storage FOLDER --resume`` goes on with a gradient that was killed.
"""

import argparse
import resource
import sys
import time
import traceback

import numba
import numpy
from sedov import hydro, output, sensitivity
from sedov.backend import COMM_SELF, COMM_WORLD, MPI, ArgumentParser, value
from sedov.domain import Domain


def parse_arguments(arguments=None):
    """LULESH's command line."""
    parser = ArgumentParser(description="The Sedov problem of LULESH 2.0.")
    parser.add_argument("-s", dest="size", type=positive, default=30, help="elements along an edge of each rank's cube")
    parser.add_argument("-i", dest="cycles", type=positive, default=9999999, help="stop after this many cycles")
    parser.add_argument("-r", dest="regions", type=positive, default=11, help="number of materials")
    parser.add_argument("-b", dest="balance", type=natural, default=1, help="how much the materials differ in size")
    parser.add_argument("-c", dest="cost_of_regions", type=natural, default=1, help="extra cost of expensive materials")
    parser.add_argument("-t", "--threads", type=positive, default=1, help="threads of each rank (default: 1)")
    parser.add_argument(
        "--tasks", type=natural, default=0, metavar="N",
        help="divide the cycle of each rank into tasks for blocks of elements and nodes, on this many threads, each of "
        "which computes with --threads",
    )  # fmt: skip
    parser.add_argument("-p", dest="progress", action="store_true", help="print a line for each cycle, or show bars")
    parser.add_argument("-q", dest="quiet", action="store_true", help="print nothing")
    group = parser.add_argument_group("gradient")
    group.add_argument(
        "--gradient", choices=sensitivity.FUNCTIONALS, help="differentiate the origin's energy, or the kinetic energy"
    )
    group.add_argument(
        "--independents",
        type=independents,
        default=list(sensitivity.INDEPENDENTS),
        metavar="NAMES",
        help="differentiate with respect to these, of energy,x,v (all of them)",
    )
    group.add_argument("--last", type=positive, metavar="K", help="differentiate the last K cycles (the whole run)")
    group.add_argument("--checkpoints", type=positive, metavar="K", help="keep K states instead of all cycles")
    group.add_argument("--memory", metavar="SIZE", help="keep as many states as fit in this on each rank, e.g. 2GiB")
    group.add_argument(
        "--storage", metavar="FOLDER", help="keep states in files as well, from which --resume continues"
    )
    group.add_argument(
        "--resume", action="store_true", help="continue after a kill, with the same command and the same gradient"
    )
    group.add_argument("--check", action="store_true", help="compare with finite differences in a random direction")
    group.add_argument("--cost", action="store_true", help="print what the gradient costs in time and memory")
    group.add_argument("--repeat", type=positive, default=5, metavar="N", help="times of --cost are the best of N (5)")
    group.add_argument("--output", metavar="FILE", help="write energy and gradient of all ranks to an HDF5 file")
    group.add_argument("--plot", metavar="FILE", help="draw a slice of what --output wrote to a PNG file")
    options = parser.parse_args(arguments)
    if round(COMM_WORLD.Get_size() ** (1 / 3)) ** 3 != COMM_WORLD.Get_size():
        parser.error(f"the number of ranks must be a cube (1, 8, 27, …), not {COMM_WORLD.Get_size()}")
    if options.threads > numba.config.NUMBA_NUM_THREADS:
        parser.error(f"--threads: there are {numba.config.NUMBA_NUM_THREADS}; NUMBA_NUM_THREADS sets how many")
    if options.plot and not options.output:
        parser.error("--plot needs --output")
    if options.checkpoints and options.memory:
        parser.error("--checkpoints or --memory, not both")
    if options.resume and not options.storage:
        parser.error("--resume needs --storage")
    if options.cost and options.storage:
        parser.error("--cost or --storage, not both: what is in files is not computed again")
    for name in ("last", "checkpoints", "memory", "storage", "check", "cost", "output"):
        if getattr(options, name) and not options.gradient:
            parser.error(f"--{name} needs --gradient")
    return options


def independents(text):
    names = text.split(",")
    for name in names:
        if name not in sensitivity.INDEPENDENTS:
            raise argparse.ArgumentTypeError(
                f"unknown field {name!r}; choose from {','.join(sensitivity.INDEPENDENTS)}"
            )
    return names


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


def compile_kernels(comm, options):
    """Run a very small problem on each rank; what one of them compiles, the others find in the cache."""
    domain = Domain(COMM_SELF, 2, tasks=options.tasks)
    hydro.advance(domain)
    if options.gradient:
        sensitivity.gradient(domain, sensitivity.FUNCTIONALS[options.gradient], options.independents, 1)
    comm.Barrier()


def run(domain, cycles=9999999, report=None):
    """Advance to the end of the simulated time or to cycle ``cycles``; ``report(domain)`` after each. Collective."""
    while domain.cycle < cycles and value(domain.time)[0] < hydro.END_TIME:
        hydro.advance(domain)
        if report is not None:
            report(domain)
    return domain


def print_progress(domain):
    print(f"cycle = {domain.cycle}, time = {value(domain.time)[0]:.6e}, dt={value(domain.dt)[0]:.6e}", flush=True)


def print_summary(domain, seconds):
    """LULESH's closing lines. Called on rank 0."""
    ranks = domain.comm.Get_size()
    grind = seconds * 1e6 / domain.cycle / domain.elements
    print("Run completed:")
    print(f"   Problem size        =  {domain.size}")
    print(f"   MPI tasks           =  {ranks}")
    print(f"   Iteration count     =  {domain.cycle}")
    print(f"   Final Origin Energy =  {value(domain.energy)[0]:12.6e}")
    absolute, total, relative = plane_asymmetry(domain)
    print("   Testing Plane 0 of Energy Array on rank 0:")
    print(f"        MaxAbsDiff   = {absolute:12.6e}")
    print(f"        TotalAbsDiff = {total:12.6e}")
    print(f"        MaxRelDiff   = {relative:12.6e}")
    print(f"\nElapsed time         = {seconds:10.2f} (s)")
    print(f"Grind time (us/z/c)  = {grind:10.8g} (per dom)  ({grind / ranks:10.8g} overall)")
    print(f"FOM                  = {1000.0 * ranks / grind:10.8g} (z/s)\n")


def plane_asymmetry(domain):
    """Asymmetry in x and y of the energy in the plane z = 0: largest and total absolute, largest relative."""
    size = domain.size
    plane = value(domain.energy)[: size * size].reshape(size, size)
    upper, lower = plane[numpy.triu_indices(size, 1)], plane.T[numpy.triu_indices(size, 1)]
    difference = numpy.abs(upper - lower)
    known = lower != 0.0
    relative = (difference[known] / lower[known]).max(initial=0.0)
    return difference.max(initial=0.0), difference.sum(), relative


def differentiate(domain, options, speaks):
    """Run to the end, differentiate the last cycles, and report. Collective."""
    functional = sensitivity.FUNCTIONALS[options.gradient]
    begin = sensitivity.save(domain)
    run(domain, options.cycles)
    end = domain.cycle
    last = min(options.last or end, end)
    sensitivity.restore(domain, begin)
    run(domain, end - last)
    state = sensitivity.save(domain)

    found = sensitivity.gradient(domain, functional, options.independents, last, **kept(options))
    energy = numpy.array(value(domain.energy))
    if speaks:
        print(
            f"Gradient of the {options.gradient} energy after cycle {end}, "
            f"with respect to the state before cycle {end - last + 1}"
        )
        print(f"   {options.gradient} energy  =  {found.value:.12e}")
    for name, field in found.fields.items():
        largest = domain.comm.allreduce(float(numpy.abs(field).max()), op=MPI.MAX)
        if speaks:
            print(f"   largest entry with respect to {sensitivity.INDEPENDENTS[name]:24} =  {largest:.12e}")
    if options.output:
        fields = {"energy": ("element", energy)}
        for name, field in found.fields.items():
            fields[f"gradient_{name}"] = ("element" if name == "energy" else "node", field)
        attributes = {
            "functional": f"{options.gradient} energy",
            "value": found.value,
            "cycle": end,
            "differentiated": last,
        }
        output.write(options.output, domain, fields, attributes)
        if options.plot and domain.comm.Get_rank() == 0:
            output.plot(options.output, options.plot)
    if options.check:
        exact, differences = sensitivity.check(domain, state, functional, last, found)
        if speaks:
            print("Check against central differences in a random direction:")
            print(f"   gradient            {exact:+.12e}")
            for step, difference in differences.items():
                error = abs(difference / exact - 1)
                print(f"   step {step:.1e}        {difference:+.12e}   relative difference {error:.1e}")
    if options.cost:
        print_cost(domain, state, functional, options, last, speaks)
    sensitivity.restore(domain, state)
    run(domain, end)


def kept(options):
    """What of the run the tape may keep."""
    names = "checkpoints", "memory", "storage", "resume"
    found = {name: value for name in names if (value := getattr(options, name))}
    return {**found, "progress": options.progress and not options.quiet} if found else {}


def print_cost(domain, state, functional, options, cycles, speaks):
    """Times of the primal and of the gradient of the same cycles, best of some runs, and their memory. Collective."""
    comm = domain.comm
    primal, gradient = [], []
    for _ in range(options.repeat):
        sensitivity.restore(domain, state)
        comm.Barrier()
        start = time.perf_counter()
        sensitivity.run_cycles(domain, cycles)
        primal.append(comm.allreduce(time.perf_counter() - start, op=MPI.MAX))
        sensitivity.restore(domain, state)
        found = sensitivity.gradient(domain, functional, options.independents, cycles, **kept(options))
        gradient.append(found.seconds)
    arrays = comm.allreduce(domain.nbytes)
    peak = comm.allreduce(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    if speaks:
        grind = min(primal) * 1e6 / cycles / (comm.Get_size() * domain.elements)
        print(f"Cost of the last {cycles} cycles on {comm.Get_size()} ranks (best of {options.repeat}):")
        print(f"   primal              {min(primal) * 1e3:10.2f} ms   = {grind:.3f} us per element and cycle")
        print(f"   gradient            {min(gradient) * 1e3:10.2f} ms   = {min(gradient) / min(primal):.2f} x primal")
        print(f"   arrays of the run   {arrays / 2**20:10.1f} MiB")
        print(f"   old values kept     {found.saved_bytes / 2**20:10.1f} MiB")
        print(f"   peak memory         {peak / 2**20:10.1f} MiB  (all processes, interpreters included)")


def main(arguments=None):
    options = parse_arguments(arguments)
    numba.set_num_threads(options.threads)
    comm = COMM_WORLD
    speaks = comm.Get_rank() == 0 and not options.quiet
    compile_kernels(comm, options)
    domain = Domain(comm, options.size, options.regions, options.balance, options.cost_of_regions, options.tasks)
    if speaks:
        print(f"Running problem size {options.size}^3 per domain until completion")
        print(f"Num processors:      {comm.Get_size()}")
        print(f"Total number of elements: {comm.Get_size() * domain.elements}\n", flush=True)
    if options.gradient:
        differentiate(domain, options, speaks)
        return
    comm.Barrier()
    start = time.perf_counter()
    run(domain, options.cycles, print_progress if speaks and options.progress else None)
    seconds = comm.allreduce(time.perf_counter() - start, op=MPI.MAX)
    if speaks:
        print_summary(domain, seconds)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the other ranks wait for messages that will not come
        traceback.print_exc()
        print(f"rank {COMM_WORLD.Get_rank()}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        COMM_WORLD.Abort(1)
