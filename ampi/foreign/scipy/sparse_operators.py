"""`scipy.sparse.linalg.LinearOperator`: products of operators with active arrays, and operators of active matrices."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse.linalg as sl

from ...arrays.known_classes import define_class
from ...interception.hooks import Hook, hook
from ...rules.definitions import any_active, refusal
from ...tape import Tape
from . import guards
from .sparse import define_twice, h, through, unmodified
from .sparse_entries import as_array
from .sparse_factors import as_preconditioners

OfMatrix = sl._interface.MatrixLinearOperator


def _put_together(args: tuple, operator: Any) -> Any:
    new = copy.copy(operator)
    new.args = args
    if "A" in vars(new):
        new.A = args[0]
    return new


define_class(sl.LinearOperator, lambda operator: (getattr(operator, "args", ()), operator), _put_together)
define_class(OfMatrix, lambda operator: ((vars(operator).get("A"),), operator), lambda arrays, _: OfMatrix(arrays[0]))


def _of_matrix(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """`aslinearoperator`."""
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    (a,) = found.signature.bind(*arguments, **keywords).args
    return OfMatrix(np.atleast_2d(a)) if isinstance(a, np.ndarray) else found.original(a)


hook(sl.aslinearoperator, _of_matrix, "scipy.sparse.linalg.aslinearoperator")


def require_matrix(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> None:
    """Raise an error if a system's operator has active parts and is not made of one matrix."""
    given = found.signature.bind(*arguments, **keywords).arguments
    a = given.get("A")
    if isinstance(a, sl.LinearOperator) and not isinstance(a, OfMatrix) and any_active(tape, a):
        raise refusal(found.name, " for an operator that is made of others", "compute its matrix")


define_twice(
    sl.LinearOperator.matvec,
    {"x": lambda g, self, shape: np.reshape(self.rmatvec(g), shape)},
    calls_back=True,
)
define_twice(
    sl.LinearOperator.rmatvec,
    {"x": lambda g, self, shape: np.reshape(self.matvec(g), shape)},
    calls_back=True,
)
define_twice(sl.LinearOperator.matmat, {"X": lambda g, self: self.rmatmat(g)}, calls_back=True)
define_twice(sl.LinearOperator.rmatmat, {"X": lambda g, self: self.matmat(g)}, calls_back=True)
hook(sl._interface._CustomLinearOperator.__init__, guards.refuse, "scipy.sparse.linalg.LinearOperator")
for _name in ("__matmul__", "__mul__", "__call__"):
    hook(vars(sl.LinearOperator)[_name], through, f"scipy.sparse.linalg.LinearOperator.{_name}")


def _dot(found: Hook, tape: Any, arguments: tuple, keywords: dict) -> Any:
    if not any_active(tape, arguments, keywords):
        return guards.refuse(found, tape, arguments, keywords)
    self, x = arguments
    if isinstance(x, sl.LinearOperator) or np.ndim(x) == 0:
        return found.original(self, x)
    x = as_array(x)
    if x.ndim not in (1, 2):
        raise refusal(found.name, " with a number")
    return self.matvec(x) if x.ndim == 1 or x.shape[1] == 1 else self.matmat(x)


hook(sl.LinearOperator.dot, _dot)


def _applied(rule: Callable, adjoint: bool, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    self = arguments[0]
    if not any_active(tape, self):
        return rule(found, tape, arguments, keywords)
    x = as_array(found.signature.bind(*arguments, **keywords).args[1])
    if isinstance(self, OfMatrix):
        return (h(self.A) if adjoint else self.A) @ x
    rows = self.shape[1 if adjoint else 0]
    y = getattr(self, f"_{found.__name__}")(x)  # SciPy's own method converts to plain arrays
    return y.reshape(rows) if x.ndim == 1 else y.reshape(rows, -1)


for _name in ("matvec", "rmatvec", "matmat", "rmatmat"):
    _hook = hook(vars(sl.LinearOperator)[_name], None)
    _hook.handle = functools.partial(_applied, _hook.handle, _name.startswith("r"))


def _adjoint_or_transpose(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """The adjoint or transpose of an operator."""
    (self,) = arguments
    if isinstance(self, OfMatrix) and any_active(tape, self):
        return OfMatrix(self.A.T if found.name.endswith("transpose") else h(self.A))
    return found.original(self)


for _cls in {sl.LinearOperator, *sl.LinearOperator.__subclasses__(), *OfMatrix.__subclasses__()}:
    if _cls.__module__ == sl.LinearOperator.__module__:
        for _name in {"_adjoint", "_transpose", "adjoint", "transpose"} & set(vars(_cls)):
            hook(vars(_cls)[_name], _adjoint_or_transpose, f"scipy.sparse.linalg.{_cls.__name__}.{_name}")
        if _cls is not sl._interface._CustomLinearOperator and "__init__" in vars(_cls):
            hook(_cls.__init__, unmodified, f"scipy.sparse.linalg.{_cls.__name__}")
for _name in "__new__ __add__ __sub__ __neg__ __rmul__ __pow__ __truediv__".split():
    if _name in vars(sl.LinearOperator):
        hook(vars(sl.LinearOperator)[_name], unmodified, f"scipy.sparse.linalg.LinearOperator.{_name}")


def _dtype_of(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """The dtype of an operator, found by applying it to a vector."""
    with as_preconditioners():
        return found.original(*arguments, **keywords)


hook(sl.LinearOperator._init_dtype, _dtype_of)
