"""Models beyond the machine: exact forms, classes of ranks, LogGP, and predictions against what other runs measure."""

import collections
import json
import pathlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ampi
from ampi import scaling
from ampi.mpi.base.rules import TABLE
from ampi.scaling import census, classes, command, forms, loggp, model, netbench, unlogged, validation
from ampi.scaling.command import main

PROGRAM = """\
import numpy, ampi, ampi.numpy as np
comm = ampi.COMM_WORLD
rank, size = comm.rank, comm.size
with ampi.Tape() as tape:
    x = tape.watch(numpy.ones(5))
    y = np.zeros(5)
    for _ in range(3):                                                   # a ring
        comm.Sendrecv(x, (rank + 1) % size, 0, y, (rank - 1) % size, 0)
    for other in (rank - 1, rank + 1):                                   # a halo
        if 0 <= other < size:
            comm.Sendrecv(x[:2].copy(), other, 1, y[:2], other, 1)
    z, largest = np.zeros(5), np.zeros(1)
    comm.Allreduce(x * y, z)
    comm.Allreduce(z[:1].copy(), largest, ampi.MPI.MAX)
    a, b = np.zeros(2 * size), np.zeros(2 * size)
    a[:] = z[0] * x[1]
    comm.Alltoall(a, b)
    comm.Bcast(z, 0)
    s = np.sum(b) + np.sum(z) + largest[0]
tape.gradient(s, x)
"""
STUDY = """\
[study]
script = "program.py"
scaling = "weak"
ranks = [3, 4]
[runs.a]
gradient = {from = "wall"}
[network]
L = 1e-6
o = 4e-7
g = 5e-7
G = 1e-10
"""
NETWORK = loggp.Network(1e-6, 4e-7, 5e-7, 1e-10)


def written(folder):
    (folder / "program.py").write_text(PROGRAM)
    path = folder / "study.toml"
    path.write_text(STUDY)
    return path


def fields(found):
    """Classes without their labels, so that those predicted and measured can be compared."""
    rows = lambda rank: [(place, row) for place, row in sorted(rank.rows.items()) if row.calls]
    return sorted((rank.population, rank.partners, rows(rank)) for rank in found.values())


@pytest.mark.timeout(100)
def test_counts_and_bytes_are_those_of_another_run(tmp_path, capsys):
    study = scaling.read_study(written(tmp_path))
    recorded = model.record(study, (3, 4, 6), say=lambda *_, **__: None)
    measured = classes.classes_of(recorded.pop(6))
    found = model.Model(recorded, NETWORK, "weak")
    assert not found.extrapolation.doubts
    assert fields(found(6).classes) == fields(measured)
    assert sum(rank.population for rank in found(100_000).classes.values()) == 100_000

    assert main(["model", str(study.path), "--at", "100000", "--json", str(tmp_path / "model.json")]) == 0
    said = capsys.readouterr().out
    assert "recording" not in said, "what has been recorded is not run again"
    assert "longest: " in said
    assert "network L = 1e-06; o = 4e-07; g = 5e-07; G = 1e-10 seconds" in said  # of the study

    checked = list(validation.described(recorded | {6: model.record(study, (6,))[6]}, NETWORK, "weak"))
    assert "3 not predicted: it is less than the others" in checked[1]
    assert all(f"{ranks} counts exact; primal" in line for ranks, line in zip((4, 6), checked[2:]))
    assert main(["model", str(study.path), "--at", "9", "--check"]) == 0
    assert "not predicted: the partners of ranks on 4 ranks follow no" in capsys.readouterr().out
    (rank, *_) = json.loads((tmp_path / "model.json").read_text())["100000"]["classes"]
    (alltoall,) = [row for row in rank["rows"] if row[0] == "primal" and row[2] == "Alltoall"]
    assert alltoall[3:6] == [100_000, 1, 16 * 100_000]


@pytest.fixture
def started(monkeypatch):
    """The commands of runs that are not really started: each rank writes a census of nothing."""
    commands = []

    def start(command, folder, variables, timeout):
        commands.append(command)
        into = pathlib.Path(command[command.index("ampi.scaling.census") + 1])
        ranks = int(command[command.index("-n") + 1])
        for rank in range(ranks):
            text = json.dumps({"rank": rank, "ranks": ranks, "seconds": {"recording": 1.0, "sweep": 1.0}, "rows": []})
            (into / f"rank-{rank}.json").write_text(text)
        return 0, 1.0, "", ""

    monkeypatch.setattr(model.runner, "start", start)
    return commands


def recorded(path, *ranks):
    model.record(scaling.read_study(path), ranks, say=lambda *_, **__: None)


def test_a_changed_program_is_recorded_again(tmp_path, started):
    path = written(tmp_path)
    for expected in (2, 2, 4, 4):
        if expected == 4:
            (tmp_path / "program.py").write_text(PROGRAM.replace("range(3)", "range(4)"))
        recorded(path, 3, 4)
        assert len(started) == expected


def test_recorded_sizes_are_those_of_the_threads(tmp_path, started):
    path = written(tmp_path)
    path.write_text(STUDY.replace("ranks = [3, 4]", 'ranks = [3, 4]\nthreads = [2, 4]\nsize = 5\narguments = "{size}"'))
    recorded(path, 3)
    assert started[0][-1] == str(5 * 2 * 3)


def test_numbers_of_ranks_without_a_size_are_refused(tmp_path, started, capsys):
    path = written(tmp_path)
    path.write_text(STUDY.replace("ranks = [3, 4]", "ranks = [3, 4]\nsizes = {3 = 6, 4 = 8}"))
    assert main(["model", str(path), "--ranks", "3", "5"]) == 1
    assert "sizes has no size for 5 ranks" in capsys.readouterr().err
    assert main(["model", str(path), "--ranks", "0"]) == 1
    assert "--ranks and --at take whole numbers from 1 on, and not 0" in capsys.readouterr().err


def test_a_lock_of_no_rank_has_no_partner():
    counted = []
    watch = unlogged.Watch(lambda row, numbers: counted.append((row[1], numbers)), lambda *_: None)
    watch.start()
    try:
        with ampi.Tape():
            win = ampi.Win.Allocate(8, 8, comm=ampi.COMM_SELF)
            for rank in (0, ampi.MPI.PROC_NULL):
                win.Lock(rank)
                win.Unlock(rank)
            win.Free()
    finally:
        watch.stop()
    assert counted[:2] == [
        ("Win.Lock", (1, 0, 0, {ampi.COMM_WORLD.rank})),
        ("Win.Unlock", (1, 0, 0, {ampi.COMM_WORLD.rank})),
    ]
    assert counted[2:] == [("Win.Lock", (1, 0, 0, set())), ("Win.Unlock", (1, 0, 0, set()))]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lulesh(tmp_path):
    """Corners, edges, faces and the inside: fitted on 8 and 27 ranks (on one there is nobody), measured on 64."""
    from test_lulesh_killed import PROGRAM as LULESH

    path = tmp_path / "lulesh.toml"
    arguments = "-s 2 -i 2 --gradient origin"
    path.write_text(STUDY.replace("program.py", str(LULESH)).replace("ranks =", f'arguments = "{arguments}"\nranks ='))
    recorded = model.record(scaling.read_study(path), (1, 8, 27, 64))
    measured = classes.classes_of(recorded.pop(64))
    found = model.Model(recorded, NETWORK, "weak")
    assert not found.extrapolation.doubts
    populations = collections.Counter()
    for rank in measured.values():
        populations[int(rank.partners)] += rank.population
    assert populations == {7: 8, 11: 24, 17: 24, 26: 8}
    assert fields(found(64).classes) == fields(measured)
    assert found.extrapolation.nearest(100_000) == 46**3


# ------------------------------------------------------------------------------------------ decompositions by hand


def grid(edge, dimension):
    """What the ranks of a grid with all its diagonals have counted: one message to each neighbour."""
    places = [(k,) for k in range(edge)]
    for _ in range(dimension - 1):
        places = [(*place, k) for place in places for k in range(edge)]
    found = []
    for rank, place in enumerate(places):
        others = [k for k, at in enumerate(places) if k != rank and max(abs(a - b) for a, b in zip(place, at)) == 1]
        faces = sum(edge - 1 > k > 0 for k in place)
        row = ["primal", "halo.py:3", "send", len(places), len(others), 8 * (1 + faces), 0, others]
        found.append({"rank": rank, "rows": [row], "seconds": {"recording": 1.0, "sweep": 2.0}})
    return found


@pytest.mark.parametrize(
    ("dimension", "edges"), [(1, (2, 3, 5)), (2, (2, 3)), (2, (3, 4)), (3, (2, 3)), (3, (1, 2, 4))]
)
def test_grids(dimension, edges):
    found = model.Model({n**dimension: grid(n, dimension) for n in edges}, NETWORK, "weak")
    for n in (5, 6):
        assert fields(found(n**dimension).classes) == fields(classes.classes_of(grid(n, dimension)))


def workers(ranks):
    """Everybody sends to rank 0."""
    row = lambda rank: ["primal", "m.py:1", "send", ranks, 1, 80, 0, [0]]
    first = ["primal", "m.py:2", "receive", ranks, ranks - 1, 0, 80 * (ranks - 1), list(range(1, ranks))]
    return [
        {"rank": k, "rows": [row(k) if k else first], "seconds": {"recording": 1.0, "sweep": 0.0}} for k in range(ranks)
    ]


def test_one_for_all():
    found = model.Model({n: workers(n) for n in (3, 4)}, NETWORK, "weak")
    assert fields(found(9).classes) == fields(classes.classes_of(workers(9)))
    slow = found(100_000).bottleneck()
    assert "receive at m.py:2, in the primal" not in found(16).bottleneck()
    assert slow.startswith("computation")  # 40 ms of messages, beside a second
    quick = [{**rank, "seconds": {"recording": 1e-4, "sweep": 0.0}} for rank in workers(3)]
    found = model.Model({3: quick, 4: workers(4)}, NETWORK, "strong")
    assert found(100_000).bottleneck().startswith("agreement of the ranks")  # it goes both ways
    assert found(100_000).shares["primal"]["receive at m.py:2"] == pytest.approx(99_999 * NETWORK.o, rel=0.01)


def test_what_follows_no_decomposition_is_refused():
    odd = {n: grid(2, 1)[:1] * n for n in (3, 7)}
    for ranks, found in odd.items():
        odd[ranks] = [
            {**rank, "rank": k, "rows": [[*rank["rows"][0][:4], k % 3 + 1, 8, 0, [0]]]} for k, rank in enumerate(found)
        ]
    with pytest.raises(scaling.ScalingError, match="on 3, 7 ranks follow no known decomposition"):
        model.Model(odd, NETWORK, "weak")
    with pytest.raises(scaling.ScalingError, match="measure on more numbers of ranks"):
        model.Model({8: grid(2, 3)}, NETWORK, "weak")


def test_a_number_of_ranks_that_is_no_cube():
    found = model.Model({8: grid(2, 3), 27: grid(3, 3)}, NETWORK, "weak")
    with pytest.raises(scaling.ScalingError, match="on 100 ranks as on those measured; it takes cubes"):
        found(100)


def test_what_is_not_exact_is_reported():
    ranks = {n: grid(n, 1) for n in (3, 5, 7)}
    ranks[5][2]["rows"][0][5] += 1
    found = model.Model(ranks, NETWORK, "weak")
    assert [doubt.partition(":")[0] for doubt in found.extrapolation.doubts] == ["sent of primal halo.py"]
    assert any("not exact" in line for line in model.described(found, [9]))


# ------------------------------------------------------------------------------------------------- forms and networks


@given(st.sampled_from(forms.CANDIDATES), st.fractions(1, 9, max_denominator=4), st.integers(2, 5))
def test_forms_are_found_from_their_values(form, factor, most):
    form = forms.dataclasses.replace(form, factor=factor)
    values = {n**6: form(n**6) for n in range(2, most + 1)}  # squares and cubes at once
    found = forms.agreeing(values)
    assert any(other(7**6) == form(7**6) for other in found)
    assert all(other(ranks) == value for other in found for ranks, value in values.items())


def test_no_form():
    assert forms.agreeing({2: 1, 4: Fraction(7, 3), 8: 2}) == []


@pytest.mark.parametrize("operation", loggp.COLLECTIVES)
def test_collectives_cost_more_on_more_ranks_and_bytes(operation):
    cost = lambda ranks, nbytes: NETWORK.seconds(loggp.collective(operation, ranks, nbytes, NETWORK))
    assert cost(1, 1e6) == 0 < cost(2, 8) <= cost(64, 8) <= cost(4096, 8)
    assert cost(64, 8) < cost(64, 1e7)


@pytest.mark.parametrize("operation", TABLE.values(), ids=lambda operation: f"{operation.owner}.{operation.name}")
def test_no_operation_is_left_out_in_silence(operation):
    """Each is costed, and so is its adjoint; or it is a message, or named as left out, or moves nothing."""
    costed = lambda name: loggp.cost_of(name, 8, 2, 1, 80, 80, NETWORK) is not None
    name = operation.name
    if operation.owner == "Win":
        assert costed(f"Win.{unlogged.plain(name)}")
    elif operation.owner == "File" or operation.objects:
        found = []
        watch = unlogged.Watch(lambda *_: None, lambda what, _: found.append(what))
        watch.start()
        seen = {attribute for _, attribute, _ in watch._replaced}
        watch.stop()
        assert name in seen or operation.owner == "Message"
    elif name in unlogged.BARRIERS:
        assert costed("Barrier")
    elif operation.owner in ("Datatype", "Op"):
        assert name.startswith(("Pack", "Unpack", "Reduce_local"))
    elif operation.owner in ("Message", "Prequest") or any(word in name.lower() for word in ("send", "recv")):
        assert costed("send") and costed("receive")  # each is logged by itself
    else:
        assert costed(census.plain(name))
        assert name.lstrip("I").lower().startswith("neighbor") or costed(census.adjoint_of(census.plain(name)))


def test_synchronisation_is_costed_or_named():
    assert all(loggp.cost_of(f"Win.{name}", 8, 2, 1, 0, 0, NETWORK) for name in unlogged.SYNCHRONISING)
    assert not any(loggp.cost_of(f"Win.{name}", 8, 2, 1, 0, 0, NETWORK) for name in unlogged.NOT_COSTED)


def test_neighbourhoods_cost_what_their_messages_cost():
    many, few = (loggp.cost_of("Neighbor_alltoall", ranks, 4, 1, 320, 320, NETWORK) for ranks in (8, 100_000))
    assert many == few == loggp.messages(4, 4, 320, 1, NETWORK)
    more = loggp.cost_of("Neighbor_alltoall", 8, 26, 1, 320, 320, NETWORK)
    assert NETWORK.seconds(more) > NETWORK.seconds(few)


def test_what_has_no_cost_is_reported():
    ranks = {n: grid(n, 1) for n in (3, 5)}
    for found in ranks.values():
        for rank in found:
            rank["rows"].append(["primal", "/p/new.py:7", "Broadcast_of_the_future", len(found), 1, 8, 8, []])
            rank["left out"] = [["File.Write_at", "/p/new.py:9"]]
    found = model.Model(ranks, NETWORK, "weak")
    said = "\n".join(model.described(found, [9]))
    assert "not in it: File.Write_at at new.py:9" in said
    assert "not in it: the time of Broadcast_of_the_future at new.py:7" in said


def test_times_are_not_those_of_the_first_tape():
    """It imports and compiles, which counts only where there is no other one; that is said."""
    counted = census.Census()
    took = [[5.0], [5.0, 0.1], [5.0, 0.1, 0.3]]
    for seconds, expected in zip(took, [5.0, 0.2, 0.6]):
        counted.seconds = {"recording": seconds, "sweep": []}
        found = counted.described()
        assert found["seconds"]["recording"] == pytest.approx(expected) and found["tapes"] == len(seconds)
        ranks = {n: [rank | {"tapes": len(seconds)} for rank in grid(n, 1)] for n in (3, 5)}
        said = "\n".join(model.described(model.Model(ranks, NETWORK, "weak"), [9]))
        assert ("have the program differentiate twice" in said) == (len(seconds) == 1)


def test_network_files(tmp_path):
    path = tmp_path / "network.toml"
    path.write_text(NETWORK.text())
    assert loggp.read_network(str(path)) == loggp.read_network("L=1e-6, o=4e-7, g=5e-7, G=1e-10") == NETWORK
    for text, wrong in [
        ("L=1, o=2, g=3", "G must be"),
        ("L=-1, o=2, g=3, G=4", "L must be"),
        ("there/is/none", "No such"),
    ]:
        with pytest.raises(scaling.ScalingError, match=wrong):
            loggp.read_network(text)


def test_network_of_a_study(tmp_path, capsys):
    study = written(tmp_path)
    assert loggp.network_of(scaling.read_study(study).network, tmp_path) == NETWORK
    plain = STUDY[: STUDY.index("[network]")]
    study.write_text(plain)
    assert loggp.network_of(scaling.read_study(study).network, tmp_path) == loggp.DEFAULT
    (tmp_path / "measured.toml").write_text(NETWORK.text())
    study.write_text(plain + '[network]\nfile = "measured.toml"\n')
    assert loggp.network_of(scaling.read_study(study).network, tmp_path) == NETWORK
    for table, wrong in [
        ("L = 1e-6\n", "G: is missing"),
        ('L = "fast"\n', "L: must be a number of seconds"),
        ('L = 1\no = 1\ng = 1\nG = 1\nfile = "x"\n', "not both"),
        ("Latency = 1\n", "there is no such key"),
    ]:
        study.write_text(f"{plain}[network]\n{table}")
        with pytest.raises(scaling.ScalingError, match=wrong):
            scaling.read_study(study)


def test_the_default_network_is_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["model", "--help"])
    said = "".join(capsys.readouterr().out.split())
    assert loggp.read_network(command.NETWORK.partition(" ")[0]) == loggp.DEFAULT
    assert "".join(command.NETWORK.split()) in said


def test_deviations_from_the_prediction_are_reported():
    ranks = {n: grid(n, 1) for n in (3, 5, 7)}
    ranks[7][2]["rows"][0][5] += 1
    ranks[7][2]["seconds"]["sweep"] = 4.0
    line = list(validation.described(ranks, NETWORK, "weak"))[-1]
    assert "not exact: sent of primal halo.py:3 send; primal" in line and "sweep 2 s for 4 s (-50%)" in line


def test_times_of_few_ranks_are_predicted_from_one():
    """Two ranks of a chain are less than a whole one (which has an inside): their own counts are taken."""
    ranks = {n: grid(n, 1) for n in (1, 2, 3, 5)}
    for rank in ranks[2]:
        rank["seconds"]["sweep"] = 4.0
    one, two, three, _ = list(validation.described(ranks, NETWORK, "weak"))[1:]
    assert "1 not predicted" in one and "%" not in one
    assert "2 counts not predicted" in two and "sweep 2 s for 4 s (-50%)" in two
    assert "sweep 2 s for 2 s (+0%)" in three


@pytest.mark.timeout(100)
def test_netbench(mpiexec, tmp_path):
    done = mpiexec(2, "-m", "ampi.scaling", "netbench")
    assert done.returncode == 0, done.stderr
    (tmp_path / "network.toml").write_text(done.stdout)
    network = loggp.read_network(str(tmp_path / "network.toml"))
    assert 0 < network.o <= network.g < 1 and 0 < network.G < 1e-6
    assert len([line for line in done.stdout.splitlines() if " bytes " in line]) == len(netbench.SIZES)


def test_netbench_on_one_rank(capsys):
    assert main(["netbench"]) == 1
    assert "mpiexec -n 2" in capsys.readouterr().err
