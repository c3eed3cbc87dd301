"""The three ghost exchanges, each driven by a table of messages.

A rank is one box of a cube of boxes, and a neighbour is an *offset* (-1, 0 or 1 in each of x, y, z). What is exchanged
with a neighbour is the plane, edge or corner of the box on that side, listed in the same order on both ranks. A message
is a contiguous piece of one send buffer, which a single kernel call packs for all neighbours at once.

Each exchange has three steps, so that work can be done while messages are under way: ``post`` (receives), ``send``,
``finish``. All three are called by every rank of the communicator.
"""

from itertools import pairwise, product

import numpy

from . import kernels
from .backend import MPI, constant, np

MASS_OR_FORCE, MOTION, GRADIENT = range(3)  # tags
OFFSETS = [offset for offset in product((-1, 0, 1), repeat=3) if any(offset)]


class Box:
    """Where a rank's box lies in the cube of boxes, and who its neighbours are.

    Attributes: ``side`` (boxes along an edge of the cube), ``place`` (x, y, z of this box), ``neighbors``
    (offset → rank). Raises ValueError when the number of ranks is not a cube.
    """

    def __init__(self, rank, ranks):
        self.side = round(ranks ** (1 / 3))
        if self.side**3 != ranks:
            raise ValueError(f"the number of ranks must be a cube (1, 8, 27, …), not {ranks}")
        self.place = (rank % self.side, rank // self.side % self.side, rank // self.side**2)
        self.neighbors = {offset: self._rank(offset) for offset in OFFSETS if self._inside(offset)}

    def _inside(self, offset):
        return all(0 <= p + o < self.side for p, o in zip(self.place, offset))

    def _rank(self, offset):
        x, y, z = (p + o for p, o in zip(self.place, offset))
        return x + self.side * (y + self.side * z)

    def has_neighbor(self, axis, sign):
        """Whether there is another box on this side of axis 0, 1 or 2."""
        return 0 <= self.place[axis] + sign < self.side


def shared(offset, numbers, last=(None, None, None)):
    """Those of ``numbers[z, y, x]`` on the side that ``offset`` points to, up to ``last`` along the other axes."""
    pick = {-1: slice(0, 1), 1: slice(-1, None)}
    x, y, z = (pick.get(o, slice(0, end)) for o, end in zip(offset, last))
    return numbers[z, y, x].ravel()


def messages(lists):
    """Concatenate index lists: the long list, and the slice of it that each had."""
    ends = numpy.cumsum([0] + [len(numbers) for numbers in lists])
    joined = numpy.concatenate([numpy.empty(0, numpy.uint32), *lists]).astype(numpy.uint32)
    return constant(joined), [slice(a, b) for a, b in pairwise(ends)]


class NodeSum:
    """Sum of a nodal field over all ranks that share a node.

    Parameters: communicator, :class:`Box`, node numbers (z, y, x), number of components of the field, dtype float64.
    """

    def __init__(self, comm, box, numbers, components):
        self.comm = comm
        self.ranks = list(box.neighbors.values())
        self.node, pieces = messages([shared(offset, numbers) for offset in box.neighbors])
        self.sent = np.empty((len(self.node), components))
        self.received = np.empty((len(self.node), components))
        self.send_pieces = [self.sent[piece] for piece in pieces]
        self.receive_pieces = [self.received[piece] for piece in pieces]
        order = numpy.argsort(self.node, kind="stable")
        self.row = constant(order.astype(numpy.uint32))
        target, start = numpy.unique(self.node[order], return_index=True)
        self.target, self.start = constant(target), constant(numpy.append(start, len(order)).astype(numpy.int64))
        self.requests = []

    def post(self):
        self.requests = [
            self.comm.Irecv(piece, rank, MASS_OR_FORCE) for piece, rank in zip(self.receive_pieces, self.ranks)
        ]

    def send(self, field):
        """Send the own part of ``field`` (components, nodes) on the shared nodes."""
        kernels.pack_nodes(field, self.node, 0, self.sent)
        self.requests += [
            self.comm.Isend(piece, rank, MASS_OR_FORCE) for piece, rank in zip(self.send_pieces, self.ranks)
        ]

    def finish(self, field):
        """Add the neighbours' parts to ``field``."""
        MPI.Request.Waitall(self.requests)
        kernels.add_to_nodes(self.received, self.target, self.start, self.row, field)


class NodeCopy:
    """Positions and velocities of shared nodes, from the one rank that owns each.

    The owner of a node is the highest rank that has it. Sums over ranks are rounded in a different order on each; this
    keeps the copies of a node from drifting apart.
    """

    def __init__(self, comm, box, numbers):
        self.comm = comm
        # A node on the upper side of an axis belongs to the box above, if there is one.
        last = tuple(-1 if box.has_neighbor(axis, 1) else None for axis in range(3))
        owners = [offset for offset in box.neighbors if min(offset) >= 0]
        copies = [offset for offset in box.neighbors if max(offset) <= 0]
        self.owners = [box.neighbors[offset] for offset in owners]
        self.copies = [box.neighbors[offset] for offset in copies]
        self.copied, receive_pieces = messages([shared(offset, numbers, last) for offset in owners])
        self.owned, send_pieces = messages([shared(offset, numbers, last) for offset in copies])
        self.received = np.empty((len(self.copied), 6))
        self.sent = np.empty((len(self.owned), 6))
        self.receive_pieces = [self.received[piece] for piece in receive_pieces]
        self.send_pieces = [self.sent[piece] for piece in send_pieces]
        self.requests = []

    def post(self):
        self.requests = [self.comm.Irecv(piece, rank, MOTION) for piece, rank in zip(self.receive_pieces, self.owners)]

    def send(self, x, v):
        """Send positions and velocities, (3, nodes) each, of the nodes that others copy."""
        kernels.pack_nodes(x, self.owned, 0, self.sent)
        kernels.pack_nodes(v, self.owned, 3, self.sent)
        self.requests += [self.comm.Isend(piece, rank, MOTION) for piece, rank in zip(self.send_pieces, self.copies)]

    def finish(self, x, v):
        """Overwrite the copies."""
        MPI.Request.Waitall(self.requests)
        kernels.unpack_nodes(self.received, 0, self.copied, x)
        kernels.unpack_nodes(self.received, 3, self.copied, v)


class FaceGhosts:
    """Velocity gradients of the neighbours' elements behind each face, in the direction across that face.

    The field (3, columns) has the ghosts of the lower and the upper face of direction ``d`` in row ``d``, in the
    columns ``ghosts[-1]`` and ``ghosts[1]``. They are received in place.
    """

    def __init__(self, comm, box, numbers, field, ghosts):
        self.comm = comm
        self.field = field
        faces = [(offset, rank) for offset, rank in box.neighbors.items() if sum(map(abs, offset)) == 1]
        self.ranks = [rank for _, rank in faces]
        axes = [next(axis for axis in range(3) if offset[axis]) for offset, _ in faces]
        self.element, pieces = messages([shared(offset, numbers) for offset, _ in faces])
        self.direction = constant(numpy.repeat(numpy.array(axes, numpy.uint32), numbers.shape[0] ** 2))
        self.sent = np.empty(len(self.element))
        self.send_pieces = [self.sent[piece] for piece in pieces]
        self.receive_pieces = [field[axis, ghosts[offset[axis]]] for axis, (offset, _) in zip(axes, faces)]
        self.requests = []

    def post(self):
        self.requests = [self.comm.Irecv(piece, rank, GRADIENT) for piece, rank in zip(self.receive_pieces, self.ranks)]

    def send(self):
        """Send the own elements next to each face."""
        kernels.pack_faces(self.field, self.direction, self.element, self.sent)
        self.requests += [self.comm.Isend(piece, rank, GRADIENT) for piece, rank in zip(self.send_pieces, self.ranks)]

    def finish(self):
        MPI.Request.Waitall(self.requests)
