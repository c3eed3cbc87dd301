"""Checks second order by its symmetry, ⟨u, H v⟩ = ⟨H u, v⟩ to rounding, and by differences of gradients."""

import numpy as np
from forward_check import draw, numbers, pairing, size

import ampi


def objective_of(f, seed=0):
    """A real function that depends nonlinearly on all results of ``f``."""

    def scalar(*x):
        generator = np.random.default_rng(seed)
        total = 0.0
        found = f(*x)
        if found is None:  # a rank without a result
            return None
        for y in numbers(found):
            weights = generator.uniform(0.5, 1.5, np.shape(y))
            if np.asarray(ampi.value(y)).dtype.kind == "c":
                total = total + (weights * (np.square(y.real) + np.square(y.imag)) + y.imag / weights).sum()
            else:
                total = total + (weights * np.square(y) + y / weights).sum()
        return total

    return scalar


def moved(x, t, v):
    return [np.asarray(a + t * b, np.asarray(a).dtype) for a, b in zip(x, v)]


def products(f, x, u, v, rounding=1e-13, between=lambda: None, **options):
    """H u from a single direction, and H v from a batched run along v and u, which must give the same H u."""
    hu = ampi.hvp(f, tuple(x), tuple(u), **options)
    between()
    both = ampi.hvp(f, tuple(x), tuple(np.stack(some) for some in zip(v, u)), vectorised=True, **options)
    for alone, (_, found) in zip(hu, both, strict=True):
        is_single = np.asarray(alone).dtype.char in "fF"
        size = np.max(np.abs(alone), initial=0.0, where=np.isfinite(alone))
        np.testing.assert_allclose(found, alone, rtol=0, atol=(1e-6 if is_single else rounding) * size)
    return hu, [x[0] for x in both]


def check_second(f, x, tolerance=1e-12, rough=2e-7, seed=0, add=lambda v: v, step=1e-4, **options):
    """Check `ampi.hvp` of a real function ``f``; ``add`` sums over ranks."""
    generator = np.random.default_rng(seed)
    u, v = ([draw(generator, a) for a in x] for _ in range(2))
    hu, hv = products(f, x, u, v, **options)
    for a, b in zip(x, hv, strict=True):
        assert np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype
    there, back = add(pairing(u, hv)), add(pairing(hu, v))
    scale = max(add(size(u) * size(hv)), add(size(hu) * size(v)), 1e-300)
    assert abs(there - back) <= tolerance * scale, (there, back, scale)
    gradient = ampi.grad(f, tuple(range(len(x))), **options)
    # Fourth-order differences.
    g = {k: gradient(*moved(x, k * step, v)) for k in (-2, -1, 1, 2)}
    differences = [(8 * (c - b) - (d - a)) / (12 * step) for a, b, c, d in zip(*(g[k] for k in (-2, -1, 1, 2)))]
    known = [np.where(np.isnan(a), 0, 1) for a in x]  # nothing is known by differences where x is nan
    finite = lambda arrays: size([np.where(k, a, 0) for k, a in zip(known, arrays)])
    largest = add(finite(g[1])) + add(finite(hv))
    error = add(finite([a - b for a, b in zip(differences, hv)]))
    assert error <= rough * largest, (error, largest)
    return hv


def check_at_minimum(f, x, tolerance=1e-11, seed=0, add=lambda v: v):
    """Check that where F = Σ w |f - f₀|² is zero its Hessian is 2 Jᵀ W J: all adjoints vanish but have tangents."""
    generator = np.random.default_rng(seed)
    v = [draw(generator, a) for a in x]
    y, y_dot = ampi.jvp(f, tuple(x), tuple(v))
    there, dots = [np.array(a) for a in numbers(y)], numbers(y_dot)
    weights = [generator.uniform(0.5, 1.5, a.shape) for a in there]
    _, pullback = ampi.vjp(lambda *x: [ampi.numpy.asarray(y) for y in numbers(f(*x))], *x)
    expected = pullback([2 * w * np.asarray(d) for w, d in zip(weights, dots)])

    def objective(*x):
        total = 0.0
        for w, a, b in zip(weights, numbers(f(*x)), there, strict=True):
            d = a - b
            total = total + (w * (np.square(d.real) + np.square(d.imag) if b.dtype.kind == "c" else np.square(d))).sum()
        return total

    found = ampi.hvp(objective, tuple(x), tuple(v))
    error, scale = (add(size(some)) for some in ([a - b for a, b in zip(found, expected)], expected))
    assert error <= tolerance * scale, (error, scale)
