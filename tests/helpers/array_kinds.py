"""Helpers shared by the test files for arrays."""

import numpy as np
import pytest
from derivative_check import random

KINDS = [np.float64, np.complex128]


def arguments(shapes, dtype):
    generator = np.random.default_rng(3)
    return [random(generator, shape, dtype) for shape in shapes]


def program(*shapes, kinds=KINDS):
    """A test case: a function that works on plain and on tracked arrays alike."""

    def decorate(f):
        return pytest.param(f, shapes, kinds, id=f.__name__)

    return decorate
