"""LULESH: what it computes, against the C++ original's published problem and against closed forms."""

import csv
import ctypes
import itertools
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from mpi4py import MPI
from patience import patience

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "lulesh" / "lulesh.py"
REFERENCE = ROOT / "tests" / "data" / "lulesh"

sys.path.insert(0, str(PROGRAM.parent))
import lulesh  # noqa: E402
from sedov import exchange, geometry, hydro, kernels, regions  # noqa: E402
from sedov.domain import Domain  # noqa: E402


def reference(ranks, size):
    """Time and time step of each cycle as printed by the original, and its final figures."""
    with open(REFERENCE / "timesteps.csv") as file:
        key = (str(ranks), str(size))
        steps = [(r["time"], r["dt"]) for r in csv.DictReader(file) if (r["ranks"], r["edge_elements_per_rank"]) == key]
    for final in json.loads((REFERENCE / "final_energy.json").read_text()):
        if (final["ranks"], final["edge_elements_per_rank"]) == (ranks, size):
            return steps, final
    raise LookupError(key)


def simulate(comm, size, cycles=9999999, **options):
    """Run the problem; time and time step of each cycle as the original prints them."""
    steps = []
    domain = Domain(comm, size, **options)
    lulesh.run(domain, cycles, lambda d: steps.append((f"{d.time[0]:.6e}", f"{d.dt[0]:.6e}")))
    return domain, steps


def origin_energy(domain):
    return f"{domain.comm.bcast(float(domain.energy[0])):.6e}"


def check_against_reference(comm, size):
    steps, final = reference(comm.size, size)
    domain, got = simulate(comm, size, final["cycles"])
    assert got == steps
    assert domain.cycle == final["cycles"]
    assert (domain.time[0] >= hydro.END_TIME) == final["ran_to_end"]
    assert f"{domain.time[0]:.6e}" == f"{final['final_time']:.6e}"
    assert origin_energy(domain) == f"{final['final_origin_energy']:.6e}"


@pytest.mark.parametrize("size", [5, 10, 30, 45])
def test_one_rank_gives_the_originals_digits(size):
    check_against_reference(MPI.COMM_SELF, size)


@pytest.mark.mpi(min_size=8)
@pytest.mark.parametrize("size", [3, 5, 15])
def test_eight_ranks_give_the_originals_digits(size):
    check_against_reference(first_ranks(8), size)


def first_ranks(count):
    comm = MPI.COMM_WORLD.Split(0 if MPI.COMM_WORLD.rank < count else MPI.UNDEFINED)
    if comm == MPI.COMM_NULL:
        pytest.skip(f"not one of the first {count} ranks")
    return comm


# Whom a rank takes positions and velocities from, in the order in which LULESH overwrites: planes, edges, corners.
SOURCES = (
    ((0, 0, 1), (0, 1, 0), (1, 0, 0))
    + ((1, 1, 0), (0, 1, 1), (1, 0, 1), (-1, 1, 0), (0, -1, 1), (-1, 0, 1))
    + ((-1, -1, 1), (1, -1, 1), (-1, 1, 1), (1, 1, 1))
)


class CopyLikeTheOriginals:
    """Positions and velocities of shared nodes, message for message as the original exchanges them."""

    def __init__(self, comm, box, numbers):
        self.comm = comm
        self.sources = [(box.neighbors[o], exchange.shared(o, numbers)) for o in SOURCES if o in box.neighbors]
        opposite = [tuple(-k for k in o) for o in SOURCES]
        self.targets = [(box.neighbors[o], exchange.shared(o, numbers)) for o in opposite if o in box.neighbors]

    def post(self):
        self.received = [np.empty((6, len(nodes))) for _, nodes in self.sources]
        self.requests = [self.comm.Irecv(b, rank, exchange.MOTION) for b, (rank, _) in zip(self.received, self.sources)]

    def send(self, x, v):
        self.sent = [np.stack([u[nodes] for u in (*x, *v)]) for _, nodes in self.targets]
        self.requests += [self.comm.Isend(b, rank, exchange.MOTION) for b, (rank, _) in zip(self.sent, self.targets)]

    def finish(self, x, v):
        MPI.Request.Waitall(self.requests)
        for buffer, (_, nodes) in zip(self.received, self.sources):
            x[:, nodes] = buffer[:3]
            v[:, nodes] = buffer[3:]


def simulate_with_copy(comm, size):
    domain = Domain(comm, size)
    nodes = np.arange(domain.nodes).reshape(3 * (size + 1,))
    domain.motion_copy = CopyLikeTheOriginals(comm, domain.box, nodes)
    steps = []
    lulesh.run(domain, report=lambda d: steps.append((f"{d.time[0]:.6e}", f"{d.dt[0]:.6e}")))
    return domain, steps


@pytest.mark.mpi(min_size=8)
def test_it_does_not_matter_from_which_rank_a_node_is_copied():
    """Ours come from the node's owner; in the original the last message wins, and not all of them are the owner's."""
    comm = first_ranks(8)
    domain, steps = simulate(comm, 3)
    other, same_steps = simulate_with_copy(comm, 3)
    assert same_steps == steps
    assert origin_energy(other) == origin_energy(domain)


@pytest.mark.mpi(min_size=8)
def test_eight_ranks_give_the_digits_of_the_same_mesh_on_one():
    comm = first_ranks(8)
    steps, final = reference(1, 10)
    domain, got = simulate(comm, 5)
    assert got == steps
    assert origin_energy(domain) == f"{final['final_origin_energy']:.6e}"


STATE = ("energy", "pressure", "viscosity", "sound_speed", "relative_volume", "x", "v")


def box_of(domain, whole):
    """The part of each state array of ``whole`` (one rank) that ``domain`` covers."""
    s, n = domain.size, whole.size
    x, y, z = (place * s for place in domain.box.place)
    for name in STATE:
        extra = 1 if name in "xv" else 0
        field = getattr(whole, name).reshape((-1,) + 3 * (n + extra,))
        part = field[:, z : z + s + extra, y : y + s + extra, x : x + s + extra]
        yield name, part.reshape(getattr(domain, name).shape)


@pytest.mark.mpi(min_size=8)
@pytest.mark.parametrize("size, cycles", [(1, 5), (2, 30), (3, 60)])
def test_the_state_does_not_depend_on_the_number_of_ranks(size, cycles):
    comm = first_ranks(8)
    domain, _ = simulate(comm, size, cycles)
    whole, _ = simulate(MPI.COMM_SELF, 2 * size, cycles)
    for name, expected in box_of(domain, whole):
        np.testing.assert_allclose(
            getattr(domain, name), expected, rtol=1e-11, atol=1e-12 * np.abs(getattr(whole, name)).max(), err_msg=name
        )


@pytest.mark.mpi(min_size=8)
def test_copies_of_a_node_are_the_same_on_all_ranks():
    comm = first_ranks(8)
    domain, _ = simulate(comm, 3, 40)
    pieces = comm.allgather((domain.box.place, domain.x, domain.v))
    seen = {}
    for place, x, v in pieces:
        for z, y, i in itertools.product(range(4), repeat=3):
            key = tuple(3 * p + k for p, k in zip(place, (i, y, z)))
            node = i + 4 * (y + 4 * z)
            values = (*x[:, node], *v[:, node])
            assert seen.setdefault(key, values) == values
    assert len(seen) == 7**3


def run_program(ranks, *arguments, timeout=100):
    command = [sys.executable, str(PROGRAM), *arguments]
    if ranks > 1:
        mpiexec = pathlib.Path(sys.executable).with_name("mpiexec")
        command = [str(mpiexec) if mpiexec.exists() else "mpiexec", "-n", str(ranks), *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(timeout))


def test_program_prints_the_originals_closing_lines():
    done = run_program(1, "-s", "5", "-p")
    assert done.returncode == 0, done.stderr
    for line in (
        "cycle = 72, time = 1.000000e-02, dt=",
        "   Problem size        =  5",
        "   MPI tasks           =  1",
        "   Iteration count     =  72",
        "   Final Origin Energy =  7.853665e+03",
        "        MaxAbsDiff   = ",
        "        TotalAbsDiff = ",
        "        MaxRelDiff   = ",
        "Elapsed time         = ",
        "Grind time (us/z/c)  = ",
        "FOM                  = ",
    ):
        assert line in done.stdout
    assert float(re.search(r"MaxRelDiff   = (\S+)", done.stdout)[1]) < 1e-11


def test_quiet_option_and_wrong_options():
    assert run_program(1, "-s", "2", "-q").stdout == ""
    assert run_program(1, "-s", "0").returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("ranks, size, cycles", [(8, 15, 10), (27, 3, 10)])
def test_program_on_many_ranks(ranks, size, cycles):
    steps, final = reference(ranks, size)
    done = run_program(ranks, "-s", str(size), "-i", str(cycles), "-p")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"time = (\S+), dt=(\S+)", done.stdout) == steps
    assert f"Final Origin Energy =  {final['final_origin_energy']:.6e}" in done.stdout


@pytest.mark.slow
def test_a_number_of_ranks_that_is_no_cube_ends_all_ranks():
    done = run_program(2, "-s", "2", timeout=60)
    assert done.returncode != 0
    assert "cube" in done.stderr


# ------------------------------------------------------------------------------------------------------- its parts


def test_materials_change_the_work_and_not_the_result():
    expected, _ = simulate(MPI.COMM_SELF, 4, 25)
    for options in ({"regions": 1}, {"regions": 20, "balance": 3, "cost": 4}, {"cost": 0}):
        domain, _ = simulate(MPI.COMM_SELF, 4, 25, **options)
        for name in STATE:
            np.testing.assert_array_equal(getattr(domain, name), getattr(expected, name))


@pytest.mark.parametrize("count, rank", [(11, 0), (11, 5), (1, 0), (2, 3), (30, 26)])
def test_regions_divide_the_elements(count, rank):
    parts = regions.region_elements(1000, count, 1, rank)
    assert len(parts) == count
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(1000))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="compares with the GNU C library")
@pytest.mark.parametrize("seed", [0, 1, 7, 26])
def test_c_rand_is_the_c_librarys(seed):
    libc = ctypes.CDLL(None)
    libc.srand(seed)
    assert list(itertools.islice(regions.c_rand(seed), 1000)) == [libc.rand() for _ in range(1000)]


def test_evaluations_follow_the_originals_rule():
    assert [regions.evaluations(r, 11, 1) for r in range(11)] == [1] * 5 + [2] * 5 + [20]
    assert regions.evaluations(0, 1, 1) == 2
    assert [regions.evaluations(r, 5, 0) for r in range(5)] == [1, 1, 1, 1, 10]


def twisted_element():
    cube = np.array(
        [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)], dtype=float
    )
    return cube.T + 0.15 * np.random.default_rng(3).standard_normal((3, 8))


def quadrature_volume(corners):
    """Volume of the trilinear element by Gauss quadrature, which is exact for it."""
    sign = np.array(
        [(-1, -1, -1), (1, -1, -1), (1, 1, -1), (-1, 1, -1), (-1, -1, 1), (1, -1, 1), (1, 1, 1), (-1, 1, 1)]
    )
    total = 0.0
    for point in itertools.product((-((1 / 3) ** 0.5), (1 / 3) ** 0.5), repeat=3):
        factors = 1 + sign * point
        gradient = np.stack([sign[:, d] * factors[:, d - 1] * factors[:, d - 2] / 8 for d in range(3)])
        total += np.linalg.det(gradient @ corners.T)
    return total


def test_volume_and_its_gradient():
    corners = twisted_element()
    x, y, z = map(tuple, corners)
    assert geometry.hexahedron_volume(x, y, z) == pytest.approx(quadrature_volume(corners), rel=1e-14)
    h = 1e-5
    for axis, (a, b) in enumerate([(y, z), (z, x), (x, y)]):
        gradient = np.array(geometry.volume_gradient(a, b)) / 12
        for k in range(8):
            up, down = corners.copy(), corners.copy()
            up[axis, k] += h
            down[axis, k] -= h
            slope = (quadrature_volume(up) - quadrature_volume(down)) / (2 * h)
            assert gradient[k] == pytest.approx(slope, abs=1e-10)


def test_hourglass_modes_and_their_transpose():
    modes = np.array([kernels.hourglass_modes(tuple(unit)) for unit in np.eye(8)]).T
    back = np.array([kernels.from_hourglass_modes(tuple(unit)) for unit in np.eye(4)]).T
    np.testing.assert_array_equal(modes, back.T)
    np.testing.assert_array_equal(modes @ modes.T, 8 * np.eye(4))


def element_force(corners, velocity, pressure):
    force = np.zeros((3, 9))
    one = np.ones(1)
    smallest = kernels.element_forces(
        corners, velocity, np.arange(8, dtype=np.uint32)[None], one, one, pressure * one, 0 * one, 2 * one, force
    )
    return force[:, :8], smallest


def test_linear_motion_has_no_hourglass_force_and_pressure_balances():
    """A parallelepiped that deforms linearly; Flanagan and Belytschko's condition."""
    rng = np.random.default_rng(5)
    frame = np.eye(3) + 0.2 * rng.standard_normal((3, 3))
    cube = np.array([(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)], float).T
    corners = frame @ cube / np.linalg.det(frame) ** (1 / 3)
    linear = rng.standard_normal((3, 3)) @ corners + rng.standard_normal((3, 1))
    force, smallest = element_force(corners, linear, 0.0)
    np.testing.assert_allclose(force, 0, atol=1e-14)
    assert smallest == pytest.approx(1.0)
    force, _ = element_force(corners, linear, 3.0)
    np.testing.assert_allclose(force.sum(axis=1), 0, atol=1e-14)
    x, y, z = map(tuple, corners)
    surface = (
        np.array([geometry.volume_gradient(y, z), geometry.volume_gradient(z, x), geometry.volume_gradient(x, y)]) / 12
    )
    np.testing.assert_allclose(force, 3.0 * surface, atol=1e-13)


def test_hourglass_motion_is_resisted():
    corners = twisted_element()
    velocity = np.zeros((3, 8))
    velocity[1] = kernels.from_hourglass_modes((0.0, 0.0, 1.0, 0.0))
    force, _ = element_force(corners, velocity, 0.0)
    assert (force * velocity).sum() < 0
    np.testing.assert_allclose(force.sum(axis=1), 0, atol=1e-14)


def test_mesh_tables_hold_together():
    domain = Domain(MPI.COMM_SELF, 3)
    for node, columns in enumerate(domain.node_corner):
        met = columns[columns < 8 * domain.elements]
        assert (domain.corner.ravel()[met] == node).all()
    assert (domain.node_corner < 8 * domain.elements).sum() == 8 * domain.elements
    assert domain.neighbor[13].tolist() == [12, 14, 10, 16, 4, 22]
    assert domain.neighbor[0].tolist()[::2] == [0, 0, 0]  # symmetry
    assert (domain.neighbor[26, 1::2] == domain.velocity_gradient.shape[1] - 1).all()  # free surface
    assert domain.reference_volume.sum() == pytest.approx(1.125**3)


@pytest.mark.parametrize("ranks", [8, 27])
def test_neighbours_know_each_other(ranks):
    boxes = [exchange.Box(rank, ranks) for rank in range(ranks)]
    for rank, box in enumerate(boxes):
        for offset, other in box.neighbors.items():
            assert boxes[other].neighbors[tuple(-o for o in offset)] == rank
    assert max(len(box.neighbors) for box in boxes) == (26 if ranks == 27 else 7)
    with pytest.raises(ValueError, match="cube"):
        exchange.Box(0, ranks + 1)


def test_an_element_turned_inside_out_is_an_error():
    domain, _ = simulate(MPI.COMM_SELF, 3, 3)
    domain.x[0, domain.corner[13, 0]] += 10.0
    with pytest.raises(hydro.SimulationError, match="cycle 4: an element has the volume -"):
        hydro.advance(domain)
