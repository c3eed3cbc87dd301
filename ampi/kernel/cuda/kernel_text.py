"""The text of an emitted CUDA kernel, and the arguments that its launch has to provide."""

from __future__ import annotations

from dataclasses import dataclass, field

from numba import types

from ampi.kernel import ir


@dataclass
class Kernel:
    """A CUDA kernel as text.

    Attributes
    ----------
    lines : list of str
        Its body.
    sums : list of Var
        The scalars that are summed over all threads; each is an argument, an array of one element.
    buffers : list of (str, str, Array)
        Arguments that the host makes: name, shape as text, type.
    stores : dict
        The stores into arguments, by the name and ``"own"``, ``"stored"`` (by the thread that stores the element in the
        kernel), ``"add"``, ``"max"`` or ``"min"``: an element as text for each line.
    barriers : int
        Number of barriers in the text.
    shared_bytes : int
        Bytes of shared memory that it uses.
    parts : dict
        Arguments of complex numbers to which threads add atomically, and their names as arrays of real and imaginary
        parts.
    """

    lines: list[str] = field(default_factory=list)
    sums: list[ir.Var] = field(default_factory=list)
    buffers: list[tuple[str, str, types.Array]] = field(default_factory=list)
    stores: dict[tuple[str, str], dict[int, str]] = field(default_factory=dict)
    barriers: int = 0
    shared_bytes: int = 0
    parts: dict[str, str] = field(default_factory=dict)
