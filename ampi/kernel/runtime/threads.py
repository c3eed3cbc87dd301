"""Parallel loops of derivative programs: the choice of a form, and its execution.

A loop whose iterations add to the same elements (they meet) can run in four forms, and `choose` takes the fastest:

``ALONE``   on one thread;
``NEAR``    in blocks, first the even ones and then the odd ones, if no two even and no two odd ones meet;
``OWN``     each thread but the first adds to private arrays, which are added up afterwards;
``ATOMIC``  each increment is an atomic instruction of the processor.

If no two iterations meet it runs ``APART``: on threads, without precautions.

The costs on which the choice depends are measured once on a machine and stored in the cache folder.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba import get_num_threads, njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.ufunc import parallel as _pool

from ampi.kernel.runtime import cache, files

ALONE, APART, OWN, ATOMIC, NEAR = range(5)
LAUNCH = 8000.0  # nanoseconds to start threads and to wait for them
TYPICAL = (0.03, LAUNCH, 0.6, 5.0)  # costs for deterministic programs, whose forms must not change with a measurement
ONLY_PRANGE: Any = {
    **dict.fromkeys("comprehension numpy reduction inplace_binop setitem stencil fusion".split(), False),
    "prange": True,
}
"""Numba's option ``parallel`` for ``prange`` only: other transformations take seconds to compile, and slow down work on
short arrays."""
LONG = 1 << 17  # elements; several threads read longer arrays of indices
SAMPLE = 100  # iterations of each block that are checked first
NAMES = ("operation", "launch", "own element", "atomic addition")  # of the costs, in nanoseconds


_pool_state = vars(_pool)


def thread_count() -> int:
    """`numba.get_num_threads`, but without taking two locks once the threads have been started."""
    if _pool_state.get("_is_initialized"):
        count = _pool_state.get("_get_num_threads")
        if count is not None:
            return count()
    return get_num_threads()


_started = False


def use_threads() -> None:
    """Let the threads of kernels do other work on large arrays, too; called when a kernel runs on threads."""
    global _started
    _started = True


def started_threads() -> int:
    """The number of threads for work on large arrays outside kernels: one until a kernel has run on threads."""
    return thread_count() if _started else 1


def _forget_threads() -> None:
    global _started
    _started = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)  # a child has no threads, and may not be able to start any


# ------------------------------------------------------------------------------------------- called by programs


@njit
def choose(trips, work, elements, increments, threads, apart, added, near, costs):
    """The fastest of the forms that are safe.

    Parameters
    ----------
    trips, work : int
        The numbers of iterations, and of operations in each.
    elements : int
        The number of elements of the arrays in which iterations meet.
    increments : int
        The number of additions to these in an iteration.
    threads : int
        The number of parts into which the loop would be cut.
    apart, added : bool
        Whether no two iterations meet; whether they only add to elements in which they meet.
    near : bool
        Whether only iterations of neighbouring blocks meet, with two blocks for each thread.
    costs : tuple of float
        The costs named by `NAMES`.
    """
    operation, launch, own, atomic = costs
    alone = trips * work * operation
    form = ALONE
    if threads > 1 and trips > 1:
        shared = alone / threads + launch
        with_own = shared + launch + elements * own * (threads - 1) / threads
        with_atomic = shared + trips * increments * atomic / threads
        if apart:
            form = APART if shared < alone else ALONE
        elif near:
            form = NEAR if shared + launch < alone else ALONE
        elif added and with_own < alone and with_own <= with_atomic:
            form = OWN
        elif added and with_atomic < alone:
            form = ATOMIC
    return form


def estimates(
    trips: int,
    work: int,
    elements: int,
    increments: int,
    threads: int,
    apart: bool,
    added: bool,
    near: bool,
    costs: Any,
) -> dict[int, float]:
    """The estimated times of the safe forms, in nanoseconds, which `choose` compares."""
    operation, launch, own, atomic = costs
    alone = trips * work * operation
    found = {ALONE: alone}
    if threads > 1 and trips > 1:
        shared = alone / threads + launch
        if apart:
            found[APART] = shared
        elif near:
            found[NEAR] = shared + launch
        elif added:
            found[OWN] = shared + launch + elements * own * (threads - 1) / threads
            found[ATOMIC] = shared + trips * increments * atomic / threads
    return found


@njit
def piece(start, stop, part, parts):
    """The bounds of part ``part`` of ``parts`` of a range; sizes of parts differ by at most one."""
    trips = max(stop - start, 0)
    return start + trips * part // parts, start + trips * (part + 1) // parts


@njit(parallel=ONLY_PRANGE)
def blocks_are_apart(index, rows, first, last, own, low, high, start, stop, blocks):
    """Return whether all even blocks of iterations access different elements, and all odd blocks as well.

    For parameters see `ir.Reach`; ``index`` is the flattened array of ``rows`` rows.
    """
    if stop - start < 2 * blocks or start + first < 0 or stop + last > rows or index.size < rows:
        return False
    lowest, highest = np.empty(blocks, np.int64), np.empty(blocks, np.int64)
    width = index.size // rows
    for block in range(blocks):
        begin, end = piece(start, stop, block, blocks)
        some = min(end, begin + SAMPLE)
        lowest[block], highest[block] = _extent(index, (begin + first) * width, (some + last) * width)
    if not _are_apart(lowest, highest):
        return False
    for block in prange(blocks):
        begin, end = piece(start, stop, block, blocks)
        lowest[block], highest[block] = _extent(index, (begin + first) * width, (end + last) * width)
        if own:
            lowest[block] = min(lowest[block], begin + low)
            highest[block] = max(highest[block], end - 1 + high)
    return _are_apart(lowest, highest)


@njit
def _extent(index, begin, end):
    part = index[begin:end]
    low = high = part[0]
    for k in range(part.size):
        low = min(low, part[k])
        high = max(high, part[k])
    return np.int64(low), np.int64(high)


@njit
def _are_apart(lowest, highest):
    for block in range(lowest.size):
        if lowest[block] < 0:  # an index from the end
            return False
        for other in range(block % 2, block, 2):
            if lowest[other] <= highest[block] and lowest[block] <= highest[other]:
                return False
    return True


@njit
def smallest_of_parts(value, parts):
    """The smallest of a value and those of all parts."""
    for part in parts:
        value = min(value, part)
    return value


@njit
def largest_of_parts(value, parts):
    """The largest of a value and those of all parts."""
    for part in parts:
        value = max(value, part)
    return value


@njit
def place_of_smallest(value, parts, places, last):
    """The place of the smallest of a value and the values of all parts: the first such place (``last``: the last).

    It is minus one if the value itself is the smallest; parts whose place is minus one do not count.
    """
    found = -1
    for k in range(parts.shape[0]):
        if places[k] >= 0 and (parts[k] <= value if last else not value <= parts[k]):
            value, found = parts[k], places[k]
    return found


@njit
def place_of_largest(value, parts, places, last):
    """The place of the largest value; compare `place_of_smallest`."""
    found = -1
    for k in range(parts.shape[0]):
        if places[k] >= 0 and (parts[k] >= value if last else not value >= parts[k]):
            value, found = parts[k], places[k]
    return found


def add_own(total: np.ndarray, own: np.ndarray, part: int, parts: int) -> None:
    """Add part ``part`` of ``parts`` of the elements of each array ``own[k]`` to ``total``, in the order of ``k``."""
    begin, end = piece(0, total.shape[-1], part, parts)
    for array in own:
        total[..., begin:end] += array[..., begin:end]


@overload(add_own)
def _add_own(total: Any, own: Any, part: Any, parts: Any) -> Any:
    # Loops over elements: Numba takes seconds to compile the expression over slices.
    def row(total: Any, own: Any, part: Any, parts: Any) -> None:
        begin, end = piece(0, total.shape[0], part, parts)
        for k in range(own.shape[0]):
            for n in range(begin, end):
                total[n] += own[k, n]

    def rows(total: Any, own: Any, part: Any, parts: Any) -> None:
        if total.shape[0] > total.shape[1]:
            begin, end = piece(0, total.shape[0], part, parts)
            for n in range(begin, end):
                add_own(total[n], own[:, n], 0, 1)
        else:
            for n in range(total.shape[0]):
                add_own(total[n], own[:, n], part, parts)

    return row if total.ndim == 1 else rows


def atomic_add(array, index, value):
    """``array[index] += value`` as an atomic operation; ``index`` is a tuple of integers."""
    array[index] += value


@overload(atomic_add, inline="always")
def _atomic_add(array: Any, index: Any, value: Any) -> Any:
    # Integers keep their types: an unsigned index cannot count from the end, which saves a test.
    def add(array: Any, index: Any, value: Any) -> None:
        _atomic(array, index, value)  # type: ignore[call-arg]  # Numba gives the first one

    return add


@intrinsic
def _atomic(typing: Any, array: Any, index: Any, value: Any) -> Any:
    numbers = tuple(types.uintp if not i.signed else types.intp for i in index)
    signature = types.void(array, types.Tuple(numbers), array.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ty, place, element = signature.args
        view = context.make_array(ty)(context, builder, arguments[0])
        at = []
        for number, i, extent in zip(
            cgutils.unpack_tuple(builder, arguments[1], ty.ndim), place, cgutils.unpack_tuple(builder, view.shape)
        ):
            if i.signed:
                negative = builder.icmp_signed("<", number, llvm.Constant(number.type, 0))
                number = builder.select(negative, builder.add(number, extent), number)
            at.append(number)
        pointer = cgutils.get_item_pointer(context, builder, ty, view, at, wraparound=False)
        if isinstance(element, types.Complex):
            number = context.make_complex(builder, element, value=arguments[2])
            real = builder.bitcast(pointer, number.real.type.as_pointer())
            builder.atomic_rmw("fadd", real, number.real, "monotonic")
            imaginary = builder.gep(real, [llvm.Constant(llvm.IntType(32), 1)])
            builder.atomic_rmw("fadd", imaginary, number.imag, "monotonic")
        else:
            word = "add" if isinstance(element, types.Integer) else "fadd"
            builder.atomic_rmw(word, pointer, arguments[2], "monotonic")
        return context.get_dummy_value()

    return signature, generate


# ------------------------------------------------------------------------------------------- checks by the caller


class Distinct:
    """Test of index arrays for duplicates; answers are remembered while an array has the same elements."""

    def __init__(self) -> None:
        self.known: dict[Any, tuple[int, bool]] = {}

    def __call__(self, array: np.ndarray) -> bool:
        """Return whether the elements of an array of integers are distinct and not negative."""
        place = array.__array_interface__["data"][0], array.shape, array.strides, array.dtype
        known = self.known.get(place)
        if known is not None and not known[1]:
            return False  # always safe, so the array need not be read again
        print_ = int(_fingerprint(array))
        if known is None or known[0] != print_:
            if len(self.known) > 1000:
                self.known.clear()
            known = self.known[place] = print_, _all_differ(array)
        return known[1]


distinct = Distinct()


def _all_differ(array: np.ndarray) -> bool:
    if array.size == 0:
        return True
    low, high = int(array.min()), int(array.max())
    if low < 0:
        return False
    if high < 16 * array.size + 1024:
        seen = np.zeros(high + 1, bool)
        seen[array] = True
        return int(np.count_nonzero(seen)) == array.size
    return np.unique(array).size == array.size


def _fingerprint(array: np.ndarray) -> int:
    """A number that almost certainly changes with any element of an array."""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel()
    parts = started_threads() if flat.size > LONG else 1
    if parts > 1:
        sums = np.empty(parts, np.uint64)
        _compiled_mixing_on_threads()(flat, sums)
        return int(sums.sum())
    return _compiled_mixing()(flat, 0, flat.size)


@functools.cache
def _compiled_mixing() -> Any:
    return cache.compiled(_mixed, f"mixed_{cache.key()}", {})


@functools.cache
def _compiled_mixing_on_threads() -> Any:
    options = {"parallel": {**ONLY_PRANGE}}
    return cache.compiled(_mixed_on_threads, f"mixed_on_threads_{cache.key()}", options)


def _mixed_on_threads(flat, sums):
    parts = sums.size
    for part in prange(parts):
        begin, end = piece(0, flat.size, part, parts)
        sums[part] = _mixed_part(flat, begin, end)


def _mixed(flat, begin, end):
    part = flat[begin:end]
    total = np.uint64(part.size)
    factor = np.uint64(0x9E3779B97F4A7C15)
    for k in range(part.size):
        # Each position has another weight, so that exchanged values change the sum.
        weight = (np.uint64(begin + k) * factor) | np.uint64(1)
        weight ^= weight >> np.uint64(29)
        total += (np.uint64(part[k]) + np.uint64(0x632BE59BD9B4E019)) * (weight | np.uint64(1))
    return total


_mixed_part = njit(_mixed)


# ------------------------------------------------------------------------------------------- measuring


def costs() -> tuple[float, ...]:
    """The costs of operations on this machine, in nanoseconds (see `NAMES`), measured once and stored."""
    path = files.folder() / f"costs_{cache.fingerprint(cache.processor())}.json"
    text = files.read(path)
    if text is None:
        with files.locked("costs"):
            text = files.read(path)
            if text is None:
                text = json.dumps(dict(zip(NAMES, _measured()))).encode()
                files.write(path, text)
    return tuple(json.loads(text).values())


@functools.cache
def _measured() -> tuple[float, ...]:
    size, length = 50_000, 100_000
    index = np.random.default_rng(0).integers(0, size, length).astype(np.uint64)
    x, y, own = np.ones(length), np.zeros(size), np.zeros((1, size))
    arithmetic = _best(lambda: _arithmetic(x)) / length / 16
    plain = _best(lambda: _scatter(y, index, x)) / length
    atomic = _best(lambda: _scatter_atomic(y, index, x)) / length
    element = _best(lambda: _clear_and_add(y, own)) / size
    operation = (15 * arithmetic + plain / 4) / 16  # most are arithmetic, some are gathered or scattered elements
    return tuple(float(f"{cost:.2g}") for cost in (operation, LAUNCH, element, max(atomic - plain, 0.5)))


def _best(work: Callable[[], Any]) -> float:
    """The shortest of several run times, in nanoseconds."""
    times = []
    for _ in range(8):
        begin = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - begin)
    return min(times)


@njit
def _arithmetic(x):
    for k in range(x.shape[0]):
        t = x[k]
        for _ in range(8):
            t = t * 0.5 + 0.25
        x[k] = t


@njit
def _scatter(y, index, x):
    for k in range(index.shape[0]):
        y[index[k]] += x[k]


@njit
def _scatter_atomic(y, index, x):
    for k in range(index.shape[0]):
        atomic_add(y, (index[k],), x[k])


@njit
def _clear_and_add(y, own):
    own[0] = 0.0
    add_own(y, own, 0, 1)
