"""Generated programs as text, and the command that prints them."""

import ast
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from language_cases import CASES
from patience import patience

import ampi
from ampi.kernel.__main__ import main

SCRIPT = textwrap.dedent("""\
    import sys

    import numpy as np

    import ampi


    @ampi.kernel
    def energy(x, k=2.0):
        s = 0.0
        for i in range(len(x)):
            s += k * x[i] ** 2
        return s


    class Model:
        @ampi.kernel
        def force(x):
            return 3.0 * x


    if __name__ == "__main__":
        print(energy(np.ones(3)), sys.argv[1:])
""")


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("kind", ["adjoint_source", "tangent_source"])
@pytest.mark.parametrize("name", ["swapped_buffers", "endless", "zipped", "functions_inside"])
def test_every_line_names_its_origin(name, kind):
    function, arguments = CASES[name]
    text = getattr(ampi.kernel(function), kind)(*arguments)
    first = function.__code__.co_firstlineno
    last = max(line for *_, line in function.__code__.co_lines() if line)
    programs = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    lines = text.splitlines()
    for node in (node for program in programs for node in ast.walk(program)):
        if isinstance(node, ast.stmt) and node not in programs and not isinstance(node, ast.Pass):
            _, _, comment = lines[node.lineno - 1].partition("  # line ")
            assert comment.isdigit(), lines[node.lineno - 1]
            assert first <= int(comment) <= last + 30  # nested functions come after the code object's own lines


def test_active_arguments_are_chosen_by_name():
    function, arguments = CASES["swapped_buffers"]
    kernel = ampi.kernel(function)
    assert "def swapped_buffers_tangent(u, v, n, u_dot" in kernel.tangent_source(*arguments, active=["u"])
    with pytest.raises(ValueError, match="has no argument"):
        kernel.tangent_source(*arguments, active=["w"])


def test_types_can_be_given(script, capsys):
    assert main([f"{script}:energy", "--types", "float64[::1], float64"]) == 0
    printed = capsys.readouterr().out
    assert "def energy_adjoint(x, k, x_bar, s_bar):" in printed
    assert f"{script}:8" in printed
    assert "Active: x, k" in printed
    assert main([f"{script}:energy", "--types", "float32[:], float64", "--tangent", "--active", "x"]) == 0
    printed = capsys.readouterr().out
    assert "def energy_tangent(x, k, x_dot):" in printed
    assert "array(float32, 1d, A)" in printed
    assert main([f"{script}:Model.force", "--types", "float64"]) == 0
    assert "def force_adjoint(x, " in capsys.readouterr().out


def test_types_are_those_of_the_calls_in_the_script(script):
    command = [sys.executable, "-m", "ampi.kernel", f"{script}:energy", "first", "second"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=patience(120))
    assert run.returncode == 0, run.stderr
    assert "def energy_adjoint(x, x_bar, s_bar, x_bar_is_new):" in run.stdout
    assert "6.0 ['first', 'second']" in run.stderr and "second'" not in run.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([":energy"], "script.py:function"),
        (["energy"], "write script.py:function"),
        (["SCRIPT:absent", "--types", "float64"], "has no 'absent'"),
        (["SCRIPT:np", "--types", "float64"], "is not an @ampi.kernel"),
        (["SCRIPT:energy", "--types", "real[:]"], "real"),
        (["SCRIPT:energy", "--types", "float64[:], float64", "--active", "z"], "no argument"),
        (["SCRIPT:Model.force"], "give the types"),
    ],
)
def test_mistakes_are_named(script, capsys, arguments, message):
    assert main([a.replace("SCRIPT", str(script)) for a in arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_module_by_name(monkeypatch, capsys):
    assert main(["ampi.kernel.special:digamma", "--types", "float64"]) == 1
    assert "is not an @ampi.kernel" in capsys.readouterr().err


def files_of(kernel):
    """The contents of the adjoint files of a kernel's calls, without checksums."""
    found = []
    for contract in {id(c): c for c in kernel.contracts.values()}.values():
        for made in (contract.adjoint, contract.split and contract.split.adjoint, contract.whole and contract.whole()):
            program = getattr(made, "adjoint", made)
            if program is not None:
                with open(sys.modules[program.py_func.__module__].__file__) as file:
                    text, _, checksum = file.read().rpartition("\n# sha256 ")
                assert len(checksum) == 65
                found.append(text)
    return found


def functions_in(text):
    return {part.partition("(")[0]: part for part in text.split("\ndef ")[1:]}


@pytest.mark.parametrize("name, forms", [("closure_over_constants", 1), ("swapped_buffers", 2)])
def test_the_files_in_the_cache_are_what_is_shown(name, forms):
    kernel = ampi.kernel(CASES[name][0])
    point = CASES[name][1]
    with ampi.Tape() as tape:
        kernel(*(tape.watch(v) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v for v in point))
    files = files_of(kernel)
    assert len(files) == forms
    shown = kernel.adjoint_source(*(np.array(v) if isinstance(v, np.ndarray) else v for v in point))
    if forms == 1:
        assert files == [shown]
    else:
        assert [sorted(n.rpartition("_")[2] for n in functions_in(text)) for text in files] == [
            ["forward", "reverse"],
            ["adjoint"],
        ]
        together = {name: text for file in files for name, text in functions_in(file).items()}
        assert together.keys() == functions_in(shown).keys()
