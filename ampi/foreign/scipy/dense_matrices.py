"""Results of SciPy of type `numpy.matrix`: sums along an axis, and dense forms of sparse matrices (not arrays).

No subclass of NumPy's array can replace `numpy.matrix`. `Matrix` is an `ampi.ndarray` with its arithmetic: ``*`` is the
matrix product, and there are always two dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...arrays.array import ndarray
from ...rules.definitions import refusal


def as_matrix(x: Any) -> Any:
    """Convert an array with two dimensions to a `Matrix`; return anything else unchanged."""
    return x.view(Matrix) if isinstance(x, ndarray) and x.ndim == 2 else x


def as_array(x: Any) -> Any:
    """Convert a `Matrix` to an array; return anything else unchanged."""
    return x.view(ndarray) if isinstance(x, Matrix) else x


class Matrix(ndarray):
    """An array that carries derivatives, with the arithmetic of `numpy.matrix`."""

    __slots__ = ()
    __module__ = "ampi"

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        found = super().__array_ufunc__(ufunc, method, *[as_array(x) for x in inputs], **keywords)
        return as_matrix(found) if method == "__call__" else found

    def __array_function__(self, function: Any, types: Any, arguments: tuple, keywords: dict) -> Any:
        arguments = tuple([as_array(x) for x in arguments])
        return super().__array_function__(function, types, arguments, keywords)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, (np.ndarray, list, tuple)) and np.ndim(other):
            return as_matrix(self.A @ np.atleast_2d(as_array(other)))
        if hasattr(other, "shape") and not isinstance(other, (np.ndarray, np.generic)):
            return NotImplemented  # a sparse matrix
        return as_matrix(self.A * other)

    def __rmul__(self, other: Any) -> Any:
        if isinstance(other, (np.ndarray, list, tuple)) and np.ndim(other):
            return as_matrix(np.atleast_2d(as_array(other)) @ self.A)
        return as_matrix(other * self.A)

    def __imul__(self, other: Any) -> Any:
        if np.ndim(other):
            raise refusal("numpy.matrix: *=", " with an array", "write a = a @ b")
        return super().__imul__(other)

    def __pow__(self, other: Any) -> Any:
        raise refusal("numpy.matrix: **", "", "write numpy.linalg.matrix_power(a.A, n)")

    def __getitem__(self, key: Any) -> Any:
        found = self.A[key]
        if found.ndim != 1:
            return as_matrix(found)
        is_column = isinstance(key, tuple) and len(key) > 1 and np.ndim(key[1]) == 0 and not isinstance(key[1], slice)
        return as_matrix(found[:, None] if is_column else found[None])

    def __iter__(self) -> Iterator:
        for k in range(len(self)):
            yield self[k]

    @property
    def A(self) -> Any:
        """The matrix as an array."""
        return self.view(ndarray)

    @property
    def A1(self) -> Any:
        """The elements in one dimension."""
        return self.A.reshape(-1)

    @property
    def H(self) -> Any:
        """The conjugate transpose."""
        return as_matrix(self.A.T.conj())

    def ravel(self, order: Any = "C") -> Any:
        """All elements in one row."""
        return as_matrix(self.A.ravel(order)[None])

    def flatten(self, order: Any = "C") -> Any:
        """A copy of all elements in one row."""
        return as_matrix(self.A.flatten(order)[None])

    def squeeze(self, axis: Any = None) -> Any:
        """The matrix itself: there are always two dimensions."""
        return self


def _along(name: str) -> Any:
    def reduce(self: Any, axis: Any = None, *arguments: Any, **keywords: Any) -> Any:
        found = getattr(self.A, name)(axis, *arguments, **keywords)
        return found if axis is None else as_matrix(np.expand_dims(found, axis))

    reduce.__doc__ = f"`numpy.matrix.{name}`: along an axis, there are still two dimensions."
    return reduce


for _name in ("sum", "mean", "prod", "max", "min", "std", "var", "any", "all", "argmax", "argmin"):
    setattr(Matrix, _name, _along(_name))
