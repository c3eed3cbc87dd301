"""Files of compiled kernels: the old ones go, the others stay."""

import os
import time

import numpy as np
import pytest

import ampi
from ampi.kernel import cache

GROUPS = ["square_1a.py", "square_1a.lock", "square_1a.nbi", "square_1a.1.nbc"]


@pytest.fixture
def folder(tmp_path):
    cache.prune.cache_clear()
    (tmp_path / "__pycache__").mkdir()
    for name in (*GROUPS, "cube_2b.nbi", "cube_2b.1.nbc"):
        (tmp_path / name).touch()
    (tmp_path / "__pycache__" / "square_1a.cpython-311.pyc").touch()
    yield tmp_path
    cache.prune.cache_clear()


def age(path, days):
    then = time.time() - days * cache.DAY
    os.utime(path, (then, then))


def files(folder):
    return {p.name for p in folder.rglob("*") if p.is_file()} - {"pruned"}


def test_kernels_that_nothing_uses_are_removed_as_a_whole(folder):
    for path in folder.rglob("square*"):
        age(path, 100)
    age(folder / "cube_2b.1.nbc", 100)
    cache.prune(folder)
    assert files(folder) == {"cube_2b.nbi", "cube_2b.1.nbc"}


def test_a_use_keeps_a_kernel(folder):
    for path in folder.rglob("square*"):
        age(path, 100)
    cache.mark_used(folder / "square_1a.nbi")
    before = files(folder)
    cache.prune(folder)
    assert files(folder) == before


def test_once_a_day(folder):
    cache.prune(folder)
    cache.prune.cache_clear()
    for path in folder.rglob("square*"):
        age(path, 100)
    before = files(folder)
    cache.prune(folder)
    assert files(folder) == before
    age(folder / "pruned", 2)
    cache.prune.cache_clear()
    cache.prune(folder)
    assert files(folder) == {"cube_2b.nbi", "cube_2b.1.nbc"}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root can write anywhere")
def test_a_folder_that_cannot_be_written_is_left_alone(folder):
    age(folder / "cube_2b.nbi", 100)
    folder.chmod(0o500)
    try:
        cache.prune(folder)
        cache.mark_used(folder / "cube_2b.nbi")
    finally:
        folder.chmod(0o700)


@ampi.kernel
def doubled(x, y):
    for i in range(x.shape[0]):
        y[i] += 2.0 * x[i]


def test_what_differs_in_activity_only_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    with ampi.Tape() as tape:
        x, y = tape.watch(np.ones(3)), ampi.numpy.zeros(3)
        doubled(x, y)  # y is passive before, and now active
        doubled(x, y)
    np.testing.assert_array_equal(tape.gradient(y, x, seed=np.ones(3)), [4.0, 4.0, 4.0])
    assert len(list(tmp_path.glob("doubled_adjoint_*.py"))) == 2
    assert len(list(tmp_path.glob("doubled_adjoint_*.nbc"))) == 1
