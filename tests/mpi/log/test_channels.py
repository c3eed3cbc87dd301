"""Channels: the communicators on which derivatives travel."""

from types import SimpleNamespace

from mpi4py import MPI

from ampi.mpi.log.channels import Channel


def test_logs_of_forward_mode_may_vanish_at_any_time():
    """The garbage collector may run between two looks at a log."""

    class Vanishing:
        def __init__(self, looks):
            self.looks = looks

        def __call__(self):
            self.looks -= 1
            return SimpleNamespace(waiting=[], balance=0) if self.looks >= 0 else None

    channel = Channel(MPI.COMM_SELF.Dup(), -1)
    for looks in range(4):
        channel.in_forward_mode = [Vanishing(looks)]
        assert channel.is_free()
        channel.in_forward_mode = [Vanishing(looks)]
        assert channel.under_way() == 0
