"""How did a flow begin that has rolled up? Its vorticity at the beginning, from that at the end.

mpiexec -n 4 python -m ampi.run examples/navier_stokes/navier_stokes.py --picture navier_stokes.png

The two-dimensional Navier-Stokes equations on a periodic square, pseudo-spectral, as C. Canuto et al. have them
(Spectral Methods in Fluid Dynamics, 1988): products in space, derivatives in wave numbers, a third of which is cut off.
Ranks have rows of the field and columns of its spectrum, whose transform goes through Alltoall. NuMPI's L-BFGS for
MPI looks for the field, of which no rank has the whole.
"""

import numpy
from NuMPI.Optimization import l_bfgs
from NuMPI.Tools import Reduction

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD


class Flow:
    """This rank's part of a square of ``n`` by ``n`` points with edges of 2π, and ``steps`` of the flow on it."""

    def __init__(self, n, steps, time, viscosity=2e-3):
        self.n, self.steps, self.dt, self.rows = n, steps, time / steps, n // comm.size
        numbers = numpy.fft.fftfreq(n, 1.0 / n)
        self.mine = slice(comm.rank * self.rows, (comm.rank + 1) * self.rows)
        self.ky, self.kx = numbers[:, None], numbers[None, self.mine]
        squared = self.kx**2 + self.ky**2
        self.decay = viscosity * squared
        self.inverse_squared = 1.0 / numpy.where(squared == 0.0, numpy.inf, squared)
        self.kept = (abs(self.kx) < n / 3) & (abs(self.ky) < n / 3)

    def spectrum(self, field):
        """Columns (n, rows) of the transform of a field, of which each rank has rows (rows, n)."""
        blocks = np.fft.fft(field, axis=1).reshape(self.rows, comm.size, self.rows)
        return np.fft.fft(exchanged(blocks.swapaxes(0, 1)).reshape(self.n, self.rows), axis=0)

    def field(self, spectrum):
        """The inverse of `spectrum`."""
        blocks = exchanged(np.fft.ifft(spectrum, axis=0).reshape(comm.size, self.rows, self.rows))
        return np.fft.ifft(blocks.swapaxes(0, 1).reshape(self.rows, self.n), axis=1).real

    def tendency(self, vorticity):
        """dω/dt = -u·∇ω + ν∇²ω, in spectra; u = (∂ψ/∂y, -∂ψ/∂x) of the stream function ψ, -∇²ψ = ω."""
        stream = vorticity * self.inverse_squared
        u, v = self.field(1j * self.ky * stream), self.field(-1j * self.kx * stream)
        slope_x, slope_y = self.field(1j * self.kx * vorticity), self.field(1j * self.ky * vorticity)
        return -self.spectrum(u * slope_x + v * slope_y) * self.kept - self.decay * vorticity

    def step(self, vorticity):
        """The classical method of Runge and Kutta."""
        a = self.tendency(vorticity)
        b = self.tendency(vorticity + 0.5 * self.dt * a)
        c = self.tendency(vorticity + 0.5 * self.dt * b)
        d = self.tendency(vorticity + self.dt * c)
        return vorticity + self.dt / 6.0 * (a + 2.0 * b + 2.0 * c + d)

    def run(self, start):
        """This rank's rows of the vorticity at the end, (rows, n), from those at the beginning."""
        return self.field(ampi.timeloop(self.step, self.spectrum(start), self.steps))

    def misfit(self, start, seen):
        return np.sum((self.run(start) - seen) ** 2)


def exchanged(blocks):
    """Block k goes to rank k."""
    came = np.empty(blocks.shape, complex)
    comm.Alltoall(np.ascontiguousarray(blocks), came)
    return came


def invert(flow, seen, gtol=1e-9):
    """This rank's rows of the vorticity at the beginning. Collective."""
    both = ampi.value_and_grad(flow.misfit)

    def function(start):
        value, gradient = both(start.reshape(seen.shape), seen)
        return comm.allreduce(value), gradient.reshape(start.shape)

    start = numpy.array(seen).reshape(-1, 1)
    return l_bfgs(function, start, jac=True, pnp=Reduction(ampi.MPI.COMM_WORLD), gtol=gtol, maxcor=20)


def truth(flow):
    """This rank's rows of four vortices."""
    points = 2.0 * numpy.pi * (numpy.arange(flow.n) + 0.5) / flow.n
    y, x = points[flow.mine, None], points[None, :]
    field = numpy.zeros((flow.rows, flow.n))
    for x0, y0, strength in ((2.3, 3.1, 6.0), (3.9, 3.3, 6.0), (3.0, 4.4, -5.0), (3.2, 1.9, -5.0)):
        field += strength * numpy.exp(4.0 * (numpy.cos(x - x0) + numpy.cos(y - y0) - 2.0))
    return field


def draw(path, fields):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(fields), figsize=(9, 3), layout="constrained")
    for axis, (title, field) in zip(axes, fields.items()):
        image = axis.imshow(field, cmap="RdBu", origin="lower", vmin=-6.0, vmax=6.0)
        axis.set(title=title, xticks=[], yticks=[])
    figure.colorbar(image, ax=axes, label="vorticity")
    figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=32, help="grid points along an edge")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--time", type=float, default=1.2, help="the simulated time")
    parser.add_argument("--gtol", type=float, default=1e-5, help="largest component of the gradient at the end")
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    if options.n % comm.size:
        parser.error(f"-n {options.n} cannot be shared by {comm.size} ranks: give a multiple of these")
    flow = Flow(options.n, options.steps, options.time)
    true = truth(flow)
    seen = ampi.value(flow.run(true))
    found = invert(flow, seen, options.gtol)
    field = found.x.reshape(true.shape)
    error = comm.allreduce(numpy.abs(field - true).max(), op=ampi.MPI.MAX)
    fields = {"at the beginning": true, "at the end": seen, "found": field}
    wholes = {title: comm.gather(field) for title, field in fields.items()}
    if comm.rank == 0:
        print("unknowns  ranks  iterations  misfit   largest error")
        print(f"{flow.n**2:<9} {comm.size:<6} {found.nit:<11} {float(found.fun):.1e}  {error:.1e}")
        if options.picture:
            draw(options.picture, {title: numpy.concatenate(parts) for title, parts in wholes.items()})


if __name__ == "__main__":
    main()
