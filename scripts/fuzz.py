"""The search of `scripts/fuzz`: hypothesis draws programs, and a group of ranks checks them.

The ranks are started once and check one program after another.  If one of them dies or none answers, all are restarted,
and the program has failed.
"""

import argparse
import collections
import dataclasses
import faulthandler
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import hypothesis

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

ROUND = 50  # programs drawn with one seed on one number of ranks
PATIENCE = 120  # seconds for one program, on a machine with other work
ANSWER = "answer: "


# ---------------------------------------------------------------------------------------------------------- the ranks


def work():
    """The work of each rank: check programs, which rank 0 reads line by line."""
    from generated_check import WORLD, attach_buffer, check
    from generated_programs import function

    attach_buffer()
    while True:
        line = WORLD.bcast(sys.stdin.readline() if WORLD.rank == 0 else None)
        if not line:
            return
        task = json.loads(line)
        faulthandler.dump_traceback_later(PATIENCE - 10)  # shows where ranks that do not answer are
        try:
            problems = check(function(task["source"]), task["narrow"], task["kept"])
        except BaseException:
            sys.stderr.write(f"rank {WORLD.rank}:\n{traceback.format_exc()}")
            sys.stderr.flush()
            WORLD.Abort(1)
        faulthandler.cancel_dump_traceback_later()
        if WORLD.rank == 0:
            print(ANSWER + json.dumps(problems), flush=True)


class Group:
    """Ranks that check programs."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.errors = tempfile.TemporaryFile("w+")
        mpiexec = pathlib.Path(sys.executable).with_name("mpiexec")
        environment = {**os.environ, "AMPI_TIMEOUT": str(PATIENCE // 4), "PYTHONWARNINGS": "ignore"}
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
            environment.setdefault(name, "1")
        self.process = subprocess.Popen(
            [str(mpiexec), "-n", str(ranks), sys.executable, __file__, "--work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            start_new_session=True,
        )

    def check(self, source, narrow, kept):
        """The problems of a program; empty if there are none."""
        try:
            self.process.stdin.write(json.dumps({"source": source, "narrow": narrow, "kept": kept}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self.dead("the ranks ended")
        answer = b""
        deadline = time.monotonic() + PATIENCE
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return self.dead(f"no answer within {PATIENCE} s")
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                return self.dead("a rank ended")
            answer += piece
            if answer.endswith(b"\n"):
                answer = answer[answer.find(ANSWER.encode()) :] if ANSWER.encode() in answer else b""
        return json.loads(answer[len(ANSWER) :])

    def dead(self, why):
        self.stop()
        self.errors.seek(0)
        return [why, *self.errors.read().splitlines()[-100:]]

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    @property
    def alive(self):
        return self.process.poll() is None


# --------------------------------------------------------------------------------------------------------- the search


class Found(Exception):
    """A program has failed."""


class Search:
    """Draws programs until the deadline; ``failed`` is the last one that failed, and why."""

    def __init__(self, deadline):
        self.deadline = deadline
        self.group = None
        self.failed = None
        self.seed = 0
        self.programs = self.loops = 0
        self.steps = collections.Counter()

    def verdict(self, program, text):
        if self.group is None or not self.group.alive or self.group.ranks != program.ranks:
            self.close()
            self.group = Group(program.ranks)
        return self.group.check(text, program.narrow, program.kept)

    def round(self, ranks, seed):
        """Programs for one seed; raises Found."""
        from generated_programs import programs

        self.seed = seed

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=ROUND,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(programs(ranks, least=12))
        def one(program):
            if self.failed is None and time.monotonic() < self.deadline:
                self.programs += 1
                self.loops += program.kept > 0
                self.steps.update(kind for kind, _ in program.steps)
                self.fails(program)

        one()
        if self.failed is not None:
            self.minimise()
            raise Found

    def fails(self, program):
        """Return whether a program fails; it is saved if so."""
        from generated_programs import script, source

        problems = self.verdict(program, source(program))
        if problems:
            self.failed = program, problems
            self.file().write_text(script(program), encoding="utf-8")  # it may never end to be made smaller
            self.say(f"FAILED with {len(program.steps)} steps:", problems[0].replace("\n", " ")[:100])
        return bool(problems)

    def minimise(self):
        """Leave out steps of the program that failed, many at once and then one by one, and simplify what is left.

        Not hypothesis, which knows nothing of steps and gives up after five minutes.
        """
        size = len(self.failed[0].steps)
        while size:
            position = 0
            while position < len(self.failed[0].steps):
                program = self.failed[0]
                steps = program.steps[:position] + program.steps[position + size :]
                if not steps or not self.fails(dataclasses.replace(program, steps=steps)):
                    position += size
            size //= 2
        for position, (kind, choices) in enumerate(self.failed[0].steps):
            for number in range(len(choices)):
                program = self.failed[0]
                present = program.steps[position][1]
                simpler = (kind, (*present[:number], 0, *present[number + 1 :]))
                steps = (*program.steps[:position], simpler, *program.steps[position + 1 :])
                if present[number]:
                    self.fails(dataclasses.replace(program, steps=steps))

    def file(self):
        return pathlib.Path(f"fuzz-{self.seed}.py").resolve()

    def say(self, *words):
        print(time.strftime("%H:%M:%S"), *words, flush=True)

    def close(self):
        if self.group is not None:
            self.group.stop()
            self.group = None


def main():
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--ranks", type=int, choices=(2, 3, 4), help="number of ranks (default: 2, 3 and 4 in turn)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the first round (default: random)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # with the ranks
    search = Search(time.monotonic() + 60 * options.minutes)
    seed = random.randrange(10**6) if options.seed is None else options.seed
    status = 0
    try:
        while time.monotonic() < search.deadline:
            ranks = options.ranks or 2 + seed % 3
            search.round(ranks, seed)
            search.say(f"seed {seed} on {ranks} ranks: {search.programs} programs, {search.steps.total()} steps so far")
            seed += 1
    except Found:
        status = 1
        report(search.file(), *search.failed)
    finally:
        search.close()
    counts = ", ".join(f"{kind} {n}" for kind, n in search.steps.most_common())
    outcome = (
        f"{search.programs} programs ({search.loops} as steps of time loops), {'one' if status else 'none'} failed"
    )
    search.say(f"{outcome}; steps: {counts}")
    return status


def report(file, program, problems):
    from generated_programs import source

    print(f"\n{source(program)}", *problems, sep="\n")
    print(f"\nmpiexec -n {program.ranks} python {file}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--work"]:
        work()
    else:
        sys.exit(main())
