"""The study file: the program, the numbers of ranks and threads, and the times to measure.

A study is a TOML file::

    [study]
    script = "program.py"                      # beside the study
    arguments = "--size {size} --threads {threads}"
    scaling = "strong"                         # or "weak"
    size = 4096
    ranks = [1, 2, 4, 8]

    [runs.primal]
    primal = {from = "print", pattern = 'took ([0-9.]+) ms', unit = "ms"}

    [runs.gradient]
    arguments = "--gradient"
    gradient = {from = "wall"}

Every key has its line in `KEYS`, `RUN_KEYS`, `FIGURE_KEYS`, `JOB_KEYS` or `NETWORK_KEYS`; others are errors.
"""

import dataclasses
import difflib
import pathlib
import re
import shlex
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from ampi.errors import AmpiError

MODES = ("primal", "gradient")
PLACEHOLDERS = ("size", "ranks", "threads", "repetition")
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
SYSTEMS = ("slurm", "pbs", "lsf")


class ScalingError(AmpiError):
    """A study file, its results or its job cannot be used; the message names the file, the key and what is allowed.

    Examples
    --------
    >>> try:
    ...     ampi.scaling.read_study("missing.toml")
    ... except ampi.scaling.ScalingError as error:
    ...     print(error)
    /...missing.toml: No such file or directory
    """


@dataclasses.dataclass(frozen=True)
class Figure:
    """The source of a time in a run's output.

    Attributes
    ----------
    source : str
        ``"wall"``: from start to end of the launcher; ``"print"``: a number that the program prints; ``"json"``: a key
        of the last JSON object in a line that the program prints, or writes to `file`.
    pattern : str
        For ``"print"``: a regular expression with one group; of several matches the last counts.
    key, file : str
        For ``"json"``. Without a file, the printed output is searched.
    scale : float
        Seconds in the unit of the figure.
    """

    source: str
    pattern: str = ""
    key: str = ""
    file: str = ""
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Run:
    """One way to start the program, and the modes whose times it measures."""

    name: str
    python: tuple[str, ...]
    arguments: tuple[str, ...]
    figures: dict[str, Figure]


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings for a batch system; empty where not set."""

    system: str = ""
    partition: str = ""
    account: str = ""
    walltime: int = 3600
    tasks_per_node: int = 1
    modules: tuple[str, ...] = ()
    launcher: str = ""
    setup: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()
    template: str = ""


@dataclasses.dataclass(frozen=True, order=True)
class Case:
    """One measurement of a study."""

    repetition: int
    run: str
    ranks: int
    threads: int
    size: int


@dataclasses.dataclass(frozen=True)
class Study:
    """A study file that has been read; `read_study` makes it.

    Attributes
    ----------
    path : pathlib.Path
        The file; programs run in its folder.
    contents : dict
        The contents of the file.
    network : dict or str
        For ``model``: the parameters of the network, or a file with them; empty if not given.

    Examples
    --------
    >>> study = ampi.scaling.read_study("study.toml")
    >>> study.scaling, len(study.cases())
    ('strong', 4)
    """

    path: pathlib.Path
    contents: dict[str, Any]
    name: str
    script: str
    arguments: tuple[str, ...]
    scaling: str
    ranks: tuple[int, ...]
    threads: tuple[int, ...]
    sizes: dict[int, int]
    size: int
    per_rank: bool
    repetitions: int
    warmup: int
    timeout: float
    seed: int | None
    launcher: tuple[str, ...]
    environment: dict[str, str]
    runs: dict[str, Run]
    job: Job
    network: dict[str, float] | str

    @property
    def folder(self) -> pathlib.Path:
        """The folder in which programs run."""
        return self.path.parent

    @property
    def results(self) -> pathlib.Path:
        """The default file of results."""
        return self.path.with_name(f"{self.path.stem}-results.jsonl")

    @property
    def modes(self) -> tuple[str, ...]:
        """Those of ``primal`` and ``gradient`` that are measured."""
        return tuple(mode for mode in MODES if any(mode in run.figures for run in self.runs.values()))

    def size_on(self, ranks: int, threads: int) -> int:
        """The value of ``{size}`` on a number of ranks and threads.

        Raises
        ------
        ScalingError
            In strong scaling, the size per rank is not an integer; ``sizes`` has none for these ranks.
        """
        if self.sizes:
            if ranks not in self.sizes:
                raise ScalingError(f"{self.path}: [study] sizes has no size for {ranks} ranks")
            return self.sizes[ranks]
        if self.scaling == "weak":
            return self.size * threads * (1 if self.per_rank else ranks)
        if not self.per_rank:
            return self.size
        if self.size % ranks:
            message = f"size = {self.size} cannot be shared by {ranks} ranks: take a multiple of all rank counts"
            raise ScalingError(f"{self.path}: [study] {message}, or give sizes = {{{ranks} = ...}}")
        return self.size // ranks

    def cases(self) -> list[Case]:
        """All measurements, in order."""
        return [
            Case(repetition, run, ranks, threads, self.size_on(ranks, threads))
            for repetition in range(self.repetitions)
            for run in self.runs
            for ranks in self.ranks
            for threads in self.threads
        ]

    def identity(self) -> dict[str, Any]:
        """The settings that must be equal in all results of a study: all except those in `_MAY_CHANGE`."""
        study = {key: value for key, value in self.contents["study"].items() if key not in _MAY_CHANGE}
        return {"study": study, "runs": self.contents["runs"], "environment": self.contents.get("environment", {})}


_MAY_CHANGE = ("ranks", "threads", "repetitions", "timeout", "launcher", "seed", "name", "sizes")


def read_study(path: str | pathlib.Path) -> Study:
    """Read a study file.

    Parameters
    ----------
    path : path
        The TOML file.

    Raises
    ------
    ScalingError
        The file does not exist, is not TOML, or has wrong keys or values; the message names all of them.

    Examples
    --------
    >>> study = ampi.scaling.read_study("study.toml")
    >>> study.ranks
    (1, 2)
    """
    path = pathlib.Path(path).absolute()
    try:
        with open(path, "rb") as file:
            text = tomllib.load(file)
    except OSError as error:
        raise ScalingError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScalingError(f"{path} is not TOML: {error}") from error
    return study_of(text, path)


def study_of(contents: Mapping[str, Any], path: pathlib.Path) -> Study:
    """The study described by the contents of a file."""
    problems = Problems(path)
    problems.names("", contents, ("study", "runs", "environment", "job", "network"))
    values = problems.table("study", contents.get("study"), KEYS, ("script", "ranks"))
    if values is not None:
        _check_sizes(values, problems)
        if not (path.parent / values["script"]).is_file():
            problems.add("[study] script", f"there is no file {values['script']!r} in {path.parent}")
    runs = _runs(contents.get("runs"), problems)
    if values is not None and not values["size"] and not values["sizes"]:
        if "{size" in str([values["arguments"], *(run.arguments for run in runs.values())]):
            problems.add("[study] size", "is missing: {size} stands in the arguments")
    environment = problems.table("environment", contents.get("environment", {}), None) or {}
    job = problems.table("job", contents.get("job", {}), JOB_KEYS) or {}
    network = _network(contents.get("network", {}), problems)
    if problems.found or values is None:
        raise problems.error()
    values["name"] = values["name"] or path.stem
    size_is = values.pop("size_is")
    study = Study(
        path=path, contents=dict(contents), per_rank=size_is == "per rank", environment=environment, runs=runs,
        job=Job(**job), network=network, **values,
    )  # fmt: skip
    study.cases()
    return study


class Problems:
    """The problems of a file, which are all collected before an error is raised."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.found: list[str] = []

    def add(self, where: str, what: str) -> None:
        """Note a problem."""
        self.found.append(f"{where}: {what}")

    def error(self) -> ScalingError:
        """An error with all problems."""
        return ScalingError("\n".join(f"{self.path}: {problem}" for problem in self.found))

    def names(self, where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        """Note unknown keys."""
        for name in table:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                meant = f"; did you mean {near[0]!r}?" if near else ""
                kind = "key" if where else "table"
                self.add(f"{where} {name}".strip(), f"there is no such {kind}{meant} ({', '.join(sorted(known))})")

    def table(self, name: str, table: Any, keys: Mapping[str, "Key"] | None, needed: Sequence[str] = ()) -> Any:
        """The values of a table with its defaults; None if some are wrong. Without `keys`: strings under any names."""
        where = f"[{name}]"
        if not isinstance(table, Mapping):
            self.add(where, "is missing" if table is None else f"must be a table, and not {table!r}")
            return None
        before = len(self.found)
        if keys is None:
            keys = {key: (template, None) for key in table}
        self.names(where, table, list(keys))
        for key in needed:
            if key not in table:
                self.add(f"{where} {key}", "is missing")
        values = {}
        for key, (parse, default) in keys.items():
            values[key] = default
            if key in table:
                try:
                    values[key] = parse(table[key])
                except ValueError as error:
                    self.add(f"{where} {key}", f"must be {error}, and not {table[key]!r}")
        return values if len(self.found) == before else None


def _check_sizes(values: dict[str, Any], problems: Problems) -> None:
    if values["size"] and values["sizes"]:
        problems.add("[study] sizes", "give size or sizes, not both")
    if values["sizes"] and set(values["sizes"]) != set(values["ranks"] or ()):
        wanted = ", ".join(map(str, values["ranks"] or ()))
        problems.add("[study] sizes", f"must have one size for each of ranks: {wanted}")


def _runs(table: Any, problems: Problems) -> dict[str, Run]:
    """The runs; each mode is measured by one of them."""
    if not isinstance(table, Mapping) or not table:
        problems.add(
            "[runs]", 'is missing: [runs.primal] with primal = {from = "wall"} measures the unmodified program'
        )
        return {}
    found: dict[str, Run] = {}
    owner: dict[str, str] = {}
    for name, run in table.items():
        values = problems.table(f"runs.{name}", run, RUN_KEYS)
        if values is None:
            continue
        figures = {mode: values[mode] for mode in MODES if values[mode] is not None}
        if not figures:
            problems.add(f"[runs.{name}]", "measures nothing: give primal = {...} or gradient = {...}")
        for mode, raw in figures.items():
            figure = problems.table(f"runs.{name}.{mode}", raw, FIGURE_KEYS, ("from",))
            if figure is not None:
                figures[mode] = _figure(f"[runs.{name}.{mode}]", figure, problems)
            if mode in owner:
                problems.add(f"[runs.{name}] {mode}", f"is measured by [runs.{owner[mode]}] already")
            owner.setdefault(mode, name)
        found[name] = Run(name, values["python"], values["arguments"], figures)
    return found


def _network(table: Any, problems: Problems) -> dict[str, float] | str:
    """The network's parameters, or a file with them; empty if not given."""
    found = problems.table("network", table, NETWORK_KEYS)
    if found is None:
        return {}
    file = found.pop("file")
    given = {name: value for name, value in found.items() if value is not None}
    if file and given:
        problems.add("[network] file", "give file, or L, o, g and G, not both")
    for name in () if file or not given else found.keys() - given.keys():
        problems.add(f"[network] {name}", "is missing")
    return file or given


def _figure(where: str, values: dict[str, Any], problems: Problems) -> Figure:
    source = values["from"]
    for key in ("pattern", "key", "file"):
        if values[key] and source != {"pattern": "print"}.get(key, "json"):
            problems.add(f"{where} {key}", f'does not go with from = "{source}"')
    for key, owner in (("pattern", "print"), ("key", "json")):
        if source == owner and not values[key]:
            problems.add(f"{where} {key}", f'is missing: from = "{source}" needs it')
    return Figure(source, values["pattern"], values["key"], values["file"], UNITS[values["unit"]])


# Types of values: each function returns the value to store, or raises a ValueError that names the allowed values.


def text(value: Any) -> str:
    """A nonempty string."""
    if not isinstance(value, str) or not value:
        raise ValueError("a text")
    return value


def template(value: Any) -> str:
    """A string with placeholders."""
    value = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    if not isinstance(value, str):
        raise ValueError("a text or a number")
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(value) if name is not None]
        if not set(names) - set(PLACEHOLDERS):
            value.format(**dict.fromkeys(PLACEHOLDERS, 1))
    except (ValueError, KeyError, IndexError):
        raise ValueError(f"a text with the placeholders {known} (write a literal brace twice)") from None
    if set(names) - set(PLACEHOLDERS):
        raise ValueError(f"a text with the placeholders {known} (write a literal brace twice)")
    return value


def words(value: Any) -> tuple[str, ...]:
    """A command line: a string, or a list of words."""
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"a command line ({error})") from None
    if not isinstance(value, list):
        raise ValueError("a text or a list of texts")
    return tuple(template(word) for word in value)


def texts(value: Any) -> tuple[str, ...]:
    """A list of strings of one line each."""
    if not isinstance(value, list) or not all(isinstance(item, str) and "\n" not in item for item in value):
        raise ValueError("a list of texts of one line each")
    return tuple(value)


def one_of(*allowed: str) -> Callable[[Any], str]:
    """One of these strings."""

    def parse(value: Any) -> str:
        if value not in allowed:
            raise ValueError(" or ".join(f'"{name}"' for name in allowed))
        return value

    return parse


def whole(least: int) -> Callable[[Any], int]:
    """An integer with a lower bound."""

    def parse(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"a whole number from {least} on")
        return value

    return parse


def counts(value: Any) -> tuple[int, ...]:
    """Distinct positive integers."""
    one = whole(1)
    try:
        found = [one(item) for item in value] if isinstance(value, list) else []
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found):
        raise ValueError("a list of different whole numbers from 1 on")
    return tuple(sorted(found))


def sizes(value: Any) -> dict[int, int]:
    """A size for each number of ranks."""
    one = whole(1)
    try:
        return {int(ranks): one(size) for ranks, size in value.items()}
    except (AttributeError, ValueError):
        raise ValueError("a table of rank counts and sizes, as in {1 = 8, 8 = 4}") from None


def positive(value: Any) -> float:
    """A number above zero."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ValueError("a number above 0")
    return float(value)


def not_negative(value: Any) -> float:
    """A number of seconds, which may be 0."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise ValueError("a number of seconds")
    return float(value)


def expression(value: Any) -> str:
    """A regular expression with one group."""
    try:
        groups = re.compile(text(value)).groups
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    if groups != 1:
        raise ValueError("a regular expression with one group, ( and ) around the number")
    return value


def figure(value: Any) -> Any:
    """The source of a time; its keys are checked later."""
    if not isinstance(value, Mapping):
        raise ValueError('a table, as {from = "wall"}')
    return value


def duration(value: Any) -> int:
    """Seconds, from ``"hours:minutes:seconds"``."""
    match = re.fullmatch(r"(\d+):([0-5]\d):([0-5]\d)", value) if isinstance(value, str) else None
    seconds = sum(int(part) * unit for part, unit in zip(match.groups(), (3600, 60, 1))) if match else 0
    if not seconds:
        raise ValueError('a time as "01:30:00"')
    return seconds


def directive(value: Any) -> str:
    """A word that can stand in a directive of a job script."""
    if not isinstance(value, str) or not re.fullmatch(r"[\w.+@:,=/-]+", value):
        raise ValueError("a word without spaces, of letters, digits and _.+@:,=/-")
    return value


Key = tuple[Callable[[Any], Any], Any]
KEYS: dict[str, Key] = {
    "name": (text, ""),
    "script": (text, ""),
    "arguments": (words, ()),
    "scaling": (one_of("strong", "weak"), "strong"),
    "ranks": (counts, None),
    "threads": (counts, (1,)),
    "size": (whole(1), 0),
    "size_is": (one_of("total", "per rank"), "total"),
    "sizes": (sizes, {}),
    "repetitions": (whole(1), 5),
    "warmup": (whole(0), 1),
    "timeout": (positive, 3600.0),
    "seed": (whole(0), None),
    "launcher": (words, ()),
}
RUN_KEYS: dict[str, Key] = {
    "python": (words, ()),
    "arguments": (words, ()),
    "primal": (figure, None),
    "gradient": (figure, None),
}
FIGURE_KEYS: dict[str, Key] = {
    "from": (one_of("wall", "print", "json"), ""),
    "pattern": (expression, ""),
    "key": (text, ""),
    "file": (text, ""),
    "unit": (one_of(*UNITS), "s"),
}
NETWORK_KEYS: dict[str, Key] = {
    "L": (not_negative, None),
    "o": (not_negative, None),
    "g": (not_negative, None),
    "G": (not_negative, None),
    "file": (text, ""),
}
JOB_KEYS: dict[str, Key] = {
    "system": (one_of(*SYSTEMS), ""),
    "partition": (directive, ""),
    "account": (directive, ""),
    "walltime": (duration, 3600),
    "tasks_per_node": (whole(1), 1),
    "modules": (texts, ()),
    "launcher": (template, ""),
    "setup": (texts, ()),
    "directives": (texts, ()),
    "template": (text, ""),
}
