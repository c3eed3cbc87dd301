"""A table of kernels for each switch of the differentiator: those whose programs the switch changes.

Tests check that these programs do differ without the analysis: comparing a program with itself would test nothing.
``python tests/kernel/switch_cases.py`` prints the current table.
"""

import numba
import numpy as np
import test_passes
import test_stages
from kernel_cases import CASES
from kernel_checks import Check, activity_patterns, make_arguments

from ampi.kernel import ANALYSES
from ampi.kernel.codegen import emit
from ampi.kernel.frontend.language import large_calls
from ampi.kernel.optimise import loop_distribution
from ampi.kernel.options import Options
from ampi.kernel.separate_functions import primal


def no_axes(x, y):
    for i in range(len(x)):
        t = np.zeros_like(np.asarray(x[i]))
        for _ in range(3):
            t[()] += x[i] * (x[i] * t[()] + 1.0)
        y[i] = t[()]


@numba.njit
def bent(p, q):
    s = p * q + 1.0
    s = s * np.sin(s) + p * p
    s = s * q - p / (1.0 + q * q)
    return s * s + p * q


def called_twice(x, y):
    for i in range(len(x)):
        y[i] = bent(x[i], y[i]) * bent(y[i], 0.3)


def vector(seed, size=12):
    return np.random.default_rng(seed).uniform(0.5, 1.5, size)


FURTHER = {
    "scratch": (test_passes.scratch, (vector(1), vector(2))),
    "on_both_sides": (test_passes.on_both_sides, (vector(1), vector(2))),
    "exponentials": (test_passes.exponentials, (vector(1), vector(2))),
    "running": (test_passes.running, (vector(1), vector(2))),
    "filtered": (test_passes.filtered, (vector(1), vector(2))),
    "of_pairs": (test_stages.of_pairs, test_stages.arguments("of pairs", 40)),
    "of_a_chain": (test_stages.of_a_chain, (vector(1, 300), vector(2, 300))),
    "no_axes": (no_axes, (vector(1), vector(2))),
    "short": (test_passes.short, (vector(1),)),
    "chosen": (test_passes.chosen, (vector(1) - 1.0, vector(2))),
    "rows_of_sums": (test_passes.rows, (vector(1, (4, 5)), vector(2, 4))),
    "gathered": (test_passes.gathered, (vector(1), np.arange(12) % 5, vector(2))),
    "stencil_of_two": (test_passes.stencil, (vector(1), vector(2))),
    "in_two_loops": (test_passes.in_two_loops, (vector(1), vector(2))),
    "flattened": (test_passes.flattened, (vector(1, (3, 4)),)),
    "layers": (test_passes.layers, (vector(1, (4, 3)), vector(2, (5, 3)), vector(3, (5, 4)))),
    "product_of_two": (test_passes.product, (vector(1, (3, 4)), vector(2, (4, 5)), vector(3, (3, 5)))),
    "shortest": (test_passes.shortest, (vector(1, (4, 4)),)),
    "squares": (test_passes.squares, (vector(1), vector(2))),
    "called_twice": (called_twice, (vector(1), vector(2))),
}

CHANGED = {
    "calls": "called_twice",
    "simplify": "local_array",
    "unroll": "short n_body local_array",
    "scalarise": "local_array no_axes",
    "private": "scratch",
    "loads": "on_both_sides",
    "activity": "exponentials axpy gather stencil strides dot own_index clamped matrix_product guarded",
    "sources": "scratch of_a_chain in_place recurrence_backwards own_index permuted rows thomas work_array",
    "snapshots": "boundary_loads_in_time heat nonlinear_stencil_in_time",
    "outcomes": "shortest",
    "kept": "exponentials",
    "stored": "running",
    "independence": "scratch of_pairs chosen in_place stencil periodic_stencil heat triangular_solve clamped extrema",
    "ends": "axpy guarded",
    "split": "exponentials scatter recurrence_backwards runge_kutta newton own_index extrema thomas",
    "slice": "scratch running filtered axpy in_place gather newton early_return while_in_loop sparse_product n_body",
    "products": "layers",
    "batched": "layers",
    "sums": "scratch of_pairs sparse_product",
    "gather": "stencil_of_two boundary_loads_in_time nonlinear_stencil_in_time work_array",
    "behind": "stencil_of_two boundary_loads_in_time nonlinear_stencil_in_time",
    "reciprocals": "of_pairs of_a_chain product newton norm_then_scale",
    "strips": "gathered gather heat runge_kutta scatter_add",
    "chains": "running filtered",
    "local": "in_two_loops",
    "allocations": "scratch nested_recurrences",
    "branches": "chosen bits_and_integers",
    "stages": "of_a_chain",
    "flat": "flattened",
    "new": "exponentials running squares scatter skipped_iterations",
    "destinations": "product_of_two",
    "room": "newton last_value_before_an_exit",
    "separate": "gathered gather heat runge_kutta scatter_add",
}
"""Switches, and some of the kernels that they change: at least one for each switch."""


def kernel_and_arguments(name):
    if name in FURTHER:
        return FURTHER[name]
    return CASES[name].function, make_arguments(name)


def check_without(name, switch):
    """A check of a kernel's programs for calls on a tape, with an analysis switched off."""
    function, arguments = kernel_and_arguments(name)
    switched_off = frozenset({switch} - {""})
    code = primal(function, tuple(map(numba.typeof, arguments)), (), frozenset(), switched_off)
    active = activity_patterns(function, arguments)[0 if name in FURTHER else -1]
    flat = name == "flattened"  # plain Python checks indices
    switches = {"separate": switch != "separate", "unchecked": flat}
    options = Options(switched_off, **switches, reassociate=True, after=True, plain=True)
    return Check(function, list(arguments), active, options, flat, code)


def programs(check):
    """The texts of a kernel's generated programs."""
    made = [check.adjoint.function, check.tangent.function]
    if check.split is not None:
        made += [check.split.forward, check.split.derivative.function]
    return [emit.source(f) for f in made]


def table(names):
    """For each analysis, the kernels whose programs it changes."""
    found = {switch: [] for switch in ANALYSES}
    for name in names:
        everything = programs(check_without(name, ""))
        for switch in ANALYSES:
            if programs(check_without(name, switch)) != everything:
                found[switch].append(name)
    return found


if __name__ == "__main__":
    loop_distribution.CYCLES_OF_A_DIVISION, loop_distribution.MAX_TAKEN = 1, 100  # as in test_switches
    large_calls.LARGE = 10
    for switch, names in table([*FURTHER, *CASES]).items():
        print(f'    "{switch}": "{" ".join(names)}",')
