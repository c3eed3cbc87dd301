"""Kernels and functions written out for each number of arguments, since kernels cannot have ``*arguments``.

``of_2(f, a, b, result)`` applies a kernel of single elements to two 1-d arrays.  ``call_of_2(f)`` returns a Python
function of two arguments that calls a compiled function, ``call_into_2(f)`` one that also passes an array for the
result.
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
    def call(a):
        return f(a)

    return call


def call_of_2(f):
    def call(a, b):
        return f(a, b)

    return call


def call_of_3(f):
    def call(a, b, c):
        return f(a, b, c)

    return call


def call_of_4(f):
    def call(a, b, c, d):
        return f(a, b, c, d)

    return call


def call_of_5(f):
    def call(a, b, c, d, e):
        return f(a, b, c, d, e)

    return call


def call_of_6(f):
    def call(a, b, c, d, e, g):
        return f(a, b, c, d, e, g)

    return call


def call_into_1(f):
    def call(a, out):
        return f(a, out=out)

    return call


def call_into_2(f):
    def call(a, b, out):
        return f(a, b, out=out)

    return call


def call_into_3(f):
    def call(a, b, c, out):
        return f(a, b, c, out=out)

    return call


def call_into_4(f):
    def call(a, b, c, d, out):
        return f(a, b, c, d, out=out)

    return call
