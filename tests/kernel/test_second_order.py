"""Derivatives of derivatives: generated programs are themselves kernels."""

import numpy as np
import pytest
from kernel_cases import CASES
from kernel_checks import Check, activity_patterns, load, make_arguments


def first_order(name, kind):
    """The adjoint (or tangent) of a kernel as a kernel: its code, the callable, arguments and active ones."""
    arguments = make_arguments(name)
    active = activity_patterns(CASES[name].function, arguments)[0]
    check = Check(CASES[name].function, arguments, active)
    if kind == "adjoint":
        array_seeds, result_seeds = check.seeds()
        arguments = [*arguments, *array_seeds.values(), *result_seeds]
    else:
        direction = check.direction()
        shadows = [direction.get(n, np.zeros_like(check.value[n])) for n in check.tangent.shadows]
        arguments = [*arguments, *shadows, *(direction[n] for n in check.tangent.scalars)]
    code = getattr(check, kind).function
    function = load(code)
    written = dict(zip((a.name for a in code.arguments), function.__code__.co_varnames))
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    return code, function, arguments, [written[name] for name in check.active]


# The second derivative of these is too rough for differences of the given step, or the kernel has no second order.
ROUGH = {"newton", "while_in_loop"}


@pytest.mark.parametrize("kind", ["adjoint", "tangent"])
@pytest.mark.parametrize("name", CASES)
def test_second_order(name, kind):
    code, function, arguments, active = first_order(name, kind)
    Check(function, arguments, active, code=code).compare(1e-11, against_differences=name not in ROUGH)
