"""Contracts: the facts about a kernel that a tape needs.

A `Contract` holds for one `Case`: one signature and one choice of active arguments.  It is made once per machine: the
adjoint program and these facts are saved together as a readable Python file in the cache folder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from ampi.errors import AmpiError
from ampi.kernel.arguments import opaque
from ampi.kernel.case import Case
from ampi.kernel.runtime import cache, threads
from ampi.kernel.runtime.bounds import CheckedInRange, checking
from ampi.kernel.runtime.noalias import InRange, SeparateArrays
from ampi.kernel.runtime.progress import announced, counted


@dataclass(frozen=True)
class Contract:
    """The effects of a kernel's call, by position of the argument leaves.

    Attributes
    ----------
    names : tuple of str
        The user's names for the leaves.
    reads, writes : tuple of int
        Arrays that the kernel reads, and writes.
    needs : tuple of int
        Arrays whose values before the call the adjoint reads.
    becomes_active : tuple of int
        Arrays that are passive before the call and active after it.
    shadows : tuple of int
        Arrays for which the adjoint takes a shadow: active before or after.
    scalars : tuple of int
        Active scalars; the adjoint returns their adjoints.
    result_active : tuple of bool
        For each leaf of the result.
    result_dtypes : tuple of str
        For each leaf of the result, its dtype (or that of its elements) in the kernel.
    distinct : tuple of int
        Arrays of indices; a flag tells the adjoint whether the entries of each all differ.
    after : tuple of int
        Arrays whose values after the call the adjoint reads; empty unless ``case.after``.
    ends : tuple of int
        Arrays, passive before the call, whose shadow the adjoint only reads.
    new : tuple of int
        Arrays whose shadow may be new: a flag tells the adjoint, which then assigns its elements.
    forms : int, tuple or None
        The structure of a result that has another form while it is recorded (see `result_forms`).  A list is
        represented by its width: the number of items, and so of leaves, of its tuples; 0 for a list of numbers, which
        has one leaf.  A number or None is represented by -1, and has two leaves: whether there is a number, and the
        number.  A structured array is represented by -2; each field of numbers is a leaf.
    drawn : tuple of str
        The dtypes of the arrays of random numbers, which are the last leaves.
    adjoint : callable or None
        ``adjoint(*leaves, *shadows, *seeds, *after, *saved, *flags)``, with one seed per active leaf of the result, the
        arrays in ``after`` as they were after the call, what ``forward`` saved, and one flag per array in ``distinct``
        and in ``new``.  Shadows are updated in place, from the adjoint of the values after the call to that of the
        values before.  None if nothing is active.
    forward : callable or None
        ``forward(*leaves)`` does what the kernel does.  It returns a tuple: the leaves of the kernel's result, and what
        the adjoint takes as ``saved``.  None if the kernel itself is to be run.
    several : bool
        Whether the kernel's result is a tuple; only with ``forward``.
    split : Contract or None
        The contract for the same case whose adjoint is split, with ``forward``.  There is then no ``adjoint`` here:
        ``whole()`` is the contract with an adjoint in one program.
    whole : callable or None
        Set if there is a ``split`` contract.
    tangent : callable or None
        ``tangent()`` is the `forward.TangentContract` for the same case; None where no tape needs it.
    second : callable or None
        ``second()`` is the `second.SecondContract` for the same case; None where no tape needs it.
    drawing : callable or None
        ``drawing()`` is the `drawing.Drawing` for the same case; None where no tape needs it.
    lanes : callable or None
        ``lanes()`` is the `lanes.LanesContract` that goes with this one, or None; itself None where no tape needs it.
    disagreement : callable or None
        ``disagreement(*leaves)`` is the line of an operation on arrays whose sizes differ, although the adjoint assumes
        that they agree; 0 if all agree.  None if there is nothing to check.
    checks_first : bool
        Whether the kernel raises the exceptions of its program, if any, before it writes to an argument.
    """

    names: tuple[str, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    needs: tuple[int, ...]
    becomes_active: tuple[int, ...]
    shadows: tuple[int, ...]
    scalars: tuple[int, ...]
    result_active: tuple[bool, ...]
    result_dtypes: tuple[str, ...]
    distinct: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    new: tuple[int, ...] = ()
    forms: Any = None
    drawn: tuple[str, ...] = ()
    adjoint: Callable[..., tuple] | None = None
    forward: Callable[..., tuple] | None = None
    several: bool = False
    split: Contract | None = None
    whole: Callable[[], Contract] | None = None
    tangent: Callable[[], Any] | None = None
    second: Callable[[], Any] | None = None
    drawing: Callable[[], Any] | None = None
    lanes: Callable[[], Any] | None = None
    disagreement: Callable[..., int] | None = None
    checks_first: bool = False


OF_OPERATIONS = (ZeroDivisionError, np.linalg.LinAlgError, MemoryError, AmpiError)
"""Errors that may come from any place in a kernel."""


def suspects(contract: Any, error: BaseException) -> tuple[int, ...]:
    """The arrays with derivatives to which a kernel may have written when it raised this error, for any contract."""
    is_of_program = isinstance(error, Exception) and not isinstance(error, OF_OPERATIONS)
    if contract.checks_first and is_of_program:
        return ()
    return tuple(k for k in contract.writes if k in contract.shadows)


# --------------------------------------------------------------------------------------------------- construction


@counted()  # waits for other processes, and imports
def make_contract(kernel: Any, case: Case) -> Contract:
    """The contract of a kernel."""
    case = separated(kernel, case)
    module, what = load(kernel, case, "adjoint", (case.after, case.plain), _generate)
    if not module.SPLIT:
        return _in_one(kernel, case, module, what)
    options = derivative_options(kernel, case, False)
    raising = {**options, "error_model": kernel.options.get("error_model", "python")}
    code = cache.key(module.SPLIT_PROGRAM, cache.of_options(raising))
    forward, reverse = (getattr(module, module.SPLIT[part]) for part in ("forward", "adjoint"))
    contract = Contract(**module.CONTRACT, disagreement=getattr(module, "disagreement", None))
    split = replace(
        contract,
        **{what: module.SPLIT[what] for what in ("needs", "after", "distinct", "new", "several")},
        forward=opaque(cache.compiled(forward, f"{kernel.__name__}_forward_{code}", raising, what=what)),
        adjoint=opaque(cache.compiled(reverse, f"{kernel.__name__}_reverse_{code}", options, what=what)),
    )
    return replace(contract, split=split, whole=functools.cache(functools.partial(_whole_contract, kernel, case)))


@counted()
def _whole_contract(kernel: Any, case: Case) -> Contract:
    """The contract of a kernel that has a split adjoint, with the adjoint in one program."""
    return _in_one(kernel, case, *load(kernel, case, "whole_adjoint", (case.after, case.plain), _generate_whole))


def _in_one(kernel: Any, case: Case, module: Any, what: str) -> Contract:
    program = getattr(module, module.ADJOINT) if module.ADJOINT else None
    options = derivative_options(kernel, case, bool(module.PARTS))
    for part in module.PARTS:
        serial = numba.njit(**{**options, "parallel": False})
        setattr(module, part, serial(getattr(module, part)))
    # Contracts that differ only in the active arguments may have the same program.
    code = cache.key(module.PROGRAM, cache.of_options(options))
    compiled = program and opaque(cache.compiled(program, f"{kernel.__name__}_adjoint_{code}", options, what=what))
    return Contract(**module.CONTRACT, adjoint=compiled, disagreement=getattr(module, "disagreement", None))


def _generate(kernel: Any, case: Case) -> str:
    """The text of the file; imports the differentiator."""
    from ampi.kernel.programs import generate

    return generate(kernel, case)


def _generate_whole(kernel: Any, case: Case) -> str:
    from ampi.kernel.programs import generate_whole

    return generate_whole(kernel, case)


def separated(kernel: Any, case: Case) -> Case:
    """The case for which the kernel is analysed."""
    return replace(case, separate=False) if "separate" in kernel.without else case


def load(
    kernel: Any, case: Case, kind: str, choices: tuple[Any, ...], generate: Callable[[Any, Case], str]
) -> tuple[Any, str]:
    """The module of a kernel's derivative, generated if the cache folder has none, and a description of it.

    Parameters
    ----------
    kind : str
        Which program, in the file's name: ``"adjoint"``, ``"tangent"``, ``"second"``, ``"drawing"``, ...
    choices : tuple
        The further choices on which this kind of derivative depends.
    """
    described = tuple(map(cache.describe, case.types))
    known = sorted(case.active), case.same, case.separate, case.threaded, sorted(case.single), *choices
    name = f"{kernel.__name__}_{kind}_{cache.key(kernel.placed_identity, described, *known)}"
    what = f"the {kind} of {kernel.__name__}"

    def make() -> str:
        with announced(what, kernel.py_func):
            return generate(kernel, case)

    return cache.load_or_make(name, make), what


def derivative_options(kernel: Any, case: Case, parallel: bool) -> dict[str, Any]:
    """Numba's options for a generated program: those of its primal about arithmetic and threads.

    Division by zero in a derivative follows IEEE arithmetic, whatever the primal does: where the primal raises, it has
    already done so.
    """
    inherited = {k: v for k, v in kernel.options.items() if k not in ("inline", "forceinline", "no_cpython_wrapper")}
    on_threads = {**threads.ONLY_PRANGE} if parallel and inherited.get("parallel") else False
    options = {**inherited, "error_model": "numpy", "parallel": on_threads}
    if kernel.checked:
        return {**checking(options), "pipeline_class": CheckedInRange}
    return {**options, "pipeline_class": SeparateArrays if case.separate else InRange}
