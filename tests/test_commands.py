"""The command ``ampi``: all its commands, errors in command lines, and completion by shells."""

import argparse
import os
import pathlib
import subprocess
import sys

import numpy
import pytest
from patience import patience

import ampi.__main__ as commands

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = """\
import sys
from ampi.__main__ import main
if __name__ == "__main__":
    sys.exit(main())
"""
"""What pip writes for the entry point."""


@pytest.fixture
def script(tmp_path):
    """The command as pip installs it, in a folder of its own."""
    path = tmp_path / "bin" / "ampi"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def start(folder, *arguments):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        **{"cwd": folder, "capture_output": True, "text": True, "check": False, "timeout": patience(60)},
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def walk(parser, path=()):
    """All parsers of a tree of commands, with their names."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from walk(inner, (*path, name))


def test_the_tree_of_parsers_has_all_commands_and_options():
    found = dict(walk(commands.parser()))
    assert {path[0] for path in found if path} == set(commands.COMMANDS)
    options = {path: set(parser._option_string_actions) for path, parser in found.items()}
    assert {"--wrt", "--of", "--check", "--report", "--profile"} <= options["run",] & options["report",]
    assert {"--also", "--run"} <= options["check",] and {"--tangent"} <= options["kernel",]
    assert {"--ranks", "--launcher"} <= options["scaling", "run"] and "--network" in options["scaling", "model"]
    for path, parser in found.items():
        for action in parser._actions:
            where = *path, action.dest
            assert action.help, where  # completions show it
            is_command = isinstance(action, argparse._SubParsersAction)
            assert is_command or not isinstance(action.choices, dict), where  # which shtab takes for commands
            assert parser.prog.split()[-len(path) :] == list(path) or not path, where
        parser.format_help()


def test_every_command_has_a_description():
    text = commands._parser(filled=False).format_help()
    assert all(name in text for name in commands.COMMANDS)


@pytest.mark.parametrize(
    "arguments, status, said",
    [
        (["--version"], 0, "ampi "),
        (["--help"], 0, "coverage"),
        (["frobnicate"], 2, "invalid choice: 'frobnicate'"),
        (["program.py"], 2, "run program.py"),
        (["--frobnicate"], 2, "--frobnicate"),
        (["run"], 2, "no program to run"),
        (["run", "missing.py"], 2, "missing.py: No such file"),
        (["run", "--wtr", "x", "missing.py"], 2, "did you mean --wrt?"),
        (["run", "syntax.py"], 1, "SyntaxError: '(' was never closed"),
        (["run", "--wrt", "x", "--of", "y", "syntax.py"], 1, 'File "syntax.py", line 2'),
        (["run", "-c", "print("], 1, "SyntaxError: '(' was never closed"),
        (["run", "nul.py"], 1, "nul.py is not Python"),
        (["run", "latin.py"], 1, "latin.py is not Python"),
        (["check"], 2, "script"),
        (["check", "--frobnicate", "x.py"], 2, "unknown option --frobnicate"),
        (["check", "--alos", "x.py"], 2, "did you mean --also?"),
        (["check", "missing.py"], 2, "missing.py: No such file"),
        (["check", "syntax.py"], 2, "syntax.py:2: '(' was never closed"),
        (["check", "nul.py"], 2, "nul.py: "),
        (["check", "--run", "x.py"], 2, "--run needs --wrt"),
        (["report"], 2, "no program to run"),
        (["report", "syntax.py"], 2, "syntax.py is a file"),
        (["report", "out", "missing.py"], 2, "missing.py: No such file"),
        (["report", "--help"], 0, "FOLDER"),
        (["scaling", "missing.toml"], 1, "missing.toml: No such file"),
        (["kernel", "missing.py:f"], 1, "missing.py: No such file"),
        (["kernel", "syntax.py:f"], 1, "syntax.py:2: '(' was never closed"),
        (["coverage", "--frobnicate"], 2, "--frobnicate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_command_lines(arguments, status, said, tmp_path, monkeypatch, capsys):
    """Each is answered by its exit status and a few lines, and by no traceback."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "syntax.py").write_text("x = (1,\nprint(\n")
    (tmp_path / "nul.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "latin.py").write_bytes(b"x = '\xff'\n")
    monkeypatch.setattr(sys, "argv", ["ampi", *arguments])
    with pytest.raises(SystemExit) as end:
        sys.exit(commands.main())
    out, err = capsys.readouterr()
    assert end.value.code == status and said in out + err, (out, err)
    assert bool(err) == bool(status) and len(err.splitlines()) < 10 and "Traceback" not in err, err


def test_the_installed_script_runs_programs_as_python_does(script, tmp_path):
    (tmp_path / "helper.py").write_text("value = 3\n")
    (tmp_path / "main.py").write_text("import sys, helper\nprint(sys.argv, helper.value)\n")
    assert start(tmp_path, script, "run", "-m", "main", "a").stdout.endswith("'a'] 3\n")
    (tmp_path / "failing.py").write_text("def f():\n    raise ValueError('no')\nf()\n")
    done = start(tmp_path, script, "run", "failing.py")
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and lines[1].startswith("Traceback") and "failing.py" in lines[2], done.stderr
    assert "__main__.py" not in done.stderr and "bin/ampi" not in done.stderr, done.stderr


def test_report_of_several_ranks(mpiexec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text("from mpi4py import MPI\nMPI.COMM_WORLD.allreduce(1.0)\n")
    done = mpiexec(2, "-m", "ampi", "report", "out", "program.py")
    assert done.returncode == 0 and "written to out/index.html" in done.stderr, done.stderr
    assert (tmp_path / "out" / "index.html").is_file() and (tmp_path / "out" / "trace.json.gz").is_file()


RANKS = """\
import sys, warnings
from mpi4py import MPI
comm = MPI.COMM_WORLD
for k in range(20):
    comm.Barrier()
    warnings.warn(f"warning {k}\\n" + 40 * f"of rank {comm.rank} ")
comm.Barrier()
def deep(n):
    if n:
        deep(n - 1)
    raise ValueError(f"error of rank {comm.rank} " + 2000 * "x" + f" of {comm.rank}")
deep(12)
"""


@pytest.mark.parametrize("command", [["-m", "ampi", "run"], ["-c", "import ampi, runpy; runpy.run_path('program.py')"]])
def test_simultaneous_messages_of_ranks_are_not_mixed(command, mpiexec, tmp_path, monkeypatch):
    """Warnings and errors of ranks that speak at the same time are not mixed within a message."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(RANKS)
    done = mpiexec(4, *command, *["program.py"] * (command[0] == "-m"))
    lines = done.stderr.splitlines()
    for k, line in enumerate(lines):
        if "Warning: warning" in line:
            words = lines[k + 1].split()
            assert len(words) == 120 and len(set(words)) == 3, lines[k : k + 2]
    errors = [line for line in lines if line.startswith("ValueError: ")]
    assert errors and all(line.split()[4] == line.split()[-1] for line in errors), errors


FILES = {
    "syntax.py": b"x = (1,\nprint(\n",
    "nul.py": b"x = 1\0\n",
    "latin.py": b"x = '\xff'\n",
    "picture.py": b"\x89PNG\r\n\x1a\n\0\0",
    "wrong.toml": b"[study\n",
    "empty.toml": b"",
    "latin.toml": b"script = '\xff'\n",
    "typed.toml": b"[study]\nscript = 3\nranks = 'many'\n",
    "other.toml": b"[study]\nscript = 'x.py'\nranks = [1]\nfrobnicate = 1\n",
}
"""Files that no command can use."""


def wrong_lines(rng):
    """Command lines with one mistake, drawn from the parsers, and the word that the answer must have."""
    for path, parser in walk(commands.parser()):
        if not path or any(isinstance(action, argparse._SubParsersAction) for action in parser._actions):
            continue
        positional = [action for action in parser._actions if not action.option_strings]
        usual = {
            "script": "good.py",
            "program": "good.py",
            "folder": "out",
            "kernel": "good.py:f",
            "study": "good.toml",
            "system": "slurm",
        }
        rest = [usual[action.dest] for action in positional if action.dest in usual]
        names = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
        for action in parser._actions:
            name = action.option_strings[-1] if action.option_strings else None
            if name is not None:
                at = int(rng.integers(3, len(name) + 1))
                misspelt = name[:at] + "q" + name[at:]
                if misspelt not in names:
                    yield [*path, misspelt, *rest], misspelt
                if action.nargs == 0:
                    yield [*path, f"{name}=3", *rest], name
                elif action.nargs != "?":
                    yield (
                        [*path, *rest, name] if rest and path[0] == "scaling" else [*path, name],
                        name,
                    )
                if action.type is int:
                    yield [*path, name, "many", *rest], "many"
                if action.choices:
                    yield [*path, name, "other", *rest], "other"
            elif action.dest in ("script", "program", "kernel", "study"):
                for file in ("missing", "folder", *FILES):
                    suffix = ".toml" if action.dest == "study" else ".py"
                    file = file if "." in file or file == "folder" else file + suffix
                    if file.endswith(suffix) or file == "folder":
                        end = ":f" if action.dest == "kernel" else ""
                        yield [*path, *rest[:-1], file + end], file
            elif action.choices:
                yield [*path, "other"], "other"
            if action.dest == "kernel":
                yield [*path, "good.py:f.nothing"], "nothing"
                yield [*path, "good.py:g"], "'g'"
                yield [*path, "good.py:f"], "not an @ampi.kernel"
        if positional:
            yield list(path), ""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_mistakes_in_command_lines_draw_short_errors(seed, tmp_path, monkeypatch, capsys):
    """No traceback, nothing printed as a result, an exit status, and the wrong word in the answer."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "good.py").write_text("def f(x):\n    return x\n")
    (tmp_path / "good.toml").write_text("[study]\nscript = 'good.py'\nranks = [1]\n")
    wrong, lines = [], list(wrong_lines(numpy.random.default_rng(seed)))
    for arguments, word in lines:
        monkeypatch.setattr(sys, "argv", ["ampi", *arguments])
        try:
            status = commands.main()
        except SystemExit as end:
            status = end.code
        except BaseException as error:
            status = repr(error)
        out, err = capsys.readouterr()
        if (
            type(status) is not int
            or status == 0
            or not err
            or "Traceback" in err
            or word not in err
            or err.count("\n") > 9
        ):
            wrong.append(f"{' '.join(arguments)}: status {status}, out {out!r}, err {err!r}")
    assert len(lines) > 100 and not wrong, "\n".join(wrong)
