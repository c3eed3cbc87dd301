"""Every function of SciPy that has a rule, with drawn arrays of all layouts and precisions: the derivative is that of
finite differences, or the call is refused by name."""

import importlib
import zlib

import numpy as np
import pytest
import scipy
from drawn_calls import decided, one_of
from scipy_calls import CALLS

import ampi
from ampi.foreign.scipy import WITH_RULES
from ampi.foreign.scipy.guards import refuse
from ampi.interception import hooks as libraries

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
OBJECTS = {"scipy.interpolate", "scipy.sparse", "scipy.sparse.linalg"}
ELSEWHERE = {
    "solve_ivp",  # tests/foreign/scipy/test_scipy_integrate.py: its functions are the program's
    "interpn",
    "make_interp_spline",
    *("sgtsv", "dgtsv", "cgtsv", "zgtsv"),  # which have results without derivatives
    "round",
    "_from_rest",
}


def named(name):
    module, _, function = f"scipy.{name.partition(' ')[0]}".rpartition(".")
    return getattr(importlib.import_module(module), function, None)


def of_rules():
    """The public names of SciPy's functions with a rule, without methods."""
    for part in WITH_RULES:
        importlib.import_module(part)
    with ampi.Tape():
        pass
    names = set()
    for found in libraries.all_hooks():
        place = f"{getattr(found.original, '__module__', None) or found.name}.{found.__name__}"
        own = getattr(found.original, "__qualname__", found.__name__)
        if (
            place.startswith("scipy.")
            and not place.startswith("scipy.io.")  # which only warn
            and found.handle not in (None, refuse)
            and "." not in str(own)
            and not any(place.startswith(part) for part in OBJECTS)
        ):
            names.add(found.__name__)
    return names


def test_every_function_with_a_rule_is_called():
    called = {name.partition(" ")[0].rpartition(".")[2] for name in CALLS}
    assert sorted(of_rules() - called - ELSEWHERE) == []
    assert len(of_rules()) > 80


@pytest.mark.parametrize("seed", [0, *[pytest.param(k, marks=pytest.mark.slow) for k in range(1, 40)]])
def test_drawn_calls(seed):
    wrong, right, never = [], 0, []
    for name, call in CALLS.items():
        function = named(name)
        if function is None:
            continue
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        outcomes = set()
        for chance in (0.0, 0.3, 0.8):
            keywords = {key: one_of(rng, values) for key, values in call.may.items() if rng.random() < chance}
            program, found = decided(function, rng, call, keywords, precise=bool(rng.integers(2)))
            outcomes.add(found)
            if found not in ("right", "refused", None):
                wrong.append(f"scipy.{name}: {program.given}, active {program.active}: {found}")
        right += "right" in outcomes
        if outcomes == {None}:
            never.append(name)
    assert not wrong, "\n".join(wrong)
    assert right > 0.8 * len(CALLS), (scipy.__version__, never)
