"""Arrays that only a pending operation refers to live until it has completed, in every mode and for every kind."""

import ast
import gc
import pathlib
import weakref

import numpy
import pytest
from mpi4py import MPI
from test_intercommunicators import halves

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD
from ampi.mpi.base.rules import TABLE, Treatment

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", autouse=True)
def _nothing_old_is_garbage():
    """Freeze existing objects: hundreds of tests collect garbage at least twice, and should only scan their own."""
    gc.collect()
    gc.freeze()


RANK, SIZE = COMM_WORLD.rank, COMM_WORLD.size
N = 6
NEXT, LAST = (RANK + 1) % SIZE, (RANK - 1) % SIZE

# Numbers of blocks of N elements that are sent and received; None: nothing.
BLOCKS = {
    "Bcast": (1, None),
    "Gather": (1, SIZE),
    "Gatherv": (1, SIZE),
    "Scatter": (SIZE, 1),
    "Scatterv": (SIZE, 1),
    "Allgather": (1, SIZE),
    "Allgatherv": (1, SIZE),
    "Alltoall": (SIZE, SIZE),
    "Alltoallv": (SIZE, SIZE),
    "Alltoallw": (SIZE, SIZE),
    "Reduce": (1, 1),
    "Allreduce": (1, 1),
    "Reduce_scatter": (SIZE, 1),
    "Reduce_scatter_block": (SIZE, 1),
    "Scan": (1, 1),
    "Exscan": (1, 1),
    "Neighbor_allgather": (1, 2),
    "Neighbor_allgatherv": (1, 2),
    "Neighbor_alltoall": (2, 2),
    "Neighbor_alltoallv": (2, 2),
    "Neighbor_alltoallw": (2, 2),
    "send": (1, None),
    "ssend": (1, None),
    "bsend": (1, None),
    "rsend": (1, None),
    "psend": (1, None),
    "precv": (None, 1),
    "recv": (None, 1),
    "sendrecv": (1, 1),
    "sendrecv_replace": (1, None),
}


def plain_name(name):
    """The name in `BLOCKS` for a form with a request."""
    name = name.removesuffix("_init") if name.endswith("_init") else name[1:]
    return name if name.lower() in BLOCKS else name[0].upper() + name[1:]


def started():
    """Forms with a request of the operations on buffers of a communicator."""
    for operation in TABLE.values():
        name = operation.name
        if operation.treatment is Treatment.DIFFERENTIATED and not operation.objects:
            if operation.owner in ("Comm", "Intracomm", "Topocomm"):
                if (name.startswith("I") and name[1:2].islower()) or name.endswith("_init"):
                    yield name


def blocks_of(form):
    """The numbers of blocks that an operation sends and receives."""
    name = plain_name(form)
    return BLOCKS[name if name in BLOCKS else name.lower()]


def owner(array):
    """The array that owns an array's memory."""
    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return array


def spec(name, array, blocks):
    """The argument for a message of ``blocks`` blocks."""
    if not name.endswith("alltoallw"):
        return array
    counts, displacements = [N] * blocks, [8 * N * k for k in range(blocks)]
    return [array, (counts, displacements), [MPI.DOUBLE] * blocks]


def begin(np, comm, form, sent, received):
    """Start an operation; returns its request, and that of its partner if it needs one."""
    name = plain_name(form).lower()
    method, other = getattr(comm, form), None
    if name in ("send", "ssend", "bsend", "rsend"):
        other = comm.Irecv(np.zeros(N), LAST)
        if name == "rsend":
            comm.Barrier()
        request = method(sent, NEXT)
    elif name in ("psend", "precv"):
        sends = name == "psend"
        other = comm.Precv_init(np.zeros(N), 1, LAST, 0) if sends else comm.Psend_init(np.ones(N), 1, NEXT)
        request = method(sent, 1, NEXT) if sends else method(received, 1, LAST, 0)
        other.Start()
        request.Start()
        (request if sends else other).Pready(0)
        return request, other
    elif name == "recv":
        other = comm.Isend(np.ones(N), NEXT)
        request = method(received, LAST)
    elif name.startswith("sendrecv"):
        request = method(sent, NEXT, 0, *([] if received is None else [received]), LAST, 0)
    else:
        blocks = BLOCKS[plain_name(form)]
        buffers = [spec(name, array, n) for array, n in zip((sent, received), blocks) if array is not None]
        request = method(*buffers)
    if form.endswith("_init"):
        request.Start()
    return request, other


def run(np, comm, form, x):
    """Drop references to the arrays during the operation; return whether they stay alive."""
    sends, receives = blocks_of(form)
    sent = None if sends is None else np.concatenate([x * 2.0] * sends)
    received = None if receives is None else np.zeros(receives * N)
    read = RANK == 0 or "scatter" not in form.lower() or "reduce" in form.lower()
    written = RANK == 0 or "Igather" not in form
    matter = [array for array, does in ((sent, read), (received, written)) if does and array is not None]
    owners = [weakref.ref(owner(array)) for array in matter]
    request, other = begin(np, comm, form, sent, received)
    del sent, received, matter
    gc.collect()
    alive = [reference() is not None for reference in owners]
    request.Wait()
    if other is not None:
        other.Wait()
    for used in (request, other):
        if isinstance(used, MPI.Prequest):
            used.Free()
    return all(alive)


def idle(function, x):
    function(ampi.numpy, ampi.numpy.array(x))


def recording(function, x):
    with ampi.Tape() as tape:
        function(ampi.numpy, tape.watch(x))


def forward(function, x):
    ampi.jvp(lambda x: (function(ampi.numpy, x), ampi.numpy.sum(x))[1], (x,), (numpy.ones_like(x),))


def second(function, x):
    ampi.hvp(lambda x: (function(ampi.numpy, x), ampi.numpy.sum(x * x))[1], (x,), (numpy.ones_like(x),))


MODES = [idle, recording, forward, second]


@pytest.mark.filterwarnings("ignore::ampi.ActivityWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", list(started()))
def test_of_requests(form, mode):
    if mode is second and form.endswith("_init") and plain_name(form).startswith("Neighbor"):
        pytest.skip("no second derivatives")
    comm = COMM_WORLD.Create_cart([SIZE], [True])
    alive = []
    if "bsend" in form.lower():
        MPI.Attach_buffer(bytearray(1 << 16))
    try:
        mode(lambda np, x: alive.append(run(np, comm, form, x)), numpy.arange(1.0, N + 1) + RANK)
    finally:
        if "bsend" in form.lower():
            MPI.Detach_buffer()
    comm.Free()
    assert alive and all(alive)


OPERATIONS = {
    "Put": lambda win, a, b, rank: win.Put(a, rank),
    "Get": lambda win, a, b, rank: win.Get(a, rank),
    "Accumulate": lambda win, a, b, rank: win.Accumulate(a, rank),
    "Get_accumulate": lambda win, a, b, rank: win.Get_accumulate(a, b, rank),
    "Fetch_and_op": lambda win, a, b, rank: win.Fetch_and_op(a[:1], b[:1], rank),
    "Rput": lambda win, a, b, rank: win.Rput(a, rank),
    "Rget": lambda win, a, b, rank: win.Rget(a, rank),
    "Raccumulate": lambda win, a, b, rank: win.Raccumulate(a, rank),
    "Rget_accumulate": lambda win, a, b, rank: win.Rget_accumulate(a, b, rank),
}


def in_fence(win, rank, put):
    win.Fence()
    put()
    win.Fence()


def in_epoch(win, rank, put):
    world = COMM_WORLD.Get_group()
    others, targets = world.Incl(sorted({LAST})), world.Incl([rank])
    win.Post(others)
    win.Start(targets)
    put()
    win.Complete()
    win.Wait()
    for group in (world, others, targets):
        group.Free()


def in_lock(win, rank, put):
    win.Lock(rank, MPI.LOCK_SHARED)
    put()
    win.Unlock(rank)


def flushed(name, every):
    def in_lock_all(win, rank, put):
        win.Lock_all()
        check = put()
        getattr(win, name)(*([] if every else [rank]))
        check()
        win.Unlock_all()

    in_lock_all.__name__ = name
    return in_lock_all


EPOCHS = [
    in_fence,
    in_epoch,
    in_lock,
    *(flushed(name, False) for name in ("Flush", "Flush_local")),
    *(flushed(name, True) for name in ("Flush_all", "Flush_local_all")),
]


@pytest.mark.filterwarnings("ignore::ampi.ActivityWarning")
@pytest.mark.parametrize("mode", [idle, recording, forward])
@pytest.mark.parametrize("epoch", EPOCHS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", OPERATIONS)
def test_of_windows(name, epoch, mode):
    """Arrays are released when the operation is complete at its origin, and not before."""
    if name.startswith("R") and epoch in (in_fence, in_epoch):
        pytest.skip("MPI has these in epochs of locks only")
    alive, gone = [], []

    def function(np, x):
        memory = np.zeros(N)
        win = ampi.Win.Create(memory, 8, comm=COMM_WORLD)
        owners = []

        def put():
            a, b = x * 2.0, np.zeros(N)
            owners[:] = [weakref.ref(owner(array)) for array in ((a, b) if "Get_acc" in name else (a,))]
            request = OPERATIONS[name](win, a, b, NEXT)
            del a, b
            gc.collect()
            alive.extend(reference() is not None for reference in owners)
            if request is not None:
                request.Wait()
            return check

        def check():
            gc.collect()
            gone.extend(reference() is None for reference in owners)

        epoch(win, NEXT, put)
        check()
        win.Free()

    mode(function, numpy.arange(1.0, N + 1) + RANK)
    if mode is not idle and epoch in (in_fence, in_epoch) and name not in ("Put", "Get"):
        return  # a tape defers these, and has its own copies
    assert alive and all(alive)
    if mode is idle:
        assert gone and all(gone)


def filled():
    """New arrays, which reuse freed memory."""
    return [numpy.full(4, 1e100) for _ in range(16)]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", [idle, recording])
def test_values_between_groups(mode):
    """With intercommunicators, where MPI reads sent values when the wait makes progress."""
    comm = halves(COMM_WORLD)
    x0 = numpy.random.default_rng(RANK).uniform(0.5, 1.5, 4)
    every = numpy.array(COMM_WORLD.allgather(x0))
    others = every[SIZE // 2 :] if RANK < SIZE // 2 else every[: SIZE // 2]

    def function(np, x):
        y, z = np.zeros(4), np.zeros(4)
        requests = [comm.Iallreduce(x * x, y), comm.Iallreduce(x * 1.0, z, MPI.PROD)]
        kept = filled()
        MPI.Request.Waitall(requests[::-1])
        assert len(kept) == 16
        numpy.testing.assert_allclose(ampi.value(y), (others**2).sum(0))
        numpy.testing.assert_allclose(ampi.value(z), others.prod(0))

    mode(function, x0)
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", [idle, recording])
@pytest.mark.parametrize("name", ["Put", "Accumulate"])
def test_values_of_large_messages_to_windows(name, mode):
    """MPI sends these values when the other rank is ready for them."""
    n = 20000

    def function(np, x):
        memory = np.zeros(n)
        win = ampi.Win.Create(memory, 8, comm=COMM_WORLD)
        win.Fence()
        getattr(win, name)(np.full(n, 1.0 + RANK) * x[0], NEXT)
        kept = [numpy.full(n, 1e100) for _ in range(4)]
        win.Fence()
        assert len(kept) == 4
        numpy.testing.assert_array_equal(ampi.value(memory), numpy.full(n, 2.0 * (1 + LAST)))
        win.Free()

    mode(function, numpy.array([2.0]))


def test_every_form_has_a_case():
    forms = set(started())
    assert {"Iallreduce", "Allgatherv_init", "Iallgatherv", "Isend", "Ineighbor_alltoallw"} <= forms
    names = {plain_name(form) for form in forms}
    assert names <= set(BLOCKS) | {name.capitalize() for name in BLOCKS}
    assert set(OPERATIONS) | {"Compare_and_swap"} == {o.name for o in TABLE.values() if o.owner == "Win"}


LOSES = ("Ireduce", "Iallreduce", "Iscan", "Iexscan", "Ireduce_scatter", "Ireduce_scatter_block", "Iallgatherv")
ONE_SIDED = ("Put", "Get", "Accumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap")


def nameless(tree):
    """Lines of calls with unnamed buffers, which mpi4py does not keep alive."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOSES + ONE_SIDED:
            if ast.unparse(node.func.value) == "ir":
                continue
            for argument in node.args[:2]:
                parts = argument.elts if isinstance(argument, ast.List) else [argument]
                for part in parts:
                    number = isinstance(part, ast.UnaryOp) and isinstance(part.operand, ast.Constant)
                    named = isinstance(part, ast.Call) and ast.unparse(part.func) in ("_message", "old_argument")
                    if isinstance(part, (ast.BinOp, ast.UnaryOp, ast.Call)) and not (number or named):
                        yield node.lineno


@pytest.mark.mpi(max_size=1)
def test_buffers_of_our_own_have_names():
    """In the library's own calls of mpi4py's methods, names keep buffers alive."""
    for buffer in ("f(x)", "x * x", "-x", "[f(x), datatype]"):
        assert list(nameless(ast.parse(f"comm.Iallreduce({buffer}, y)"))) == [1]
    assert not list(nameless(ast.parse("comm.Iallreduce(_message(x), [y, datatype])")))
    package = pathlib.Path(ampi.__file__).parent
    found = [f"{path}:{line}" for path in package.rglob("*.py") for line in nameless(ast.parse(path.read_text()))]
    assert not found
