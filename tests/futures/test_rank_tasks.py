"""Tasks on other ranks: MPICommExecutor inside of what is differentiated (other pools: see test_remote_tasks)."""

import concurrent.futures
import textwrap

import numpy
import pytest
from rank_programs import check

import ampi
import ampi.numpy as np
from ampi.futures import MPICommExecutor, MPIPoolExecutor, ThreadPoolExecutor, as_completed, wait

comm = ampi.COMM_WORLD
X = numpy.array([0.4, 0.7, 1.1])


def cube(x, k=1.0):
    return x**3 * k


def squares(x):
    return np.sum(x * x)


def entered(body, root=0):
    """A function that gives what a body does with the executor on the root, and None elsewhere."""

    def f(x):
        found = None
        with MPICommExecutor(comm, root=root) as executor:
            if executor is not None:
                found = body(executor, x)
        return found

    return f


def same(body, plain, root=0):
    slope = ampi.grad(entered(body, root))(X)
    numpy.testing.assert_allclose(slope, ampi.grad(plain)(X) if comm.rank == root else numpy.zeros(3), rtol=1e-13)


# ------------------------------------------------------------------------------------------------- drawn programs


@pytest.mark.mpi
@pytest.mark.parametrize("seed", range(16))
def test_drawn_programs(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(600)
@pytest.mark.parametrize("begin", range(1000, 1400, 100))
def test_many_drawn_programs(begin):
    for seed in range(begin, begin + 100):
        check(seed)


# -------------------------------------------------------------------------------------------------------- results


def test_names_are_those_of_mpi4py():
    import mpi4py.futures

    assert MPICommExecutor is mpi4py.futures.MPICommExecutor and MPIPoolExecutor is mpi4py.futures.MPIPoolExecutor


@pytest.mark.mpi
def test_a_graph_of_tasks():
    def body(executor, x):
        a = executor.submit(cube, x)
        many = [executor.submit(cube, a.result() * k, k=x[1]) for k in range(1, 6)]
        assert wait(many).done == set(many)
        total = sum(executor.map(squares, [future.result() for future in many], chunksize=2))
        for future in as_completed([executor.submit(squares, total * x) for _ in range(3)]):
            total = total + future.result()
        return total

    def plain(x):
        total = sum(squares(cube(x**3 * k, x[1])) for k in range(1, 6))
        s = squares(total * x)
        t = squares((total + 0.0) * x)
        return total + s + 2 * t

    same(body, plain, root=comm.size - 1)


@pytest.mark.mpi
@pytest.mark.parametrize("how", ["callback", "done", "timeout", "exception"])
def test_futures(how):
    def body(executor, x):
        future, found = executor.submit(cube, x), []
        if how == "callback":
            future.add_done_callback(lambda future: found.append(future.result()))
        elif how == "done":
            while not future.done():
                pass
        elif how == "exception":
            assert future.exception() is None
        else:
            while True:
                try:
                    future.result(1e-3)
                    break
                except concurrent.futures.TimeoutError:  # another class than Python's own before 3.11
                    continue
        future.result()
        return np.sum(found[0] if found else future.result())

    same(body, lambda x: np.sum(x**3))


def fail(x):
    _ = x * x
    raise ZeroDivisionError("task")


@pytest.mark.mpi
def test_exceptions():
    def body(executor, x):
        future = executor.submit(fail, x)
        with pytest.raises(ZeroDivisionError, match="task"):
            future.result()
        if comm.size > 1:
            assert "in fail" in str(future.exception().__cause__)
            with pytest.raises(Exception, match=r"(?i)pickle|local"):
                executor.submit(lambda x: x, x).result()
        return np.sum(executor.submit(cube, x).result())

    same(body, lambda x: np.sum(x**3))


@pytest.mark.mpi
def test_errors_on_the_root_end_the_workers():
    def body(executor, x):
        executor.submit(cube, x)
        raise ZeroDivisionError

    if comm.rank == 0:
        with pytest.raises(ZeroDivisionError):
            ampi.grad(entered(body))(X)
    else:
        with ampi.Tape() as tape:
            assert entered(body)(tape.watch(X)) is None


def started(values):
    started.values = values


def with_started(x):
    return x * started.values


def broken():
    raise ValueError


@pytest.mark.mpi
def test_initializers():
    def f(x):
        total = None
        with MPICommExecutor(comm, root=0, initializer=started, initargs=(3.0,)) as executor:
            if executor is not None:
                assert executor.num_workers == max(comm.size - 1, 1)
                total = np.sum(executor.submit(with_started, x).result())
        with MPICommExecutor(comm, root=0, initializer=broken) as executor:
            if executor is not None:
                assert "initializer failed" in str(executor.submit(cube, x).exception())
        return total

    assert ampi.grad(f)(X).tolist() == [3.0 * (comm.rank == 0)] * 3


def together(x, k):
    from mpi4py.futures import get_comm_workers

    workers = get_comm_workers()
    mine, all_of_them = np.zeros(3), np.zeros(3)
    mine[:] = x**k
    workers.Allreduce(mine, all_of_them)
    return np.sum(all_of_them**2)


@pytest.mark.mpi(min_size=3)
def test_tasks_that_communicate():
    workers = comm.size - 1

    def body(executor, x):
        return sum(executor.map(together, [x] * workers, range(1, workers + 1)))

    same(body, lambda x: workers * np.sum(sum(x**k for k in range(1, workers + 1)) ** 2))


@pytest.mark.mpi
def test_forward_and_second_order():
    def body(executor, x):
        return sum(executor.map(squares, [x * x, np.sin(x), x * x[0]]))

    def plain(x):
        return squares(x * x) + squares(np.sin(x)) + squares(x * x[0])

    dot, f = numpy.array([0.3, -1.0, 2.0]), entered(body)
    tangent, second = ampi.jvp(f, (X,), (dot,))[1], ampi.hvp(f, X, dot)
    seeds = numpy.eye(3)
    many = ampi.jvp(f, (X,), (seeds,), vectorised=True)[1]
    if comm.rank == 0:
        numpy.testing.assert_allclose(tangent, ampi.grad(plain)(X) @ dot, rtol=1e-13)
        numpy.testing.assert_allclose(second, ampi.hvp(plain, X, dot), rtol=1e-12)
        numpy.testing.assert_allclose(many, ampi.grad(plain)(X), rtol=1e-13)
    else:
        assert not second.any()


@pytest.mark.mpi
def test_budgets_and_time_loops_inside_of_tasks():
    with ampi.Tape(memory="1GiB") as tape:
        x = tape.watch(X)
        y = entered(lambda executor, x: np.sum(executor.submit(looped, x).result()))(x)
    slope = tape.gradient(y, x)
    numpy.testing.assert_allclose(slope, ampi.grad(lambda x: np.sum(looped(x)))(X) * (comm.rank == 0), rtol=1e-12)


def looped(x):
    return ampi.timeloop(lambda u: np.sin(u) * 1.1, x * 1.0, steps=6, checkpoints=2)


def row(u, k):
    return np.sin(u[k] * 2.0) * u[0]


@pytest.mark.mpi
@pytest.mark.parametrize("options", [{}, {"checkpoints": 2}])
def test_time_loops_around_executors(options):
    def step(u):
        new = np.zeros(3)
        with MPICommExecutor(comm, root=0) as executor:
            if executor is not None:
                for k, found in enumerate(executor.map(row, [u] * 3, range(3))):
                    new[k] = found
        return comm.bcast(new)

    def run(step):
        def f(x):
            y = np.sum(ampi.timeloop(step, x * 1.0, steps=5, **options))
            return y if comm.rank == 0 else None

        return comm.allreduce(ampi.grad(f)(X))

    numpy.testing.assert_allclose(run(step), run(lambda u: np.sin(u * 2.0) * u[0]), rtol=1e-12, atol=0)


@pytest.mark.mpi
def test_passive_executors_and_tapes_inside_of_tasks():
    def f(x):
        factor = np.zeros(1)
        with ampi.passive():
            with MPICommExecutor(comm, root=0) as executor:
                if executor is not None:
                    factor[0] = executor.submit(squares, x).result()
        return np.sum(x) * factor[0] if comm.rank == 0 else None

    numpy.testing.assert_allclose(ampi.grad(f)(X), numpy.full(3, (X**2).sum() * (comm.rank == 0)))


def by_threads(u):
    y = np.zeros(3)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda k: y.__setitem__(k, u[k] ** 2), range(3)))
    return np.sum(y)


@pytest.mark.mpi
def test_threads_inside_of_tasks_and_executors_inside_of_threads():
    same(lambda executor, x: sum(executor.map(by_threads, [x, x * x])), lambda x: np.sum(x**2 + x**4))

    def f(x):
        def go():
            with MPICommExecutor(ampi.COMM_SELF) as executor:
                return executor.submit(cube, x).result()

        with ThreadPoolExecutor(1) as pool:
            return np.sum(pool.submit(go).result())

    numpy.testing.assert_allclose(ampi.grad(f)(X), 3 * X**2)


@pytest.mark.mpi
def test_without_a_tape_it_is_mpi4pys_own():
    found = entered(lambda executor, x: (type(executor._pool).__module__, list(executor.map(cube, [x, x])))[0])(X)
    assert found == ("mpi4py.futures._core" if comm.rank == 0 else None)


# --------------------------------------------------------------------------------------- pools of other processes


ONE_WORLD = """
import numpy
import ampi
import ampi.numpy as np
from mpi4py.futures import MPIPoolExecutor

X = numpy.array([0.4, 0.7, 1.1])

def member(x, k):
    return np.sum(np.sin(x * (k + 1.0)) ** 2)

def slope_of(x, k):
    return ampi.value_and_grad(member)(x, k)

def forward(x):
    found = list(executor.map(slope_of, [ampi.value(x)] * 4, range(4)))
    return sum(value for value, _ in found), sum(slope for _, slope in found)

@ampi.custom_vjp
def total(x):
    return forward(x)[0]

total.defvjp(forward, lambda slope, g: (g * slope,))

if __name__ == "__main__":
    serial = ampi.grad(lambda x: sum(member(x, k) for k in range(4)))(X)
    with MPIPoolExecutor() as executor:
        f = lambda x: sum(executor.map(member, [x] * 4, range(4)))
        numpy.testing.assert_allclose(ampi.grad(f)(X), serial, rtol=1e-13)
        numpy.testing.assert_allclose(ampi.jacrev(f, X).ravel(), serial, rtol=1e-13)
        assert ampi.jvp(f, (X,), (numpy.eye(3),), vectorised=True)[1].shape == (3,)
        numpy.testing.assert_allclose(ampi.grad(lambda x: 1.0 * total(x))(X), serial, rtol=1e-13)

    def inside(x):
        with MPIPoolExecutor() as executor:  # the sweep makes another one
            return sum(executor.map(member, [x] * 4, range(4)))

    numpy.testing.assert_allclose(ampi.grad(inside)(X), serial, rtol=1e-13)
    try:
        ampi.grad(lambda x: (ampi.COMM_WORLD.Send(x, 1), np.sum(x))[1])(X)
    except ampi.ActivityError as error:
        print("refused:", error)
    print("fine")
"""


def test_ranks_that_wait_for_tasks(mpiexec, tmp_path):
    """Under ``python -m mpi4py.futures`` only one rank runs the program: importing ampi waits for no other one."""
    (tmp_path / "program.py").write_text(ONE_WORLD)
    result = mpiexec(3, "-m", "mpi4py.futures", tmp_path / "program.py")
    assert result.returncode == 0 and "fine" in result.stdout, result.stdout + result.stderr
    assert "mpi4py's own communicator" in result.stdout


def test_spawned_workers(mpiexec, tmp_path):
    """The workers of an ``MPIPoolExecutor`` of one rank are spawned."""
    text = ONE_WORLD.replace("MPIPoolExecutor()", "MPIPoolExecutor(1)").split("    try:")[0] + '    print("fine")\n'
    (tmp_path / "program.py").write_text(text)
    result = mpiexec(1, tmp_path / "program.py")
    assert result.returncode == 0 and "fine" in result.stdout, result.stdout + result.stderr


# ------------------------------------------------------------------------------------------- unmodified programs

HEAD = """
import functools
import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor
theta, J = 0.7, 0.0
def model(a, k=0): return np.sum(np.sin(a * np.arange(4.0)) ** 2)
def own(k): return model(theta * (1 + k / 10))
def rows(a): return {"row": np.sin(a * np.arange(4.0)), "name": "row"}
with MPICommExecutor(MPI.COMM_WORLD, root=0) as ex:
    if ex is not None:
"""
GIVEN = {
    "map": "J = sum(ex.map(model, [theta * (1 + k / 10) for k in range(6)]))",
    "map in chunks": "J = sum(ex.map(model, [theta * (1 + k / 10) for k in range(6)], chunksize=3))",
    "starmap": "J = sum(ex.starmap(model, [(theta * (1 + k / 10), k) for k in range(6)]))",
    "submit": "J = sum([ex.submit(model, a=theta * (1 + k / 10)).result() for k in range(6)])",
    "partial": "J = sum(ex.submit(functools.partial(model, theta * (1 + k / 10))).result() for k in range(6))",
    "globals": "J = sum(ex.map(own, range(6)))",
    "objects": "J = sum(np.sum(r['row']**2) for r in ex.map(rows, [theta * (1 + k / 10) for k in range(6)]))",
}


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_unmodified_programs(mpiexec, tmp_path, monkeypatch, ranks):
    """The workers' own globals count, too."""
    for name, line in GIVEN.items():
        (tmp_path / f"{name}.py").write_text(HEAD + "        " + line + "\n")
    (tmp_path / "run.py").write_text(
        textwrap.dedent("""
        import sys
        import numpy
        import ampi

        s, j = 1 + numpy.arange(6) / 10, numpy.arange(4.0)
        for name in sys.argv[1:]:
            value, (slope,) = ampi.trace(f"{name}.py", wrt=("theta",), of="J")
            slope = ampi.COMM_WORLD.allreduce(float(slope))
            assert abs(slope - (s[:, None] * j * numpy.sin(1.4 * s[:, None] * j)).sum()) < 1e-12, (name, slope)
        print("fine")
        """)
    )
    monkeypatch.chdir(tmp_path)
    result = mpiexec(ranks, "run.py", *GIVEN)
    assert result.returncode == 0 and result.stdout.count("fine") == ranks, result.stderr


POOL = """
import numpy as np
from mpi4py.futures import MPIPoolExecutor
x = np.linspace(0.5, 1.0, 4)
def member(x, k): return np.sum(np.sin(k * x))
def of_global(k): return np.sum(np.sin(k * x))
if __name__ == "__main__":
    with MPIPoolExecutor(1) as pool:
        loss = pool.submit(CALL).result()
"""


@pytest.mark.parametrize(
    ("call", "error"), [("member, x, 1", "run the program without ampi"), ("of_global, 1", "reads the global x")]
)
def test_unmodified_programs_with_spawned_workers_are_refused(mpiexec, tmp_path, call, error):
    (tmp_path / "program.py").write_text(POOL.replace("CALL", call))
    result = mpiexec(1, "-m", "ampi.run", "--wrt", "x", "--of", "loss", tmp_path / "program.py", timeout=40)
    assert result.returncode != 0
    assert "program.py:9: a task of mpi4py.futures.MPIPoolExecutor" in result.stderr and error in result.stderr


@pytest.mark.parametrize("outer", [True, False])
def test_ranks_that_wait_for_tasks_are_refused_by_the_runner(mpiexec, tmp_path, outer):
    (tmp_path / "program.py").write_text("x = 1.0\ny = x\n")
    given = ["-m", "ampi.run", "--wrt", "x", "--of", "y"]
    given = ["-m", "mpi4py.futures", *given] if outer else [*given, "-m", "mpi4py.futures"]
    result = mpiexec(2, *given, tmp_path / "program.py", timeout=40)
    assert result.returncode == 2 and "enter mpi4py.futures.MPICommExecutor" in result.stderr, result.stderr
