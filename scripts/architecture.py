"""Rewrite the lists in ``docs/architecture.rst``: the map of all modules, and the passes of kernels.

The map has one line for each module, the first sentence of its docstring. ``python scripts/architecture.py`` writes it.
"""

import ast
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ampi"
PAGE = ROOT / "docs" / "architecture.rst"
SUMMARY = re.compile(r".*?\.(?=\s|$)", re.DOTALL)


def module_map() -> str:
    """All modules of ampi, package by package."""
    lines = []
    for folder in [PACKAGE, *sorted(path.parent for path in PACKAGE.rglob("*/__init__.py"))]:
        package = f"{folder.relative_to(PACKAGE.parent)}/"
        files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        lines += [f"``{package}``: {summary(folder / '__init__.py')}", ""]
        lines += [f"* ``{path.stem}``: {summary(path)}" for path in files]
        lines += [""] if files else []
    return "\n".join(lines)


def summary(path: pathlib.Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    paragraph = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    found = SUMMARY.match(paragraph)
    return found[0] if found else paragraph


def modules_on(text: str) -> list[str]:
    """The modules that a map lists, as ``ampi/tape/undo``, and its packages, as ``ampi/tape/``."""
    package, found = "", []
    for name in re.findall(r"^(?:\* )?``([\w/]+)``: ", text, re.MULTILINE):
        if name.endswith("/"):
            package = name
            found.append(name)
        else:
            found.append(package + name)
    return found


def section(text: str, name: str) -> tuple[int, int]:
    """The part of the page between the comments ``.. begin NAME`` and ``.. end NAME``."""
    start, end = f".. begin {name}\n\n", f".. end {name}\n"
    return text.index(start) + len(start), text.index(end)


def replaced(text: str, name: str, new: str) -> str:
    begin, end = section(text, name)
    return f"{text[:begin]}{new.rstrip()}\n\n{text[end:]}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from ampi.kernel.pipeline import listing

    page = PAGE.read_text(encoding="utf-8")
    page = replaced(page, "modules", module_map())
    page = replaced(page, "passes", "::\n\n" + textwrap.indent(listing(), "    "))
    PAGE.write_text(page, encoding="utf-8")
