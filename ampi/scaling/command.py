"""The command line of ``python -m ampi.scaling``."""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence

from ampi.base import whole_files
from ampi.base.arguments import ArgumentParser, add_files, add_version
from ampi.scaling import exports, fits, jobs, medians, plots, published, queue, results
from ampi.scaling.runner import measure
from ampi.scaling.study import ScalingError, Study, read_study, words

MANY = (64, 512, 4096, 32768, 100_000)
NETWORK = "L=1.5e-6,o=4e-7,g=5e-7,G=8e-11 (100 Gbit/s)"
"""`loggp.DEFAULT`, repeated here since its module needs MPI."""
DESCRIPTION = "Scaling studies of MPI programs and their gradients."


def main(arguments: Sequence[str] | None = None, prog: str = "python -m ampi.scaling") -> int:
    """Run the command; the exit status is 1 if runs failed or a study is wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0].endswith(".toml"):
        arguments.insert(0, "run")
    made = parser(prog)
    options = made.parse_args(arguments)
    try:
        return options.do(options)
    except ScalingError as error:
        problem = str(error)
    except OSError as error:  # of a folder or file that the study names
        if error.filename is None:
            raise
        problem = f"{error.filename}: {error.strerror}"
    if made.prints:
        print(f"ampi.scaling: {problem}", file=sys.stderr)
    return 1


def parser(prog: str = "python -m ampi.scaling") -> ArgumentParser:
    """The parser of the command line."""
    found = ArgumentParser(prog=prog, description=DESCRIPTION, add_help=False)
    fill(found)
    return found


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to a parser."""
    parser.add_argument("-h", "--help", action="help", help="show this help message and exit")
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", help="what to do")
    add = lambda name, do, text: _command(commands.add_parser(name, help=text, description=text), do)
    run = add("run", _run, "measure the cases that are missing in the study's results (so does a .toml alone)")
    run.add_argument("--ranks", type=int, metavar="N", help="only on N ranks, into a file for these, as jobs do")
    run.add_argument("--keep-failed", action="store_true", help="do not rerun cases that failed before")
    run.add_argument("--launcher", metavar="COMMAND", help="the command that starts ranks, instead of the study's")
    send = add("submit", _submit, "write job scripts for missing results, and submit them")
    send.add_argument("--write-only", action="store_true", help="write the scripts, and submit nothing")
    send.add_argument("--again", action="store_true", help="submit even where an earlier job may still wait or run")
    template = commands.add_parser("template", help="print the template of job scripts for a batch system")
    template.add_argument("system", choices=list(jobs.SYSTEMS), help="the batch system")
    template.set_defaults(do=_template)
    draw = add("plot", _plot, "draw speed-up, efficiency and the ratio of gradient to primal")
    draw.add_argument("--output", type=pathlib.Path, metavar="FILE", help="the picture (STUDY.png)")
    text = "figures of the SC22 paper on Enzyme beside the ratio (may be repeated)"
    draw.add_argument("--published", action="append", default=[], choices=list(published.OVERHEADS), help=text)
    add("fit", _fit, "fit c0 + c p^a log2(p)^b to the times and to their ratio, and report where that would bend")
    text = "predict counts, bytes and times of primal and sweep on many ranks, from tapes recorded on a few"
    model = add("model", _model, text)
    text = f"a file of netbench, or L=..,o=..,g=..,G=.. in seconds ([network] of the study; {NETWORK})"
    model.add_argument("--network", metavar="FILE", help=text)
    model.add_argument("--ranks", type=int, nargs="+", metavar="N", help="record on these (those of the study)")
    text = f"predict for these ({' '.join(map(str, MANY))})"
    model.add_argument("--at", type=int, nargs="+", metavar="N", default=MANY, help=text)
    model.add_argument("--run", default="", metavar="NAME", help="which [runs.NAME] (the first with a gradient)")
    text = (
        "also predict each number of ranks from the others, and report which counts are exact and the errors of times"
    )
    model.add_argument("--check", action="store_true", help=text)
    model.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all of it there")
    text = (
        "measure the network between the first two ranks: mpiexec -n 2 python -m ampi.scaling netbench > network.toml"
    )
    commands.add_parser("netbench", help=text, description=text).set_defaults(do=_netbench)
    export = add("export", _export, "write the results as CSV, or in the text format of Extra-P")
    export.add_argument("--format", choices=("csv", "extrap"), default="csv", help="the format (csv)")
    export.add_argument("--output", type=pathlib.Path, metavar="FILE", help="the file (the terminal)")


def _command(parser: argparse.ArgumentParser, do: object) -> argparse.ArgumentParser:
    add_files(parser.add_argument("study", type=pathlib.Path, help="the study file"))
    parser.add_argument("--results", type=pathlib.Path, metavar="FILE", help="the results (STUDY-results.jsonl)")
    parser.set_defaults(do=do)
    return parser


def _run(options: argparse.Namespace) -> int:
    study = read_study(options.study)
    if options.ranks is not None and options.ranks not in study.ranks:
        raise ScalingError(f"--ranks {options.ranks}: {study.path} has ranks {', '.join(map(str, study.ranks))}")
    if options.launcher is not None:
        try:
            study = dataclasses.replace(study, launcher=words(options.launcher))
        except ValueError as error:
            raise ScalingError(f"--launcher must be {error}, and not {options.launcher!r}") from None
    return 1 if measure(study, options.results, options.ranks, not options.keep_failed) else 0


def _submit(options: argparse.Namespace) -> int:
    study = read_study(options.study)
    paths = jobs.write(study, options.results)
    if not paths:
        print(f"{study.name}: everything is measured")
    for ranks, path in paths.items():
        if options.write_only:
            print(path)
        elif not options.again and (state := queue.waiting(study, ranks)):
            print(f"{path}: {state}, and is not submitted again")
        else:
            message = jobs.submit(study, path)
            queue.note(study, ranks, message)
            print(f"{path}: {message}")
    return 0


def _model(options: argparse.Namespace) -> int:
    from ampi.scaling import model, validation  # only these need MPI
    from ampi.scaling.loggp import network_of, read_network

    study = read_study(options.study)
    for ranks in (*(options.ranks or ()), *options.at):
        if ranks < 1:
            raise ScalingError(f"--ranks and --at take whole numbers from 1 on, and not {ranks}")
    network = read_network(options.network) if options.network else network_of(study.network, study.folder)
    recorded = model.record(study, options.ranks or study.ranks, options.run)
    found = model.Model(recorded, network, study.scaling)
    print(f"{study.name}, {study.scaling} scaling, network {'; '.join(network.text().splitlines()[1:])} seconds")
    print(*model.described(found, options.at), sep="\n")
    if options.check:
        print(*validation.described(recorded, network, study.scaling), sep="\n")
    if options.json:
        whole_files.write(options.json, json.dumps(model.as_json(found, options.at), indent=1), ScalingError)
    return 0


def _netbench(options: argparse.Namespace) -> int:
    from ampi.scaling import netbench

    return netbench.main()


def _template(options: argparse.Namespace) -> int:
    print(jobs.SYSTEMS[options.system].template, end="")
    return 0


def _read(options: argparse.Namespace) -> tuple[Study, results.Results]:
    """The study, and its results."""
    study = read_study(options.study)
    paths = results.files_of(study, options.results)
    if not paths:
        raise ScalingError(f"{options.results or study.results}: there are no results yet")
    return study, results.read(paths, study)


def _plot(options: argparse.Namespace) -> int:
    study, found = _read(options)
    path = options.output or study.path.with_suffix(".png")
    print(plots.plot(found, study.scaling, path, study.name, options.published))
    return 0


def _fit(options: argparse.Namespace) -> int:
    study, found = _read(options)
    times = medians.samples(found)
    print(f"{study.name}, {study.scaling} scaling: medians, their bands, and models over p ranks")
    for mode, threads in sorted({(point.mode, point.threads) for point in times}, reverse=True):
        bands = {
            point.ranks: medians.band(values)
            for point, values in times.items()
            if (point.mode, point.threads) == (mode, threads)
        }
        print(f"{mode}, {threads} thread{'s' * (threads > 1)}:")
        for ranks, band in bands.items():
            print(
                f"   {ranks:6} ranks {band.median:11.4g} s   {band.low:.4g} to {band.high:.4g} ({band.confidence:.0%})"
            )
        print(f"   {_fitted({ranks: band.median for ranks, band in bands.items()}, 's')}")
    known = medians.ratios(found)
    for threads in sorted({threads for threads, _ in known}):
        bands = {ranks: band for (other, ranks), band in known.items() if other == threads}
        print(f"gradient / primal, {threads} thread{'s' * (threads > 1)}:")
        for ranks, band in bands.items():
            print(
                f"   {ranks:6} ranks {band.median:11.4g}     {band.low:.4g} to {band.high:.4g} ({band.confidence:.0%})"
            )
        print(f"   {_fitted({ranks: band.median for ranks, band in bands.items()}, '', True)}")
    return 0


def _fitted(values: dict[int, float], unit: str, bends: bool = False) -> str:
    """A description of the model of some values, or the reason why there is none."""
    try:
        model = fits.fit(list(values), list(values.values()))
    except ScalingError as error:
        return f"no model: {error}"
    text = f"model: {model} {unit}".rstrip() + f" (error {model.error:.1%})"
    return f"{text}; {fits.described(model, 'the ratio')}" if bends else text


def _export(options: argparse.Namespace) -> int:
    study, found = _read(options)
    text = exports.to_csv(found) if options.format == "csv" else exports.to_extrap(found, study.name)
    if options.output:
        whole_files.write(options.output, text, ScalingError)
    else:
        print(text, end="")
    return 0
