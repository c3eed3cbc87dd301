"""Costs of source lines in a report: compilation, waiting, ratios, and costs that belong to no line."""

import re
import time

import numpy
import pytest
from traced_ranks import many

import ampi
import ampi.numpy as np
from ampi.reports import figures as shown
from ampi.reports import written
from ampi.reports.events import COMPILING, PRIMAL, RECORDING, SWEEP, WAITING


def test_the_ratio_is_that_of_one_call():
    """Ten calls without a tape, and two with one, of which each takes three times as long with its adjoint."""
    assert shown.ratio([[8.0, 2.0], [2.0, 1.0], [2.0, 1.0]], [[5, 5], [1, 1], [1, 1]]) == pytest.approx(3.0)
    assert shown.ratio([[1.0], [0.0], [0.0]], [[5], [0], [0]]) is None
    assert shown.ratio([[0.0], [1.0], [1.0]], [[0], [2], [2]]) is None
    assert shown.ratio([[3e-18], [1.0], [1.0]], [[2], [2], [2]]) is None  # what rounding leaves of waiting


def test_much_compilation_is_reported():
    ranks = many(2)
    assert not shown.compilation(ranks)
    ranks[1]["compiling"] = 3.0
    data = shown.figures_of(ranks, "compiled")
    (note,) = data["notes"]
    assert note.startswith("3.0 s on a rank") and note in written.profile(data)


def test_compilation_has_its_own_column_and_is_in_no_ratio(monkeypatch):
    """Of a kernel that takes 0.2 s to compile, and microseconds to run, in each phase."""
    from ampi.kernel.runtime import progress

    @ampi.kernel
    def slow(u, v):
        for i in range(len(u)):
            v[i] = u[i] * u[i]

    def program(x):
        y = np.zeros(len(x))
        for _ in range(3):
            slow(x, y)
        return np.sum(y)

    gradient = ampi.grad(program)
    program(np.ones(3)), gradient(numpy.ones(3))
    call = type(slow).__call__

    def compiles_first(self, *arguments):
        with progress.counted():
            time.sleep(0.2)
            with progress.counted():  # of what it calls
                pass
        time.sleep(0.05)  # belongs to compilation as well: it is between two parts of it
        with progress.counted():
            pass
        return call(self, *arguments)

    monkeypatch.setattr(type(slow), "__call__", compiles_first)
    with ampi.tracing() as trace:
        program(np.ones(3))
        gradient(numpy.ones(3))
        with progress.counted():
            time.sleep(0.1)
    ranks = trace.gather()
    data = shown.figures_of(ranks, "compiled")
    (row,) = [row for row in data["table"] if row["names"] == ["slow"]]
    assert row["compiled"][0] > 6 * 0.25 and row["calls"] == [[3], [3], [3]]
    assert 0 < sum(map(sum, row["seconds"])) < 0.25 and row["ratio"] is not None
    assert row["compiled"][0] + 0.1 < data["total"]["compiled"][0] < row["compiled"][0] + 0.5
    kinds = [lane[k] for lane in data["events"] for k in range(4, len(lane), 6)]
    assert kinds.count(COMPILING) >= 7
    spent = sum(map(sum, data["total"]["phases"])) - data["total"]["compiled"][0]
    rows = sum(sum(map(sum, row["seconds"])) for row in data["table"])
    assert rows + sum(map(sum, data["total"]["elsewhere"])) == pytest.approx(spent, abs=0.05)
    assert re.search(r"elsewhere: compiling +0\.1", written.profile(data)), written.profile(data)


def test_what_is_elsewhere_is_where_the_time_went():
    with ampi.tracing() as trace:
        time.sleep(0.1)
        ampi.COMM_WORLD.Dup().Free()
        time.sleep(0.2)
        ampi.COMM_WORLD.Dup().Free()
        time.sleep(0.3)
    parts = shown.parts_elsewhere(trace.gather())
    found = [parts[name][PRIMAL][0] for name in (shown.BEFORE, shown.BETWEEN, shown.AFTER)]
    assert found == pytest.approx([0.1, 0.2, 0.3], abs=0.08)
    assert [sum(t) for t in parts[shown.BEFORE]][RECORDING:] == [0.0, 0.0]


def test_waiting_is_in_no_ratio():
    """A call takes 1 ms without a tape, and 2 ms with one; all other time is waiting."""
    ranks = many(2, events=4, messages=0)
    for rank in ranks:
        rank["totals"] = {(1, PRIMAL): [2, 12_000_000], (1, RECORDING): [2, 3_000_000], (1, SWEEP): [2, 21_000_000]}
        rank["adjoints"] = {1: 2}
        rank["events"] = [(0, 10_000_000, 1, PRIMAL, WAITING), (0, 20_000_000, 1, SWEEP, WAITING)]
    (row, *_) = shown.table(ranks)
    assert row["ratio"] == pytest.approx(2.0)
    assert [sum(waits) for waits in row["waits"]] == pytest.approx([0.02, 0.0, 0.04])


def test_the_report_explains_why_there_are_fewer_adjoints_than_messages():
    ranks = many(2)
    assert shown.figures_of(ranks, "all")["adjoints"] == ""
    ranks[0]["messages"][0] = (*ranks[0]["messages"][0][:-1], -1)
    assert shown.figures_of(ranks, "one less")["adjoints"].startswith("11 of the 12 messages")
