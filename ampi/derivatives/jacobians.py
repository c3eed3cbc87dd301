"""Jacobians of functions of all ranks, in blocks: `jacrev`, `jacfwd` and, of a gradient, `hessian`, in vector mode.

A program on several ranks is one function from all ranks' x to all ranks' y.  Its Jacobian has a row for each element
of every rank's y and a column for each element of every rank's x.  A sweep computes a row, of which each rank has its
own columns; forward mode computes a column, of which each rank has its own rows.  Ranks get these blocks, so no part of
a Jacobian is sent.

If the positions of nonzero entries are known, columns (rows) without a common row (column) share a direction: Curtis,
Powell and Reid, "On the estimation of sparse Jacobian matrices" (1974).  SciPy groups them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..arrays.activity import plain_of
from ..errors import ActivityError, CommunicationError, TapeError
from ..tape import Tape, bytes_of
from .arguments import has_tangent, leaves_of, require_on_host
from .first_order import push_forward
from .objectives import ranks_of, require_objective
from .second_order import products

CHUNK = 16
"""The default number of directions per sweep."""

CACHED_BYTES = 8 << 20
"""The default limit in bytes for the adjoints of all directions: if they do not fit in the caches, a sweep in several
directions takes longer than one sweep for each."""

KEPT_BYTES = 1 << 30
"""The default limit in bytes for the tangents that second order keeps for the sweep."""


def jacrev(
    f: Callable,
    x: Any,
    *,
    chunk: int | None = None,
    memory: int | str | None = None,
    pattern: Any = None,
    comm: Any = None,
) -> Any:
    """The Jacobian of a function by reverse mode, with this rank's columns on each rank.

    Collective over ``comm``: all ranks call it with their own x, which may be empty.  The function runs once and is
    swept in one direction for each element of all ranks' y, ``chunk`` of them at a time.  Use it if y has fewer
    elements than x.

    Parameters
    ----------
    f : callable
        Function of one array (or number) that returns an array, or tuples, lists and dictionaries of arrays and
        numbers; None on a rank without output.
    x : array_like of float
        This rank's x: n_r elements, of any shape.
    chunk : int, optional
        Maximum number of directions in one sweep.  By default 16, or fewer if their adjoints would take more than 8 MiB
        on a rank: then a sweep in several directions takes longer than one for each.
    memory : int or str, optional
        Instead of ``chunk``: as many directions as have adjoints that fit in this many bytes on each rank (``"1GiB"``).
        A first sweep in one direction measures them.  The Jacobian itself is not counted.
    pattern : SciPy sparse array, optional
        The entries of this rank's block that can be nonzero, in the shape of the block.  Rows without a common column
        then share a direction, and the result is sparse.  All blocks of the pattern are sent to rank 0, which groups
        the rows.
    comm : mpi4py.MPI.Comm, optional
        The ranks that call together; by default `ampi.COMM_WORLD`.

    Returns
    -------
    numpy.ndarray, or scipy.sparse.csr_array if there is a pattern
        This rank's block of columns: shape (Σ m_s, n_r), of x's dtype.  A row belongs to each element of all ranks'
        outputs, of m_s elements, those of rank 0 first, and a column to each of this rank's x; both in C order.

    Raises
    ------
    ActivityError
        ``x``, or a part of y, is complex or not an array of floating-point numbers.
    CommunicationError
        As for `Tape.gradient`.
    TapeError
        On all ranks: the pattern has another shape, or omits a nonzero entry.

    Examples
    --------
    >>> import numpy as np
    >>> import ampi
    >>> ampi.jacrev(lambda x: x[0] * x, np.array([2.0, 3.0]), comm=ampi.COMM_SELF)
    array([[4., 0.],
           [3., 2.]])
    """
    comm, here = ranks_of(comm), _independent(x, "ampi.jacrev")
    with Tape() as tape:
        watched = tape.watch(here)
        outputs = _outputs(f(watched), "ampi.jacrev")
    sizes = [int(np.size(leaf)) for leaf in outputs]
    rows = _Share(comm, sum(sizes))
    chunks = _Chunks(comm, chunk, memory, "ampi.jacrev", CACHED_BYTES)
    active = [tape.is_active(leaf) for leaf in outputs]
    of_outputs = [leaf for leaf, is_active in zip(outputs, active) if is_active]

    def swept(seeds: np.ndarray) -> tuple[np.ndarray, int]:
        parts = np.split(seeds, np.cumsum(sizes)[:-1], axis=1) if sizes else []
        given = [
            part.reshape(len(seeds), *np.shape(leaf)).astype(leaf.dtype)
            for part, leaf, is_active in zip(parts, outputs, active)
            if is_active
        ]
        found = tape.gradient(of_outputs, watched, seeds=given or len(seeds))
        return found.reshape(len(seeds), -1), tape.latest_shadows

    if pattern is None:
        block = np.zeros((rows.total, here.size), here.dtype)
        for first, found in chunks.carried(rows.units, rows.total, swept):
            block[first : first + len(found)] = found
        return block
    pattern = _checked(pattern, (rows.total, here.size), comm, "ampi.jacrev").T.tocsr()
    return _compressed(pattern, _colours(pattern, comm), rows, swept, chunks).T.tocsr()


def jacfwd(
    f: Callable,
    x: Any,
    *,
    chunk: int | None = None,
    memory: int | str | None = None,
    pattern: Any = None,
    comm: Any = None,
) -> Any:
    """The Jacobian of a function by forward mode, with this rank's rows on each rank.

    Collective over ``comm``: all ranks call it with their own x, which may be empty.  The function runs once for each
    ``chunk`` elements of all ranks' x, without a tape.  Use it if x has fewer elements than y.

    Parameters
    ----------
    f : callable
        Function of one array (or number) that returns an array, or tuples, lists and dictionaries of arrays and
        numbers; None on a rank without output.
    x : array_like of float
        This rank's x: n_r elements, of any shape.
    chunk : int, optional
        Maximum number of directions in one run; 16, unless ``memory`` is given.
    memory : int or str, optional
        Instead of ``chunk``: as many directions as have tangents that fit in this many bytes on each rank (``"1GiB"``).
        A first run in one direction measures them.  The Jacobian itself is not counted.
    pattern : SciPy sparse array, optional
        The entries of this rank's block that can be nonzero, in the shape of the block.  Columns without a common row
        then share a direction, and the result is sparse.  All blocks of the pattern are sent to rank 0, which groups
        the columns.
    comm : mpi4py.MPI.Comm, optional
        The ranks that call together; by default `ampi.COMM_WORLD`.

    Returns
    -------
    numpy.ndarray, or scipy.sparse.csr_array if there is a pattern
        This rank's block of rows: shape (m_r, Σ n_s), of y's dtype.  A row belongs to each element of this rank's
        outputs, and a column to each of all ranks' x, those of rank 0 first; both in C order.

    Raises
    ------
    ActivityError
        ``x``, or a part of y, is complex or not an array of floating-point numbers; an operation has no tangent.
    CommunicationError
        As for `jvp`.
    TapeError
        On all ranks: the pattern has another shape, or omits a nonzero entry.

    Examples
    --------
    >>> import numpy as np
    >>> import ampi
    >>> ampi.jacfwd(lambda x: x[0] * x, np.array([2.0, 3.0]), comm=ampi.COMM_SELF)
    array([[4., 0.],
           [3., 2.]])
    """
    comm, here = ranks_of(comm), _independent(x, "ampi.jacfwd")
    columns = _Share(comm, here.size)
    chunks = _Chunks(comm, chunk, memory, "ampi.jacfwd")

    def pushed(tangents: np.ndarray) -> tuple[np.ndarray, int]:
        count = len(tangents)
        y, y_dot, nbytes = push_forward(f, (here,), (tangents.reshape(count, *here.shape),), count)
        _outputs(y, "ampi.jacfwd")
        parts = [np.reshape(leaf, (count, -1)) for leaf in leaves_of(y_dot) if leaf is not None]
        return np.concatenate([np.zeros((count, 0), parts[0].dtype if parts else here.dtype), *parts], axis=1), nbytes

    if pattern is None:
        block: np.ndarray | None = None
        for first, found in chunks.carried(columns.units, max(columns.total, 1), pushed):
            if block is None:
                block = np.zeros((found.shape[1], columns.total), found.dtype)
            block[:, first : first + len(found)] = found[: columns.total].T
        return block
    pattern = _checked(pattern, (None, columns.total), comm, "ampi.jacfwd")
    return _compressed(pattern, _colours(pattern, comm), columns, pushed, chunks)


def hessian(
    f: Callable,
    x: Any,
    objective: str = "sum",
    comm: Any = None,
    *,
    chunk: int | None = None,
    memory: int | str | None = None,
    pattern: Any = None,
) -> Any:
    """The Hessian of a function, with this rank's rows on each rank; for few parameters, or with a sparsity pattern.

    Collective over ``comm``: all ranks call it with their own parameters, which may be none (an array of size zero).
    `hvp` of the function runs once for each ``chunk`` parameters of all ranks; with a pattern, for each ``chunk``
    groups of parameters without a common row.

    Parameters
    ----------
    f : callable
        Function of one array (or number) that returns a real scalar, as for `grad`.
    x : array_like of float
        This rank's parameters, n_r of them, of any shape.
    objective : {"sum", "replicated", "root"}
        What is differentiated, as for `value_and_grad`.
    comm : mpi4py.MPI.Comm, optional
        The ranks that call together; by default `ampi.COMM_WORLD`.
    chunk : int, optional
        Maximum number of directions in one run; by default 16, or fewer if their tangents would take more than 1 GiB on
        a rank.
    memory : int or str, optional
        Instead of ``chunk``: as many directions as have tangents that fit in this many bytes on each rank (``"1GiB"``).
        A first run in one direction measures them: the tangents of everything that is kept for the sweep.  The tape
        itself and the Hessian are not counted.
    pattern : SciPy sparse array, optional
        The entries of this rank's block of rows that can be nonzero, as for `jacfwd`.

    Returns
    -------
    numpy.ndarray, or scipy.sparse.csr_array if there is a pattern
        This rank's block of rows: shape (n_r, Σ n_s).  A row belongs to each of this rank's parameters, and a column to
        each of all ranks', those of rank 0 first; in C order.

    Raises
    ------
    ActivityError
        ``x`` is not an array of real floating-point numbers, or an operation has no second derivative yet.
    CommunicationError, TapeError
        As for `hvp`; TapeError on all ranks if the pattern has another shape or omits a nonzero entry.

    Examples
    --------
    >>> import numpy as np
    >>> import ampi
    >>> ampi.hessian(lambda x: x[0] ** 2 * x[1], np.array([1.0, 2.0]), comm=ampi.COMM_SELF)
    array([[4., 2.],
           [2., 0.]])
    """
    comm, here = ranks_of(comm), _independent(x, "ampi.hessian")
    require_objective(objective)
    columns = _Share(comm, here.size)
    chunks = _Chunks(comm, chunk, memory, "ampi.hessian", KEPT_BYTES)

    def multiplied(v: np.ndarray) -> tuple[np.ndarray, int]:
        count = len(v)
        found = products(f, (x,), (v.reshape(count, *here.shape),), objective, comm, count)
        return np.reshape(found.product[0], (count, -1)), found.nbytes

    if pattern is None:
        block = np.zeros((here.size, columns.total), here.dtype)
        for first, found in chunks.carried(columns.units, columns.total, multiplied):
            block[:, first : first + len(found)] = found.T
        return block
    pattern = _checked(pattern, (here.size, columns.total), comm, "ampi.hessian")
    return _compressed(pattern, _colours(pattern, comm), columns, multiplied, chunks)


def _independent(x: Any, asked: str) -> np.ndarray:
    require_on_host(x, f"{asked}: x")
    here = np.asanyarray(plain_of(x))  # of which a copy is watched
    if here.dtype.kind != "f":
        raise ActivityError(f"{asked}: x is of dtype {here.dtype}; pass real floating-point numbers")
    return here


def _outputs(y: Any, asked: str) -> list[Any]:
    """Return the arrays and numbers of a result that have derivatives, which must be real."""
    for leaf in leaves_of(y):
        require_on_host(leaf, f"{asked}: a result")
    found = [leaf for leaf in leaves_of(y) if has_tangent(leaf)]
    for leaf in found:
        if np.asarray(plain_of(leaf)).dtype.kind != "f":
            dtype = np.asarray(plain_of(leaf)).dtype
            raise ActivityError(f"{asked}: the function returned numbers of dtype {dtype}; return real ones")
    return found


class _Share:
    """This rank's share of the elements of all ranks, which are numbered rank by rank.

    Attributes
    ----------
    first, count, total : int
        The index of its first element, the number of its elements, and that of all ranks.
    """

    def __init__(self, comm: Any, count: int) -> None:
        counts = comm.allgather(count)
        self.first = sum(counts[: comm.Get_rank()])
        self.count = count
        self.total = sum(counts)

    def units(self, start: int, stop: int) -> np.ndarray:
        """Return this rank's part of the unit vectors in the directions ``start`` to ``stop``."""
        found = np.zeros((stop - start, self.count))
        for k in range(max(start, self.first), min(stop, self.first + self.count)):
            found[k - start, k - self.first] = 1
        return found


class _Chunks:
    """The number of directions per sweep: the same on all ranks.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    chunk, memory : int or str, or None
        The user's choice.
    asked : str
        The name of the function that takes them, for errors.
    most_bytes : int, optional
        The bytes that the directions may take if the user gives neither.

    Raises
    ------
    TapeError
        On this rank: both are given, or less than one direction.
    CommunicationError
        On all ranks: the ranks give different ones.
    """

    def __init__(
        self, comm: Any, chunk: int | None, memory: int | str | None, asked: str, most_bytes: int | None = None
    ) -> None:
        if chunk is not None and memory is not None:
            raise TapeError(f"{asked}: pass chunk= or memory=, not both")
        self.comm, self.asked = comm, asked
        if memory is not None:
            self.most, self.budget = sys.maxsize, bytes_of(memory, asked)
        elif chunk is not None:
            self.most, self.budget = int(chunk), None
        else:
            self.most, self.budget = CHUNK, most_bytes
        if self.most < 1:
            raise TapeError(f"{asked}: chunk is {chunk}; pass one direction at least")
        given = self.most, self.budget
        if any(found != given for found in comm.allgather(given)):
            raise CommunicationError(f"{asked}: the ranks pass different chunk= or memory=")

    def carried(
        self,
        vectors: Callable[[int, int], np.ndarray],
        total: int,
        carry: Callable[[np.ndarray], tuple[np.ndarray, int]],
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Iterate over chunks of vectors that go through a sweep or forward: the index of the first one, and the
        results.

        ``carry`` returns the results and the bytes that they took.
        """
        size = self.most if self.budget is None else 1
        done = 0
        while done < total:
            stop = min(done + size, total)
            found, nbytes = carry(vectors(done, stop))
            if self.budget is not None and not done:
                size = min(max(min(self.comm.allgather(self.budget // max(nbytes, 1))), 1), self.most)
            yield done, found
            done = stop


# ------------------------------------------------------------------------------------------------ sparse matrices


def _checked(pattern: Any, shape: tuple[int | None, int], comm: Any, asked: str) -> Any:
    """Return a pattern as a sparse SciPy array of ones; raise on all ranks if one of them has another shape."""
    from scipy import sparse

    problem = ""
    if not sparse.issparse(pattern):
        problem = f"pattern is a {type(pattern).__name__}; pass a SciPy sparse array"
    elif pattern.shape != tuple(n if s is None else s for s, n in zip(shape, pattern.shape)):
        wanted = ", ".join("m" if n is None else str(n) for n in shape)
        problem = f"pattern has shape {pattern.shape}; this rank's block has shape ({wanted})"
    _raise_on_all(problem, comm, asked)
    found = sparse.csr_array(pattern)
    found.sum_duplicates()
    return sparse.csr_array((np.ones(found.nnz), found.indices, found.indptr), found.shape)


def _raise_on_all(problem: str, comm: Any, asked: str) -> None:
    for rank, text in enumerate(comm.allgather(problem)):
        if text:
            raise TapeError(f"{asked}: rank {rank}: {text}")


def _colours(pattern: Any, comm: Any) -> np.ndarray:
    """Group columns that have no row in common on any rank; each rank has rows of all columns.

    Rank 0, which has the whole pattern, groups them for all ranks.
    """
    from scipy import sparse
    from scipy.optimize._numdiff import group_columns  # it has no public name

    blocks = comm.gather(sparse.csr_array(pattern), root=0)
    colours = None
    if blocks is not None:
        whole = sparse.vstack(blocks, format="csc")
        degrees = np.diff(whole.indptr)
        orders = np.arange(whole.shape[1]), np.argsort(-degrees, kind="stable")  # bands; largest first
        whole = sparse.csr_matrix(whole)
        found = [group_columns(whole, order) if whole.shape[1] else np.zeros(0, int) for order in orders]
        colours = min(found, key=lambda groups: groups.max(initial=-1))
    return comm.bcast(colours, root=0)


def _compressed(
    pattern: Any,
    colours: np.ndarray,
    share: _Share,
    carry: Callable[[np.ndarray], tuple[np.ndarray, int]],
    chunks: _Chunks,
) -> Any:
    """Return this rank's rows of a matrix, with one direction for all columns of a colour.

    A last direction has random numbers for all columns; its result is compared with that of the matrix.
    """
    from scipy import sparse

    groups = int(colours.max(initial=-1)) + 1
    random = np.random.default_rng(0).uniform(0.5, 1.5, share.total)
    mine = slice(share.first, share.first + share.count)

    def vectors(start: int, stop: int) -> np.ndarray:
        found = np.zeros((stop - start, share.count))
        for k in range(start, min(stop, groups)):
            found[k - start] = colours[mine] == k
        if stop > groups:
            found[-1] = random[mine]
        return found

    comm, asked = chunks.comm, chunks.asked
    found = np.concatenate([part for _, part in chunks.carried(vectors, groups + 1, carry)])
    here = found.shape[1]
    problem = "" if here == pattern.shape[0] else f"pattern has {pattern.shape[0]} rows, and there are {here} outputs"
    _raise_on_all(problem, comm, asked)
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    data = found[colours[pattern.indices], rows]
    result = sparse.csr_array((data, pattern.indices.copy(), pattern.indptr.copy()), pattern.shape)
    expected, size = result @ random, abs(result) @ random + np.abs(found[-1])
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(np.abs(expected - found[-1]) > 64 * np.sqrt(np.finfo(found.dtype).eps) * size)
    which = "rows" if asked != "ampi.jacrev" else "columns"
    shown = ", ".join(map(str, wrong[:5])) + (", …" if len(wrong) > 5 else "")
    problem = f"the pattern leaves out entries that are not zero in {which} {shown} of its block" if len(wrong) else ""
    _raise_on_all(problem, comm, asked)
    return result
