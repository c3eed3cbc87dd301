"""Look-ups of cross sections as in Monte Carlo transport of neutrons, in a kernel written for CUDA, with gradients.

python examples/gpu/cross_sections.py --lookups 10000

The model and the data of XSBench (Tramm et al., PHYSOR 2014): 68 nuclides, 12 materials, an energy and a material by
chance for each look-up, a search by halves in each nuclide's grid.  The checksum is XSBench's (small problem, events,
grid "nuclide"): 3044, 29756 and 299541 for 1,000, 10,000 and 100,000 look-ups.  The program prints it, the sum of all
cross sections, and its derivatives with respect to the tables and to the energies of the grids.
"""

import device
import numpy

import ampi
import ampi.cuda as cuda
import ampi.numpy as np

NUCLIDES, POINTS, CHANNELS = 68, 11303, 5
SEED, MULTIPLIER = 1070, 2806196910506780709  # of a congruential generator modulo 2**63
VOLUMES = numpy.array([0.052, 0.275, 0.134, 0.154, 0.064, 0.066, 0.055, 0.008, 0.015, 0.025, 0.013])  # but for fuel
FUEL = [58, 59, 60, 61, 40, 42, 43, 44, 45, 46, 1, 2, 3, 7, 8, 9, 10, 29, 57, 47, 48, 0, 62, 15, 33, 34]
FUEL += [52, 53, 54, 55, 56, 18, 23, 41]
CLADDING, WATER, PLATE = [63, 64, 65, 66, 67], [24, 41, 4, 5], [49, 50, 51, 11, 12, 13, 14]
STEEL = [19, 20, 21, 22, 35, 36, 37, 38, 39, 25]
VESSEL = [*STEEL, 27, 28, 29, 30, 31, 32, 26, *PLATE, 6, 16, 17]
MATERIALS = [FUEL, CLADDING, WATER, WATER, VESSEL, *[[*WATER, *STEEL, *PLATE]] * 5, *[[*WATER, *CLADDING]] * 2]
CHECKSUMS = {1_000: 3044, 10_000: 29756, 100_000: 299541}
THREADS = 128


@cuda.jit(device=True)
def interval(grid, nuclide, energy):
    """The interval of a nuclide's grid in which an energy is."""
    low, high = 0, grid.shape[1] - 1
    while high - low > 1:
        middle = low + (high - low) // 2
        if grid[nuclide, middle] > energy:
            high = middle
        else:
            low = middle
    return low


@cuda.jit
def look_up(energies, materials, grid, tables, count, nuclides, densities, sums, largest):
    """Macroscopic cross sections of one event: those of the nuclides of its material, interpolated and added up."""
    i = cuda.grid(1)
    if i >= energies.size:
        return
    macroscopic = cuda.local.array(5, np.float64)
    for channel in range(5):
        macroscopic[channel] = 0.0
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
        cuda.atomic.add(sums, channel, macroscopic[channel])
    largest[i] = best + 1


def drawn(seed, count):
    """So many integers of the generator: x -> (a x + 1) modulo 2**63, by doubling."""
    mask = numpy.uint64(2**63 - 1)
    found = numpy.empty(count, numpy.uint64)
    found[0] = (MULTIPLIER * seed + 1) % 2**63
    a, c, known = MULTIPLIER, 1, 1
    while known < count:
        more = min(known, count - known)
        found[known : known + more] = (found[:more] * numpy.uint64(a) + numpy.uint64(c)) & mask
        a, c, known = a * a % 2**63, (c * a + c) % 2**63, known + more
    return found


def numbers(seed, count):
    """The same as numbers from 0 to 1."""
    return drawn(seed, count) / 2.0**63


def data(points=POINTS):
    """Grids of energies, tables of cross sections, and materials: their nuclides and the densities of these."""
    rows = numbers(42, NUCLIDES * points * (1 + CHANNELS)).reshape(NUCLIDES, points, 1 + CHANNELS)
    for nuclide in range(NUCLIDES):
        rows[nuclide] = rows[nuclide, numpy.argsort(rows[nuclide, :, 0])]
    count = numpy.array([len(m) for m in MATERIALS])
    nuclides = numpy.zeros((len(MATERIALS), count.max()), numpy.int64)
    densities = numpy.zeros(nuclides.shape)
    concentrations = iter(numbers(SEED * SEED, count.sum()))
    for m, members in enumerate(MATERIALS):
        nuclides[m, : len(members)] = members
        densities[m, : len(members)] = [next(concentrations) for _ in members]
    return rows[:, :, 0].copy(), rows[:, :, 1:].copy(), count, nuclides, densities


def events(lookups):
    """Energies and materials by chance: what is left of the volume is fuel, material 0."""
    pairs = numbers(SEED, 2 * lookups).reshape(lookups, 2)
    ends = numpy.array([VOLUMES[k::-1].cumsum()[-1] for k in range(len(VOLUMES))])
    return pairs[:, 0].copy(), (numpy.searchsorted(ends, pairs[:, 1], side="right") + 1) % len(MATERIALS)


def launched(grid, tables, count, nuclides, densities, energies, materials, largest):
    """The launch, and the kernel's arguments."""
    given = energies, materials, grid, tables, count, nuclides, densities, np.zeros(CHANNELS), largest
    return look_up.forall(len(energies), THREADS), *given


def total(*given):
    """The sum of all cross sections of all events."""
    launch, *arguments = launched(*given)
    launch(*arguments)
    return np.sum(arguments[-2])


def reference(grid, tables, count, nuclides, densities, energies, materials):
    """The same with NumPy: the total, and the checksum."""
    macroscopic = numpy.zeros((len(energies), CHANNELS))
    for m in range(len(count)):
        (here,) = numpy.nonzero(materials == m)
        for j in range(count[m]):
            nuclide, e = nuclides[m, j], energies[here]
            k = numpy.clip(numpy.searchsorted(grid[nuclide], e, side="right") - 1, 0, grid.shape[1] - 2)
            f = (grid[nuclide, k + 1] - e) / (grid[nuclide, k + 1] - grid[nuclide, k])
            high, low = tables[nuclide, k + 1], tables[nuclide, k]
            macroscopic[here] += (high - f[:, None] * (high - low)) * densities[m, j]
    return macroscopic.sum(), int((macroscopic.argmax(axis=1) + 1).sum())


def draw(picture, grid, by_tables):
    """Draw how much the sum depends on the tables: which nuclides count, and at which energies."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    weight = numpy.asarray(by_tables)[..., 0]
    left.bar(range(NUCLIDES), weight.sum(axis=1))
    left.set(xlabel="nuclide", ylabel="derivative with respect to its table")
    bins = numpy.linspace(0, 1, 101)
    for nuclide in (4, 24, 58):
        height, _ = numpy.histogram(grid[nuclide], bins, weights=weight[nuclide])
        right.step(bins[1:], height, label=f"nuclide {nuclide}")
    right.set(xlabel="energy of a point of its grid")
    right.set_ylim(0, 1.3 * right.get_ylim()[1])
    right.legend(ncols=3, loc="upper center", fontsize="small")
    figure.savefig(picture, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lookups", type=int, default=10_000)
    parser.add_argument("--picture", metavar="FILE")
    device.add_option(parser)
    options = parser.parse_args()
    grid, tables, *rest = data()
    rest += [*events(options.lookups), numpy.zeros(options.lookups, numpy.int64)]
    value, (by_grid, by_tables) = device.timed(total, grid, tables, *rest, argnums=(0, 1))
    checksum = int(rest[-1].sum()) % 999983
    expected, other = reference(grid, tables, *rest[:-1])
    known = CHECKSUMS.get(options.lookups)
    print(f"checksum {checksum}; XSBench: {known if known else 'not recorded'}; with NumPy: {other % 999983}")
    print(f"sum of all cross sections: {float(value):.12e}, with NumPy {expected:.12e}")
    print(f"the tables times their gradient, which is that sum: {float(numpy.sum(by_tables * tables)):.12e}")
    direction = numpy.random.default_rng(1).standard_normal(grid.shape) * 1e-11  # far less than between points
    slope = float(numpy.sum(by_grid * direction))
    difference = float(total(grid + direction, tables, *rest)) - float(total(grid - direction, tables, *rest))
    print(f"with respect to the grids: adjoint {slope:+.6e}, difference quotient {difference / 2:+.6e}")
    if options.device == "cuda":
        device.compare(*launched(grid, tables, *rest))
    if options.picture:
        draw(options.picture, grid, by_tables)


if __name__ == "__main__":
    main()
