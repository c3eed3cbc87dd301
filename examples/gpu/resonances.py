"""Cross sections from resonances, as in Monte Carlo transport of neutrons, in a CUDA kernel, with gradients.

python examples/gpu/resonances.py --lookups 10000

The model and the data of RSBench (Tramm et al., EASC 2014): the multipole representation, in which the cross sections
of a nuclide at some energy are a sum over the poles of a window about it, broadened by temperature with the Faddeeva
function (``--cold``: without).  The checksum is RSBench's (small problem, events): 3533 and 35220 for 1,000 and 10,000
look-ups, 1835 and 18250 without broadening, 880018 for its 10,200,000.  The program prints it, the sum of all cross
sections, and its derivatives with respect to the tables beside tangents and difference quotients.
"""

import math

import device
import numpy
from cross_sections import MATERIALS, drawn, events

import ampi
import ampi.cuda as cuda
import ampi.numpy as np

NUCLIDES, POLES, WINDOWS = 68, 1000, 100  # the last two are means
POSITION, TOTAL, ABSORPTION, FISSION = range(4)  # what a pole has: where it is, and its residues
SCALE = 152.5
CHECKSUMS = {(1_000, False): 3533, (10_000, False): 35220, (10_200_000, False): 880018}
CHECKSUMS |= {(1_000, True): 1835, (10_000, True): 18250}
THREADS = 128
# Of the Faddeeva function near the origin (Abrarov's sum of ten terms), to the digits that RSBench has.
NEAR = numpy.array([2.758402e-01, 2.245740e-01, 1.594149e-01, 9.866577e-02, 5.324414e-02, 2.505215e-02, 1.027747e-02,
                    3.676164e-03, 1.146494e-03, 3.117570e-04])  # fmt: skip
SQUARES = numpy.array([9.869604e00, 3.947842e01, 8.882644e01, 1.579137e02, 2.467401e02, 3.553058e02, 4.836106e02,
                       6.316547e02, 7.994380e02, 9.869604e02])  # fmt: skip


@cuda.jit(device=True)
def exponential(x):
    """RSBench's exponential function, the same on all machines: (1 + x / 4096) ** 4096."""
    x = 1.0 + x * 0.000244140625
    for _ in range(12):
        x *= x
    return x


@cuda.jit(device=True)
def faddeeva(z):
    """The Faddeeva function w(z)."""
    square = z * z
    if abs(z) >= 6.0:
        near = 0.5124242247547685 / (square - 0.2752551286084110)
        return 1j * z * (near + 0.05176535879298782 / (square - 2.724744871391589))
    y = 12.0 * z.real
    wave = exponential(-12.0 * z.imag) * complex(math.cos(y), math.sin(y))  # exp(12 i z)
    added, sign = 0j, -1.0
    for n in range(10):
        added += NEAR[n] * ((sign * wave - 1.0) / (SQUARES[n] - 144.0 * square))
        sign = -sign
    return 1j * (1.0 - wave) / (12.0 * z) + 81.2433j * z * added


@cuda.jit(device=True)
def phase(momentum, radius, l):
    """exp(-2 i phi) of a partial wave; the sign of its arc tangent for l = 1 is RSBench's."""
    phi = radius * momentum
    if l == 1:
        phi += math.atan(phi)
    elif l == 2:
        phi -= math.atan(3.0 * phi / (3.0 - phi * phi))
    elif l == 3:
        phi -= math.atan(phi * (15.0 - phi * phi) / (15.0 - 6.0 * phi * phi))
    return complex(math.cos(2.0 * phi), -math.sin(2.0 * phi))


@cuda.jit
def look_up(energies, materials, poles, waves, background, windows, ends, radii, count, nuclides, densities, cold,
            macroscopic):  # fmt: skip
    """Macroscopic cross sections of one event: total, of absorption, of fission and elastic."""
    i = cuda.grid(1)
    if i >= energies.size:
        return
    energy, material = energies[i], materials[i]
    momentum = math.sqrt(energy)
    total, absorption, fission = 0.0, 0.0, 0.0
    for j in range(count[material]):
        nuclide, density = nuclides[material, j], densities[material, j]
        window = min(int(energy / (1.0 / windows[nuclide])), windows[nuclide] - 1)
        s_wave, p_wave = phase(momentum, radii[nuclide, 0], 0), phase(momentum, radii[nuclide, 1], 1)
        d_wave, f_wave = phase(momentum, radii[nuclide, 2], 2), phase(momentum, radii[nuclide, 3], 3)
        t = energy * background[nuclide, window, 0]
        a = energy * background[nuclide, window, 1]
        f = energy * background[nuclide, window, 2]
        for k in range(ends[nuclide, window, 0], ends[nuclide, window, 1]):
            if cold:
                line = 1j / (poles[nuclide, k, POSITION] - momentum) / energy
            else:
                line = faddeeva(0.5 * (energy - poles[nuclide, k, POSITION]))
            l = waves[nuclide, k]
            wave = s_wave if l == 0 else p_wave if l == 1 else d_wave if l == 2 else f_wave
            t += (poles[nuclide, k, TOTAL] * line * wave).real
            a += (poles[nuclide, k, ABSORPTION] * line).real
            f += (poles[nuclide, k, FISSION] * line).real
        total += t * density
        absorption += a * density
        fission += f * density
    macroscopic[i, 0] = total
    macroscopic[i, 1] = absorption
    macroscopic[i, 2] = fission
    macroscopic[i, 3] = total - absorption


def data(poles=POLES, windows=WINDOWS):
    """Poles, backgrounds and radii; partial waves, windows, and materials: what is drawn, in RSBench's order."""
    sizes = [len(m) for m in MATERIALS]
    count, nuclides = numpy.array(sizes), numpy.zeros((len(sizes), max(sizes)), numpy.int64)
    densities = numpy.zeros(nuclides.shape)
    many = sum(sizes) + NUCLIDES * (10 * poles + 4 * windows + 4)  # more than will be needed
    stream, taken = drawn(42, many), 0

    def take(n):
        nonlocal taken
        taken += n
        return stream[taken - n : taken]

    unit = lambda integers: integers / 2.0**63
    here = numpy.arange(nuclides.shape[1]) < count[:, None]
    densities[here] = unit(take(count.sum()))
    nuclides[here] = numpy.concatenate(MATERIALS)
    spread = lambda mean: 1 + numpy.bincount(take((mean - 1) * NUCLIDES) % numpy.uint64(NUCLIDES), minlength=NUCLIDES)
    poles_of, windows_of = spread(poles), spread(windows)
    pole = numpy.zeros((NUCLIDES, poles_of.max(), 4), complex)
    wave = numpy.zeros(pole.shape[:2], numpy.int64)
    for nuclide, n in enumerate(poles_of):
        integers = take(9 * n).reshape(n, 9)
        parts = unit(integers[:, :8]).reshape(n, 4, 2)
        pole[nuclide, :n] = SCALE * parts[..., 0] + 1j * parts[..., 1]
        pole[nuclide, :n, POSITION].imag *= SCALE
        wave[nuclide, :n] = integers[:, 8] % numpy.uint64(4)
    background = numpy.zeros((NUCLIDES, windows_of.max(), 3))
    ends = numpy.zeros((*background.shape[:2], 2), numpy.int64)
    for nuclide, n in enumerate(windows_of):
        background[nuclide, :n] = unit(take(3 * n)).reshape(n, 3)
        width, rest = divmod(poles_of[nuclide], n)
        wide = numpy.arange(n) < rest
        ends[nuclide, :n, 0] = numpy.concatenate([[0], numpy.cumsum(width + wide)[:-1]])
        ends[nuclide, :n, 1] = ends[nuclide, :n, 0] + width - 1 + wide
    radii = unit(take(4 * NUCLIDES)).reshape(NUCLIDES, 4)
    return (pole, background, radii), (wave, windows_of, ends, count, nuclides, densities)


def sections(tables, others, energies, materials, cold=False):
    """Macroscopic cross sections of all events."""
    launch, *arguments = launched(tables, others, energies, materials, cold)
    launch(*arguments)
    return arguments[-1]


def launched(tables, others, energies, materials, cold=False):
    """The launch, and the kernel's arguments."""
    (poles, background, radii), (waves, windows, ends, *material) = tables, others
    given = energies, materials, poles, waves, background, windows, ends, radii, *material, cold
    return look_up.forall(len(energies), THREADS), *given, np.zeros((len(energies), 4))


def reference(tables, others, energies, materials, cold=False):
    """The same with NumPy, for one energy after the other and all poles of a window at once."""
    (poles, background, radii), (waves, windows, ends, count, nuclides, densities) = tables, others
    macroscopic = numpy.zeros((len(energies), 4))
    for i, (energy, m) in enumerate(zip(energies, materials)):
        for nuclide, density in zip(nuclides[m, : count[m]], densities[m]):
            x = radii[nuclide] * numpy.sqrt(energy)
            angles = [0 * x[1], x[1], 3 * x[2] / (3 - x[2] ** 2), x[3] * (15 - x[3] ** 2) / (15 - 6 * x[3] ** 2)]
            phases = numpy.exp(-2j * (x + [1, 1, -1, -1] * numpy.arctan(angles)))
            window = min(int(energy * windows[nuclide]), windows[nuclide] - 1)
            here = slice(*ends[nuclide, window])
            at, *residues = poles[nuclide, here].T
            line = 1j / (at - numpy.sqrt(energy)) / energy if cold else faddeeva_of_arrays((energy - at) / 2)
            residues[0] = residues[0] * phases[waves[nuclide, here]]
            found = energy * background[nuclide, window] + [numpy.sum((r * line).real) for r in residues]
            macroscopic[i, :3] += density * found
    macroscopic[:, 3] = macroscopic[:, 0] - macroscopic[:, 1]
    return macroscopic


def faddeeva_of_arrays(z):
    """`faddeeva` with NumPy."""
    square = z * z
    far = 0.5124242247547685 / (square - 0.2752551286084110) + 0.05176535879298782 / (square - 2.724744871391589)
    with numpy.errstate(all="ignore"):  # far from the origin, where this is not used
        wave = (1 - 12 * z.imag / 4096) ** 4096 * numpy.exp(12j * z.real)
        signs = (-1.0) ** numpy.arange(1, 11)
        terms = NEAR * (signs * wave[..., None] - 1) / (SQUARES - 144 * square[..., None])
        near = 1j * (1 - wave) / (12 * z) + 81.2433j * z * terms.sum(axis=-1)
    return numpy.where(abs(z) < 6, near, 1j * z * far)


def checksum(macroscopic):
    """RSBench's checksum: which of an event's cross sections is the largest."""
    return int((macroscopic.argmax(axis=1) + 1).sum()) % 999983


def total(*given):
    """The sum of all cross sections of all events."""
    return np.sum(sections(*given))


def draw(picture, tables, others):
    """Draw the cross sections of the fuel without broadening, and how far their sum depends on where poles are."""
    import matplotlib.pyplot as plt

    energies = numpy.linspace(0.02, 0.98, 2000)
    given = tables, others, energies, numpy.zeros(len(energies), numpy.int64), True
    found = ampi.value(sections(*given))
    slopes, places = numpy.abs(ampi.grad(total)(*given)[0][..., POSITION]), tables[0][..., POSITION]
    used = slopes > 0
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for channel, name in enumerate(("total", "absorption", "fission")):
        left.plot(energies, found[:, channel], label=name, linewidth=0.9)
    left.set(xlabel="energy", ylabel="cross section of the fuel", yscale="log")
    left.legend()
    shown = right.scatter(places.real[used], places.imag[used], c=numpy.log10(slopes[used]), s=2)
    right.set(xlabel="position of a pole: real part", ylabel="imaginary part", xscale="log", yscale="log")
    figure.colorbar(shown, label="log10 of the derivative")
    figure.savefig(picture, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lookups", type=int, default=10_000)
    parser.add_argument("--cold", action="store_true", help="without Doppler broadening")
    parser.add_argument("--picture", metavar="FILE")
    device.add_option(parser)
    options = parser.parse_args()
    tables, others = data()
    given = (others, *events(options.lookups), options.cold)
    value, gradients = device.timed(total, tables, *given)
    found = checksum(ampi.value(sections(tables, *given)))
    known = CHECKSUMS.get((options.lookups, options.cold))
    print(f"checksum {found}; RSBench: {known if known else 'not recorded'}")
    few = (others, *(e[:200] for e in given[1:3]), options.cold)
    error = numpy.abs(ampi.value(sections(tables, *few)) / reference(tables, *few) - 1).max()
    print(f"200 events with NumPy: relative differences up to {error:.1e}")
    print(f"sum of all cross sections: {float(value):.12e}")
    generator = numpy.random.default_rng(1)
    print("with respect to   adjoint              tangent              difference quotient")
    for k, name in enumerate(("poles", "background", "radii")):
        directions = [numpy.zeros_like(t) for t in tables]
        directions[k] = generator.standard_normal(tables[k].shape) * tables[k]
        tangent = float(ampi.jvp(lambda t: total(t, *given), (tables,), (tuple(directions),))[1])
        up, down = (float(total(tuple(t + s * 1e-7 * d for t, d in zip(tables, directions)), *given)) for s in (1, -1))
        slope = float(numpy.sum((numpy.conj(gradients[k]) * directions[k]).real))
        print(f"{name:<17} {slope:+.12e}  {tangent:+.12e}  {(up - down) / 2e-7:+.6e}")
    if options.device == "cuda":
        device.compare(*launched(tables, *given))
    if options.picture:
        draw(options.picture, tables, others)


if __name__ == "__main__":
    main()
