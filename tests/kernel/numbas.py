"""Numba's results for kernels, stored in ``tests/data/numba_answers.json`` because compiling them takes minutes.

``scripts/test -n 1 --regenerate tests/kernel/test_functions.py tests/kernel/test_arrays.py`` rewrites the file.
"""

import ast
import base64
import functools
import hashlib
import inspect
import json
import pathlib
import sys

import numba
import numpy as np

FILE = pathlib.Path(__file__).parents[1] / "data" / "numba_answers.json"
ASKED = {}  # Numba's results in this run, in the form of the file
ANEW = False  # whether to rewrite the file, without reading results from it


class Unknown(Exception):
    """The call is not in the file."""


def agree(check):
    """Run ``check(numbas)``, where ``numbas(function)`` gives Numba's results: first the stored ones; if they are
    missing or the check fails, those of a function compiled now. An old file only costs time."""
    if not ANEW:
        try:
            return check(stored)
        except (Unknown, AssertionError):
            pass
    return check(anew)


def flat(values):
    """The results of a call, with tuples and lists flattened."""
    for v in values if isinstance(values, (tuple, list)) else (values,):
        yield from flat(v) if isinstance(v, (tuple, list)) else (v,)


def results_of(value):
    return () if value is None else tuple(flat(value))


@functools.cache
def compiled(function):
    return numba.njit(function, error_model="numpy")


def anew(function):
    """The function as Numba compiles it now, with flat results, which are kept for the file."""

    def call(*arguments):
        key, before = key_of(arguments), [np.array(a) for a in arrays_of(arguments)]
        results = results_of(compiled(function)(*arguments))
        if ANEW:
            found = ASKED.setdefault(name_of(function), {"source": source(function), "answers": {}})
            after = enumerate(zip(before, arrays_of(arguments), strict=True))
            changed = {str(k): packed(b) for k, (a, b) in after if a.tobytes() != b.tobytes()}
            found["answers"][key] = [[packed(r) for r in results], changed]
        return results

    return call


def stored(function):
    """The same with results from the file."""

    def call(*arguments):
        entry = contents()["kernels"].get(name_of(function), {})
        if entry.get("source") != source(function) or key_of(arguments) not in entry["answers"]:
            raise Unknown
        results, changed = entry["answers"][key_of(arguments)]
        arrays = list(arrays_of(arguments))
        for k, after in changed.items():
            arrays[int(k)][...] = unpacked(after)
        return tuple(map(unpacked, results))

    return call


def is_old(function):
    """Return whether the file has results of an older text of the function (functions not in it are compiled)."""
    entry = (ASKED if ANEW else contents()["kernels"]).get(name_of(function))
    return entry is not None and entry["source"] != source(function)


@functools.cache
def contents():
    return json.loads(FILE.read_text()) if FILE.exists() else {"kernels": {}}


def write():
    """Replace the results of this run's kernels in the file."""
    versions = {"numba": numba.__version__, "numpy": np.__version__}
    lines = []
    for name, entry in sorted({**contents()["kernels"], **ASKED}.items()):
        answers = [f"{json.dumps(key)}: {json.dumps(answer)}" for key, answer in sorted(entry["answers"].items())]
        lines.append(f'"{name}": {{"source": "{entry["source"]}", "answers": {{\n' + ",\n".join(answers) + "}}")
    FILE.write_text(json.dumps(versions)[:-1] + ', "kernels": {\n' + ",\n".join(lines) + "}}\n")


# ------------------------------------------------------------------------------------------- keys and values


def name_of(function):
    return f"{function.__module__}.{function.__name__}"


def arrays_of(arguments):
    return (a for a in flat(tuple(arguments)) if isinstance(a, np.ndarray))


def key_of(arguments):
    """A digest of a call's arguments: their types and all their bits."""
    digest = hashlib.sha256()
    for a in flat(tuple(arguments)):
        told = (a.dtype.str, a.shape, a.strides, a.tobytes()) if isinstance(a, np.ndarray) else (type(a).__name__, a)
        digest.update(repr(told).encode())
    return digest.hexdigest()[:12]


@functools.cache
def source(function):
    """A digest of the text of a function and of everything in its module that it uses."""
    defined = definitions(function.__module__)
    names, text = [function.__name__], []
    for name in names:  # grows
        for node, segment in defined[name]:
            text.append(segment)
            inside = getattr(node, "body", [node.value] if isinstance(node, ast.Assign) else [])
            used = {n.id: None for part in inside for n in ast.walk(part) if isinstance(n, ast.Name)}
            names += [n for n in used if n in defined and n not in names]
    return hashlib.sha256("".join(text).encode()).hexdigest()[:12]


@functools.cache
def definitions(module):
    """The statements, with their text, that bind each name of a module."""
    lines = inspect.getsource(sys.modules[module]).splitlines(keepends=True)
    found = {}
    for node in ast.parse("".join(lines)).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        names = [t.id for t in getattr(node, "targets", ()) if isinstance(t, ast.Name)] or [getattr(node, "name", None)]
        for name in names:
            found.setdefault(name, []).append((node, "".join(lines[first - 1 : node.end_lineno])))
    return found


def packed(value):
    value = np.asarray(value)
    return [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]


def unpacked(told):
    dtype, shape, data = told
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()[()]
