"""``help()`` of every public name has an example, and it runs."""

import doctest
import importlib.util
import inspect
import pathlib
import types

import numpy
import pytest

import ampi
import ampi.numpy
import ampi.scaling

OTHERS = {"prange": "Numba's own", "COMM_SELF": "an Intracomm", "COMM_WORLD": "an Intracomm"}
for module, name in (("jax", "from_jax"), ("torch", "from_torch")):
    if importlib.util.find_spec(module) is None:
        OTHERS[name] = f"its example needs {module}"
"""Names that have no help of their own."""
MODULES = ("rules", "testing", "scaling")
"""Public modules, all of whose names are to have examples; ampi.numpy has NumPy's, errors are names of ampi's own."""
STUDY = """\
[study]
script = "program.py"
ranks = [1, 2]
repetitions = 2
warmup = 0
[runs.a]
primal = {from = "wall"}
"""
"""What examples of studies read."""


def public():
    """The public names and their objects."""
    for name in ampi.__all__:
        found = getattr(ampi, name)
        if not isinstance(found, types.ModuleType) and name not in OTHERS:
            yield name, found
    for name in MODULES:
        found = getattr(ampi, name)
        for inner in found.__all__:
            yield f"{name}.{inner}", getattr(found, inner)


@pytest.mark.parametrize("name, found", list(public()), ids=lambda value: value if isinstance(value, str) else "")
def test_help_has_an_example_that_runs(name, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "program.py").write_text("")
    text = inspect.getdoc(found) or ""
    before = {"ampi": ampi, "numpy": numpy, "np": ampi.numpy, "pathlib": pathlib}
    test = doctest.DocTestParser().get_doctest(text, before, name, None, 0)
    examples = [example for example in test.examples if not example.options.get(doctest.SKIP)]
    assert "\nExamples\n--------\n" in text and examples, f"help(ampi.{name}) has no example that runs"
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert not runner.run(test, out=said.append).failed, "".join(said)
