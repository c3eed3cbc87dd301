"""Seeds: adjoints of the outputs, set before a reverse sweep, and the structure of its results."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.program_lines import warning_level
from ..base.structures import like
from ..errors import ActivityWarning, TapeError
from ..memory.storages import carries_derivatives, region_of
from .apart import is_apart, is_tracked, region_at
from .records import Output

if TYPE_CHECKING:
    from .sweep import Sweep
    from .tape import Tape


def leaves(x: Any) -> Iterator[Any]:
    """Iterate over the leaves of nested tuples and lists, from left to right; None has no leaf."""
    if x is None:
        return
    if isinstance(x, (tuple, list)):
        for item in x:
            yield from leaves(item)
    else:
        yield x


def in_structure_of(x: Any, found: Iterator[np.ndarray]) -> Any:
    """Arrange results in the structure that `leaves` flattened."""
    if x is None:
        return None
    if isinstance(x, (tuple, list)):
        return like(x, [in_structure_of(item, found) for item in x])
    return next(found)


def warn_of_constants(tape: Tape, y: Any) -> None:
    """Warn if one of the outputs ``y`` carries no derivative on the tape."""
    if any(not isinstance(y, Output) and region_at(y).storage.tape is not tape.reference for y in leaves(y)):
        warnings.warn(
            "tape.gradient(y, x): a y carries no derivative on this tape, so it contributes nothing; was it "
            "computed after the tape was closed, or on another tape? (Pass None on a rank without output.)",
            ActivityWarning,
            stacklevel=warning_level(),
        )


def set_seeds(sweep: Sweep, y: Any, seed: Any) -> None:
    """Give the outputs ``y`` their seeds; the default for an output of one element is 1.0."""
    outputs = list(leaves(y))
    known = {id(output) for output in sweep.tape.outputs}
    if isinstance(y, (tuple, list)) and seed is not None:
        seeds = list(leaves(seed))
    else:
        seeds = [seed] * len(outputs)
    if len(seeds) != len(outputs):
        raise TapeError(f"tape.gradient: {len(outputs)} outputs but {len(seeds)} seeds")
    for output, s in zip(outputs, seeds, strict=True):
        if isinstance(output, Output):
            if id(output) not in known:
                raise TapeError(f"tape.gradient(y, x): {output!r} is an output of another tape")
            _set_output_seed(sweep, output, s)
            continue
        if not is_tracked(output):
            raise TapeError(
                f"tape.gradient(y, x): y is a plain {type(output).__name__}, which carries no derivative; "
                "compute it with ampi.numpy so that it is an ampi.ndarray, or pass None on a rank without output"
            )
        if not carries_derivatives(output.dtype):
            raise TapeError(f"tape.gradient(y, x): y of dtype {output.dtype} has no derivative")
        if is_apart(output):
            output.region().seed(sweep, s if is_apart(s) else _seed_for(output.shape, s, output.dtype))
            continue
        sweep.begin(region_of(output), _seed_for(output.shape, s, output.dtype))


def _set_output_seed(sweep: Sweep, output: Output, seed: Any) -> None:
    if output.shape is None:
        raise TapeError(
            f"tape.gradient(y, x): {output!r} cannot carry a seed: it has several floating-point dtypes, or bytes that "
            "are not whole elements of the array; write each dtype by itself"
        )
    dtype = output.buffer.dtype
    value = np.broadcast_to(_seed_for(output.shape, seed, dtype), output.shape).astype(dtype)
    sweep.state[output] = sweep.state[output] + value if output in sweep.state else value


def _seed_for(shape: tuple[int, ...], seed: Any, dtype: np.dtype) -> np.ndarray:
    """Return the seed for an output of a shape."""
    size = math.prod(shape)
    if seed is None:
        if size != 1:
            raise TapeError(f"tape.gradient(y, x): y has shape {shape}; pass seed= with an array of that shape")
        seed = 1.0
    value = np.asarray(seed)
    if value.dtype.kind == "c" and dtype.kind == "f":
        raise TapeError("tape.gradient: the seed is complex, its output real; pass the real part")
    if value.shape == shape:
        return value
    if value.size != 1:
        raise TapeError(f"tape.gradient: the seed has shape {value.shape}, its output {shape}")
    return value.reshape(shape) if value.size == size else value
