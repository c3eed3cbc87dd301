"""The command line of ``python -m ampi.scaling``."""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from ampi.scaling.runner import measure
from ampi.scaling.study import ScalingError, read_study

DESCRIPTION = "Scaling studies of MPI programs and their gradients."


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the exit status is 1 if runs failed or a study is wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0].endswith(".toml"):
        arguments.insert(0, "run")
    options = parser().parse_args(arguments)
    try:
        return options.do(options)
    except ScalingError as error:
        print(f"ampi.scaling: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """What the command line may be."""
    parser = argparse.ArgumentParser(prog="python -m ampi.scaling", description=DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = lambda name, do, text: _command(commands.add_parser(name, help=text, description=text), do)
    run = add("run", _run, "measure what the study's results do not have yet (a .toml alone does so as well)")
    run.add_argument("--ranks", type=int, metavar="N", help="only on N ranks, into a file for these, as jobs do")
    run.add_argument("--keep-failed", action="store_true", help="do not try again what has failed before")
    return parser


def _command(parser: argparse.ArgumentParser, do: object) -> argparse.ArgumentParser:
    parser.add_argument("study", type=pathlib.Path, help="the study file")
    parser.add_argument("--results", type=pathlib.Path, metavar="FILE", help="the results (STUDY-results.jsonl)")
    parser.set_defaults(do=do)
    return parser


def _run(options: argparse.Namespace) -> int:
    study = read_study(options.study)
    if options.ranks is not None and options.ranks not in study.ranks:
        raise ScalingError(f"--ranks {options.ranks}: {study.path} has ranks {', '.join(map(str, study.ranks))}")
    return 1 if measure(study, options.results, options.ranks, not options.keep_failed) else 0
