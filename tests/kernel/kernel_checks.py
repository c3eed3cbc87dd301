"""Checks of derivatives of kernels: adjoint, tangent and differences, compiled or as plain Python.

The checked function maps the floating-point arguments to the floating-point arrays after the call and such results.
"""

import copy
import functools
import itertools
from dataclasses import dataclass, replace

import numba
import numpy as np
from kernel_cases import CASES, COSTS, random_array
from numba.core.compiler_lock import global_compiler_lock
from only_types import only_types

from ampi.kernel import pipeline, programs
from ampi.kernel.codegen import emit
from ampi.kernel.differentiate.derivative import Derivative
from ampi.kernel.options import ALL_ON, Options
from ampi.kernel.runtime import threads
from ampi.kernel.runtime.quick_compilation import quick_compilation


@dataclass
class Program:
    """A kernel and one derivative of it, ready to call."""

    call: object
    derivative: Derivative
    source: str


def make_arguments(name, dtype=np.float64, seed=1):
    rng = np.random.default_rng(seed)
    return [a(rng, dtype) if callable(a) else a for a in CASES[name].arguments]


def without(*names, **options):
    """Options with these analyses switched off."""
    return Options(without=frozenset(names), **options)


def kernel_ir(function, arguments):
    return ir_for(function, tuple(map(numba.typeof, arguments)))


@functools.cache
def ir_for(function, types):
    with only_types():
        return pipeline.as_loops(pipeline.parsed(function, types))


@functools.cache
def header():
    """What generated programs import."""
    found = {}
    exec(emit.HEADER, found)
    return found


def load(function, jit=False, **options):
    """A generated function as a callable, compiled or as plain Python."""
    (function,) = emit.spelled(function)
    namespace = {**header(), **dict(function.constants), "COSTS": COSTS}
    text = emit.source(function)
    if not jit:
        text = text.replace("@separate\n", "")
    exec(compile(text, "<generated>", "exec"), namespace)
    for part in emit.parts(function) if jit else ():
        namespace[part.name] = compiled(namespace[part.name])
    call = namespace[function.name]
    return compiled(call, **options) if jit else call


def compiled(function, **options):
    """A function compiled in the way of generated programs, but not stored."""
    made = numba.njit(function, error_model="numpy", no_cfunc_wrapper=True, **options)
    compile = made.compile

    def compile_quickly(signature):
        with global_compiler_lock, quick_compilation():
            return compile(signature)

    made.compile = compile_quickly
    return made


def is_float(value):
    return np.asarray(value).dtype.kind in "fc"


def float_arguments(function, arguments):
    names = function.__code__.co_varnames[: len(arguments)]
    return [n for n, a in zip(names, arguments) if is_float(a)]


def activity_patterns(function, arguments):
    """Activity patterns: all arguments, each one alone, and pairs if there are three."""
    names = float_arguments(function, arguments)
    patterns = [tuple(names)] + [(n,) for n in names if len(names) > 1]
    return patterns + [tuple(c) for c in itertools.combinations(names, 2)] if len(names) == 3 else patterns


def copies(arguments):
    return [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]


def run(function, arguments):
    """The arguments after a call, and the results, as two lists."""
    arguments = copies(arguments)
    result = function(*arguments)
    results = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    return arguments, results


def unknown(value):
    """An array of nan in place of one whose values must not be used."""
    return np.full_like(value, np.nan) if isinstance(value, np.ndarray) and is_float(value) else value


def pairing(a, b):
    """The real inner product of two lists of arrays and scalars."""
    return sum(float(np.sum((np.conj(x) * y).real)) for x, y in zip(a, b))


def derivative(build, code, active, options):
    """A derivative of a kernel, with its constant arrays turned back into globals."""
    return with_globals(build(programs.with_constants(code), active, options), code)


def with_globals(built, code):
    return replace(built, function=programs.without_constants(built.function, code))


class Programs:
    """The derivatives of a kernel, as plain Python or compiled, made when they are needed."""

    def __init__(self, code, active, options, jit):
        self.code, self.active, self.options, self.jit = code, active, options, jit

    @functools.cached_property
    def adjoints_of_both_forms(self):
        return pipeline.Adjoint(programs.with_constants(self.code), self.active, self.options)

    @functools.cached_property
    def adjoint(self):
        return with_globals(self.adjoints_of_both_forms.whole(), self.code)

    @functools.cached_property
    def split(self):
        """The split adjoint, or None."""
        both = pipeline.Adjoint(programs.with_constants(self.code), self.active, replace(self.options, after=True))
        both._known = self.adjoints_of_both_forms._known  # analyses do not depend on that option
        built = both.split()
        if built is None:
            return None
        forward = programs.without_constants(built.forward, self.code)
        return replace(built, forward=forward, derivative=with_globals(built.derivative, self.code))

    @functools.cached_property
    def tangent(self):
        return derivative(pipeline.build_tangent, self.code, self.active, self.options)

    @functools.cached_property
    def run_adjoint(self):
        return load(self.adjoint.function, self.jit)

    @functools.cached_property
    def run_tangent(self):
        return load(self.tangent.function, self.jit)

    @functools.cached_property
    def run_forward(self):
        return load(self.split.forward, self.jit)

    @functools.cached_property
    def run_reverse(self):
        return load(self.split.derivative.function, self.jit)


class Check:
    """One kernel, its arguments and an activity pattern, with its `Programs`."""

    def __init__(self, function, arguments, active, options=ALL_ON, jit=False, code=None):
        self.function, self.arguments, self.active = function, arguments, active
        self.rng = np.random.default_rng(5)
        self.names = function.__code__.co_varnames[: len(arguments)]
        code = kernel_ir(function, arguments) if code is None else code
        renamed = {n: a.name for n, a in zip(self.names, code.arguments)}
        self.names = tuple(renamed[n] for n in self.names)
        self.active = tuple(renamed[n] for n in active)
        self.value = dict(zip(self.names, arguments))
        self.programs = Programs(code, self.active, options, jit)

    def __getattr__(self, name):
        if name in vars(Programs):
            return getattr(self.programs, name)
        raise AttributeError(name)

    def at(self, arguments):
        """The same check at other arguments of the same types."""
        assert list(map(numba.typeof, arguments)) == list(map(numba.typeof, self.arguments))
        other = copy.copy(self)
        other.arguments, other.value = arguments, dict(zip(self.names, arguments))
        return other

    def like(self, value):
        """A random perturbation of the same type as a value."""
        value = np.asarray(value)
        return np.asarray(random_array(self.rng, value.dtype, value.shape, -1.0, 1.0))[()]

    def direction(self):
        return {n: self.like(self.value[n]) for n in self.active}

    def tangents(self, direction):
        """Tangents of the shadowed arrays after the call and of the active results, by the generated program."""
        arrays = {n: np.array(direction.get(n, np.zeros_like(self.value[n]))) for n in self.tangent.shadows}
        scalars = [direction[n] for n in self.tangent.scalars]
        out = self.run_tangent(*copies(self.arguments), *arrays.values(), *scalars)
        n = sum(self.tangent.result_active)
        return [*arrays.values(), *(out[len(out) - n :] if n else ())]

    def differences(self, direction, h=1e-3):
        """The same tangents by fourth-order differences."""

        def moved(t):
            point = [a + t * direction[n] if n in direction else a for n, a in zip(self.names, self.arguments)]
            point = [np.asarray(p, np.asarray(a).dtype)[()] if n in direction else p
                     for n, p, a in zip(self.names, point, self.arguments)]  # fmt: skip
            after, results = run(self.function, point)
            named = dict(zip(self.names, after))
            active = [r for r, is_active in zip(results, self.tangent.result_active) if is_active]
            return [*(named[n] for n in self.tangent.shadows), *active]

        values = {k: moved(k * h) for k in (-2, -1, 1, 2)}
        return [(8 * (c - b) - (d - a)) / (12 * h) for a, b, c, d in zip(*(values[k] for k in (-2, -1, 1, 2)))]

    def compare_with_complex_step(self):
        """Compare tangents of all arrays after the call and of all results with complex steps of the Python kernel."""
        direction = self.direction()
        moved = [v + 1e-30j * direction[n] if n in direction else v for n, v in self.value.items()]
        results = self.function(*moved)
        named = dict(zip(self.names, moved))
        expected = [*(named[n] for n in self.tangent.shadows), *(results if isinstance(results, tuple) else [results])]
        for mine, theirs in zip(self.tangents(direction), expected, strict=True):
            slope = np.imag(theirs) / 1e-30
            np.testing.assert_allclose(mine, slope, rtol=1e-9, atol=1e-12 * (1 + np.abs(slope).max()))

    def seeds(self):
        _, results = run(self.function, self.arguments)
        active = [r for r, is_active in zip(results, self.adjoint.result_active) if is_active]
        return {n: self.like(self.value[n]) for n in self.adjoint.shadows}, [self.like(r) for r in active]

    def adjoints(self, array_seeds, result_seeds):
        """The adjoint of every active argument, and of arrays that were passive on entry, by name."""
        shadows = {n: np.array(s) for n, s in array_seeds.items()}
        before = copies(self.arguments)
        arguments = copies(self.arguments)
        seeds = [np.array(s) if np.ndim(s) else s for s in result_seeds]
        flags = [threads.distinct(self.value[n]) for n in self.adjoint.distinct]
        flags += [False for _ in self.adjoint.new]
        changed = dict(zip(self.names, run(self.function, self.arguments)[0])) if self.adjoint.after else {}
        after = [changed[n] for n in self.adjoint.after]
        out = self.run_adjoint(*arguments, *shadows.values(), *seeds, *after, *flags)
        for name, a, b in zip(self.names, arguments, before):
            np.testing.assert_array_equal(a, b, err_msg=f"the adjoint changed {name}")
        return {**shadows, **dict(zip(self.adjoint.scalars, out))}

    def adjoints_of_parts(self, array_seeds, result_seeds, tolerance=None):
        """The same adjoints by the split adjoint, whose first part runs instead of the kernel; its values are compared,
        too, if a tolerance is given."""
        derivative = self.split.derivative
        after = copies(self.arguments)
        found = self.run_forward(*after)
        expected, results = run(self.function, self.arguments)
        if tolerance is not None:
            for name, a, b in zip((*self.names, *("result" for _ in results)), (*after, *found), (*expected, *results)):
                np.testing.assert_allclose(a, b, 1e3 * tolerance, tolerance, err_msg=f"by the first part: {name}")
        shadows = {n: np.array(s) for n, s in array_seeds.items()}
        seeds = [np.array(s) if np.ndim(s) else s for s in result_seeds]
        flags = [threads.distinct(self.value[n]) for n in derivative.distinct]
        flags += [False for _ in derivative.new]
        values = [a if n in derivative.needs else unknown(a) for n, a in zip(self.names, copies(self.arguments))]
        named = dict(zip(self.names, after))
        kept = found[len(results) :]
        out = self.run_reverse(*values, *shadows.values(), *seeds, *(named[n] for n in derivative.after), *kept, *flags)
        return {**shadows, **dict(zip(derivative.scalars, out))}

    def compare(self, tolerance, against_differences=True, values=None):
        """Compare adjoints with tangents, and these with differences; ``values``: also compare the values of a split
        adjoint's first part with the kernel's (by default if tangents are compared with differences)."""
        values = against_differences if values is None else values
        direction = self.direction()
        array_seeds, result_seeds = self.seeds()
        bars = self.adjoints(array_seeds, result_seeds)
        if self.split is not None:
            parts = self.adjoints_of_parts(array_seeds, result_seeds, tolerance if values else None)
            largest = max((np.max(np.abs(a), initial=0.0) for a in bars.values()), default=0.0)
            for name, bar in bars.items():
                np.testing.assert_allclose(parts[name], bar, rtol=0, atol=tolerance * (1.0 + largest), err_msg=name)
        left = pairing([bars[n] for n in direction], list(direction.values()))
        seeds = [*array_seeds.values(), *result_seeds]
        tangents = self.tangents(direction)
        right = pairing(seeds, tangents)
        size = 1.0 + sum(float(np.sum(np.abs(s) * np.abs(t))) for s, t in zip(seeds, tangents))
        assert abs(left - right) <= tolerance * size, (left, right)
        if against_differences:
            for computed, expected in zip(tangents, self.differences(direction)):
                np.testing.assert_allclose(computed, expected, rtol=1e-8, atol=1e-8 * size)
        return left
