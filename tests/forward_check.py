"""Holds forward mode against reverse mode: ⟨Jv, w⟩ = ⟨v, Jᵀw⟩ to rounding."""

import warnings

import numpy as np

import ampi
from ampi.structures import leaves


def draw(generator, x):
    """Random numbers of an array's shape and dtype."""
    x = np.asarray(ampi.value(x))
    made = generator.uniform(-1.0, 1.0, x.shape)
    if x.dtype.kind == "c":
        made = made + 1j * generator.uniform(-1.0, 1.0, x.shape)
    return np.asarray(made, x.dtype)


def numbers(y):
    """The arrays and numbers of a result that have derivatives."""
    return [leaf for leaf in leaves(y) if leaf is not None and np.asarray(ampi.value(leaf)).dtype.kind in "fc"]


def pairing(a, b):
    """Real inner product of two lists of arrays."""
    wide = lambda x: np.asarray(x, np.complex128).ravel()
    return sum(float(np.real(np.vdot(wide(p), wide(q)))) for p, q in zip(a, b, strict=True))


def size(a):
    return np.sqrt(pairing(a, a))


def check_forward(f, x, tolerance=1e-12, seed=0, add=lambda v: v, walk=True):
    """`ampi.jvp` (and `Tape.tangent`) against the reverse sweep, summed over ranks by ``add``."""
    generator = np.random.default_rng(seed)
    x_dot = [draw(generator, a) for a in x]
    y, y_dot = ampi.jvp(f, tuple(x), tuple(x_dot))
    y, y_dot = numbers(y), [leaf for leaf in leaves(y_dot) if leaf is not None]
    assert [np.shape(a) for a in y] == [np.shape(a) for a in y_dot]
    assert [np.asarray(a).dtype for a in y] == [np.asarray(a).dtype for a in y_dot]
    with ampi.Tape() as tape:
        watched = [tape.watch(a) for a in x]
        again = f(*watched)
    outputs = numbers(again)
    for a, b in zip(y, outputs, strict=True):
        if walk:
            assert np.array_equal(a, ampi.value(b), equal_nan=True), "other values than on a tape"
        else:  # tangent programs are compiled on their own, and may round otherwise
            np.testing.assert_allclose(a, ampi.value(b), tolerance, tolerance, err_msg="other values than on a tape")
    tracked = [isinstance(a, ampi.ndarray) for a in outputs]
    outputs, chosen = ([a for a, t in zip(some, tracked) if t] for some in (outputs, y_dot))
    w = [draw(generator, a) for a in outputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ampi.ActivityWarning)
        x_bar = tape.gradient(outputs, watched, seed=w)
    forward, reverse = add(pairing(chosen, w)), add(pairing(x_dot, x_bar))
    scale = max(add(size(chosen) * size(w)), add(size(x_dot) * size(x_bar)), 1e-300)
    assert abs(forward - reverse) <= tolerance * scale, (forward, reverse, scale)
    if walk:
        walked = tape.tangent(outputs, watched, x_dot)
        for a, b in zip(walked, chosen, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(size([b]), 1e-300))
    return forward
