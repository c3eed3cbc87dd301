"""Assignment of the GPUs of a node to its ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

from mpi4py import MPI as mpi

from .backends import Gpu, device


class DeviceOfRank(NamedTuple):
    """The device that a rank uses.

    Attributes
    ----------
    number : int
        Its index among the GPUs of the node; -1 if there is none, and the processor is used instead.
    gpus : int
        Number of GPUs of the node.
    shared_by : int
        Number of ranks of the node that use this device.
    """

    number: int
    gpus: int
    shared_by: int


def device_for(comm: mpi.Comm) -> DeviceOfRank:
    """Select a GPU for each rank: the ranks of a node take its GPUs in turn, and share them if there are fewer.

    Collective.  Call it before the first array on a device is made.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The ranks of the program.

    Returns
    -------
    DeviceOfRank
        ``number`` was passed to ``numba.cuda.select_device``.

    Examples
    --------
    >>> ampi.device_for(ampi.COMM_WORLD)
    DeviceOfRank(number=-1, gpus=0, shared_by=1)
    """
    plain = mpi.Intracomm(comm)
    node = plain.Split_type(mpi.COMM_TYPE_SHARED)
    try:
        rank, size = node.Get_rank(), node.Get_size()
    finally:
        node.Free()
    one = device()
    if not isinstance(one, Gpu) or one.is_simulated:
        return DeviceOfRank(-1, 0, size)
    gpus = len(one.cuda.gpus)
    number = rank % gpus
    one.cuda.select_device(number)
    return DeviceOfRank(number, gpus, len(range(number, size, gpus)))


def described(supports_cuda: bool) -> str:
    """Describe the device of `ampi.cuda`'s arrays, and how MPI sends them."""
    one: Any = device()
    if not one.is_gpu:
        return "arrays on devices: no CUDA device was found, so that ampi.cuda uses the processor as one"
    how = (
        "sent from the device while no tape records"
        if supports_cuda
        else "copied to the host, since this MPI does not know CUDA"
    )
    return f"arrays on devices: {one!r}; messages: {how}"
