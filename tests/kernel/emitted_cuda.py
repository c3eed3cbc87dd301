"""Compares emitted CUDA sources with the lowered form: interpreted, which finds races and divergent barriers in them,
or run in Numba's simulator.

As a program it examines random kernels (``emitted_cuda.py FIRST COUNT``) or those of ``test_emitted_cuda`` that are
named, with ``NUMBA_ENABLE_CUDASIM=1`` in the simulator, where launches are small: it takes a thread of Python for each
thread.
"""

import ast
import cmath
import itertools
import linecache
import math
import re
import sys
import threading
import types
import warnings

import numpy as np
import random_cuda
from numba import config
from numba import types as numba_types
from numba.np import numpy_support
from random_cuda import copied
from random_dresses import with_fields

import ampi
from ampi.errors import KernelError
from ampi.kernel.cuda import emission
from ampi.kernel.cuda.interpreter import interpret
from ampi.kernel.frontend.base.cuda_names import NAMES
from ampi.kernel.gpu import added_on_host, blocks_of, parts_of


def with_one_shared_array_each():
    """Mend Numba's simulator: threads that meet the allocation of a shared array at once could get an array each."""
    from numba.cuda.simulator import kernelapi

    lock = threading.Lock()

    def array(self, shape, dtype, alignment=None):
        dtype = numpy_support.as_dtype(dtype) if isinstance(dtype, numba_types.Type) else np.dtype(dtype)
        if shape == 0:
            return np.frombuffer(self._dynshared.data, dtype, self._dynshared_size // dtype.itemsize)
        caller = sys._getframe(1)
        key = caller.f_code.co_filename, caller.f_lineno
        with lock:
            if key not in self._allocations:
                self._allocations[key] = np.empty(shape, dtype)
            return self._allocations[key]

    kernelapi.FakeCUDAShared.array = array


if config.ENABLE_CUDASIM:
    with_one_shared_array_each()


def loaded(made, order=None):
    """The function that launches an emitted program: in the simulator if that is on, else interpreted."""
    space = {"__name__": "emitted"}
    name = f"<emitted {next(NUMBERS)}>"
    linecache.cache[name] = (len(made.text), None, made.text.splitlines(True), name)
    code = compile(made.text, name, "exec")
    if config.ENABLE_CUDASIM:
        exec(code, space)
        return space[made.launch]
    module = types.ModuleType("ampi.cuda")
    vars(module).update(NAMES, jit=lambda function: Interpreted(function, order))
    header = emission.HEADER.strip().splitlines()[-1]
    assert header.startswith("from ampi.kernel.gpu import")
    hosts = {"blocks_of": blocks_of, "copied": np.copy, "number": lambda a: a[0], "zeros": np.zeros}
    hosts["added"] = added_on_host
    hosts["empty"] = lambda shape, dtype: np.full([max(n, 1) for n in shape], 77, dtype)
    hosts["parts"] = parts_of
    space |= {"cuda": module, "cmath": cmath, "math": math, "np": np, **hosts}
    text = made.text.replace(header, "")
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), space)
    return space[made.launch]


class Interpreted:
    """An emitted kernel run by the interpreter."""

    def __init__(self, function, order):
        self.function, self.order = function, order

    def __getitem__(self, configuration):
        grid, block = configuration[:2]
        return lambda *given: interpret(self.function, blocks_of(grid), block, 0, given, self.order)


NUMBERS = itertools.count()


def is_active(value):
    return isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")


def compare(launch, given, tolerance=1e-12, text="", order=None, second=True):
    """Compare the emitted kernel, its adjoint, tangent and second order with the lowered kernel and its derivatives."""
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale, err_msg=text)
    scale = 1 + max((float(np.max(abs(v), initial=0)) for v in given if is_active(v)), default=0)
    expected, found = ([copied(v) for v in given] for _ in range(2))
    launch(*expected)
    loaded(emission.emitted(launch, given, "primal"), order)(launch.grid, *found)
    for x, y in zip(found, expected):
        close(x, y)
    active = [k for k, v in enumerate(given) if is_active(v)]
    arrays = [k for k in active if isinstance(given[k], np.ndarray)]
    draw = np.random.default_rng(3)
    weights = {k: draw.normal(size=given[k].shape) for k in arrays}
    directions = {k: draw.normal(size=np.shape(given[k])) for k in active}

    def objective(*x):
        values = [copied(v) for v in given]
        for k, v in zip(active, x):
            values[k] = v + 0
        launch(*values)
        return sum(ampi.numpy.sum(weights[k] * values[k]) for k in arrays)

    gradient = dict(zip(active, ampi.grad(objective, argnums=tuple(range(len(active))))(*[given[k] for k in active])))
    scale = 1 + max(float(np.max(abs(np.asarray(g)), initial=0)) for g in gradient.values())
    names = list(launch.kernel._signature.parameters)
    of = {name: k for k, name in enumerate(names)}

    made = emission.emitted(launch, given, "adjoint")
    shadows = {k: weights[k].astype(given[k].dtype) for k in arrays}
    arguments = [copied(given[of[n]]) if role == "argument" else shadows[of[n]] for role, n in made.roles]
    numbers = loaded(made, order)(launch.grid, *arguments) or ()
    bars = {**shadows, **dict(zip((k for k in active if k not in arrays), numbers))}
    for k in active:
        close(bars[k], gradient[k])
    for (role, n), value in zip(made.roles, arguments):
        if role == "argument":
            np.testing.assert_array_equal(value, given[of[n]], err_msg=f"the adjoint changes {n}\n{text}")

    made = emission.emitted(launch, given, "tangent")
    dots = {k: copied(np.asarray(directions[k], getattr(given[k], "dtype", float))) for k in active}
    numbers = {k: float(d) for k, d in dots.items() if k not in arrays}
    arguments = [copied(given[of[n]]) if role == "argument" else {**dots, **numbers}[of[n]] for role, n in made.roles]
    loaded(made, order)(launch.grid, *arguments)
    slope = sum(float(np.sum(weights[k] * dots[k])) for k in arrays)
    wanted = sum(float(np.sum(gradient[k] * directions[k])) for k in active)
    size = 1 + sum(float(np.sum(abs(np.asarray(gradient[k]) * directions[k]))) for k in active)
    assert abs(slope - wanted) <= 10 * tolerance * size, (slope, wanted, text)
    for (role, n), value in zip(made.roles, arguments):
        if role == "argument":
            close(value, expected[of[n]])
    if second:
        compare_second(launch, given, order, weights, dots, objective, names, text, tolerance)


def compare_second(launch, given, order, weights, dots, objective, names, text, tolerance):
    """Compare the emitted tangent of the adjoint with the gradient and the Hessian's product of the lowered kernel."""
    active = tuple(dots)
    both = ampi.value_and_grad(objective, argnums=tuple(range(len(active))))(*[given[k] for k in active])[1]
    products = ampi.hvp(objective, tuple(given[k] for k in active), tuple(dots.values()))
    made = emission.emitted(launch, given, "second")
    of = {name: k for k, name in enumerate(names)}
    shadows = {k: w.astype(given[k].dtype) for k, w in weights.items()}
    shadow_dots = {k: np.zeros_like(s) for k, s in shadows.items()}
    sources = {"argument": given, "shadow": shadows, "tangent": dots, "shadow tangent": shadow_dots}
    arguments = []
    for role, n in made.roles:
        value = sources[role][of[n]]
        arguments.append(value if role.startswith("shadow") else copied(value) if np.ndim(value) else value + 0)
    found = loaded(made, order)(launch.grid, *arguments) or ()
    numbers = [k for k in active if k not in weights]
    bars = {**shadows, **dict(zip(numbers, found))}
    rest = iter(found[len(numbers) :])
    bar_dots = {**shadow_dots, **{k: next(rest) if d else 0.0 for k, d in zip(numbers, made.dotted)}}
    for wanted, given_ in ((both, bars), (products, bar_dots)):
        scale = 1 + max(float(np.max(abs(np.asarray(g)), initial=0)) for g in wanted)
        for k, expected in zip(active, wanted):
            np.testing.assert_allclose(
                given_[k], expected, rtol=10 * tolerance, atol=10 * tolerance * scale, err_msg=f"{names[k]}\n{text}"
            )


def examine(seed):
    """Compare a random kernel; returns the reason if it is refused."""
    kernel = random_cuda.drawn(seed, small=bool(config.ENABLE_CUDASIM))
    run = kernel.load(f"<cuda kernel {seed}>")
    given = kernel.arguments()
    launch = run[kernel.grid, kernel.block, 0, kernel.dynamic]
    if kernel.draw.random() < 0.25:
        require_same_source_of_fields(kernel, given)
    try:
        compare(
            launch, given, 1e-12 if kernel.tolerance == 1e-9 else 1e-4, text=f"seed {seed}\n{kernel.source}", order=seed
        )
    except KernelError as refused:
        if "in kernel 'kernel'" not in str(refused):
            raise
        return str(refused).splitlines()[0].partition("': ")[2] or str(refused)
    return ""


def require_same_source_of_fields(kernel, given):
    """The sources of a kernel on fields of a structured array are those on three arrays, but for the names."""
    texts = []
    points = np.zeros(given[0].shape, [(name, "f8") for name in "abu"])
    for source, arguments in ((ast.unparse(ast.parse(kernel.source)), given),
                              (with_fields(kernel.source), (points, *given[3:]))):  # fmt: skip
        launch = kernel.load(f"<cuda kernel {kernel.seed}.{len(texts)}>", source)[
            kernel.grid, kernel.block, 0, kernel.dynamic
        ]
        for form in ("primal", "adjoint", "tangent"):
            try:
                texts.append(emission.emitted(launch, arguments, form).text)
            except KernelError as refused:
                texts.append(str(refused).replace(f"{kernel.seed}.1>", f"{kernel.seed}.0>"))
    for plain, of_fields in zip(texts[:3], texts[3:]):
        assert re.sub(r"\bpoints_([abu])(?=\b|_)", r"\1", of_fields) == plain, kernel.source


def main(first, count):
    warnings.simplefilter("ignore")
    reasons = {}
    for seed in range(first, first + count):
        reason = examine(seed)
        reasons.setdefault(reason, []).append(seed)
    for reason, seeds in reasons.items():
        print(f"{len(seeds)} {'compared' if not reason else reason} (seed {seeds[0]})")


def compare_cases(names):
    """Compare kernels of ``test_emitted_cuda``, by their names."""
    import test_emitted_cuda

    warnings.simplefilter("ignore")
    for kernel, (launch, given) in test_emitted_cuda.CASES.items():
        if kernel.__name__ in names:
            compare(kernel[launch], given(), order=5)
            print(f"{kernel.__name__} compared")


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        main(*map(int, sys.argv[1:]))
    else:
        compare_cases(sys.argv[1:])
