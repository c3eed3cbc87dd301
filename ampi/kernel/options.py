"""Options of derivative programs, and the analyses that are switched off."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ampi.errors import KernelError


def names_among(given: str | Iterable[str], known: Collection[str], where: str, kind: str) -> frozenset[str]:
    """The names in a list, or in a text separated by commas.

    An unknown one raises a `KernelError`, which reports ``where`` it was given and what ``kind`` of name it is.
    """
    names = frozenset(name.strip() for name in (given.split(",") if isinstance(given, str) else given) if name.strip())
    unknown = sorted(names - set(known))
    if unknown:
        choices = ", ".join(dict.fromkeys(known))
        raise KernelError(f"{where}: unknown {kind} {', '.join(unknown)}; write some of {choices}")
    return names


@dataclass(frozen=True)
class Options:
    """Options of a derivative program.

    Attributes
    ----------
    without : frozenset of str
        Names among `ampi.kernel.ANALYSES`, none of which changes a result.
    threads : bool
        The program is compiled with ``parallel=True``.
    deterministic : bool
        Its results must not depend on the number of threads.
    reassociate : bool
        It is compiled with ``fastmath=True``.
    separate : bool
        It is compiled for arrays that do not overlap.
    unchecked : bool
        It is compiled, and indices are not checked.
    after : bool
        Its caller can pass the values of arrays after the call.
    plain : bool
        Its caller flags the shadows that are new (with undefined elements), and ignores the shadows of arrays that are
        passive before the call: they need not become zero where these are written.
    raising : bool
        The kernel raises an exception where it divides by zero.
    lanes : int
        The number of directions in vector mode, in which derivatives are vectors of this length; 0: one direction.
    """

    without: frozenset[str] = frozenset()
    threads: bool = False
    deterministic: bool = False
    reassociate: bool = False
    separate: bool = True
    unchecked: bool = False
    after: bool = False
    plain: bool = False
    raising: bool = False
    lanes: int = 0

    def has(self, name: str) -> bool:
        """Return whether an analysis is on."""
        return name not in self.without


ALL_ON = Options()
