"""The code blocks of README and documentation as programs and commands.

* A Python block with a ``:caption:`` (in README, which other sites show, a ``:name:``) is a file of that name, for the
  commands in the console blocks of its page.
* The other Python blocks of a page form one program, in order, at their line numbers in the page. Code in a comment
  ``.. in the tests`` is part of it, although readers do not see it.
* A console block holds commands, after ``$``, and what they print; ``...`` stands for anything.
"""

import dataclasses
import fnmatch
import pathlib
import re
import shlex
import textwrap

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.rst", *sorted((ROOT / "docs").glob("**/*.rst"))]
RANKS = 2  # on which the blocks without a caption run

BLOCK = re.compile(r"( *)\.\. (?:code(?:-block)?:: (python|console)|(in the tests))$")
NOT_RUN = ("pip", "scripts/", "srun", "sbatch", "qsub", "bsub", "export", "module", "cd", "git", "perf")


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code: its kind (``python``, ``console``, ``in the tests``), caption, first line and text."""

    kind: str
    caption: str
    line: int
    text: str


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of a console block: settings of the environment, ranks, Python's arguments, and the output."""

    page: pathlib.Path
    line: int
    text: str
    settings: dict
    ranks: int
    arguments: list
    expected: list

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.text}"


def blocks(page):
    """The code blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines):
        match = BLOCK.fullmatch(line)
        if match is None:
            continue
        caption, k = "", number + 1
        while k < len(lines) and lines[k].strip().startswith(":"):
            option, _, value = lines[k].strip().partition(" ")
            caption = value if option in (":caption:", ":name:") else caption
            k += 1
        while k < len(lines) and not lines[k].strip():
            k += 1
        end = k
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(match[1] + " ")):
            end += 1
        text = textwrap.dedent("\n".join(lines[k:end])).rstrip() + "\n"
        found.append(Block(match[2] or match[3], caption, k, text))
    return found


def quoted(page, kind):
    """The texts of the blocks of another kind (``text``, ``toml``) on a page."""
    found, lines = [], page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.strip() == f".. code-block:: {kind}":
            indent = " " * (len(line) - len(line.lstrip()) + 1)
            rest = lines[number + 1 :]
            end = next((k for k, other in enumerate(rest) if other.strip() and not other.startswith(indent)), len(rest))
            found.append(textwrap.dedent("\n".join(rest[:end])).strip() + "\n")
    return found


def files(page):
    """The named programs of a page: a dictionary from names to texts."""
    return {block.caption: block.text for block in blocks(page) if block.kind == "python" and block.caption}


def program(page):
    """The unnamed blocks of a page as one program, at their line numbers; empty if there are none."""
    lines = []
    for block in blocks(page):
        if block.kind != "console" and not block.caption:
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


def commands(page):
    """The commands in the console blocks of a page that start Python.

    Raises
    ------
    ValueError
        A command neither starts Python nor is one that tests skip (`NOT_RUN`).
    """
    found = []
    for block in blocks(page):
        if block.kind != "console":
            continue
        for offset, line in enumerate(block.text.splitlines()):
            if not line.startswith("$ "):
                if found and found[-1] is not None:
                    found[-1].expected.append(line)
                continue
            words = shlex.split(line[2:], comments=True)
            settings = {}
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                name, _, value = words.pop(0).partition("=")
                settings[name] = value
            ranks = 1
            if words[:2] == ["mpiexec", "-n"]:
                ranks, words = int(words[2]), words[3:]
            if words[0] == "python" and "N" not in words:
                place = block.line + offset + 1
                found.append(Command(page, place, line[2:], settings, ranks, words[1:], []))
            elif words[0].startswith(NOT_RUN):
                found.append(None)
            else:
                raise ValueError(f"{page.name}:{block.line + offset + 1}: who is to run '{line}'?")
    return [command for command in found if command is not None]


def fits(printed, expected):
    """True if the printed lines are the expected ones, in any order (of ranks); ``...`` stands for anything.

    Without expected lines, anything fits.
    """
    expected = [line.rstrip() for line in expected if line.strip()]
    left = [line.rstrip() for line in printed if line.strip()]
    more = "..." in expected or not expected
    for line in expected:
        if line == "...":
            continue
        pattern = fnmatch.translate(re.sub(r"[\[*?]", r"[\g<0>]", line).replace("...", "*"))
        match = next((k for k, other in enumerate(left) if re.match(pattern, other)), None)
        if match is None:
            return False
        del left[match]
    return more or not left
