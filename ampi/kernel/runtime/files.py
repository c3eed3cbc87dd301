"""Checksummed, atomic files in a folder that only one user can change, and locks among processes.

The folder is ``$AMPI_CACHE_DIR``, else ``$XDG_CACHE_HOME/ampi``, else ``~/.cache/ampi``; where that cannot be written,
one in the folder for temporary files.  Code is loaded from it, so it belongs to the user alone (mode 0700), and so do
the files; no folder above it can be changed by others.

A file ends in a checksum.  It is written under another name, flushed to disk and renamed, so that another process sees
all of it or nothing; what is damaged all the same (a machine that went down, a disk that failed) is as if it were not
there, with a warning.  Where nothing can be written (a full disk), one warning says so, and the program goes on.

A lock makes processes wait for the one that does what all of them need.  The system releases it when its holder ends,
however it ends.  What is not there when a process gets the lock it makes itself.
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
except ImportError:  # no locks on this system: files are still written whole, only perhaps twice
    fcntl = None  # type: ignore[assignment]

# --------------------------------------------------------------------------------------------------- the folder


@functools.cache
def folder() -> Path:
    """The cache folder of this user, made if need be.

    Raises
    ------
    KernelError
        ``AMPI_CACHE_DIR`` names what is no folder, or one which other users can change.
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
        return path  # what is there can be read
    for path in _candidates():
        try:
            _private(path)
            _probe(path)
            return path
        except OSError as problem:
            if isinstance(problem, _Unsafe):
                _warn_once(f"{problem}: kernels are not kept in {path}; AMPI_CACHE_DIR names another folder for them")
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
    """Somebody else could put code there."""


def _private(path: Path) -> None:
    """Make a folder that only this user can enter, and check that it is one, and that others cannot put another one in
    its place."""
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
    """Refuse a path in which another user could rename a folder: each one on the way that they may write and whose
    sticky bit is not set, or which is theirs."""
    for parent in (*path.parents, *path.resolve().parents):
        status = parent.stat()
        if status.st_uid not in (0, os.geteuid(), os.stat("/").st_uid):
            raise _Unsafe(f"the folder {parent} on the way to it belongs to another user")
        by_others = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_alone_in(status.st_gid))
        if by_others and not status.st_mode & stat.S_ISVTX:
            raise _Unsafe(f"the folder {parent} on the way to it can be changed by other users (chmod go-w {parent})")


@functools.cache
def _is_alone_in(group: int) -> bool:
    """Return whether this is a user's private group, without other members."""
    import grp
    import pwd

    try:
        user, members = pwd.getpwuid(_user()), grp.getgrgid(group)
    except KeyError:
        return False
    return members.gr_name == user.pw_name and set(members.gr_mem) <= {user.pw_name}


def _probe(path: Path) -> None:
    """Find out whether files can be written there."""
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(bytes(1 << 12))


def _go_on_without(path: Path, problem: OSError) -> Path:
    _warn_once(
        f"{path} cannot be written ({problem.strerror or problem}): kernels are compiled in memory, by every process; "
        "AMPI_CACHE_DIR names another folder to keep them in"
    )
    return NOWHERE


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    """Warn of what holds for the whole process."""
    kind = "cannot be written" if "cannot be written" in text else text
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(text, CacheWarning, stacklevel=2)


# --------------------------------------------------------------------------------------------------- files

MARK = b"\n# sha256 "  # then 64 digits: a comment in Python
_ENDING = len(MARK) + 64 + 1


def _checksum(path: Path, content: bytes) -> bytes:
    # With the file's name, so that one that was copied over another is none.
    return hashlib.sha256(path.name.encode() + b"\0" + content).hexdigest().encode()


def write(path: Path, content: str | bytes) -> bool:
    """Write a file so that another process sees all of it or nothing; whether that was possible."""
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
    """Why what is in a file like this is not used; nothing if it is."""
    if not stat.S_ISREG(status.st_mode):
        return "is no file"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return "belongs to another user"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return "can be changed by other users"
    return ""


def _left_out(path: Path, why: str | None) -> None:
    warnings.warn(f"{path} {why or 'cannot be read'}: it is not used, and made anew", CacheWarning, stacklevel=3)


# --------------------------------------------------------------------------------------------------- old files

DAY = 24 * 3600.0
KEPT = 60 * DAY


def mark_used(path: Path) -> None:
    """Make a file young again, at most once a day (it may belong to another kind of file system: never an error)."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > DAY:
            os.utime(path)


@functools.cache
def prune(root: Path) -> None:
    """Remove the files of kernels that nothing has used for long, and what processes left that were ended while they
    wrote; at most once in a process and a day."""
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

PATIENCE = 600.0  # seconds; then a process does itself what it waits for
_held: set[str] = set()


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold this user's lock ``name`` among all processes; one process may take it again inside.

    Numba's own lock is taken first, so two threads that compile cannot wait for each other.  Two processes cannot
    either, if each lock is for one piece of work (a function with types of arguments) and only pieces that this one
    needs are done inside.
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
        with contextlib.suppress(OSError):  # nothing can be written there: every process works for itself
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    if handle is None:
        yield
        return
    try:
        _wait_for(handle, path)
        yield
    finally:
        with contextlib.suppress(OSError):  # said aloud, since a process that was forked meanwhile has it open as well
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _wait_for(handle: int, path: Path) -> None:
    """Take a lock when it is free; go on without if that takes too long, or if there are none in this file system."""
    begin, pause = time.monotonic(), 0.001
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return None
        if time.monotonic() - begin > PATIENCE:
            warnings.warn(
                f"another process has held {path} for {PATIENCE:.0f} s: this one does not wait for it any longer",
                CacheWarning,
                stacklevel=2,
            )
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
