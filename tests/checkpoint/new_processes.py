"""Time loops that continue as in a new process, for their tests."""

from ampi.checkpoint import folder


def as_new_process():
    folder._opened.clear()
