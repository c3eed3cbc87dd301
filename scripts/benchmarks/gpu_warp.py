"""The cases of scripts/bench_gpu in NVIDIA Warp; ``python gpu_warp.py CASE SIZE [cuda]`` prints numbers as JSON."""

import json
import sys
import time

import numpy as np
import warp as wp

STEPS = 10
F = wp.float64


@wp.kernel
def stencil(u: wp.array2d(dtype=F), v: wp.array2d(dtype=F)):
    i, j = wp.tid()
    value = u[i, j]
    if i > 0 and i < u.shape[0] - 1 and j > 0 and j < u.shape[1] - 1:
        around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - F(4.0) * u[i, j]
        value = value + F(0.05) * (F(1.0) + u[i, j] * u[i, j]) * around
    v[i, j] = value + F(0.1) * value * (F(1.0) - value)


@wp.kernel
def relaxed(
    before: wp.array3d(dtype=F),
    after: wp.array3d(dtype=F),
    cx: wp.array(dtype=int),
    cy: wp.array(dtype=int),
    weights: wp.array(dtype=F),
    omega: F,
):
    i, j = wp.tid()
    n = before.shape[1]
    m = before.shape[2]
    density = F(0.0)
    x = F(0.0)
    y = F(0.0)
    for q in range(9):
        f = before[q, (i - cx[q] + n) % n, (j - cy[q] + m) % m]
        density += f
        x += f * F(cx[q])
        y += f * F(cy[q])
    x = x / density
    y = y / density
    for q in range(9):
        f = before[q, (i - cx[q] + n) % n, (j - cy[q] + m) % m]
        along = F(3.0) * (F(cx[q]) * x + F(cy[q]) * y)
        square = F(1.5) * (x * x + y * y)
        equilibrium = weights[q] * density * (F(1.0) + along + F(0.5) * along * along - square)
        after[q, i, j] = f + omega * (equilibrium - f)


@wp.kernel
def squared(u: wp.array2d(dtype=F)):
    i, j = wp.tid()
    u[i, j] = u[i, j] * u[i, j]


@wp.kernel
def energy(u: wp.array2d(dtype=F), total: wp.array(dtype=F)):
    i, j = wp.tid()
    wp.atomic_add(total, 0, u[i, j] * u[i, j] * u[i, j])


@wp.kernel
def summed(u: wp.array2d(dtype=F), power: int, total: wp.array(dtype=F)):
    i, j = wp.tid()
    value = u[i, j]
    if power == 2:
        value = value * value
    wp.atomic_add(total, 0, value)


CX = np.array([0, 1, 0, -1, 0, 1, -1, -1, 1], np.int32)
CY = np.array([0, 0, 1, 0, -1, 1, 1, -1, -1], np.int32)
WEIGHTS = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)


def start(case, size):
    """The input of a case: that of gpu_ampi."""
    i, j = np.indices((size, size)) / size
    field = 1.0 + 0.3 * np.sin(5 * i + 3 * j) + 0.1 * np.cos(17 * i * j)
    return WEIGHTS[:, None, None] * field * (1 + 0.02 * CX[:, None, None] * np.cos(7 * i)) if case == "lbm" else field


def main(case, size, device):
    x = start(case, size)
    constant = [wp.array(c, device=device) for c in (CX, CY, WEIGHTS)]
    given = wp.array(x, dtype=F, device=device, requires_grad=True)

    def run():
        u = wp.clone(given)
        total = wp.zeros(1, dtype=F, device=device, requires_grad=True)
        launch = lambda kernel, *inputs: wp.launch(kernel, dim=(size, size), inputs=list(inputs), device=device)
        if case == "in place":
            launch(squared, u)
            launch(summed, u, 1, total)
        elif case == "reduction":
            launch(energy, u, total)
        elif case == "lbm":
            v = wp.empty_like(u, requires_grad=True)
            launch(relaxed, u, v, *constant, 1.7)
            wp.launch(summed, (9, size * size), [v.reshape((9, size * size)), 2], [total], device=device)
        else:
            v = wp.empty_like(u, requires_grad=True)
            for _ in range(1 if case == "stencil" else STEPS):
                launch(stencil, u, v)
                u, v = v, u
            launch(summed, u, 2, total)
        return total

    def gradient():
        tape = wp.Tape()
        with tape:
            total = run()
        given.grad.zero_()
        tape.backward(total)
        return given.grad

    clock = time.perf_counter if device == "cuda" else time.process_time

    def best(function, seconds=1.0):
        function()
        times = []
        while len(times) < 5 or (sum(times) < seconds and len(times) < 50):
            begin = clock()
            function()
            wp.synchronize()
            times.append(clock() - begin)
        return min(times)

    v = np.cos(np.arange(x.size) * 0.7).reshape(x.shape)
    value = float(run().numpy()[0])
    slope = float(np.sum(gradient().numpy() * v))
    print(json.dumps({"value": value, "slope": slope, "primal": best(run), "gradient": best(gradient)}))


if __name__ == "__main__":
    wp.config.quiet = True
    main(sys.argv[1], int(sys.argv[2]), "cuda" if "cuda" in sys.argv[3:] else "cpu")
