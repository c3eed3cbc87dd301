"""``help()`` of every public name has an example, and it runs."""

import doctest
import inspect
import types

import numpy
import pytest

import ampi
import ampi.numpy

OTHERS = {"prange": "Numba's own", "COMM_SELF": "an Intracomm", "COMM_WORLD": "an Intracomm"}
"""Names that have no help of their own."""
MODULES = {"rules": ("define",), "testing": ("dot_test", "jvp_test", "symmetry_test", "taylor_test")}
"""Of public modules the functions that are to have examples; ampi.numpy has NumPy's."""


def public():
    """Names and objects."""
    for name in ampi.__all__:
        found = getattr(ampi, name)
        if not isinstance(found, types.ModuleType):
            if name not in OTHERS:
                yield name, found
            continue
        for inner in MODULES.get(name, ()):
            yield f"{name}.{inner}", getattr(found, inner)


@pytest.mark.parametrize("name, found", list(public()), ids=lambda value: value if isinstance(value, str) else "")
def test_help_has_an_example_that_runs(name, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(found) or ""
    before = {"ampi": ampi, "numpy": numpy, "np": ampi.numpy}
    test = doctest.DocTestParser().get_doctest(text, before, name, None, 0)
    examples = [example for example in test.examples if not example.options.get(doctest.SKIP)]
    assert "\nExamples\n--------\n" in text and examples, f"help(ampi.{name}) has no example that runs"
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert not runner.run(test, out=said.append).failed, "".join(said)
