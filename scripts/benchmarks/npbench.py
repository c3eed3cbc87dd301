"""Gradients of NPBench's kernels beside Numba's primal and JAX: ``scripts/bench npbench FOLDER``, a checkout of
spcl/npbench, of which nothing is copied. Each kernel has a process of its own, which compiles it from nothing; the
objective is a random combination of everything that a kernel returns and overwrites. JAX is timed where it is
installed and the checkout has its version of the kernel, which may be another algorithm (one product of matrices for a
loop of them); both give values and gradients. Kernels without numbers of floating point are left out."""

import argparse
import contextlib
import importlib.util
import inspect
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np

COLUMNS = ("primal", "gradient", "jax", "cold primal", "cold gradient")


def main(given: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench npbench", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="a checkout of spcl/npbench")
    parser.add_argument("kernel", nargs="*", help="names, as in bench_info (default: all)")
    parser.add_argument("--size", default="S", help="one of NPBench's sizes: S, M, L, paper (S)")
    parser.add_argument("-r", "--repeat", type=int, default=11, help="repetitions, of which the median counts (11)")
    parser.add_argument("--patience", type=float, default=600, help="seconds for one kernel (600)")
    parser.add_argument("--json", type=pathlib.Path, help="where to keep the rows")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.one:
        return one(options.folder, options.kernel[0], options.size, options.repeat)
    known = sorted(file.stem for file in (options.folder / "bench_info").glob("*.json"))
    if not known:
        parser.error(f"no bench_info/*.json in {options.folder}")
    if unknown := set(options.kernel) - set(known):
        parser.error(f"no kernels {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    print(f"{'':24}{'primal ms':>11}{'gradient ms':>12}{'ratio':>7}{'JAX ms':>10}{'cold s':>8}{'cold grad':>10}")
    rows = []
    for name in options.kernel or known:
        rows.append(row(options, name))
        print(line(rows[-1]), flush=True)
    print(summary(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def row(options: argparse.Namespace, name: str) -> dict:
    """What a process of its own says of a kernel."""
    command = [sys.executable, __file__, str(options.folder.resolve()), name, "--one", "--size", options.size,
               "--repeat", str(options.repeat)]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="npbench-") as kept:
        surroundings = os.environ | {"AMPI_CACHE_DIR": kept, "NUMBA_CACHE_DIR": kept}
        try:
            done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=options.patience)
        except subprocess.TimeoutExpired:
            return {"name": name, "note": f"no end within {options.patience:.0f} s"}
    found = {"name": name}
    for text in done.stdout.splitlines():
        with contextlib.suppress(ValueError):
            found.update(json.loads(text))
    if done.returncode and "note" not in found:
        found["note"] = (done.stderr.strip().splitlines() or ["ended without a word"])[-1][:200]
    return found


def line(found: dict) -> str:
    def number(key, width, scale=1.0, places=2):  # with a blank before numbers that are wider than their column
        return f" {found[key] * scale:{width - 1}.{places}f}" if key in found else " " * width

    ratio = f" {found['gradient'] / found['primal']:6.2f}" if "gradient" in found else " " * 7
    return (
        f"{found['name']:24}{number('primal', 11, 1e3)}{number('gradient', 12, 1e3)}{ratio}{number('jax', 10, 1e3)}"
        f"{number('cold primal', 8, places=1)}{number('cold gradient', 10, places=1)}  {found.get('note', '')}"
    ).rstrip()


def summary(rows: list[dict]) -> str:
    ratios = [r["gradient"] / r["primal"] for r in rows if "gradient" in r]
    cold = [r["cold gradient"] / r["cold primal"] for r in rows if "gradient" in r]
    if not ratios:
        return "no gradients"
    beside = [r for r in rows if "jax" in r and "gradient" in r]
    level = sum(r["gradient"] <= r["jax"] for r in beside)
    dearer = sum(r["gradient"] > r["jax"] and r["primal"] > r["jax"] for r in beside)
    return (
        f"{len(ratios)} gradients: median {statistics.median(ratios):.2f} x the primal, at most {max(ratios):.2f}; cold"
        f" {statistics.geometric_mean(cold):.2f} x in the geometric mean, at most {max(cold):.2f}"
        + (f"; at least level with JAX {level} of {len(beside)}, {dearer} others alone take longer" if beside else "")
    )


# ------------------------------------------------------------------------------------------------ one kernel


def one(folder: pathlib.Path, name: str, size: str, repeat: int) -> None:
    """Lines of JSON about one kernel."""
    info = json.loads((folder / "bench_info" / f"{name}.json").read_text(encoding="utf-8"))["benchmark"]
    place = folder / "npbench" / "benchmarks" / info["relative_path"]
    sys.path.insert(0, str(folder))
    data = inputs(info, place, size)
    kernel = function_in(place / f"{info['module_name']}_numba_n.py", info["func_name"])
    if kernel is None:
        return print(json.dumps({"note": "without a version for Numba's nopython mode"}))
    point = [data[n] for n in info["input_args"]]
    active = [k for k, v in enumerate(point) if getattr(v, "dtype", np.dtype(int)).kind in "fc"]
    if not active:
        return print(json.dumps({"note": "without arrays of floating point"}))
    import measured

    for found in measured.of(kernel, point, active, repeat):
        print(json.dumps(found), flush=True)
    other = function_in(place / f"{info['module_name']}_jax.py", info["func_name"])
    if other is not None:
        print(json.dumps({"jax": measured.by_jax(other, point, active, repeat)}))


def inputs(info: dict, place: pathlib.Path, size: str) -> dict:
    """What NPBench gives a kernel, by name."""
    data = dict(info["parameters"][size])
    if not info.get("init"):
        return data
    make = function_in(place / f"{info['module_name']}.py", info["init"]["func_name"])
    if "datatype" in inspect.signature(make).parameters:
        made = make(*(data[n] for n in info["init"]["input_args"]), datatype=np.float64)
    else:
        made = make(*(data[n] for n in info["init"]["input_args"]))
    names = info["init"]["output_args"]
    return data | dict(zip(names, made if len(names) > 1 else (made,), strict=True))


def function_in(file: pathlib.Path, name: str):
    """A function of a file; None where the file or what it imports is not there."""
    if not file.exists():
        return None
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as missing:
        if missing.name.partition(".")[0] != "jax":
            raise
        return None
    return getattr(module, name)


if __name__ == "__main__":
    main(sys.argv[1:])
