"""All tracked arrays are found, whatever Python's collector of garbage does and is told to do."""

import subprocess
import sys

PROGRAM = """
import gc
import itertools

import numpy

import ampi
from ampi.memory import live_arrays

FROZEN = [(), (0,), (8,), (1, 9, 10), range(16)]
LOOKS = [range(16), range(2, 16), (5, 11, 15), (15,)]
plain = gc.freeze
for frozen, looks, thawed in itertools.product(FROZEN, LOOKS, [None, 13]):
    gc.unfreeze()
    gc.freeze, live_arrays._live = plain, None  # nobody has looked yet
    kept, junk = [], []
    for k in range(16):
        kept.append(numpy.zeros(2).view(ampi.ndarray))
        junk.append([[] for _ in range(500)])
        gc.collect(2 if k == 8 else k % 2)
        if k in frozen:
            gc.freeze()
        if k == thawed:
            gc.unfreeze()
        if k in looks:
            known = {id(array) for array in live_arrays.tracked_arrays()}
            assert all(id(array) in known for array in kept), (frozen, looks, thawed, k)
        if k % 7 == 0:
            junk.clear()
            del kept[::2]
"""


def test_all_arrays_are_found_whatever_the_collector_does():
    """In a process of its own: what pytest has frozen takes long to go through."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
