"""Whole MPI programs, drawn by hypothesis and valid by construction.

A program is data: the number of ranks and a list of steps, each a kind and some numbers.  `source` writes it as Python,
the same text for all ranks.  The numbers choose among what is valid where the step stands, the simplest first, so that
any list of any numbers is a program: hypothesis can leave out steps and lower numbers as it likes to find a small one.
"""

import dataclasses
import linecache
import random

import generated_check
from generated_steps import KINDS
from generated_writer import Writer
from hypothesis import strategies as st


@dataclasses.dataclass(frozen=True)
class Program:
    """What hypothesis draws; `narrow`: some of the arrays are of single precision; `kept`: it is a step of a time loop
    with so many checkpoints."""

    ranks: int
    steps: tuple
    narrow: bool = False
    kept: int = 0


def programs(ranks, least=1, most=40):
    """Strategy: programs on so many ranks."""
    step = st.tuples(st.sampled_from(list(KINDS)), st.lists(st.integers(0, 999), max_size=14).map(tuple))
    steps = st.lists(step, min_size=least, max_size=most).map(tuple)
    return st.builds(Program, st.just(ranks), steps, st.booleans(), st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4]))


def drawn(number, least, most=40):
    """One of `programs` for the world's ranks, the same on every rank and in every run, whatever else is loaded."""
    ranks = generated_check.WORLD.size
    rng = random.Random(f"{number}: {least} to {most} steps on {ranks} ranks")
    steps = []
    for _ in range(rng.randint(least, most)):
        bound = rng.choice((3, 20, 1000))
        steps.append((rng.choice(list(KINDS)), tuple(rng.randrange(bound) for _ in range(rng.randint(0, 14)))))
    return Program(ranks, tuple(steps), rng.random() < 0.5)


def source(program):
    """The program as a Python function."""
    writer = Writer(program.ranks)
    for kind, choices in program.steps:
        writer.begin(choices)
        KINDS[kind](writer)
    writer.finish()
    return "\n".join(["def program(np, MPI, comm, x):", *("    " + line for line in writer.lines), ""])


def function(text):
    """The function itself; its lines are found by tracebacks."""
    name = f"<generated program {hash(text) & 0xFFFFFFFF:x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace = dict(vars(generated_check), __name__="generated")
    exec(compile(text, name, "exec"), namespace)
    return namespace["program"]


def script(program):
    """A script that checks the program; run it with mpiexec."""
    head = open(generated_check.__file__, encoding="utf-8").read()
    return (
        f"{head}\n\n# {'-' * 100} the program\n\n\n{source(program)}\n\n"
        "attach_buffer()\n"
        f"problems = check(program, narrow={program.narrow}, kept={program.kept})\n"
        "if WORLD.rank == 0:\n"
        '    print("\\n".join(problems) or "all is well")\n'
    )
