"""The report of ``python -m ampi.coverage``: no part of mpi4py is missing, and the documentation agrees."""

import pathlib
import subprocess
import sys

import pytest
from patience import patience

import ampi
from ampi import coverage
from ampi.mpi.base.rules import TABLE, Operation, Treatment
from ampi.mpi.namespace import BASE

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "differentiated.rst"
METHODS = [(owner, name) for owner in coverage.CLASSES for name in coverage.methods_of(owner)]


@pytest.mark.parametrize(("owner", "name"), METHODS, ids=map(".".join, METHODS))
def test_every_method_of_mpi4py_is_accounted_for(owner, name):
    operation = TABLE.get(f"{owner}.{name}")
    if name in coverage.MOVES_NO_DATA.get(owner, ()):
        assert operation is None or operation.treatment is Treatment.PASSES, f"{owner}.{name} is said to move no data"
    else:
        assert operation, (
            f"say in ampi.mpi's table how {owner}.{name} is treated, or in ampi.coverage that it moves no data"
        )


def test_there_is_no_gap():
    """What is not differentiated is an error for a stated reason."""
    without = [name for name, operation in TABLE.items() if operation.treatment is Treatment.ERROR]
    assert [name for name in without if not TABLE[name].adjoint] == []
    assert coverage.unaccounted() == []


def test_a_new_method_is_named(monkeypatch):
    monkeypatch.delitem(TABLE, "Comm.Bcast")
    assert "Comm.Bcast" in coverage.unaccounted()
    assert coverage.report().splitlines()[-1].startswith("not accounted for: Comm.Bcast")


def test_report_has_every_operation_by_class(capsys):
    coverage.main([])
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("Comm")
    operations = [line.split()[0] for line in lines[start + 1 : lines.index("", start)]]
    assert operations == [operation.name for operation in TABLE.values() if operation.owner == "Comm"]
    assert any(line.split()[:2] == ["Bcast", "differentiated"] for line in lines)


def test_forms_of_an_operation_are_one_entry():
    names = ["Bcast", "Ibcast", "Bcast_init", "Reduce", "Ireduce_scatter_block"]
    operations = [Operation("Comm", name, Treatment.ERROR) for name in names]
    found = coverage.forms(operations, Treatment.ERROR)
    assert found == ["[I]bcast[_init]", "Reduce", "Ireduce_scatter_block"]
    assert coverage.forms(operations, Treatment.DIFFERENTIATED) == ["–"]


def test_page_has_the_table():
    text = PAGE.read_text(encoding="utf-8")
    assert coverage.put(text) == text, "bring it up to date with: python -m ampi.coverage --rst docs/differentiated.rst"


def test_table_is_put_between_its_marks(tmp_path):
    path = tmp_path / "page.rst"
    path.write_text("Before\n\n.. coverage begins\nold\n.. coverage ends\n\nAfter\n", encoding="utf-8")
    coverage.main(["--rst", str(path)])
    text = path.read_text(encoding="utf-8")
    assert text == f"Before\n\n.. coverage begins\n\n{coverage.rst()}\n.. coverage ends\n\nAfter\n"
    with pytest.raises(ValueError, match="coverage begins"):
        coverage.put("no marks")


def test_command():
    run = subprocess.run(
        [sys.executable, "-m", "ampi.coverage"], capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert "methods that move data" in run.stdout


@pytest.mark.parametrize("method", "Comm.Allreduce Comm.send Win.Put File.Write Datatype.Pack Message.recv".split())
def test_docstring_states_how_a_method_is_treated(method):
    """After mpi4py's text, which begins with the signature."""
    owner, name = method.split(".")
    text = getattr(getattr(ampi.MPI, owner), name).__doc__
    assert text.startswith(getattr(BASE[owner], name).__doc__)
    assert "Differentiated while a tape records" in text
    assert " ".join(TABLE[method].adjoint.split()) in " ".join(text.split())
