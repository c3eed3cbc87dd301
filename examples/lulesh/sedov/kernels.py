"""The local work of a cycle: loops over the elements or nodes of one rank.

Every kernel is one loop whose iterations are independent: an iteration reads any entries and writes those that belong
to its own element or node. Quantities of all iterations together (a smallest volume, a time step limit) are reductions.

Vector fields have the shape ``(3, nodes)`` or ``(3, elements)``: one contiguous row per direction. Index tables are
unsigned, so that no index can mean "from the end". :mod:`sedov.geometry` has the numbering of corners and the geometry
of an element.

Sources: I. Karlin, J. Keasler, R. Neely, "LULESH 2.0 Updates and Changes", LLNL-TR-641973, and "Hydrodynamics Challenge
Problem", LLNL-TR-490254. Hourglass control: D. P. Flanagan, T. Belytschko, Int. J. Numer. Meth. Eng. 17 (1981) 679-706.
Monotonic viscosity: R. B. Christensen, UCRL-JC-105269 (1990).
"""

import math

import numpy as np

from .backend import kernel, prange, serial_kernel
from .geometry import (
    at_corners,
    cross,
    directional_differences,
    dot,
    face_normals,
    hexahedron_volume,
    largest_face_squared,
    volume_gradient,
)

HOURGLASS = 3.0 * 0.01  # coefficient of the hourglass force
VELOCITY_CUT = 1e-7  # a smaller speed is zero
ENERGY_CUT = 1e-7
PRESSURE_CUT = 1e-7
VISCOSITY_CUT = 1e-7
VOLUME_CUT = 1e-10  # a relative volume this close to 1 is 1
ENERGY_MIN = -1e15
PRESSURE_MIN = 0.0
EOS_VOLUME_MAX = 1e9  # limits of the relative volume inside the equation of state
EOS_VOLUME_MIN = 1e-9
REFERENCE_DENSITY = 1.0
MONOQ_SLOPE_MAX = 1.0
MONOQ_LIMITER = 2.0
MONOQ_LINEAR = 0.5
MONOQ_QUADRATIC = 2.0 / 3.0
COURANT_QUADRATIC = 64.0 * 2.0 * 2.0  # (8 qqc)² with qqc = 2
VOLUME_CHANGE_MAX = 0.1  # largest relative change of volume in a step
TINY = 1e-36
SOUND_SPEED_SQUARED_MIN = 0.1111111e-36
NO_LIMIT = 1e20
STEP_MAX = 1e-2
STEP_GROWTH_MIN = 1.1  # a step that could grow by less than this stays as it is
STEP_GROWTH_MAX = 1.2


# ---------------------------------------------------------------------------------------------------------- nodal part


@kernel
def hourglass_modes(u):
    """How much of the four hourglass modes there is in the corner values ``u``."""
    s06 = u[0] + u[6]
    s17 = u[1] + u[7]
    s24 = u[2] + u[4]
    s35 = u[3] + u[5]
    d60 = u[6] - u[0]
    d71 = u[7] - u[1]
    d42 = u[4] - u[2]
    d53 = u[5] - u[3]
    return (
        (s06 + s17) - (s24 + s35),
        (s06 + s35) - (s17 + s24),
        (s06 + s24) - (s17 + s35),
        (d60 - d71) + (d42 - d53),
    )


@kernel
def from_hourglass_modes(h):
    """Corner values of the sum of the four modes with these amounts: the transpose of :func:`hourglass_modes`."""
    a = h[0] + h[1]
    b = h[0] - h[1]
    c = h[2] - h[3]
    d = h[2] + h[3]
    return a + c, b - c, c - a, -b - c, d - a, -b - d, a + d, b - d


@kernel
def dot8(a, u):
    """Scalar product of two 8-tuples."""
    return ((a[0] * u[0] + a[1] * u[1]) + (a[2] * u[2] + a[3] * u[3])) + (
        (a[4] * u[4] + a[5] * u[5]) + (a[6] * u[6] + a[7] * u[7])
    )


@kernel
def corner_forces(u, normal, stress, gx, gy, gz, hx, hy, hz, scale, coefficient):
    """Forces at the corners in one direction: stress on the corner's surface, and resistance to hourglass motion.

    The hourglass shape vectors γ_i - (h_i·∇V) / V are orthogonal to every linear field: the modes of the velocity ``u``
    are reduced by what a linear field with the element's shape would show. The matrix of the shape vectors is never
    formed: it is applied as it is composed.
    """
    m = hourglass_modes(u)
    wx = scale * dot8(gx, u)
    wy = scale * dot8(gy, u)
    wz = scale * dot8(gz, u)
    a0 = coefficient * (m[0] - (hx[0] * wx + hy[0] * wy + hz[0] * wz))
    a1 = coefficient * (m[1] - (hx[1] * wx + hy[1] * wy + hz[1] * wz))
    a2 = coefficient * (m[2] - (hx[2] * wx + hy[2] * wy + hz[2] * wz))
    a3 = coefficient * (m[3] - (hx[3] * wx + hy[3] * wy + hz[3] * wz))
    t = from_hourglass_modes((a0, a1, a2, a3))
    sx = scale * ((a0 * hx[0] + a1 * hx[1]) + (a2 * hx[2] + a3 * hx[3]))
    sy = scale * ((a0 * hy[0] + a1 * hy[1]) + (a2 * hy[2] + a3 * hy[3]))
    sz = scale * ((a0 * hz[0] + a1 * hz[1]) + (a2 * hz[2] + a3 * hz[3]))
    return (
        stress * normal[0] + (t[0] - (gx[0] * sx + gy[0] * sy + gz[0] * sz)),
        stress * normal[1] + (t[1] - (gx[1] * sx + gy[1] * sy + gz[1] * sz)),
        stress * normal[2] + (t[2] - (gx[2] * sx + gy[2] * sy + gz[2] * sz)),
        stress * normal[3] + (t[3] - (gx[3] * sx + gy[3] * sy + gz[3] * sz)),
        stress * normal[4] + (t[4] - (gx[4] * sx + gy[4] * sy + gz[4] * sz)),
        stress * normal[5] + (t[5] - (gx[5] * sx + gy[5] * sy + gz[5] * sz)),
        stress * normal[6] + (t[6] - (gx[6] * sx + gy[6] * sy + gz[6] * sz)),
        stress * normal[7] + (t[7] - (gx[7] * sx + gy[7] * sy + gz[7] * sz)),
    )


@kernel
def store_corners(force, axis, e, f):
    """Write the corner values ``f`` of element ``e``."""
    force[axis, 8 * e] = f[0]
    force[axis, 8 * e + 1] = f[1]
    force[axis, 8 * e + 2] = f[2]
    force[axis, 8 * e + 3] = f[3]
    force[axis, 8 * e + 4] = f[4]
    force[axis, 8 * e + 5] = f[5]
    force[axis, 8 * e + 6] = f[6]
    force[axis, 8 * e + 7] = f[7]


@kernel
def element_forces(x, v, corner, reference_volume, relative_volume, pressure, viscosity, sound_speed, force):
    """Forces that each element puts on its eight corners.

    Writes ``force[:, 8 e + corner]``. Returns the smallest volume met, which must be positive: from the Jacobian at the
    centre or the one carried along.
    """
    smallest = NO_LIMIT
    for e in prange(corner.shape[0]):
        px = at_corners(x, 0, corner, e)
        py = at_corners(x, 1, corner, e)
        pz = at_corners(x, 2, corner, e)
        dx = directional_differences(px)
        dy = directional_differences(py)
        dz = directional_differences(pz)
        central = dot((dx[1], dy[1], dz[1]), cross((dx[2], dy[2], dz[2]), (dx[0], dy[0], dz[0]))) * (1.0 / 64.0)
        volume = reference_volume[e] * relative_volume[e]
        smallest = min(smallest, min(volume, central))

        gx = volume_gradient(py, pz)
        gy = volume_gradient(pz, px)
        gz = volume_gradient(px, py)
        hx = hourglass_modes(px)
        hy = hourglass_modes(py)
        hz = hourglass_modes(pz)
        scale = 1.0 / (12.0 * volume)
        coefficient = -HOURGLASS * REFERENCE_DENSITY * sound_speed[e] * reference_volume[e] / np.cbrt(volume)
        stress = 0.125 * (pressure[e] + viscosity[e])
        fx = corner_forces(
            at_corners(v, 0, corner, e), face_normals(py, pz), stress, gx, gy, gz, hx, hy, hz, scale, coefficient
        )
        store_corners(force, 0, e, fx)
        fy = corner_forces(
            at_corners(v, 1, corner, e), face_normals(pz, px), stress, gx, gy, gz, hx, hy, hz, scale, coefficient
        )
        store_corners(force, 1, e, fy)
        fz = corner_forces(
            at_corners(v, 2, corner, e), face_normals(px, py), stress, gx, gy, gz, hx, hy, hz, scale, coefficient
        )
        store_corners(force, 2, e, fz)
    return smallest


@kernel
def sum_corners(values, node_corner, nodal):
    """Add up at each node what the corners that meet there hold: ``nodal[c, n] = Σ values[c, node_corner[n, :]]``."""
    for n in prange(node_corner.shape[0]):
        for c in range(nodal.shape[0]):
            nodal[c, n] = (
                (values[c, node_corner[n, 0]] + values[c, node_corner[n, 1]])
                + (values[c, node_corner[n, 2]] + values[c, node_corner[n, 3]])
            ) + (
                (values[c, node_corner[n, 4]] + values[c, node_corner[n, 5]])
                + (values[c, node_corner[n, 6]] + values[c, node_corner[n, 7]])
            )


@kernel
def move_nodes(force, mobility, dt, x, v):
    """Velocity and position after a step of ``dt[0]``; ``mobility`` is 1/mass, and 0 across a plane of symmetry."""
    for c in range(3):
        for n in prange(x.shape[1]):
            speed = v[c, n] + force[c, n] * mobility[c, n] * dt[0]
            speed = 0.0 if abs(speed) < VELOCITY_CUT else speed
            v[c, n] = speed
            x[c, n] += speed * dt[0]


# -------------------------------------------------------------------------------------------------------- element part


@kernel
def element_kinematics(
    x,
    v,
    dt,
    corner,
    reference_volume,
    relative_volume,
    new_volume,
    volume_change,
    length,
    strain_rate,
    velocity_gradient,
    extent,
):
    """New volumes, characteristic lengths and rates of strain, and what the monotonic viscosity needs of each element.

    Writes, per element: ``new_volume`` (relative to the reference), ``volume_change`` since ``relative_volume``,
    ``length``, ``strain_rate`` (trace of the velocity gradient at half step), and per direction ξ, η, ζ
    ``velocity_gradient`` and ``extent``. Returns the smallest new volume.
    """
    smallest = NO_LIMIT
    for e in prange(corner.shape[0]):
        px = at_corners(x, 0, corner, e)
        py = at_corners(x, 1, corner, e)
        pz = at_corners(x, 2, corner, e)
        volume = hexahedron_volume(px, py, pz)
        relative = volume / reference_volume[e]
        smallest = min(smallest, relative)
        new_volume[e] = relative
        volume_change[e] = relative - relative_volume[e]
        length[e] = 2.0 * volume / math.sqrt(largest_face_squared(px, py, pz))

        dx = directional_differences(px)
        dy = directional_differences(py)
        dz = directional_differences(pz)
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
        cxi = cross(heta, hzeta)
        ceta = cross(hzeta, hxi)
        czeta = cross(hxi, heta)
        strain_rate[e] = (dot(cxi, vxi) + dot(ceta, veta) + dot(czeta, vzeta)) / dot(heta, ceta)

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
    return smallest


@kernel
def limited_slope(here, before, after):
    """Monotonic limiter: how smooth the velocity gradient is from the neighbour before to the neighbour after."""
    norm = 1.0 / (here + TINY)
    before = before * norm
    after = after * norm
    phi = min(0.5 * (before + after), min(MONOQ_LIMITER * before, MONOQ_LIMITER * after))
    return min(max(phi, 0.0), MONOQ_SLOPE_MAX)


@kernel
def artificial_viscosity(
    velocity_gradient, own_gradient, extent, neighbor, strain_rate, reference_volume, new_volume, linear, quadratic
):
    """Linear and quadratic terms of the monotonic artificial viscosity (in compression only).

    ``own_gradient`` are the columns of ``velocity_gradient`` that belong to these elements. ``neighbor[e]`` holds the
    columns before and after the element in ξ, η, ζ: of a neighbour, of a ghost, of the element itself at a plane of
    symmetry, or of the column that is always 0 at a free surface.
    """
    for e in prange(strain_rate.shape[0]):
        gxi = own_gradient[0, e]
        geta = own_gradient[1, e]
        gzeta = own_gradient[2, e]
        phixi = limited_slope(gxi, velocity_gradient[0, neighbor[e, 0]], velocity_gradient[0, neighbor[e, 1]])
        phieta = limited_slope(geta, velocity_gradient[1, neighbor[e, 2]], velocity_gradient[1, neighbor[e, 3]])
        phizeta = limited_slope(gzeta, velocity_gradient[2, neighbor[e, 4]], velocity_gradient[2, neighbor[e, 5]])
        jxi = min(gxi * extent[0, e], 0.0)
        jeta = min(geta * extent[1, e], 0.0)
        jzeta = min(gzeta * extent[2, e], 0.0)
        density = REFERENCE_DENSITY / new_volume[e]
        expanding = strain_rate[e] > 0.0
        linear[e] = (
            0.0
            if expanding
            else -MONOQ_LINEAR * density * (jxi * (1.0 - phixi) + jeta * (1.0 - phieta) + jzeta * (1.0 - phizeta))
        )
        quadratic[e] = (
            0.0
            if expanding
            else MONOQ_QUADRATIC
            * density
            * (
                jxi * jxi * (1.0 - phixi * phixi)
                + jeta * jeta * (1.0 - phieta * phieta)
                + jzeta * jzeta * (1.0 - phizeta * phizeta)
            )
        )


@kernel
def ideal_gas_pressure(energy, bulk, volume):
    """Pressure of the gamma law gas with ``bulk`` = (γ - 1) (compression + 1)."""
    pressure = bulk * energy
    pressure = 0.0 if abs(pressure) < PRESSURE_CUT else pressure
    pressure = 0.0 if volume >= EOS_VOLUME_MAX else pressure
    return max(pressure, PRESSURE_MIN)


@kernel
def gas_sound_speed(energy, pressure, bulk, volume, gamma_minus_1):
    """Speed of sound, with a floor."""
    squared = (gamma_minus_1 * energy + volume * volume * bulk * pressure) / REFERENCE_DENSITY
    return math.sqrt(max(squared, SOUND_SPEED_SQUARED_MIN))


@kernel
def cut_energy(energy):
    """Energies too small to matter are zero, and there is a lowest one."""
    return max(0.0 if abs(energy) < ENERGY_CUT else energy, ENERGY_MIN)


@kernel
def equation_of_state(energy, pressure, viscosity, new_volume, change, linear, quadratic, gamma_minus_1):
    """Energy, pressure, viscosity and sound speed after the volume changed by ``change`` to ``new_volume``.

    The energy equation is integrated in three stages: half a step with the old pressure, the step with the pressure at
    half step, and a correction with the new pressure.
    """
    volume = min(max(new_volume, EOS_VOLUME_MIN), EOS_VOLUME_MAX)
    compression = 1.0 / volume - 1.0
    half_compression = 1.0 / (volume - 0.5 * change) - 1.0
    half_compression = compression if volume <= EOS_VOLUME_MIN else half_compression
    empty = volume >= EOS_VOLUME_MAX
    compression = 0.0 if empty else compression
    half_compression = 0.0 if empty else half_compression
    old = (0.0 if empty else pressure) + viscosity
    bulk = gamma_minus_1 * (compression + 1.0)
    half_bulk = gamma_minus_1 * (half_compression + 1.0)
    half_volume = 1.0 / (1.0 + half_compression)
    expanding = change > 0.0

    e = max(energy - 0.5 * change * old, ENERGY_MIN)
    half_pressure = ideal_gas_pressure(e, half_bulk, volume)
    q = (
        0.0
        if expanding
        else gas_sound_speed(e, half_pressure, half_bulk, half_volume, gamma_minus_1) * linear + quadratic
    )
    e = cut_energy(e + 0.5 * change * (3.0 * old - 4.0 * (half_pressure + q)))
    p = ideal_gas_pressure(e, bulk, volume)
    q_new = 0.0 if expanding else gas_sound_speed(e, p, bulk, volume, gamma_minus_1) * linear + quadratic
    e = cut_energy(e - (7.0 * old - 8.0 * (half_pressure + q) + (p + q_new)) * change * (1.0 / 6.0))
    p = ideal_gas_pressure(e, bulk, volume)
    c = gas_sound_speed(e, p, bulk, volume, gamma_minus_1)
    q = 0.0 if expanding else c * linear + quadratic
    q = 0.0 if abs(q) < VISCOSITY_CUT else q
    return e, p, q, c


@kernel
def evaluate_again(
    element, energy, pressure, viscosity, new_volume, volume_change, linear, quadratic, gamma_minus_1, result
):
    """Evaluate the equation of state of some elements for its cost alone; ``result`` has the shape (3, elements)."""
    for i in prange(element.shape[0]):
        k = element[i]
        e, p, q, _ = equation_of_state(
            energy[k],
            pressure[k],
            viscosity[k],
            new_volume[k],
            volume_change[k],
            linear[k],
            quadratic[k],
            gamma_minus_1[0],
        )
        result[0, i] = e
        result[1, i] = p
        result[2, i] = q


@kernel
def update_elements(
    linear,
    quadratic,
    new_volume,
    volume_change,
    length,
    strain_rate,
    gamma_minus_1,
    energy,
    pressure,
    viscosity,
    sound_speed,
    relative_volume,
    limits,
):
    """Equation of state, volumes, and what limits the next time step: speed of sound and strain (``limits[0]``).

    Updates ``energy``, ``pressure``, ``viscosity``, ``sound_speed``, ``relative_volume``. Returns the largest
    viscosity.
    """
    courant = NO_LIMIT
    hydro = NO_LIMIT
    largest = 0.0
    for k in prange(energy.shape[0]):
        e, p, q, c = equation_of_state(
            energy[k],
            pressure[k],
            viscosity[k],
            new_volume[k],
            volume_change[k],
            linear[k],
            quadratic[k],
            gamma_minus_1[0],
        )
        energy[k] = e
        pressure[k] = p
        viscosity[k] = q
        sound_speed[k] = c
        relative_volume[k] = 1.0 if abs(new_volume[k] - 1.0) < VOLUME_CUT else new_volume[k]
        largest = max(largest, q)

        rate = strain_rate[k]
        closing = min(rate, 0.0) * length[k]
        crossing = length[k] / math.sqrt(c * c + COURANT_QUADRATIC * closing * closing)
        courant = min(courant, NO_LIMIT if rate == 0.0 else crossing)
        hydro = min(hydro, NO_LIMIT if rate == 0.0 else VOLUME_CHANGE_MAX / (abs(rate) + 1e-20))
    limits[0, 0] = courant
    limits[0, 1] = hydro
    return largest


@serial_kernel
def limit_step(limits, step_limit):
    """The longest next time step (into ``step_limit[0]``) for the limits of all blocks, shape (blocks, 2)."""
    courant = limits[0, 0]
    hydro = limits[0, 1]
    for b in range(1, limits.shape[0]):
        courant = min(courant, limits[b, 0])
        hydro = min(hydro, limits[b, 1])
    # LULESH compares the hydrodynamic limit before it takes its share of it; the time steps depend on that.
    limit = 0.5 * courant if courant < NO_LIMIT else NO_LIMIT
    step_limit[0] = 2.0 / 3.0 * hydro if hydro < limit else limit


@serial_kernel
def advance_time(step_limit, time, dt, end_time):
    """Next time step from the limit that holds on all ranks, and the time after it."""
    new = step_limit[0]
    ratio = new / dt[0]
    new = dt[0] if ratio >= 1.0 and ratio < STEP_GROWTH_MIN else new
    new = dt[0] * STEP_GROWTH_MAX if ratio > STEP_GROWTH_MAX else new
    new = min(new, STEP_MAX)
    left = end_time - time[0]
    # Two steps of two thirds rather than a full one and a very small one.
    left = 2.0 * new / 3.0 if left > new and left < 4.0 * new / 3.0 else left
    dt[0] = min(new, left)
    time[0] += dt[0]


# ------------------------------------------------------------------------------------------------------------ messages


@kernel
def pack_nodes(field, node, first, buffer):
    """Copy a nodal field to columns ``first`` … of a message: ``buffer[i, first + c] = field[c, node[i]]``."""
    for i in prange(node.shape[0]):
        for c in range(field.shape[0]):
            buffer[i, first + c] = field[c, node[i]]


@kernel
def unpack_nodes(buffer, first, node, field):
    """Overwrite a nodal field with columns of a message: the reverse of :func:`pack_nodes`. No node occurs twice."""
    for i in prange(node.shape[0]):
        for c in range(field.shape[0]):
            field[c, node[i]] = buffer[i, first + c]


@kernel
def add_to_nodes(buffer, node, start, row, field):
    """Add to each shared node what the neighbours sent for it: rows ``row[start[i]:start[i + 1]]`` of ``buffer``."""
    for i in prange(node.shape[0]):
        for c in range(field.shape[0]):
            total = field[c, node[i]]
            for j in range(start[i], start[i + 1]):
                total += buffer[row[j], c]
            field[c, node[i]] = total


@kernel
def pack_faces(field, direction, element, buffer):
    """Copy, for each face element, the component in the direction of its face."""
    for i in prange(element.shape[0]):
        buffer[i] = field[direction[i], element[i]]
