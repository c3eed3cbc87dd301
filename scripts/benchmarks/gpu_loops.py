"""CUDA kernels on the processor and their gradients, beside loops over ``numba.prange`` written by hand.

``python gpu_loops.py [CASE ...] [--seconds S]`` prints, for each kernel, the time of the loop, and as multiples of it
those of the launch and of a gradient: a launch on a tape and its sweep.  All three are timed in alternation.
"""

import argparse
import importlib.util
import math
import pathlib
import sys
import time

import gpu_ampi
import numba
import numpy

import ampi

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "gpu"
sys.path[0] = str(EXAMPLES)  # device.py; the folder of this file has another module lulesh
CASES = {}


def example(name):
    """A module of ``examples/gpu``."""
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", EXAMPLES / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def case(function):
    """Enter a case: a function that returns a launch, the loop, the arguments, and which of these are active."""
    CASES[function.__name__] = function
    return function


def parallel(function):
    return ampi.kernel(parallel=True)(function)


# ------------------------------------------------------------------------------------------------- of scripts/bench_gpu


@case
def stencil(size=1000):
    @parallel
    def loop(u, v):
        for i in numba.prange(u.shape[0]):
            for j in range(u.shape[1]):
                value = u[i, j]
                if i > 0 and i < u.shape[0] - 1 and j > 0 and j < u.shape[1] - 1:
                    around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4.0 * u[i, j]
                    value = value + 0.05 * (1.0 + u[i, j] * u[i, j]) * around
                v[i, j] = value + 0.1 * value * (1.0 - value)

    u = gpu_ampi.start("stencil", size)
    return gpu_ampi.stencil[gpu_ampi.grid_of(size)], loop, (u, numpy.zeros_like(u)), (0, 1)


@case
def lbm_2d(size=400):
    @parallel
    def loop(old, new, cx, cy, weights, omega):
        n, m = old.shape[1], old.shape[2]
        for i in numba.prange(n):
            for j in range(m):
                density, x, y = 0.0, 0.0, 0.0
                for q in range(9):
                    f = old[q, (i - cx[q] + n) % n, (j - cy[q] + m) % m]
                    density += f
                    x += f * cx[q]
                    y += f * cy[q]
                x, y = x / density, y / density
                for q in range(9):
                    f = old[q, (i - cx[q] + n) % n, (j - cy[q] + m) % m]
                    along = 3.0 * (cx[q] * x + cy[q] * y)
                    equilibrium = weights[q] * density * (1.0 + along + 0.5 * along * along - 1.5 * (x * x + y * y))
                    new[q, i, j] = f + omega * (equilibrium - f)

    old = gpu_ampi.start("lbm", size)
    given = old, numpy.zeros_like(old), gpu_ampi.CX, gpu_ampi.CY, gpu_ampi.WEIGHTS, 1.7
    return gpu_ampi.relaxed[gpu_ampi.grid_of(size)], loop, given, (0, 1)


@case
def in_place(size=1000):
    @parallel
    def loop(u):
        for i in numba.prange(u.shape[0]):
            for j in range(u.shape[1]):
                u[i, j] = u[i, j] * u[i, j]

    return gpu_ampi.squared[gpu_ampi.grid_of(size)], loop, (numpy.ones((size, size)),), (0,)


@case
def reduction(size=1000):
    @parallel
    def loop(u, total):
        found = 0.0
        for i in numba.prange(u.shape[0]):
            for j in range(u.shape[1]):
                found += u[i, j] * u[i, j] * u[i, j]
        total[0] += found

    u = gpu_ampi.start("reduction", size)
    return gpu_ampi.energy[gpu_ampi.grid_of(size)], loop, (u, numpy.zeros(1)), (0, 1)


# ---------------------------------------------------------------------------------------------------- of examples/gpu


@case
def lbm(size=32):
    of = example("lbm")
    obstacle, driven, opposite, directions, weights = of.OBSTACLE, of.DRIVEN, of.OPPOSITE, of.DIRECTIONS, of.WEIGHTS
    speed = of.SPEED

    @parallel
    def loop(old, new, flags, omega):
        n, m, l = flags.shape
        for i in numba.prange(n):
            f = numpy.empty(19)
            for j in range(m):
                for k in range(l):
                    for q in range(19):
                        d = directions[q]
                        f[q] = old[(i - d[0]) % n, (j - d[1]) % m, (k - d[2]) % l, q]
                    if flags[i, j, k] == obstacle:
                        for q in range(19):
                            new[i, j, k, q] = f[opposite[q]]
                        continue
                    density, u, v, w = 0.0, 0.0, 0.0, 0.0
                    for q in range(19):
                        d = directions[q]
                        density += f[q]
                        u += f[q] * d[0]
                        v += f[q] * d[1]
                        w += f[q] * d[2]
                    if flags[i, j, k] == driven:
                        u, v, w = speed
                    else:
                        u, v, w = u / density, v / density, w / density
                    square = 1.5 * (u * u + v * v + w * w)
                    for q in range(19):
                        d = directions[q]
                        along = 3.0 * (u * d[0] + v * d[1] + w * d[2])
                        equilibrium = weights[q] * density * (1.0 + along + 0.5 * along * along - square)
                        new[i, j, k, q] = f[q] + omega * (equilibrium - f[q])

    shape = (size, size, size)
    state, flags = of.at_rest(shape), of.flags_of(shape)
    grid = tuple(-(-n // b) for n, b in zip(shape, of.BLOCK))
    return of.step[grid, of.BLOCK], loop, (state, numpy.zeros_like(state), flags, 1.95), (0, 1)


@case
def docking(poses=2048):
    of = example("docking")

    @parallel
    def loop(protein, protein_type, ligand, ligand_type, pair, poses, energies):
        for i in numba.prange(energies.size):
            sx, cx = math.sin(poses[0, i]), math.cos(poses[0, i])
            sy, cy = math.sin(poses[1, i]), math.cos(poses[1, i])
            sz, cz = math.sin(poses[2, i]), math.cos(poses[2, i])
            energy = 0.0
            for a in range(ligand.shape[1]):
                x, y, z = ligand[0, a], ligand[1, a], ligand[2, a]
                px = cy * cz * x + (sx * sy * cz - cx * sz) * y + (cx * sy * cz + sx * sz) * z + poses[3, i]
                py = cy * sz * x + (sx * sy * sz + cx * cz) * y + (cx * sy * sz - sx * cz) * z + poses[4, i]
                pz = -sy * x + sx * cy * y + cx * cy * z + poses[5, i]
                for b in range(protein.shape[1]):
                    s, t = ligand_type[a], protein_type[b]
                    dx, dy, dz = px - protein[0, b], py - protein[1, b], pz - protein[2, b]
                    gap = math.sqrt(dx * dx + dy * dy + dz * dz) - pair[s, t, 0]
                    apart = max(gap, 0.0)
                    energy += 38.0 / pair[s, t, 0] * (apart - gap)
                    energy += pair[s, t, 1] * max(1.0 - apart / pair[s, t, 2], 0.0)
                    energy += pair[s, t, 3] * max(1.0 - apart / 5.5, 0.0)
            energies[i] = energy

    launch, *given = of.launched(*of.made_up(poses))
    return launch, loop, tuple(given), (0, 2, 4, 5, 6)


@case
def cross_sections(lookups=20_000):
    of = example("cross_sections")

    @ampi.kernel
    def interval(grid, nuclide, energy):
        low, high = 0, grid.shape[1] - 1
        while high - low > 1:
            middle = low + (high - low) // 2
            if grid[nuclide, middle] > energy:
                high = middle
            else:
                low = middle
        return low

    @parallel
    def loop(energies, materials, grid, tables, count, nuclides, densities, sums, largest):
        a, b, c, d, e = 0.0, 0.0, 0.0, 0.0, 0.0
        for i in numba.prange(energies.size):
            macroscopic = numpy.zeros(5)
            energy, material = energies[i], materials[i]
            for j in range(count[material]):
                nuclide = nuclides[material, j]
                k = interval(grid, nuclide, energy)
                f = (grid[nuclide, k + 1] - energy) / (grid[nuclide, k + 1] - grid[nuclide, k])
                for channel in range(5):
                    high = tables[nuclide, k + 1, channel]
                    microscopic = high - f * (high - tables[nuclide, k, channel])
                    macroscopic[channel] += microscopic * densities[material, j]
            best, most = 0, -1.0
            for channel in range(5):
                if macroscopic[channel] > most:
                    best, most = channel, macroscopic[channel]
            a += macroscopic[0]
            b += macroscopic[1]
            c += macroscopic[2]
            d += macroscopic[3]
            e += macroscopic[4]
            largest[i] = best + 1
        for channel, x in enumerate((a, b, c, d, e)):
            sums[channel] += x

    grid, tables, *rest = of.data(points=2000)
    launch, *given = of.launched(grid, tables, *rest, *of.events(lookups), numpy.zeros(lookups, numpy.int64))
    return launch, loop, tuple(given), (2, 3, 7)


@case
def maxwell(cells=6):
    of = example("maxwell")

    @parallel
    def loop(q, permittivity, derive, lift, metric, normals, neighbour, faces, rates):
        for e in numba.prange(q.shape[0]):
            flux = numpy.empty((6, 60), q.dtype)
            for t in range(60):
                f, m, other = t // 15, faces[t], neighbour[e, t]
                nx, ny, nz, scale = normals[e, f, 0], normals[e, f, 1], normals[e, f, 2], normals[e, f, 3]
                if other < 0:
                    ex, ey, ez = -2 * q[e, 0, m], -2 * q[e, 1, m], -2 * q[e, 2, m]
                    hx, hy, hz = 0 * q[e, 3, m], 0 * q[e, 4, m], 0 * q[e, 5, m]
                else:
                    o, k = other // 35, other % 35
                    ex, ey, ez = q[o, 0, k] - q[e, 0, m], q[o, 1, k] - q[e, 1, m], q[o, 2, k] - q[e, 2, m]
                    hx, hy, hz = q[o, 3, k] - q[e, 3, m], q[o, 4, k] - q[e, 4, m], q[o, 5, k] - q[e, 5, m]
                along_e = nx * ex + ny * ey + nz * ez
                along_h = nx * hx + ny * hy + nz * hz
                flux[0, t] = scale * (ny * hz - nz * hy + ex - along_e * nx)
                flux[1, t] = scale * (nz * hx - nx * hz + ey - along_e * ny)
                flux[2, t] = scale * (nx * hy - ny * hx + ez - along_e * nz)
                flux[3, t] = scale * (nz * ey - ny * ez + hx - along_h * nx)
                flux[4, t] = scale * (nx * ez - nz * ex + hy - along_h * ny)
                flux[5, t] = scale * (ny * ex - nx * ey + hz - along_h * nz)
            slopes, lifted, turn = numpy.empty((3, 6), q.dtype), numpy.empty(6, q.dtype), numpy.empty(6, q.dtype)
            for t in range(35):
                for a in range(3):
                    for c in range(6):
                        slopes[a, c] = 0
                    for k in range(35):
                        d = derive[a, t, k]
                        for c in range(6):
                            slopes[a, c] += d * q[e, c, k]
                for c in range(6):
                    lifted[c] = 0
                for k in range(60):
                    d = lift[t, k]
                    for c in range(6):
                        lifted[c] += d * flux[c, k]
                for c in range(6):
                    turn[c] = 0
                for a in range(3):
                    x, y, z = metric[e, a, 0], metric[e, a, 1], metric[e, a, 2]
                    turn[0] += y * slopes[a, 5] - z * slopes[a, 4]
                    turn[1] += z * slopes[a, 3] - x * slopes[a, 5]
                    turn[2] += x * slopes[a, 4] - y * slopes[a, 3]
                    turn[3] += z * slopes[a, 1] - y * slopes[a, 2]
                    turn[4] += x * slopes[a, 2] - z * slopes[a, 0]
                    turn[5] += y * slopes[a, 0] - x * slopes[a, 1]
                for c in range(3):
                    rates[e, c, t] = (turn[c] + lifted[c]) / permittivity[e]
                    rates[e, c + 3, t] = turn[c + 3] + lifted[c + 3]

    mesh, real = of.Mesh(cells, numpy.float32), numpy.float32
    q, permittivity = of.wave(mesh, 0.1), numpy.ones(len(mesh.points), real)
    change, _ = of.KERNELS[mesh.real]
    given = q, permittivity, *mesh.matrices, mesh.neighbour, of.FACES, numpy.zeros_like(q)
    return change[len(q), of.THREADS], loop, given, (0, 1, 8)


def blast(elements=20):
    """The launches of LULESH's expensive kernels after some cycles; beside them the loops of ``examples/lulesh``."""
    of = example("blast")
    kernels, lulesh = of.blast_kernels, of.lulesh
    case = lulesh.Domain(lulesh.COMM_SELF, elements)
    lulesh.run(case, 5)
    return kernels, case


@case
def blast_forces():
    kernels, case = blast()
    loops = kernels.formulas
    given = (case.x, case.v, case.corner, case.reference_volume, case.relative_volume, case.pressure, case.viscosity,
             case.sound_speed, case.force_at_corner)  # fmt: skip
    return kernels.element_forces, loops.element_forces, given, (0, 1, 5, 6, 7, 8)


@case
def blast_kinematics():
    kernels, case = blast()
    given = (case.x, case.v, case.dt, case.corner, case.reference_volume, case.relative_volume, case.new_volume,
             case.volume_change, case.length, case.strain_rate, case.velocity_gradient, case.extent)  # fmt: skip
    return kernels.element_kinematics, kernels.formulas.element_kinematics, given, (0, 1, 6, 7, 8, 9, 10, 11)


# ------------------------------------------------------------------------------------------------------------- times


def measured(name, seconds, of_loops=False):
    """The shortest times of the loop, of the launch, and of a gradient; with ``of_loops`` also of one of the loop."""
    launch, loop, given, active = CASES[name]()
    values = [numpy.copy(x) if isinstance(x, numpy.ndarray) else x for x in given]
    outputs = [k for k in active if isinstance(given[k], numpy.ndarray)]
    draw = numpy.random.default_rng(1)
    seeds = [draw.standard_normal(given[k].shape).astype(given[k].dtype) for k in outputs]

    def gradient(run):
        with ampi.Tape() as tape:
            mine = list(values)
            for k in active:
                mine[k] = tape.watch(values[k])
            run(*mine)
        return tape.gradient([mine[k] for k in outputs], [mine[k] for k in active], seeds)

    runs = {"loop": lambda: loop(*values), "launch": lambda: launch(*values), "gradient": lambda: gradient(launch)}
    if of_loops:
        runs["loop's"] = lambda: gradient(loop)
    times = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["loop"]) < 3:
        for name, run in runs.items():
            begin = time.process_time()
            run()
            times[name].append(time.process_time() - begin)
    return {name: min(t) for name, t in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--loops", action="store_true", help="gradients of the loops as well")
    options = parser.parse_args()
    for name in options.cases or CASES:
        found = measured(name, options.seconds, options.loops)
        loop = found.pop("loop")
        print(
            f"{name:<18}loop {1e3 * loop:>8.2f} ms", *(f"{k} {t / loop:>6.2f} x" for k, t in found.items()), flush=True
        )


if __name__ == "__main__":
    main()
