"""`custom_jvp`: a kernel whose tangent its author writes."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any, ClassVar

from ampi import tape
from ampi.errors import KernelError


class custom_jvp:
    """A kernel with a tangent of its own.

    ::

        @ampi.custom_jvp
        @ampi.kernel
        def f(x, y): ...

        @f.defjvp
        def f_jvp(primals, tangents):
            x, y = primals
            x_dot, y_dot = tangents
            ...
            return result, result_dot

    The tangent takes two tuples, the arguments and their tangents, of the same structure and shapes (None for an
    argument, or a part of one, that is no floating-point number or array of them).  It returns the result, which is
    that of `f`, and its tangent, of the same structure (None where there is none).  It is written as a kernel is,
    decorated or not; a call of `f` inside of it is the plain function.  Arrays of the caller that `f` overwrites must
    be part of its result; the tangent overwrites them, and their tangents, in the same way.

    Tangent programs of kernels that call `f` (`Kernel.tangent_source`) replace the call by the tangent.
    Adjoints take its transpose, for which it must be linear in the tangents as it is written: sums of tangents, times
    and divided by other values, in loops and branches that do not depend on tangents.  So a fixed point is
    differentiated by the equation that it solves, and a linear system by another one, and not step by step.

    Raises
    ------
    KernelError
        `f` is not a kernel; at the first call that a tape records, its tangent is missing, or is not linear in the
        tangents.  Of such functions make a `custom_vjp`, whose adjoint is given too (its ``defjvp`` takes the tangent).

    Examples
    --------
    >>> @ampi.custom_jvp
    ... @ampi.kernel
    ... def square(x):
    ...     return x * x
    >>> @square.defjvp
    ... def square_jvp(primals, tangents):
    ...     return primals[0] * primals[0], 2.0 * primals[0] * tangents[0]
    >>> float(ampi.grad(square)(3.0))
    6.0
    """

    def __init__(self, f: Callable) -> None:
        if not hasattr(f, "py_func"):
            raise KernelError(
                f"@ampi.custom_jvp takes a kernel, not {f!r}; decorate it with @ampi.kernel first, or use "
                "ampi.custom_vjp"
            )
        functools.update_wrapper(self, f)
        self.f: Any = f
        self.tangent: Callable | None = None
        self._caller: Any = None

    make_kernel: ClassVar[Callable[..., Any]]
    """Makes a kernel of a function; `ampi.kernel.dispatcher` gives it."""

    def identity_parts(self) -> tuple[Any, ...]:
        """The functions that say what code with a call of this one does (None: not given)."""
        return self.f, self.tangent

    @property
    def _numba_type_(self) -> Any:
        """Inside of a kernel, a function with a rule of its own is the function."""
        import numba

        return numba.typeof(self.f)

    def defjvp(self, tangent: Callable) -> Callable:
        """Give the tangent; returns it, to be used as a decorator."""
        self.tangent = tangent
        self._caller = None
        return tangent

    def __repr__(self) -> str:
        return f"<ampi custom_jvp {self.__qualname__}>"

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not tape.living:
            return self.f(*arguments, **keywords)
        if self._caller is None:
            self._caller = self.make_kernel(_calling(self), **getattr(self.f, "options", {}))
        return self._caller(*arguments, **keywords)


def _calling(rule: custom_jvp) -> FunctionType:
    """A function that does nothing but call a function with a rule, with the source that the parser is given."""
    from copy import deepcopy
    from dataclasses import replace

    from ampi.kernel.frontend.base.source import read_source

    function = rule.f.py_func
    source = read_source(function)
    parameters = inspect.signature(function).parameters.values()
    own = "rule"
    while own in inspect.signature(function).parameters:
        own += "_"
    given = [f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in parameters]
    definition = deepcopy(source.definition)
    definition.decorator_list = []
    definition.body = ast.parse(f"return {own}({', '.join(given)})").body
    for node in ast.walk(definition):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = source.definition.lineno
    outer = ast.parse(f"def outer({own}):\n    pass")
    outer.body[0].body = [definition]  # type: ignore[attr-defined]
    code = _inner(_inner(compile(ast.fix_missing_locations(outer), source.filename, "exec")))
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, (CellType(rule),))
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__, made.__module__ = rule.__qualname__, function.__module__
    made.__ampi_source__ = replace(source, definition=definition)  # type: ignore[attr-defined]
    return made


def _inner(code: CodeType) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType))
