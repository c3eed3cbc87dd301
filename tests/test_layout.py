"""Lower floors of the package never import upper ones, and nothing in the repository is tied to one machine."""

import ast
import pathlib
import re
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "ampi"
FLOORS = {
    "errors": 0,
    "memory": 0,
    "regions": 0,
    "blocks": 0,
    "extents": 0,
    "layouts": 0,
    "needs": 0,
    "filed_needs": 0,
    "live_arrays": 0,
    "checks": 0,
    "whole_files": 0,
    "arrivals": 0,
    "handouts": 0,
    "recording": 0,
    "replays": 0,
    "tape": 0,
    "array": 1,
    "byte_views": 1,
    "rules": 1,
    "libraries": 1,
    "scipy_rules": 1,
    "pictures": 1,
    "standard_library": 1,
    "executors": 1,
    "fftw": 1,
    "scalars": 1,
    "structures": 1,
    "constants": 1,
    "custom": 1,
    "functions": 1,
    "elements": 1,
    "small_arrays": 1,
    "element_arithmetic": 1,
    "indexing": 1,
    "activity": 1,
    "writing": 1,
    "halfway": 1,
    "nested": 1,
    "operands": 1,
    "ufuncs": 1,
    "compiled_calls": 1,
    "compiled_ufuncs": 1,
    "element_loops": 1,
    "reductions": 1,
    "numpy": 1,
    "outside": 1,
    "conversions": 1,
    "ranges": 1,
    "stored": 1,
    "texts": 1,
    "entry_points": 1,
    "trampolines": 1,
    "interception": 1,
    "foreign": 1,
    "foreign_calls": 1,
    "unhooked_numpy": 1,
    "mpi": 1,
    "versions": 0,
    "arguments": 1,
    "kernel": 1,
    "checkpoint": 2,
    "derivatives": 2,
    "jacobians": 2,
    "second_order": 2,
    "testing": 3,
    "reports": 3,
    "coverage": 3,
    "programs": 3,
    "run": 3,
    "check": 3,
    "scaling": 3,
    "__main__": 3,
}
# What the rooms of the kernel differentiator may import of it, lazy imports included; "" is what stands in none.
ROOMS = {
    "runtime": set(),
    "ir": {"runtime"},
    "normalise": {"ir"},
    "frontend": {"ir", "normalise", "runtime"},
    "analysis": {"ir"},
    "differentiate": {"ir", "analysis"},
    "optimise": {"ir", "analysis"},
    "codegen": {"ir"},
    "": {"runtime", "ir", "normalise", "frontend", "analysis", "differentiate", "optimise", "codegen"},
}
TEXTS = {".py", ".rst", ".cfg", ".toml", ".sh", ".in", ".md", ".txt", ""}
IGNORED = {".git", ".hypothesis", "build", "__pycache__"}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def name_of(path):
    """``('kernel', 'parse')`` for ampi/kernel/parse.py, ``('kernel',)`` for ampi/kernel/__init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(path):
    """The modules of ampi that a file imports anywhere in it, as names below ``ampi``."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from below_ampi(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = package_of(path, node.level) if node.level else []
            module = [*start, *(node.module or "").split(".")] if node.module else start
            for alias in node.names:
                yield from below_ampi([*module, alias.name])


def package_of(path, level):
    """The package that `level` leading dots mean in this file."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return list(parts[: len(parts) - level])


def below_ampi(parts):
    if parts[0] == "ampi" and len(parts) > 1:
        yield tuple(parts[1:])


@pytest.mark.parametrize("path", modules(), ids=lambda path: ".".join(name_of(path)))
def test_imports_stay_on_or_below_their_floor(path):
    own = name_of(path)
    assert own[0] in FLOORS, f"say in {__name__}.FLOORS which floor {own[0]} is on"
    for imported in imports(path):
        assert imported[0] in FLOORS, f"{path.name} imports ampi.{imported[0]} from the top: import its home module"
        assert FLOORS[imported[0]] <= FLOORS[own[0]], f"{path.name} imports ampi.{'.'.join(imported)} from above"
        assert (own[0], imported[0]) != ("kernel", "mpi"), "kernels know nothing of MPI"


def kernel_modules():
    return [path for path in modules() if name_of(path)[0] == "kernel" and len(name_of(path)) > 1]


def room_of(name):
    """``'ir'`` for ``('kernel', 'ir', 'nodes', 'Var')``, ``''`` for ``('kernel', 'pipeline', 'Pass')``."""
    return name[1] if len(name) > 1 and (PACKAGE / "kernel" / name[1]).is_dir() else ""


@pytest.mark.parametrize("path", kernel_modules(), ids=lambda path: ".".join(name_of(path)[1:]))
def test_rooms_of_the_kernel_import_what_they_may(path):
    own = room_of(name_of(path))
    assert own in ROOMS, f"say in {__name__}.ROOMS what {own} may import"
    for imported in imports(path):
        if imported[0] == "kernel":
            room = room_of(imported)
            assert room in ROOMS[own] | {own}, f"{path.name} in '{own}' imports ampi.{'.'.join(imported)}"


def test_modules_of_the_kernel_do_not_import_one_another_in_circles():
    """Not even when functions are called; a package's own imports of its modules aside."""
    known = {name_of(path): path for path in kernel_modules()}
    edges = {
        name: {imported[:n] for imported in imports(path) for n in (2, 3) if imported[:n] in known} - {name}
        for name, path in known.items()
        if path.name != "__init__.py"
    }
    done, waiting = set(), []

    def visit(name):
        assert name not in waiting, " -> ".join(".".join(n[1:]) for n in (*waiting[waiting.index(name) :], name))
        if name not in done and name in edges:
            waiting.append(name)
            for other in sorted(edges[name]):
                visit(other)
            done.add(waiting.pop())

    for name in edges:
        visit(name)


def test_every_module_of_the_kernel_says_what_it_is():
    for path in kernel_modules():
        doc = ast.get_docstring(ast.parse(path.read_text()))
        assert doc and len(doc.splitlines()[0]) > 20, path


def test_import_finder(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "ampi")
    path = tmp_path / "ampi" / "kernel" / "emit.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import numpy, ampi.tape\nfrom ampi import memory\nfrom ..mpi.comm import X\nfrom . import ir\n"
        "def f():\n    from ampi.run import main\n    from .. import errors\n"
    )
    assert {name[0] for name in imports(path)} == {"tape", "memory", "mpi", "kernel", "run", "errors"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def private_names(path):
    """The underscore names that a module makes: its own, those of its classes, and those of ``self``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_of_self(node):
            found.add(node.attr)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            found |= {part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
    return set(filter(is_private, found))


def is_of_self(node):
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def names_of_others(path, own, all_names):
    """Where a module imports another one's underscore name, or looks at such an attribute."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "ampi"):
            yield from (f"{path.name}:{node.lineno} {alias.name}" for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Attribute) and node.attr in all_names - own and not is_of_self(node):
            yield f"{path.name}:{node.lineno} {ast.unparse(node)}"


@pytest.mark.parametrize("package", ["mpi", "tape"])
def test_modules_keep_to_the_public_names_of_others(package):
    all_names = set().union(*map(private_names, modules()))
    paths = sorted((PACKAGE / package).rglob("*.py"))
    assert not [found for path in paths for found in names_of_others(path, private_names(path), all_names)]


def test_finder_of_private_names(tmp_path):
    path = tmp_path / "one.py"
    path.write_text(
        "from .two import _a, b\nfrom sys import _getframe\n_own = 1\n"
        "class C:\n    __slots__ = ('_slot',)\n\n    def f(self, x):\n        x._slot, x._other, x._b, self._other\n"
    )
    own = private_names(path)
    assert own == {"_own", "_slot"}
    assert list(names_of_others(path, own, own | {"_other", "_a"})) == ["one.py:1 _a", "one.py:8 x._other"]


def files():
    return sorted(
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and path.suffix in TEXTS
        and not IGNORED.intersection(path.relative_to(ROOT).parts)
        and not any(part.startswith(".venv") or part.endswith("_cache") for part in path.relative_to(ROOT).parts)
    )


def test_no_file_names_a_place_on_one_machine():
    places = re.compile("|".join(rf"(?<![\w.$}}~-])/{place}/\w" for place in ("home", "root", "work", "Users", "tmp")))
    named = []
    for path in files():
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1):
            if places.search(line):
                named.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not named, "\n".join(named)


def test_examples_use_public_names_only():
    for path in sorted((ROOT / "examples").rglob("*.py")):
        source = ast.parse(path.read_text(), str(path))
        for node in ast.walk(source):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ampi":
                assert not any(alias.name.startswith("_") for alias in node.names), path
                assert node.module in ("ampi", "ampi.numpy", "ampi.testing", "ampi.reports"), f"{path}: {node.module}"


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them by their names."""
    names = [path.name for path in pathlib.Path(__file__).parent.rglob("test_*.py")]
    assert len(set(names)) == len(names), sorted(name for name in set(names) if names.count(name) > 1)


def test_contributing_lists_the_passes():
    from ampi.kernel.pipeline import listing

    assert textwrap.indent(listing(), "    ") in (ROOT / "CONTRIBUTING.rst").read_text(encoding="utf-8")
