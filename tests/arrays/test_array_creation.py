"""Arrays made of arrays and lists, and objects in arrays: what NumPy gives, idle and on a tape."""

import contextlib

import numpy
import pytest

import ampi
import ampi.numpy


def pathological(np):
    held = []
    held.append(held)
    return np.array([held, held, held], dtype=object).ndim


def same_dtype_in_other_words(np):
    a = np.array([1, 2, 3], "i")
    annotated = np.asarray(a, dtype=numpy.dtype("i", metadata={"by": "hand"}))
    return annotated is a, annotated.base is a, np.asarray(a, dtype="i") is a


def assigned(np, part):
    e, x = np.arange(1, dtype=object), np.arange(4)
    e[:] = [part(x)]
    return e[0].tolist()


CASES = {
    "subarrays from lists": lambda np: np.array([[(1,), (2,)], np.array([1, 2])], dtype="2i").tolist(),
    "subarrays from an array": lambda np: np.array(np.arange(10).reshape(5, 2), dtype="(2,2)f").tolist(),
    "subarrays of numbers": lambda np: np.asarray(np.arange(3.0), dtype="(2,)f8").tolist(),
    "bytes of objects": lambda np: np.array(np.array([""] * 10, dtype=object), dtype="S").dtype,
    "bytes of an object": lambda np: np.array(np.array(1.2, dtype="O"), dtype="S").dtype,
    "a class of dtypes": lambda np: np.array(np.array(1.2, dtype="O"), dtype=type(numpy.dtype("S3"))).dtype,
    "arrays as objects": lambda np: type(np.array([np.array(0.0)], dtype=object)[0]) is np.ndarray,
    "uneven arrays as objects": lambda np: np.array([np.ones((2, 2)), [1]], dtype=object)[0].shape,
    "an array assigned as an object": lambda np: assigned(np, lambda x: x),
    "an array without axes assigned as an object": lambda np: assigned(np, lambda x: x[1, ...]),
    "a list that holds itself": pathological,
    "a dtype in other words": same_dtype_in_other_words,
}


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_in_numpy(name, recording):
    with ampi.Tape() if recording else contextlib.nullcontext():
        assert CASES[name](ampi.numpy) == CASES[name](numpy)


def test_active_numbers_are_not_repeated_in_subarrays():
    with ampi.Tape() as tape, pytest.raises(ampi.ActivityError, match="array"):
        ampi.numpy.array(tape.watch(numpy.arange(3.0)), dtype="(2,)f8")
