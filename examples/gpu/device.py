"""Shared by the examples: where their kernels run, what gradients cost, and the comparison on a GPU."""

import argparse
import inspect
import time

import numpy
from numba import cuda

import ampi


def add_option(parser):
    """Add ``--device``: kernels run on the processor; with ``cuda`` they also run on a GPU, and are compared."""
    text = "cuda: also run the kernels and their adjoints on a GPU, and compare (default: cpu)"
    parser.add_argument("--device", type=device, metavar="cpu|cuda", default="cpu", help=text)


def device(name):
    if name not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{name!r}; it can be cpu or cuda")
    if name == "cuda" and not cuda.is_available():
        raise argparse.ArgumentTypeError(
            "Numba finds no GPU with a CUDA driver (pip install ampi[cuda] installs numba-cuda); --device cpu runs "
            "the same kernels on the processor, and NUMBA_ENABLE_CUDASIM=1 simulates a GPU for small problems"
        )
    return name


def timed(function, *arguments, **options):
    """The value and gradient of a function; what they cost in processor time is printed."""
    seconds = {}
    for name, run in (("primal", function), ("gradient", ampi.value_and_grad(function, **options))):
        for _ in range(2):  # the first one compiles
            begin = time.process_time()
            found = run(*arguments)
            seconds[name] = time.process_time() - begin
    print(f"primal {seconds['primal']:.3f} s, gradient {seconds['gradient'] / seconds['primal']:.1f} times that")
    return found


def compare(launch, *arguments, runs=1):
    """Run a kernel and its adjoint on the GPU; print and return how much they differ from the processor's.

    The times of both, the shortest of so many runs, are returned as well.
    """
    kernel = launch.kernel
    values = dict(zip(inspect.signature(kernel.py_func).parameters, arguments))
    active = [n for n, v in values.items() if isinstance(v, numpy.ndarray) and v.dtype.kind in "fc"]
    draw = numpy.random.default_rng(1)
    seeds = {n: draw.standard_normal(values[n].shape).astype(values[n].dtype) for n in active}

    host = {n: numpy.copy(v) if isinstance(v, numpy.ndarray) else v for n, v in values.items()}
    with ampi.Tape() as tape:
        given = [tape.watch(host[n]) for n in active]
        changed = {n: x + 0 for n, x in zip(active, given)}
        launch(*{**host, **changed}.values())
        total = sum((ampi.numpy.conj(seeds[n]) * changed[n]).real.sum() for n in active)
    expected = dict(zip(active, tape.gradient(total, given)))

    found, seconds = {}, {}
    for mode, source in (("kernel", kernel.source), ("adjoint", kernel.adjoint_source)):
        run = launcher(source(launch, *arguments, target="cuda"))
        times = []
        for _ in range(1 + runs):  # the first one compiles
            on_gpu = {n: to_gpu(v) for n, v in values.items()} | {f"{n}_bar": to_gpu(s) for n, s in seeds.items()}
            begin = time.perf_counter()
            run(launch.grid, *(on_gpu[n] for n in inspect.signature(run).parameters if n in on_gpu))
            cuda.synchronize()
            times.append(time.perf_counter() - begin)
        seconds[mode] = min(times[1:])
        for n in active:
            other = ampi.value(changed[n]) if mode == "kernel" else expected[n]
            mine = on_gpu[n if mode == "kernel" else f"{n}_bar"].copy_to_host()
            scale = max(float(numpy.abs(other).max(initial=0)), 1e-300)
            found[mode] = max(found.get(mode, 0.0), float(numpy.abs(mine - other).max(initial=0)) / scale)
    ratio = seconds["adjoint"] / seconds["kernel"]
    print(f"{kernel.__name__} on the GPU: {seconds['kernel']:.2e} s, adjoint {ratio:.1f} times that; relative", end=" ")
    print(f"differences from the processor {found['kernel']:.1e}, of the adjoint {found['adjoint']:.1e}")
    return {**found, "seconds": seconds}


def launcher(text):
    """The function that launches a program that ``source`` or ``adjoint_source`` has written."""
    space = {"__name__": "gpu"}
    exec(compile(text, "<gpu>", "exec"), space)
    return [v for v in space.values() if inspect.isfunction(v) and "griddim" in inspect.signature(v).parameters][-1]


def to_gpu(value):
    return cuda.to_device(value) if isinstance(value, numpy.ndarray) else value
