"""Layouts of datatypes: random ones, per-rank counts, sizes beyond 31 bits, many elements."""

import itertools
import tracemalloc

import numpy as np
import pytest
from mpi4py import MPI
from programs import broken_in
from sent_values import check_adjoints, field

import ampi
from ampi.mpi.memory.absolute_buffers import bounds
from ampi.mpi.memory.arguments import parse, parse_bytes, parse_types, parse_vector
from ampi.mpi.memory.datatypes import made_of, typemap_of
from ampi.mpi.memory.typemaps import Layout, Piece, reach
from ampi.mpi.windows.target import target_of

SELF = MPI.Intracomm(MPI.COMM_SELF)
WORLD = MPI.COMM_WORLD
FIELD = (6, 8)


def random_datatype(generator, depth):
    """A random datatype of doubles with nonnegative offsets."""
    if depth == 0:
        return MPI.DOUBLE
    base = random_datatype(generator, depth - 1)
    n = int(generator.integers(1, 4))
    lengths = [int(k) for k in generator.integers(0, 3, n)]
    displs = [int(k) for k in generator.integers(0, 6, n)]
    by_bytes = [8 * k for k in displs]
    choice = int(generator.integers(9))
    if choice == 0:
        return base.Create_contiguous(n)
    if choice == 1:
        return base.Create_vector(n, int(generator.integers(1, 3)), int(generator.integers(0, 4)))
    if choice == 2:
        return base.Create_hvector(n, 1, 8 * int(generator.integers(0, 20)))
    if choice == 3:
        return base.Create_indexed(lengths, displs)
    if choice == 4:
        return base.Create_hindexed(lengths, by_bytes)
    if choice == 5:
        return base.Create_indexed_block(2, displs)
    if choice == 6:
        return MPI.Datatype.Create_struct(lengths, by_bytes, [base] * n)
    if choice == 7:
        sizes = [int(k) for k in generator.integers(2, 4, 2)]
        order = [MPI.ORDER_C, MPI.ORDER_F][int(generator.integers(2))]
        return base.Create_subarray(sizes, [s - 1 for s in sizes], [1, 0], order)
    return base.Create_resized(0, 8 * int(generator.integers(1, 10)))


@pytest.mark.parametrize("seed", range(150))
def test_random_datatypes(seed):
    generator = np.random.default_rng(seed)
    datatype = random_datatype(generator, int(generator.integers(1, 4))).Commit()
    positions = np.arange(20_000)
    packed = np.empty(datatype.size // 8 * 2, np.int64)
    SELF.Sendrecv([positions, 2, datatype], 0, 0, [packed, MPI.BYTE], 0, 0)
    typemap = typemap_of(datatype)
    assert np.array_equal(typemap.offsets, packed[: len(packed) // 2] * 8)
    assert np.array_equal(typemap.places, 8 * np.arange(1, 1 + len(packed) // 2))
    if len(packed):
        assert np.array_equal(typemap.layout(2).offsets(), packed * 8)
        pieces = typemap.layout(2).pieces
        again = made_of(MPI.DOUBLE, pieces)
        assert np.array_equal(typemap_of(again).offsets, packed * 8)
        assert reach(pieces, 8) == (packed.min() * 8, packed.max() * 8 + 8)
        again.Free()
    datatype.Free()


# ------------------------------------------------------------------------------------------ one count for each rank


def forms_of_a_vector_message(size):
    memory = field()
    counts = [(3 * r) % 4 for r in range(size)]
    displs = [40 - 5 * r for r in range(size)]
    column = MPI.DOUBLE.Create_vector(2, 1, 8).Create_resized(0, 8).Commit()
    yield memory, memory
    yield memory, [memory, MPI.DOUBLE]
    yield memory, [memory, 3]
    yield memory, [memory, counts]
    yield memory, [memory, (counts, None)]
    yield memory, [memory, (counts, displs)]
    yield memory, [memory, (3, 5)]
    yield memory, [memory, (counts, displs), "d"]
    yield memory, [memory, counts, displs, MPI.DOUBLE]
    yield memory, [memory, (2, [25 - 3 * r for r in range(size)]), column]
    yield memory, [memory, (16, 24), MPI.BYTE]
    yield memory, [memory, ([8 * n for n in counts], [8 * d for d in displs]), MPI.BYTE]
    yield memory, [memory, np.array(counts)]
    column.Free()


@pytest.mark.mpi
def test_forms_of_a_vector_message():
    for memory, spec in forms_of_a_vector_message(WORLD.size):
        buffer = parse_vector(spec, WORLD.size)
        came = np.empty(buffer.counts[WORLD.rank])
        WORLD.Scatterv(spec, [came, MPI.BYTE])
        parts = WORLD.allgather(came)
        assert buffer.count == sum(buffer.counts)
        assert np.array_equal(buffer.values(), np.concatenate(parts))
        positions = np.concatenate(parts).astype(int)
        check_adjoints(memory, buffer, positions)


BIG = 1 << 31


def test_counts_and_displacements_beyond_31_bits():
    """Arithmetic only: the memory is never touched, so that none is allocated."""
    memory = ampi.numpy.empty(BIG + 64, np.uint8)
    buffer = parse_bytes([memory, (BIG + 7, 9), MPI.BYTE])
    assert buffer.count == buffer.nbytes == BIG + 7 and buffer.packed
    assert buffer.part(BIG, BIG + 5).regions()[0].offset == BIG + 9
    assert buffer.within(BIG + 1).count == BIG + 1
    vector = parse_vector([memory, ([3, BIG, 2], [BIG + 5, 0, BIG + 1]), MPI.BYTE], 3)
    assert vector.counts == [3, BIG, 2] and vector.nbytes == BIG + 5
    assert vector.part(0, 3).regions()[0].offset == BIG + 5
    first, second = parse_types([memory, ([1, 4], [BIG + 8, BIG + 16]), [MPI.INT, MPI.BYTE]], 2)
    assert first.overwritten() == [] and second.address - first.address == 8
    del memory


def test_layouts_beyond_31_bits():
    """Many items, far apart, of a datatype with gaps."""
    wide = MPI.DOUBLE.Create_resized(0, BIG).Commit()
    typemap = typemap_of(wide)
    wide.Free()
    layout = typemap.layout(BIG)
    assert layout.count == BIG and layout.index is None and not layout.overlapping
    assert layout.pieces == ((0, (BIG,), (BIG,)),)
    far = MPI.DOUBLE.Create_hindexed([1, 1], [3 * BIG, -BIG]).Commit()
    assert [piece.offset for piece in typemap_of(far).pieces(1)] in ([3 * BIG], [3 * BIG, -BIG])
    assert bounds(typemap_of(far), 1, 0) == (-BIG, 3 * BIG + 8)
    far.Free()


@pytest.mark.mpi
def test_one_datatype_for_each_rank():
    size = WORLD.size
    memory = field()
    types = [MPI.DOUBLE.Create_vector(2, 1, 1 + r).Commit() for r in range(size)]
    for spec in ([memory, types], [memory, ([1] * size, [8 * r for r in range(size)]), types]):
        buffers = parse_types(spec, size)
        came = np.empty(2 * size)
        WORLD.Alltoallw(spec, [came, ([16] * size, [16 * r for r in range(size)]), [MPI.BYTE] * size])
        expected = WORLD.alltoall(list(came.reshape(size, 2)))
        for buffer, values in itertools.zip_longest(buffers, expected):
            assert np.array_equal(buffer.values(), values)
    for datatype in types:
        datatype.Free()


N = BIG + 3  # items of the datatypes below
BLOCK, CYCLIC = MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC

# Datatypes of many doubles, their number in an item, and the byte offset of the one at a position.
HUGE = {
    "contiguous": (lambda: MPI.DOUBLE.Create_contiguous(N), N, lambda k: 8 * k),
    "twice": (lambda: MPI.DOUBLE.Create_contiguous(3).Create_contiguous(N), 3 * N, lambda k: 8 * k),
    "vector": (lambda: MPI.DOUBLE.Create_vector(N, 2, 5), 2 * N, lambda k: 8 * (k // 2 * 5 + k % 2)),
    "hvector": (lambda: MPI.DOUBLE.Create_hvector(3, N, 9 * N), 3 * N, lambda k: k // N * 9 * N + 8 * (k % N)),
    "columns": (
        lambda: MPI.DOUBLE.Create_vector(2, 1, N).Create_resized(0, 8).Create_contiguous(N),
        2 * N,
        lambda k: 8 * (k // 2 + k % 2 * N),
    ),
    "subarray": (
        lambda: MPI.DOUBLE.Create_subarray([1 << 20, 1 << 12], [1 << 20, 2049], [0, 7]),
        2049 << 20,
        lambda k: 8 * ((k // 2049 << 12) + 7 + k % 2049),
    ),
    "fortran": (
        lambda: MPI.DOUBLE.Create_subarray([1 << 12, 1 << 20], [2049, 1 << 20], [7, 0], MPI.ORDER_F),
        2049 << 20,
        lambda k: 8 * ((k // 2049 << 12) + 7 + k % 2049),
    ),
    "blocks": (
        lambda: MPI.DOUBLE.Create_darray(4, 1, [4 * N], [BLOCK], [MPI.DISTRIBUTE_DFLT_DARG], [4]),
        N,
        lambda k: 8 * (N + k),
    ),
    "cyclic": (lambda: MPI.DOUBLE.Create_darray(4, 1, [4 * N], [CYCLIC], [1], [4]), N, lambda k: 8 * (1 + 4 * k)),
    "indexed": (
        lambda: MPI.DOUBLE.Create_indexed([N, 2 * N], [3 * N, 5]),
        3 * N,
        lambda k: 8 * (3 * N + k if k < N else 5 + k - N),
    ),
    "at an address": (lambda: MPI.DOUBLE.Create_hindexed([N], [1 << 40]), N, lambda k: (1 << 40) + 8 * k),
    "two blocks": (
        lambda: MPI.DOUBLE.Create_hindexed_block(N, [8, -9 * N]),
        2 * N,
        lambda k: 8 + 8 * k if k < N else 8 * k - 17 * N,
    ),
    "struct": (
        lambda: MPI.Datatype.Create_struct([1, N], [0, 8], [MPI.INT, MPI.DOUBLE]),
        N,
        lambda k: 8 + 8 * k,
    ),
}


ABORTS = broken_in("Intel MPI", "Commit of a cyclic array of 2**31 elements aborts")


@pytest.mark.parametrize("name", [pytest.param(name, marks=ABORTS if name == "cyclic" else ()) for name in HUGE])
def test_regular_datatypes_of_many_elements(name, request):
    """Their elements are never listed; offsets at some positions are compared with a formula."""
    make, length, offset = HUGE[name]
    try:
        datatype = make().Commit()
    except (OverflowError, NotImplementedError, MPI.Exception):
        pytest.skip("this MPI has no such datatype")
    if datatype.extent < 0 or datatype.size < 8 * length:
        pytest.skip("this MPI reckons with 32 bits")
    tracemalloc.start()
    request.addfinalizer(tracemalloc.stop)
    typemap = typemap_of(datatype)
    layout = typemap.layout(1)
    assert typemap.length == layout.count == length
    assert typemap.contiguous == (name in ("contiguous", "twice"))
    assert typemap.mixed == (name == "struct") == bool(typemap.extra)
    assert layout.index is None and not layout.overlapping
    for k in (0, 1, length // 3, length // 2, N - 1, N, length - 1):
        if k < length:
            assert layout.part(k, k + 1, 8).offsets().tolist() == [offset(k)]
    last = length - 1
    if len(layout.pieces) == 1 and datatype.extent > offset(last):
        many = typemap.layout(5)
        assert many.count == 5 * length
        assert many.part(5 * length - 1, 5 * length, 8).offsets() == [offset(last) + 4 * datatype.extent]
    buffer = parse([ampi.numpy.zeros(2), 1, datatype])
    assert buffer.count == length and buffer.nbytes == datatype.size
    assert buffer.part(last, length).regions()[0].offset == offset(last)
    target = target_of(0, 8, (4, 1, datatype), [np.zeros(2), 1, datatype], np.dtype("d"))
    assert target.count == length
    assert target.stop - target.start == 8 + max(offset(k) for k in (N - 1, last)) - min(offset(0), offset(N % length))
    with target.argument(target.start, 8, MPI.DOUBLE) as (_, count, derived):
        assert count * derived.size == 8 * length
    assert tracemalloc.get_traced_memory()[1] < 1 << 18
    datatype.Free()


def test_part_of_a_layout():
    """Any range of the elements of several strided pieces."""
    pieces = [Piece(5, (2, 3, 2), (100, 30, 8)), Piece(400, (4,), (-16,)), Piece(500, (), ())]
    layout = Layout(pieces, 8)
    offsets = layout.offsets()
    for start, stop in itertools.combinations(range(len(offsets) + 1), 2):
        assert np.array_equal(layout.part(start, stop, 8).offsets(), offsets[start:stop])
    assert layout.part(3, 3, 8).count == 0
