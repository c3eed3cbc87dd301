"""Kernels that apply a function of elements to 1-d arrays: ``of_2`` to two arrays.

``call_of_2(f)`` is a Python function of two elements that calls a compiled function.
"""

from ..kernel import kernel


@kernel
def of_1(f, a, result):
    for i in range(result.shape[0]):
        result[i] = f(a[i])


@kernel
def of_2(f, a, b, result):
    for i in range(result.shape[0]):
        result[i] = f(a[i], b[i])


@kernel
def of_3(f, a, b, c, result):
    for i in range(result.shape[0]):
        result[i] = f(a[i], b[i], c[i])


@kernel
def of_4(f, a, b, c, d, result):
    for i in range(result.shape[0]):
        result[i] = f(a[i], b[i], c[i], d[i])


@kernel
def of_5(f, a, b, c, d, e, result):
    for i in range(result.shape[0]):
        result[i] = f(a[i], b[i], c[i], d[i], e[i])


@kernel
def of_6(f, a, b, c, d, e, g, result):
    for i in range(result.shape[0]):
        result[i] = f(a[i], b[i], c[i], d[i], e[i], g[i])


def call_of_1(f):
    def element(a):
        return f(a)

    return element


def call_of_2(f):
    def element(a, b):
        return f(a, b)

    return element


def call_of_3(f):
    def element(a, b, c):
        return f(a, b, c)

    return element


def call_of_4(f):
    def element(a, b, c, d):
        return f(a, b, c, d)

    return element
