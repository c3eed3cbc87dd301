"""The README's first program prints what the README says."""

import pathlib
import re
import textwrap

README = pathlib.Path(__file__).parents[1] / "README.rst"


def test_first_program(mpiexec, tmp_path):
    program, output = (textwrap.dedent(block) for block in code_blocks(README.read_text())[:2])
    command, *expected = output.strip().splitlines()
    ranks = int(re.search(r"-n (\d+)", command)[1])
    path = tmp_path / "program.py"
    path.write_text(program)
    result = mpiexec(ranks, path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == expected


def code_blocks(text):
    return re.findall(r"^\.\. code::.*\n\n((?:    .*\n|\n)+)", text, re.M)
