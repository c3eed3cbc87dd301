"""The names that other programs are written against."""

import ast
import builtins
import inspect
import pydoc
import re

import numpy
import pytest

import ampi

NAMES = """
    COMM_WORLD COMM_SELF MPI Comm Intracomm Cartcomm Request Prequest Message Win File Op
    ndarray numpy kernel Tape grad value_and_grad vjp jvp linearize hvp hessian jacrev jacfwd value constant passive
    custom_vjp testing rules
    AmpiError ActivityError KernelError TapeError CommunicationError ActivityWarning CacheWarning PerformanceWarning
""".split()


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name):
    assert hasattr(ampi, name)


@pytest.mark.parametrize("name", NAMES)
def test_name_is_documented(name):
    assert inspect.getdoc(getattr(ampi, name)), f"ampi.{name} has no docstring"


def test_all_is_true():
    assert set(NAMES) <= set(ampi.__all__)
    assert all(hasattr(ampi, name) for name in ampi.__all__)


@pytest.mark.parametrize(
    "function, names",
    [
        ("grad", ["f", "argnums", "objective"]),
        ("value_and_grad", ["f", "argnums", "objective"]),
        ("vjp", ["f", "x"]),
        ("jvp", ["f", "primals", "tangents", "vectorised"]),
        ("jacrev", ["f", "x", "chunk", "memory", "pattern", "comm"]),
        ("jacfwd", ["f", "x", "chunk", "memory", "pattern", "comm"]),
        ("linearize", ["f", "x"]),
        ("hvp", ["f", "primals", "v", "objective"]),
        ("hessian", ["f", "x", "objective"]),
    ],
)
def test_signature(function, names):
    assert list(inspect.signature(getattr(ampi, function)).parameters)[: len(names)] == names


def test_ampi_numpy_uses_no_builtin_function_that_numpy_has_another_of():
    """`any` is NumPy's in there, once a program has asked for ``ampi.numpy.any``."""
    tree = ast.parse(inspect.getsource(ampi.numpy))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & set(dir(builtins)) & set(dir(numpy))


def test_tape_methods():
    assert list(inspect.signature(ampi.Tape.gradient).parameters)[1:5] == ["y", "x", "seed", "seeds"]
    assert list(inspect.signature(ampi.Tape.tangent).parameters)[1:5] == ["y", "x", "x_dot", "vectorised"]
    assert hasattr(ampi.Tape, "watch") and hasattr(ampi.Tape, "__enter__")


def test_help_of_a_tape_shows_what_users_call():
    text = pydoc.plain(pydoc.render_doc(ampi.Tape))
    shown = {line.split("(")[0].split()[-1] for line in text.splitlines() if re.match(r" \|  \w+\(", line)}
    assert {name for name in shown if not name.startswith("_")} - {"Tape"} == {"gradient", "tangent", "watch"}
    assert "floors above" not in text and "saved_bytes" in text
    with ampi.Tape() as tape:
        assert {"append", "records", "need"}.isdisjoint(dir(tape)) and {"watch", "outputs", "closed"} <= set(dir(tape))

    class Own(ampi.Tape):
        def mine(self):
            """A method of a user's class."""

    assert "mine" in dir(Own) and "mine" in dir(Own()) and "append" not in dir(Own())
