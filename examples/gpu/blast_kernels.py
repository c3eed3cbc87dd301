"""The kernels of LULESH for CUDA: one thread for an element, a node or an entry of a message.

They do what the loops of ``examples/lulesh/sedov/kernels.py`` do, with the same names, arguments and formulas (its
functions for one element are device functions here), so that the program runs with either.  Each kernel is launched by
a function behind it.  Smallest and largest values are found by a tree in shared memory for each block of threads, and
then by one thread.
"""

import math
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "lulesh"))

from numba import float64
from sedov import kernels as formulas
from sedov.geometry import (
    at_corners,
    cross,
    directional_differences,
    dot,
    face_normals,
    hexahedron_volume,
    largest_face_squared,
    volume_gradient,
)
from sedov.kernels import corner_forces, equation_of_state, hourglass_modes, limited_slope

import ampi.cuda as cuda
import ampi.numpy as np

jit = cuda.jit(fastmath=True)  # as the loops
THREADS = 128
ZEROS = (0.0,) * 8
NO_LIMIT = formulas.NO_LIMIT
HOURGLASS, DENSITY = formulas.HOURGLASS, formulas.REFERENCE_DENSITY
MONOQ_LINEAR, MONOQ_QUADRATIC = formulas.MONOQ_LINEAR, formulas.MONOQ_QUADRATIC
TINY, VELOCITY_CUT, VOLUME_CUT = formulas.TINY, formulas.VELOCITY_CUT, formulas.VOLUME_CUT
COURANT_QUADRATIC, VOLUME_CHANGE_MAX = formulas.COURANT_QUADRATIC, formulas.VOLUME_CHANGE_MAX
STEP_MAX = formulas.STEP_MAX
STEP_GROWTH_MIN, STEP_GROWTH_MAX = formulas.STEP_GROWTH_MIN, formulas.STEP_GROWTH_MAX


def blocks(threads):
    return max(-(-threads // THREADS), 1)


# -------------------------------------------------------------------------------------------------- smallest values


@jit
def smallest_of_blocks(values, result):
    """The smallest value of each block of threads."""
    shared = cuda.shared.array(THREADS, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = values[i] if i < values.size else NO_LIMIT
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            shared[t] = min(shared[t], shared[t + half])
        cuda.syncthreads()
        half //= 2
    if t == 0:
        result[cuda.blockIdx.x] = shared[0]


def smallest(values):
    """The smallest value of each block."""
    result = np.empty(blocks(len(values)))
    smallest_of_blocks[len(result), THREADS](values, result)
    return result


# ------------------------------------------------------------------------------------------------------ nodal part


@jit
def volume_of_element(x, corner, volume):
    e = cuda.grid(1)
    if e < corner.shape[0]:
        volume[e] = hexahedron_volume(
            at_corners(x, 0, corner, e), at_corners(x, 1, corner, e), at_corners(x, 2, corner, e)
        )


def reference_volumes(x, corner, volume):
    volume_of_element[blocks(len(corner)), THREADS](x, corner, volume)


@jit
def stress_of_element(x, corner, reference_volume, relative_volume, pressure, viscosity, force, least):
    """Forces of the stress at the corners of an element, and the smaller one of its two volumes."""
    e = cuda.grid(1)
    if e >= corner.shape[0]:
        return
    px = at_corners(x, 0, corner, e)
    py = at_corners(x, 1, corner, e)
    pz = at_corners(x, 2, corner, e)
    dx = directional_differences(px)
    dy = directional_differences(py)
    dz = directional_differences(pz)
    central = dot((dx[1], dy[1], dz[1]), cross((dx[2], dy[2], dz[2]), (dx[0], dy[0], dz[0]))) * (1.0 / 64.0)
    least[e] = min(reference_volume[e] * relative_volume[e], central)
    stress = 0.125 * (pressure[e] + viscosity[e])
    nx, ny, nz = face_normals(py, pz), face_normals(pz, px), face_normals(px, py)
    for k in range(8):
        force[0, 8 * e + k] = stress * nx[k]
        force[1, 8 * e + k] = stress * ny[k]
        force[2, 8 * e + k] = stress * nz[k]


@jit
def shape_of_element(x, corner, reference_volume, relative_volume, sound_speed, gradient, modes, factors):
    """The gradient of an element's volume by its corners, its hourglass modes, and the factors of `corner_forces`, for
    the kernel behind this one."""
    e = cuda.grid(1)
    if e >= corner.shape[0]:
        return
    px = at_corners(x, 0, corner, e)
    py = at_corners(x, 1, corner, e)
    pz = at_corners(x, 2, corner, e)
    gx, gy, gz = volume_gradient(py, pz), volume_gradient(pz, px), volume_gradient(px, py)
    for k in range(8):
        gradient[0, k, e] = gx[k]
        gradient[1, k, e] = gy[k]
        gradient[2, k, e] = gz[k]
    hx, hy, hz = hourglass_modes(px), hourglass_modes(py), hourglass_modes(pz)
    for k in range(4):
        modes[0, k, e] = hx[k]
        modes[1, k, e] = hy[k]
        modes[2, k, e] = hz[k]
    volume = reference_volume[e] * relative_volume[e]
    factors[0, e] = 1.0 / (12.0 * volume)
    factors[1, e] = -HOURGLASS * DENSITY * sound_speed[e] * reference_volume[e] / cuda.cbrt(volume)


@cuda.jit(device=True)
def eight(values, axis, e):
    return (values[axis, 0, e], values[axis, 1, e], values[axis, 2, e], values[axis, 3, e],
            values[axis, 4, e], values[axis, 5, e], values[axis, 6, e], values[axis, 7, e])  # fmt: skip


@cuda.jit(device=True)
def four(values, axis, e):
    return values[axis, 0, e], values[axis, 1, e], values[axis, 2, e], values[axis, 3, e]


@jit
def hourglass_of_element(v, corner, gradient, modes, factors, force):
    """Add the resistance to hourglass motion in one direction at the corners of an element."""
    e, c = cuda.grid(2)
    if e >= corner.shape[0] or c >= 3:
        return
    gx, gy, gz = eight(gradient, 0, e), eight(gradient, 1, e), eight(gradient, 2, e)
    hx, hy, hz = four(modes, 0, e), four(modes, 1, e), four(modes, 2, e)
    speeds = at_corners(v, c, corner, e)
    f = corner_forces(speeds, ZEROS, 0.0, gx, gy, gz, hx, hy, hz, factors[0, e], factors[1, e])
    for k in range(8):
        force[c, 8 * e + k] += f[k]


def element_forces(x, v, corner, reference_volume, relative_volume, pressure, viscosity, sound_speed, force):
    elements = len(corner)
    least, gradient, modes = np.empty(elements), np.empty((3, 8, elements)), np.empty((3, 4, elements))
    factors = np.empty((2, elements))
    grid = blocks(elements), THREADS
    stress_of_element[grid](x, corner, reference_volume, relative_volume, pressure, viscosity, force, least)
    shape_of_element[grid](x, corner, reference_volume, relative_volume, sound_speed, gradient, modes, factors)
    hourglass_of_element[(blocks(elements), 3), (THREADS, 1)](v, corner, gradient, modes, factors, force)
    return np.min(smallest(least))


@jit
def corners_of_node(values, node_corner, nodal):
    n, c = cuda.grid(2)
    if n >= node_corner.shape[0] or c >= nodal.shape[0]:
        return
    total = 0.0
    for k in range(8):
        total += values[c, node_corner[n, k]]
    nodal[c, n] = total


def sum_corners(values, node_corner, nodal):
    corners_of_node[(blocks(len(node_corner)), len(nodal)), (THREADS, 1)](values, node_corner, nodal)


@jit
def motion_of_node(force, mobility, dt, x, v):
    n, c = cuda.grid(2)
    if n >= x.shape[1] or c >= 3:
        return
    speed = v[c, n] + force[c, n] * mobility[c, n] * dt[0]
    speed = 0.0 if abs(speed) < VELOCITY_CUT else speed
    v[c, n] = speed
    x[c, n] += speed * dt[0]


def move_nodes(force, mobility, dt, x, v):
    motion_of_node[(blocks(x.shape[1]), 3), (THREADS, 1)](force, mobility, dt, x, v)


# ---------------------------------------------------------------------------------------------------- element part


@jit
def volumes_of_element(x, corner, reference_volume, relative_volume, new_volume, volume_change, length):
    """Volume and characteristic length of an element."""
    e = cuda.grid(1)
    if e >= corner.shape[0]:
        return
    px = at_corners(x, 0, corner, e)
    py = at_corners(x, 1, corner, e)
    pz = at_corners(x, 2, corner, e)
    volume = hexahedron_volume(px, py, pz)
    relative = volume / reference_volume[e]
    new_volume[e] = relative
    volume_change[e] = relative - relative_volume[e]
    length[e] = 2.0 * volume / math.sqrt(largest_face_squared(px, py, pz))


@jit
def kinematics_of_element(x, v, dt, corner, reference_volume, new_volume, strain_rate, velocity_gradient, extent):
    """Rate of strain of an element, and what its viscosity needs."""
    e = cuda.grid(1)
    if e >= corner.shape[0]:
        return
    volume = new_volume[e] * reference_volume[e]
    dx = directional_differences(at_corners(x, 0, corner, e))
    dy = directional_differences(at_corners(x, 1, corner, e))
    dz = directional_differences(at_corners(x, 2, corner, e))
    vx = directional_differences(at_corners(v, 0, corner, e))
    vy = directional_differences(at_corners(v, 1, corner, e))
    vz = directional_differences(at_corners(v, 2, corner, e))
    half = 0.5 * dt[0]
    hxi = dx[0] - half * vx[0], dy[0] - half * vy[0], dz[0] - half * vz[0]
    heta = dx[1] - half * vx[1], dy[1] - half * vy[1], dz[1] - half * vz[1]
    hzeta = dx[2] - half * vx[2], dy[2] - half * vy[2], dz[2] - half * vz[2]
    vxi = vx[0], vy[0], vz[0]
    veta = vx[1], vy[1], vz[1]
    vzeta = vx[2], vy[2], vz[2]
    ceta = cross(hzeta, hxi)
    turned = dot(cross(heta, hzeta), vxi) + dot(ceta, veta) + dot(cross(hxi, heta), vzeta)
    strain_rate[e] = turned / dot(heta, ceta)

    dxi = dx[0], dy[0], dz[0]
    deta = dx[1], dy[1], dz[1]
    dzeta = dx[2], dy[2], dz[2]
    norm = 1.0 / (64.0 * (volume + TINY))
    axi = cross(deta, dzeta)
    aeta = cross(dzeta, dxi)
    azeta = cross(dxi, deta)
    velocity_gradient[0, e] = norm * dot(axi, vxi)
    velocity_gradient[1, e] = norm * dot(aeta, veta)
    velocity_gradient[2, e] = norm * dot(azeta, vzeta)
    extent[0, e] = 16.0 * volume / math.sqrt(dot(axi, axi) + TINY)
    extent[1, e] = 16.0 * volume / math.sqrt(dot(aeta, aeta) + TINY)
    extent[2, e] = 16.0 * volume / math.sqrt(dot(azeta, azeta) + TINY)


def element_kinematics(x, v, dt, corner, reference_volume, relative_volume, new_volume, volume_change, length, *rates):
    grid = blocks(len(corner)), THREADS
    given = x, corner, reference_volume, relative_volume, new_volume, volume_change, length
    volumes_of_element[grid](*given)
    kinematics_of_element[grid](x, v, dt, corner, reference_volume, new_volume, *rates)
    return np.min(smallest(new_volume))


@jit
def viscosity_of_element(velocity_gradient, own_gradient, extent, neighbor, strain_rate, reference_volume, new_volume,
                         linear, quadratic):  # fmt: skip
    """Linear and quadratic terms of the monotonic artificial viscosity of an element."""
    e = cuda.grid(1)
    if e >= strain_rate.shape[0]:
        return
    if strain_rate[e] > 0.0:
        linear[e] = 0.0
        quadratic[e] = 0.0
        return
    first, second = 0.0, 0.0
    for c in range(3):
        here = own_gradient[c, e]
        before, after = velocity_gradient[c, neighbor[e, 2 * c]], velocity_gradient[c, neighbor[e, 2 * c + 1]]
        phi = limited_slope(here, before, after)
        jump = min(here * extent[c, e], 0.0)
        first += jump * (1.0 - phi)
        second += jump * jump * (1.0 - phi * phi)
    density = DENSITY / new_volume[e]
    linear[e] = -MONOQ_LINEAR * density * first
    quadratic[e] = MONOQ_QUADRATIC * density * second


def artificial_viscosity(*given):
    viscosity_of_element[blocks(len(given[4])), THREADS](*given)


@jit
def state_of_element(linear, quadratic, new_volume, volume_change, length, strain_rate, gamma_minus_1, energy, pressure,
                     viscosity, sound_speed, relative_volume, courant, change):  # fmt: skip
    """Equation of state and volume of an element, and how long it allows the next time step to be."""
    k = cuda.grid(1)
    if k >= energy.shape[0]:
        return
    e, p, q, c = equation_of_state(energy[k], pressure[k], viscosity[k], new_volume[k], volume_change[k], linear[k],
                                   quadratic[k], gamma_minus_1[0])  # fmt: skip
    energy[k] = e
    pressure[k] = p
    viscosity[k] = q
    sound_speed[k] = c
    relative_volume[k] = 1.0 if abs(new_volume[k] - 1.0) < VOLUME_CUT else new_volume[k]
    rate = strain_rate[k]
    closing = min(rate, 0.0) * length[k]
    crossing = length[k] / math.sqrt(c * c + COURANT_QUADRATIC * closing * closing)
    courant[k] = NO_LIMIT if rate == 0.0 else crossing
    change[k] = NO_LIMIT if rate == 0.0 else VOLUME_CHANGE_MAX / (abs(rate) + 1e-20)


@jit
def least_limits(courant, change, limits):
    """The limits of all elements from those of all blocks; run by one thread."""
    crossing, hydro = NO_LIMIT, NO_LIMIT
    for b in range(courant.size):
        crossing = min(crossing, courant[b])
        hydro = min(hydro, change[b])
    limits[0, 0] = crossing
    limits[0, 1] = hydro


def update_elements(linear, quadratic, new_volume, volume_change, length, strain_rate, gamma_minus_1, energy, pressure,
                    viscosity, sound_speed, relative_volume, limits):  # fmt: skip
    courant, change = np.empty(len(energy)), np.empty(len(energy))
    given = linear, quadratic, new_volume, volume_change, length, strain_rate, gamma_minus_1, energy, pressure
    launch = state_of_element[blocks(len(energy)), THREADS]
    launch(*given, viscosity, sound_speed, relative_volume, courant, change)
    least_limits[1, 1](smallest(courant), smallest(change), limits)
    return np.max(viscosity)


@jit
def step_of_limits(limits, step_limit):
    """The longest next time step; run by one thread."""
    courant, hydro = limits[0, 0], limits[0, 1]
    for b in range(1, limits.shape[0]):
        courant = min(courant, limits[b, 0])
        hydro = min(hydro, limits[b, 1])
    # LULESH compares the hydrodynamic limit before it takes its share of it; the time steps depend on that.
    limit = 0.5 * courant if courant < NO_LIMIT else NO_LIMIT
    step_limit[0] = 2.0 / 3.0 * hydro if hydro < limit else limit


def limit_step(limits, step_limit):
    step_of_limits[1, 1](limits, step_limit)


@jit
def state_again(element, energy, pressure, viscosity, new_volume, volume_change, linear, quadratic, gamma_minus_1,
                result):  # fmt: skip
    i = cuda.grid(1)
    if i >= element.shape[0]:
        return
    k = element[i]
    e, p, q, _ = equation_of_state(energy[k], pressure[k], viscosity[k], new_volume[k], volume_change[k], linear[k],
                                   quadratic[k], gamma_minus_1[0])  # fmt: skip
    result[0, i] = e
    result[1, i] = p
    result[2, i] = q


def evaluate_again(element, *given):
    state_again[blocks(len(element)), THREADS](element, *given)


@jit
def next_step(step_limit, time, dt, end_time):
    """The next time step from the limit that holds on all ranks, and the time after it; run by one thread."""
    new = step_limit[0]
    ratio = new / dt[0]
    new = dt[0] if ratio >= 1.0 and ratio < STEP_GROWTH_MIN else new
    new = dt[0] * STEP_GROWTH_MAX if ratio > STEP_GROWTH_MAX else new
    new = min(new, STEP_MAX)
    left = end_time - time[0]
    left = 2.0 * new / 3.0 if left > new and left < 4.0 * new / 3.0 else left
    dt[0] = min(new, left)
    time[0] += dt[0]


def advance_time(step_limit, time, dt, end_time):
    next_step[1, 1](step_limit, time, dt, end_time)


# -------------------------------------------------------------------------------------------------------- messages


@jit
def pack_node(field, node, first, buffer):
    i = cuda.grid(1)
    if i < node.shape[0]:
        for c in range(field.shape[0]):
            buffer[i, first + c] = field[c, node[i]]


def pack_nodes(field, node, first, buffer):
    pack_node[blocks(len(node)), THREADS](field, node, first, buffer)


@jit
def unpack_node(buffer, first, node, field):
    i = cuda.grid(1)
    if i < node.shape[0]:
        for c in range(field.shape[0]):
            field[c, node[i]] = buffer[i, first + c]


def unpack_nodes(buffer, first, node, field):
    unpack_node[blocks(len(node)), THREADS](buffer, first, node, field)


@jit
def add_to_node(buffer, node, start, row, field):
    i = cuda.grid(1)
    if i < node.shape[0]:
        for c in range(field.shape[0]):
            total = field[c, node[i]]
            for j in range(start[i], start[i + 1]):
                total += buffer[row[j], c]
            field[c, node[i]] = total


def add_to_nodes(buffer, node, start, row, field):
    add_to_node[blocks(len(node)), THREADS](buffer, node, start, row, field)


@jit
def pack_face(field, direction, element, buffer):
    i = cuda.grid(1)
    if i < element.shape[0]:
        buffer[i] = field[direction[i], element[i]]


def pack_faces(field, direction, element, buffer):
    pack_face[blocks(len(element)), THREADS](field, direction, element, buffer)
