"""Times of messages and collectives in the LogGP model of a network.

The model is LogP (Culler et al., PPoPP 1993) with a gap for each byte (Alexandrov et al., SPAA 1995).  Costs of
collectives are those of the algorithms of Thakur, Rabenseifner and Gropp (*Optimization of collective communication
operations in MPICH*, 2005), and of Bruck (1997) for short Alltoalls; each call uses the fastest.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

from ampi.scaling.study import ScalingError, tomllib

PARAMETERS = ("L", "o", "g", "G")
WORDS = {"L": "latency", "o": "overhead of messages", "g": "gap between messages", "G": "bytes"}


@dataclasses.dataclass(frozen=True)
class Cost:
    """A cost, as multiples of the network's parameters."""

    L: float = 0.0
    o: float = 0.0
    g: float = 0.0
    G: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.L + other.L, self.o + other.o, self.g + other.g, self.G + other.G)

    def __mul__(self, times: float) -> Cost:
        return Cost(self.L * times, self.o * times, self.g * times, self.G * times)


@dataclasses.dataclass(frozen=True)
class Network:
    """A network: latency L, overhead o, gap g between messages and gap G between bytes, all in seconds.

    Examples
    --------
    >>> from ampi.scaling.loggp import Cost, Network
    >>> network = Network(L=1e-6, o=5e-7, g=6e-7, G=1e-10)
    >>> f"{network.seconds(Cost(L=1, o=2, G=8000)):.2g}"
    '2.8e-06'
    """

    L: float
    o: float
    g: float
    G: float

    def seconds(self, cost: Cost) -> float:
        """The total time of a cost."""
        return sum(self.shares(cost).values())

    def shares(self, cost: Cost) -> dict[str, float]:
        """The time for each parameter."""
        return {name: getattr(self, name) * getattr(cost, name) for name in PARAMETERS}

    def text(self) -> str:
        """The text of a file for `read_network`."""
        return "[network]\n" + "".join(f"{name} = {getattr(self, name):.4g}\n" for name in PARAMETERS)


DEFAULT = Network(1.5e-6, 4e-7, 5e-7, 8e-11)
"""The default: a network of 100 Gbit/s, with typical times of MPI messages."""


def network_of(given: Mapping[str, float] | str, folder: pathlib.Path) -> Network:
    """The network in a study's table ``[network]``: parameters, or a file beside the study; else `DEFAULT`."""
    if isinstance(given, str):
        return read_network(str(folder / given))
    return Network(**given) if given else DEFAULT


def read_network(text: str) -> Network:
    """A network from a TOML file with a table ``[network]`` (``netbench`` writes one), or from its parameters.

    Raises
    ------
    ScalingError
        A parameter is missing or not a number of seconds.

    Examples
    --------
    >>> from ampi.scaling.loggp import read_network
    >>> read_network("L=1.5e-6, o=4e-7, g=5e-7, G=8e-11").L
    1.5e-06
    """
    try:
        if "=" in text:
            found = tomllib.loads(text.replace(",", "\n"))
        else:
            found = tomllib.loads(pathlib.Path(text).read_text(encoding="utf-8")).get("network", {})
    except OSError as error:
        raise ScalingError(
            f"{text}: {error.strerror}; the network is a file of netbench, or L=..,o=..,g=..,G=.."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ScalingError(f"{text}: {error}") from None
    for name in PARAMETERS:
        if type(found.get(name)) not in (int, float) or not 0 <= found[name] < float("inf"):
            raise ScalingError(f"{text}: {name} must be a number of seconds, and is {found.get(name, 'missing')}")
    return Network(*(float(found[name]) for name in PARAMETERS))


def messages(sent: float, received: float, nbytes: float, rounds: float, network: Network) -> Cost:
    """The cost of one rank's messages: each counts, and the latency once per round, in which it waits for all
    partners."""
    gap = network.g > network.o  # the processor is ready before the network is
    each = Cost(g=sent) if gap else Cost(o=sent)
    return each + Cost(L=rounds, o=received, G=max(nbytes - sent, 0.0))


def _stages(ranks: int) -> int:
    return (ranks - 1).bit_length()


def _tree(p: int, m: float) -> list[Cost]:
    """A binomial tree; scatter and allgather (van de Geijn)."""
    k, part = _stages(p), (p - 1) / p
    return [Cost(k, 2 * k, 0, k * m), Cost(k + p - 1, 2 * (k + p - 1), 0, 2 * part * m)]


def _to_all(p: int, m: float) -> list[Cost]:
    """Recursive doubling; reduce-scatter and allgather (Rabenseifner)."""
    k, part = _stages(p), (p - 1) / p
    return [Cost(k, 2 * k, 0, k * m), Cost(2 * k, 4 * k, 0, 2 * part * m)]


def _doubling(p: int, m: float) -> list[Cost]:
    """Recursive doubling or halving, or a binomial tree, of blocks that are m bytes together; the ring."""
    k, part = _stages(p), (p - 1) / p
    return [Cost(k, 2 * k, 0, part * m), Cost(p - 1, 2 * (p - 1), 0, part * m)]


def _pairs(p: int, m: float) -> list[Cost]:
    """Bruck's algorithm; one partner after the other; m bytes together."""
    k, part = _stages(p), (p - 1) / p
    return [Cost(k, 2 * k, 0, k * m / 2), Cost(1, 2 * (p - 1), 0, part * m)]


def _prefixes(p: int, m: float) -> list[Cost]:
    """Recursive doubling."""
    k = _stages(p)
    return [Cost(k, 2 * k, 0, k * m)]


COLLECTIVES: dict[str, Callable[[int, float], list[Cost]]] = {
    "Bcast": _tree,
    "Reduce": _tree,
    "Allreduce": _to_all,
    "Gather": _doubling,
    "Scatter": _doubling,
    "Allgather": _doubling,
    "Reduce_scatter": _doubling,
    "Reduce_scatter_block": _doubling,
    "Alltoall": _pairs,
    "Scan": _prefixes,
    "Exscan": _prefixes,
    "suffix sums": _prefixes,
    "Barrier": _prefixes,
    "Win.Fence": _prefixes,
}
"""The costs of an operation's algorithms, for a number of ranks and the larger of outgoing and incoming bytes."""


def collective(operation: str, ranks: int, nbytes: float, network: Network) -> Cost:
    """The cost of one call of a collective, by the faster algorithm.

    Examples
    --------
    >>> from ampi.scaling.loggp import Network, collective
    >>> network = Network(1e-6, 0, 0, 1e-9)
    >>> collective("Allreduce", 1024, 8, network).L, collective("Allreduce", 1024, 1e8, network).L
    (10, 20)
    """
    if ranks < 2:
        return Cost()
    return min(COLLECTIVES[operation](ranks, nbytes), key=network.seconds)


@dataclasses.dataclass(frozen=True)
class Sides:
    """An operation between a rank and its partners: for each partner, messages out and in, and latencies."""

    out: int = 0
    into: int = 0
    waits: int = 0


_AWAY, _THERE_AND_BACK = Sides(out=1), Sides(out=1, into=1, waits=2)
PAIRWISE: dict[str, Sides] = {
    "send": _AWAY,
    "receive": Sides(into=1, waits=1),
    **{f"Win.{name}": _AWAY for name in ("Put", "Accumulate")},
    **{f"Win.{name}": _THERE_AND_BACK for name in ("Get", "Get_accumulate", "Fetch_and_op", "Compare_and_swap")},
    **{f"Win.{name}": _THERE_AND_BACK for name in ("Lock", "Unlock", "Flush")},
}
"""Operations with one partner in each call: a rank waits for all of its partners together."""
AMONG_PARTNERS: dict[str, Sides] = {
    **{f"Win.{name}": Sides(out=1) for name in ("Post", "Complete")},
    **{f"Win.{name}": Sides(into=1, waits=1) for name in ("Start", "Wait")},
    "Neighbor_allgather": Sides(1, 1, 1),
    "Neighbor_alltoall": Sides(1, 1, 1),
}
"""Operations with all partners in each call."""


def cost_of(
    operation: str, ranks: int, partners: float, calls: float, sent: float, received: float, network: Network
) -> Cost | None:
    """The cost of calls of an operation, with the total numbers of bytes; None for an unknown operation.

    Parameters
    ----------
    ranks : int
        The number of ranks in the communicator.
    partners : float
        Ranks on the other side of all calls together.

    Examples
    --------
    >>> from ampi.scaling.loggp import Network, cost_of
    >>> cost_of("Neighbor_alltoall", 1024, 4, 10, 320, 320, Network(1e-6, 1e-7, 0, 1e-9))
    Cost(L=10.0, o=80.0, g=0.0, G=280.0)
    """
    if operation in COLLECTIVES:
        return collective(operation, ranks, max(sent, received) / calls, network) * calls
    sides = PAIRWISE.get(operation)
    if sides is not None:
        number, rounds = calls, sides.waits * calls / max(partners, 1.0)
    else:
        sides = AMONG_PARTNERS.get(operation)
        if sides is None:
            return None
        number, rounds = calls * partners, sides.waits * calls
    nbytes = max(sent, received) if sides.out else 0.0  # incoming bytes count for the other side
    return messages(sides.out * number, sides.into * number, nbytes, float(rounds), network)
