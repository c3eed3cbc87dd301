"""Objects are found by type without disturbing what other threads do."""

import threading

import numpy
import pytest

from ampi.base.live_objects import objects_of_types
from ampi.memory.live_arrays import tracked_arrays
from ampi.memory.storages import TrackedArray


class Base(list):
    pass


class Derived(Base):
    pass


class Unhashable(type):
    __hash__ = None


class Odd(metaclass=Unhashable):
    pass


class Proxy:
    """An object that fails when it is asked for its class."""

    @property
    def __class__(self):
        raise RuntimeError


def test_the_objects_of_exactly_the_given_types_are_found():
    kept = [Base(), Derived(), Base(), Odd(), Proxy()]
    assert {id(x) for x in objects_of_types((Base,))} == {id(kept[0]), id(kept[2])}
    assert {id(x) for x in objects_of_types({Base, Derived})} == {id(x) for x in kept[:3]}
    assert {id(x) for x in objects_of_types((Base,), (0, 1, 2))} == {id(kept[0]), id(kept[2])}
    assert objects_of_types(()) == []


SEARCHES = {
    "types": lambda: objects_of_types((Base, dict)),
    "young": lambda: objects_of_types((Base,), (0, 1)),
    "arrays": tracked_arrays,
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("repeated", [1, 30])
def test_a_tuple_is_filled_while_objects_are_searched(search, repeated):
    """The generator does itself what another thread may do between two items."""

    def items():
        for k in range(20):
            for _ in range(repeated):
                search()
            yield k

    assert tuple(items()) == tuple(range(20))


def test_tuples_are_filled_in_other_threads_while_arrays_are_searched():
    kept = [numpy.zeros(3).view(TrackedArray) for _ in range(10)]
    failures, stop = [], threading.Event()

    def fill():
        try:
            while not stop.is_set():
                for n in (3, 12, 40):
                    assert tuple(k for k in range(n)) == tuple(range(n))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fill) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        found = {id(array) for array in tracked_arrays()}
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert found.issuperset(map(id, kept))
