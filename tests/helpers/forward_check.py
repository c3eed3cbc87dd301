"""Compares forward mode with reverse mode (⟨Jv, w⟩ = ⟨v, Jᵀw⟩ to rounding), and vector modes with single directions:
bitwise identical unless results depend on the order of messages."""

import os
import sys
import warnings
import zlib

import numpy as np

import ampi
from ampi.base.structures import leaves


def is_drawn(which, of=3):
    """Return whether this test includes an expensive part: one test in ``of`` does; all do with ``--all-cases``."""
    if {"--all-cases", "--slow"} & set(sys.argv):
        return True
    return zlib.crc32(os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].encode()) % of == which


def draw(generator, x):
    """Random numbers of an array's shape and dtype."""
    x = np.asarray(ampi.value(x))
    made = generator.uniform(-1.0, 1.0, x.shape)
    if x.dtype.kind == "c":
        made = made + 1j * generator.uniform(-1.0, 1.0, x.shape)
    return np.asarray(made, x.dtype)


def numbers(y):
    """The floating-point and complex arrays and numbers of a result."""
    return [leaf for leaf in leaves(y) if leaf is not None and np.asarray(ampi.value(leaf)).dtype.kind in "fc"]


def pairing(a, b):
    """Real inner product of two lists of arrays."""
    wide = lambda x: np.asarray(x, np.complex128).ravel()
    return sum(float(np.real(np.vdot(wide(p), wide(q)))) for p, q in zip(a, b, strict=True))


def size(a):
    return np.sqrt(pairing(a, a))


def check_forward(f, x, tolerance=1e-12, seed=0, add=lambda v: v, same_bits=True, walk=True):
    """Check `ampi.jvp` and `Tape.tangent` against the reverse sweep, summed over ranks by ``add``.

    Pass ``same_bits=False`` for kernels: their tangent programs are compiled separately and may round differently.
    Without ``walk``, the tape is recorded for reverse sweeps only.
    """
    generator = np.random.default_rng(seed)
    x_dot = [draw(generator, a) for a in x]
    y, y_dot = ampi.jvp(f, tuple(x), tuple(x_dot))
    y, y_dot = numbers(y), [leaf for leaf in leaves(y_dot) if leaf is not None]
    assert [np.shape(a) for a in y] == [np.shape(a) for a in y_dot]
    assert [np.asarray(a).dtype for a in y] == [np.asarray(a).dtype for a in y_dot]
    with ampi.Tape(tangents=walk) as tape:
        watched = [tape.watch(a) for a in x]
        again = f(*watched)
    outputs = numbers(again)
    for a, b in zip(y, outputs, strict=True):
        if same_bits:
            assert np.array_equal(a, ampi.value(b), equal_nan=True), "other values than on a tape"
        else:
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
    for _ in range(2 * walk):
        walked = tape.tangent(outputs, watched, x_dot)
        for a, b in zip(walked, chosen, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(size([b]), 1e-300))
    if is_drawn(1):
        check_seeds(tape, outputs, watched, 2)
        check_tangents(f, x, 2, rounding=0.0 if same_bits else tolerance)
    return forward


def compare(together, single, k, rounding=0.0):
    """Compare results of a vector mode, whose leading axis has length k, with ``single(j)`` for each direction j."""
    for j in range(k):
        for all_of_them, one in zip(together, single(j), strict=True):
            assert np.shape(all_of_them) == (k, *np.shape(one))
            assert np.asarray(all_of_them).dtype == np.asarray(one).dtype
            if rounding:
                scale = max(np.max(np.abs(one), initial=0.0), 1e-300)
                np.testing.assert_allclose(all_of_them[j], one, rtol=rounding, atol=rounding * scale)
            else:
                assert np.array_equal(all_of_them[j], one, equal_nan=True), (j, all_of_them[j], one)


def check_seeds(tape, y, x, k=3, seed=0, rounding=0.0):
    """Compare `Tape.gradient` with ``seeds=`` with one sweep per seed; y and x are lists."""
    generator = np.random.default_rng(seed)
    given = [np.array([draw(generator, a) for _ in range(k)]) for a in y]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ampi.ActivityWarning)
        together = tape.gradient(y, x, seeds=given if y else k)
        compare(together, lambda j: tape.gradient(y, x, seed=[s[j] for s in given]), k, rounding)


def check_tangents(f, x, k=3, seed=0, rounding=0.0):
    """Compare `ampi.jvp` with ``vectorised=True`` with one run per direction."""
    generator = np.random.default_rng(seed)
    given = [np.array([draw(generator, a) for _ in range(k)]) for a in x]
    y, together = ampi.jvp(f, tuple(x), tuple(given), vectorised=True)
    there = [leaf for leaf in leaves(together) if leaf is not None]

    def single(j):
        again, y_dot = ampi.jvp(f, tuple(x), tuple(t[j] for t in given))
        for a, b in zip(numbers(y), numbers(again), strict=True):
            np.testing.assert_allclose(a, b, rounding, rounding)
        return [leaf for leaf in leaves(y_dot) if leaf is not None]

    compare(there, single, k, rounding)
