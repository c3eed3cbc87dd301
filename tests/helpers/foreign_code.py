"""A catalogue of code outside ampi that reads and writes the memory of arrays, and random programs that use it.

A writer takes an array and an index, and fills the array's memory with numbers that depend only on the index.  A reader
takes an array and returns a plain array that depends on its values.
"""

import ctypes
import io
import struct
import tempfile

import h5py
import numba
import numpy
import scipy.fft
import scipy.linalg
import scipy.ndimage

N = 6


def numbers(k):
    return numpy.random.default_rng(k).uniform(0.5, 1.5, N)


@numba.njit
def _fill(target, values):
    target[:] = values


def _by_iterator(u, k):
    with numpy.nditer(u, op_flags=["readwrite"]) as it:
        for place, value in zip(it, numbers(k)):
            place[...] = value


def _by_h5py(u, k):
    with h5py.File(io.BytesIO(), "w") as file:
        file["a"] = numbers(k)
        file["a"].read_direct(u)


def _by_memoryview(u, k):
    memoryview(u)[:] = memoryview(numbers(k))


def _by_frombuffer(u, k):
    numpy.frombuffer(u)[:] = numbers(k)


def _by_buffer(u, k):
    numpy.ndarray((N,), float, u)[:] = numbers(k)


def _by_asarray(u, k):
    numpy.asarray(u)[:] = numbers(k)


def _by_plain_view(u, k):
    view = u.view(numpy.ndarray)
    view *= 0.0
    view += numbers(k)


def _by_strides(u, k):
    numpy.lib.stride_tricks.as_strided(u, (N,), (8,))[:] = numbers(k)


def _by_strides_unseen(u, k):
    view = numpy.lib.stride_tricks.as_strided(u, (N,), (8,))
    numpy.copyto(view, numbers(k))


def _by_interface(u, k):
    address = u.__array_interface__["data"][0]
    values = numbers(k)
    ctypes.memmove(address, values.ctypes.data, values.nbytes)


def _by_data(u, k):
    u.data[:] = numbers(k).data


def _by_file(u, k):
    with tempfile.TemporaryFile() as file:
        file.write(numbers(k).tobytes())
        file.seek(0)
        file.readinto(u)


def _by_scipy_overwrite(u, k):
    u[...] = numpy.asarray([1.0, 2, 3, 4, 5, 6])
    found = scipy.fft.dct(u, overwrite_x=True)
    numpy.asarray(u)[:] = numbers(k) + 0.0 * found


def _by_legacy_interface(u, k):
    u.ctypes.data_as(ctypes.POINTER(ctypes.c_double))[:N]
    ctypes.memmove(u.ctypes.data, numbers(k).ctypes.data, 8 * N)


def _by_flat_of_view(u, k):
    numpy.asarray(u).flat[:] = numbers(k)


def _by_part(u, k):
    numpy.asarray(u)[1:3] = numbers(k)[1:3]


def _by_sort(u, k):
    view = numpy.asarray(u)
    view[:] = numbers(k)
    view.sort()


SEEN = {
    "standard_normal": lambda u, k: numpy.random.default_rng(k).standard_normal(out=u),
    "standard_normal by position": lambda u, k: numpy.random.default_rng(k).standard_normal(N, float, u),
    "random": lambda u, k: numpy.random.default_rng(k).random(out=u),
    "standard_exponential": lambda u, k: numpy.random.default_rng(k).standard_exponential(out=u),
    "standard_gamma": lambda u, k: numpy.random.default_rng(k).standard_gamma(2.0, out=u),
    "permuted": lambda u, k: numpy.random.default_rng(k).permuted(numbers(k), out=u),
    "nditer": _by_iterator,
    "h5py": _by_h5py,
    "memoryview": _by_memoryview,
    "frombuffer": _by_frombuffer,
    "buffer=": _by_buffer,
    "asarray": _by_asarray,
    "plain view": _by_plain_view,
    "as_strided": _by_strides,
    "copyto as_strided": _by_strides_unseen,
    "interface": _by_interface,
    "ctypes": _by_legacy_interface,
    "data": _by_data,
    "readinto": _by_file,
    "njit": lambda u, k: _fill(u, numbers(k)),
    "scipy output": lambda u, k: scipy.ndimage.uniform_filter(numbers(k), 3, output=u),
    "scipy overwrite": _by_scipy_overwrite,
    "pack_into": lambda u, k: struct.pack_into("6d", u, 0, *numbers(k)),
    "flat of a view": _by_flat_of_view,
    "part of a view": _by_part,
    "sort of a view": _by_sort,
    "setitem": lambda u, k: numpy.ndarray.__setitem__(u, slice(None), numbers(k)),
}
"""Writers that ampi notices because they ask an array for its memory."""


def _by_blas(u, k):
    scipy.linalg.blas.dcopy(numbers(k), u)


UNSEEN = {
    "BLAS": _by_blas,
    "fill": lambda u, k: numpy.ndarray.fill(u, numbers(k)[0]),
    "put": lambda u, k: numpy.ndarray.put(u, range(N), numbers(k)),
}
"""Writers that reach into arrays without asking for anything: only checksums detect them."""


def _into_plain(x):
    plain = numpy.zeros(N)
    plain[...] = x
    return plain


def _by_name(x):
    plain = numpy.zeros(N)
    plain.__setitem__(slice(0, 3), x[:3])
    numpy.ndarray.__setitem__(plain, slice(3, None), x[3:])
    return plain


def _into_flat_by_name(x):
    plain = numpy.zeros(N)
    plain.flat.__setitem__(slice(None), x)
    return plain


def _into_part(x):
    plain = numpy.zeros(2 * N)
    plain[N:] = x
    return plain[N:]


def _into_flat(x):
    plain = numpy.zeros(N)
    plain.flat = x
    return plain


def _into_real(x):
    plain = numpy.zeros(N, complex)
    plain.real = x
    return plain.real


def _by_elements(x):
    plain = numpy.zeros(N)
    for k in range(N):
        plain[k] = x[k]
    return plain


READERS = {
    "asarray": lambda x: numpy.asarray(x) * 2.0,
    "array": lambda x: numpy.array(x) + 1.0,
    "array of list": lambda x: numpy.array([x, x])[0],
    "ascontiguousarray": lambda x: numpy.ascontiguousarray(x) * 2.0,
    "asfortranarray": lambda x: numpy.asfortranarray(x) * 2.0,
    "asanyarray": lambda x: numpy.asanyarray(x, dtype=numpy.longdouble),
    "into plain": _into_plain,
    "into part": _into_part,
    "into flat": _into_flat,
    "into plain by name": _by_name,
    "into flat by name": _into_flat_by_name,
    "into real": _into_real,
    "by elements": _by_elements,
    "memoryview": lambda x: numpy.array(memoryview(x).tolist()),
    "bytes": lambda x: numpy.frombuffer(bytes(x)),
    "frombuffer": lambda x: numpy.frombuffer(x) * 2.0,
    "tobytes": lambda x: numpy.frombuffer(x.tobytes()),
    "tolist": lambda x: numpy.array(x.tolist()),
    "nditer": lambda x: numpy.array([float(v) for v in numpy.nditer(x)]),
    "as_strided": lambda x: numpy.lib.stride_tricks.as_strided(x, (N,), (8,)) * 2.0,
    "plain view": lambda x: x.view(numpy.ndarray) * 2.0,
    "dot": lambda x: numpy.eye(N).dot(x),
    "take": lambda x: numpy.asarray(x).take(range(N)),
    "scipy.fft": lambda x: scipy.fft.dct(x),
    "scipy.ndimage": lambda x: scipy.ndimage.uniform_filter(x, 3),
    "scipy.linalg": lambda x: scipy.linalg.solve(numpy.eye(N) + 0.1, x),
    "fromiter": lambda x: numpy.fromiter(x, float),
    "from_dlpack": lambda x: numpy.from_dlpack(x) * 2.0,
    "normal": lambda x: numpy.random.default_rng(0).normal(x, 1e-3),
    "unpack": lambda x: numpy.array(struct.unpack("6d", x)),
}


class Program:
    """A program of random operations and foreign code on a few arrays.

    Its scalar result is a smooth function of the watched array, as NumPy computes it.
    """

    def __init__(self, rng, writers, readers):
        self.steps = [self._draw(rng, writers, readers) for _ in range(rng.integers(3, 9))]

    @staticmethod
    def _draw(rng, writers, readers):
        kind = rng.choice(["product", "into", "in place", "part", "write", "write", "read"])
        a, b, c = rng.choice(["u", "v", "w"], 3)
        name = rng.choice(list(writers)) if kind == "write" else rng.choice(list(readers)) if kind == "read" else ""
        return kind, str(a), str(b), str(c), str(name), int(rng.integers(1000))

    def __call__(self, np, x, writers, readers):
        """The value, computed with arrays of the namespace ``np``."""
        arrays = {"u": np.ones(N), "v": np.full(N, 0.5), "w": np.empty(N)}
        arrays["w"][...] = x
        for kind, a, b, c, name, k in self.steps:
            if kind == "product":
                arrays[a] = arrays[b] * np.sin(arrays[c])
            elif kind == "into":
                arrays[a][...] = arrays[b] * arrays[c] + x
            elif kind == "in place":
                arrays[a] *= np.cos(arrays[b])
            elif kind == "part":
                arrays[a][1:4] = arrays[b][2:5] * arrays[c][0:3]
            elif kind == "write":
                writers[name](arrays[a], k)
            else:
                arrays[a][...] = readers[name](arrays[b])
        return np.sum(arrays["u"] * arrays["v"] + np.sin(arrays["w"])) + np.sum(arrays["v"] * x)

    def __str__(self):
        return "; ".join(f"{kind} {a} {b} {c} {name!r} {k}" for kind, a, b, c, name, k in self.steps)
