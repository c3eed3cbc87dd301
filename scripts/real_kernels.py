"""Run the njit functions of other people's modules as kernels of ampi (``scripts/real_kernels``).

The modules are imported, arguments from a small catalogue are tried until Numba accepts them, and gradients are
compared with central differences of Numba's function in random directions. Each function has two processes with a time
limit: one draws the arguments (and checks indices), the other measures. Missing packages that a module imports are
replaced by empty ones.
"""

import argparse
import collections
import contextlib
import fnmatch
import importlib
import importlib.util
import itertools
import json
import os
import pathlib
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import types
import warnings

from kernel_features import needed, report_features
from kernel_report import CLASSES, line_of, report

ROOT = pathlib.Path(__file__).resolve().parent.parent
DECORATED = re.compile(r"^\s*@.*jit|=\s*[\w.]*jit\w*\(", re.MULTILINE)
SKIPPED = {"tests", "test", "testing", "docs", "doc", "benchmarks", "setup.py", "conftest.py", "_cuda", "cuda"}
OPTIONS = ("parallel", "fastmath", "error_model")
SIZES = (8, 3)  # of the axes of all arrays; 3 for vectors in space
TRIES = 40  # of arguments, with each size


def main() -> int:
    options = parse()
    work = list(known(options) if options.known else found(options.folder))
    if not work:
        sys.exit("no Python file with an njit function there")
    prepare()
    results = []
    called = collections.Counter()
    with open(options.output, "w", encoding="utf-8") as stream:
        for file, wanted in work:
            if called[package_of(file)] >= options.most:
                continue
            for result in module_results(file, wanted, options):
                called[package_of(file)] += "arguments" in result
                results.append(result)
                print(json.dumps(result), file=stream, flush=True)
                print(f"{result['class']:12} {result['module']}.{result['function']} {line_of(result)}", flush=True)
    report(results)
    if options.features:
        report_features(results)
    return int(any(r["class"] in ("crashed", "wrong") for r in results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/real_kernels", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="*", type=pathlib.Path, help="a checkout, a package, or a folder of packages")
    parser.add_argument("--output", default="real-kernels.jsonl", help="one JSON object for each function")
    parser.add_argument("--known", type=pathlib.Path, help="rerun the functions of such a file with their arguments")
    parser.add_argument("--only", action="append", help=f"with --known: only this class ({', '.join(CLASSES)})")
    parser.add_argument("--match", action="append", help="with --known: only names (module.function) like this pattern")
    parser.add_argument("--most", type=int, default=10**9, help="about this many functions of each package")
    parser.add_argument("--of-module", type=int, default=10**9, help="at most this many functions of each module")
    parser.add_argument("--patience", type=float, default=60, help="seconds of CPU for one function")
    parser.add_argument("--features", action="store_true", help="only parse, and list the frontend's modules in use")
    return parser.parse_args()


def prepare() -> None:
    """Set-up of all processes."""
    kept = tempfile.mkdtemp(prefix="real-kernels-")
    os.environ.setdefault("AMPI_CACHE_DIR", kept)
    os.environ.setdefault("NUMBA_CACHE_DIR", kept)
    os.environ.setdefault("MPLBACKEND", "agg")
    import numba.core.dispatcher
    import numpy as np

    import ampi

    numba.core.dispatcher.Dispatcher.enable_caching = lambda self: None  # all of it is compiled here
    warnings.simplefilter("ignore")

    @numba.njit
    def first(x):
        return x[0] * 2.0

    first(np.ones(1))  # what a process does only once is not in the times of a kernel
    ampi.grad(ampi.kernel(first.py_func))(np.ones(1))


def found(folders):
    for folder in folders:
        files = [folder] if folder.is_file() else sorted(folder.resolve().rglob("*.py"))
        for file in files:
            inside = file.relative_to(folder.resolve()).parts if folder.is_dir() else ()
            if SKIPPED.isdisjoint(inside) and DECORATED.search(file.read_text(encoding="utf-8", errors="replace")):
                yield file.resolve(), None


def known(options):
    by_file = collections.defaultdict(dict)
    for line in options.known.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if options.only and entry["class"] not in options.only:
            continue
        name = f"{entry['module']}.{entry['function']}"
        if options.match and not any(fnmatch.fnmatch(name, m) for m in options.match):
            continue
        by_file[entry["file"]][entry["function"]] = (entry.get("arguments"), entry.get("size"))
    for file, wanted in by_file.items():
        yield pathlib.Path(file), wanted


# ------------------------------------------------------------------------------------------------ processes


def forked(function, *arguments, seconds):
    """The lines of JSON that a function yields in a separate process; then a description of its end, if it failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(writing, "w", encoding="utf-8") as stream:
            try:
                for line in function(*arguments):
                    print(json.dumps(line), file=stream, flush=True)
            except BaseException as error:
                print(json.dumps({"raised": f"{type(error).__name__}: {error}"[:500]}), file=stream, flush=True)
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + 10 * seconds
    left = b""
    while select.select([reading], [], [], max(0, deadline - time.monotonic()))[0]:
        data = os.read(reading, 1 << 16)
        if not data:
            break
        *lines, left = (left + data).split(b"\n")
        yield from map(json.loads, lines)
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        slow = number in (signal.SIGXCPU, signal.SIGKILL)
        yield {"ended": "slow" if slow else f"signal {signal.Signals(number).name}"}


def module_results(file, wanted, options):
    common = {"package": package_of(file), "module": name_of(file)[0], "file": str(file)}
    for line in forked(in_module, file, wanted, options, seconds=3600):
        if "ended" in line or "raised" in line:
            line = {"function": "", "class": "not imported", "message": line.get("raised") or line["ended"]}
        yield {**common, **line}


def package_of(file):
    module, root = name_of(file)
    return module.partition(".")[0] if root is not None else file.parent.name


def name_of(file):
    """The name under which a file is imported, and the folder that must be on the path (None: it is loaded alone)."""
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    if len(parts) == 1:
        return file.stem, None
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts), folder


class Missing(types.ModuleType):
    """A stand-in for a missing package and everything in it.

    It can be called, iterated over, inherited from, used in ``isinstance`` and in unions of types.
    """

    __path__: list = []
    __all__: list = []
    __version__ = "1000"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Missing(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *arguments, **options):
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self  # it may be a decorator

    def __iter__(self):
        return iter(())

    def __getitem__(self, key):
        return getattr(self, str(key).strip("_") or "item")

    def __setitem__(self, key, value):
        pass

    def __contains__(self, key):
        return False

    def __mro_entries__(self, bases):
        return ()

    def __instancecheck__(self, instance):
        return False

    __subclasscheck__ = __instancecheck__

    def __or__(self, other):
        return self

    __ror__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __or__
    __deepcopy__ = __or__


class Stands:
    """A finder of modules of missing packages."""

    names: set = set()

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec):
        return Missing(spec.name)

    def exec_module(self, module):
        pass


def imported(file):
    name, root = name_of(file)
    folder = str(root if root is not None else file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    stands = Stands()
    sys.meta_path.append(stands)
    for _ in range(20):
        before = set(sys.modules)
        try:
            if root is not None:
                return importlib.import_module(name)
            spec = importlib.util.spec_from_file_location(name, file)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            return module
        except ModuleNotFoundError as problem:
            missing = (problem.name or "").partition(".")[0]
            if not missing or missing in stands.names or missing == name.partition(".")[0]:
                raise
            stands.names.add(missing)
            for loaded in set(sys.modules) - before:
                if loaded.partition(".")[0] == name.partition(".")[0]:
                    del sys.modules[loaded]
    raise ImportError("too many packages are missing")


def in_module(file, wanted, options):
    """The results of all functions of a module; runs in a separate process."""
    sys.argv = [str(file)]
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        module = imported(file)
    except BaseException as problem:
        yield {"function": "", "class": "not imported", "message": f"{type(problem).__name__}: {problem}"[:300]}
        return
    called = 0
    for name, dispatcher in functions_of(module, file):
        if called >= options.of_module or (wanted is not None and name not in wanted):
            continue
        arguments, size = (wanted or {}).get(name, (None, None))
        result = one(dispatcher, arguments, size, options.patience, features if options.features else measure)
        called += "arguments" in result
        yield {"function": name, "line": dispatcher.py_func.__code__.co_firstlineno, **result}


def functions_of(module, file):
    from numba.core.dispatcher import Dispatcher

    spaces = [("", vars(module))]
    spaces += [
        (f"{n}.", vars(c)) for n, c in vars(module).items() if isinstance(c, type) and c.__module__ == module.__name__
    ]
    seen = set()
    for prefix, space in spaces:
        for name, value in list(space.items()):
            value = getattr(value, "__func__", value)
            if isinstance(value, Dispatcher) and id(value) not in seen:
                seen.add(id(value))
                if pathlib.Path(value.py_func.__code__.co_filename).resolve() == file:
                    yield prefix + name, value


def one(dispatcher, arguments, size, patience, measure):
    drawn = {"arguments": arguments, "size": size}
    if arguments is None:
        for line in forked(draw, dispatcher, seconds=patience):
            drawn.update(line)
    if drawn.get("arguments") is None:
        return {"class": "not called", "message": drawn.get("message") or drawn.get("raised") or drawn.get("ended", "")}
    texts, size = drawn["arguments"], drawn["size"]
    result = {"class": "crashed", "arguments": texts, "size": size}
    for line in forked(measure, dispatcher, texts, size, seconds=patience):
        if "raised" in line:
            line = {"class": "crashed", "message": line["raised"]}
        elif "ended" in line:
            slow = line["ended"] == "slow"
            line = {"class": "slow"} if slow else {"class": "crashed", "message": line["ended"]}
        result.update(line)
    if "different sizes" in result.get("message", ""):
        for line in forked(by_numpy, dispatcher, texts, size, seconds=patience):
            result.update(line)
    return result


# ------------------------------------------------------------------------------------------------ one function


def draw(dispatcher):
    """Arguments that Numba accepts, if possible such that numbers in the results depend on them."""
    import numba
    from kernel_arguments import draws

    numba.core.config.BOUNDSCHECK = 1
    constant = None
    problem = ""
    typed = False
    for size in SIZES:
        if problem and not typed:  # of no types does Numba take it
            break
        for number, texts in enumerate(draws(dispatcher, size)):
            if number == (TRIES if typed or not problem else TRIES // 3):
                break
            try:
                point = values(dispatcher, texts, size)
                moving = Differences(dispatcher, texts, point)
                change = moving.central(moving.direction(0), 1e-4) if moving.active else 0.0
            except Exception as error:
                typed = typed or not isinstance(error, numba.core.errors.NumbaError)
                problem = (
                    problem
                    or f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[
                        :200
                    ]
                )
                continue
            if change:
                yield {"arguments": texts, "size": size}
                return
            if constant is None:
                constant = {"arguments": texts, "size": size}
                yield constant
    if constant is None:
        yield {"message": problem}


def values(dispatcher, texts, size):
    import inspect

    import numpy as np
    from kernel_arguments import value_of

    rng = np.random.default_rng(1)
    parameters = list(inspect.signature(dispatcher.py_func).parameters.values())
    return [value_of(t, rng, size, parameters[min(k, len(parameters) - 1)].default) for k, t in enumerate(texts)]


def leaves(value):
    """The numbers and arrays of floating point in a result, and in the fields of structured ones."""
    import numba
    import numpy as np

    if isinstance(value, tuple | list | numba.typed.List):
        for v in value:
            yield from leaves(v)
    elif getattr(getattr(value, "dtype", None), "names", None):
        for name in value.dtype.names:
            yield from leaves(value[name])
    elif np.asarray(value).dtype.kind in "fc":
        yield value


def total(found, np):
    """A random combination of all results, as one number."""
    result = 0.0
    for k, value in enumerate(found):
        weights = [[0.3, 1.7, -0.9, 0.6, 1.1, -1.3, 0.8][(i + 3 * k) % 7] for i in range(max(1, np.size(value)))]
        flat = np.reshape(value, (-1,))
        result = result + np.sum(np.array(weights)[: np.size(value)] * np.real(flat))
        if np.asarray(value).dtype.kind == "c":
            result = result + 0.5 * np.sum(np.array(weights)[: np.size(value)] * np.imag(flat))
    return result


def spoil():
    """Fill free memory, so that uninitialised reads differ."""
    import numba
    import numpy as np

    @numba.njit
    def fill():
        return sum([np.full(size, np.nan).size for size in range(1, 200)])

    fill()


def active_of(texts, point):
    """Which arguments carry derivatives: numbers that are there by default choose a way, as in ``if p == 2.0``."""
    import numpy as np

    return [
        k
        for k, (text, value) in enumerate(zip(texts, point, strict=True))
        if (isinstance(value, float) and text != "default")
        or (isinstance(value, np.ndarray) and value.dtype.kind == "f")
    ]


class Differences:
    """Central differences of what Numba compiled."""

    def __init__(self, dispatcher, texts, point):
        import numpy as np

        self.np, self.dispatcher, self.point = np, dispatcher, point
        self.active = active_of(texts, point)
        self.single = any(getattr(v, "dtype", None) == np.float32 for v in point)
        self.written = None
        self.value = self.at({}, 0.0)
        if not np.isfinite(self.value):
            raise ArithmeticError("the results are not finite")
        spoil()
        if self.at({}, 0.0) != self.value:
            raise ArithmeticError("it gives different results each time")

    def direction(self, seed):
        rng = self.np.random.default_rng(100 + seed)
        return {k: rng.uniform(-1, 1, self.np.shape(self.point[k])) for k in self.active}

    def at(self, direction, step):
        moved = [v.copy() if isinstance(v, self.np.ndarray) else v for v in self.point]
        for k, d in direction.items():
            if isinstance(moved[k], float):
                moved[k] += step * float(d)
            else:
                moved[k] += (step * d).astype(moved[k].dtype)
        result = self.dispatcher(*moved)
        if self.written is None:
            self.written = [k for k, (a, b) in enumerate(zip(moved, self.point)) if not self.np.array_equal(a, b)]
        return float(total([*leaves([moved[k] for k in self.written]), *leaves(result)], self.np))

    def central(self, direction, step):
        return (self.at(direction, step) - self.at(direction, -step)) / (2 * step)


def measure(dispatcher, texts, size):
    """Compare the gradient with differences, and measure CPU seconds of the first call and the first gradient."""
    point = values(dispatcher, texts, size)
    before = time.process_time()
    if not dispatcher._can_compile:  # it has been, for the signatures that it was given when the module was imported
        compile_anew(dispatcher)
    try:
        differences = Differences(dispatcher, texts, point)
    except ArithmeticError as error:  # arguments of an earlier run
        yield {"class": "not called", "message": str(error)}
        return
    yield {"primal_seconds": round(time.process_time() - before, 2)}
    before = time.process_time()
    try:
        value, gradient = gradient_of(dispatcher, point, differences)
    except Exception as error:
        yield {"class": class_of(error), "message": short(error), "error": str(error)[:1000], "trace": trace_of(error)}
        return
    yield {"gradient_seconds": round(time.process_time() - before, 2)}
    yield verdict(differences, value, gradient)


def features(dispatcher, texts, size):
    """List the frontend's modules that run for this kernel but not for every kernel."""
    try:
        yield {"class": "parsed", "features": needed(dispatcher, values(dispatcher, texts, size))}
    except Exception as error:
        yield {"class": class_of(error), "message": short(error), "error": str(error)[:1000], "trace": trace_of(error)}


def by_numpy(dispatcher, texts, size):
    """Return whether NumPy accepts the arguments; Numba silently adds arrays of different sizes in place."""
    from numba.core.dispatcher import Dispatcher

    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if isinstance(value, Dispatcher):
                setattr(module, name, value.py_func)
    try:
        dispatcher.py_func(*values(dispatcher, texts, size))
    except ValueError as problem:
        if "broadcast" in str(problem):
            yield {"class": "not called", "message": f"NumPy: {problem}"}


def compile_anew(dispatcher):
    import numba

    again = numba.njit(**{n: v for n, v in dispatcher.targetoptions.items() if n in OPTIONS and v})(dispatcher.py_func)
    again.compile(dispatcher.signatures[0])


def gradient_of(dispatcher, point, differences):
    import numpy as np

    import ampi

    kernel = ampi.kernel(dispatcher)
    with ampi.Tape() as tape:
        watched = {k: tape.watch(point[k]) for k in differences.active}
        given = [watched[k] * 1.0 if k in watched else v for k, v in enumerate(point)]
        given = [v.copy() if hasattr(v, "copy") and k not in watched else v for k, v in enumerate(given)]
        for k in set(differences.written) - set(watched):
            if getattr(point[k], "dtype", np.dtype(int)).kind in "fc":
                given[k] = ampi.numpy.array(point[k])
        result = kernel(*given)
        objective = total([*leaves([given[k] for k in differences.written]), *leaves(result)], ampi.numpy)
    value = float(ampi.value(objective))
    if not watched or not isinstance(objective, ampi.ndarray):
        return value, {}
    found = tape.gradient(objective, list(watched.values()))
    return value, dict(zip(watched, found))


def class_of(error):
    import ampi

    return "refused" if isinstance(error, ampi.AmpiError) else "crashed"


def short(error):
    """The message without the names of this function and file."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or [""]
    text = re.sub(r"^.*?in kernel '[^']*': ", "", lines[0])
    text = re.sub(r"'[^']*'", "'…'", text) if "numpy" not in text and "np." not in text else text
    kind = "" if class_of(error) == "refused" else f"{type(error).__name__}: "
    return (kind + text)[:160]


def trace_of(error):
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{pathlib.Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-4:]))


def verdict(differences, value, gradient):
    np = differences.np
    tolerance = 1e-3 if differences.single else 1e-5
    steps = (1e-2, 3e-3) if differences.single else (1e-3, 1e-4, 1e-5, 1e-6)
    if not abs(value - differences.value) <= tolerance * max(1.0, abs(differences.value)):
        return {"class": "wrong", "message": f"value {value:.10g}, Numba's {differences.value:.10g}"}
    constant = True
    for seed in range(2):
        direction = differences.direction(seed)
        mine = sum(float(np.sum(np.asarray(gradient[k]) * direction[k])) for k in gradient)
        try:
            theirs = [differences.central(direction, h) for h in steps]
        except Exception as error:
            return {"class": "rough", "message": f"no differences: {type(error).__name__}"}
        if not np.isfinite(mine):  # the root of what is zero here
            return {"class": "rough", "message": f"{mine}, differences {theirs}"}
        scale = max(abs(mine), 1e-3)
        constant = constant and not any(theirs) and not mine
        if any(abs(t - mine) <= 20 * tolerance * scale for t in theirs):
            continue
        if any(abs(a - b) <= tolerance * max(abs(a), 1e-3) for a, b in itertools.pairwise(theirs)):
            return {"class": "wrong", "message": f"{mine:.8g}, differences {theirs}"}
        return {"class": "rough", "message": f"{mine:.8g}, differences {theirs}"}
    return {"class": "constant" if constant else "right"}


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
