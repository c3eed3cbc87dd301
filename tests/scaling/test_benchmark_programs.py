"""What ``scripts/bench versions`` runs exists."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def public_names(path):
    """The names in a module's ``__all__``, without importing it."""
    for statement in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == "__all__":
            return set(ast.literal_eval(statement.value))
    raise AssertionError(f"{path} has no __all__")


@pytest.mark.parametrize("program", ["lulesh/sedov", "minibude/docking"])
def test_the_unmodified_versions_have_all_that_the_programs_import(program):
    missing = public_names(f"examples/{program}/backend.py") - public_names("scripts/benchmarks/plain.py")
    assert not missing, "scripts/benchmarks/plain.py lacks these"
