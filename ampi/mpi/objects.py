"""Lowercase methods: Python objects that contain active arrays, and their entries in the table of operations."""

from __future__ import annotations

from .base.rules import Operation, Treatment, enter
from .collectives.object_collectives import ObjectCollectives
from .collectives.object_reductions import ObjectReductions
from .messages.object_messages import ObjectMessages


class Objects(ObjectMessages, ObjectCollectives, ObjectReductions):
    """Methods of all communicators that move Python objects."""

    __slots__ = ()


for _name in ("send", "bsend", "ssend", "isend", "ibsend", "issend"):
    enter(Operation("Comm", _name, Treatment.DIFFERENTIATED, ("obj",), (), "recv of the arrays' adjoints", True))
for _owner in ("Comm", "Message"):
    for _name in ("recv", "irecv"):
        enter(Operation(_owner, _name, Treatment.DIFFERENTIATED, (), (), "send of the arrays' adjoints", True))
enter(
    Operation("Comm", "sendrecv", Treatment.DIFFERENTIATED, ("sendobj",), (), "sendrecv, roles exchanged", True),
    Operation("Comm", "bcast", Treatment.DIFFERENTIATED, ("obj",), (), "Reduce(SUM) of the arrays' adjoints", True),
    Operation("Comm", "gather", Treatment.DIFFERENTIATED, ("sendobj",), (), "Scatterv of the arrays' adjoints", True),
    Operation("Comm", "scatter", Treatment.DIFFERENTIATED, ("sendobj",), (), "Gatherv of the arrays' adjoints", True),
    Operation("Comm", "allgather", Treatment.DIFFERENTIATED, ("sendobj",), (), "Reduce_scatter(SUM)", True),
    Operation("Comm", "alltoall", Treatment.DIFFERENTIATED, ("sendobj",), (), "the transposed Alltoallv", True),
    Operation("Comm", "reduce", Treatment.DIFFERENTIATED, ("sendobj",), (), "down the tree of messages", True),
    Operation("Comm", "allreduce", Treatment.DIFFERENTIATED, ("sendobj",), (), "down the tree of messages", True),
    Operation("Intracomm", "scan", Treatment.DIFFERENTIATED, ("sendobj",), (), "back along the messages", True),
    Operation("Intracomm", "exscan", Treatment.DIFFERENTIATED, ("sendobj",), (), "back along the messages", True),
)
for _name in ("neighbor_allgather", "neighbor_alltoall"):
    enter(Operation("Topocomm", _name, Treatment.DIFFERENTIATED, ("sendobj",), (), "back along the edges", True))
