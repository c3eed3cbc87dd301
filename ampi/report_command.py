"""``ampi report FOLDER program.py``: run a program, and write a report of what all ranks did."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ampi import run
from ampi.base.arguments import ArgumentParser, add_files

USAGE = """\
{prog} FOLDER [option] ... <file> [argument] ...

The options are those of ampi run; FOLDER gets index.html, for a browser, and trace.json.gz, for Perfetto."""


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to a parser."""
    add_files(parser.add_argument("folder", metavar="FOLDER", help="where the report is written"))
    run.fill(parser)


def main(arguments: Sequence[str], prog: str) -> None:
    """Run the command."""
    folder, *rest = arguments or ["--help"]
    if folder in ("-h", "--help"):
        rest = list(arguments)
    else:
        parser = ArgumentParser(prog=prog, usage=USAGE.format(prog=prog), add_help=False)
        if folder.startswith("-"):
            parser.error(f"write the folder first ({prog} FOLDER [option] ...); given: {' '.join(arguments)}")
        if os.path.isfile(folder):
            parser.error(f"{folder} is a file; write {prog} FOLDER {folder}")
        rest = ["--report", folder, *rest]
    sys.argv[1:] = rest
    run.main(rest, prog, USAGE)
