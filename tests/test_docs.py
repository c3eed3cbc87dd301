"""Every code block of README and documentation runs and prints what the page shows; tables are complete."""

import importlib
import inspect
import os
import pathlib
import pydoc
import re
import shlex
import shutil
import sys

import pytest
from documentation import PAGES, RANKS, ROOT, commands, files, fits, program, quoted

import ampi
from ampi import coverage

DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.rst"))


def shown_commands():
    """The commands of all pages, each once; those of tutorials run together in `test_tutorials`."""
    seen = set()
    for page in PAGES:
        texts = tuple(sorted(files(page).items()))
        for command in commands(page):
            if (command.text, texts) in seen:
                continue
            seen.add((command.text, texts))
            slow = page in TUTORIALS and command.arguments[0] != "-m"
            yield pytest.param(command, marks=pytest.mark.slow if slow else ())


ALL = """\
import runpy, sys, traceback
from mpi4py import MPI
for page in sys.argv[1:]:
    try:
        runpy.run_path(page, run_name="page")
    except BaseException:
        traceback.print_exc()
        print(f"in {page}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)
print("done")
"""
PICTURE = re.compile(r'savefig\("(\w+\.svg)"\)')
# All programs of tutorials in one process of each rank, which has a folder of its own for what they draw.
LESSONS = """\
import os, pathlib, runpy, sys, traceback
import matplotlib
from mpi4py import MPI
matplotlib.use("agg")
for name in sys.argv[1:]:
    path = pathlib.Path(name)
    mine = path.parent / str(MPI.COMM_WORLD.rank)
    mine.mkdir(exist_ok=True)
    os.chdir(mine)
    sys.path.insert(0, str(path.parent))
    try:
        runpy.run_path(name, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        print(f"in {name}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)
    sys.path.remove(str(path.parent))
    for module in [key for key, found in sys.modules.items() if getattr(found, "__file__", None) is not None]:
        if pathlib.Path(sys.modules[module].__file__).parent == path.parent:
            del sys.modules[module]
print("done")
"""


def fails(command):
    """True if a command is shown with an error, or with places that `ampi.check` has found."""
    return any(re.search(r"Error|FAIL|Traceback|^[1-9]\d* places? in", line) for line in command.expected)


def writers_of_what_it_reads(command):
    """The commands of its page that write files (``--output``) which a command's program reads."""
    text = files(command.page).get(command.arguments[0], "")
    for other in commands(command.page):
        if "--output" in other.arguments and other.arguments[other.arguments.index("--output") + 1] in text:
            yield other


@pytest.fixture
def outside(monkeypatch):
    """What a program has that is started anywhere: this checkout, and no settings of the tests'."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.delenv("AMPI_VERIFY", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")


@pytest.mark.parametrize("command", list(shown_commands()), ids=str)
def test_command(command, mpiexec, tmp_path, monkeypatch, outside):
    for name, text in files(command.page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, value in command.settings.items():
        monkeypatch.setenv(name, value)
    for other in writers_of_what_it_reads(command):
        assert mpiexec(other.ranks, *other.arguments).returncode == 0
    done = mpiexec(command.ranks, *command.arguments)
    printed = (done.stdout + done.stderr).splitlines()
    assert fits(printed, command.expected), f"{command}\n{done.stdout}\n{done.stderr}"
    assert fails(command) or done.returncode == 0, done.stderr


def test_blocks(mpiexec, tmp_path, monkeypatch, outside):
    """All together, since starting a program takes longer than what they do."""
    paths = []
    for page in PAGES:
        if text := program(page):
            path = tmp_path / str(page.relative_to(ROOT)).replace("/", "_").replace(".rst", ".py")
            path.write_text(text, encoding="utf-8")
            paths.append(path)
    shutil.copytree(DOCS / "programs", tmp_path / "programs")
    monkeypatch.chdir(tmp_path)
    done = mpiexec(RANKS, "-c", ALL, *paths)
    assert done.returncode == 0 and done.stdout.count("done") == RANKS, done.stderr[-8000:]


@pytest.mark.parametrize("ranks", [1, RANKS])
def test_tutorials(ranks, mpiexec, tmp_path, monkeypatch, outside):
    """The programs that tutorials start by their names, and the pictures that they draw and the pages show."""
    started, drawn = [], set()
    for page in TUTORIALS:
        folder, texts = tmp_path / page.stem, files(page)
        folder.mkdir()
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        shown = re.findall(r"figure:: \.\./pictures/tutorials/(\S+)", page.read_text(encoding="utf-8"))
        assert shown and sorted(shown) == sorted(PICTURE.findall("".join(texts.values()))), page
        assert all((DOCS / "pictures" / "tutorials" / name).exists() for name in shown), page
        names = {c.arguments[0] for c in commands(page) if c.ranks == ranks and not fails(c)} & set(texts)
        for name in sorted(names):
            if "channel.py" not in texts[name] and ".h5" not in texts[name]:  # these need files of other commands
                started.append(str(folder / name))
                drawn.update(PICTURE.findall(texts[name]))
    done = mpiexec(ranks, "-W", "ignore", "-c", LESSONS, *started)
    assert done.returncode == 0 and done.stdout.count("done\n") == ranks, done.stderr[-8000:]
    assert drawn and drawn <= {path.name for path in tmp_path.glob("*/*/*.svg")}


@pytest.fixture
def notebooks(monkeypatch):
    """The module that writes notebooks of tutorials."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("notebooks")


def test_notebooks_of_tutorials_have_their_texts(notebooks):
    for name, page in notebooks.PAGES.items():
        stored = (notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
        assert stored == notebooks.written(DOCS / "tutorials" / f"{page}.rst"), "run: python docs/notebooks.py"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["gradient", "kernels", "time_loops"])
def test_cells_of_tutorials_run_in_their_order(page, notebooks, mpiexec, tmp_path, monkeypatch, outside):
    cells = notebooks.notebook(DOCS / "tutorials" / f"{page}.rst")["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n\n".join(code), encoding="utf-8")
    monkeypatch.setenv("MPLBACKEND", "agg")
    done = mpiexec(1, tmp_path / "cells.py")
    assert done.returncode == 0, done.stderr


def test_all_errors_are_on_their_page():
    text = (DOCS / "errors.rst").read_text(encoding="utf-8")
    for name, found in vars(ampi.errors).items():
        if isinstance(found, type) and issubclass(found, Exception) and found is not ampi.AmpiError:
            assert re.search(rf"^``{name}``$", text, re.M), name


def test_study_files_can_be_read(tmp_path):
    """The blocks of a study file on its page, together."""
    from ampi import scaling

    blocks = quoted(DOCS / "guides" / "scaling.rst", "toml")
    assert len(blocks) == 3
    (tmp_path / "study.toml").write_text("\n".join(blocks))
    (tmp_path / "program.py").write_text("")
    study = scaling.read_study(tmp_path / "study.toml")
    assert study.ranks == (1, 2, 4, 8) and study.job.system == "slurm" and study.network is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_other_blocks_are_commands_that_are_known_cells_or_output(page, mpiexec, tmp_path, monkeypatch, outside):
    from ampi.scaling.command import parser

    monkeypatch.chdir(tmp_path)
    for text in quoted(page, "text"):
        if text.startswith("mpiexec"):
            for line in text.splitlines():
                words = shlex.split(line.partition(" > ")[0])
                assert words[-1] and words[words.index("python") : words.index("python") + 3] == MODULE
                parser().parse_args(words[words.index("ampi.scaling") + 1 :])
        elif text.startswith("%%px"):
            done = mpiexec(RANKS, "-c", text.partition("\n")[2])
            assert done.returncode == 0, done.stderr
        elif text.startswith("import"):
            compile(text, str(page), "exec")  # runs in a notebook: tests/examples/test_notebooks.py
        else:
            assert text.startswith("Exact on 8 ranks and more"), text  # tests/scaling/test_scaling_model.py


MODULE = ["python", "-m", "ampi.scaling"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_program_with_a_name_is_run(page):
    run = " ".join(command.text for command in commands(page))
    text = "".join(files(page).values())
    for name in files(page):
        module = name.removesuffix(".py")
        assert re.search(rf"\b{re.escape(name)}\b", run) or re.search(rf"\bfrom {module} import\b", text), name


def test_all_operations_have_a_derivation():
    """Each family of MPI operations is on the page of adjoints once."""
    text = (DOCS / "adjoints.rst").read_text(encoding="utf-8")
    shown = [name.strip() for names in re.findall(r"mpi-operations:: (.*)", text) for name in names.split(";")]
    assert sorted(shown) == sorted(name for name, operations in coverage.families() if operations)


def test_tables_from_the_code():
    """What the extension of Sphinx writes, without Sphinx."""
    sys.path.insert(0, str(DOCS))
    try:
        import tables
    finally:
        sys.path.remove(str(DOCS))
    from ampi.kernel.pipeline import PASSES
    from ampi.mpi.base.rules import TABLE

    named = [name for name, _ in coverage.families()]
    assert {o.name for name in named for o in tables.operations_of(name)} == {o.name for o in TABLE.values()}
    assert "``[I]bcast[_init]``" in tables.operations_text("collective")
    with pytest.raises(ValueError, match="no family 'nobody'"):
        tables.operations_of("nobody")
    text = tables.passes_text()
    assert [text.count(f"\n``{step.name}``\n") for step in PASSES] == [
        sum(other.name == step.name for other in PASSES) for step in PASSES
    ]
    kernel, adjoint = tables.kernel_and_adjoint(DOCS / "programs" / "logistic.py", "sines", "float64, int64", None)
    assert "math.sin(x)" in kernel and "math.cos(x_saved[" in adjoint and adjoint.count("def ") == 1


def test_all_public_names_are_in_the_reference():
    text = (DOCS / "api.rst").read_text(encoding="utf-8")
    for name in ampi.__all__:
        assert re.search(rf"\bampi\.{name}\b", text), f"docs/api.rst does not have ampi.{name}"


def test_attributes_are_described_one_by_one():
    """Sphinx shows ``a, b : float`` of a class as ``b (a,)``."""
    names = re.findall(r"^\.\. autoclass:: ([\w.]+)", (DOCS / "api.rst").read_text(encoding="utf-8"), re.M)
    classes = [pydoc.locate(name) for name in names] + [getattr(ampi.testing, name) for name in ampi.testing.__all__]
    texts = [inspect.getdoc(found) or "" for found in classes]
    sections = [text.partition("\nAttributes\n----------\n")[2].partition("\n\n")[0] for text in texts]
    assert sum(map(bool, sections)) > 5
    assert not re.findall(r"^\w+, .*:.*$", "\n".join(sections), re.M)


def test_all_environment_variables_are_in_the_table():
    sources = "".join(path.read_text(encoding="utf-8") for path in pathlib.Path(ampi.__file__).parent.rglob("*.py"))
    read = set(re.findall(r"(?:environ(?:\.get\(|\[)|setting\()\"(AMPI_\w+)\"", sources))
    text = (DOCS / "guides" / "clusters.rst").read_text(encoding="utf-8")
    assert read and read == set(re.findall(r"^   \* - ``(AMPI_\w+)", text, re.M))


def test_readme_has_absolute_links_to_pages_that_exist():
    """Also where it is shown by itself, as on PyPI."""
    text = (ROOT / "README.rst").read_text(encoding="utf-8")
    links = re.findall(r"<([^<>\s]+)>`__|:: (\S+\.png)|:target: (\S+)", text)
    links = [next(filter(None, found)) for found in links]
    assert links and all(link.startswith("https://") for link in links)
    pages = [link.partition("/docs/")[2] for link in links if link.endswith(".html")]
    assert pages and all((DOCS / name.replace(".html", ".rst")).exists() for name in pages), pages
    assert not re.search(r":doc:|:ref:|(?<!`)`[^`<]+ <(?!https)", text)
