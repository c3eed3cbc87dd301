"""Kernels that apply a kernel of single elements to arrays of one dimension; ``of_2`` has two arrays."""

from ampi.kernel import kernel


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
