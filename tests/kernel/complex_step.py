"""Derivatives of CUDA kernels by complex step: a launch is interpreted with numbers that have an imaginary part.

This uses nothing of the differentiator and has no cancellation errors.
"""

import cmath
import math

import numpy as np

from ampi.kernel.cuda import interpreter
from ampi.kernel.cuda.memory_model import Memory, Watched

STEP = 1e-30


class Step:
    """A real number whose imaginary part holds the derivative; comparisons use the real parts."""

    __slots__ = ("z",)
    __array_ufunc__ = None  # NumPy's numbers leave arithmetic to this class

    def __init__(self, z):
        self.z = complex(z)

    def __add__(self, other):
        return Step(self.z + part(other))

    def __sub__(self, other):
        return Step(self.z - part(other))

    def __rsub__(self, other):
        return Step(part(other) - self.z)

    def __mul__(self, other):
        return Step(self.z * part(other))

    def __truediv__(self, other):
        return Step(self.z / part(other))

    def __rtruediv__(self, other):
        return Step(part(other) / self.z)

    def __pow__(self, exponent):
        return Step(self.z**exponent)

    def __neg__(self):
        return Step(-self.z)

    def __abs__(self):
        return -self if self.z.real < 0 else self

    def __lt__(self, other):
        return self.z.real < part(other).real

    def __le__(self, other):
        return self.z.real <= part(other).real

    def __gt__(self, other):
        return self.z.real > part(other).real

    def __ge__(self, other):
        return self.z.real >= part(other).real

    def __int__(self):
        return int(self.z.real)

    def __bool__(self):
        return self.z.real != 0

    __radd__, __rmul__ = __add__, __mul__


def part(value):
    return value.z if isinstance(value, Step) else complex(value)


class Functions:
    """``math`` for such numbers."""

    def __getattr__(self, name):
        of_real, of_complex = getattr(math, name), getattr(cmath, name, None)
        if not callable(of_real):
            return of_real
        return lambda x: Step(of_complex(x.z)) if isinstance(x, Step) else of_real(x)


class Names(interpreter._Namespace):
    """``cuda`` for such numbers: arrays of floating-point numbers hold objects."""

    def new(self, shape, dtype, site, private):
        found = super().new(shape, dtype, site, private)
        if found.dtype.kind != "f":
            return found
        data = np.full(shape, np.nan, object)
        return Watched.of(Memory(found.memory.name, data, False, self.launch, private))


class Launch(interpreter._Launch):
    """An interpreted launch with such numbers."""

    namespace = property(lambda self: self._names, lambda self, _: setattr(self, "_names", Names(self)))

    def seen(self, value):
        return Functions() if value is math else super().seen(value)


def slope(launch, given, active, directions, weights, order=None):
    """The derivative of the weighted sum of arrays after a launch, along directions of the active arguments."""
    values = []
    for k, v in enumerate(given):
        if k in weights:
            moved = np.zeros(v.shape) if k not in active else directions[active.index(k)]
            objects = np.empty(v.shape, object)
            for place in np.ndindex(v.shape):
                objects[place] = Step(complex(v[place], STEP * moved[place]))
            v = objects
        elif isinstance(v, np.ndarray):
            v = v.copy()
        values.append(v)
    Launch(launch.kernel.py_func, launch.grid, launch.block, launch.shared, order).run(tuple(values))
    return sum(float(w[p]) * part(values[k][p]).imag for k, w in weights.items() for p in np.ndindex(w.shape)) / STEP
