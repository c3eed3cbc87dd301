"""NumPy's numbers as arguments of Python's modules and built-in functions: the result for a tracked number is that for
NumPy's, or an error that names the line where a derivative would be lost."""

import array
import asyncio
import bisect
import cmath
import collections
import colorsys
import copy
import csv
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import io
import itertools
import json
import logging
import math
import numbers
import operator
import pickle
import pprint
import queue
import random
import sqlite3
import statistics
import string
import struct
import time

import numpy
import pytest

import ampi
import ampi.numpy as anp
from ampi.base import checks

Point = dataclasses.make_dataclass("Point", ["a"])


def what_it_matches(s):
    match s:
        case [*_]:
            return "a sequence"
        case int():
            return "an integer"
        case float():
            return "a number"


@functools.singledispatch
def dispatched(s):
    return "an object"


@dispatched.register
def _(s: float):
    return "a number"


@dispatched.register
def _(s: numpy.ndarray):
    return "an array"


class Encoder(json.JSONEncoder):
    def default(self, o):
        return float(o) if isinstance(o, numpy.floating) else o.tolist()


def written(write):
    file = io.StringIO()
    write(file)
    return file.getvalue()


def extended(values, s):
    values.append(s)
    return values


USES = {
    "json": lambda s: json.dumps({"a": [s, 1.0], "b": {"c": (s, None)}}),
    "json, indented": lambda s: json.dumps([s, {"a": s}], indent=1, sort_keys=True),
    "json to a file": lambda s: written(lambda f: json.dump([s], f)),
    "json, keys": lambda s: json.dumps({s: [s]}),
    "json, default": lambda s: json.dumps([numpy.float64(s), {1: s}, complex(1)], default=lambda o: [o.real, s]),
    "json, encoder": lambda s: json.dumps([s], cls=Encoder),
    "json, single precision": lambda s: json.dumps([s.astype("f4")]),
    "struct": lambda s: struct.pack("d", s),
    "pickle": lambda s: pickle.loads(pickle.dumps(s)),
    "csv": lambda s: written(lambda f: csv.writer(f).writerow([s, 1])),
    "copies": lambda s: (copy.copy(s), copy.deepcopy([s])),
    "mean": lambda s: statistics.mean([s, 2.0]),
    "mean of integers": lambda s: statistics.mean([1, s]),
    "fmean": lambda s: statistics.fmean([s, 2.0]),
    "median": lambda s: statistics.median([s, 2.0, 3.0]),
    "stdev": lambda s: (statistics.stdev([s, 2.0, 3.0]), statistics.pstdev([s, 2.0, 3.0])),
    "fraction": lambda s: fractions.Fraction(s),
    "rounding": lambda s: (round(s), round(s, 1), math.floor(s), math.ceil(s), math.trunc(s)),
    "questions": lambda s: (math.isclose(s, 1.5), math.isnan(s), s.is_integer(), bool(s), not s),
    "math": lambda s: (math.sqrt(s), math.hypot(s, 1.0), math.log(2.0, s), math.atan2(s, 1.0), math.ldexp(s, 2)),
    "math of several": lambda s: (math.fsum([s, 1.0]), math.prod([s, s]), math.dist([s], [0.0])),
    "parts": lambda s: (math.frexp(s), math.modf(s), divmod(s, 1.0), divmod(4.0, s), s // 1, s % 1),
    "cmath": lambda s: cmath.sqrt(s),
    "random": lambda s: (random.Random(1).uniform(0, s), random.Random(1).gauss(0, s), random.Random(1).expovariate(s)),
    "weights": lambda s: random.Random(1).choices([1, 2], weights=[s, 1.0]),
    "seed": lambda s: random.Random(s).random(),
    "timedelta": lambda s: s * 2 > datetime.timedelta(seconds=1).total_seconds(),
    "sorted": lambda s: (sorted([2.0, s, 1.0]), sorted([(s, 1), (0.5, 2)]), heapq.nsmallest(1, [s, 2.0])),
    "bisect": lambda s: bisect.bisect([1.0, 2.0], s),
    "extremes": lambda s: (min(s, 2.0), max(s, 1.0), min([s, 0.5])),
    "sums": lambda s: (sum([s, s]), sum(x * x for x in [s, 1.0]), list(itertools.accumulate([s, 1.0]))),
    "reduce": lambda s: (functools.reduce(operator.mul, [s, 2.0]), operator.truediv(1.0, s), pow(s, 2), pow(2.0, s)),
    "%": lambda s: "%.3f %g %s %r %d" % (s, s, s, s, s),  # noqa: UP031
    "formats": lambda s: f"{s:.3f} {s!r} {s} {s:>10} {s:e} {s:g}" + f"{s:.2f}" + str(s) + repr(s),
    "template": lambda s: string.Template("$a").substitute(a=s),
    "conversions": lambda s: (int(s), float(s), complex(s), complex(s, s)),
    "keys": lambda s: ({s: 1}[1.25], {s, 1.25}, collections.Counter([s, 1.25]), hash(s)),
    "cached": lambda s: functools.lru_cache(lambda x: x * 2)(s),
    "ratio": lambda s: (s.as_integer_ratio(), s.hex()),
    "item": lambda s: (s.item(), s.tolist(), s.conjugate(), s.real, s.imag, s[()]),
    "array.array": lambda s: (array.array("d", [s]), extended(array.array("d"), s)),
    "ctypes": lambda s: (ctypes.c_double(s).value, list((ctypes.c_double * 1)(s))),
    "dataclass": lambda s: (dataclasses.asdict(Point(s)), dataclasses.replace(Point(s), a=s * 2)),
    "pprint": lambda s: pprint.pformat({"a": s}),
    "kinds": lambda s: [
        isinstance(s, kind)
        for kind in (float, int, complex, numbers.Real, numbers.Number, numpy.generic, numpy.floating, (int, float))
    ],
    "match": what_it_matches,
    "singledispatch": dispatched,
    "sqlite3": lambda s: sqlite3.connect(":memory:").execute("select ?*2", (s,)).fetchone(),
    "logging": lambda s: logging.LogRecord("a", 1, "f", 1, "%.2f %s", (s, s), None).getMessage(),
    "colorsys": lambda s: colorsys.rgb_to_hsv(s / 2, 0.1, 0.2),
    "enum": lambda s: enum.Enum("E", {"A": 1.25})(s).name,
    "comparisons": lambda s: (s == 1.25, s < 2, s in [1.25], [1.25].index(s), 1 if s > 1 else 2, s == "a"),
    "queue": lambda s: extended_queue(s),
    "asyncio": lambda s: asyncio.run(asyncio.sleep(0, s)),
    "length": lambda s: len(s),
    "iteration": lambda s: list(s),
    "an index": lambda s: [1, 2][s],
    "a slice": lambda s: [1, 2][: int(s)],
    "decimal": lambda s: decimal.Decimal(s),
    "time": lambda s: time.gmtime(s),
    "seconds": lambda s: datetime.timedelta(seconds=s),
}
NOT_TAKEN = {"decimal", "time", "seconds"}
"""What takes a `float` and its subclasses alone, in C: an error."""


def extended_queue(s):
    waiting = queue.PriorityQueue()
    waiting.put(s)
    return waiting.get()


def plainly(x):
    """A result with NumPy's numbers in the place of tracked ones."""
    if isinstance(x, ampi.ndarray):
        return numpy.asarray(ampi.value(x))[()]
    if isinstance(x, dict):
        return {plainly(key): plainly(value) for key, value in x.items()}
    return type(x)(map(plainly, x)) if type(x) in (list, tuple, set) else x


def outcome(use, s):
    try:
        return repr(plainly(use(s)))
    except Exception as error:
        return error


@pytest.fixture(params=["idle", "recording", "strict"])
def how(request, monkeypatch):
    if request.param == "strict":
        monkeypatch.setattr(checks, "strict", True)
        monkeypatch.setattr(checks, "whole", True)
    return request.param


@pytest.mark.filterwarnings("ignore::ampi.ActivityWarning")
@pytest.mark.parametrize("name", USES)
def test_what_becomes_of_a_number(name, how):
    use = USES[name]
    expected = outcome(use, numpy.float64(1.25))
    if how == "idle":
        found = outcome(use, anp.sum(anp.array([1.0, 0.25])))
    else:
        with ampi.Tape() as tape:
            found = outcome(use, anp.sum(tape.watch(numpy.array([1.0, 0.25]))))
    if isinstance(expected, Exception) or name in NOT_TAKEN:
        assert isinstance(found, (type(expected), ampi.ActivityError, TypeError)), found
    elif how == "strict" and isinstance(found, Exception):
        assert isinstance(found, (ampi.ActivityError, struct.error)), found
        assert "test_standard_library.py:" in str(found) or isinstance(found, struct.error)
    elif name == "item" and how == "strict":  # with its derivative
        assert found == expected.replace("(1.25, 1.25,", "(np.float64(1.25), np.float64(1.25),")
    else:
        assert found == expected


@pytest.mark.filterwarnings("ignore::ampi.ActivityWarning")  # of what is shown, once per line
def test_strict_refuses_what_computes_with_other_forms(monkeypatch):
    monkeypatch.setattr(checks, "strict", True)
    monkeypatch.setattr(checks, "whole", True)
    with ampi.Tape() as tape:
        s = anp.sum(tape.watch(numpy.array([1.0, 0.25])))
        for name in ("mean", "fraction", "ratio", "stdev", "struct", "array.array", "ctypes"):
            assert isinstance(outcome(USES[name], s), Exception), name
        for name in ("json", "%", "formats", "logging", "csv", "pprint"):  # is shown
            assert isinstance(outcome(USES[name], s), str), name
