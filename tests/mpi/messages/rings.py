"""Helpers of the tests of messages."""


def around(comm, by=1):
    """Ranks after and before this one in a ring."""
    return (comm.rank + by) % comm.size, (comm.rank - by) % comm.size


def like(np, u, shape=None):
    return np.zeros(u.shape if shape is None else shape, u.dtype)
