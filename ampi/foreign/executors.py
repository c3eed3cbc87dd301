"""Tasks of `mpi4py.futures`: active arguments are refused, since another thread sends them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

from ..arrays.activity import is_active
from ..base.program_lines import where_called
from ..base.structures import leaves
from ..errors import ActivityError
from ..interception.hooks import Hook, hook, when_imported
from ..tape import Tape


def _held(x: Any) -> Iterator[Any]:
    """The values in the arguments of a task, and in the closure of its function."""
    for leaf in leaves(x):
        if isinstance(leaf, functools.partial):
            yield from _held((leaf.func, leaf.args, leaf.keywords))
            continue
        yield leaf
        for cell in getattr(leaf, "__closure__", None) or ():
            try:
                yield cell.cell_contents
            except ValueError:  # empty
                continue


def _submitted(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    if any(is_active(tape, x) for x in _held((arguments[1:], keywords))):
        raise ActivityError(
            f"{where_called()}: a task of mpi4py.futures is given a value that carries derivatives. Tasks are sent by "
            "another thread, and their results come back as constants. Compute them in a loop over this rank's share, "
            "and add them up with comm.allreduce; or pass ampi.value(x), let each task return its gradient "
            "(ampi.value_and_grad), and put these together with ampi.custom_vjp"
        )
    return found.original(*arguments, **keywords)


def _pool() -> None:
    hook(sys.modules["mpi4py.futures.pool"].MPIPoolExecutor.submit, _submitted, "mpi4py.futures.MPIPoolExecutor.submit")


when_imported("mpi4py.futures.pool", _pool)
