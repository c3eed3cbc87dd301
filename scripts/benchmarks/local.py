"""Costs of gradients of small programs, relative to the same code compiled by plain ``numba.njit``."""

import statistics
import time

import numba
import numpy
import resident
from programs import PROGRAMS, Program, random

import ampi
import ampi.numpy

BARS = {"independent": (3.0, 2.5), "recurrence": (4.0, 3.0)}
OPTIONS = {"error_model": "numpy"}  # of both compilers: ampi's own default


def measure(names: list[str], repeat: int) -> list[dict]:
    """A row for each of these programs."""
    return [row(name, PROGRAMS[name](), repeat) for name in names]


def row(name: str, program: Program, repeat: int) -> dict:
    plain, differentiable = numba.njit(program.kernel, **OPTIONS), ampi.kernel(program.kernel, **OPTIONS)
    seed = random(*program.run(numpy, plain, *program.independents).shape, seed=9)

    def primal():
        return program.run(numpy, plain, *program.independents)

    def gradient():
        with ampi.Tape() as tape:
            x = [tape.watch(x) for x in program.independents]
            y = program.run(ampi.numpy, differentiable, *x)
        return tape.gradient(y, x, seed=seed)

    error = check(program, plain, seed, gradient())
    primal_time, gradient_time = interleaved([lambda: seconds(primal), lambda: seconds(gradient)], repeat)
    bar, stretch = BARS[program.group]
    found = {
        "name": name,
        "what": program.name,
        "primal": primal_time,
        "gradient": gradient_time,
        "value": gradient_time / primal_time,
        "unit": "x",
        "bar": bar,
        "stretch": stretch,
        "error": error,
    }
    if program.steps:
        arrays = 3 * sum(x.nbytes for x in program.independents) + 2 * seed.nbytes
        found["bytes_per_step"] = (resident.peak(gradient) - arrays) / program.steps
        found["note"] = (
            f"{found['bytes_per_step']:.0f} bytes a step beside arrays and shadows; live state {program.live}"
        )
    return found


def check(program: Program, plain, seed: numpy.ndarray, gradient) -> float:
    """The gradient against a central difference in a random direction: the relative difference."""
    rng = numpy.random.default_rng(1)
    directions = [rng.standard_normal(x.shape) for x in program.independents]
    exact = sum(float(numpy.vdot(g, d)) for g, d in zip(gradient, directions))
    step = 1e-6
    ends = []
    for sign in (1, -1):
        moved = [x + sign * step * d for x, d in zip(program.independents, directions)]
        ends.append(program.run(numpy, plain, *moved))
    difference = float(numpy.vdot(seed, ends[0] - ends[1])) / (2 * step)
    scale = sum(float(numpy.linalg.norm(g) * numpy.linalg.norm(d)) for g, d in zip(gradient, directions))
    error = abs(exact - difference) / scale
    if error > 1e-5:
        raise SystemExit(f"{program.name}: the gradient is wrong: {exact} against {difference}")
    return error


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(clocks: list, repeat: int, warm_up: int = 3) -> list[float]:
    """Medians of what these functions return, seconds, called in turn."""
    times: list[list[float]] = [[] for _ in clocks]
    for n in range(warm_up + repeat):
        for clock, taken in zip(clocks, times):
            passed = clock()
            if n >= warm_up:
                taken.append(passed)
    return [statistics.median(taken) for taken in times]
