"""Fill in the addresses of the project: ``python scripts/home.py HOME [--docs URL] [--source URL] [--issues URL]``.

``setup.cfg`` has the addresses of the project, its documentation, source and issues. This script changes them there and
in the files that repeat them: README, CITATION.cff and the conda recipe. Without arguments it prints them.
"""

from __future__ import annotations

import argparse
import configparser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = ("setup.cfg", "README.rst", "CITATION.cff", "packaging/conda/recipe.yaml")
NAMES = {"docs": "Documentation", "source": "Source", "issues": "Issues"}


def addresses(root: Path = ROOT) -> dict[str, str]:
    """Return the addresses in setup.cfg: ``home``, ``docs``, ``source`` and ``issues``."""
    settings = configparser.ConfigParser()
    settings.read(root / "setup.cfg", encoding="utf-8")
    metadata = settings["metadata"]
    urls = dict(line.split(" = ") for line in metadata["project_urls"].strip().splitlines())
    return {"home": metadata["url"], **{key: urls[name] for key, name in NAMES.items()}}


def change(new: dict[str, str], root: Path = ROOT) -> None:
    """Replace the addresses in all files."""
    old = addresses(root)
    marks = {key: f"\0{key}\0" for key in old}
    for name in FILES:
        path = root / name
        text = path.read_text(encoding="utf-8")
        for key in sorted(old, key=lambda key: -len(old[key])):  # the home is the beginning of others
            text = text.replace(old[key], marks[key])
        for key, mark in marks.items():
            text = text.replace(mark, new[key])
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("home", nargs="?", help="the address of the project, for example https://github.com/OWNER/ampi")
    parser.add_argument("--docs", help="the address of the documentation (HOME/docs)")
    parser.add_argument("--source", help="the address of the repository (HOME)")
    parser.add_argument("--issues", help="the address of the issues (HOME/issues)")
    options = parser.parse_args()
    if options.home:
        home = options.home.rstrip("/")
        given = {"docs": options.docs or f"{home}/docs", "source": options.source or home}
        change({"home": home, **given, "issues": options.issues or f"{home}/issues"})
    for key, url in addresses().items():
        print(f"{key:<7} {url}")


if __name__ == "__main__":
    main()
