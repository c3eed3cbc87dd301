"""The garbage collector runs rarely while kernels are compiled; its thresholds are the program's before and after."""

import contextlib
import gc
import threading

import pytest
from numba.core import event

import ampi
from ampi.kernel.runtime.progress import counted
from ampi.kernel.runtime.rare_collection import OBJECTS, rare_collection


@pytest.fixture(autouse=True)
def thresholds():
    """Thresholds that no other code sets."""
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 13)
    yield 701, 11, 13
    gc.set_threshold(*before)


class Thresholds(event.Listener):
    """What the collector's first threshold is while Numba compiles a function."""

    def __init__(self):
        self.seen = []

    def on_start(self, event):
        self.seen.append(gc.get_threshold()[0])

    def on_end(self, event):
        pass


def test_kernels_and_their_adjoints_are_compiled_with_few_collections(thresholds, monkeypatch, tmp_path):
    monkeypatch.setenv("AMPI_CACHE_DIR", str(tmp_path))

    @ampi.kernel
    def cube(x):
        return x * x * x

    listener = Thresholds()
    with event.install_listener("numba:compile", listener):
        assert ampi.grad(cube)(2.0) == 12.0
    assert len(listener.seen) >= 2 and set(listener.seen) == {OBJECTS}
    assert gc.get_threshold() == thresholds


def test_thresholds_are_set_back_after_an_exception(thresholds):
    with pytest.raises(ZeroDivisionError), counted():
        assert gc.get_threshold() == (OBJECTS, *thresholds[1:])
        with counted():
            assert gc.get_threshold() == (OBJECTS, *thresholds[1:])
        assert gc.get_threshold() == (OBJECTS, *thresholds[1:])
        raise ZeroDivisionError
    assert gc.get_threshold() == thresholds


def test_the_last_of_several_threads_sets_them_back(thresholds):
    inside, over = threading.Event(), threading.Event()

    def other():
        with rare_collection():
            inside.set()
            assert over.wait(60)

    thread = threading.Thread(target=other)
    with contextlib.ExitStack() as compiling:
        compiling.enter_context(rare_collection())
        thread.start()
        assert inside.wait(60)
    assert gc.get_threshold() == (OBJECTS, *thresholds[1:])  # the other one still compiles
    over.set()
    thread.join()
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("own", [(0, 11, 13), (10 * OBJECTS, 11, 13)])
def test_a_collector_that_runs_more_rarely_or_never_remains_so(own):
    gc.set_threshold(*own)
    with rare_collection():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_thresholds_that_a_program_sets_meanwhile_remain():
    with rare_collection():
        gc.set_threshold(5_000, 7, 7)
    assert gc.get_threshold() == (5_000, 7, 7)
