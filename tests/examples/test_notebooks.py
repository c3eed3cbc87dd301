"""The notebooks print what is stored in them: one rank in the kernel itself, and two engines of ipyparallel."""

import os
import pathlib

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "notebooks"


def printed(cell):
    """What a cell printed, without bars; engines print in any order."""
    texts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.get("outputs", ())]
    lines = "\n".join(texts).replace("\r", "\n").splitlines()
    return sorted(line for line in lines if line.strip() and "%|" not in line)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["one_rank", "several_ranks"])
def test_notebook(name, monkeypatch):
    if name == "several_ranks":
        pytest.importorskip("ipyparallel")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FOLDER.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    stored = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    run = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    nbclient.NotebookClient(run, timeout=300).execute()
    for cell, expected in zip(run.cells, stored.cells, strict=True):
        assert printed(cell) == printed(expected), cell.source
