"""NumPy's functions on device arrays: all cases of the table of rules, compared with the same on arrays of the host.

A case gives the same values, gradients and tangents, or is refused by name; nothing on the device is ever read by the
host, on a device that computes with NumPy and on one with (a stand-in of) CuPy.
"""

import gc

import fake_cupy
import guarded_device
import numpy as np
import pytest
from numpy_rule_cases import CASES

import ampi
import ampi.cuda as cuda
import ampi.numpy as anp
from ampi import ActivityError, KernelError
from ampi.arrays import elementwise
from ampi.base.structures import leaves
from ampi.device import backends, functions, operations
from ampi.device.arrays import DeviceArray

DEVICES = {"numpy": guarded_device.Guarded, "cupy": fake_cupy.FakeGpu}


@pytest.fixture(params=DEVICES)
def device(request):
    before = backends.choose(DEVICES[request.param]())
    yield request.param
    backends.choose(before)


def _name(function):
    module = getattr(function, "__module__", None) or "numpy"
    prefix = "linalg." if "linalg" in module else "fft." if "fft" in module else ""
    return prefix + function.__name__


NAMES = {_name(f) for f in functions.RULES} | {f.__name__ for f in elementwise.RULES if hasattr(np, f.__name__)}
NAMES |= {"matmul", "add.reduce", "multiply.reduce", "maximum.reduce", "minimum.reduce", "add.accumulate"}
NAMES |= {"multiply.accumulate", "multiply.outer", "add.at", "astype"}


def test_every_rule_has_a_case():
    assert sorted(NAMES - set(CASES)) == []


def weights(r, k):
    draw = np.random.default_rng(k + r.size)
    w = draw.normal(size=r.shape)
    return w + 1j * draw.normal(size=r.shape) if r.dtype.kind == "c" else w


def loss(f, on_device):
    def run(*xs):
        total = 0.0
        for k, r in enumerate(leaves(f(*[cuda.to_device(x) for x in xs] if on_device else xs))):
            if isinstance(r, DeviceArray):
                r = r.copy_to_host()
            if isinstance(r, ampi.ndarray) and r.dtype.kind in "fc":
                total = total + np.sum((r * np.conj(weights(r, k))).real)
        return total + 0.0 * np.sum(xs[0].real)

    return run


def outcome(c, kind):
    """Whether a case has the same derivatives on the device; "refused" if it has none there."""
    x = c.arguments(np.float64 if kind == "f" else np.complex128)
    draw = np.random.default_rng(3)
    dots = [draw.normal(size=a.shape) * (1 if kind == "f" else 1 - 0.4j) for a in x]
    both = []
    for on_device in (False, True):
        run = loss(c.f, on_device)
        try:
            value, bars = ampi.value_and_grad(run, argnums=tuple(range(len(x))))(*x)
            both.append([value, *bars, ampi.jvp(run, tuple(x), tuple(dots))[1]])
        except (ActivityError, KernelError) as error:
            assert on_device or "no derivative" in str(error)
            return "refused"
        except AttributeError as error:
            assert on_device and "object has no attribute" in str(error)
            return "refused"
    for one, other in zip(*both):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)
    return "equal"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_cases(name, device, request, monkeypatch):
    """Constants of the host, which many cases have, are copied to the device here, as programs must do."""
    slow = request.config.getoption("--slow")
    if not slow and device == "numpy" and len(name) % 4:
        pytest.skip("a sample in quick runs")
    monkeypatch.setattr(operations, "_of_host", lambda x, name: cuda.to_device(x))
    kinds = "fc" if slow or len(name) % 3 == 0 else "f"
    found = [outcome(c, kind) for c in CASES[name] for kind in kinds if kind in c.kinds]
    assert name not in NAMES or "equal" in found or not found


# ------------------------------------------------------------------------------------------------ what programs do


class Host:
    """Arrays of the host: `KeyProgram` runs on these, and on those of `Device`."""

    new = staticmethod(anp.array)
    back = staticmethod(lambda r: r)


class Device:
    new = staticmethod(cuda.to_device)
    back = staticmethod(lambda d: d.copy_to_host())


def program(seed, dtype, place):
    """Views, keys of all kinds, assignments to and through them, broadcasting, and operators in place."""

    def run(x):
        draw = np.random.default_rng(seed)
        a, b = place.new(x) * 1.5, place.new(np.ones((6, 4), dtype)) * 0.5
        for step in draw.permutation(12):
            rows, columns = draw.integers(0, 4, 5), draw.permutation(6)[:3]
            mask = place.new(draw.random((4, 6)) < 0.5)
            views = a, a[::-1], a[:, ::2], a.T, a[1:3], a.reshape(2, 12), a[None, 2:, 1:], np.moveaxis(a, 0, 1)
            view = views[draw.integers(len(views))]
            if step == 0:
                b[2] = a[:, 1] * a[0, 2, ...]
            elif step == 1:
                b[np.unique(rows)] += 0.25 * b[0]
            elif step == 2:
                a[:, columns] = b[columns].T * 2
            elif step == 3:
                a[mask] *= 0.5
            elif step == 4:
                view *= 1.25
            elif step == 5:
                b += np.sum(view) * 0.01
            elif step == 6:
                a[...] = np.where(mask, a * a, 0.75)
            elif step == 7:
                b = np.concatenate([b[:3] * b[3:], a.T[:3]])
            elif step == 8:
                b[:, :2] = np.mean(view.real) + b[:, 2:]
            elif step == 9:
                np.add.at(a.real, (rows[rows < 4], rows[::-1]), np.broadcast_to(b.real[0, 1, ...], 5))
            elif step == 10:
                b[rows] = a.T[:5] * 0.75  # the last one of a row's values remains
            elif step == 11:
                b[rows, rows[::-1] % 4] = b[0, 0] if seed % 2 else b[rows, 1] * b[0][rows % 4]
        return place.back(np.sum((np.cos(a) @ b).real))

    return run


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
@pytest.mark.parametrize("seed", [*range(4), *[pytest.param(k, marks=pytest.mark.slow) for k in range(4, 200)]])
def test_layouts_and_keys(seed, dtype, device):
    draw = np.random.default_rng(seed)
    x = draw.uniform(0.5, 1.5, (4, 6)).astype(dtype)
    single = dtype == "f4"
    value, bar = ampi.value_and_grad(program(seed, dtype, Host))(x)
    near = {"rtol": 2e-4 if single else 1e-10, "atol": (1e-4 if single else 1e-11) * np.abs(bar).max()}
    found, bar_found = ampi.value_and_grad(program(seed, dtype, Device))(x)
    np.testing.assert_allclose(found, value, rtol=near["rtol"])
    np.testing.assert_allclose(bar_found, bar, **near)
    v = draw.normal(size=x.shape).astype(dtype)
    slope = ampi.jvp(program(seed, dtype, Device), (x,), (v,))[1]
    np.testing.assert_allclose(slope, np.sum((np.conj(bar) * v).real), rtol=near["rtol"], atol=24 * near["atol"])
    with ampi.Tape(tangents=True) as tape:
        a = tape.watch(x)
        y = program(seed, dtype, Device)(a)
    np.testing.assert_allclose(tape.tangent(y, a, v), slope, rtol=near["rtol"], atol=24 * near["atol"])
    np.testing.assert_allclose(tape.gradient(y, a), bar, **near)
    np.testing.assert_allclose(tape.gradient(y, a, seeds=np.array([1.0, -2.0]))[1], -2 * bar, **near)


def test_memory_of_a_freed_array_is_not_mistaken(device):
    """A new array of another package at the address of an earlier one has no derivative."""
    one = backends.device()
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(4.0))
        theirs = one.array(cuda.to_device(np.zeros(4))) if device == "cupy" else None
        if theirs is None:
            pytest.skip("arrays of the host's NumPy are no arrays on a device")
        address = theirs.ptr
        d = cuda.as_cuda_array(theirs)
        d[...] = cuda.to_device(x)
        y = np.sum(d * d).copy_to_host()
        del d, theirs
        gc.collect()
        assert any(block.address == address for block in one.blocks), "the tape keeps it"
    np.testing.assert_allclose(tape.gradient(y, x), 2 * np.arange(4.0))


def test_numbers_of_the_host(device):
    """Scalars with derivatives on the host are operands."""

    def run(x, s):
        d = cuda.to_device(x)
        d[1:3] = s
        d[0] = s * 2.0
        return np.sum(s * d + d / s).get()

    bar, s_bar = ampi.grad(run, argnums=(0, 1))(np.arange(1.0, 5.0), 0.5)
    np.testing.assert_allclose(bar, [0, 0, 0, 2.5])
    h = 1e-6
    value = lambda s: float(run(np.arange(1.0, 5.0), s))
    np.testing.assert_allclose(s_bar, (value(0.5 + h) - value(0.5 - h)) / (2 * h), rtol=1e-8)


REFUSED = {
    "a function": (lambda d: np.partition(d, 1), ActivityError, "numpy.partition has no derivative rule for arrays on"),
    "an array of the host": (
        lambda d: d * np.ones(4),
        KernelError,
        r"shape \(4,\) is on the host.*ampi.cuda.to_device",
    ),
    "of the host, on the left": (lambda d: np.ones(4) * d, KernelError, r"shape \(4,\) is on the host"),
    "of the host, with derivatives": (lambda d: d.get() * d, KernelError, r"shape \(4,\) is on the host"),
    "joined": (lambda d: np.concatenate([d, np.ones(4)]), KernelError, r"concatenate: one array of shape \(4,\)"),
    "float": (lambda d: float(np.sum(d)), ActivityError, r"float\(\) of an array on a device drops its derivative"),
    "asarray": (np.asarray, ActivityError, "drops its derivative"),
    "into the host": (lambda d: np.sin(d, out=anp.zeros(4)), ActivityError, "with an argument out on the host"),
    "where": (lambda d: np.sin(d, where=d > 0), ActivityError, r"numpy.sin has no derivative rule .*numpy.where"),
    "in place": (lambda d: np.putmask(d, d > 0, d), ActivityError, "which overwrites an argument"),
    "key": (lambda d: d[1.5:], (KernelError, TypeError), "slice"),
    "a float as key": (lambda d: d[1.5], KernelError, "indexed by float"),
    "save": (lambda d: np.save("x", d), ActivityError, "numpy.save has no derivative rule"),
    "kept part": (lambda d: np.reshape(d, (2, 2), order="A"), ActivityError, "order='A'"),
    "complex": (lambda d: np.sum(d + 1j, dtype=float), ActivityError, "discards imaginary parts"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, device):
    function, error, text = REFUSED[what]
    with pytest.raises(error, match=text):
        ampi.grad(lambda x: np.sum(function(cuda.to_device(x))).get())(np.arange(1.0, 5.0))


@pytest.mark.parametrize("device", ["cupy"], indirect=True)
def test_arrays_of_cupy(device):
    """Arrays of CuPy are constants; in functions of their own package, derivatives would be lost."""
    one = backends.device()
    theirs = lambda values: one.library.asarray(values.tolist())
    c = theirs(np.arange(1.0, 5.0))

    def run(x):
        d = cuda.to_device(x) * c
        d += c
        e = np.where(c > 2, d, c)
        return np.sum(np.stack([e, c]) @ e).get()

    def host(x):
        c = np.arange(1.0, 5.0)
        d = x * c + c
        e = np.where(c > 2, d, c)
        return np.sum(np.stack([e, c]) @ e)

    x = np.linspace(0.5, 1.5, 4)
    np.testing.assert_allclose(ampi.grad(run)(x), ampi.grad(host)(x), rtol=1e-12)
    lost = lambda d: c * d, lambda d: one.library.asarray(d), lambda d: c.__setitem__(..., d)
    for function in lost:
        with pytest.raises(ActivityError, match="carries derivatives is passed to another package"):
            ampi.grad(lambda x, function=function: np.sum(function(cuda.to_device(x))).get())(x)
    d = cuda.to_device(x)
    assert type(c * d).__name__ == "ndarray"  # CuPy's, as nothing records
    np.testing.assert_allclose((d * c).get(), x * c.get())
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(c)


def test_constants_and_methods(device):
    x = np.arange(12.0).reshape(3, 4) / 7

    def run(x):
        d = cuda.to_device(x)
        k = np.argmax(d, axis=1)
        assert isinstance(k, DeviceArray) and k.dtype.kind == "i"
        picked = d[np.arange(3), k]
        assert bool(np.all(d >= 0)) and int(np.count_nonzero(d)) == 11
        order = np.argsort(-d.ravel())
        total = d.sum(axis=0).dot(d.mean(axis=0)) + picked.prod() + d.ravel()[order][:3].std() + d.max() - d.min()
        zeros = np.zeros_like(d)
        zeros[1] = d[2]
        return (total + zeros.astype(np.float32).sum() + d.flatten()[4]).get()

    def host(x):
        k = np.argmax(x, axis=1)
        picked = x[np.arange(3), k]
        order = np.argsort(-x.ravel())
        total = x.sum(axis=0).dot(x.mean(axis=0)) + picked.prod() + x.ravel()[order][:3].std() + x.max() - x.min()
        return total + x[2].sum() + x.flatten()[4]

    np.testing.assert_allclose(ampi.grad(run)(x), ampi.grad(host)(x), rtol=1e-6, atol=1e-7)


def test_a_copy_keeps_derivatives(device):
    run = lambda x: np.sum(cuda.to_device(x).copy() ** 2).get()
    np.testing.assert_allclose(ampi.grad(run)(np.arange(3.0)), 2 * np.arange(3.0))
    d = cuda.to_device(np.arange(3.0))
    d.fill(2.0)
    np.testing.assert_allclose(d.get(), 2.0)


def test_a_gpu_without_cupy(monkeypatch):
    one = backends.Gpu.__new__(backends.Gpu)
    one.is_simulated = False
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(KernelError, match="needs CuPy, which is not installed"):
        _ = one.library


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", "median nanmax nanmin nansum nanprod max min ptp sort std cumprod argmax".split())
def test_not_a_number(name, axis, device):
    """Values are those of arrays on the host, where elements are NaN, alone or with others."""
    a = np.array([[1.0, np.nan, 3.0], [2.0, 5.0, 4.0], [np.nan, np.nan, np.nan]])
    function = getattr(anp, name)
    np.testing.assert_array_equal(np.asarray(Device.back(function(Device.new(a), axis=axis))), function(a, axis=axis))
