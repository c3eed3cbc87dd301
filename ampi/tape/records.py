"""Records of a tape: an operation's undos and its adjoint, the protocol of adjoints, and the simplest adjoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ..memory.storages import Region, Storage

if TYPE_CHECKING:
    from .push import Push
    from .sweep import Sweep
    from .undo import Undo

SecondOrder = Literal["linear", "differentiated", "joint"]


class Adjoint(Protocol):
    """The protocol of adjoints: the attributes by which sweeps and pushes treat an operation.

    Classes of adjoints inherit the defaults from `BaseAdjoint`, and override those that differ.
    """

    def __call__(self, sweep: Any) -> None:
        """Take the adjoints of what the operation overwrote; add to those of what it read."""

    @property
    def name(self) -> str | None:
        """The operation's name in error messages; None: that of the class."""

    @property
    def tangent(self) -> Callable[[Any], None] | None:
        """``tangent(push)`` sets the tangents of the results; None if the operation has no forward mode."""

    @property
    def second_order(self) -> SecondOrder | None:
        """How a sweep with tangents of adjoints (`second.PairSweep`) applies it; None if it cannot.

        ``"linear"``: it uses no values that carry derivatives, and is applied to the adjoints and to their tangents.
        ``"differentiated"``: it computes with NumPy's functions, and its computation is differentiated.
        ``"joint"``: it is given the whole sweep, and applies itself to each of its lanes.
        """

    @property
    def propagates_tangents(self) -> bool:
        """True if the operation propagates tangents itself while it runs, so that recording it does not."""

    @property
    def batched(self) -> bool:
        """True if it is given all lanes of a vector mode at once; otherwise it is called for each of them."""

    @property
    def reads_memory(self) -> bool:
        """True if it may read any array of the program: the sweep first puts all memory back.

        False if it reads through `Sweep.value` only, or after `Sweep.put_back`.
        """

    @property
    def arrays_after(self) -> Sequence[np.ndarray]:
        """Arrays (from `Tape.need`, after the operation) whose values after the operation `Sweep.after` will hold."""

    @property
    def is_local(self) -> bool:
        """False if it may wait for other ranks."""

    @property
    def synchronizes(self) -> bool:
        """True if it may wait for operations that other ranks ran after this one, as a collective call may."""

    @property
    def touches_windows(self) -> bool:
        """False if it accesses the memory of MPI windows only during a turn of its rank, or never."""

    @property
    def held(self) -> Sequence[str] | None:
        """The attributes with the regions whose shadows it uses; None: any attribute may have some."""


class BaseAdjoint:
    """Defaults for the attributes of an `Adjoint`, for its classes to inherit."""

    __slots__ = ()
    name: str | None = None
    tangent: Any = None
    second_order: SecondOrder | None = None
    propagates_tangents = False
    batched = False
    reads_memory = True
    arrays_after: Sequence[np.ndarray] = ()
    is_local = True
    synchronizes = False
    touches_windows = True
    held: Sequence[str] | None = None


class FunctionAdjoint(BaseAdjoint):
    """An adjoint that is a plain function of the sweep."""

    __slots__ = ("function", "name")

    def __init__(self, function: Callable[[Any], None]) -> None:
        self.function = function
        self.name = function.__qualname__

    def __call__(self, sweep: Sweep) -> None:
        self.function(sweep)


def name_of(adjoint: Adjoint) -> str:
    """The name of an adjoint's operation in error messages."""
    return adjoint.name or type(adjoint).__qualname__


class Record:
    """One operation: how to undo its writes, its adjoint, and the storages that it created."""

    __slots__ = ("adjoint", "created", "undo")

    def __init__(
        self, adjoint: Adjoint | Callable[[Any], None] | None, undo: Sequence[Undo], created: Sequence[Storage]
    ) -> None:
        self.adjoint: Any = FunctionAdjoint(adjoint) if type(adjoint) is FunctionType else adjoint
        self.undo = undo
        self.created = created


class AdjointRecord(BaseAdjoint):
    """An adjoint that is its own record: this saves an object for each of thousands of messages and kernel calls."""

    __slots__ = ()
    undo: Sequence[Undo] = ()
    created: Sequence[Storage] = ()

    @property
    def adjoint(self) -> Any:
        """Itself."""
        return self


class Watch(BaseAdjoint):
    """The record of a declared independent; ``is_new``: its memory is new, so no earlier record adds to its shadow."""

    __slots__ = ("is_new", "region")
    second_order = "linear"
    batched = True
    reads_memory = False

    def __init__(self, region: Region, is_new: bool) -> None:
        self.region = region
        self.is_new = is_new

    def __call__(self, sweep: Sweep) -> None:
        sweep.state["watch results"][id(self.region)] = self.region.adjoint(sweep, self.is_new)

    def tangent(self, push: Push) -> None:
        """Set the tangent that was given for the independent."""
        push.put(self.region, push.state.get(self.region.place, 0.0))


class Zero(BaseAdjoint):
    """Adjoint of overwriting regions (or ``region[key]``) by constants."""

    __slots__ = ("key", "regions")
    second_order = "linear"
    batched = True
    reads_memory = False

    def __init__(self, regions: list[Region], key: Any = None) -> None:
        self.regions = regions
        self.key = ... if key is None else key

    def __call__(self, sweep: Sweep) -> None:
        for region in self.regions:
            sweep.zero(region, self.key)

    tangent = __call__


class Output(BaseAdjoint):
    """Active values that left the program while a tape recorded; a seed may be given for them.

    Attributes
    ----------
    operation, target, where : str
        The operation that wrote them, the file, and the source line.
    shape : tuple of int or None
        Shape of the seed: the array's, or flat if only elements of it were written.  None if it cannot carry a seed.
    """

    __slots__ = ("buffer", "operation", "order", "shape", "target", "where")
    reads_memory = False
    second_order = "linear"

    def __init__(
        self, buffer: Any, operation: str, target: str, where: str, shape: tuple[int, ...] | None, order: str = "C"
    ) -> None:
        self.buffer = buffer
        self.operation = operation
        self.target = target
        self.where = where
        self.shape = shape
        self.order: Any = order  # in which the array's elements were written

    def __repr__(self) -> str:
        return f"<Output of shape {self.shape} by {self.operation} to {self.target}, {self.where}>"

    def __call__(self, sweep: Sweep) -> None:
        """Add the seed to the adjoint of the written values."""
        seed = sweep.state.get(self)
        if seed is not None:
            self.buffer.add(sweep, seed.ravel(self.order))

    def tangent(self, push: Push) -> None:
        """Do nothing: the values have left the program."""
