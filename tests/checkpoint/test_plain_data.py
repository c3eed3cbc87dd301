"""What files of time loops say beside their arrays: written and read as text, if possible without a pickle."""

import base64
import collections
import datetime
import enum
import json
import math
import pickle
import random
import struct

import numpy
import pytest

from ampi.checkpoint import plain_data

Pair = collections.namedtuple("Pair", "a b")


class Level(enum.IntEnum):
    HIGH = 3


ALIGNED = numpy.dtype([("a", "<f4"), ("b", ">i8", (2,))], align=True)
VALUES = [
    *(None, True, False, 0, -1, 2**63 - 1, 2**63, -(2**63), 2**70000, "", 'a"\0é\udcff', b"", b"\0\xff"),
    *(
        1.5,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        math.inf,
        -math.inf,
        math.nan,
        struct.unpack("<d", b"\1" * 6 + b"\xf0\x7f")[0],
    ),
    *(1 + 2j, complex(-0.0, math.nan), slice(1, None, 2), ..., Pair, dict, collections.OrderedDict, int),
    *(numpy.float32(0.1), numpy.float64(math.nan), numpy.longdouble("0.1"), numpy.complex64(1 - 1j), numpy.bool_(True)),
    *(numpy.datetime64("2020-01-01T00:00:01"), numpy.timedelta64(3, "ms"), numpy.str_("é"), numpy.bytes_(b"\1")),
    *(
        numpy.dtype("f8"),
        numpy.dtype(">i2"),
        numpy.dtype("M8[ns]"),
        numpy.dtype([("x", "f4"), ("y", "i2", 3)]),
        ALIGNED,
    ),
    *(numpy.zeros(2, ALIGNED), numpy.zeros(1, ALIGNED)[0], numpy.arange(6.0).reshape(2, 3).T, numpy.array(3.0)),
    *(
        numpy.zeros((0, 3)),
        numpy.array([1, "a", None], object),
        numpy.zeros((2, 0), object),
        numpy.arange(3, dtype=">u4"),
    ),
]
PICKLED = [Level.HIGH, datetime.date(2020, 1, 1), range(3), numpy.array([datetime.date(2020, 1, 1)]), Pair(1, 2)]


def refuse():
    raise PermissionError("a pickle")


def is_same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(is_same(*pair) for pair in zip(a.items(), b.items()))
    if isinstance(a, (numpy.ndarray, numpy.generic)):
        alike = a.dtype == b.dtype and a.dtype.isalignedstruct == b.dtype.isalignedstruct and a.shape == b.shape
        if a.dtype == object:
            return alike and is_same(a.tolist(), b.tolist())
        has_gaps = a.dtype.names is not None or a.dtype.char in "gG"  # bytes that mean nothing
        return alike and (numpy.array_equal(a, b) if has_gaps else a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return pickle.dumps(a) == pickle.dumps(b) if isinstance(a, complex) else a == b


def drawn(draw, depth):
    """Nested data of the kinds above."""
    kind = draw.choice(["value", "value", "float", "integer", "text", "array", "tuple", "list", "dict", "set"])
    if depth == 0 or kind == "value":
        return draw.choice(VALUES)
    if kind == "float":
        return struct.unpack("<d", draw.randbytes(8))[0]
    if kind == "integer":
        return draw.getrandbits(draw.choice([3, 31, 63, 64, 65, 200])) * draw.choice([1, -1])
    if kind == "text":
        return "".join(chr(draw.randrange(0x11000)) for _ in range(draw.randrange(5)))
    if kind == "array":
        dtype = numpy.dtype(draw.choice(["<f8", ">f4", "<i2", "?", "<c16", "S3", "<U2", "<M8[s]", "<f2", "V5"]))
        shape = tuple(draw.randrange(4) for _ in range(draw.randrange(4)))
        count = math.prod(shape) * dtype.itemsize
        values = bytes(count) if dtype.kind in "?U" else draw.randbytes(count)
        return numpy.frombuffer(values, dtype).reshape(shape).copy()[() if not shape else ...]
    items = [drawn(draw, depth - 1) for _ in range(draw.randrange(4))]
    if kind == "dict":
        return {draw.choice([k, str(k), (k, "a"), (("[", k), (".", None))]): x for k, x in enumerate(items)}
    if kind == "set":
        return {x for x in items if type(x) in (int, str, bytes)}
    return items if kind == "list" else tuple(items)


@pytest.mark.parametrize("value", [*VALUES, *PICKLED], ids=lambda x: type(x).__name__)
def test_values(value):
    before = refuse if not any(value is x for x in PICKLED) else (lambda: None)
    assert is_same(plain_data.unpacked(plain_data.packed([value]), before), [value])


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(n, marks=pytest.mark.slow) for n in range(30, 3000))])
def test_drawn_data(seed):
    data = drawn(random.Random(seed), 4)
    assert is_same(plain_data.unpacked(plain_data.packed(data), refuse), data)


class Ran(Exception):
    pass


class Hostile:
    def __reduce__(self):
        return exec, ("raise __import__('test_plain_data').Ran",)


@pytest.mark.parametrize("value", PICKLED, ids=lambda x: type(x).__name__)
def test_what_is_pickled_asks_before(value):
    with pytest.raises(PermissionError, match="a pickle"):
        plain_data.unpacked(plain_data.packed({"a": [value]}), refuse)


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(n, marks=pytest.mark.slow) for n in range(40, 4000))])
def test_files_of_other_users_run_no_code(seed):
    """Texts with parts exchanged, cut and made up: data, a ValueError, or the question whether pickles are trusted."""
    draw = random.Random(seed)
    hostile = base64.b64encode(pickle.dumps(Hostile())).decode()
    told = json.loads(plain_data.packed([drawn(draw, 3), drawn(draw, 3), Pair, ALIGNED])[len(plain_data.MARK) :])

    def changed(x):
        if draw.random() < 0.1:
            letter = draw.choice([*plain_data._LETTERS, "?", "", 0, None, []])
            rest = ["os", "system", hostile, "builtins", "eval", [3], -1, None, 1e9, "ff", ["P", hostile], ["y", "O"]]
            return [letter, *draw.choices(rest, k=draw.randrange(4))]
        return [x[0], *map(changed, x[1:])] if isinstance(x, list) and x else x

    text = plain_data.MARK + json.dumps(changed(told)).encode()
    if draw.random() < 0.3:
        text = text[: draw.randrange(len(text))]
    try:
        plain_data.unpacked(text, refuse)
    except (ValueError, PermissionError):
        pass


def test_pickles_of_earlier_versions_are_not_read():
    with pytest.raises(ValueError, match="this version of ampi writes another format"):
        plain_data.unpacked(pickle.dumps(Hostile()), lambda: None)


def test_a_hostile_pickle_runs_only_when_it_is_trusted():
    text = plain_data.packed([Hostile()])
    with pytest.raises(PermissionError):
        plain_data.unpacked(text, refuse)
    with pytest.raises(Ran):
        plain_data.unpacked(text, lambda: None)
