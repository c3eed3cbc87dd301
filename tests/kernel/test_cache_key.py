"""Everything on which compiled code depends is part of its key in the cache."""

import enum
import os
import subprocess
import sys
import types
from collections import namedtuple

import numba
import numpy as np
import pytest
from numba.core import config
from patience import patience

import ampi
from ampi.base import checks
from ampi.kernel import ANALYSES, dispatcher
from ampi.kernel.runtime import cache

SETTINGS = sorted(n for n in vars(config) if n.isupper() and not n.startswith("CUDA_"))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_numba_is_in_the_key_unless_it_changes_no_code(name, monkeypatch):
    before = cache.key()
    monkeypatch.setattr(config, name, "another value")
    assert (cache.key() != before) == (name not in cache.WITHOUT_EFFECT)


def test_settings_that_change_no_code_are_numbas():
    """Those known to change code are not among them."""
    known = "BOUNDSCHECK OPT CPU_NAME CPU_FEATURES ENABLE_AVX DISABLE_INTEL_SVML LOOP_VECTORIZE SLP_VECTORIZE"
    assert set(known.split()) <= set(SETTINGS) - cache.WITHOUT_EFFECT
    assert cache.WITHOUT_EFFECT <= set(SETTINGS)


def test_the_checks_that_are_asked_for_are_in_the_key(monkeypatch):
    keys = set()
    for level in (checks.DEFAULT, checks.FULL):
        monkeypatch.setattr(checks, "level", level)
        keys.add(cache.key())
    assert len(keys) == 2


VARIABLES = [
    {"NUMBA_BOUNDSCHECK": "1"},
    {"NUMBA_OPT": "0"},
    {"NUMBA_CPU_NAME": "generic"},
    {"NUMBA_ENABLE_AVX": "0"},
    {"AMPI_CHECK": "full"},
    {"AMPI_WITHOUT": "slice"},
]


def test_the_environment_is_in_the_key():
    program = (
        "import ampi; from ampi.kernel.runtime import cache\n@ampi.kernel\ndef f(x):\n    return x\n"
        "print(cache.key(f.identity))"
    )

    def start(changes):
        clean = {k: v for k, v in os.environ.items() if not any(k in c for c in VARIABLES)}
        return subprocess.Popen(
            [sys.executable, "-c", program], env={**clean, **changes}, stdout=subprocess.PIPE, text=True
        )

    same = [{}, {"NUMBA_NUM_THREADS": "1"}, {"PYTHONHASHSEED": "7", "NUMBA_COLOR_SCHEME": "dark_bg"}]
    keys = [p.communicate(timeout=patience(100))[0].strip() for p in map(start, (*same, *VARIABLES))]
    assert keys[0] and keys[: len(same)] == [keys[0]] * len(same)
    assert len(set(keys[len(same) - 1 :])) == 1 + len(VARIABLES)


def of_options(**options):
    def f(x):
        return x * 2.0

    kernel = ampi.kernel(**options)(f)
    return cache.key(kernel.identity)


CHOICES = {
    "parallel": [True, {"reduction": False}],
    "fastmath": [True, {"nnan", "contract"}, {"nnan", "arcp"}],
    "error_model": ["python"],
    "inline": ["always"],
    "without": ["slice", "split"],
}


@pytest.mark.parametrize("name", sorted((dispatcher._OPTIONS | {"deterministic", "without"}) - {"cache", "nopython"}))
def test_every_option_of_a_kernel_is_in_the_key(name):
    values = CHOICES.get(name, [True])
    assert len({of_options(), *(of_options(**{name: v}) for v in values)}) == 1 + len(values)


def test_the_order_of_a_set_of_options_is_not_in_the_key():
    flags = ["nnan", "ninf", "nsz", "arcp", "contract"]
    texts = {repr(cache.of_options({"fastmath": set(f)})) for f in (flags, flags[::-1], flags[2:] + flags[:2])}
    assert len(texts) == 1


def test_every_analysis_is_in_the_key():
    assert len({of_options(without=a) for a in ANALYSES}) == len(ANALYSES)


# ------------------------------------------------------------------------------------------------ what code names

Pair = namedtuple("Pair", "a b")
Other = namedtuple("Pair", "b a")


def module(**names):
    made = types.ModuleType("constants")
    vars(made).update(names)
    return made


def callee(factor):
    @numba.njit
    def g(x):
        return x * factor

    return g


def with_default(value):
    def g(x, *, factor=value):
        return x * factor

    return numba.njit(g)


def registered(factor):
    return numba.extending.register_jitable(lambda x: x * factor)


def overloaded(factor):
    def g(x):
        raise NotImplementedError

    @numba.extending.overload(g)
    def of_types(x):
        def compiled(x):
            return x * factor

        return compiled

    return g


PAIRS = {
    "number": (1.0, 2.0),
    "sign of zero": (0.0, -0.0),
    "int and float": (1, 1.0),
    "array": (np.array([1.0, 2.0]), np.array([1.0, 3.0])),
    "dtype of an array": (np.zeros(1), np.zeros(2, np.float32)),
    "fields of an array": (np.zeros(1, [("a", "f8")]), np.zeros(1, [("b", "f8")])),
    "tuple": ((1.0, 2.0), (1.0, 3.0)),
    "constant of a module": (module(g=1.0), module(g=2.0)),
    "constant of a module in a module": (module(g=module(h=1.0)), module(g=module(h=2.0))),
    "function": (callee(1.0), callee(2.0)),
    "default of a function": (with_default(1.0), with_default(2.0)),
    "function of an extension": (registered(1.0), registered(2.0)),
    "function with overloads": (overloaded(1.0), overloaded(2.0)),
    "enumeration": (enum.IntEnum("E", {"g": 1}), enum.IntEnum("E", {"g": 2})),
    "fields of a tuple": (Pair, Other),
    "dtype": (np.dtype("f4"), np.dtype("f8")),
    "type": (numba.float32, numba.float64),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_a_kernel_names_is_in_its_identity(name):
    def using(value):
        def f(x):
            return x * value.g.h + value(x)

        return cache.key(cache.identity(f))

    first, second = PAIRS[name]
    assert using(first) != using(second)
    assert using(first) == using(first)
