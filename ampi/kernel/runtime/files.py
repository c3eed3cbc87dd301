"""Checksummed, atomic files in a folder that only one user can change, and locks among processes.

The folder is ``$AMPI_CACHE_DIR``, else ``$XDG_CACHE_HOME/ampi``, else ``~/.cache/ampi``; if that cannot be written, one
in the folder for temporary files.  Code is loaded from it, so it and its files belong only to the user (mode 0700),
and no other user can change a folder above it.

A file ends in a checksum.  It is written under another name, flushed to disk and renamed, so that another process sees
all of it or nothing; a file that is damaged nevertheless (by a crash, or a failing disk) counts as missing, with a
warning.  If files cannot be written (a full disk), there is one warning, and the program continues.

A lock makes processes wait for one that does work that all need.  The system releases it when its holder ends, in
whatever way.  A process that gets the lock does the work itself if it has not been done.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from numba.core.compiler_lock import global_compiler_lock

from ampi.errors import CacheWarning, KernelError

try:
    import fcntl
except ImportError:  # no locks on this system: files are still written atomically, but perhaps twice
    fcntl = None  # type: ignore[assignment]

# --------------------------------------------------------------------------------------------------- the folder


@functools.cache
def folder() -> Path:
    """The cache folder of this user, created if it does not exist.

    Raises
    ------
    KernelError
        ``AMPI_CACHE_DIR`` is not a folder, or other users can change it.
    """
    named = os.environ.get("AMPI_CACHE_DIR")
    if named:
        path = Path(named).expanduser().absolute() / "kernels"
        try:
            _private(path)
        except OSError as problem:
            if problem.errno in (None, errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                raise KernelError(f"AMPI_CACHE_DIR={named} cannot be used: {problem}") from problem
            return _go_on_without(path, problem)
        try:
            _probe(path)
        except OSError as problem:
            _go_on_without(path, problem)
        return path  # its files can still be read
    for path in _candidates():
        try:
            _private(path)
            _probe(path)
            return path
        except OSError as problem:
            if isinstance(problem, _Unsafe):
                _warn_once(f"{problem}: kernels are not stored in {path}; set AMPI_CACHE_DIR to another folder")
    try:
        return Path(tempfile.mkdtemp(prefix="ampi-"))
    except OSError as problem:
        return _go_on_without(path, problem)


NOWHERE = Path(os.devnull, "kernels")  # nothing can be read or written there


def _candidates() -> Iterator[Path]:
    base = os.environ.get("XDG_CACHE_HOME")
    if base and os.path.isabs(base):
        yield Path(base) / "ampi" / "kernels"
    elif _has_home():
        yield Path.home() / ".cache" / "ampi" / "kernels"
    yield Path(tempfile.gettempdir()).absolute() / f"ampi-{_user()}"


def _has_home() -> bool:
    try:
        return Path.home() != Path("/")
    except RuntimeError:
        return False


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


class _Unsafe(PermissionError):
    """Another user could put code into the folder."""


def _private(path: Path) -> None:
    """Create a folder that only this user can enter, and check that other users cannot replace it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{path} is not a folder")
    if hasattr(os, "geteuid"):
        if status.st_uid != os.geteuid():
            raise _Unsafe(f"{path} belongs to another user")
        check_parents(path)
        if stat.S_IMODE(status.st_mode) & 0o077:
            path.chmod(0o700)


def check_parents(path: Path) -> None:
    """Raise an error if another user could rename a folder on a path.

    They can in a folder that belongs to them, or that they may write and that has no sticky bit.
    """
    for parent in (*path.parents, *path.resolve().parents):
        status = parent.stat()
        if status.st_uid not in (0, os.geteuid(), os.stat("/").st_uid):
            raise _Unsafe(f"the folder {parent} on the way to it belongs to another user")
        by_others = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_alone_in(status.st_gid))
        if by_others and not status.st_mode & stat.S_ISVTX:
            raise _Unsafe(f"the folder {parent} on the way to it can be changed by other users (chmod go-w {parent})")


@functools.cache
def _is_alone_in(group: int) -> bool:
    """Return whether a group is this user's private group, without other members."""
    import grp
    import pwd

    try:
        user, members = pwd.getpwuid(_user()), grp.getgrgid(group)
    except KeyError:
        return False
    return members.gr_name == user.pw_name and set(members.gr_mem) <= {user.pw_name}


def _probe(path: Path) -> None:
    """Raise an OSError if files cannot be written to a folder."""
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(bytes(1 << 12))


def _go_on_without(path: Path, problem: OSError) -> Path:
    _warn_once(
        f"{path} cannot be written ({problem.strerror or problem}): kernels are compiled in memory, by every process; "
        "set AMPI_CACHE_DIR to another folder to store them"
    )
    return NOWHERE


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    """Warn once in a process of a problem that concerns all files."""
    kind = "cannot be written" if "cannot be written" in text else text
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(text, CacheWarning, stacklevel=2)


# --------------------------------------------------------------------------------------------------- files

MARK = b"\n# sha256 "  # then 64 digits: a comment in Python
_ENDING = len(MARK) + 64 + 1


def _checksum(path: Path, content: bytes) -> bytes:
    # It includes the file's name, so that a file copied over another one does not match.
    return hashlib.sha256(path.name.encode() + b"\0" + content).hexdigest().encode()


def write(path: Path, content: str | bytes) -> bool:
    """Write a file atomically; return whether that was possible."""
    content = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(content + MARK + _checksum(path, content) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as problem:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if not isinstance(problem, OSError):
            raise
        _go_on_without(path.parent, problem)
        return False
    return True


def read(path: Path) -> bytes | None:
    """The contents of a file; None if it is missing or, with a warning, damaged."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        _left_out(path, problem.strerror)
        return None
    try:
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            why = refused(status)
            found = b"" if why else file.read()
    except OSError as problem:
        why = problem.strerror or str(problem)
    if not why:
        content, ending = found[:-_ENDING], found[-_ENDING:]
        if ending == MARK + _checksum(path, content) + b"\n":
            return content
    _left_out(path, why or "is damaged")
    return None


def refused(status: os.stat_result) -> str:
    """The reason why the contents of a file must not be used; empty if they may be."""
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return "belongs to another user"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return "can be changed by other users"
    return ""


def _left_out(path: Path, why: str | None) -> None:
    warnings.warn(f"{path} {why or 'cannot be read'}: it is ignored and made again", CacheWarning, stacklevel=3)


# --------------------------------------------------------------------------------------------------- old files

DAY = 24 * 3600.0
KEPT = 60 * DAY


def mark_used(path: Path) -> None:
    """Update the time of a file's last use, at most once a day; never an error, since file systems may not allow it."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > DAY:
            os.utime(path)


@functools.cache
def prune(root: Path) -> None:
    """Remove files of kernels that have not been used for long, and temporary files of processes that were killed.

    This happens at most once per process and day.
    """
    stamp = root / "pruned"
    with contextlib.suppress(OSError):
        if stamp.exists() and time.time() - stamp.stat().st_mtime < DAY:
            return
        stamp.touch()
        kernels: dict[str, list[Path]] = {}
        for path in (*root.glob("*.*"), *root.glob("__pycache__/*")):
            if path.suffix == ".tmp":
                if _last_use(path) < time.time() - DAY:
                    path.unlink(missing_ok=True)
            else:
                kernels.setdefault(path.name.split(".")[0], []).append(path)
        for paths in kernels.values():
            used = [_last_use(path) for path in paths]
            if max(used) < time.time() - KEPT:
                for path in paths:
                    path.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removes files, too
        return 0.0


# --------------------------------------------------------------------------------------------------- locks

PATIENCE = 600.0  # seconds, after which a process does the work itself
_held: set[str] = set()


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold this user's lock ``name`` among all processes; the lock is reentrant.

    Numba's compiler lock is taken first, so two threads that compile cannot deadlock.  Two processes cannot either, if
    each lock is for one piece of work (a function for types of arguments), and only pieces on which this one depends
    are done inside.
    """
    with global_compiler_lock:
        if name in _held:
            yield
            return
        _held.add(name)
        prune(folder())
        try:
            with _file_lock(folder() / f"{name}.lock"):
                yield
        finally:
            _held.discard(name)


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    handle = None
    if fcntl is not None:
        with contextlib.suppress(OSError):  # the folder cannot be written: no lock
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    if handle is None:
        yield
        return
    try:
        _wait_for(handle, path)
        yield
    finally:
        with contextlib.suppress(OSError):  # explicitly, since a process forked meanwhile also has the file open
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _wait_for(handle: int, path: Path) -> None:
    """Take a lock when it is free; continue without it after `PATIENCE`, or if the file system has no locks."""
    begin, pause = time.monotonic(), 0.001
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return None
        if time.monotonic() - begin > PATIENCE:
            warnings.warn(
                f"another process has held {path} for {PATIENCE:.0f} s: this one no longer waits for it",
                CacheWarning,
                stacklevel=2,
            )
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
