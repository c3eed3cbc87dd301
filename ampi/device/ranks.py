"""Devices of ranks: one card for each rank of a node, or one that several share."""

from __future__ import annotations

from typing import Any, NamedTuple

from mpi4py import MPI as mpi

from .backends import Card, device


class DeviceOfRank(NamedTuple):
    """The device of a rank.

    Attributes
    ----------
    number : int
        Its number among the cards of the node; -1 where there is no card, and the processor takes its place.
    cards : int
        Cards of the node.
    shared_by : int
        Ranks of the node that use this one.
    """

    number: int
    cards: int
    shared_by: int


def device_for(comm: mpi.Comm) -> DeviceOfRank:
    """Give each rank its card: ranks of a node take its cards in turn, and share them if there are fewer.

    Collective.  Call it before the first array on a device is made.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The ranks of the program.

    Returns
    -------
    DeviceOfRank
        ``number`` is what ``numba.cuda.select_device`` got.

    Examples
    --------
    >>> ampi.device_for(ampi.COMM_WORLD)
    DeviceOfRank(number=-1, cards=0, shared_by=1)
    """
    plain = mpi.Intracomm(comm)
    node = plain.Split_type(mpi.COMM_TYPE_SHARED)
    try:
        rank, size = node.Get_rank(), node.Get_size()
    finally:
        node.Free()
    one = device()
    if not isinstance(one, Card) or one.is_simulated:
        return DeviceOfRank(-1, 0, size)
    cards = len(one.cuda.gpus)
    number = rank % cards
    one.cuda.select_device(number)
    return DeviceOfRank(number, cards, len(range(number, size, cards)))


def described(knows_cuda: bool) -> str:
    """What arrays of `ampi.cuda` are on, and how MPI sends them, in words."""
    one: Any = device()
    if not one.is_card:
        return "arrays on devices: no CUDA device was found, so that ampi.cuda uses the processor as one"
    how = "as they are where no tape records" if knows_cuda else "copied to the host, since this MPI does not know CUDA"
    return f"arrays on devices: {one!r}; messages: {how}"
