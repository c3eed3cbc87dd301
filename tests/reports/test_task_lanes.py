"""Tasks in reports: lanes of the threads that ran them, forward and backward, and the edges of the graph."""

import gzip
import itertools
import json
import re
import threading

import numpy
import pytest
from page_browser import look

import ampi
import ampi.numpy as np
from ampi.futures import ThreadPoolExecutor
from ampi.reports.events import RECORDING, SWEEP

X = numpy.linspace(0.2, 1.4, 8)


def graph(u, waits=lambda: None):
    """Four parts in place, three sums that need two of them, and a constant that nobody differentiates."""
    v = np.zeros(len(u))
    n = len(u) // 4

    def part(k):
        waits()
        v[k * n : (k + 1) * n] = np.sin(u[k * n : (k + 1) * n])

    def both(a, b, k):
        a.result()
        b.result()
        return np.sum(np.exp(v[k * n : (k + 2) * n]))

    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(part, k) for k in range(4)]
        v0 = parts[0].result()
        assert v0 is None
        sums = [pool.submit(both, parts[k], parts[k + 1], k) for k in range(3)]
        return sum(found.result() for found in sums)


def expected():
    weights = numpy.repeat([1.0, 2.0, 2.0, 1.0], 2)
    return weights * numpy.exp(numpy.sin(X)) * numpy.cos(X)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    meeting = threading.Barrier(2)  # so that two workers have tasks
    with ampi.tracing():
        with ampi.Tape() as tape:
            u = tape.watch(X)
            before = np.sum(u)
            y = graph(u, lambda: meeting.wait(60)) + before
        gradient = tape.gradient(y, u)
    numpy.testing.assert_allclose(gradient, expected() + 1.0)
    ampi.report(tape, folder)
    text = (folder / "index.html").read_text(encoding="utf-8")
    return folder, json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)[1])


def tasks_of(data, phase):
    flat = data["tasks"][0]
    rows = [flat[k : k + 5] for k in range(0, len(flat), 5)]
    return [(begin, begin + length, lane, data["sites"][site]) for begin, length, lane, site, p in rows if p == phase]


def test_every_task_has_a_bar_forward_and_backward(page):
    _, data = page
    forward, backward = tasks_of(data, RECORDING), tasks_of(data, SWEEP)
    assert sorted(site["name"] for *_, site in forward) == ["both"] * 3 + ["part"] * 4
    assert {site["line"].rpartition(":")[0] for *_, site in forward} == {"test_task_lanes.py"}
    assert {lane for _, _, lane, _ in forward} == {1, 2} and data["lanes"] == [3]
    assert {site["name"] for *_, site in backward} == {"both", "part"} and len(backward) >= 7
    for found in (forward, backward):
        for lane in (1, 2):  # a thread does one thing at a time
            bars = sorted(bar[:2] for bar in found if bar[2] == lane)
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(bars))
    assert max(end for _, end, *_ in forward) <= min(begin for begin, *_ in backward)


def test_edges_are_submits_and_results_and_the_other_way_round_in_the_sweep(page):
    _, data = page
    edges = {phase: [edge for edge in data["edges"] if edge[5] == phase] for phase in (RECORDING, SWEEP)}
    # 7 submits, what each of three sums has asked for (unless it was known), and results that were asked for here
    assert 7 + 6 <= len(edges[RECORDING]) <= 7 + 6 + 4 + 3
    assert len(edges[SWEEP]) == 14  # each task gets adjoints once, and gives once what is left
    assert all(a <= b for _, a, _, b, _, _ in data["edges"])
    assert {lane for _, _, a, _, b, _ in data["edges"] for lane in (a, b)} == {0, 1, 2}


def test_the_tapes_own_records_have_their_times(page):
    _, data = page
    rows = {row["line"]: row for row in data["table"]}
    own = [row for line, row in rows.items() if line.startswith("test_task_lanes.py")]
    assert sum(sum(row["calls"][SWEEP]) for row in own) >= 4  # sums after the results, and what came before the tasks


def test_trace_has_lanes_and_arrows(page):
    folder, data = page
    with gzip.open(folder / "trace.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named == {0: "operations", 1: "phases", 2: "worker 1", 3: "worker 2"}
    bars = [e for e in events if e["ph"] == "X" and e.get("cat", "").endswith("task")]
    assert len(bars) == len(data["tasks"][0]) // 5 and {e["tid"] for e in bars} <= {0, 2, 3}
    arrows = [e for e in events if e.get("cat") == "task" and e["ph"] in "sf"]
    assert len(arrows) == 2 * len(data["edges"])


def test_page_in_a_browser(page, tmp_path):
    script = """
    const count = (what) => document.querySelectorAll("#lanes " + what).length;
    const bars = count("rect.task"), edges = count("line.arrow");
    $("with-edges").click(); const without = count("line.arrow"); $("with-edges").click();
    $("by-phase").value = "2"; $("by-phase").dispatchEvent(new Event("change"));
    const labels = [...document.querySelectorAll("#lanes text")].map((t) => t.textContent);
    return {bars, edges, without, swept: count("rect.task"), labels};
    """
    folder, data = page
    found, said = look(folder / "index.html", script, tmp_path)
    assert not said and "error" not in found, (said, found)
    assert found["bars"] == len(data["tasks"][0]) // 5 and found["edges"] == len(data["edges"]) and not found["without"]
    assert found["swept"] == len(tasks_of(data, SWEEP))
    assert {"rank 0", "worker 1", "worker 2"} <= set(found["labels"])


ON_RANKS = """\
import numpy
import ampi
import ampi.numpy as np
from ampi.futures import ThreadPoolExecutor

comm = ampi.COMM_WORLD

def step(x):
    parts = np.zeros(2)
    def part(k):
        parts[k] = np.sum(np.sin(x[k::2]))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(part, range(2)))
        after = pool.submit(lambda: np.exp(parts[0]))
        comm.Sendrecv(parts[:1], (comm.rank + 1) % comm.size, recvbuf=parts[1:], source=(comm.rank - 1) % comm.size)
        return after.result() * parts[1]

for _ in range(2):
    print(ampi.grad(step)(numpy.arange(4.0)))
"""


def test_messages_between_tasks_have_their_adjoints(mpiexec, tmp_path):
    (tmp_path / "step.py").write_text(ON_RANKS, encoding="utf-8")
    done = mpiexec(2, "-m", "ampi.run", "--report", tmp_path / "out", tmp_path / "step.py")
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)[1])
    assert len(data["matrix"]) == len(data["reverse"]) == 2 and not data["adjoints"]
    assert len([arrow for arrow in data["arrows"] if arrow[7] == SWEEP]) == 4
    for rank in range(2):
        phases = data["tasks"][rank][4::5]
        assert phases.count(RECORDING) == 6 and phases.count(SWEEP) >= 6
        assert data["lanes"][rank] in (2, 3)
