"""Random programs with device arrays; the same lines also run on NumPy arrays."""

import math

import numpy as np
from numba import float64

import ampi
import ampi.cuda as cuda
from ampi.memory.storages import plain

BLOCK = 8


@cuda.jit
def squared(u, s):
    i = cuda.grid(1)
    if i < u.size:
        u[i] = u[i] * math.sin(u[i]) * s


@cuda.jit
def stencil(u, v):
    i = cuda.grid(1)
    if 0 < i < v.size - 1 and i < u.size - 1:
        v[i] = u[i - 1] * u[i] - 0.5 * u[i + 1]


@cuda.jit
def product(a, b, out):
    i = cuda.grid(1)
    if i < out.size and i < a.size and i < b.size:
        out[i] += a[i] * b[b.size - 1 - i]


@cuda.jit
def reduced(a, total):
    shared = cuda.shared.array(8, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = a[i] * a[i] if i < a.size else 0.0
    cuda.syncthreads()
    if t < 4:
        shared[t] += shared[t + 4]
    cuda.syncthreads()
    if t == 0:
        for k in range(4):
            cuda.atomic.add(total, 0, shared[k])


@cuda.jit
def fixed(v, n):
    i = cuda.grid(1)
    if i < v.size:
        v[i] = 0.1 * i + n


class Device:
    """The operations of a program, on the device."""

    to_device = staticmethod(cuda.to_device)
    new = staticmethod(cuda.device_array)

    @staticmethod
    def to_host(d):
        return d.copy_to_host()

    @staticmethod
    def into(d, x):
        d.copy_to_device(x)

    @staticmethod
    def out(d, x):
        d.copy_to_host(x)


class Host:
    """The same operations on NumPy arrays."""

    @staticmethod
    def to_device(x):
        return ampi.numpy.array(x)

    @staticmethod
    def new(shape, dtype):
        return ampi.numpy.empty(shape, dtype)

    @staticmethod
    def to_host(d):
        return d.copy()

    @staticmethod
    def into(d, x):
        d[...] = x

    @staticmethod
    def out(d, x):
        x[...] = d


class Program:
    """A random program: ``program(place)(x, s)`` is a number, where ``place`` is `Device` or `Host`."""

    def __init__(self, seed, kinds=None):
        self.seed = seed
        draw = np.random.default_rng(seed)
        self.dtype = np.float64 if draw.random() < 0.8 else np.float32
        self.x = draw.uniform(0.5, 1.5, int(draw.integers(6, 20))).astype(self.dtype)
        self.s = float(draw.uniform(0.5, 1.5))
        self.steps = [
            (str(draw.choice(kinds or STEPS)), int(draw.integers(1 << 30))) for _ in range(draw.integers(3, 12))
        ]

    def __repr__(self):
        return f"Program({self.seed}): {self.dtype.__name__} {len(self.x)} {[name for name, _ in self.steps]}"

    def __call__(self, place):
        return lambda x, s: self.run(place, x, s)

    def run(self, place, x, s):
        np_ = ampi.numpy
        arrays = [place.to_device(x)]
        host = [x * 1.0]
        total = 0.0
        for name, number in self.steps:
            draw = np.random.default_rng(number)

            def pick(draw=draw):
                d = arrays[draw.integers(len(arrays))]
                kind = draw.integers(6)
                if kind == 0 and d.size > 6:
                    return d[1 : int(draw.integers(4, d.size))]
                if kind == 1:
                    return d[::-1]
                if kind == 2 and d.size > 8:
                    return d[::2]
                return d

            def other(d, pick=pick, draw=draw):
                """An array that shares no memory with `d`."""
                x = pick()
                return place.to_device(place.to_host(x)) if np.may_share_memory(*map(sketch, (x, d))) else x

            d = pick()
            grid = -(-max(a.size for a in arrays) // BLOCK) + int(draw.integers(2)), BLOCK
            if name == "squared":
                squared[grid](d, s if draw.random() < 0.5 else 1.1)
            elif name == "stencil":
                stencil[grid](other(d), d)
            elif name == "product":
                a = other(d)
                product[grid](a, a if draw.random() < 0.3 else other(d), d)
            elif name == "reduced":
                t = place.to_device(np.zeros(1))
                reduced[grid](d, t)
                total = total + place.to_host(t)[0]
            elif name == "fixed":
                fixed[grid](d, 0.25)
            elif name == "to_device":
                h = host[draw.integers(len(host))]
                arrays.append(place.to_device(h * s if draw.random() < 0.5 else h[::-1]))
            elif name == "new":
                new = place.new(d.size, self.dtype)
                new[:] = 0.5 if draw.random() < 0.5 else d
                arrays.append(new)
            elif name == "to_host":
                host.append(place.to_host(d))
            elif name == "out":
                h = np_.zeros(d.size, self.dtype)
                place.out(d, h)
                host.append(np_.cos(h))
            elif name == "into":
                h = host[draw.integers(len(host))]
                if h.size == d.size:
                    place.into(d, h)
            elif name == "part":
                n = min(3, d.size)
                d[:n] = place.to_host(other(d))[:n] if draw.random() < 0.5 else d[d.size - n :]
            elif name == "number":
                d[int(draw.integers(d.size))] = s * s if draw.random() < 0.5 else 0.75
                d[int(draw.integers(d.size))] = d[int(draw.integers(d.size))] * 0.5
            elif name == "functions":
                arrays.append(np_.sin(d) * s + np_.where(d[::-1] > 0.5, d, d * d))
            elif name == "in place":
                d *= 0.5 if draw.random() < 0.5 else s
                d[: d.size // 2] += d[d.size - d.size // 2 :]
            elif name == "sums":
                total = total + place.to_host(np_.sum(d * d) * 0.1 + np_.max(d) + np_.mean(d))
            elif name == "products":
                matrix = np_.stack([d, d[::-1] * 0.5])
                arrays.append(np_.concatenate([matrix @ d * 0.1, d[2:]]) if d.size > 4 else d + 0.1)
            elif name == "keys":
                places = draw.permutation(d.size)[:3]
                arrays.append(d[draw.integers(0, d.size, d.size + 1)])
                d[places] = d[places[::-1]] * 0.75
            elif name == "passive":
                with ampi.passive():
                    fixed[grid](d, 0.5)
        for k, d in enumerate(arrays + host):
            h = place.to_host(d) if k < len(arrays) else d
            total = total + np_.sum(np_.cos(h) * np.linspace(0.3, 1.0, h.size)) * 0.5**k
        return total + 0.0 * s


FUNCTIONS = ["functions", "in place", "sums", "products", "keys"]  # of NumPy, which have no second derivatives here
STEPS = (
    "squared stencil product reduced fixed to_device new to_host out into part number squared stencil product passive"
).split() + FUNCTIONS


def sketch(array):
    return array.sketch() if hasattr(array, "sketch") else plain(array)
