"""Programs with arrays on a device: values and derivatives as on NumPy arrays, on a device whose memory the host cannot
touch, and in Numba's simulator."""

import pathlib
import subprocess
import sys

import device_programs
import fake_cupy
import guarded_device
import numpy as np
import pytest
from device_programs import Device, Host, Program
from uncompiled import compiled, in_a_process, in_python, run_in_python

import ampi
import ampi.cuda as cuda
from ampi.device import backends

HERE = pathlib.Path(__file__).parent
CASES = "stencil", "lbm", "in place", "reduction", "ping-pong"


@pytest.fixture(autouse=True)
def device():
    """A device whose memory ends the process that touches it."""
    guarded = guarded_device.Guarded()
    before = backends.choose(guarded)
    yield guarded
    backends.choose(before)


@compiled
def test_in_python(request):
    """Most tests here are run in a process of their own in which nothing is compiled, which would take far longer."""
    run_in_python(__file__, request)


def compare(seed, modes=True):
    p = Program(seed)
    tolerance = 1e-10 if p.dtype is np.float64 else 2e-4
    both = 0, 1
    value, (x_bar, s_bar) = ampi.value_and_grad(p(Host), argnums=both)(p.x, p.s)
    scale = tolerance * (1 + abs(value) + np.abs(x_bar).max() + abs(s_bar))
    found, (x_found, s_found) = ampi.value_and_grad(p(Device), argnums=both)(p.x, p.s)
    for one, other in ((found, value), (x_found, x_bar), (s_found, s_bar)):
        np.testing.assert_allclose(one, other, rtol=0, atol=scale, err_msg=repr(p))
    if not modes:
        return
    v, w = np.cos(np.arange(p.x.size)).astype(p.dtype), 0.3
    slope = float(np.sum(x_bar * v)) + s_bar * w
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=10 * scale, err_msg=repr(p))
    close(ampi.jvp(p(Device), (p.x, p.s), (v, w))[1], slope)
    several = ampi.jvp(p(Device), (p.x, p.s), (np.stack([v, -v]), np.array([w, -w])), vectorised=True)[1]
    close(several, [slope, -slope])
    with ampi.Tape(memory="64MiB", spill=True, tangents=True) as tape:
        x, s = tape.watch(p.x), tape.watch(p.s)
        y = p(Device)(x, s)
    close(tape.tangent(y, [x, s], [v, w]), slope)
    first, second = tape.gradient(y, [x, s], seeds=np.array([1.0, -2.0]))
    close(first, [x_bar, -2 * x_bar])
    close(second, [s_bar, -2 * s_bar])
    close(tape.gradient(y, x), x_bar)  # the sweeps before have put all memory back
    compare_second(p, (v, w), close)
    if p.dtype is np.float64 and "passive" not in dict(p.steps):
        h = 1e-5
        up, down = (p.run(Device, p.x + sign * h * v, p.s + sign * h * w) for sign in (1, -1))
        np.testing.assert_allclose((up - down) / (2 * h), slope, rtol=0, atol=1e4 * scale, err_msg=repr(p))


def compare_second(p, direction, close):
    """Compare products with the Hessian, in one direction and in two, with those of the program on NumPy arrays."""
    expected = ampi.hvp(p(Host), (p.x, p.s), direction)
    try:
        found = ampi.hvp(p(Device), (p.x, p.s), direction)
    except ampi.ActivityError as error:  # NumPy's functions, where the result depends on them
        assert "no second derivative" in str(error) and not {*device_programs.FUNCTIONS}.isdisjoint(dict(p.steps))
        return
    size = 1 + max(np.abs(part).max() for part in expected)
    for one, other in zip(found, expected):
        close(one / size, other / size)
    several = tuple(np.stack([part, np.zeros_like(part), -2 * np.asarray(part)]) for part in direction)
    found = ampi.hvp(p(Device), (p.x, p.s), several, vectorised=True)
    for one, other in zip(found, expected):
        close(one / size, np.stack([other, 0 * other, -2 * other]) / size)


@in_python
@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] if s > 2 else []) for s in range(100)])
@pytest.mark.parametrize("library", ["numpy", "cupy"])
def test_random(seed, library):
    """Kernels and NumPy's functions, on the same arrays."""
    if library == "cupy":
        backends.choose(fake_cupy.FakeGpu())
    compare(seed)


@compiled
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_simulator():
    """The source for a GPU runs in Numba's simulator."""
    pytest.importorskip("numba.cuda")
    text = in_a_process(HERE / "simulated.py", 1, 2, NUMBA_ENABLE_CUDASIM="1", NUMBA_DISABLE_JIT="1")
    assert text.strip() == "2 compared"


@compiled
@pytest.mark.parametrize("second", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled(device, second):
    """The sources for a GPU are compiled for the processor."""
    x = np.linspace(0.5, 1.5, 20)

    def loss(x, s):
        d = cuda.to_device(x)
        device_programs.squared[3, 8](d, s)
        return ampi.numpy.sum(d.copy_to_host() ** 2)

    value = x * np.sin(x) * 1.2
    x_bar, s_bar = ampi.grad(loss, argnums=(0, 1))(x, 1.2)
    np.testing.assert_allclose(x_bar, 2 * value * 1.2 * (np.sin(x) + x * np.cos(x)), rtol=1e-12)
    np.testing.assert_allclose(s_bar, np.sum(2 * value**2 / 1.2), rtol=1e-12)
    assert device.times
    if not second:
        return
    v, h = np.cos(np.arange(20)), 1e-6
    products = ampi.hvp(loss, (x, 1.2), (v, 0.3))
    up, down = (ampi.grad(loss, argnums=(0, 1))(x + sign * h * v, 1.2 + sign * h * 0.3) for sign in (1, -1))
    for product, one, other in zip(products, up, down):
        np.testing.assert_allclose(product, (one - other) / (2 * h), rtol=1e-7, atol=1e-7)


@in_python
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow if c in ("stencil", "lbm") else []) for c in CASES]
)
def test_benchmarks(case):
    """The cases of scripts/bench_gpu are right on the host and on the device."""
    sys.path.insert(0, str(HERE.parents[1] / "scripts" / "benchmarks"))
    try:
        import gpu_ampi
    finally:
        del sys.path[0]
    x = gpu_ampi.start(case, 5)
    slope = gpu_ampi.difference(case, 5)
    for on_device in (False, True):
        found = np.sum(ampi.grad(gpu_ampi.program(case, 5, on_device))(x) * gpu_ampi.direction(x))
        np.testing.assert_allclose(found, slope, rtol=1e-6)


def test_the_memory_is_protected():
    code = "import ctypes, guarded_device as g; ctypes.string_at(g.Guarded().empty(9)[0], 1)"
    folder = pathlib.Path(guarded_device.__file__).parent
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True)
    assert run.returncode < 0


@in_python
@pytest.mark.parametrize(
    "what",
    [
        pytest.param("undo", marks=pytest.mark.slow),
        "needs",
        pytest.param("zero", marks=pytest.mark.slow),
        pytest.param("tangents", marks=pytest.mark.slow),
    ],
)
def test_what_is_broken_is_noticed(what, monkeypatch):
    """Random programs find mistakes in the undo log and in adjoints of overwritten memory."""
    from ampi.device import arrays, launches, memory

    if what == "undo":
        monkeypatch.setattr(memory.DeviceUndo, "put_back", lambda undo: None)
    elif what == "needs":
        monkeypatch.setattr(launches, "need", lambda tape, array: None)
    elif what == "tangents":
        monkeypatch.setattr(memory.DevicePairUndo, "_put_back_tangent", lambda undo, place, tangent: None)
    else:
        monkeypatch.setattr(arrays, "taken", lambda sweep, place: arrays.region and sweep.shadow(place).copy())
    with pytest.raises(AssertionError):
        for seed in range(12):
            compare(seed, modes=what == "tangents")
