"""Draw the pictures of the manual anew: ``scripts/docs --pictures [NAME...]``.

Pictures of tutorials are drawn by the programs on their pages, those of examples by the programs in ``examples/``. They
are stored in ``docs/pictures/``, since some of the programs compile kernels for minutes. Names choose some of them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PICTURES = HERE / "pictures"
RANKS = 2
EXAMPLES = {
    "heat": ("heat/heat.py",),
    "one_sided": ("one_sided/one_sided.py",),
    "navier_stokes": ("navier_stokes/navier_stokes.py",),
    "wave": ("wave/wave.py",),
    "particles": ("particles/particles.py",),
    "master_worker": ("master_worker/master_worker.py",),
    "ensemble": ("ensemble/ensemble.py",),
    "sparse_cg": ("sparse_cg/sparse_cg.py",),
    "training": ("training/training.py",),
    "closure": ("training/closure.py",),
    "field": ("inversion/field.py",),
    "lbm": ("gpu/lbm.py",),
    "docking": ("gpu/docking.py",),
    "cross_sections": ("gpu/cross_sections.py",),
    "resonances": ("gpu/resonances.py", "--lookups", "1000"),
    "maxwell": ("gpu/maxwell.py",),
    "blast": ("gpu/blast.py", "-s", "12", "-i", "100", "--gradient", "origin", "--last", "20", "--output", "blast.h5"),
}
"""The program of each picture, with its arguments."""
OPTIONS = {"blast": "--plot"}
"""The option for the picture's file, where it is not ``--picture``."""
NEEDS = {"closure": "torch"}
"""Packages that the extra ``examples`` does not install: without them the stored picture stays."""
ALONE = frozenset({"lbm", "docking", "cross_sections", "resonances", "maxwell", "blast"})
"""Those that run on one rank."""
PALETTE = 128  # colours of a stored picture


def environment(style: Path) -> dict[str, str]:
    """The environment of the programs: this checkout, and the style of pictures in a folder."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MATPLOTLIBRC": str(style), "MPLBACKEND": "agg"}


def started(ranks: int, arguments: list[str], folder: Path, style: Path, settings: dict[str, str]) -> None:
    """Run Python on some ranks in a folder.

    Raises
    ------
    subprocess.CalledProcessError
        The program has failed.
    """
    launcher = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, *arguments]
    subprocess.run(command, cwd=folder, env={**environment(style), **settings}, check=True, stdout=subprocess.DEVNULL)


def draw_example(name: str) -> None:
    """Draw the picture of an example."""
    script, *arguments = EXAMPLES[name]
    target = PICTURES / "examples" / f"{name}.png"
    program = [str(ROOT / "examples" / script), *arguments, OPTIONS.get(name, "--picture"), str(target)]
    with tempfile.TemporaryDirectory() as folder:
        started(1 if name in ALONE else RANKS, ["-m", "ampi.run", *program], Path(folder), target.parent, {})
    compress(target)


def compress(path: Path) -> None:
    """Store a picture with few colours, which takes a third of the bytes."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGBA").quantize(PALETTE)
    small.save(path, optimize=True)


def draw_tutorial(page: Path) -> None:
    """Run the commands of a tutorial, and keep the pictures that its programs draw."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    import documentation

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in documentation.files(page).items():
            (folder / file).write_text(text, encoding="utf-8")
        for command in documentation.commands(page):
            started(command.ranks, command.arguments, folder, PICTURES, command.settings)
        for picture in folder.glob("*.svg"):
            shutil.copy(picture, PICTURES / "tutorials" / picture.name)


def main(names: list[str]) -> None:
    """Draw the pictures of these names, or all."""
    tutorials = {page.stem: page for page in sorted((HERE / "tutorials").glob("*.rst"))}
    for name in names or [*tutorials, *EXAMPLES]:
        print(name, flush=True)
        if name in tutorials:
            draw_tutorial(tutorials[name])
        elif importlib.util.find_spec(NEEDS.get(name, "sys")) is None:
            print(f"  is left as it is: it needs {NEEDS[name]}")
        else:
            draw_example(name)


if __name__ == "__main__":
    main(sys.argv[1:])
