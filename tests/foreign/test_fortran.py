"""The worked example of the manual: a solver in Fortran, compiled by f2py, with its adjoint."""

import glob
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import textwrap

import numpy
import pytest

import ampi
import ampi.numpy as np

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "derivatives.rst"

pytestmark = pytest.mark.skipif(
    shutil.which("gfortran") is None or shutil.which("gcc") is None, reason="no compilers of Fortran and C"
)


def block(kind, first):
    """The block of a kind on the page that begins with a line."""
    for part in PAGE.read_text(encoding="utf-8").split(f".. code-block:: {kind}")[1:]:
        lines = [line for line in part.splitlines()[1:] if not line.strip().startswith(":caption:")]
        end = next((k for k, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
        text = textwrap.dedent("\n".join(lines[:end])).strip()
        if text.startswith(first):
            return text
    raise AssertionError(f"{PAGE} has no block that begins with {first!r}")


@pytest.fixture(scope="module")
def tri(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fortran")
    (folder / "tri.f90").write_text(block("fortran", "subroutine solve"))
    env = {name: value for name, value in os.environ.items() if "PMI" not in name}
    run = lambda *command: subprocess.run(command, cwd=folder, env=env, capture_output=True, check=True)
    run(sys.executable, "-m", "numpy.f2py", "-m", "tri", "tri.f90")
    src = os.path.join(os.path.dirname(numpy.f2py.__file__), "src")
    include = [f"-I{numpy.get_include()}", f"-I{sysconfig.get_paths()['include']}", f"-I{src}"]
    wrappers = [*glob.glob(str(folder / "*module.c")), f"{src}/fortranobject.c"]
    run("gcc", "-c", "-fPIC", "-w", "-O1", *include, *wrappers)
    target = folder / f"tri{sysconfig.get_config_var('EXT_SUFFIX')}"
    objects = [os.path.basename(path).replace(".c", ".o") for path in wrappers]
    run("gfortran", "-shared", "-fPIC", "-O1", "tri.f90", *objects, "-o", str(target))
    spec = importlib.util.spec_from_file_location("tri", target)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["tri"] = module
    yield module
    del sys.modules["tri"]


def test_the_worked_example(tri):
    x = numpy.linspace(0.1, 0.5, 5)
    given = x, 2.0 + x, 0.3 - x, x**2
    misfit = lambda l, d, u, b: np.sum(tri.solve(l, d, u, b) ** 2)
    with pytest.raises(ampi.ActivityError, match=r"tri\.solve is compiled code without a derivative rule"):
        ampi.grad(misfit)(*given)
    exec(block("python", "import tri"), {"ampi": ampi, "np": np, "numpy": numpy})
    l, d, u, b = given
    matrix = lambda l, d, u: numpy.diag(d) + numpy.diag(l[1:], -1) + numpy.diag(u[:-1], 1)
    assert numpy.allclose(tri.solve(*given), numpy.linalg.solve(matrix(l, d, u), b), rtol=1e-14)
    found = ampi.grad(misfit, argnums=(0, 1, 2, 3))(*given)
    for k, gradient in enumerate(found):
        for i in range(5):
            moved = [y.astype(complex) for y in given]
            moved[k][i] += 1e-30j
            expected = numpy.sum(numpy.linalg.solve(matrix(*moved[:3]), moved[3]) ** 2).imag / 1e-30
            assert gradient[i] == pytest.approx(expected, rel=1e-12, abs=1e-15)
    with pytest.raises(ampi.ActivityError, match=r"\(solve\) has no second derivative yet"):
        ampi.hvp(misfit, given, given)
