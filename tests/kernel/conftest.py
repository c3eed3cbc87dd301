"""Tests of kernels run on all threads, whatever the examples that other tests import have asked for."""

import numba
import pytest


@pytest.fixture(autouse=True)
def all_threads():
    before = numba.get_num_threads()
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    yield
    numba.set_num_threads(before)
