"""Live objects of given types, found through Python's garbage collector while other threads run."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from functools import partial
from itertools import chain, compress, tee
from typing import Any


def objects_of_types(types: Iterable[type], generations: Iterable[int | None] = (None,)) -> list[Any]:
    """Return the live objects whose type is one of `types`; instances of subclasses do not count.

    `gc.get_objects` also returns tuples that other threads are filling.  CPython fills a tuple in place, and fails with
    a SystemError if anything else refers to it.  The search therefore is one call that runs entirely in C: no other
    thread can run before the lists of all objects are empty again.

    Parameters
    ----------
    types : iterable of type
        Types whose instances the collector tracks.
    generations : iterable of int or None
        Generations of the collector to search; None stands for all.
    """
    ids = {id(kind) for kind in types}  # not the types: a metaclass may define __hash__ in Python
    collects = gc.isenabled()
    gc.disable()  # before Python 3.12, a collection would run callbacks in the middle
    try:
        lists, again, at_last = tee(map(gc.get_objects, generations), 3)
        kinds = map(partial(map, id), map(partial(map, type), again))
        found = chain.from_iterable(map(compress, lists, map(partial(map, ids.__contains__), kinds)))
        # The lists contain what holds them, tee's buffer: emptied, they keep nothing alive until the next collection.
        return list(chain(found, filter(None, map(list.clear, at_last))))
    finally:
        if collects:
            gc.enable()
