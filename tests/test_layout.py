"""Rooms of the package import only what they may; no files import in circles; nothing is tied to one machine."""

import ast
import functools
import graphlib
import importlib.util
import pathlib
import pkgutil
import re
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "ampi"
# What each room of a package may import of the others, lazy imports included; "" stands for the modules in none.
FOUNDATIONS = {"errors", "base", "memory", "tape"}
ARRAYS = {"interception", "arrays", "rules", "numpy", "foreign"}
ROOMS = {
    "": {
        "errors": set(),
        "base": {"errors"},
        "memory": {"errors", "base"},
        "tape": {"errors", "base", "memory"},
        "interception": FOUNDATIONS,
        "partials": set(),
        "arrays": FOUNDATIONS | {"interception", "partials"},
        "rules": FOUNDATIONS | {"interception", "arrays"},
        "numpy": FOUNDATIONS | {"arrays", "rules"},
        "derivatives": FOUNDATIONS | {"arrays"},
        "kernel": FOUNDATIONS | {"arrays", "numpy", "derivatives", "partials"},
        "foreign": FOUNDATIONS | ARRAYS | {"kernel", "partials"},
        "device": FOUNDATIONS | {"kernel", "arrays", "rules", "interception"},
        "cuda": FOUNDATIONS | {"kernel", "device"},
        "mpi": FOUNDATIONS | ARRAYS | {"kernel", "device"},
        "futures": FOUNDATIONS | ARRAYS | {"kernel", "mpi"},
        "checkpoint": FOUNDATIONS | ARRAYS | {"kernel", "mpi", "device"},
        "testing": FOUNDATIONS | {"derivatives"},
        "reports": FOUNDATIONS | {"interception", "kernel", "mpi", "checkpoint"},
        "programs": FOUNDATIONS | ARRAYS | {"kernel", "mpi", "checkpoint", "derivatives", "reports"},
        "coverage": FOUNDATIONS | {"mpi"},
        "run": FOUNDATIONS | {"programs", "mpi"},
        "check": FOUNDATIONS | {"programs", "run", "mpi"},
        "scaling": FOUNDATIONS | {"mpi"},
        "self_test": FOUNDATIONS | {"kernel", "numpy", "device", "mpi"},
        "report_command": FOUNDATIONS | {"run"},
        "__main__": FOUNDATIONS | {"self_test", "run", "check", "report_command", "scaling", "kernel", "coverage"},
    },
    "mpi": {
        "base": set(),
        "memory": {"base"},
        "waiting": {"base"},
        "log": {"base", "memory", "waiting"},
        "messages": {"base", "memory", "waiting", "log"},
        "collectives": {"base", "memory", "waiting", "log", "messages"},
        "windows": {"base", "memory", "waiting", "log", "messages", "collectives"},
        "": {"base", "memory", "waiting", "log", "messages", "collectives", "windows"},
    },
    "kernel": {
        "runtime": set(),
        "ir": {"runtime"},
        "normalise": {"ir"},
        "frontend": {"ir", "normalise", "runtime"},
        "analysis": {"ir"},
        "differentiate": {"ir", "analysis"},
        "optimise": {"ir", "analysis"},
        "codegen": {"ir"},
        "cuda": {"", "runtime", "ir", "normalise", "frontend", "codegen"},
        "": {"runtime", "ir", "normalise", "frontend", "analysis", "differentiate", "optimise", "codegen", "cuda"},
    },
    "kernel.frontend": {
        "base": set(),
        "scipy": set(),
        "arrays": {"base"},
        "lists": {"base"},
        "language": {"base", "scipy", "arrays", "lists"},
        "cuda": {"base", "arrays", "language"},
        "written": {"base", "arrays", "language"},
        "random": {"base", "arrays", "language", "written"},
        "recursion": {"base", "arrays", "lists", "language"},
        "": {"base", "arrays", "cuda", "language", "random", "recursion", "written"},
    },
}
CIRCLES: set[tuple[str, str]] = set()
"""Imports that close a circle of files, which are to be cut; no other may."""
TEXTS = {".py", ".rst", ".cfg", ".toml", ".sh", ".in", ".md", ".txt", ""}
IGNORED = {".git", ".hypothesis", "build", "__pycache__"}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(), str(path))


def name_of(path):
    """``('kernel', 'parse')`` for ampi/kernel/parse.py, ``('kernel',)`` for ampi/kernel/__init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


@functools.cache
def imports(path):
    """The modules of ampi that a file imports anywhere in it while it runs, as names below ``ampi``."""
    return list(find_imports(path))


def find_imports(path):
    for node in while_running(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from below_ampi(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = package_of(path, node.level) if node.level else []
            module = [*start, *(node.module or "").split(".")] if node.module else start
            for alias in node.names:
                yield from below_ampi([*module, alias.name])


def while_running(node):
    """The statements of a syntax tree but for those that are there for type checkers alone."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            waiting += [
                n for n in ast.iter_child_nodes(node) if isinstance(n, (ast.stmt, ast.ExceptHandler, ast.match_case))
            ]


def package_of(path, level):
    """The package that `level` leading dots mean in this file."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return list(parts[: len(parts) - level])


def below_ampi(parts):
    if parts[0] == "ampi" and len(parts) > 1:
        yield tuple(parts[1:])


def test_rooms_import_what_they_may():
    wrong = [line for path in modules() for line in wrong_imports(path)]
    assert not wrong, "\n".join(wrong)


def wrong_imports(path):
    for package, rooms in ROOMS.items():
        inside = package.split(".") if package else []
        own = room_of(name_of(path), inside)
        if own is None or len(name_of(path)) == len(inside):
            continue
        if own not in rooms:
            yield f"say in {__name__}.ROOMS[{package!r}] what {own} may import"
            continue
        for imported in imports(path):
            room = room_of(imported, inside)
            if not package and room not in rooms:
                yield f"{path.name} imports ampi.{room} from the top: import its home module"
            elif room not in (None, own) and room not in rooms[own]:
                yield f"{path.name} in '{own}' imports ampi.{'.'.join(imported)}"


@pytest.mark.parametrize("package", ["", "mpi"])
def test_rooms_import_in_one_direction(package):
    rooms = {room: allowed - {room} for room, allowed in ROOMS[package].items()}
    graphlib.TopologicalSorter(rooms).prepare()  # raises an error with the circle


def room_of(name, package):
    """``'ir'`` for ``('kernel', 'ir', 'nodes', 'Var')`` in ``['kernel']``; ``''`` for a module that stands in no room.

    None for what is not in the package.
    """
    package = list(package)
    if list(name[: len(package)]) != package:
        return None
    if not package:
        return name[0]
    inside = name[len(package) :]
    return inside[0] if inside and (PACKAGE.joinpath(*package) / inside[0]).is_dir() else ""


def test_files_do_not_import_one_another_in_circles():
    """Not even when functions are called; a package's own imports of its modules aside."""
    known = {name_of(path): path for path in modules()}
    packages = {name for name, path in known.items() if path.name == "__init__.py"}
    graph = {
        name: {home for imported in imports(path) if (home := home_of(imported, known)) not in (name, None)}
        for name, path in known.items()
    }
    for name, imported in graph.items():
        if name in packages:
            imported -= {other for other in imported if other[: len(name)] == name}
        imported -= {tuple(b.split(".")) for a, b in CIRCLES if tuple(a.split(".")) == name}
    graphlib.TopologicalSorter(graph).prepare()  # which raises an error with the circle


def home_of(imported, known):
    """The module in which an imported name is looked up."""
    return next((imported[:n] for n in range(len(imported), 0, -1) if imported[:n] in known), None)


def test_dotted_names_in_strings_exist():
    """Code that looks at frames and tables of modules compares their names, which move with the files."""
    wrong = []
    for path in modules():
        for node in ast.walk(parsed(path)):
            name = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if re.fullmatch(r"ampi(\.[A-Za-z_]\w*)+\.?", name) and not exists(name.rstrip(".")):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
    assert not wrong


def exists(name):
    """True if a dotted name is a module, or an attribute of one."""
    path = ROOT.joinpath(*name.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True


def test_every_module_has_a_docstring():
    for path in modules():
        doc = ast.get_docstring(ast.parse(path.read_text()))
        assert doc and len(doc.splitlines()[0]) > 20, path


def test_no_file_is_long():
    files = [path for folder in ("ampi", "examples", "scripts", "tests") for path in (ROOT / folder).rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert not {path: length for path, length in lengths.items() if length > 600}


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
    for node in ast.walk(parsed(path)):
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
    for node in ast.walk(parsed(path)):
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
        source = parsed(path)
        for node in ast.walk(source):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ampi":
                assert not any(alias.name.startswith("_") for alias in node.names), path
                assert node.module in ("ampi", "ampi.numpy", "ampi.futures", "ampi.testing", "ampi.reports"), (
                    f"{path}: {node.module}"
                )


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them by their names."""
    names = [path.name for path in pathlib.Path(__file__).parent.rglob("test_*.py")]
    assert len(set(names)) == len(names), sorted(name for name in set(names) if names.count(name) > 1)


@pytest.fixture(scope="module")
def architecture():
    """The script that writes the lists in docs/architecture.rst, and the text of that page."""
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "scripts" / "architecture.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script, script.PAGE.read_text(encoding="utf-8")


def test_map_lists_every_module(architecture):
    """Names only: what is said of a module may be older than its docstring."""
    script, page = architecture
    begin, end = script.section(page, "modules")
    expected = script.modules_on(script.module_map())
    assert script.modules_on(page[begin:end]) == expected, "run python scripts/architecture.py"
    assert len(expected) == len(modules()) + 1


def test_architecture_lists_the_passes(architecture):
    from ampi.kernel.pipeline import listing

    assert textwrap.indent(listing(), "    ") in architecture[1], "run python scripts/architecture.py"
