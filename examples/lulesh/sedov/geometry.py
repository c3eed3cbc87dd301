"""Geometry of a hexahedron: volumes, areas, and derivatives of the volume.

The corners of an element are numbered as in LULESH: 0 1 2 3 go round the face ζ = -1, starting at the corner with the
smallest node number, 4 5 6 7 round the face ζ = +1 above it::

        7 ---- 6          ζ  η
       /|     /|          | /
      4 ---- 5 |          |/
      | 3 ---| 2          o --- ξ
      |/     |/
      0 ---- 1

Values at the eight corners are a tuple of eight scalars.
"""

from .backend import kernel, prange


@kernel
def at_corners(field, axis, corner, e):
    """Component ``axis`` of a nodal field at the corners of element ``e``."""
    return (
        field[axis, corner[e, 0]],
        field[axis, corner[e, 1]],
        field[axis, corner[e, 2]],
        field[axis, corner[e, 3]],
        field[axis, corner[e, 4]],
        field[axis, corner[e, 5]],
        field[axis, corner[e, 6]],
        field[axis, corner[e, 7]],
    )


@kernel
def cross(a, b):
    """Vector product of two 3-tuples."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@kernel
def dot(a, b):
    """Scalar product of two 3-tuples."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@kernel
def directional_differences(u):
    """Eight times the derivatives of ``u`` with respect to ξ, η, ζ at the centre of the element."""
    d60 = u[6] - u[0]
    d71 = u[7] - u[1]
    d42 = u[4] - u[2]
    d53 = u[5] - u[3]
    return (d60 - d71) + (d53 - d42), (d60 + d71) - (d53 + d42), (d60 + d71) + (d53 + d42)


@kernel
def face_normals(y, z):
    """Eight times the normals, in direction x, of the surface that each corner has a share in.

    A corner has a quarter of each of its three faces. Exchange the arguments cyclically for the directions y and z.
    """
    f0 = (y[3] - y[1]) * (z[2] - z[0]) - (z[3] - z[1]) * (y[2] - y[0])  # 0 1 2 3
    f1 = (y[1] - y[4]) * (z[5] - z[0]) - (z[1] - z[4]) * (y[5] - y[0])  # 0 4 5 1
    f2 = (y[2] - y[5]) * (z[6] - z[1]) - (z[2] - z[5]) * (y[6] - y[1])  # 1 5 6 2
    f3 = (y[3] - y[6]) * (z[7] - z[2]) - (z[3] - z[6]) * (y[7] - y[2])  # 2 6 7 3
    f4 = (y[0] - y[7]) * (z[4] - z[3]) - (z[0] - z[7]) * (y[4] - y[3])  # 3 7 4 0
    f5 = (y[5] - y[7]) * (z[6] - z[4]) - (z[5] - z[7]) * (y[6] - y[4])  # 4 7 6 5
    return (
        f0 + f1 + f4,
        f0 + f1 + f2,
        f0 + f2 + f3,
        f0 + f3 + f4,
        f5 + f1 + f4,
        f5 + f1 + f2,
        f5 + f2 + f3,
        f5 + f3 + f4,
    )


@kernel
def volume_derivative(y0, y1, y2, y3, y4, y5, z0, z1, z2, z3, z4, z5):
    """Twelve times the derivative of the volume with respect to one corner's x, from six of the other corners."""
    return (
        (y1 + y2) * (z0 + z1)
        - (y0 + y1) * (z1 + z2)
        + (y0 + y4) * (z3 + z4)
        - (y3 + y4) * (z0 + z4)
        - (y2 + y5) * (z3 + z5)
        + (y3 + y5) * (z2 + z5)
    )


@kernel
def volume_gradient(y, z):
    """Twelve times the derivatives of the volume with respect to the corners' x. Exchange cyclically for y and z."""
    return (
        volume_derivative(y[1], y[2], y[3], y[4], y[5], y[7], z[1], z[2], z[3], z[4], z[5], z[7]),
        volume_derivative(y[2], y[3], y[0], y[5], y[6], y[4], z[2], z[3], z[0], z[5], z[6], z[4]),
        volume_derivative(y[3], y[0], y[1], y[6], y[7], y[5], z[3], z[0], z[1], z[6], z[7], z[5]),
        volume_derivative(y[0], y[1], y[2], y[7], y[4], y[6], z[0], z[1], z[2], z[7], z[4], z[6]),
        volume_derivative(y[7], y[6], y[5], y[0], y[3], y[1], z[7], z[6], z[5], z[0], z[3], z[1]),
        volume_derivative(y[4], y[7], y[6], y[1], y[0], y[2], z[4], z[7], z[6], z[1], z[0], z[2]),
        volume_derivative(y[5], y[4], y[7], y[2], y[1], y[3], z[5], z[4], z[7], z[2], z[1], z[3]),
        volume_derivative(y[6], y[5], y[4], y[3], y[2], y[0], z[6], z[5], z[4], z[3], z[2], z[0]),
    )


@kernel
def difference(x, y, z, i, j):
    """The vector from corner ``j`` to corner ``i``."""
    return x[i] - x[j], y[i] - y[j], z[i] - z[j]


@kernel
def hexahedron_volume(x, y, z):
    """Volume of the element with these corners."""
    a = x[3] - x[1] + x[7] - x[2], y[3] - y[1] + y[7] - y[2], z[3] - z[1] + z[7] - z[2]
    b = x[4] - x[3] + x[5] - x[7], y[4] - y[3] + y[5] - y[7], z[4] - z[3] + z[5] - z[7]
    c = x[1] - x[4] + x[2] - x[5], y[1] - y[4] + y[2] - y[5], z[1] - z[4] + z[2] - z[5]
    d63 = x[6] - x[3], y[6] - y[3], z[6] - z[3]
    d20 = x[2] - x[0], y[2] - y[0], z[2] - z[0]
    d64 = x[6] - x[4], y[6] - y[4], z[6] - z[4]
    d70 = x[7] - x[0], y[7] - y[0], z[7] - z[0]
    d61 = x[6] - x[1], y[6] - y[1], z[6] - z[1]
    d50 = x[5] - x[0], y[5] - y[0], z[5] - z[0]
    return (dot(a, cross(d63, d20)) + dot(b, cross(d64, d70)) + dot(c, cross(d61, d50))) * (1.0 / 12.0)


@kernel
def face_area_squared(x0, x1, x2, x3, y0, y1, y2, y3, z0, z1, z2, z3):
    """Square of twice the area that the diagonals of a face span."""
    normal = cross((x2 - x0, y2 - y0, z2 - z0), (x3 - x1, y3 - y1, z3 - z1))
    return dot(normal, normal)


@kernel
def largest_face_squared(x, y, z):
    """The largest :func:`face_area_squared` of the six faces."""
    return max(
        max(
            max(
                face_area_squared(x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3], z[0], z[1], z[2], z[3]),
                face_area_squared(x[4], x[5], x[6], x[7], y[4], y[5], y[6], y[7], z[4], z[5], z[6], z[7]),
            ),
            max(
                face_area_squared(x[0], x[1], x[5], x[4], y[0], y[1], y[5], y[4], z[0], z[1], z[5], z[4]),
                face_area_squared(x[1], x[2], x[6], x[5], y[1], y[2], y[6], y[5], z[1], z[2], z[6], z[5]),
            ),
        ),
        max(
            face_area_squared(x[2], x[3], x[7], x[6], y[2], y[3], y[7], y[6], z[2], z[3], z[7], z[6]),
            face_area_squared(x[3], x[0], x[4], x[7], y[3], y[0], y[4], y[7], z[3], z[0], z[4], z[7]),
        ),
    )


@kernel
def reference_volumes(x, corner, volume):
    """Volume of every element of the undisturbed mesh."""
    for e in prange(corner.shape[0]):
        volume[e] = hexahedron_volume(
            at_corners(x, 0, corner, e), at_corners(x, 1, corner, e), at_corners(x, 2, corner, e)
        )
