"""Tapes in generators, tasks of asyncio and child processes."""

import asyncio
import gc
import os
import sys

import numpy
import pytest
from threads import in_thread, nothing_records

import ampi
import ampi.numpy as np

# ---------------------------------------------------------------------------------------------- generators and tasks


def steps_on_a_tape(x0):
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        yield x
        y = np.sum(x * x)
        yield y
    yield tape.gradient(y, x)


def test_generators_hold_a_tape_open_across_yields():
    steps = steps_on_a_tape(numpy.array([1.0, 2.0]))
    next(steps)
    next(steps)
    numpy.testing.assert_array_equal(next(steps), [2.0, 4.0])
    assert nothing_records()


def test_a_deleted_generator_closes_its_tape():
    steps = steps_on_a_tape(numpy.array([1.0, 2.0]))
    next(steps)
    del steps
    gc.collect()
    assert nothing_records()


def test_a_generator_that_another_thread_drops_closes_its_tape(monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: said.append(str(u.exc_value)))
    held = [steps_on_a_tape(numpy.array([1.0, 2.0]))]
    next(held[0])
    in_thread(lambda: (held.clear(), gc.collect()))
    assert nothing_records()
    assert "closed by thread 'worker_0'" in said[0]


def test_tasks_have_tapes_of_their_own():
    async def task(k):
        found = []
        for n in range(4):
            with ampi.Tape() as tape:
                x = tape.watch(numpy.array([1.0, 2.0]) + k)
                await asyncio.sleep(0.001 * ((k + n) % 3))
                y = np.sum(x * x)
                await asyncio.sleep(0)
                with ampi.passive():
                    await asyncio.sleep(0.001 * (k % 2))
                    z = x * 5.0
                y = y + np.sum(x * z)
            found.append(tape.gradient(y, x))
        return found

    async def main():
        return await asyncio.gather(*(task(k) for k in range(4)))

    for k, found in enumerate(asyncio.run(main())):
        for gradient in found:
            numpy.testing.assert_allclose(gradient, (2 + 5) * (numpy.array([1.0, 2.0]) + k))
    assert nothing_records()


def test_a_task_that_is_started_inside_a_tape_records_on_it():
    async def part(x, k):
        await asyncio.sleep(0)
        return np.sum(x * (k + 1.0))

    async def main():
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(2))
            y = sum(await asyncio.gather(part(x, 0), part(x, 1)))
        return tape.gradient(y, x)

    numpy.testing.assert_array_equal(asyncio.run(main()), [3.0, 3.0])


def test_a_task_that_outlives_its_tape_records_no_more():
    async def part(x, closed):
        await closed.wait()
        return x * 2.0, nothing_records()

    async def main():
        closed = asyncio.Event()
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(2))
            task = asyncio.create_task(part(x, closed))
            await asyncio.sleep(0)
        records = len(tape)
        closed.set()
        _, nothing = await task
        return nothing, len(tape) - records

    assert asyncio.run(main()) == (True, 0)


def test_a_task_beside_a_tape_may_not_use_its_active_arrays():
    async def beside(box, opened):
        await opened.wait()
        with pytest.raises(ampi.ActivityError, match="another task of this thread"):
            np.sum(box[0])

    async def main():
        box, opened = [], asyncio.Event()
        task = asyncio.create_task(beside(box, opened))
        with ampi.Tape() as tape:
            box.append(tape.watch(numpy.ones(2)))
            opened.set()
            await task

    asyncio.run(main())


def test_asyncio_to_thread_records():
    async def main():
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(2))
            y = await asyncio.to_thread(np.sum, x * x)
        numpy.testing.assert_array_equal(tape.gradient(y, x), [2.0, 2.0])

    asyncio.run(main())


def test_async_generators_hold_a_tape_open_across_yields():
    async def steps():
        with ampi.Tape() as tape:
            x = tape.watch(numpy.array([1.0, 2.0]))
            for n in range(3):
                await asyncio.sleep(0)
                yield np.sum(x * n)
            y = np.sum(x * x)
        yield tape.gradient(y, x)

    async def main():
        return [value async for value in steps()][-1]

    numpy.testing.assert_array_equal(asyncio.run(main()), [2.0, 4.0])
    assert nothing_records()


# ------------------------------------------------------------------------------------------------------- processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_does_not_record_on_its_parents_tape():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0]))
        records = len(tape)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                said = []
                try:
                    np.sum(x)
                except ampi.ActivityError as error:
                    said.append("of the parent process" in str(error))
                said.append(len(tape) == records)
                said.append(float(ampi.value(x).sum()) == 3.0)
                own = ampi.grad(lambda z: np.sum(z * z))(numpy.ones(2))
                said.append(own.tolist() == [2.0, 2.0])
                os.write(write, repr(said).encode())
            finally:
                os._exit(0)
        os.close(write)
        with open(read) as pipe:
            assert pipe.read() == "[True, True, True, True]"
        os.waitpid(child, 0)
        y = np.sum(x * x)
    numpy.testing.assert_array_equal(tape.gradient(y, x), [2.0, 4.0])
