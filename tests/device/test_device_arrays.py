"""Arrays on a device: copies, views, arrays of other packages, and everything that is refused, by name."""

import copy
import pickle

import guarded_device
import numpy as np
import pytest
from numba import config
from uncompiled import in_a_process, in_python, run_in_python

import ampi
import ampi.cuda as cuda
import ampi.numpy as anp
from ampi import ActivityError, CommunicationError, KernelError, TapeError
from ampi.device import backends

compiled = pytest.mark.skipif(config.DISABLE_JIT, reason="time loops need compiled code")


@compiled
def test_in_python(request):
    """Most tests here are run in a process of their own in which nothing is compiled, which would take far longer."""
    run_in_python(__file__, request)


@pytest.fixture(autouse=True)
def device():
    """A device whose memory ends the process that touches it."""
    before = backends.choose(guarded_device.Guarded())
    yield
    backends.choose(before)


class Foreign:
    """An array of another package on the device."""

    def __init__(self, device, values, strides=None):
        self.device = device
        address, self.owner = device.empty(values.nbytes)
        self.__cuda_array_interface__ = {
            "shape": values.shape,
            "typestr": values.dtype.str,
            "descr": values.dtype.descr,
            "strides": strides,
            "data": (address, False),
            "version": 3,
        }
        with device.reach():
            self._plain()[...] = values

    def _plain(self):
        interface = self.__cuda_array_interface__
        dtype = np.dtype(interface["typestr"])
        return backends.array_at(
            interface["data"][0], interface["shape"], np.empty(interface["shape"], dtype).strides, dtype
        )

    def values(self):
        with self.device.reach():
            return self._plain().copy()


@cuda.jit
def doubled(u):
    i = cuda.grid(1)
    if i < u.shape[0]:
        u[i] = 2 * u[i]


@cuda.jit
def scaled(u, v, s):
    i = cuda.grid(1)
    if i < u.shape[0]:
        v[i] = u[i] * s


@in_python
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "i4", "?"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 0), (2, 3, 2, 2)])
def test_copies(shape, dtype, order):
    x = np.asarray(np.random.default_rng(1).integers(0, 9, shape).astype(dtype), order=order)
    d = cuda.to_device(x)
    assert (d.shape, d.dtype, d.size, d.ndim, d.nbytes) == (x.shape, x.dtype, x.size, x.ndim, x.nbytes)
    assert d.flags.f_contiguous == x.flags.f_contiguous and d.is_c_contiguous() == x.flags.c_contiguous
    np.testing.assert_array_equal(ampi.value(d.copy_to_host()), x)
    twin = cuda.device_array_like(d)
    twin.copy_to_device(d)
    target = np.empty_like(x)
    twin.copy_to_host(target)
    np.testing.assert_array_equal(target, x)
    np.testing.assert_array_equal(ampi.value(d.T.copy_to_host()), x.T)
    np.testing.assert_array_equal(np.asarray(d), x)


@in_python
@pytest.mark.parametrize(
    "key", [0, -1, (1, 2), slice(1, 3), (slice(None), 1), (..., -1), (slice(None, None, -2), None)]
)
def test_parts(key):
    x = np.arange(12.0).reshape(4, 3)
    d = cuda.to_device(x)
    found = d[key]
    assert isinstance(found, float) if np.ndim(x[key]) == 0 else isinstance(found, type(d))
    np.testing.assert_array_equal(found if np.ndim(x[key]) == 0 else ampi.value(found.copy_to_host()), x[key])
    d[key] = 7.0
    x[key] = 7.0
    np.testing.assert_array_equal(ampi.value(d.copy_to_host()), x)
    d[key] = x[key] + 1
    x[key] += 1
    np.testing.assert_array_equal(ampi.value(d.copy_to_host()), x)
    np.testing.assert_array_equal(ampi.value(d.reshape(3, 4).copy_to_host()), x.reshape(3, 4))


@in_python
def test_overlapping_parts():
    x = np.arange(6.0)
    d = cuda.to_device(x)
    d[1:] = d[:-1]
    np.testing.assert_array_equal(ampi.value(d.copy_to_host()), [0, 0, 1, 2, 3, 4])

    def loss(x):
        d = cuda.to_device(x)
        d[1:] = d[:-1]
        return anp.sum(d.copy_to_host() * np.arange(6.0))

    np.testing.assert_array_equal(ampi.grad(loss)(x), [1, 2, 3, 4, 5, 0])


@in_python
def test_of_another_package():
    """Arrays of other packages are tracked once they have been given to as_cuda_array."""
    one = backends.device()
    x = np.arange(1.0, 5.0)
    theirs = Foreign(one, x)
    ours = cuda.as_cuda_array(theirs)
    assert cuda.as_cuda_array(theirs).storage is ours.storage

    def loss(x):
        ours.copy_to_device(x)
        doubled[1, 4](ours)
        return anp.sum(ours.copy_to_host() ** 2)

    np.testing.assert_array_equal(ampi.grad(loss)(x), 8 * x)
    np.testing.assert_array_equal(theirs.values(), 2 * x)
    doubled[1, 4](theirs)  # nothing is recorded
    np.testing.assert_array_equal(theirs.values(), 4 * x)

    def constant(x):
        d, out = cuda.to_device(x), cuda.device_array(4)
        scaled[1, 4](d, out, 3.0)
        scaled[1, 4](theirs, d, 1.0)
        return anp.sum(out.copy_to_host()) + anp.sum(d.copy_to_host())

    np.testing.assert_array_equal(ampi.grad(constant)(x), np.full(4, 3.0))

    def lost(x):
        scaled[1, 4](cuda.to_device(x), theirs, 3.0)

    with pytest.raises(ActivityError, match=r"argument 'v' is an array of test_device_arrays.*as_cuda_array\(v\)"):
        ampi.grad(lost)(x)


class LikeCuPys(Foreign):
    """An array that NumPy may not convert."""

    shape, dtype = (4,), np.dtype(float)
    __cuda_array_interface__ = property(
        lambda self: self.interface, lambda self, value: setattr(self, "interface", value)
    )

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


@in_python
@pytest.mark.parametrize("operation", [lambda x, y: x + y, lambda x, y: np.maximum(y, x), lambda x, y: anp.hypot(x, y)])
def test_numpy_of_another_package(operation):
    theirs = LikeCuPys(backends.device(), np.arange(4.0))
    with pytest.raises(ActivityError, match=r"an array of test_device_arrays on a device.*ampi.cuda.to_device\(x\)"):
        ampi.grad(lambda x: anp.sum(operation(x, theirs)))(np.ones(4))


@in_python
def test_dlpack():
    x = np.arange(4.0)
    assert np.shares_memory(ampi.value(x), x) and isinstance(cuda.from_dlpack(x), ampi.ndarray)
    assert np.shares_memory(cuda.from_dlpack(x), x)
    before = backends.choose(backends.Processor())
    try:
        d = cuda.to_device(x)
        np.testing.assert_array_equal(np.from_dlpack(d), x)
    finally:
        backends.choose(before)

    def loss(x):
        return anp.sum(np.from_dlpack(cuda.to_device(x)))

    with pytest.raises(ActivityError, match=r"DLPack's view.*copy_to_host\(\)"):
        ampi.grad(loss)(x)

    class OfMetal:
        def __dlpack_device__(self):
            return 8, 0

    with pytest.raises(
        KernelError,
        match=r"OfMetal, whose memory is neither on the host nor on a CUDA device \(DLPack's device type is 8\)",
    ):
        cuda.from_dlpack(OfMetal())


# ------------------------------------------------------------------------------------------------------- refusals


def on_device(x):
    d = cuda.to_device(x)
    doubled[1, 4](d)
    return d


def written_in_steps(x):
    d = cuda.to_device(np.zeros(4))

    def step(u):
        d.copy_to_device(np.ones(4))
        u *= 2

    u = anp.array(x)
    ampi.timeloop(step, u, steps=2)
    return anp.sum(u)


LOST = {
    "result": (lambda x: on_device(x), TapeError, "must return one real number"),
    "steps": (written_in_steps, ActivityError, "ampi.timeloop writes to an array on a device that was made before"),
    "asarray": (lambda x: np.sum(np.asarray(on_device(x))), ActivityError, r"asarray\(\).*write .copy_to_host\(\)"),
    "spread": (
        lambda x: doubled[1, 4](np.broadcast_to(on_device(x)[:1], 4)),
        KernelError,
        "argument 'u' has elements that share memory",
    ),
    "into NumPy": (lambda x: on_device(x).copy_to_host(np.empty(4)), ActivityError, "lost in a plain NumPy array"),
    "interface": (lambda x: on_device(x).__cuda_array_interface__, ActivityError, "is passed to another package"),
    "pickle": (lambda x: pickle.dumps(on_device(x)), KernelError, r"pickled; write d.copy_to_host\(\)"),
    "copy": (lambda x: copy.deepcopy(on_device(x)), KernelError, r"ampi.cuda.to_device\(d\)"),
    "key": (lambda x: on_device(x)["a"], KernelError, "indexed by str; it takes integers, slices, and arrays"),
    "shape": (lambda x: on_device(x).copy_to_device(x[:2]), KernelError, r"shape \(2,\) is copied into one of shape"),
    "dtype": (
        lambda x: on_device(x).copy_to_device(x + 1j),
        KernelError,
        "dtype complex128 is copied into one of dtype",
    ),
    "reshape": (
        lambda x: np.reshape(on_device(x), (2, 2), order="K"),
        ActivityError,
        "order='K' for arrays on a device",
    ),
}


COMPILED = {"steps"}


@pytest.mark.parametrize("what", [pytest.param(w, marks=compiled if w in COMPILED else in_python) for w in LOST])
def test_refusals(what):
    function, error, text = LOST[what]
    with pytest.raises(error, match=text):
        ampi.grad(function)(np.arange(4.0))


@in_python
def test_second_order():
    x, v = np.arange(4.0), np.array([1.0, 0.5, -2.0, 3.0])
    loss = lambda x: anp.sum(on_device(x).copy_to_host() ** 3)
    np.testing.assert_allclose(ampi.hvp(loss, (x,), (v,))[0], 48 * x * v, rtol=1e-13)
    np.testing.assert_allclose(ampi.hessian(loss, x), np.diag(48 * x), rtol=1e-13)
    gradient, product = ampi.jvp(ampi.grad(loss), (x,), (v,))
    np.testing.assert_allclose((gradient, product), (24 * x**2, 48 * x * v), rtol=1e-13)


@in_python
def test_tangents_are_kept_for():
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(4.0))
        y = anp.sum(on_device(x).copy_to_host() ** 2)
    with pytest.raises(ActivityError, match=r"recorded for adjoints only.*ampi.Tape\(tangents=True\)"):
        tape.tangent(y, x, np.ones(4))


@in_python
def test_spilled():
    """Old values of the device go to the host, where the budget counts them, and to a file."""
    n = 20000

    def program(x):
        d = cuda.to_device(x)
        for _ in range(4):
            d[...] = x * d.copy_to_host()
            doubled_all(d)
        return anp.sum(d.copy_to_host())

    def doubled_all(d):
        scaled[(n + 127) // 128, 128](squares := cuda.to_device(d), d, 2.0)
        del squares

    x = np.linspace(0.9, 1.1, n)
    with ampi.Tape(memory="300KiB", spill=True) as tape:
        w = tape.watch(x)
        y = program(w)
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(y, w), 5 * 16 * x**4, rtol=1e-12)
    with pytest.raises(TapeError, match="exceed its budget"), ampi.Tape(memory="30KiB") as tape:
        w = tape.watch(x)
        d = cuda.to_device(w)
        for _ in range(4):
            squared_in_place[(n + 127) // 128, 128](d)


@cuda.jit
def squared_in_place(u):
    i = cuda.grid(1)
    if i < u.shape[0]:
        u[i] = u[i] * u[i]


# ------------------------------------------------------------------------------------- mistakes at a launch, drawn


def mistakes(draw, x):
    """A launch that does not fit, and what its error says."""
    one = backends.device()
    name = draw.choice("u v s".split())
    given = {"u": cuda.to_device(x), "v": cuda.to_device(x), "s": 2.0}
    kind = draw.choice("host text none missing shared threads grid float driver overlap objects".split())
    grid = [1, 4, 0, 0]
    if kind == "host":
        name = draw.choice(["u", "v"])
        given[name] = x
        says = rf"argument '{name}' is a NumPy array.*\n.*{name} = ampi.cuda.to_device\({name}\)"
    elif kind == "text":
        given[name] = "text"
        says = f"argument '{name}' is a str, which CUDA kernels do not take\n"
    elif kind == "none":
        given[name] = (1, 2) if draw.random() < 0.5 else None
        says = f"argument '{name}' is a (NoneType|tuple|list)"
    elif kind == "missing":
        del given[name]
        says = f"missing a required argument: '{name}'"
    elif kind == "shared":
        grid[3] = int(draw.integers(232449, 10**7))
        says = rf"{grid[3]} bytes of dynamic shared memory; a block of CUDA has at most 232448\n"
    elif kind == "threads":
        grid[1] = int(draw.integers(1025, 5000))
        says = f"a block of {grid[1]} x 1 x 1 threads; CUDA allows 1024"
    elif kind == "grid":
        grid[0] = draw.choice([0, -3])
        says = f"{grid[0]}.* blocks; they are positive integers"
    elif kind == "float":
        grid[1] = 4.5
        says = "4.5 threads; they are positive integers"
    elif kind == "driver":
        backends.choose(backends.Processor())
        given = {"u": Foreign(one, x), "v": cuda.to_device(x), "s": 2.0}
        says = r"argument 'u' is an array on a device \(Foreign\), and no CUDA driver was found"
    elif kind == "overlap":
        given["v"] = given["u"][::-1]
        says = r"arguments 'v' and 'u' share memory, and the kernel writes 'v'\n.*to_device\(u\)"
    else:
        given["s"] = object()
        says = "argument 's' is a object"
    return grid, given, says


@in_python
@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow if s > 11 else []) for s in range(60)])
def test_mistakes(seed):
    draw = np.random.default_rng(seed)
    x = np.arange(float(draw.integers(2, 6)))
    one = backends.device()
    grid, given, says = mistakes(draw, x)
    try:
        with pytest.raises(KernelError, match=says) as caught:
            scaled[tuple(grid)](**given)
        assert "scaled" in str(caught.value)
    finally:
        backends.choose(one)


def unknown(u):
    i = cuda.grid(1)
    u[i] = cuda.nanosleep(3) + u[i]


def two_axes(u):
    i, j = cuda.grid(2)
    u[i, j] = 2.0


@in_python
@pytest.mark.parametrize(
    "function, says",
    [
        (unknown, r"(?s):\d+:.*in kernel 'unknown'.*nanosleep"),
        (two_axes, r"(?s):\d+:.*in kernel 'two_axes'"),
    ],
)
def test_kernels_that_do_not_fit(function, says):
    kernel = cuda.jit(function)
    with pytest.raises(KernelError, match=says):
        kernel[1, 4](cuda.to_device(np.ones(4)))


@in_python
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_copies_by_numba_are_refused():
    """Numba's own copy to a GPU would drop derivatives; no GPU is needed to detect it."""
    of_numba = pytest.importorskip("numba.cuda")
    with pytest.raises(
        ActivityError, match=r"numba.cuda.to_device\(\) of an array that carries.*import ampi.cuda as cuda"
    ):
        ampi.grad(lambda x: anp.sum(of_numba.to_device(x * x)))(np.arange(4.0))


SIMULATED = """
import numba.cuda, numpy, ampi
x = numpy.arange(4.0)
print(ampi.grad(lambda x: ampi.numpy.sum(x * x))(x))
for copy in (numba.cuda.to_device, lambda x: numba.cuda.device_array(4).copy_to_device(x)):
    try:
        ampi.grad(lambda x: ampi.numpy.sum(copy(x)))(x)
    except ampi.ActivityError as error:
        print(error)
"""


@compiled
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_copies_in_the_simulator():
    """Numba's simulator has these functions elsewhere."""
    pytest.importorskip("numba.cuda")
    gradient, *refused = in_a_process("-W", "ignore", "-c", SIMULATED, NUMBA_ENABLE_CUDASIM="1").splitlines()
    assert gradient == "[0. 2. 4. 6.]"
    assert len(refused) == 2 and all("of an array that carries derivatives" in line for line in refused)
    assert "to_device()" in refused[0] and "copy_to_device()" in refused[1]


@in_python
def test_windows_and_persistent_requests():
    d = cuda.to_device(np.ones(3))
    with pytest.raises(CommunicationError, match=r"Send_init of an array on a device.*d.copy_to_host\(\)"):
        ampi.COMM_SELF.Send_init(d, 0)
