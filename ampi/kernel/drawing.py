"""Kernels that draw random numbers: a call's numbers are drawn once, before it runs, and saved for its derivatives.

The drawing program is the part of the kernel on which its random numbers depend.  It draws them into arrays, which
derivative programs take as further arguments.  The generators are then restored, and the kernel itself draws the same
numbers; an error is raised if it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampi.errors import KernelError
from ampi.kernel import arguments
from ampi.kernel.case import Case
from ampi.kernel.contract import derivative_options, load, separated
from ampi.kernel.runtime import cache
from ampi.kernel.runtime.random_state import Generators

FIRST_CAPACITY = 256  # of the arrays in the first call


class Drawing:
    """A program that draws the random numbers of a kernel's calls.

    Attributes
    ----------
    program : callable
        ``program(*leaves, *arrays, *generators)`` draws into the arrays as far as they have room, and returns the
        number of draws for each.
    dtypes : tuple of str
        The dtypes of the arrays.
    """

    def __init__(
        self, name: str, program: Callable[..., tuple[int, ...]], dtypes: tuple[str, ...], takes_generators: bool
    ) -> None:
        self.name = name
        self.program = program
        self.dtypes = dtypes
        self.takes_generators = takes_generators
        self._sizes = [FIRST_CAPACITY] * len(dtypes)

    def __call__(self, args: Sequence[Any], leaves: Sequence[Any]) -> Numbers:
        """Draw the numbers of a call with these arguments."""
        generators = list(generators_among(args)) if self.takes_generators else []
        before = Generators(generators)
        given = list(map(arguments.plain, leaves))
        try:
            while True:
                arrays = [np.empty(max(n, 1), dtype) for n, dtype in zip(self._sizes, self.dtypes, strict=True)]
                counts = self.program(*given, *arrays, *generators)
                self._sizes = [max(n, count) for n, count in zip(self._sizes, counts, strict=True)]
                if all(count <= len(a) for count, a in zip(counts, arrays)):
                    break
                before.put_back()
        except Exception:
            before.put_back()  # the kernel itself will raise the error
            return Numbers(self, [np.empty(0, dtype) for dtype in self.dtypes], before, None)
        found = [a if len(a) == n else a[:n].copy() for a, n in zip(arrays, counts)]
        return Numbers(self, found, before, Generators(generators))


def generators_among(args: Any) -> Iterator[np.random.Generator]:
    """The random generators among arguments, in the order of the parameters."""
    for value in args:
        if isinstance(value, np.random.Generator):
            yield value
        elif isinstance(value, tuple):
            yield from generators_among(value)


class Numbers:
    """The random numbers of a call.

    Attributes
    ----------
    arrays : list of numpy.ndarray
        The numbers, in the order in which they are drawn.
    """

    __slots__ = ("_after", "_before", "_drawing", "arrays")

    def __init__(self, drawing: Drawing, arrays: list[np.ndarray], before: Generators, after: Generators | None):
        self.arrays = arrays
        self._drawing, self._before, self._after = drawing, before, after

    def run(self, kernel: Callable[[], Any]) -> Any:
        """Run the kernel itself, which draws the same numbers again."""
        self._before.put_back()
        result = kernel()
        if self._after is None or not self._after.are_current():
            raise KernelError(
                f"{self._drawing.name}(): the kernel draws different random numbers when it runs again, so its "
                "derivatives would be those of another run; draw the numbers outside of the kernel, and pass them as "
                "an array"
            )
        return result


def make_drawing(kernel: Any, case: Case) -> Drawing:
    """The `Drawing` of a kernel; its program is stored in the cache folder like adjoints."""
    case = replace(separated(kernel, case), active=frozenset())
    module, what = load(kernel, case, "drawing", (), _generate)
    options = derivative_options(kernel, case, False)
    code = cache.key(module.PROGRAM, cache.of_options(options))
    program = getattr(module, module.DRAWING)
    compiled = arguments.opaque(cache.compiled(program, f"{kernel.__name__}_drawing_{code}", options, what=what))
    return Drawing(kernel.__name__, compiled, module.DTYPES, module.GENERATORS)


def _generate(kernel: Any, case: Case) -> str:
    """The text of the file; imports the differentiator."""
    from ampi.kernel.programs import generate_drawing

    return generate_drawing(kernel, case)
