"""Reports as users see them: the page in a browser, the options of ampi.run, and what is left out of large reports."""

import dis
import gzip
import itertools
import json
import re
import sys
import time
import types

import numpy
import pytest
from page_browser import look
from traced_ranks import many

import ampi
import ampi.numpy
import ampi.numpy as np
from ampi.mpi.base.call_sites import line_of
from ampi.reports import checked, gathering, traced_records, written
from ampi.reports import figures as shown
from ampi.reports.events import PRIMAL, RECORDING, SWEEP
from ampi.testing import TaylorTest

RING = """\
import sys
import numpy
import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD

@ampi.kernel
def square(u, v):
    for i in range(len(u)):
        v[i] = u[i] * u[i]

def energy(x):
    left = np.zeros(3)
    comm.Sendrecv(x[-3:], (comm.rank + 1) % comm.size, recvbuf=left, source=(comm.rank - 1) % comm.size)
    x = np.concatenate([left, x])
    y = np.zeros(len(x))
    square(x, y)
    total = np.zeros(1)
    comm.Allreduce(np.sum(y), total)
    return total[0]

x0 = numpy.arange(1.0, 9.0)
energy(np.array(x0))
with ampi.Tape() as tape:
    x = tape.watch(x0)
    energy = energy(x)
gradient = tape.gradient(energy, x)
"""

PLAIN = """\
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
k = np.linspace(1.0, 2.0, 20) + comm.rank
left = np.zeros(1)
comm.Sendrecv(k[-1:], (comm.rank + 1) % comm.size, recvbuf=left, source=(comm.rank - 1) % comm.size)
total = comm.allreduce(float(np.sum(k**2 * left)))
"""


SLOWLY_WRITTEN = """\
import os
import sys
import time
import ampi
from ampi.reports import written

def late(*arguments, write=written.write_page):
    time.sleep(1)
    write(*arguments)

written.write_page = late
with ampi.tracing() as trace:
    ampi.COMM_WORLD.Barrier()
trace.write(sys.argv[1])
print(os.path.exists(os.path.join(sys.argv[1], "index.html")))
"""


def data_of(folder):
    page = (folder / "index.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1])


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    """The report of a program with its own tape, on three ranks, and what was printed."""
    import shutil
    import subprocess
    import sys

    from patience import patience

    folder = tmp_path_factory.mktemp("ring")
    (folder / "ring.py").write_text(RING)
    mpiexec = shutil.which("mpiexec", path=sys.exec_prefix + "/bin") or shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("no mpiexec")
    options = ["--report", folder / "out", "--graph", folder / "out.dot", "--profile"]
    command = [mpiexec, "-n", "3", sys.executable, "-m", "ampi.run", *options, folder / "ring.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(100))
    assert not done.returncode, done.stderr
    return folder, done.stdout


def test_page_has_what_the_program_did(ring):
    folder, _ = ring
    data = data_of(folder / "out")
    assert data["title"] == "ring.py" and data["ranks"] == 3
    edges = [(source, dest, count, nbytes) for source, dest, _, count, nbytes in data["matrix"]]
    assert edges == [(0, 1, 1, 24), (1, 2, 1, 24), (2, 0, 1, 24)]
    assert [(s, d, n, b) for s, d, _, n, b in data["reverse"]] == [(0, 2, 1, 24), (1, 0, 1, 24), (2, 1, 1, 24)]
    rows = {row["line"]: row for row in data["table"]}
    sends = rows[f"ring.py:{1 + RING[: RING.index('comm.Sendrecv')].count(chr(10))}"]
    assert sends["names"] == ["Sendrecv"] and sends["calls"] == [[1] * 3, [1] * 3, [2] * 3]
    kernel = rows[f"ring.py:{1 + RING[: RING.index('square(x, y)')].count(chr(10))}"]
    assert kernel["names"] == ["square"] and kernel["calls"] == [[1] * 3, [1] * 3, [1] * 3]
    assert all(all(t > 0 for t in ranks) for ranks in kernel["seconds"])


def test_table_on_the_terminal(ring):
    _, printed = ring
    assert re.search(r"ring\.py:\d+ Sendrecv +3 +3 +6 +144 B( +\d+\.\d{4}){3,4}", printed), printed
    kernel = re.search(r"ring\.py:\d+ square +3 +3 +3 .*", printed)[0].split()
    compiling, *times = map(float, [text for text in kernel if re.fullmatch(r"\d+\.\d{4}", text)][:4])
    assert compiling > sum(times), printed  # which are microseconds
    assert re.search(r"^total, compiling included( +\d+\.\d{4}){4}", printed, re.M), printed
    assert re.search(r"^elsewhere: before the first operation", printed, re.M), printed


def test_table_of_a_program_that_does_little_has_columns():
    with ampi.tracing() as trace:
        pass
    _, *rows = trace.profile().splitlines()
    assert len(rows) == 4 and len(set(map(len, rows))) == 1, rows


def test_graph_for_graphviz(ring):
    folder, _ = ring
    text = (folder / "out.dot").read_text()
    assert text.count("program0 -> program1") == 1 and text.count("sweep1 -> sweep0") == 1
    assert text.count("->") == 6 and text.count("{") == text.count("}")


def test_trace_is_json_of_trace_events(ring):
    folder, _ = ring
    with gzip.open(folder / "out" / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2}
    assert (
        sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events) == 9
    )  # primal, recorded, back


def test_page_in_a_browser(ring, tmp_path):
    script = """
    const count = () => [Number($("lanes").dataset.events), Number($("lanes").dataset.arrows)];
    const all = count(), bars = document.querySelectorAll("#lanes svg rect").length;
    const choose = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("change")); };
    choose("by-name", "Sendrecv"); const sends = count(); choose("by-name", "");
    const line = data.sites.find((s) => s.name === "square").line;
    choose("by-line", line); const kernels = count(); choose("by-line", "");
    choose("by-comm", "0"); const world = count(); choose("by-comm", "");
    $("with-adjoints").click(); const without = count(); $("with-adjoints").click();
    choose("by-phase", "2"); const only = count(); choose("by-phase", "");
    choose("lines-rank", "1");
    document.querySelector("#lines-table th[data-k]").click();
    choose("memory-rank", "2"); choose("message-what", "count"); choose("partner-rank", "1");
    toPhase(2); lanes(); const swept = count();
    return {all, sends, kernels, world, without, only, swept, bars,
            cells: document.querySelectorAll("#matrix [data-said]").length,
            partners: document.querySelectorAll("#partners tbody tr").length,
            rows: document.querySelectorAll("#lines-table tbody tr:not(.part)").length,
            parts: document.querySelectorAll("#lines-table tbody tr.part").length,
            summary: $("summary").textContent, title: document.querySelector("h1").textContent};
    """
    folder, _ = ring
    found, said = look(folder / "out" / "index.html", script, tmp_path)
    assert not said and "error" not in found, (said, found)
    data = data_of(folder / "out")
    sites = [[lane[k] for k in range(2, len(lane), 6)] for lane in data["events"]]
    named = lambda name: sum(data["sites"][site]["name"] == name for lane in sites for site in lane)
    assert found["all"] == [sum(map(len, sites)), 9] and found["bars"] > 10
    assert found["sends"] == [named("Sendrecv"), 9] and found["kernels"] == [named("square"), 0]
    assert found["world"][0] == named("Sendrecv") + named("Allreduce") and found["world"][1] == 9
    assert found["without"] == [found["all"][0], 6]
    assert 0 < found["swept"][0] < found["all"][0] and found["swept"][1] >= 3
    phases = [lane[k] for lane in data["events"] for k in range(3, len(lane), 6)]
    assert found["only"] == [phases.count(SWEEP), 3]
    assert (found["cells"], found["partners"], found["rows"]) == (3, 1, len(data["table"]) + 1)
    assert found["parts"] >= 1
    assert found["title"] == "ring.py" and "3 messages of 72 B" in found["summary"]


SEVERAL = """\
import numpy
import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD
second, third = comm.Dup(), comm.Dup()
second.Set_name("second")

def energy(x):
    u = np.array(x)
    for c, times in ((comm, 1), (second, 2), (third, 3)):
        for _ in range(times):
            came, total = np.zeros(1), np.zeros(1)
            request = c.Irecv(came, (c.rank - 1) % c.size)
            c.Send(u[:1] * 1.0, (c.rank + 1) % c.size)
            request.Wait()
            c.Allreduce(np.sum(u), total)
            u = u * total * came
    return np.sum(u)

x0 = numpy.linspace(0.2, 0.9, 5)
energy(np.array(x0))
ampi.grad(energy)(x0)
"""


def test_one_line_that_uses_several_communicators(mpiexec, tmp_path):
    """Calls, waits and adjoints are filtered by the communicator that each of them has used."""
    (tmp_path / "several.py").write_text(SEVERAL)
    done = mpiexec(2, "-m", "ampi.run", "--report", tmp_path / "out", tmp_path / "several.py")
    assert not done.returncode, done.stderr
    script = """
    const choose = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("change")); };
    const found = {};
    for (const name of ["Send", "Wait", "Allreduce"]) for (const phase of ["primal", "recording"]) {
      choose("by-name", name);
      found[`${name} ${phase}`] = data.comms.map((_, k) => {
        choose("by-comm", String(k));
        const drawn = Number($("lanes").dataset.events), events = data.events.flatMap((lane) =>
          lane.map((_, k) => k).filter((k) => k % 6 === 0).map((k) => lane.slice(k, k + 6)));
        const of = events.filter((e) => data.sites[e[2]].name === name && e[5] === k);
        return drawn === of.length ? of.filter((e) => PHASES[e[3]] === phase).length : "drawn otherwise";
      });
    }
    return {found, comms: [...$("by-comm").options].map((o) => o.textContent)};
    """
    seen, said = look(tmp_path / "out" / "index.html", script, tmp_path)
    assert not said and "error" not in seen, (said, seen)
    comms = seen["comms"][1:]
    assert sorted(comms) == ["MPI_COMM_WORLD", "a communicator of 2 ranks", "second"]
    times = {"MPI_COMM_WORLD": 1, "second": 2, "a communicator of 2 ranks": 3}
    assert seen["found"] == {
        f"{name} {phase}": [2 * times[comm] for comm in comms]
        for name in ("Send", "Wait", "Allreduce")
        for phase in ("primal", "recording")
    }


def test_gradient_of_an_unmodified_program(mpiexec, tmp_path):
    program = tmp_path / "plain.py"
    program.write_text(PLAIN)
    options = ["--wrt", "k", "--of", "total", "--objective", "replicated", "--check"]
    done = mpiexec(2, "-m", "ampi.run", *options, "--report", tmp_path / "out", program)
    assert not done.returncode and "PASS" in done.stdout, done.stderr + done.stdout
    data = data_of(tmp_path / "out")
    (check,) = data["check"]
    assert check["passed"] and len(check["curve"]) == 4
    assert re.match(r"k\[\d+\] on rank [01]: .* relative difference \d\.\de-", check["worst"])
    assert {phase for rank in data["phases"] for _, phase in rank} == {-1, PRIMAL, RECORDING, SWEEP}
    (row,) = (row for row in data["table"] if "Sendrecv" in row["names"])
    assert row["calls"] == [[1, 1], [1, 1], [2, 2]] and row["ratio"] is None  # without a tape it only waits


def test_a_program_that_is_only_watched(mpiexec, tmp_path):
    program = tmp_path / "plain.py"
    program.write_text(PLAIN + "MPI.Finalize()\nprint(total > 0)\nraise SystemExit\n")
    done = mpiexec(2, "-m", "ampi.run", "--profile", program)
    assert not done.returncode and "True" in done.stdout, done.stderr
    assert re.search(
        r"plain\.py:7 Sendrecv +2 +0 +0 +32 B +\d+\.\d{4} +0\.0000 +0\.0000 +\d+\.\d{4} *\n", done.stdout
    ), done.stdout


def test_unknown_bytes_are_not_reported_as_zero(mpiexec, tmp_path):
    program = tmp_path / "sums.py"
    program.write_text("import numpy\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Allreduce(numpy.ones(3), numpy.ones(3))\n")
    done = mpiexec(2, "-m", "ampi.run", "--profile", "--report", tmp_path / "out", program)
    assert re.search(r"sums\.py:3 Allreduce +2 +0 +0 +\d+\.\d{4} ", done.stdout), done.stdout
    (row,) = data_of(tmp_path / "out")["table"]
    assert not row["counted"] and row["ratio"] is None


def test_too_many_messages_are_left_out_with_a_note(mpiexec, tmp_path):
    program = tmp_path / "many.py"
    program.write_text(
        "import numpy\nfrom ampi.reports import plain\nfrom mpi4py import MPI\nplain.MOST, comm = 10, MPI.COMM_WORLD\n"
        "other, x, y = 1 - comm.rank, numpy.ones(1), numpy.ones(1)\n"
        "for k in range(8):\n    comm.Sendrecv(x, other, recvbuf=y, source=other)\n"
    )
    done = mpiexec(2, "-m", "ampi.run", "--report", tmp_path / "out", program)
    data = data_of(tmp_path / "out")
    assert not done.returncode and [edge[3] for edge in data["matrix"]] == [5, 5]
    assert any(note.startswith("12 sends, receives") for note in data["notes"]), data["notes"]
    assert "12 sends, receives" in done.stderr and data["table"][0]["calls"][PRIMAL] == [8, 8]


def test_status_and_traceback_stay_the_programs_own(mpiexec, tmp_path):
    program = tmp_path / "ends.py"
    program.write_text("import sys\nsys.exit(3) if len(sys.argv) > 1 else 1 / 0\n")
    done = mpiexec(1, "-m", "ampi.run", "--profile", program, "exit")
    assert done.returncode == 3
    done = mpiexec(1, "-m", "ampi.run", "--profile", program)
    assert done.returncode and "ZeroDivisionError" in done.stderr and "traced.py" not in done.stderr, done.stderr


@pytest.mark.parametrize("end", ["1 / 0", pytest.param("sys.exit(3)", marks=pytest.mark.slow), "sys.exit('no')"])
def test_a_failed_run_reports_that_there_is_no_report(end, mpiexec, tmp_path):
    program, out = tmp_path / "ends.py", tmp_path / "out"
    program.write_text(f"import sys\nfrom mpi4py import MPI\nif len(sys.argv) > 1:\n    {end}\n")
    started = "-m", "ampi.run", "--report", out, "--profile", program
    done = mpiexec(2, *started, "now")
    assert done.returncode and "so there is no report or table of it\n" in done.stderr, done.stderr
    done = mpiexec(2, *started)
    assert done.returncode == 0 and "no report" not in done.stderr, done.stderr
    done = mpiexec(2, *started, "now")
    assert done.stderr.count("of it; the files there are from an earlier one\n") == 1, done.stderr


def test_lines_of_a_long_function_are_looked_up_in_one_table():
    text = "def f(x):\n" + "    x = x + 1\n\n" * 300 + "    return x\n"
    names = {}
    exec(compile(text, "long.py", "exec"), names)
    real, asked = names["f"].__code__, []
    code = types.SimpleNamespace(co_filename="long.py", co_firstlineno=1)
    code.co_lines = lambda: asked.append(code) or real.co_lines()
    starts = dict(dis.findlinestarts(real))
    line = 1
    for instruction in dis.get_instructions(real):
        line = starts.get(instruction.offset) or line
        assert line_of((code, instruction.offset)) == f"long.py:{line}"
    assert line == 602 and len(asked) == 1


@pytest.mark.parametrize("end", ["1 / 0", "sys.exit(3)"])
def test_a_rank_that_fails_alone_reports_it_as_well(end, mpiexec, tmp_path):
    program = tmp_path / "ends.py"
    program.write_text(
        f"import sys\nfrom mpi4py.MPI import COMM_WORLD\nif COMM_WORLD.rank:\n    {end}\nCOMM_WORLD.bcast(1)"
    )
    done = mpiexec(2, "-m", "ampi.run", "--profile", program)
    assert done.returncode and done.stderr.count("so there is no table of it") == 1, done.stderr


def test_a_check_that_fails_has_its_report(mpiexec, tmp_path):
    program = tmp_path / "drops.py"
    program.write_text("import ampi\nimport numpy as np\nk = np.ones(3)\ny = np.sum(np.sin(ampi.value(k)) + k**2)\n")
    options = ["--wrt", "k", "--of", "y", "--check", "--report", tmp_path / "out"]
    done = mpiexec(1, "-m", "ampi.run", *options, program)
    assert done.returncode == 1 and "FAIL" in done.stdout and "no report" not in done.stderr, done.stderr
    assert not data_of(tmp_path / "out")["check"][0]["passed"]


def test_all_ranks_have_the_page_when_it_is_written(mpiexec, tmp_path):
    program = tmp_path / "slow.py"
    program.write_text(SLOWLY_WRITTEN)
    done = mpiexec(3, program, tmp_path / "out")
    assert not done.returncode and done.stdout.split() == ["True"] * 3, done.stderr + done.stdout


def test_a_folder_that_cannot_be_made(mpiexec, tmp_path):
    (tmp_path / "file").write_text("")
    done = mpiexec(2, "-m", "ampi.run", "--report", tmp_path / "file" / "out", "-c", "print('ran')")
    assert done.returncode and "--report" in done.stderr and "ran" not in done.stdout


@pytest.mark.parametrize(
    ("option", "path", "folder"), [("--report", "out", "out/index.html"), ("--graph", "graph.dot", "graph.dot")]
)
def test_a_file_that_cannot_be_written_is_an_error_before_the_program_runs(option, path, folder, mpiexec, tmp_path):
    (tmp_path / folder).mkdir(parents=True)
    done = mpiexec(2, "-m", "ampi.run", option, tmp_path / path, "-c", "print('ran')")
    assert done.returncode and f"ampi.run: {option} {tmp_path / path}: " in done.stderr, done.stderr
    assert "ran" not in done.stdout and "Traceback" not in done.stderr
    assert [found.relative_to(tmp_path).as_posix() for found in tmp_path.rglob("*") if found.is_file()] == []


# ------------------------------------------------------------------------------------------------- many ranks, much


@pytest.mark.parametrize("ranks", [2, 64])
def test_few_ranks_and_many(ranks, tmp_path):
    data = shown.figures_of(many(ranks), "many")
    assert len(data["matrix"]) == ranks and len(data["arrows"]) == 2 * 6 * ranks and not data["notes"]
    written.write_page(tmp_path / "index.html", data)
    script = """
    const frames = ["lanes", "graph", "matrix", "lines-table"].map((id) => $(id).getBoundingClientRect());
    const texts = [...document.querySelectorAll("#lanes svg text")].filter((t) => t.textContent.startsWith("rank"));
    const heights = texts.map((t) => t.getBoundingClientRect());
    const apart = heights.slice(1).map((b, k) => b.top - heights[k].bottom);
    return {held: $("held").getAttribute("points").split(" ").length,
            shadows: document.querySelectorAll("#memory-curve .shadow").length, legend: $("memory-legend").textContent,
            clipped: $("lines-table").scrollWidth > $("lines-table").clientWidth,
            heights: frames.map((f) => f.height), wide: document.documentElement.scrollWidth > innerWidth,
            apart: Math.min(0, ...apart), names: texts.length};
    """
    found, said = look(tmp_path / "index.html", script, tmp_path)
    assert not said and "error" not in found, (said, found)
    assert all(50 < height < 1000 for height in found["heights"]) and not found["clipped"], found
    assert (
        found["shadows"] == 2 and found["held"] == 8 and "2 checkpoints, 5.00 KiB written; 1 freed" in found["legend"]
    ), found
    assert not found["wide"] and found["apart"] > -3 and found["names"] >= min(ranks, 16)


def test_too_much_data_is_left_out_with_a_note(monkeypatch, tmp_path):
    monkeypatch.setattr(shown, "MOST_SHOWN", 60)
    monkeypatch.setattr(shown, "MOST_ARROWS", 10)
    monkeypatch.setattr(written, "MOST_IN_TRACE", 30)
    ranks = many(2, events=100)
    data = shown.figures_of(ranks, "much")
    assert [len(lane) // 6 for lane in data["events"]] == [30, 30] and len(data["arrows"]) == 10
    assert len(data["notes"]) == 2 and "142 shorter ones" in data["notes"][0] and "10 messages" in data["notes"][1]
    assert sum(row["calls"][SWEEP][0] for row in data["table"]) == 100  # the table counts all
    assert [row["compiled"][0] for row in data["table"] if row["line"] == "a.py:9"] == [5e-5]
    said = written.write_trace(tmp_path / "trace.json.gz", ranks)
    assert "172 are left out" in said


def test_functions_of_many_lines_are_no_trouble(tmp_path, monkeypatch):
    """A function of so many lines is looked through once, not for each of them."""
    lines = 4000
    program = "def f(x):\n    x = np.array(x)\n" + "    x[:2] = np.sin(x[1:])\n" * lines + "    return np.sum(x)\n"
    names = {"np": np}
    exec(compile(program, str(tmp_path / "long.py"), "exec"), names)
    x = numpy.ones(3)
    gradient = ampi.grad(names["f"])
    gradient(x)
    begin = time.process_time()
    gradient(x)
    alone = time.process_time() - begin
    begin = time.process_time()
    with ampi.tracing() as trace:
        gradient(x)
    assert time.process_time() - begin < 10 * alone + 2
    trace.write(str(tmp_path / "out"))
    data = data_of(tmp_path / "out")
    assert {row["line"] for row in data["table"]} >= {f"long.py:{k}" for k in range(3, lines + 4)}
    assert (tmp_path / "out" / "index.html").stat().st_size < 1000 * lines  # curves by line are those of the largest
    (memory,) = data["memory"]
    assert 1 < max(len(sizes) for _, sizes in memory["curve"] + memory["shadows"]) <= shown.MOST_AREAS + 1


def test_what_comes_before_the_first_record_is_elsewhere():
    with ampi.tracing() as trace:
        ampi.COMM_WORLD.Dup().Free()
        with ampi.Tape() as tape:
            time.sleep(0.3)  # imports
            x = tape.watch(numpy.ones(3))
            y = ampi.numpy.sum(x * x)
        tape.gradient(y, x)
    ranks = trace.gather()
    assert shown.elsewhere(ranks)[RECORDING][0] > 0.3
    rows = shown.table(ranks)
    assert sum(row["seconds"][RECORDING][0] for row in rows) < 0.3
    (made,) = [row for row in rows if "Dup" in row["names"]]
    assert made["calls"][PRIMAL] == [1] and made["waits"][PRIMAL][0] > 0


def test_a_tape_inside_of_another_one_and_one_of_nothing():
    """Messages after the inner tape are the outer one's, with the times of their calls."""
    comm = ampi.COMM_WORLD
    with ampi.tracing() as trace:
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(3))
            with ampi.Tape() as inner:
                pass
            assert ampi.jvp(lambda u: u * 2.0, numpy.ones(2), numpy.ones(2))[1][0] == 2.0
            y = ampi.numpy.zeros(3)
            request = comm.Irecv(y, comm.rank)
            comm.Send(x * 2.0, comm.rank)
            request.Wait()
        tape.gradient(y, x, seed=numpy.ones(3))
        assert inner.gradient([], []) == []
    (rank,) = trace.gather()
    times = [message[6:8] for message in rank["messages"] if message[0] < 2]
    assert len(times) == 2 and all(0 < begin <= end for begin, end in times)


@pytest.mark.mpi(min_size=2, max_size=3)
@pytest.mark.parametrize("ahead", [0, 10**9])
def test_clocks_are_aligned(ahead, monkeypatch):
    """Clocks that are a second ahead of one another, and do not run alike; and the one clock of a machine."""
    comm, true = ampi.COMM_WORLD, time.perf_counter_ns
    start, drift = comm.bcast(true()), 1e-3 * (ahead > 0) * comm.rank
    clock = lambda t: t + comm.rank * ahead + int(drift * (t - start))
    monkeypatch.setattr(gathering, "now", lambda: clock(true()))
    clocks = gathering.Clocks()
    time.sleep(0.2)
    moment = true()
    time.sleep(0.1)
    since, offset, growing = clocks.aligned()
    aligned = clock(moment) + offset + round((clock(moment) - since) * growing)
    assert abs(aligned - moment) < (5e7 if ahead else 1)
    comm.Barrier()


def test_memory_of_a_tape_is_seen_until_it_is_gone():
    """Of four gradients, one after the other, the tape of one is there at a time."""
    function = lambda u: np.sum(np.sin(np.exp(u)))
    with ampi.tracing() as trace:
        for _ in range(4):
            with ampi.Tape() as tape:
                x = tape.watch(numpy.ones(100))
                u = np.exp(x)
                u[:] = u * u
                y = np.sum(u)
            tape.gradient(y, x)
            saved = tape.saved_bytes + tape.kept_bytes
            del tape, x, u, y
    with ampi.tracing() as other:
        ampi.grad(function)(numpy.ones(3))
    (rank,) = trace.gather()
    found = shown._memory(rank)
    heights = [sum(sizes.values()) for _, sizes in found["curve"]]
    assert saved and max(heights) == sum(found["most"]) == saved and heights[-1] == 0 and heights.count(0) == 4
    assert sum(sum(row["tape"]) for row in shown.table([rank])) == 4 * saved
    assert all(sizes == {} for _, sizes in shown._memory(other.gather()[0])["curve"][-1:])


def test_curves_keep_their_highest_and_lowest_points():
    totals = [1000 * (k == 777) + k % 7 for k in range(10_000)] + [-5, 3]
    kept = shown._turning_points(totals)
    assert {777, 10_000, 10_001} <= kept and len(kept) <= 1.1 * shown.MOST_SAMPLES
    assert shown._turning_points([4, 2]) == {0, 1} and shown._turning_points([]) == set()


def test_checkpoints_are_seen_until_they_are_freed():
    """Of a loop of 20 steps with three states at a time."""
    with ampi.tracing() as trace:
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(100))
            y = ampi.timeloop(lambda u: u * u, x * 1.0, steps=20, checkpoints=3)
            total = ampi.numpy.sum(y)
        tape.gradient(total, x)
        del tape, y, total
    (rank,) = trace.gather()
    sizes = [size for _, size in rank["checkpoints"]]
    held = list(itertools.accumulate(sizes))
    assert min(sizes) < 0 < max(sizes) and min(held) >= 0 and max(held) <= 4 * max(sizes)
    assert held[-1] == 0
    assert [size for _, size in shown._memory(rank)["held"]] == held


@pytest.mark.parametrize("lanes", [0, 3])
def test_shadows_are_those_of_the_lines_whose_adjoints_made_them(lanes, monkeypatch):
    monkeypatch.setattr(traced_records, "SAMPLES", 10**9)  # at every record
    monkeypatch.setattr(traced_records, "SHARE", 0)
    with ampi.tracing() as trace:
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(100))
            u = np.sin(x)
            v = np.exp(u[:50])
            y = np.sum(v)
        tape.gradient(y, x, **({"seeds": numpy.ones(lanes)} if lanes else {}))
    (rank,) = trace.gather()
    line = sys._getframe().f_lineno - 4  # of the exponential
    each = max(lanes, 1) * 8
    places = {
        site: int(rank["sites"][site][0].rpartition(":")[2] or 0) for _, found in rank["shadows"] for site in found
    }
    most = {}
    for _, found in rank["shadows"]:
        for site, size in found.items():
            most[places[site]] = max(most.get(places[site], 0), size)
    # The sum makes that of v, the exponential that of u; the sine that of x (of a vector sweep rows of 16 bytes).
    assert most[line + 1] >= 50 * each and most[line] >= 100 * each and most[line - 1] >= 100 * each, most
    assert rank["shadows"][-1][1] == {}


def test_checks_are_shown_with_their_curve():
    taylor = TaylorTest([0.1, 0.05, 0.025], [1.0, 0.5, 0.25], [0.01, 0.0025, 0.000625], 1e-16)
    (found,) = checked.described(taylor)
    assert found["passed"] and found["curve"] == [[0.1, 0.01], [0.05, 0.0025], [0.025, 0.000625]]
    assert checked.described(None) == [] and len(checked.described([taylor, taylor])) == 2
