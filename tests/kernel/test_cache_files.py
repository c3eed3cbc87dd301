"""Files of the cache: complete or ignored, private to this user, and not needed where they cannot be written."""

import contextlib
import errno
import os
import stat
import warnings

import numpy as np
import pytest

import ampi
from ampi.kernel.runtime import cache, files

# ------------------------------------------------------------------------------------------------ damage


def cut(path, rng):
    with open(path, "r+b") as file:
        file.truncate(rng.integers(path.stat().st_size))


def empty(path, rng):
    path.write_bytes(b"")


def flip(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path.write_bytes(content)


def zero_the_end(path, rng):
    """Zero the end of a file, as some file systems do in a crash."""
    content = path.read_bytes()
    kept = int(rng.integers(len(content)))
    path.write_bytes(content[:kept] + bytes(len(content) - kept))


def lengthen(path, rng):
    path.write_bytes(path.read_bytes() + rng.bytes(rng.integers(1, 200)))


def replace_by_noise(path, rng):
    path.write_bytes(rng.bytes(rng.integers(1, 5000)))


def replace_by_another(path, rng):
    others = [p for p in sorted(path.parent.iterdir()) if p.is_file() and p != path and p.stat().st_size]
    path.write_bytes(others[rng.integers(len(others))].read_bytes())


def make_a_link(path, rng):
    moved = path.with_name(path.name + ".moved")
    path.rename(moved)
    path.symlink_to(moved)


def make_a_pipe(path, rng):
    path.unlink()
    os.mkfifo(path)


def open_to_others(path, rng):
    path.chmod(0o666)


DAMAGES = [cut, empty, flip, zero_the_end, lengthen, replace_by_noise, replace_by_another, make_a_link, make_a_pipe,
           open_to_others]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_what_was_not_written_so_is_not_read(tmp_path, damage):
    rng = np.random.default_rng(list(damage.__name__.encode()))
    path, other = tmp_path / "one.py", tmp_path / "two.py"
    for size in (0, 1, 75, 2000, *rng.integers(1, 500, 30)):
        content = rng.bytes(size)
        assert files.write(path, content) and files.write(other, content)
        assert files.read(path) == content
        damage(path, rng)
        with pytest.warns(ampi.CacheWarning, match="one.py"):
            assert files.read(path) is None
        for left in tmp_path.iterdir():
            left.unlink()


def kernels():
    """A kernel that calls another one; neither has been called yet."""

    @ampi.kernel
    def inner(x):
        return x * x + 1.0

    @ampi.kernel
    def energy(x, y):
        for i in range(1, x.shape[0]):
            y[i] = y[i - 1] * x[i] + inner(x[i])

    return energy


def gradient():
    """A gradient, in arithmetic that is exact."""
    energy = kernels()
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0, 3.0]))
        y = ampi.numpy.zeros(3)
        energy(x, y)
    np.testing.assert_array_equal(ampi.value(y), [0.0, 5.0, 25.0])
    return np.asarray(tape.gradient(y, x, seed=np.array([0.0, 0.0, 1.0]))).tolist()


EXPECTED = [0.0, 12.0, 11.0]  # y[2] = (x[1]² + 1) x[2] + x[2]² + 1


def kept(folder):
    return sorted(p for p in folder.iterdir() if p.suffix in (".py", ".code", ".nbc"))


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_cache_is_mended(cache_folder, seed):
    """All of its files at once, each in a random way; then a single one."""
    rng = np.random.default_rng(seed)
    assert gradient() == EXPECTED
    names = kept(cache_folder)
    assert {p.suffix for p in names} == {".py", ".code", ".nbc"}
    read = [p for p in names if not p.name.startswith("inner")]  # the caller's code includes that of inner
    for chosen in (names, [read[rng.integers(len(read))]]):
        for path in chosen:
            DAMAGES[rng.integers(len(DAMAGES))](path, rng)
        with pytest.warns(ampi.CacheWarning, match="made again"):
            assert gradient() == EXPECTED
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert gradient() == EXPECTED
        assert set(names) <= set(kept(cache_folder))


def test_files_of_others_are_not_read(cache_folder, monkeypatch):
    assert gradient() == EXPECTED
    real = os.fstat

    def of_somebody_else(handle):
        return os.stat_result((*real(handle)[:4], os.geteuid() + 1, *real(handle)[5:]))

    monkeypatch.setattr(os, "fstat", of_somebody_else)
    with pytest.warns(ampi.CacheWarning, match="belongs to another user"):
        assert gradient() == EXPECTED


# ------------------------------------------------------------------------------------------------ the folder


@contextlib.contextmanager
def looking(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(files, "_warned", set())
    files.folder.cache_clear()
    try:
        yield
    finally:
        files.folder.cache_clear()


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
def test_a_folder_under_one_that_others_may_write_is_refused(tmp_path, monkeypatch, mode):
    above = tmp_path / "above"
    (above / "between").mkdir(parents=True)
    above.chmod(mode)
    with looking(monkeypatch, AMPI_CACHE_DIR=above / "between"):
        with pytest.raises(ampi.KernelError, match=r"AMPI_CACHE_DIR.*above on the way to it can be changed by other"):
            files.folder()
    above.chmod(mode | stat.S_ISVTX)  # like /tmp: other users cannot rename what is in there
    with looking(monkeypatch, AMPI_CACHE_DIR=above / "between"):
        assert files.folder() == above / "between" / "kernels"


def test_a_folder_under_one_of_a_group(tmp_path, monkeypatch):
    (tmp_path / "group").mkdir()
    (tmp_path / "group").chmod(0o770)
    for alone in (True, False):
        monkeypatch.setattr(files, "_is_alone_in", lambda group, alone=alone: alone)
        with looking(monkeypatch, AMPI_CACHE_DIR=tmp_path / "group"):
            with contextlib.nullcontext() if alone else pytest.raises(ampi.KernelError, match="other users"):
                files.folder()


def test_a_folder_behind_a_link_through_such_a_one_is_refused(tmp_path, monkeypatch):
    (tmp_path / "open" / "inside").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "inside")
    with looking(monkeypatch, AMPI_CACHE_DIR=tmp_path / "link"):
        with pytest.raises(ampi.KernelError, match="can be changed by other users"):
            files.folder()


def test_another_folder_is_taken_where_none_is_named(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    monkeypatch.delenv("AMPI_CACHE_DIR", raising=False)
    with looking(monkeypatch, XDG_CACHE_HOME=tmp_path / "home"):
        with pytest.warns(ampi.CacheWarning, match="can be changed by other users"):
            assert tmp_path not in files.folder().parents


# ------------------------------------------------------------------------------------------------ no room

FAILURES = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO]
PLACES = {
    "a file is made": ("tempfile", "mkstemp"),
    "it is flushed": ("os", "fsync"),
    "it is renamed": ("os", "replace"),
    "a lock is made": ("os", "open"),
}


def failing(monkeypatch, place, number):
    """Make a system call fail as on a full disk, in a read-only folder, …"""
    module, name = PLACES[place]
    real = getattr(getattr(files, module), name)

    def fail(*arguments, **keywords):
        if name == "open" and not arguments[1] & os.O_CREAT:
            return real(*arguments, **keywords)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(getattr(files, module), name, fail)


WHERE = [*((place, errno.ENOSPC) for place in PLACES), *(("it is flushed", number) for number in FAILURES[1:])]


@pytest.mark.parametrize("place, number", WHERE)
def test_without_room_kernels_are_compiled_in_memory(cache_folder, monkeypatch, place, number):
    with monkeypatch.context() as broken, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failing(broken, place, number)
        assert gradient() == EXPECTED
    told = [str(w.message) for w in caught if w.category is ampi.CacheWarning]
    if place != "a lock is made":
        (text,) = told
        assert os.strerror(number) in text and "compiled in memory" in text and str(cache_folder) in text
    assert not list(cache_folder.glob("*.tmp"))
    assert gradient() == EXPECTED  # and when there is room again, they are kept
    assert kept(cache_folder)


@pytest.mark.parametrize("number", FAILURES)
@pytest.mark.parametrize("function", ["mkdir", "TemporaryFile"])
def test_a_folder_that_cannot_be_made_or_written(tmp_path, monkeypatch, number, function):
    def fail(*arguments, **keywords):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(type(tmp_path) if function == "mkdir" else files.tempfile, function, fail)
    with looking(monkeypatch, AMPI_CACHE_DIR=tmp_path / "new" if function == "mkdir" else tmp_path):
        if function == "TemporaryFile":
            (tmp_path / "kernels").mkdir()
        with pytest.warns(ampi.CacheWarning, match="cannot be written") as caught:
            assert cache.processor() and gradient() == EXPECTED
        assert len(caught) == 1


def test_what_is_kept_in_a_folder_that_cannot_be_written_is_used(cache_folder, monkeypatch):
    assert gradient() == EXPECTED
    for place in PLACES:
        failing(monkeypatch, place, errno.EROFS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradient() == EXPECTED
