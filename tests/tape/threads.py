"""Helpers of the tests of threads."""

import _thread
import threading

from patience import patience


def in_thread(function, *arguments):
    """The result of a function, or its error, in a thread of its own that is not a task."""
    found, over = [], threading.Event()

    def call():
        threading.current_thread().name = "worker_0"
        try:
            found.append((function(*arguments), None))
        except BaseException as error:
            found.append((None, error))
        over.set()

    _thread.start_new_thread(call, ())
    assert over.wait(patience(110))
    result, error = found[0]
    if error is not None:
        raise error
    return result


def nothing_records():
    from ampi.tape.recording import current, open_tapes, opened

    return current() is None and opened() is None and not open_tapes and in_thread(current) is None
