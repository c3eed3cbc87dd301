"""Files of compiled kernels: old ones are removed, others are kept."""

import errno
import os
import sys
import time

import numba
import numpy as np
import pytest

import ampi
from ampi.kernel.runtime import cache
from ampi.kernel.runtime import files as cached

GROUPS = ["square_1a.py", "square_1a.lock", "square_1a.code", "square_1a.1.nbc"]


@pytest.fixture
def folder(tmp_path):
    cached.prune.cache_clear()
    (tmp_path / "__pycache__").mkdir()
    for name in (*GROUPS, "cube_2b.py", "cube_2b.1.nbc"):
        (tmp_path / name).touch()
    (tmp_path / "__pycache__" / "square_1a.cpython-311.pyc").touch()
    yield tmp_path
    cached.prune.cache_clear()


def age(path, days):
    then = time.time() - days * cached.DAY
    os.utime(path, (then, then))


def files(folder):
    return {p.name for p in folder.rglob("*") if p.is_file()} - {"pruned"}


def test_kernels_that_nothing_uses_are_removed_as_a_whole(folder):
    for path in folder.rglob("square*"):
        age(path, 100)
    age(folder / "cube_2b.1.nbc", 100)
    cached.prune(folder)
    assert files(folder) == {"cube_2b.py", "cube_2b.1.nbc"}


def test_a_use_keeps_a_kernel(folder):
    for path in folder.rglob("square*"):
        age(path, 100)
    cached.mark_used(folder / "square_1a.py")
    before = files(folder)
    cached.prune(folder)
    assert files(folder) == before


def test_once_a_day(folder):
    cached.prune(folder)
    cached.prune.cache_clear()
    for path in folder.rglob("square*"):
        age(path, 100)
    before = files(folder)
    cached.prune(folder)
    assert files(folder) == before
    age(folder / "pruned", 2)
    cached.prune.cache_clear()
    cached.prune(folder)
    assert files(folder) == {"cube_2b.py", "cube_2b.1.nbc"}


def test_what_processes_left_that_were_ended_is_removed(folder):
    for name, days in (("square_1a.py.x1.tmp", 2), ("cube_2b.py.x2.tmp", 0)):
        (folder / name).touch()
        age(folder / name, days)
    before = files(folder)
    cached.prune(folder)
    assert files(folder) == before - {"square_1a.py.x1.tmp"}


def test_a_folder_that_cannot_be_written_is_left_alone(folder, monkeypatch):
    def refuse(*arguments, **keywords):
        raise OSError(errno.EROFS, "Read-only file system")

    age(folder / "cube_2b.py", 100)
    before = files(folder)
    for name in ("touch", "unlink"):
        monkeypatch.setattr(type(folder), name, refuse)
    monkeypatch.setattr(os, "utime", refuse)
    cached.prune(folder)
    cached.mark_used(folder / "cube_2b.py")
    assert files(folder) == before


@ampi.kernel
def doubled(x, y):
    for i in range(x.shape[0]):
        y[i] += 2.0 * x[i]


def test_what_differs_in_activity_only_is_compiled_once(cache_folder):
    with ampi.Tape() as tape:
        x, y = tape.watch(np.ones(3)), ampi.numpy.zeros(3)
        doubled(x, y)  # y was passive, and is active now
        doubled(x, y)
    np.testing.assert_array_equal(tape.gradient(y, x, seed=np.ones(3)), [4.0, 4.0, 4.0])
    assert len(list(cache_folder.glob("doubled_adjoint_*.py"))) == 2
    assert len(list(cache_folder.glob("doubled_adjoint_*.nbc"))) == 1


def test_a_kernel_that_cannot_be_pickled_is_compiled_by_each_process(monkeypatch, cache_folder):
    def dumps(_):
        raise TypeError("cannot pickle 'PyCapsule' object")

    monkeypatch.setattr(cache.caching, "dumps", dumps)
    kernel = ampi.kernel(lambda x: x * x * x)
    assert ampi.grad(kernel)(2.0) == 12.0
    assert not list(cache_folder.rglob("*.nbc"))


def test_numba_may_go_through_many_blocks(monkeypatch, cache_folder):
    """Kernels compile even if Python's recursion limit is too small for Numba."""

    def branches(x):
        s = 0.0
        for i in range(len(x)):
            if x[i] > 0.1:
                s += x[i] * x[i]
            if x[i] > 0.2:
                s *= x[i]
            if x[i] > 0.3:
                s -= 0.5 * x[i]
            if s > 0.4:
                s *= 0.9
        return s

    gradient = ampi.grad(ampi.kernel(branches))
    limits = []
    plain = numba.core.ssa.reconstruct_ssa
    monkeypatch.setattr(numba.core.ssa, "reconstruct_ssa", lambda f: limits.append(sys.getrecursionlimit()) or plain(f))
    monkeypatch.setattr(numba.core.untyped_passes, "reconstruct_ssa", numba.core.ssa.reconstruct_ssa)
    before = sys.getrecursionlimit()
    gradient(np.array([0.3, 0.7]))
    assert limits and min(limits) >= 10_000 and sys.getrecursionlimit() == before
