"""Predictions beyond the machine: communication and time of a program and its gradient on many ranks.

``python -m ampi.scaling model study.toml --network network.toml`` runs the study's gradient on the study's numbers of
ranks (there may be far more ranks than cores: only the time on the fewest ranks is used), takes a census of
communication on each rank, finds exact functions for it (`classes`), and computes their cost on a network (`loggp`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ampi.base import whole_files
from ampi.scaling import runner
from ampi.scaling.census import PRIMAL, RECORDING, SWEEP
from ampi.scaling.classes import Classes, Extrapolation, Place, Rank, classes_of, extrapolate
from ampi.scaling.loggp import WORDS, Cost, Network, cost_of, messages
from ampi.scaling.study import Case, ScalingError, Study

COMPUTATION = "computation"
STARTED_ELSEWHERE = ("receive", "Win.Start", "Win.Wait")
"""Operations for which a rank waits, and which it does not start."""
AGREEMENT = "agreement of the ranks before the sweep"


def record(study: Study, ranks: Sequence[int], run: str = "", say: Any = print) -> dict[int, list[dict[str, Any]]]:
    """Run the gradient of a study on some numbers of ranks, and read the census of their tapes.

    Earlier recordings of the same program by the same command are kept in ``STUDY-traffic/``, and are not repeated.

    Raises
    ------
    ScalingError
        A run has failed, or its program has not closed a tape.
    """
    run = run or next(
        (name for name, known in study.runs.items() if "gradient" in known.figures), next(iter(study.runs))
    )
    if run not in study.runs:
        raise ScalingError(f"{study.path}: there is no [runs.{run}], but {', '.join(study.runs)}")
    threads = min(study.threads)
    return {
        count: _recorded(study, Case(0, run, count, threads, study.size_on(count, threads)), say) for count in ranks
    }


def _recorded(study: Study, case: Case, say: Any) -> list[dict[str, Any]]:
    folder = study.path.with_name(f"{study.path.stem}-traffic") / str(case.ranks)
    command = counting(runner.command(study, case), study, folder)
    about = folder / "command.json"
    program = hashlib.sha256((study.folder / study.script).read_bytes()).hexdigest()
    recorded = {"command": command, "environment": study.environment, "program": program}
    if not about.exists() or _read(about) != recorded:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise ScalingError(f"{folder} cannot be made: {error.strerror}") from None
        say(f"recording on {case.ranks} ranks", flush=True)
        status, _, output, errors = runner.start(command, study.folder, runner.environment(study, case), study.timeout)
        if status != 0:
            end = "took too long" if status is None else f"exit status {status}"
            raise ScalingError(f"on {case.ranks} ranks: {end}: {(errors or output)[-runner.MAX_OUTPUT :].strip()}")
        whole_files.write(about, json.dumps(recorded), ScalingError)
    found = [_read(path) for path in sorted(folder.glob("rank-*.json"))]
    if None in found:
        shutil.rmtree(folder, ignore_errors=True)
        raise ScalingError(f"{folder} holds a file that is damaged, and has been removed: run this again")
    if len(found) != case.ranks or found[0]["ranks"] != case.ranks:
        shutil.rmtree(folder)
        raise ScalingError(f"{len(found)} of {case.ranks} ranks have written a census: were all of them started?")
    if not any(rank["seconds"][RECORDING] for rank in found):
        raise ScalingError(f"no tape was recorded by {' '.join(command)}: let the run compute a gradient")
    return found


def _read(path: pathlib.Path) -> Any:
    """The JSON contents of a file; None if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScalingError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        return None


def counting(command: list[str], study: Study, folder: pathlib.Path) -> list[str]:
    """The command of a run, with `census` before the program."""
    k = command.index(sys.executable) + 1
    return [*command[:k], "-m", "ampi.scaling.census", str(folder.absolute()), *command[k:]]


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The prediction for a number of ranks.

    Attributes
    ----------
    ranks : int
    classes : dict
        Populations and rows of the classes of ranks: counts, bytes, partners.
    seconds : dict
        By phase, ``"primal"`` and ``"sweep"``: the time of the slowest class.
    shares : dict
        By phase: seconds for `COMPUTATION` and for each (line, operation).
    parameters : dict
        By phase: seconds of communication, by parameter of the network.
    """

    ranks: int
    classes: Classes
    seconds: dict[str, float]
    shares: dict[str, dict[str, float]]
    parameters: dict[str, dict[str, float]]

    def bottleneck(self) -> str:
        """A description of the part that takes longest."""
        own = max((shares[COMPUTATION], phase) for phase, shares in self.shares.items())
        others = [
            (value, phase, name)
            for phase, shares in self.shares.items()
            for name, value in shares.items()
            if name != COMPUTATION
        ]
        share = lambda value: f"{value / (sum(self.seconds.values()) or 1.0):.2g} of the time"
        text = f"computation of the {own[1]}, {share(own[0])}"
        if not others:
            return text
        value, phase, name = max(others)
        paid = self.parameters[phase]
        longest = f"{name}, in the {phase}, {share(value)}, mostly {WORDS[max(paid, key=paid.__getitem__)]}"
        return f"{text}; of the communication: {longest}" if value < own[0] else longest


class Model:
    """Predictions from recordings on some numbers of ranks.

    Parameters
    ----------
    recorded : dict
        The census of each rank, by number of ranks.
    network : Network
    scaling : str
        ``"weak"``: the computation of each rank is constant; ``"strong"``: that of all ranks together is.

    Attributes
    ----------
    tapes : int
        The largest number of tapes of a rank, on the fewest ranks.
    left_out : list of str
        Communication that is not counted, or has no cost in the model.
    """

    def __init__(self, recorded: Mapping[int, list[dict[str, Any]]], network: Network, scaling: str) -> None:
        self.network = network
        self.scaling = scaling
        measured = {ranks: classes_of(found) for ranks, found in recorded.items()}
        self.extrapolation: Extrapolation = extrapolate(measured)
        self.left_out = _left_out(recorded, measured)
        self.fewest = min(recorded)
        self.tapes = max(rank.get("tapes", 0) for rank in recorded[self.fewest])
        self.computation = {}
        for phase, name in ((PRIMAL, RECORDING), (SWEEP, SWEEP)):
            took = max(rank["seconds"][name] for rank in recorded[self.fewest])
            communicated = max(self._spent(rank, phase)[1] for rank in measured[self.fewest].values())
            self.computation[phase] = max(took - communicated, 0.0)

    def _spent(self, rank: Rank, phase: str) -> tuple[dict[str, Cost], float]:
        """The costs of one rank in a phase, by line and operation, and the total seconds."""
        costs = _costs(rank, phase, self.network)
        return costs, sum(map(self.network.seconds, costs.values()))

    def __call__(self, ranks: int) -> Prediction:
        """The prediction for a number of ranks, which must fit the decomposition."""
        classes = self.extrapolation(ranks)
        seconds, shares, parameters = {}, {}, {}
        for phase in (PRIMAL, SWEEP):
            costs, took = max((self._spent(rank, phase) for rank in classes.values()), key=lambda found: found[1])
            own = self.computation[phase] * (1 if self.scaling == "weak" else self.fewest / ranks)
            seconds[phase] = own + took
            shares[phase] = {COMPUTATION: own, **{name: self.network.seconds(cost) for name, cost in costs.items()}}
            parameters[phase] = self.network.shares(sum(costs.values(), Cost()))
        return Prediction(ranks, classes, seconds, shares, parameters)


def _costs(rank: Rank, phase: str, network: Network) -> dict[str, Cost]:
    costs: dict[str, Cost] = {}
    for place, row in rank.rows.items():
        if place[0] == phase and row.calls:
            line = pathlib.PurePath(place[1]).name
            name = f"{place[2]} at {line}" if phase == PRIMAL else f"the adjoint's {place[2]} at {line}"
            costs[name] = costs.get(name, Cost()) + (_cost(place, row, network) or Cost())
    if phase == SWEEP and rank.partners:
        n = float(rank.partners)
        costs[AGREEMENT] = messages(n, n, 0, 1, network)
    return costs


def _cost(place: Place, row: Any, network: Network) -> Cost | None:
    numbers = float(row.partners), float(row.calls), float(row.sent), float(row.received)
    return cost_of(place[2], round(row.size), *numbers, network)


def _left_out(recorded: Mapping[int, list[dict[str, Any]]], measured: Mapping[int, Classes]) -> list[str]:
    """Calls that are not counted, and counted operations without a cost."""
    named = {
        f"{what} at {pathlib.PurePath(line).name}"
        for found in recorded.values()
        for rank in found
        for what, line in rank.get("left out", ())
    }
    places = {place for classes in measured.values() for rank in classes.values() for place in rank.rows}
    unknown = {place for place in places if cost_of(place[2], 2, 1, 1, 0, 0, Network(0, 0, 0, 0)) is None}
    named |= {f"the time of {operation} at {pathlib.PurePath(line).name}" for _, line, operation, _ in unknown}
    return sorted(named)


def described(model: Model, targets: Sequence[int]) -> Iterator[str]:
    """A model for the terminal: forms, a line for each number of ranks, and the bottlenecks."""
    found = model.extrapolation
    yield f"Exact on {found.first} ranks and more:"
    kinds: dict[str, list[str]] = {}
    for label, population in found.populations.items():
        kinds.setdefault(str(found.partners[label]), []).append(str(population))
    for partners, populations in kinds.items():
        yield f"   {' + '.join(populations)} ranks with {partners} partners each"
    yield from (f"   not exact, taken as on most ranks: {doubt}" for doubt in found.doubts)
    yield from (f"   not in it: {what}" for what in model.left_out)
    if model.tapes == 1:
        yield "   times are those of the first tape, which imports and compiles: have the program differentiate twice"
    yield f"{'ranks':>8} {'messages':>9} {'bytes sent':>11} {'partners':>8} {'primal':>9}   in the sweep"
    before = ""
    for ranks in dict.fromkeys(map(found.nearest, targets)):
        prediction = model(ranks)
        yield _line(prediction)
        slow = prediction.bottleneck()
        where = slow.partition(",")[0]
        if where != before or "; of the communication" in slow:
            yield f"{'':8} longest: {slow}"
        before = where


def _line(prediction: Prediction) -> str:
    most = lambda quantity, phase: max(float(rank.total(quantity, phase)) for rank in prediction.classes.values())
    calls = [_sends(prediction.classes, phase) for phase in (PRIMAL, SWEEP)]
    partners = max(float(rank.partners) for rank in prediction.classes.values())
    return (
        f"{prediction.ranks:8} {calls[0]:9.6g} {most('sent', PRIMAL):11.6g} {partners:8.6g} "
        f"{prediction.seconds[PRIMAL]:8.3g}s {calls[1]:9.6g} {most('sent', SWEEP):11.6g} "
        f"{prediction.seconds[SWEEP]:8.3g}s"
    )


def _sends(classes: Classes, phase: str) -> float:
    """The largest number of messages and collectives that a rank starts."""
    return max(
        sum(
            float(row.calls)
            for place, row in rank.rows.items()
            if place[0] == phase and place[2] not in STARTED_ELSEWHERE
        )
        for rank in classes.values()
    )


def as_json(model: Model, targets: Sequence[int]) -> dict[str, Any]:
    """The predictions as JSON, for other programs."""
    return {
        str(ranks): {
            "seconds": (found := model(ranks)).seconds,
            "bottleneck": found.bottleneck(),
            "classes": [
                {
                    "ranks": rank.population,
                    "partners": float(rank.partners),
                    "rows": [
                        [
                            *place[:3],
                            *(float(getattr(row, name)) for name in ("size", "calls", "sent", "received", "partners")),
                        ]
                        for place, row in rank.rows.items()
                    ],
                }
                for rank in found.classes.values()
            ],
        }
        for ranks in dict.fromkeys(map(model.extrapolation.nearest, targets))
    }
