"""Printed text and files with a program's gradients."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..base.whole_files import Guarded, replacing
from ..errors import AmpiError
from ..memory.storages import is_scalar
from .gradients import Differentiation, Gradients
from .session import memory_of

_MEANING = {"sum": "the sum over {} ranks", "replicated": "on each of {} ranks", "root": "on rank 0 of {}"}


def describe(problem: Differentiation, found: Gradients) -> str:
    """Values and norms of the gradients, as text. Collective; the same on all ranks."""
    lines = []
    comm = problem.comm
    for k, dependent in enumerate(problem.session.dependents):
        values = comm.allgather(None if dependent.value is None else float(np.asarray(memory_of(dependent.value))))
        meaning = _MEANING[problem.objective].format(comm.Get_size()) if comm.Get_size() > 1 else "on one rank"
        repeated = f", the last of {dependent.times} values" if dependent.times > 1 else ""
        lines.append(f"{dependent.text} = {found.values[k]:.12e}   ({meaning}{repeated})")
        if problem.objective == "sum" and len(values) > 1 and len(set(map(str, values))) == 1 and values[0]:
            lines.append(
                "   every rank has the same value: if that is one number for all, --objective replicated counts it once"
            )
        for number, independent in enumerate(problem.session.independents):
            lines.append(f"   with respect to {independent.text}: {_of_one(problem, found, k, number)}")
    return "\n".join(lines)


def _of_one(problem: Differentiation, found: Gradients, dependent: int, number: int) -> str:
    comm, independent = problem.comm, problem.session.independents[number]
    mine = found.leaves(dependent, number)
    square = comm.allreduce(sum(float(np.sum(np.abs(np.asarray(g)) ** 2)) for g in mine))
    is_number = len(mine) == 1 and is_scalar(independent.originals[0])
    numbers = comm.allgather(mine[0].item() if is_number else None)
    shapes = comm.allgather([(str(np.asarray(g).dtype), np.shape(g)) for g in mine])
    having = [r for r, s in enumerate(shapes) if s]
    places = [place for place in comm.allgather(independent.place) if place]
    text = f"norm {math.sqrt(square):.12e}"
    if len([x for x in numbers if x is not None]) == len(having):
        total = sum(x for x in numbers if x is not None)
        text += f", sum over ranks {total:.12e}" if len(having) > 1 else f", derivative {total:.12e}"
    else:
        one = shapes[having[0]]
        said = [f"{dtype} of shape {shape}" for dtype, shape in one[:3]]
        text += f", {' and '.join(said)}{' …' if len(one) > 3 else ''}"
        if comm.Get_size() > 1:
            alike = all(shape == one for shape in shapes)
            text += " on each rank" if alike else f" on rank {having[0]}"
    text += f"   ({places[0]}"
    if independent.times > 1:
        text += f", {independent.times} times with the same value: one variable"
    if independent.others:
        text += f", the first of several values: the {independent.others} others count as what they are made of"
    text += ")"
    if square:
        return text
    of = problem.session.dependents[dependent].text
    return f"{text}\n      it is zero: {of} does not change with it{problem.changed_later(independent)}"


def write(path: str, problem: Differentiation, found: Gradients, command: str) -> None:
    """Write all ranks' parts into one HDF5 file, from rank 0. Collective.

    ``/<of>/<wrt>/rank<r>`` (with ``/0``, ``/1`` for items of a tuple, list or dictionary) is the gradient with respect
    to rank r's part; ``value`` is an attribute of ``/<of>``, and the program's command one of the file.
    """
    comm = problem.comm
    parts = comm.gather([[found.leaves(k, n) for n in range(len(row))] for k, row in enumerate(found.parts)])
    places = comm.gather([x.place for x in problem.session.independents])
    problems = []
    if comm.Get_rank() == 0:
        try:
            _write(path, problem, found, parts, places, command)
        except (AmpiError, ImportError) as error:
            problems.append(f"--output: {error}")
    problem.agree(problems)


def _write(path: str, problem: Differentiation, found: Gradients, parts: Any, places: Any, command: str) -> None:
    import h5py

    needed = sum(np.asarray(leaf).nbytes for rows in parts for row in rows for leaves in row for leaf in leaves)
    with (
        replacing(path, "wb+", needed=needed, buffering=0) as raw,
        Guarded(raw) as guarded,
        h5py.File(guarded, "w") as file,
    ):
        file.attrs["command"] = command
        file.attrs["ranks"] = len(parts)
        file.attrs["objective"] = problem.objective
        for name, version in versions().items():
            file.attrs[f"version of {name}"] = version
        for k, dependent in enumerate(problem.session.dependents):
            group = file.create_group(_member(dependent.text))
            group.attrs["name"] = dependent.text
            group.attrs["value"] = found.values[k]
            for number, independent in enumerate(problem.session.independents):
                inner = group.create_group(_member(independent.text))
                inner.attrs["name"] = independent.text
                for rank, rows in enumerate(parts):
                    leaves = rows[k][number]
                    for n, leaf in enumerate(leaves):
                        made = inner.create_dataset(f"rank{rank}" + (f"/{n}" if len(leaves) > 1 else ""), data=leaf)
                        made.attrs["rank"] = rank
                        made.attrs["shape"] = np.shape(leaf)
                        made.attrs["assigned"] = places[rank][number]


def _member(text: str) -> str:
    return text.replace("/", "|")


def versions() -> dict[str, str]:
    """The versions of the packages used."""
    found = {name: importlib.metadata.version(name) for name in ("ampi", "mpi4py", "numpy", "numba")}
    library = " ".join(mpi.Get_library_version().splitlines()[0].strip("\0").split())
    return {"Python": platform.python_version(), **found, "MPI": library}
