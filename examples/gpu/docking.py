"""Energies of a molecule in many poses beside a protein, with a kernel written for CUDA, and forces on both.

python examples/gpu/docking.py --poses 256

The model of miniBUDE (McIntosh-Smith et al., IJHPCA 29, 2015): a pair of atoms repels where their spheres overlap, and
has energies of charge and desolvation that fall to zero with the gap between them.  Each thread computes one pose; the
force field is in shared memory.  The molecules are made up.  The program prints the sum of all energies, compares them
with NumPy, and derivatives with respect to poses, protein and ligand with the tangent and with a difference quotient.
"""

import math

import device
import numpy

import ampi
import ampi.cuda as cuda
import ampi.numpy as np

TYPES, THREADS = 8, 64
CONTACT, CHARGE, REACH, DESOLVATION = range(4)  # of a pair of types: lengths, and energies
HARDNESS, FAR = 38.0, 5.5


@cuda.jit
def pose_energies(protein, protein_type, ligand, ligand_type, field, poses, energies):
    """The energy of a pose: rotated about x, y, z in this order, and shifted."""
    pair = cuda.shared.array((8, 8, 4), np.float64)
    for k in range(cuda.threadIdx.x, 256, cuda.blockDim.x):
        pair[k // 32, k // 4 % 8, k % 4] = field[k // 32, k // 4 % 8, k % 4]
    cuda.syncthreads()
    i = cuda.grid(1)
    if i >= energies.size:
        return
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
            energy += pair[s, t, 1] * max(1.0 - apart / pair[s, t, 2], 0.0) + pair[s, t, 3] * max(
                1.0 - apart / 5.5, 0.0
            )
    energies[i] = energy


def total(protein, ligand, field, poses, protein_type, ligand_type):
    """The sum of the energies of all poses."""
    launch, *arguments = launched(protein, ligand, field, poses, protein_type, ligand_type)
    launch(*arguments)
    return np.sum(arguments[-1])


def launched(protein, ligand, field, poses, protein_type, ligand_type):
    """The launch, and the kernel's arguments."""
    count = poses.shape[1]
    given = protein, protein_type, ligand, ligand_type, field, poses, np.zeros(count)
    return pose_energies[-(-count // THREADS), THREADS], *given


def reference(protein, ligand, field, poses, protein_type, ligand_type):
    """The same with NumPy, a pose at a time."""
    pair = field[ligand_type[:, None], protein_type]
    energy = 0.0
    for angle_x, angle_y, angle_z, *shift in poses.T:
        s, c = numpy.sin((angle_x, angle_y, angle_z)), numpy.cos((angle_x, angle_y, angle_z))
        about_x = numpy.array([[1, 0, 0], [0, c[0], -s[0]], [0, s[0], c[0]]])
        about_y = numpy.array([[c[1], 0, s[1]], [0, 1, 0], [-s[1], 0, c[1]]])
        about_z = numpy.array([[c[2], -s[2], 0], [s[2], c[2], 0], [0, 0, 1]])
        placed = about_z @ about_y @ about_x @ ligand + numpy.array(shift)[:, None]
        distance = numpy.linalg.norm(placed[:, :, None] - protein[:, None, :], axis=0)
        gap = distance - pair[..., CONTACT]
        apart = numpy.maximum(gap, 0)
        steric = HARDNESS / pair[..., CONTACT] * numpy.maximum(-gap, 0)
        charge = pair[..., CHARGE] * numpy.maximum(1 - apart / pair[..., REACH], 0)
        energy += numpy.sum(steric + charge + pair[..., DESOLVATION] * numpy.maximum(1 - apart / FAR, 0))
    return energy


def made_up(poses, protein_atoms=150, ligand_atoms=12, seed=0):
    """Molecules, a force field, and poses."""
    draw = numpy.random.default_rng(seed)
    protein, ligand = draw.uniform(-8, 8, (3, protein_atoms)), draw.uniform(-2, 2, (3, ligand_atoms))
    field = draw.normal(size=(TYPES, TYPES, 4))
    field[..., CONTACT], field[..., REACH] = draw.uniform(2, 4, (2, TYPES, TYPES))
    placed = numpy.concatenate([draw.uniform(0, 2 * numpy.pi, (3, poses)), draw.uniform(-6, 6, (3, poses))])
    kinds = (draw.integers(0, TYPES, protein_atoms), draw.integers(0, TYPES, ligand_atoms))
    return protein, ligand, field, placed, *kinds


def draw_forces(picture, protein, slopes):
    """Draw the forces on the protein's atoms, seen along z."""
    import matplotlib.pyplot as plt

    forces = -numpy.asarray(slopes)
    figure, axes = plt.subplots(figsize=(5, 4.2), layout="constrained")
    shown = axes.quiver(*protein[:2], *forces[:2], protein[2], angles="xy")
    axes.scatter(*protein[:2], c=protein[2], s=10)
    axes.set(xlabel="x", ylabel="y", aspect="equal", title="forces on the protein, of all poses")
    figure.colorbar(shown, label="z")
    figure.savefig(picture, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--poses", type=int, default=256)
    parser.add_argument("--picture", metavar="FILE")
    device.add_option(parser)
    options = parser.parse_args()
    *given, protein_type, ligand_type = made_up(options.poses)
    of = lambda *x: total(*x, protein_type, ligand_type)
    value, gradients = device.timed(of, *given, argnums=(0, 1, 2, 3))
    print(f"sum of energies {float(value):.12e}, with NumPy {reference(*given, protein_type, ligand_type):.12e}")
    draw = numpy.random.default_rng(1)
    print("with respect to   adjoint              tangent              difference quotient")
    for k, name in enumerate(("protein", "ligand", "field", "poses")):
        directions = [draw.normal(size=g.shape) * (j == k) for j, g in enumerate(given)]
        tangent = float(ampi.jvp(of, tuple(given), tuple(directions))[1])
        up, down = (float(of(*(g + s * 1e-7 * d for g, d in zip(given, directions)))) for s in (1, -1))
        slope = float(numpy.sum(gradients[k] * directions[k]))
        print(f"{name:<17} {slope:+.12e}  {tangent:+.12e}  {(up - down) / 2e-7:+.6e}")
    if options.device == "cuda":
        device.compare(*launched(*given, protein_type, ligand_type))
    if options.picture:
        draw_forces(options.picture, given[0], gradients[0])


if __name__ == "__main__":
    main()
