"""Time loops with arrays on a device in their states: gradients against forward mode, differences and plain loops."""

import contextlib

import guarded_device
import numpy as np
import pytest
from device_programs import squared, stencil
from numba import config

import ampi
import ampi.cuda as cuda
import ampi.numpy as anp
from ampi import ActivityError, AmpiError, TapeError
from ampi.device import backends

pytestmark = pytest.mark.skipif(config.DISABLE_JIT, reason="time loops need compiled code")
SIZE = 8
LAUNCH = 1, SIZE


@pytest.fixture(autouse=True)
def device():
    """A device whose memory ends the process that touches it."""
    before = backends.choose(guarded_device.Guarded())
    yield
    backends.choose(before)


class State:
    """A state with attributes."""

    def __init__(self, **parts):
        self.__dict__.update(parts)


ACTS = ["squared", "stencil", "new", "host", "scratch", "functions", "in place"]


class Program:
    """A random loop: what its state consists of, what a step does, and the options of the loop."""

    def __init__(self, seed, folder=None):
        draw = np.random.default_rng(seed)
        self.seed = seed
        self.x = draw.uniform(0.4, 1.2, SIZE)
        self.steps = int(draw.integers(1, 8))
        self.form = str(draw.choice(["array", "tuple", "swapped", "dict", "object", "part", "twice"]))
        self.acts = [str(a) for a in draw.choice(ACTS, draw.integers(1, 4))]
        self.before, self.after = draw.random(2) < 0.6
        self.options = [
            {"checkpoints": int(draw.integers(1, 4))},
            {},
            {"memory": "1MiB"},
            {"checkpoints": 2, "schedule": "Revolve"},
            {"checkpoints": 2, "storage": folder}
            if folder and not {"new", "functions"} & set(self.acts)
            else {"checkpoints": 2},
        ][draw.integers(5)]
        self.until = draw.random() < 0.2 and "schedule" not in self.options

    def __repr__(self):
        return f"Program({self.seed}): {self.form} {self.acts} {self.steps} {self.options} until={self.until}"

    def act(self, u, v, h):
        """One step on two arrays on the device, and an array on the host."""
        for act in self.acts:
            if act == "squared":
                squared[LAUNCH](u, 1.1)
            elif act == "stencil":
                stencil[LAUNCH](u, v)
            elif act == "new":
                w = cuda.to_device(u)
                squared[LAUNCH](w, 0.9)
                v = w
            elif act == "functions":
                v = anp.sin(u) * 0.7 + anp.where(v > 0.5, v[::-1], u * 0.3)
            elif act == "in place":
                u *= 0.9
                u[1:4] += v[:3] * v[1:4]
            elif act == "host":
                h = h * 0.9 + u.copy_to_host() * 0.1
                u.copy_to_device(h)
            else:
                w = cuda.device_array(SIZE)
                w[:] = v
                stencil[LAUNCH](w, u)
        return u, v, h

    def __call__(self, x):
        u = cuda.to_device(x)
        v, h = cuda.to_device(0.5 * x[::-1]), x * 1.0
        total = 0.0
        if self.before:  # it needs values that the loop overwrites
            squared[LAUNCH](u, 0.8)
            stencil[LAUNCH](u, v)
            total = anp.sum(v.copy_to_host() ** 2)
        c = cuda.to_device(np.linspace(0.5, 1.0, SIZE))
        stencil[LAUNCH](c, c2 := cuda.to_device(np.ones(SIZE)))

        def step(state):
            form = self.form
            if form == "array":
                stencil[LAUNCH](c2, w := cuda.to_device(state))
                squared[LAUNCH](state, 1.05)
                state[1:3] = w[1:3]
                return None
            if form in ("dict", "object"):
                parts = state if form == "dict" else vars(state)
                parts["u"], parts["v"], parts["h"] = self.act(parts["u"], parts["v"], parts["h"])
                return None
            if form in ("part", "twice"):
                a, b, h = state
                squared[LAUNCH](a, 0.97)
                b[1:2] = h[2:3]
                return a, b, h + a.copy_to_host()
            u, v, h = self.act(*state)
            return (v, u, h) if form == "swapped" else (u, v, h)

        if self.form == "array":
            state = u
        elif self.form in ("dict", "object"):
            state = {"u": u, "v": v, "h": h} if self.form == "dict" else State(u=u, v=v, h=h)
        elif self.form in ("part", "twice"):
            state = (u, u[1:5] if self.form == "part" else u, h)
        else:
            state = (u, v, h)
        keywords = dict(self.options)
        if self.until:
            keywords["until"] = lambda state: float(np.max(np.abs(leaves(state)[0].copy_to_host()))) > 50.0
        state = ampi.timeloop(step, state, self.steps, **keywords)
        found = leaves(state)
        if self.after:
            squared[LAUNCH](found[0], 1.3)
        for k, leaf in enumerate(found):
            leaf = leaf if isinstance(leaf, np.ndarray) else leaf.copy_to_host()
            total = total + anp.sum(anp.cos(leaf) * np.linspace(0.2, 1.0, leaf.size)) * 0.7**k
        return total


def leaves(state):
    if isinstance(state, (dict, State)):
        return list((state if isinstance(state, dict) else vars(state)).values())
    return list(state) if isinstance(state, tuple) else [state]


def compare(seed, folder=None):
    p = Program(seed, folder)
    with ampi.Tape() as tape:
        x = tape.watch(p.x)
        y = p(x)
    gradient = tape.gradient(y, x)
    scale = 1 + np.abs(gradient).max()
    np.testing.assert_allclose(tape.gradient(y, x), gradient, rtol=0, atol=1e-13 * scale, err_msg=repr(p))
    v = np.cos(np.arange(SIZE))
    p.options = {"checkpoints": 1} if "storage" in p.options else {}
    value, slope = ampi.jvp(p, (p.x,), (v,))  # a plain loop
    np.testing.assert_allclose(np.sum(gradient * v), slope, rtol=0, atol=1e-11 * scale * SIZE, err_msg=repr(p))
    np.testing.assert_allclose(float(y), value, rtol=1e-13, err_msg=repr(p))
    h = 1e-6
    difference = (p(p.x + h * v) - p(p.x - h * v)) / (2 * h)
    np.testing.assert_allclose(np.sum(gradient * v), difference, rtol=0, atol=1e-6 * scale * SIZE, err_msg=repr(p))


@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(100, 500, 50))])
def test_random(first, tmp_path):
    for seed in range(first, first + (12 if first == 0 else 50)):
        compare(seed, tmp_path / str(seed))


def test_second_order():
    p = Program(3)
    v = np.cos(np.arange(SIZE))
    p.options = {}
    product = ampi.hvp(p, (p.x,), (v,))[0]
    h = 1e-5
    up, down = (ampi.grad(p)(p.x + sign * h * v) for sign in (1, -1))
    np.testing.assert_allclose(product, (up - down) / (2 * h), rtol=1e-6, atol=1e-6)


def test_resumed(tmp_path):
    """A loop that continues from its folder has the same gradient."""
    x = np.linspace(0.4, 1.1, SIZE)

    def loss(x, resume):
        u, v = cuda.to_device(x), cuda.to_device(0.5 * x)

        def step(state):
            stencil[LAUNCH](state[0], state[1])
            squared[LAUNCH](state[0], 1.1)

        u, v = ampi.timeloop(step, (u, v), 9, checkpoints=2, storage=tmp_path, resume=resume)
        return anp.sum(u.copy_to_host()) + anp.sum(v.copy_to_host() ** 2)

    gradients = [ampi.grad(loss)(x, resume) for resume in (False, True)]
    np.testing.assert_array_equal(*gradients)


def beside_the_state(x):
    d = cuda.to_device(np.zeros(SIZE))

    def step(state):
        squared[LAUNCH](state, 1.1)
        d[...] = state

    return anp.sum(ampi.timeloop(step, cuda.to_device(x), 2).copy_to_host()) + anp.sum(d.copy_to_host())


def made_in_steps(x):
    def step(state):
        state["d"] = cuda.to_device(state["x"])

    return anp.sum(ampi.timeloop(step, {"x": anp.array(x)}, 2)["d"].copy_to_host())


def read_only(x):
    d = cuda.to_device(x)

    def step(state):
        stencil[LAUNCH](d, state)

    return anp.sum(ampi.timeloop(step, cuda.to_device(x), 2).copy_to_host())


def kept_elsewhere(x):
    held = []

    def step(state):
        if held:
            stencil[LAUNCH](held[0], state)
        held[:] = [cuda.to_device(state)]

    return anp.sum(ampi.timeloop(step, cuda.to_device(x), 3).copy_to_host())


def stored_in_a_folder(x, folder):
    """Steps that make arrays on the device, which another process could not have."""

    def step(state):
        return (cuda.to_device(state[0]),)

    (d,) = ampi.timeloop(step, (cuda.to_device(x),), 4, checkpoints=1, storage=folder)
    return anp.sum(d.copy_to_host())


def test_new_arrays_are_not_stored(tmp_path):
    with pytest.raises(TapeError, match="DeviceArray, which cannot be stored in a file"):
        ampi.grad(lambda x: stored_in_a_folder(x, tmp_path))(np.ones(SIZE))


@pytest.mark.parametrize(
    ("loss", "error", "text"),
    [
        (beside_the_state, ActivityError, "is not in the state.*add it to the state"),
        (made_in_steps, TapeError, r"\['d'\] is an array on a device"),
        (read_only, ActivityError, "carries derivatives, was made before the step and is not in the state"),
        (kept_elsewhere, ActivityError, "carries derivatives, was made before the step and is not in the state"),
    ],
)
def test_refusals(loss, error, text):
    with pytest.raises(error, match=text):
        ampi.grad(loss)(np.linspace(0.5, 1.0, SIZE))


@pytest.mark.parametrize("what", ["kept", "release"])
def test_what_is_broken_is_noticed(what, monkeypatch):
    from ampi.checkpoint import timeloop
    from ampi.device import memory

    if what == "kept":
        monkeypatch.setattr(timeloop, "kept", lambda *states: contextlib.nullcontext())
    else:
        monkeypatch.setattr(memory, "release", lambda array: None)
    with pytest.raises((AssertionError, AmpiError)):
        for seed in range(12):
            compare(seed)
