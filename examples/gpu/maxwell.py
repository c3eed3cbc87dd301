"""Maxwell's equations by a discontinuous Galerkin method of order 4, in CUDA kernels, and their derivatives.

python examples/gpu/maxwell.py --cells 2 --time 0.3

Electromagnetic waves in a box with conducting walls, on tetrahedra with 35 nodes each: upwind fluxes between elements,
and the five stages of Carpenter's and Kennedy's Runge-Kutta method (Hesthaven and Warburton, Nodal Discontinuous
Galerkin Methods, 2008; Klöckner et al., J. Comput. Phys. 228, 2009, for GPUs).  A block of threads computes an element.
The program prints the error beside the exact wave of an empty box, the energy, and how much the energy in a corner
depends on the permittivity of each element and on the field at the start, beside tangents and difference quotients.
"""

import itertools
import math

import device
import numpy
from numba import float32, float64

import ampi
import ampi.cuda as cuda
import ampi.numpy as np

ORDER, NODES, FACE_NODES, THREADS = 4, 35, 15, 64
POWERS = numpy.array([p for p in itertools.product(range(ORDER + 1), repeat=3) if sum(p) <= ORDER])
POINTS = POWERS / ORDER  # the nodes of the reference tetrahedron
ON_FACE = [POWERS[:, 0] == 0, POWERS[:, 1] == 0, POWERS[:, 2] == 0, POWERS.sum(axis=1) == ORDER]
FACES = numpy.concatenate([numpy.flatnonzero(on) for on in ON_FACE])  # node of each of the 60 nodes of faces
WALL = -1
RK_A = (0.0, -567301805773 / 1357537059087, -2404267990393 / 2016746695238, -3550918686646 / 2091501179385,
        -1275806237668 / 842570457699)  # fmt: skip
RK_B = (1432997174477 / 9575080441755, 5161836677717 / 13612068292357, 1720146321549 / 2090206949498,
        3134564353537 / 4481467310338, 2277821191437 / 14882151754819)  # fmt: skip


def kernels(real):
    """The kernels for numbers of a precision."""

    @cuda.jit
    def change(q, permittivity, derive, lift, metric, normals, neighbour, faces, rates):
        """The rates of change of the fields (E, then H) of an element: thread t has node t, and node t of its faces."""
        e, t = cuda.blockIdx.x, cuda.threadIdx.x
        field = cuda.shared.array((6, 35), real)
        flux = cuda.shared.array((6, 60), real)
        if t < 35:
            for c in range(6):
                field[c, t] = q[e, c, t]
        cuda.syncthreads()
        if t < 60:
            f, m, other = t // 15, faces[t], neighbour[e, t]
            nx, ny, nz, scale = normals[e, f, 0], normals[e, f, 1], normals[e, f, 2], normals[e, f, 3]
            if other < 0:  # a wall: the electric field along it is opposite behind it, the magnetic one the same
                ex, ey, ez = -2 * field[0, m], -2 * field[1, m], -2 * field[2, m]
                hx, hy, hz = 0 * field[3, m], 0 * field[4, m], 0 * field[5, m]
            else:
                o, k = other // 35, other % 35
                ex, ey, ez = q[o, 0, k] - field[0, m], q[o, 1, k] - field[1, m], q[o, 2, k] - field[2, m]
                hx, hy, hz = q[o, 3, k] - field[3, m], q[o, 4, k] - field[4, m], q[o, 5, k] - field[5, m]
            along_e = nx * ex + ny * ey + nz * ez
            along_h = nx * hx + ny * hy + nz * hz
            flux[0, t] = scale * (ny * hz - nz * hy + ex - along_e * nx)
            flux[1, t] = scale * (nz * hx - nx * hz + ey - along_e * ny)
            flux[2, t] = scale * (nx * hy - ny * hx + ez - along_e * nz)
            flux[3, t] = scale * (nz * ey - ny * ez + hx - along_h * nx)
            flux[4, t] = scale * (nx * ez - nz * ex + hy - along_h * ny)
            flux[5, t] = scale * (ny * ex - nx * ey + hz - along_h * nz)
        cuda.syncthreads()
        if t < 35:
            slopes = cuda.local.array((3, 6), real)  # along the axes of the reference tetrahedron
            for a in range(3):
                for c in range(6):
                    slopes[a, c] = 0
                for k in range(35):
                    d = derive[a, t, k]
                    for c in range(6):
                        slopes[a, c] += d * field[c, k]
            lifted = cuda.local.array(6, real)
            for c in range(6):
                lifted[c] = 0
            for k in range(60):
                d = lift[t, k]
                for c in range(6):
                    lifted[c] += d * flux[c, k]
            turn = cuda.local.array(6, real)  # curl H, and minus curl E
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

    @cuda.jit
    def advance(q, saved, rates, a, b, step):
        """A stage of the Runge-Kutta method."""
        e, t = cuda.blockIdx.x, cuda.threadIdx.x
        if t < 35:
            for c in range(6):
                saved[e, c, t] = a * saved[e, c, t] + step * rates[e, c, t]
                q[e, c, t] += b * saved[e, c, t]

    return change, advance


KERNELS = {numpy.dtype(numpy.float32): kernels(float32), numpy.dtype(numpy.float64): kernels(float64)}


# ------------------------------------------------------------------------------------------------------- geometry


def integrals(powers):
    """Integrals of monomials over the reference triangle or tetrahedron."""
    product = numpy.prod([[math.factorial(p) for p in row] for row in powers.reshape(-1, powers.shape[-1])], axis=1)
    total = [math.factorial(sum(row) + len(row)) for row in powers.reshape(-1, powers.shape[-1])]
    return (product / total).reshape(powers.shape[:-1])


def reference_element():
    """Matrices of the reference tetrahedron: derivatives (3, 35, 35), and the lift of the faces' fluxes (35, 60)."""
    monomials = lambda points, powers: numpy.prod(points[:, None] ** powers, axis=-1)
    inverse = numpy.linalg.inv(monomials(POINTS, POWERS))
    mass = inverse.T @ integrals(POWERS[:, None] + POWERS) @ inverse
    derive = []
    for axis in range(3):
        lower = numpy.maximum(POWERS - numpy.eye(3, dtype=int)[axis], 0)
        derive.append(POWERS[:, axis] * monomials(POINTS, lower) @ inverse)
    lift = numpy.zeros((NODES, 4 * FACE_NODES))
    for face, on in enumerate(ON_FACE):
        kept = [a for a in range(3) if a != face][:2]  # coordinates on the face
        flat, plane = POINTS[on][:, kept], numpy.array([p for p in POWERS if p[2] == 0])[:, :2]
        back = numpy.linalg.inv(monomials(flat, plane))
        columns = slice(face * FACE_NODES, (face + 1) * FACE_NODES)
        lift[on, columns] = back.T @ integrals(plane[:, None] + plane) @ back
    return numpy.array(derive), numpy.linalg.solve(mass, lift)


class Mesh:
    """The unit cube of ``cells`` ** 3 cubes with six tetrahedra each, for numbers of a precision."""

    def __init__(self, cells, real=numpy.float64):
        corners = []
        for place in itertools.product(range(cells), repeat=3):
            for axes in itertools.permutations(range(3)):
                walk = numpy.cumsum([place, *numpy.eye(3, dtype=int)[list(axes)]], axis=0)
                corners.append(walk / cells)
        corners = numpy.array(corners)
        jacobian = (corners[:, 1:] - corners[:, :1]).transpose(0, 2, 1)  # by columns
        metric = numpy.linalg.inv(jacobian)
        self.points = corners[:, 0, None] + numpy.einsum("exa,na->enx", jacobian, POINTS)
        self.volumes = abs(numpy.linalg.det(jacobian)) / 6
        outward = numpy.concatenate([-metric, metric.sum(axis=1, keepdims=True)], axis=1)
        lengths = numpy.linalg.norm(outward, axis=-1, keepdims=True)
        # A face's area over the volume is `lengths`, up to what the reference element has; half of it for the flux.
        normals = numpy.concatenate([outward / lengths, lengths / 2], axis=-1)
        self.neighbour = self.find_neighbours()
        derive, lift = reference_element()
        self.matrices = [m.astype(real) for m in (derive, lift, metric, normals)]
        self.step = 0.5 / (lengths.max() * ORDER**2)
        self.real = numpy.dtype(real)
        monomials = numpy.prod(POINTS[:, None] ** POWERS, axis=-1)
        inverse = numpy.linalg.inv(monomials)
        self.mass = (6 * inverse.T @ integrals(POWERS[:, None] + POWERS) @ inverse).astype(real)

    def find_neighbours(self):
        """For each node of a face the element and node across it, as one number, or `WALL`."""
        places = numpy.round(self.points[:, FACES] * 1e6).astype(int)
        faces = places.reshape(-1, FACE_NODES, 3)
        found = numpy.full((len(faces), FACE_NODES), WALL)
        known = {}
        for number, face in enumerate(faces):
            centre = tuple(face.sum(axis=0))
            if centre not in known:
                known[centre] = number
                continue
            mine, other = number, known[centre]
            nodes = [(n // 4 * NODES + FACES.reshape(4, -1)[n % 4]) for n in (mine, other)]
            match = (faces[mine][:, None] == faces[other]).all(axis=-1)
            found[mine], found[other] = nodes[1][match.argmax(axis=1)], nodes[0][match.argmax(axis=0)]
        return found.reshape(len(self.points), 4 * FACE_NODES)


def wave(mesh, time):
    """The exact fields of a standing wave in an empty box."""
    (x, y, _), omega = numpy.pi * numpy.moveaxis(mesh.points, -1, 0), math.sqrt(2) * numpy.pi
    q = numpy.zeros((len(mesh.points), 6, NODES))
    q[:, 2] = numpy.sin(x) * numpy.sin(y) * math.cos(omega * time)
    q[:, 3] = -numpy.sin(x) * numpy.cos(y) * math.sin(omega * time) / math.sqrt(2)
    q[:, 4] = numpy.cos(x) * numpy.sin(y) * math.sin(omega * time) / math.sqrt(2)
    return q.astype(mesh.real)


# ----------------------------------------------------------------------------------------------------------- runs


def steps_to(mesh, time):
    count = max(math.ceil(time / mesh.step), 1)
    return count, mesh.real.type(time / count)


def run(q, permittivity, mesh, time):
    """The fields at a time."""
    change, advance = KERNELS[mesh.real]
    count, step = steps_to(mesh, time)
    derive, lift, metric, normals = mesh.matrices
    q, saved = q + 0, np.zeros(q.shape, mesh.real)
    elements = len(q)
    for _ in range(count):
        for a, b in zip(RK_A, RK_B):
            rates = np.empty(q.shape, mesh.real)
            change[elements, THREADS](q, permittivity, derive, lift, metric, normals, mesh.neighbour, FACES, rates)
            advance[elements, THREADS](q, saved, rates, mesh.real.type(a), mesh.real.type(b), step)
    return q


def reference(q, permittivity, mesh, time):
    """The same with NumPy; numbers may be complex."""
    count, step = steps_to(mesh, time)
    derive, lift, metric, normals = mesh.matrices
    n, scale = numpy.repeat(normals, FACE_NODES, axis=1)[..., :3], numpy.repeat(normals, FACE_NODES, axis=1)[..., 3]
    wall = mesh.neighbour < 0
    q, saved = q + 0, 0 * q
    for _ in range(count):
        for a, b in zip(RK_A, RK_B):
            nodes = q.transpose(0, 2, 1).reshape(-1, 6)
            jump = nodes[mesh.neighbour] - q.transpose(0, 2, 1)[:, FACES]
            jump[wall] = (q.transpose(0, 2, 1)[:, FACES] * numpy.array([-2, -2, -2, 0, 0, 0], mesh.real))[wall]
            e, h = jump[..., :3], jump[..., 3:]
            flux_e = numpy.cross(n, h) + e - (n * e).sum(-1, keepdims=True) * n
            flux_h = -numpy.cross(n, e) + h - (n * h).sum(-1, keepdims=True) * n
            flux = scale[..., None] * numpy.concatenate([flux_e, flux_h], axis=-1)
            lifted = numpy.einsum("nk,ekc->ecn", lift, flux)
            slopes = numpy.einsum("eax,ank,eck->excn", metric, derive, q, optimize=True)  # d/dx of c
            curl = lambda s: numpy.stack([s[:, 1, 2] - s[:, 2, 1], s[:, 2, 0] - s[:, 0, 2], s[:, 0, 1] - s[:, 1, 0]], 1)
            rates = numpy.concatenate([curl(slopes[:, :, 3:]), -curl(slopes[:, :, :3])], axis=1) + lifted
            rates[:, :3] /= permittivity[:, None, None]
            saved = mesh.real.type(a) * saved + step * rates
            q = q + mesh.real.type(b) * saved
    return q


def energies(q, permittivity, mesh):
    """The energy of each element."""
    weights = [permittivity[:, None, None], np.ones((len(mesh.volumes), 1, 1), mesh.real)]
    parts = (w * np.sum(x * (x @ mesh.mass), axis=1, keepdims=True) for w, x in zip(weights, (q[:, :3], q[:, 3:])))
    return 0.5 * mesh.volumes.astype(mesh.real) * sum(np.sum(p, axis=(1, 2)) for p in parts)


def in_corner(permittivity, q, mesh, time, runs=run):
    """The energy in the corner at the origin at the end."""
    corner = (mesh.points.mean(axis=1) < 0.5).all(axis=-1)
    return np.sum(energies(runs(q, permittivity, mesh, time), permittivity, mesh)[corner])


def draw(picture, mesh, by_permittivity, q):
    """Draw the field at the end, and the derivatives with respect to the permittivity of elements."""
    import matplotlib.pyplot as plt

    centres = mesh.points.mean(axis=1)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    fields = ampi.value(q)[:, 2].mean(axis=1), numpy.asarray(by_permittivity) / mesh.volumes
    for ax, field, title in zip(axes, fields, ("electric field along z", "derivative by permittivity, over volume")):
        shown = ax.tripcolor(centres[:, 0] + 1e-3 * centres[:, 2], centres[:, 1] + 1e-4 * centres[:, 2], field)
        ax.set(title=title, xlabel="x", ylabel="y", aspect="equal")
        figure.colorbar(shown, ax=ax)
    figure.savefig(picture, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=2, help="cubes along an edge; six tetrahedra each")
    parser.add_argument("--time", type=float, default=0.3)
    parser.add_argument("--precision", choices=["float32", "float64"], default="float32")
    parser.add_argument("--picture", metavar="FILE")
    device.add_option(parser)
    options = parser.parse_args()
    mesh = Mesh(options.cells, numpy.dtype(options.precision).type)
    start, empty = wave(mesh, 0.0), numpy.ones(len(mesh.points), mesh.real)
    end = ampi.value(run(start, empty, mesh, options.time))
    print(f"{len(start)} tetrahedra, {steps_to(mesh, options.time)[0]} steps of five stages")
    print(f"difference from the exact wave {abs(end - wave(mesh, options.time)).max():.3e}", end=", ")
    print(f"from NumPy {abs(end - reference(start, empty, mesh, options.time)).max():.3e}")
    before, after = (float(ampi.value(np.sum(energies(q, empty, mesh)))) for q in (start, end))
    print(f"energy at the start {before:.8f}, at the end {after:.8f}")
    value, gradients = device.timed(in_corner, empty, start, mesh, options.time, argnums=(0, 1))
    print(f"energy in the corner {float(value):.8f}")
    print("with respect to   adjoint              tangent              difference quotient")
    generator, h = numpy.random.default_rng(1), 1e-3
    for k, name in enumerate(("permittivity", "start")):
        directions = [numpy.zeros_like(empty), numpy.zeros_like(start)]
        directions[k] = generator.standard_normal(directions[k].shape).astype(mesh.real)
        of = lambda p, q: in_corner(p, q, mesh, options.time)
        tangent = float(ampi.jvp(of, (empty, start), tuple(directions))[1])
        ends = [in_corner(*(x + mesh.real.type(s * h) * d for x, d in zip((empty, start), directions)), mesh,
                          options.time) for s in (1, -1)]  # fmt: skip
        slope = float(numpy.sum(numpy.asarray(gradients[k], float) * directions[k]))
        print(f"{name:<17} {slope:+.12e}  {tangent:+.12e}  {float(ends[0] - ends[1]) / (2 * h):+.6e}")
    if options.device == "cuda":
        change, _ = KERNELS[mesh.real]
        given = start, empty, *mesh.matrices, mesh.neighbour, FACES, numpy.zeros_like(start)
        device.compare(change[len(start), THREADS], *given)
    if options.picture:
        draw(options.picture, mesh, gradients[0], end)


if __name__ == "__main__":
    main()
