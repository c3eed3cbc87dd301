"""Names of other libraries in ampi's tables: each exists in this release, or in another that is supported."""

import ast
import importlib
import pathlib
import re
import warnings

import pytest
import scipy
import scipy.special

from ampi.arrays import elementwise
from ampi.base import versions
from ampi.foreign import numpy_in_c as foreign
from ampi.kernel.ir import intrinsics
from ampi.kernel.runtime import late_code, quick_compilation
from ampi.partials import elementary
from ampi.partials import special as special_table
from ampi.rules import movement

ROOT = pathlib.Path(__file__).parents[1] / "ampi"
MODULES = "numpy np scipy numba math cmath mpi4py MPI h5py builtins statistics json matplotlib pickle operator"
DOTTED = re.compile(rf"^({'|'.join(MODULES.split())})(\.[A-Za-z_]\w*)+(:[\w.]+)?$")
ALIASES = {"np": "numpy", "MPI": "mpi4py.MPI"}

ELSEWHERE = {
    "scipy.interpolate._bsplines:_BSpline.__init__": ("scipy", "1.18", None),
    "scipy.linalg._matfuncs_sqrtm:sqrtm": ("scipy", None, "1.16"),
    **{
        f"scipy.sparse._construct:{name}": ("scipy", "1.16", None)
        for name in ("expand_dims", "permute_dims", "swapaxes")
    },
    **{
        f"scipy.sparse._coo:{cls}.{name}": ("scipy", "1.16", None)
        for cls in ("_coo_base", "coo_matrix")
        for name in ("__getitem__", "__setitem__")
    },
}  # fmt: skip
"""Names that not all supported releases have: from which on they do, and from which on they do not."""


def numbers(version):
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def expected(name):
    """Whether a name is in this release."""
    library, first, gone = ELSEWHERE[name]
    own = numbers(importlib.import_module(library).__version__)
    return (first is None or own >= numbers(first)) and (gone is None or own < numbers(gone))


def resolved(name):
    """Whether a dotted name leads to something."""
    module, _, path = name.partition(":")
    first, *rest = module.split(".")
    parts = [*ALIASES.get(first, first).split("."), *rest]
    for k in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for part in [*parts[k:], *(path.split(".") if path else [])]:
            try:
                found = vars(found)[part] if isinstance(found, type) and part in vars(found) else getattr(found, part)
            except AttributeError:
                return False
        return True
    return False


def strings(tree):
    """The texts of a program that are no documentation and no part of a sentence put together."""
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            left_out.update(id(value) for value in node.values)
    return [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out
    ]  # fmt: skip


def in_sources():
    found = {}
    for path in ROOT.rglob("*.py"):
        source = path.read_text()
        if not re.search(rf"[\"' ]({'|'.join(MODULES.split())})\.\w", source):
            continue
        for node in strings(ast.parse(source)):
            for word in node.value.split():
                if DOTTED.match(word):
                    found.setdefault(word, f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


WORDS = {"numba:compiler_lock"}  # an event


@pytest.mark.filterwarnings("ignore")
def test_dotted_names_of_all_tables():
    found = in_sources()
    assert len(found) > 400
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        there = {name: resolved(name) for name in found}
    dead = {name: found[name] for name, is_there in there.items() if not is_there and name not in {*ELSEWHERE, *WORDS}}
    assert dead == {}
    assert {name: there.get(name) for name in ELSEWHERE} == {name: expected(name) for name in ELSEWHERE}


def test_names_of_other_releases_are_of_supported_ones():
    """A name that is in no tested release any more must be removed."""
    for name, (library, first, gone) in ELSEWHERE.items():
        tested = [numbers(environment[library]) for environment in versions.TESTED]
        assert any(
            (first is None or own >= numbers(first)) and (gone is None or own < numbers(gone)) for own in tested
        ), name


def lists_in(path):
    """``_named("a b", module)`` and the like: names, and the module that they are looked up in."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_named":
            names = ast.literal_eval(node.args[0])
            module = ast.unparse(node.args[1]) if len(node.args) > 1 else "np"
            yield from (f"{module}.{name}" for name in names.split())


def options(path, call, keyword):
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in call.split():
            for given in node.keywords:
                if given.arg == keyword and isinstance(given.value, ast.Constant):
                    yield from given.value.value.split()


SHORT = {
    "functions": lambda: lists_in("rules/functions.py"),
    "movement": lambda: [f"np.{name}" for name in (*movement.VIEWS, *movement._COPIES)],
    "ufuncs": lambda: [f"np.{name}" for name in (*elementary.PARTIALS, *elementwise.CONSTANT, "absolute", "conjugate")],
    "foreign": lambda: (
        [f"numpy._core.multiarray.{name}" for name in foreign._FUNCTIONS]
        + [f"np.{name}" for name in foreign._FUNCTIONS.values()]
        + [f"np.ndarray.{name}" for name in foreign._METHODS]
        + [f"np.random.Generator.{name}" for name in foreign._GENERATOR]
    ),
    "intrinsics": lambda: options("kernel/ir/intrinsics.py", "_function _operator", "also"),
}


@pytest.mark.parametrize("table", SHORT)
def test_names_of_tables_that_leave_out_what_is_missing(table):
    names = list(SHORT[table]())
    assert len(names) > 20 or table == "foreign"
    assert [name for name in names if not resolved(name)] == []


def test_special_functions_of_the_table():
    own = {*special_table.FORMULAS}
    missing = {
        name for name in special_table.PARTIALS
        if name not in own and not hasattr(scipy.special, name) and f"scipy_{name}" not in intrinsics.TABLE
    }  # fmt: skip
    assert missing <= {"trigamma", "tetragamma"}


def test_functions_of_the_table_of_intrinsics():
    """An entry for functions of Python and NumPy stands for one at least."""
    tree = ast.parse((ROOT / "kernel" / "ir" / "intrinsics.py").read_text())
    named = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_function"
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip
    assert len(named) > 40 and [name for name in named if not intrinsics.TABLE[name].callables] == []


def test_parts_of_numba_that_are_replaced():
    parts = [*quick_compilation._PARTS.items(), *late_code._PARTS.items()]
    missing = [name for owner, names in parts for name in names.split() if not hasattr(owner, name)]
    assert missing == [], "kernels are compiled more slowly without these"
