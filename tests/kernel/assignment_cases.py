"""Kernels with assignments inside expressions, and named slices; part of `language_cases`."""

import math

import numpy as np
from language_cases import case, x, y


@case(x, 6)
def assigned_in_conditions(a, n):
    s = a[0]
    while (n := n - 1) > 0 and (r := s * a[n % 3]) < 3.0:
        s += r
        if (t := math.sin(s)) > 0.5:
            s *= t
        elif n > 2 and (u := t * a[1]) < 0.3:
            s -= u
    return s * n + t


@case(x, y)
def assigned_in_expressions(a, b):
    s = (c := a[1]) * c + b[0]
    for v in a:
        s = s + (s := math.sin(s * v)) * s + (w := v * s if v > 0.75 else (z := v) * 3.0)
        b[1] = (k := b[1] * w) + k * s
    q = a[0] if (p := a * b)[1] > 9.0 else p[2]
    return s * q + (p := b[2]) * p


@case(x)
def assigned_in_comprehensions(a):
    b = [y * v for v in a if (y := v * v) > 0.3]
    return sum(b) * y + max(0.5, m := a[2] * b[0]) * m


@case(np.outer(x, y), 0.3, 1)
def slices_with_names(m, angle, axis):
    if axis == 0:
        part = slice(1, 3, 1)
    elif axis == 1:
        part = slice(0, 3, 2)
        angle = -angle
    else:
        part = slice(0, 2, 1)
    r = np.eye(3)
    c, s = math.cos(angle), math.sin(angle)
    r[part, part] = np.array(((c, -s), (s, c)))
    back, first = slice(None, None, -1), slice(2)
    return r @ m[:3, 1], m[back, axis] * m[part.start, first][0], c * s
