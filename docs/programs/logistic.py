"""Kernels of the documentation."""

import math

import ampi


@ampi.kernel
def logistic(u, dt):
    for i in range(len(u)):
        u[i] += dt * u[i] * (1.0 - u[i])


@ampi.kernel
def sines(x, steps):
    for _ in range(steps):
        x = math.sin(x)
    return x
