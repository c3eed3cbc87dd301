"""Notebooks of the tutorials on one rank: ``python docs/notebooks.py`` writes them to ``examples/notebooks/``."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "examples" / "notebooks"
PAGES = {"tutorial_101": "gradient", "tutorial_401": "kernels", "tutorial_501": "time_loops"}
"""The page of each notebook."""


def notebook(page: Path) -> dict:
    """Return the notebook of a tutorial: its texts, and its programs without imports from one another."""
    text = page.read_text(encoding="utf-8")
    programs = "|".join(re.findall(r":caption: (\w+)\.py", text))
    cells: list[dict] = []
    imported: set[str] = set()
    for block in blocks(text):
        if block.startswith(".. code-block:: python"):
            body = textwrap.dedent(block.partition("\n\n")[2])
            dropped = rf"from ({programs}) import|figure\.savefig"
            lines = [line for line in body.splitlines() if not re.match(dropped, line) and line not in imported]
            imported.update(line for line in lines if line.startswith(("import ", "from ")))
            cells.append(cell("code", "\n".join(lines).strip(), len(cells)))
        elif not block.startswith(".. ") and ":download:" not in block:
            shown = markdown(block)
            if cells and cells[-1]["cell_type"] == "markdown":
                cells[-1]["source"] = [*cells[-1]["source"][:-1], cells[-1]["source"][-1] + "\n", "\n", *source(shown)]
            else:
                cells.append(cell("markdown", shown, len(cells)))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def blocks(text: str) -> list[str]:
    """Return the paragraphs and directives of a page; a directive has its indented lines."""
    found: list[str] = []
    for part in re.split(r"\n\n+", text.strip("\n")):
        if found and part.startswith("   ") and found[-1].startswith(".. "):
            found[-1] += "\n\n" + part
        else:
            found.append(part)
    return found


def markdown(block: str) -> str:
    """Return a paragraph, a list or a title in Markdown."""
    lines = block.splitlines()
    if len(lines) == 3 and set(lines[0]) == {"="}:
        return f"# {lines[1]}"
    if len(lines) == 2 and set(lines[1]) == {"="}:
        return f"## {lines[0]}"
    block = re.sub(r":doc:`(?:\.\./)?(?:guides/|tutorials/)?(\w+)`", r"*\1*", block)
    return re.sub(r"``([^`]+)``", r"`\1`", block).replace("#. ", "1. ")


def source(text: str) -> list[str]:
    """Return lines as notebooks store them."""
    return text.splitlines(keepends=True)


def cell(kind: str, text: str, number: int) -> dict:
    """Return a cell without output."""
    common = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source(text)}
    return common if kind == "markdown" else {**common, "execution_count": None, "outputs": []}


def written(page: Path) -> str:
    """Return the text of a notebook's file."""
    return json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / f"{name}.ipynb").write_text(written(HERE / "tutorials" / f"{page}.rst"), encoding="utf-8")
