"""Costs of one njit function and its gradient, cold and warm, with a check of the gradient."""

import time

import numba
import numpy as np
from local import interleaved

OPTIONS = ("parallel", "fastmath", "error_model")


def copies(point):
    return [v.copy() if isinstance(v, np.ndarray) else v for v in point]


def outputs(given, before, result):
    """The arrays that a call has changed, by position, and the numbers and arrays in its result."""
    return [*(given[k] for k in changed_places(given, before)), *leaves(result)]


def changed_places(given, before):
    return [k for k, b in enumerate(before) if isinstance(b, np.ndarray) and not np.array_equal(given[k], b)]


def leaves(value):
    if isinstance(value, tuple | list):
        for v in value:
            yield from leaves(v)
    elif value is not None and np.asarray(value).dtype.kind in "fc":
        yield value


def of(dispatcher, point, active, repeat):
    """Times of the primal and of the gradient, as they come; an error, where there is no gradient or a wrong one."""
    import ampi

    plain = numba.njit(dispatcher.py_func, **options_of(dispatcher))
    begin = time.process_time()
    given = copies(point)
    expected = outputs(given, point, plain(*given))
    yield {"cold primal": time.process_time() - begin}
    changed = changed_places(given, point)
    rng = np.random.default_rng(9)
    seeds = [weights(rng, np.asarray(v)) for v in expected]
    kernel = ampi.kernel(dispatcher.py_func, **options_of(dispatcher))

    ours = {k: ampi.numpy.array(point[k]) for k in active}  # as a program has its arrays

    def gradient():
        with ampi.Tape() as tape:
            watched = {k: tape.watch(ours[k]) for k in active}
            # Copies of what the kernel overwrites: the next run begins with the same numbers.
            inputs = [(watched[k] * 1 if k in changed else watched[k]) if k in watched
                      else v.copy() if isinstance(v, np.ndarray) else v
                      for k, v in enumerate(point)]  # fmt: skip
            result = kernel(*inputs)
            found = [*(inputs[k] for k in changed), *leaves(result)]
        moving = [(y, s) for y, s in zip(found, seeds, strict=True) if tape.is_active(y)]
        if not moving:
            return None
        return tape.gradient([y for y, _ in moving], list(watched.values()), seed=[s for _, s in moving])

    begin = time.process_time()
    try:
        found = gradient()
    except ampi.AmpiError as error:
        yield {"note": f"refused: {str(error).splitlines()[0][:160]}"}
        return
    yield {"cold gradient": time.process_time() - begin}
    if found is None:
        yield {"note": "nothing depends on the arrays"}
        return
    problem = wrong(plain, point, dict(zip(active, found)), seeds, rng)
    if problem:
        yield {"note": problem}
    before = [None]

    def fresh():
        before[0] = copies(point)

    def primal():
        begin = time.perf_counter()
        plain(*before[0])
        return time.perf_counter() - begin

    def whole():
        begin = time.perf_counter()
        gradient()
        return time.perf_counter() - begin

    def prepared():
        fresh()
        return primal()

    primal_time, gradient_time = interleaved([prepared, whole], repeat)
    yield {"primal": primal_time, "gradient": gradient_time}


def options_of(dispatcher):
    return {n: v for n, v in dispatcher.targetoptions.items() if n in OPTIONS and v}


def weights(rng, value):
    found = rng.uniform(-1, 1, value.shape)
    return (found + 1j * rng.uniform(-1, 1, value.shape) if value.dtype.kind == "c" else found).astype(value.dtype)


def wrong(plain, point, gradient, seeds, rng):
    """What differs from central differences in a random direction; "" if nothing does."""
    direction = {k: weights(rng, point[k]) for k in gradient}
    mine = sum(inner(np.asarray(gradient[k]), d) for k, d in direction.items())
    scale = sum(np.linalg.norm(gradient[k]) * np.linalg.norm(d) for k, d in direction.items())
    single = any(np.asarray(v).dtype.itemsize // (1 + (v.dtype.kind == "c")) < 8 for v in seeds)
    seen = []
    for step in (1e-2, 1e-3) if single else (1e-4, 1e-5, 1e-6, 1e-7):
        ends = []
        for sign in (1, -1):
            moved = copies(point)
            for k, d in direction.items():
                moved[k] += (sign * step * d).astype(moved[k].dtype)
            start = copies(moved)
            found = outputs(moved, start, plain(*moved))
            ends.append(sum(inner(s, np.asarray(y, dtype=s.dtype)) for s, y in zip(seeds, found)))
        seen.append((ends[0] - ends[1]) / (2 * step))
        if abs(seen[-1] - mine) <= (1e-2 if single else 1e-5) * max(scale, 1e-30):
            return ""
    return f"gradient {mine:.8g}, differences {', '.join(f'{s:.8g}' for s in seen)}"


def inner(a, b):
    return float(np.sum((np.conj(a) * b).real, dtype=np.float64))


def by_jax(function, point, active, repeat):
    """Seconds that JAX takes for the same values and derivative, compiled."""
    import jax

    jax.config.update("jax_enable_x64", True)

    def objective(*moving):
        full = list(point)
        for k, v in zip(active, moving):
            full[k] = v
        return [v for v in jax.tree_util.tree_leaves(function(*full)) if jax.numpy.issubdtype(v.dtype, np.inexact)]

    @jax.jit
    def gradient(*moving):
        value, pull = jax.vjp(objective, *moving)
        return value, pull([jax.numpy.ones_like(v) for v in value])

    moving = [point[k] for k in active]
    return interleaved([lambda: timed(lambda: jax.block_until_ready(gradient(*moving)))], repeat)[0]


def timed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
