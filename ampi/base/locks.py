"""Locks of ampi itself, which hooks of the program's locks (`futures.signals`) leave alone."""

from __future__ import annotations

import threading

_Base = type(threading.RLock())


class RLock(_Base):  # type: ignore[misc, valid-type]
    """A reentrant lock with the methods that Python's own has before they are hooked."""

    __slots__ = ()
    acquire = _Base.acquire
    release = _Base.release
    __enter__ = _Base.__enter__
    __exit__ = _Base.__exit__
