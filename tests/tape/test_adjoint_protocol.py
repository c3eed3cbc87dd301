"""The protocol of records' adjoints: stated once, with defaults, and followed by all classes of adjoints."""

import ast
import importlib
import pathlib

import numpy as np
import pytest

import ampi
from ampi.tape.records import Adjoint, BaseAdjoint, FunctionAdjoint

PACKAGE = pathlib.Path(ampi.__file__).parent
ATTRIBUTES = {name for name in vars(Adjoint) if not name.startswith("_")}


def classes_of_adjoints():
    """The modules and names of the classes of ampi that are called with a sweep."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        for cls in ast.walk(ast.parse(text)) if "__call__" in text and "sweep" in text else ():
            if isinstance(cls, ast.ClassDef):
                calls = [f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name == "__call__"]
                if any(f.args.args[1].arg == "sweep" for f in calls if len(f.args.args) == 2):
                    yield ".".join(("ampi", *path.relative_to(PACKAGE).with_suffix("").parts)), cls.name


def test_each_attribute_has_a_default():
    assert vars(BaseAdjoint).keys() >= ATTRIBUTES
    assert {name for name in vars(BaseAdjoint) if not name.startswith("_")} == ATTRIBUTES


NOT_OF_RECORDS = ("Adjoint", "Communication", "Traces")  # the protocol, and callbacks at the beginning of sweeps


@pytest.mark.parametrize(("module", "name"), list(classes_of_adjoints()))
def test_adjoints_inherit_the_defaults(module, name):
    cls = getattr(importlib.import_module(module), name)
    assert issubclass(cls, BaseAdjoint) or name in NOT_OF_RECORDS, "derive it from BaseAdjoint"


def test_no_attribute_is_read_by_getattr():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in ("getattr", "hasattr")
            ):
                attribute = call.args[1]
                if isinstance(attribute, ast.Constant) and attribute.value in ATTRIBUTES - {"name"}:
                    found.append(f"{path.relative_to(PACKAGE)}:{call.lineno} {ast.unparse(call)}")
    assert not found


def test_adjoints_on_a_tape_follow_the_protocol():
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(4.0))
        y = np.sin(x)
        y[1:3] = x[:2]
        for _ in range(3):
            y[0] = y[1] * y[2]
        total = np.sum(y * np.concatenate([x[2:], x[:2]]))
        ampi.COMM_SELF.Sendrecv(x * x, 0, 0, y, 0, 0)
    assert len(tape) > 6
    for record in tape.records:
        if record.adjoint is not None:
            assert isinstance(record.adjoint, BaseAdjoint)
            assert all(hasattr(record.adjoint, name) for name in ATTRIBUTES)
    assert tape.gradient(total, x).shape == (4,)


def test_functions_become_adjoints():
    seen = []
    with ampi.Tape() as tape:
        x = tape.watch(1.0)
        tape.append(lambda sweep: seen.append(type(sweep).__name__))
        y = x * x
    assert type(tape.records[1].adjoint) is FunctionAdjoint
    tape.gradient(y, x)
    tape.gradient(y, x, seeds=np.ones(2))
    assert seen == ["Sweep", "VectorLane", "VectorLane"]
    with pytest.raises(ampi.ActivityError, match="lambda"):
        tape.tangent(y, x, 1.0)
