"""`custom_jvp`: kernels with a custom tangent."""

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
    """A kernel with a custom tangent.

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
    argument, or a part of one, that is not a floating-point or complex number or array).  It returns the result of `f`,
    and the tangent of the result, of the same structure (None where there is none).  It is written like a kernel,
    decorated or not; a call of `f` inside it is the plain function.  Arrays of the caller that `f` overwrites must be
    part of its result; the tangent overwrites them, and their tangents, in the same way.

    Tangent programs of kernels that call `f` (`Kernel.tangent_source`) replace the call by the tangent.  Adjoints take
    its transpose, for which it must be written as a linear function of the tangents: sums of tangents multiplied or
    divided by other values, in loops and branches that do not depend on tangents.  In this way a fixed point is
    differentiated through the equation that it solves, and a linear system by solving another one, instead of step by
    step.

    Raises
    ------
    KernelError
        `f` is not a kernel; or, at the first call that a tape records, its tangent is missing or not linear in the
        tangents.  For a tangent that is not linear use `custom_vjp`, which takes the adjoint as well.

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
    """Makes a kernel from a function; set by `ampi.kernel.dispatcher`."""

    def identity_parts(self) -> tuple[Any, ...]:
        """The functions that determine the code of a call (None if not given)."""
        return self.f, self.tangent

    @property
    def _numba_type_(self) -> Any:
        """Numba's type of this object in compiled code: that of the plain function."""
        import numba

        return numba.typeof(self.f)

    def defjvp(self, tangent: Callable) -> Callable:
        """Set the tangent, and return it; used as a decorator."""
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
    """A function that only calls ``rule``, with its source for the parser."""
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
