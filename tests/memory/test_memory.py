"""Storages, regions and extents."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ampi
from ampi.kernel.runtime.fingerprints import fingerprints
from ampi.memory import storages as memory
from ampi.memory.extents import Extent
from ampi.memory.storages import Region, plain, region_of, storage_of, tracked, tracked_copy


def test_every_view_finds_the_storage_of_its_block():
    x = tracked_copy(np.arange(24.0).reshape(4, 6))
    storage = storage_of(x)
    views = [
        x[1:], x.T, x[::-1, ::2], x.reshape(-1)[3:], x.view(np.uint8), x.diagonal(), plain(x), np.asarray(x)[2:],
        memoryview(x), np.broadcast_to(x, (2, 4, 6)), np.lib.stride_tricks.as_strided(x, (2, 2), (8, 8)), x[None],
    ]  # fmt: skip
    for view in views:
        assert storage_of(np.asarray(view)) is storage
    assert storage_of(x.copy()) is not storage
    assert storage.nbytes == x.nbytes and storage.address == memory.address_of(x)


def test_results_of_numpy_are_storages_of_their_own():
    x = ampi.numpy.arange(6.0)
    y = x * 2.0
    assert storage_of(y[1:]) is storage_of(y) is storage_of(np.asarray(y)[::2])
    assert storage_of(y) is not storage_of(x)


def test_plain_memory_is_tracked_only_on_request():
    a = np.arange(4.0)
    assert storage_of(a) is None and storage_of(a[1:]) is None
    with pytest.raises(ValueError, match=r"ampi\.numpy"):
        region_of(a)
    x = ampi.numpy.asarray(a)
    assert type(x) is ampi.ndarray and np.shares_memory(a, x)
    assert storage_of(a[1:]) is storage_of(x)


def test_memory_that_no_array_owns():
    block = bytearray(64)
    a, b = np.frombuffer(block, np.float64), np.frombuffer(block, np.float64, offset=16)
    x = tracked(a)
    assert storage_of(x) is storage_of(tracked(b)) is storage_of(a[2:])


def test_storages_of_dead_memory_are_forgotten():
    before = len(memory._owned)
    for _ in range(10):
        storage_of(tracked(np.zeros(10)))
    gc.collect()
    assert len(memory._owned) <= before


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[1:, ::2],
        lambda x: x[::-1].T,
        lambda x: x[2],
        lambda x: x[1:2, 1:1],
        lambda x: x[0, 0, ...],
    ],
)
def test_a_region_finds_its_elements_in_a_copy_of_the_block(view):
    x = tracked_copy(np.arange(20.0).reshape(4, 5))
    block = plain(x).copy().view(np.uint8).reshape(-1)
    part = view(x)
    region = Region(storage_of(x), part)
    np.testing.assert_array_equal(region.view(block), part)
    assert region.nbytes == part.nbytes
    assert region.place == region_of(view(x)).place


@st.composite
def layouts(draw):
    """A view of a block of 60 numbers."""
    block = np.zeros(60)
    start = draw(st.integers(0, 20))
    view = block[start : start + draw(st.integers(1, 40))]
    view = view[:: draw(st.sampled_from([1, 2, 3, -1, -2]))]
    rows = draw(st.integers(1, 4))
    if len(view) >= rows:
        view = view[: len(view) // rows * rows].reshape(rows, -1)
        view = view[:: draw(st.sampled_from([1, 2])), draw(st.integers(0, view.shape[1] - 1)) :]
    return view.T if draw(st.booleans()) else view, start


def _place(block, layout):
    view, _ = layout
    address = memory.address_of(view) - memory.address_of(view.base if view.base is not None else view)
    return np.ndarray(view.shape, float, block, address, view.strides)


@given(layouts(), layouts())
def test_extents_overlap_as_numpy_says(a, b):
    block = np.zeros(60)
    first, second = _place(block, a), _place(block, b)
    assert Extent(first).overlaps(Extent(second)) == np.shares_memory(first, second)
    if Extent(first).covers(Extent(second)):
        touched = np.zeros(60)
        _place(touched, a)[...] = 1
        assert _place(touched, b).all()


def test_dtypes_that_carry_derivatives():
    carries = memory.carries_derivatives
    assert carries(np.dtype("f4")) and carries(np.dtype("c16")) and carries(np.dtype([("a", "i4"), ("b", "f8", 3)]))
    assert not carries(np.dtype(int)) and not carries(np.dtype([("a", "i4")])) and not carries(np.dtype(object))


def test_fingerprints_distinguish_blocks():
    """Any bytes, at any address: one word, some words, signs, words in each other's places, and one byte more."""
    rng = np.random.default_rng(5)
    block = np.frombuffer(bytearray(rng.bytes(9000)), np.uint8)
    for trial in range(2000):
        begin, nbytes = int(rng.integers(0, 70)), int(rng.integers(0, rng.choice([20, 200, 8000])))
        of = lambda n=nbytes: fingerprints([(block.ctypes.data + begin, n)])[0]  # noqa: B023
        before = of()
        assert before == of()
        if nbytes:
            assert before != of(nbytes - 1)
        words = block[begin : begin + nbytes // 8 * 8].view(np.float64)
        chosen = rng.choice(len(words), min(len(words), int(rng.integers(1, 5))), replace=False)
        held = words[chosen].copy()
        new = [-held, np.roll(held, 1), np.nextafter(held, 1e300), rng.random(len(held))][trial % 4]
        words[chosen] = new
        changed = new.tobytes() != held.tobytes()
        assert changed == (before != of()), (begin, nbytes, chosen)
        words[chosen] = held
    assert fingerprints([]) == []
