"""Study files, and the runner: it measures what is missing, and nothing else."""

import json
import pathlib
import string
import sys
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampi import scaling
from ampi.scaling import results, runner, study

PROGRAM = """\
import json, os, sys, time
print("took 9 ms")
print(f"took {sys.argv[1]} ms")
print(json.dumps({"seconds": 0.25, "threads": os.environ["NUMBA_NUM_THREADS"], "note": os.environ.get("NOTE")}))
if "--sleep" in sys.argv:
    time.sleep(60)
if "--fail" in sys.argv:
    sys.exit("no such deck")
if "--write" in sys.argv:
    open("times.json", "w").write('{"seconds": 3}\\n{"seconds": 2}\\n{"other": 1}\\n')
"""
HEAD = """\
[study]
script = "program.py"
ranks = [1]
launcher = "env"
repetitions = 1
warmup = 0
"""


def write(folder, text):
    """A study in a folder, with its program."""
    (folder / "program.py").write_text(PROGRAM)
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def toml(value):
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


@st.composite
def studies(draw):
    """The contents of a study file."""
    ranks = draw(st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True))
    table = {"script": "program.py", "ranks": ranks, "launcher": ["env", "RANKS={ranks}"]}
    maybe = {
        "threads": st.lists(st.integers(1, 16), min_size=1, max_size=3, unique=True),
        "repetitions": st.integers(1, 4),
        "warmup": st.integers(0, 2),
        "seed": st.integers(0, 2**40),
        "scaling": st.sampled_from(["strong", "weak"]),
        "arguments": st.lists(st.sampled_from(["-n {size}", "{ranks}", "é ü", "{{", "{threads:03d}"]), max_size=3),
    }
    table |= {key: draw(values) for key, values in maybe.items() if draw(st.booleans())}
    table |= draw(st.sampled_from([{"size": 64}, {"size": 7}, {"sizes": {str(n): 3 * n for n in ranks}}]))
    figures = st.sampled_from([{"from": "wall"}, {"from": "print", "pattern": "took ([0-9]+) ms", "unit": "ms"}])
    both = st.fixed_dictionaries({"primal": figures, "gradient": figures})
    apart = st.fixed_dictionaries({"primal": figures}), st.fixed_dictionaries({"gradient": figures})
    names = draw(st.lists(st.text(string.ascii_letters, min_size=1), min_size=2, max_size=2, unique=True))
    runs = {names[0]: draw(both)} if draw(st.booleans()) else dict(zip(names, map(draw, apart)))
    return {"study": table, "runs": runs}


def text_of(contents):
    lines = ["[study]", *(f"{key} = {toml(value)}" for key, value in contents["study"].items())]
    for name, run in contents["runs"].items():
        lines += [f"[runs.{name}]", *(f"{key} = {toml(value)}" for key, value in run.items())]
    return "\n".join(lines) + "\n"


def measured(path, monkeypatch, stop=None):
    """Run a study with programs that only note that they were started; the environments of those."""
    started = []

    def start(arguments, folder, variables, timeout):
        if stop is not None and len(started) == stop:
            raise KeyboardInterrupt
        started.append(arguments)
        return 0, 0.5, "took 3 ms\n", ""

    monkeypatch.setattr(runner, "start", start)
    try:
        scaling.measure(scaling.read_study(path), say=lambda line: None)
    except KeyboardInterrupt:
        pass
    return started


def runs_in(path):
    """The cases of the whole lines of a file of results that count."""
    found = []
    for line in path.read_text().split("\n"):
        try:
            line = json.loads(line)
        except ValueError:
            continue
        if line["kind"] == "run":
            found.append((line["repetition"], line["run"], line["ranks"], line["threads"]))
    return found


@given(contents=studies(), data=st.data())
def test_what_was_stopped_goes_on_with_what_is_missing(contents, data):
    """At any byte of its results, killed at any run."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = write(pathlib.Path(folder), text_of(contents))
        read = scaling.read_study(path)
        everything = [(case.repetition, case.run, case.ranks, case.threads) for case in read.cases()]
        configurations = len(read.runs) * len(read.ranks) * len(read.threads)
        assert len(everything) == configurations * read.repetitions
        started = measured(path, patch, data.draw(st.none() | st.integers(0, 20)))
        for _ in range(data.draw(st.integers(0, 2))):
            if read.results.exists():
                whole = read.results.read_bytes()
                read.results.write_bytes(whole[: len(whole) * data.draw(st.integers(0, 1000)) // 1000])
                measured(path, patch, data.draw(st.none() | st.integers(0, 20)))
        before = runs_in(read.results) if read.results.exists() else []
        started = measured(path, patch)
        after = runs_in(read.results)
        assert sorted(after[len(before) :]) == sorted(set(everything) - set(before)) and after[: len(before)] == before
        warm = len({case[1:] for case in after[len(before) :]}) * read.warmup
        assert len(started) == len(after) - len(before) + warm
        assert sorted(after) == sorted(everything)
        assert sorted(results.read([read.results], read).done()) == sorted(read.cases())
        assert measured(path, patch) == []


@given(contents=studies(), seed=st.integers(0, 2**32))
def test_order_is_drawn_within_repetitions_and_the_same_again(contents, seed):
    with tempfile.TemporaryDirectory() as folder:
        read = scaling.read_study(write(pathlib.Path(folder), text_of(contents)))
    found = runner.order(read, seed)
    assert sorted(found) == sorted(read.cases()) and found == runner.order(read, seed)
    assert [case.repetition for case in found] == sorted(case.repetition for case in found)


def test_order_differs_between_seeds_and_repetitions(tmp_path):
    text = HEAD.replace("[1]", str(list(range(1, 30)))).replace("repetitions = 1", "repetitions = 2")
    read = scaling.read_study(write(tmp_path, text + '[runs.a]\nprimal = {from = "wall"}\n'))
    first, second = runner.order(read, 1), runner.order(read, 2)
    assert first != second and [c.ranks for c in first[:29]] != [c.ranks for c in first[29:]]


WRONG = {
    "rank = [1]": "rank: there is no such key; did you mean 'ranks'? (arguments, launcher,",
    "ranks = [1, 1]": "ranks: must be a list of different whole numbers from 1 on, and not [1, 1]",
    "ranks = 4": "ranks: must be a list of different whole numbers from 1 on, and not 4",
    "threads = [0]": "threads: must be a list of different whole numbers from 1 on, and not [0]",
    "repetitions = 0": "repetitions: must be a whole number from 1 on, and not 0",
    "repetitions = true": "repetitions: must be a whole number from 1 on, and not True",
    "timeout = -1": "timeout: must be a number above 0, and not -1",
    'scaling = "wide"': 'scaling: must be "strong" or "weak", and not \'wide\'',
    'arguments = "{sise}"': "arguments: must be a text with the placeholders {size}, {ranks}, {threads}, {repetition}",
    'arguments = "{"': "arguments: must be a text with the placeholders {size}",
    'arguments = "{size:q}"': "arguments: must be a text with the placeholders {size}",
    'arguments = "\'"': "arguments: must be a command line (No closing quotation)",
    'arguments = "{size}"': "size: is missing: {size} stands in the arguments",
    'size = 3\nsizes = {"1" = 4}': "sizes: give size or sizes, not both",
    'sizes = {"2" = 4}': "sizes: must have one size for each of ranks: 1",
    'script = "other.py"': "script: there is no file 'other.py' in",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_keys_and_values_are_named(line, tmp_path):
    kept = [old for old in HEAD.splitlines() if old.split(" =")[0] != line.split(" =")[0]]
    path = write(tmp_path, "\n".join([*kept, line, '[runs.a]\nprimal = {from = "wall"}\n']))
    with pytest.raises(scaling.ScalingError) as raised:
        scaling.read_study(path)
    assert f"{path}: [study] {WRONG[line]}" in str(raised.value)


WRONG_RUNS = {
    "": '[runs]: is missing: [runs.primal] with primal = {from = "wall"}',
    "[runs.a]\n": "[runs.a]: measures nothing",
    "[run.a]\n": "run: there is no such table; did you mean 'runs'?",
    '[runs.a]\nprimal = "wall"': "[runs.a] primal: must be a table, as {from = \"wall\"}, and not 'wall'",
    '[runs.a]\nprimal = {from = "clock"}': '[runs.a.primal] from: must be "wall" or "print" or "json"',
    '[runs.a]\nprimal = {from = "print"}': "[runs.a.primal] pattern: is missing",
    '[runs.a]\nprimal = {from = "json", pattern = "(x)", key = "s"}': 'pattern: does not go with from = "json"',
    '[runs.a]\nprimal = {from = "print", pattern = "x"}': "pattern: must be a regular expression with one group",
    '[runs.a]\nprimal = {from = "print", pattern = "("}': "pattern: must be a regular expression (",
    '[runs.a]\nprimal = {from = "wall", unit = "min"}': 'unit: must be "s" or "ms" or "us"',
    '[runs.a]\nprimal = {from = "wall"}\n[runs.b]\nprimal = {from = "wall"}': "is measured by [runs.a] already",
    '[runs.a]\nprimal = {from = "wall"}\n[job]\nsystem = "lsb"': '[job] system: must be "slurm" or "pbs" or "lsf"',
    '[runs.a]\nprimal = {from = "wall"}\n[job]\nwalltime = "90"': '[job] walltime: must be a time as "01:30:00"',
    '[runs.a]\nprimal = {from = "wall"}\n[job]\naccount = "a b"': "[job] account: must be a word without spaces",
    '[runs.a]\nprimal = {from = "wall"}\n[environment]\nA = [1]': "[environment] A: must be a text or a number",
    "[runs.a": "is not TOML",
}


@pytest.mark.parametrize("rest", WRONG_RUNS)
def test_wrong_tables_are_named(rest, tmp_path):
    path = write(tmp_path, HEAD + rest)
    with pytest.raises(scaling.ScalingError) as raised:
        scaling.read_study(path)
    assert str(path) in str(raised.value) and WRONG_RUNS[rest] in str(raised.value)


def test_all_problems_are_reported_at_once(tmp_path):
    path = write(tmp_path, HEAD.replace("warmup = 0", "warmup = -1\nsede = 3") + "[runs.a]\n")
    with pytest.raises(scaling.ScalingError) as raised:
        scaling.read_study(path)
    assert [word in str(raised.value) for word in ("warmup", "sede", "runs.a")] == [True] * 3


@pytest.mark.parametrize(
    "scaled, size_is, expected",
    [
        ("strong", "total", [24, 24, 24, 24]),
        ("strong", "per rank", [24, 24, 12, 12]),
        ("weak", "total", [24, 72, 48, 144]),
        ("weak", "per rank", [24, 72, 24, 72]),
    ],
)
def test_sizes(scaled, size_is, expected, tmp_path):
    text = HEAD.replace("[1]", "[1, 2]") + f'threads = [1, 3]\nsize = 24\nscaling = "{scaled}"\nsize_is = "{size_is}"\n'
    read = scaling.read_study(write(tmp_path, text + '[runs.a]\nprimal = {from = "wall"}\n'))
    assert [case.size for case in sorted(read.cases())] == expected


def test_a_size_that_ranks_cannot_share_is_an_error(tmp_path):
    text = HEAD.replace("[1]", "[1, 5]") + 'size = 24\nsize_is = "per rank"\n[runs.a]\nprimal = {from = "wall"}\n'
    with pytest.raises(scaling.ScalingError, match="size = 24 cannot be shared by 5 ranks"):
        scaling.read_study(write(tmp_path, text))


def run_one(folder, rest, head=HEAD):
    """The only run of a study that is really started."""
    path = write(folder, head + rest)
    read = scaling.read_study(path)
    scaling.measure(read, say=lambda line: None)
    found = results.read([read.results], read)
    return found.runs[-1], found


def test_figures_that_programs_print_and_write(tmp_path):
    figures = """\
arguments = "25"
[runs.a]
arguments = "--write"
primal = {from = "print", pattern = 'took ([0-9.]+) ms', unit = "ms"}
gradient = {from = "json", key = "seconds"}
"""
    line, found = run_one(tmp_path, figures)
    assert line["status"] == "ok" and line["seconds"] == {"primal": 0.025, "gradient": 0.25}
    session = found.sessions[0]
    assert session["versions"]["python"] == sys.version.split()[0] and session["machine"]["cores"] >= 1
    assert session["study"]["study"]["script"] == "program.py" and session["git"] is None
    other = tmp_path / "other"
    other.mkdir()
    line, _ = run_one(other, figures.replace('key = "seconds"', 'key = "seconds", file = "times.json"'))
    assert line["seconds"]["gradient"] == 2.0


@pytest.mark.parametrize(
    "rest, status, message",
    [
        ('primal = {from = "print", pattern = "lasted (.*)"}', "failed", "printed nothing that fits"),
        ('primal = {from = "print", pattern = "t(o)ok"}', "failed", "'o' is not a number"),
        ('primal = {from = "json", key = "minutes"}', "failed", "has the key 'minutes'"),
        ('primal = {from = "json", key = "seconds", file = "none.json"}', "failed", "has not written none.json"),
        ('arguments = "--fail"\nprimal = {from = "wall"}', "failed", "no such deck\n\nexit status 1"),
        ('arguments = "--sleep"\nprimal = {from = "wall"}', "timeout", "ended after 0.5 s"),
    ],
)
def test_failures_are_results_and_are_tried_again(rest, status, message, tmp_path):
    head = HEAD + f'arguments = "25"\ntimeout = {0.5 if status == "timeout" else 60}\n'
    line, _ = run_one(tmp_path, "[runs.a]\n" + rest, head)
    assert (line["status"], line["seconds"]) == (status, {}) and message in line["message"]
    read = scaling.read_study(tmp_path / "study.toml")
    if status != "timeout":
        assert scaling.measure(read, retry=False, say=lambda line: None) == 0
        assert scaling.measure(read, say=lambda line: None) == 1
        assert len(runs_in(read.results)) == 2


def test_results_of_other_settings_are_refused(tmp_path):
    rest = 'arguments = "25"\n[runs.a]\nprimal = {from = "wall"}\n'
    run_one(tmp_path, rest)
    more = scaling.read_study(write(tmp_path, HEAD.replace("repetitions = 1", "repetitions = 2") + rest))
    assert len(results.read([more.results], more).good) == 1
    other = scaling.read_study(write(tmp_path, HEAD + rest.replace("25", "26")))
    with pytest.raises(scaling.ScalingError, match=r"other settings than .*: \[study\] arguments\. Put them back"):
        scaling.measure(other)
    with pytest.raises(scaling.ScalingError, match="line 2 is no result"):
        lines = more.results.read_text().splitlines()
        more.results.write_text("\n".join([lines[0], lines[1][:-3], lines[1]]))
        scaling.measure(more)


def test_two_cannot_write_at_once(tmp_path):
    with results.Writer(tmp_path / "a.jsonl"):
        with pytest.raises(scaling.ScalingError, match="another process measures"):
            results.Writer(tmp_path / "a.jsonl")


EXAMPLES = sorted(pathlib.Path(__file__).parents[2].glob("examples/*/*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_studies_of_the_examples(path):
    read = scaling.read_study(path)
    assert read.modes == ("primal", "gradient") and len(read.cases()) >= 6
    command = runner.command(read, read.cases()[-1])
    assert command[1:3] == ["-n", str(read.ranks[-1])] and str(path.parent / read.script) in command


def test_both_examples_have_studies():
    assert {path.parent.name for path in EXAMPLES} >= {"lulesh", "minibude"}


def test_command(tmp_path, mpiexec, monkeypatch):
    rest = 'arguments = "25"\nenvironment = 1\n[runs.a]\nprimal = {from = "wall"}\n'
    path = write(tmp_path, HEAD.replace('launcher = "env"\n', "").replace("[1]", "[1, 2]") + rest)
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(study.__file__).parents[2]))
    done = mpiexec(1, "-m", "ampi.scaling", path)
    assert done.returncode == 1 and "[study] environment: there is no such key" in done.stderr
    path.write_text(path.read_text().replace("environment = 1\n", ""))
    done = mpiexec(1, "-m", "ampi.scaling", path, "--ranks", 2)
    assert done.returncode == 0 and "a on 2 x 1, repetition 1: primal" in done.stdout, done.stderr
    assert runs_in(tmp_path / "study-results-2.jsonl") == [(0, "a", 2, 1)]
    done = mpiexec(1, "-m", "ampi.scaling", path)
    assert "1 of 2 runs to measure" in done.stdout and runs_in(tmp_path / "study-results.jsonl") == [(0, "a", 1, 1)]
