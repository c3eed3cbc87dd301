"""NumPy programs held against NumPy: random ones, and those that `scripts/fuzz --numpy` found to compute otherwise."""

import numpy as np
import pytest
from numpy_check import Refused, examine
from numpy_programs import NARROW, Program, run, starts
from numpy_rule_cases import CROSS_IN_THE_PLANE

import ampi

FOUND = {
    "the order of results": ["a = np.add.reduceat(x.T, [0, 2], axis=1)", "b = np.ravel(a, order='A')"],
    "a real dtype for repeated elements": [
        "a = np.broadcast_arrays(np.zeros((4, *z.shape)), z)[1]",
        "b = a.var(axis=(), dtype=np.float64)",
        "c = np.sum(np.moveaxis(a, 0, 1)[::-1], axis=0, dtype=np.float64)",
    ],
    "products of vectors in the plane": ["a = np.cross(x[0, :2], x[1, :2])", "b = np.cross(x[:2, :2], x[:2, 1:3])"],
    "an empty list as an index": ["z[[]] += 3"],
    "a narrow dtype": ["a = np.nanstd(f)"],
    "a real dtype for complex numbers": [
        "a = np.cumprod(z, dtype=np.float64)",
        "b = np.prod(z, axis=0, dtype=np.float64)",
    ],
    "a scalar in many places": [
        "np.copyto(f, np.sum(f), where=f > 0)",
        "a = np.broadcast_to(x[0, 0], (2, 3)) * x[:2, :3]",
    ],
    "standard deviations in integers": [
        "a = np.std(x, dtype=np.int64)",
        "b = x.std(0, dtype=F4)",
        "c = z[0].std(dtype=int)",
    ],
    "views that cannot be written to, as targets of what they hold": [
        "a = np.r_[f, f]",
        "b = np.exp(a)",
        "c = np.broadcast_to(a, (1, 10))",
        "d = np.sin(c)",
        "np.copyto(c, c)",
        "np.copyto(c[0], c[0], where=c[0] > 1)",
    ],
    "0-d targets": ["a = np.mean(x, out=np.zeros(()))", "np.putmask(a, a > -9, a[None])", "a.flat[::-1] = a[...]"],
    "real values in complex memory": ["a = z + -1", "np.abs(a, out=a)"],
    "a 0-d array left alone": ["a = np.nan_to_num(np.mean(f, out=np.zeros(())), copy=False)"],
    "any order": ["a = np.flip(np.diag(z)).ravel('A')"],
    "flattening on the way": ["a = np.real(z).cumprod()", "b = x.T[::2].cumsum()"],
    "0-d variances": [
        "a = np.var(x[0, 0, ...])",
        "b = x[0, 0].std()",
        "c = np.var(z[0, 0])",
        "d = np.std(z[0, 0, ...])",
    ],
    "scalars in new shapes": [
        "a = np.squeeze(x[0, 0])",
        "b = np.reshape(x[0, 0], ())",
        "c = np.broadcast_to(x[0, 0], ())",
    ],
    "elements of structured arrays": [
        "v = np.zeros(3, dtype=[('p', 'f8'), ('k', 'i4'), ('q', 'f8', (2,)), ('c', 'c16')])",
        "v['p'] = x[0, :3]",
        "a = v[0]['p']",
        "b = v[1]['q']",
        "v[2]['q'] = x[1, 2:]",
        "b *= 3",
        "r = v[2]",
        "r[2] = x[2, 2]",
        "w = v[[1, 0, 0]]",
        "w[[1, 1]] = v[:2]",
        "u = v.copy()",
        "u[:] = r",
    ],
    "lists of scalars": [
        "a = np.sin([x[0, 0], x[1, 1]])",
        "b = np.multiply([2.0, x[1, 1]], [[3, 1], (x[0, 0], f[0])])",
        "c = np.add.reduce([1, f[1]])",
        "d = [x[0, 1], 1] * x[1, :2]",
    ],
    "orders in memory": [
        "a = np.sort(x.T, axis=0)",
        "b = np.partition(x[:, ::-1], 1, axis=0)",
        "c = np.sort(x, axis=None)",
        "x.T[2].partition(1)",
        "x[:, 0].sort()",
    ],
    "norms of zero": [
        "a = np.linalg.norm(x * 0, 2)",
        "b = np.linalg.norm(z * 0, 'nuc')",
        "c = np.linalg.norm(x, 2) + np.linalg.norm(z, 'nuc') + np.linalg.norm(z, -2)",
    ],
    "joined empty parts": [
        "v = np.stack([x, x], axis=-1)[1, :0:2]",
        "a = np.r_[v, v]",
        "b = np.array([z[:0].T, z[:0].T])",
    ],
    "numbers and lists of scalars": ["a = np.float64(0.5) + [x[0, 0], 2]", "b = [x[0, 1], f[0]] / np.int64(2)"],
    "values from the array itself": ["v = f.conj()", "v.flat[:-6:-2] = np.arange(5)", "f.flat[[0, 2, 4]] = x[0, :2]"],
    "scalars into given arrays": [
        "a = np.mean(np.sum(x), out=np.zeros(()))",
        "b = np.median(x[0, 0], out=np.zeros(()))",
    ],
    "elements in the order of memory": ["a = np.vectorize(lambda t: t * 2)(x.T)"],
    "grids": ["a = np.ogrid[:3, :4][1] * x", "b = np.mgrid[:2, :3][0] * z", "c = np.r_[0:2:3j, 1:3, x[0]]"],
    "broadcast": ["b = np.array([s * t for s, t in np.broadcast(x, x[0])])", "c = np.full(3, x[0, 0]).copy()"],
    "fields of elements": [
        "v = np.zeros(4, dtype=[('p', 'f8'), ('c', 'c16')])",
        "v[0]['p'] = f[2]",
        "v[1]['c'] += z[0, 1]",
    ],
    "complex powers of negative numbers": ["a = np.power(-np.abs(x), z[0, 0])", "b = np.float_power(f, z[1, 2])"],
    "copies in the order of memory": [
        "a = np.nan_to_num(z.T)",
        "b = np.nan_to_num(x.T)",
        "c = np.nan_to_num(z[:, ::-1])",
    ],
    "formulas in the order of memory": [
        "v = np.stack([z, z * 2, z], axis=1)",
        "a = np.vecdot(v.T, v.T)",
        "b = np.cross(x.T[:, :3], x.T[:, :3], axis=1)",
        "c = np.inner(x.T, x.T)",
    ],
    "the argument itself": [
        "a = np.squeeze(z)",
        "b = np.real_if_close(z)",
        "c = np.atleast_1d(x, f)[0]",
        "z.shape = (6,)",
        "x.shape = (12,)",
    ],
    "variances of numbers": ["a = np.std(np.sum(x), axis=())", "b = np.var(np.sum(z), axis=(), keepdims=True)"],
    "exponents": ["a = np.frexp(x[0, 0])[1] + np.frexp(x)[0]", "b = np.frexp(f[0])[0]"],
    "signs of zeros": ["a = np.modf(f // 2)[0]", "b = np.modf(-np.abs(f) // 2)[1]", "c = np.divmod(f, 0.7)[1]"],
    "a part of windows": ["v = np.lib.stride_tricks.sliding_window_view(x, 2, axis=1)", "v.real = v", "a = v * 2"],
    "a part of the array itself": ["a = np.imag(f)", "a.real = a[:]", "z.real = z.imag", "z.imag = [x[0, 0], 1, 2]"],
    "what is known of a number's dtype": ["a = np.finfo(x[0, 0]).eps * x", "b = np.finfo(f[0]).max * 0 + f"],
    "axes too many": ["np.copyto(f, x[:1, None, :1], where=f > 0)", "np.copyto(x[0], x[None, None, 1])"],
    "nothing into flat": ["x.flat = np.empty(0)", "z.flat[2:] = f[:0]", "a = x * 2"],
    "complex functions of real numbers": [
        "a = np.power(f - 2, f, dtype=np.complex128)",
        "b = np.arcsin(x + 3, dtype=np.complex128)",
        "c = np.sqrt(f - 2, dtype=complex)",
    ],
    "sides of cuts": [
        f"{name}_{function} = np.{function}({number})"
        for function in ("arcsin", "arccos", "arccosh", "arcsinh", "arctanh", "sqrt", "log", "log1p")
        for name, number in {
            "a": "x + 3 + 0j",
            "b": "np.conj(x + 3 + 0j)",
            "c": "x - 3 + 0j",
            "d": "np.conj(x - 3 + 0j)",
            "e": "(x + 3) * 1j",
            "g": "-np.conj((x + 3) * 1j)",
        }.items()
    ],
    "nothing into what cannot be written": [
        "v = np.diagonal(x, 5)",
        "np.concatenate([v[1:], v[:1]], out=v)",
    ],
    "lists into fields": [
        "v = np.zeros((2, 2), dtype=[('p', 'f8'), ('q', 'f8', (2,)), ('c', 'c16')])",
        "v['p'] = [x[0, 0], F4(0.25)]",
        "v['q'] = [f[0], 2]",
        "v['c'][0] = [z[0, 0], x[0, 0]]",
        "a = v['q'] * 2",
    ],
    "broadcast arrays in the order of memory": [
        "a = np.broadcast_to(f, (2, 5)).ravel('K')",
        "b = np.broadcast_to(x[:, :1], (3, 4)).ravel('K')",
        "c = np.broadcast_to(z[:, None].T, (2, 3, 1, 2)).ravel('K')",
        "d = np.broadcast_to(x.T[:, None], (4, 2, 3)).flatten('K')",
    ],
    "nothing into a diagonal": ["np.fill_diagonal(x, z[:0])", "a = np.diagonal(x)"],
    "values among what is overwritten": [
        "np.fill_diagonal(z, z[-2, :-4:-2])",
        "np.fill_diagonal(x, x[::-1, 1], True)",
        "np.place(f, np.arange(len(f)) % 3 != 1, f)",
        "np.place(x.T, x.T > 0, x[1:, ::-1].T)",
    ],
    "a place of writing that overtakes that of reading": [
        "f[::2] = f[: (len(f) + 1) // 2]",
        "a = x.ravel() * 1",
        "np.copyto(a[::-3], a[-4:][None, ::-1][0])",
        "a[1::2] = a[1:7]",
        "b = z.ravel() * 1",
        "b.imag[:2] = b.view(np.float64)[1:3]",
        "b.view(np.float64)[:4] = b.real[:4]",
        "c = np.concatenate([f, f])",
        "c[:6:2] = c[None, 4:1:-1]",
        "c[:3] = c[:5:2]",
    ],
    "joined dtypes": ["a = np.r_[x[0], z.ravel(), f, 1]"],
    "products of nothing": ["a = np.prod(x[:0], axis=())", "b = np.prod(x[:, :0], axis=0)", "c = np.prod(z[:0])"],
    "gaps in memory": ["a = np.nan_to_num(np.array([z, z]).transpose(2, 0, 1)[:, ::-1].copy(order='K'))"],
    "a flat array from itself backwards": ["a = np.heaviside(f, 0.5)", "b = a[::-1]", "a.flat = b"],
    "functions of broadcast elements": [
        "a = np.vectorize(lambda t: t * 2)(np.broadcast_to(f, (2, 5)))",
        "b = np.vectorize(lambda t: t * 2)(np.broadcast_to(np.array([z, z]), (2, 2, 2, 3)))",
        "c = np.vectorize(lambda t, s: t * s)(np.broadcast_to(f, (2, 5)), f)",
    ],
    "truth of complex numbers": ["a = (z[0, 0] + 1j).all(axis=None)", "b = z.any()", "c = np.all(z[0], axis=0)"],
    "a copy onto itself": ["a = np.imag(f)", "np.copyto(a, a[:], where=a > 0)", "np.copyto(x, x, where=x > 0)"],
    "sums of no products": ["a = np.einsum('i,i', x[0, :0], f[:1])", "b = np.einsum('ij,ij->j', x[:0], x[:1])"],
    "values among what a mask selects": [
        "f[f > -3] = f[::-1]",
        "x[x > 0] = x.T[::-1].ravel()[: np.sum(x > 0)]",
        "z[[[True, True, True], [False, True, False]]] = z.reshape(6)[4:0:-1]",
        "v = x[1]",
        "v[(v < 9,)] = v[::-1]",
    ],
    "broadcast numbers": ["a = np.nan_to_num(np.broadcast_to(f, (2, 5)))", "b = np.nan_to_num(x[:, :1].T)"],
    "any order, with gaps": [
        "a = np.ravel(np.flip(np.permute_dims(z * 2), 1), order='A')",
        "b = np.ravel(x[:, ::2].T, order='A')",
        "c = np.reshape(x[::2].T, (2, 4), order='A')",
    ],
    "parts of numbers": ["a = x[0, 0][np.array(True)]", "b = x[1, 1][np.array(False)]"],
    "parts of windows": [
        "a = np.lib.stride_tricks.sliding_window_view(f, 2)",
        "b = a[a > 0]",
        "c = a[[[True, False]] * 4]",
    ],
    "the argument itself, without elements": [
        "a = x[:0][None]",
        "b = np.asfortranarray(a)",
        "c = np.asarray(a, order='F')",
        "a.shape = (0,)",
    ],
}


@pytest.mark.parametrize("lines", FOUND.values(), ids=FOUND)
def test_found_before(lines):
    if "np.cross" in lines[0] and not CROSS_IN_THE_PLANE:
        pytest.skip("NumPy 2.5 has no products of vectors in the plane")
    assert not examine(lines)


ROUNDING_ERRORS = {
    "their angle": [
        "a = np.gradient(np.cross(z[:3], z[:3]), axis=-1)",
        "b = np.angle(np.maximum.reduce(a, axis=None))",
    ],
    "the angle of their square": [
        "a = np.cross(z[:3], z[:3])",
        "b = np.angle(np.dot(a.ravel(), a.ravel()))",
    ],
}


@pytest.mark.parametrize("lines", ROUNDING_ERRORS.values(), ids=ROUNDING_ERRORS)
def test_what_has_no_derivative_is_no_failure(lines):
    assert not examine(lines)


REFUSED = [
    "np.copyto(f, x[0, :2], where=f > 0)",
    "np.copyto(f, z, where=f > 0)",
    "np.copyto(x[0, 0], 1.0)",
    "np.place(f, f > -9, [])",
    "np.put(f, [9], x[0, 0])",
    "f.put([0], 1j)",
    "np.putmask(f, f > 0, x)",
    "np.putmask(np.diagonal(x), [True] * 3, x[0, :3])",
    "np.matmul(x[:, :1].T, x[:, :1], out=np.zeros(2))",
    "np.matmul(x.T, x, out=np.zeros((2, 2)))",
    "np.vecmat(x[:, 0], x[0])",
    "np.vecmat(x[:, 0], x, out=np.zeros(7))",
    "np.linalg.vecdot(x, x[0, 0])",
    "np.linalg.outer(x, x)",
    "np.einsum(x, [0, 52], x, [52, 2], [0, 2])",
    "np.var(x[0, 0], axis=0)",
    "np.add.reduceat(x[0, 0], [0, 2])",
    "f[:2] = [f[-3], 1j]",
    "f.flat[:2] = [f[-3], 1j]",
    "f[f > -9] = [f[-3], 1j]",
]


@pytest.mark.parametrize("line", REFUSED)
def test_what_numpy_refuses(line):
    expected, idle, recording = raised_by(line)
    assert expected is not None and expected is idle is recording


@pytest.mark.parametrize(
    "line", ["np.sin(z.real, out=z, where=z.real > 0)", "np.add(z.imag, f[:3], out=z, where=z != 0)"]
)
def test_what_is_refused_because_numpy_spoils_it(line):
    """NumPy discards the imaginary part of numbers that `where` leaves out, where an input shares their memory."""
    with pytest.raises(Refused, match="imaginary parts"):
        examine([line])


def raised_by(line):
    """The classes of errors that a line raises with NumPy, with ampi idle, and on a tape."""
    yield error_of(lambda: run([line], np, NARROW, starts()))
    yield error_of(lambda: run([line], ampi.numpy, NARROW, {n: ampi.numpy.array(v) for n, v in starts().items()}))
    with ampi.Tape() as tape:
        yield error_of(lambda: run([line], ampi.numpy, NARROW, {n: tape.watch(v).copy() for n, v in starts().items()}))


def error_of(action):
    try:
        action()
    except Exception as error:
        return type(error)
    return None


def examine_random(seeds):
    problems = {}
    for seed in seeds:
        lines = Program(seed).lines
        try:
            found = examine(lines)
        except Refused:
            continue
        if found:
            problems[seed] = [*lines, *found]
    return problems


@pytest.mark.mpi
@pytest.mark.parametrize("first", range(0, 40, 8))
def test_random_programs(first):
    """Others on each rank."""
    first += 1000 * ampi.COMM_WORLD.rank
    assert not examine_random(range(first, first + 8))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(100_000, 104_000, 400))
def test_many_random_programs(first):
    assert not examine_random(range(first, first + 400))
