"""The modules of the frontend that a kernel needs, and a table of them (``scripts/real_kernels --features``)."""

import collections
import contextlib
import functools
import pathlib
import sys

FRONTEND = pathlib.Path(__file__).resolve().parent.parent / "ampi" / "kernel" / "frontend"


def needed(function, arguments):
    """Return how many functions of each module run for a kernel, without those that run for every kernel."""
    common = entered_by_all()
    entered: set = set()
    with entering(entered):
        parse_kernel(function, arguments)
    return dict(sorted(collections.Counter(module for module, _ in entered - common).items()))


def parse_kernel(function, arguments):
    import ampi

    return ampi.kernel(function).lower_ir(*arguments)


@contextlib.contextmanager
def entering(found):
    """Collect the functions of the frontend that are entered, as (module, name)."""
    modules: dict = {}

    def seen(frame, event, argument):
        if event == "call":
            code = frame.f_code
            name = code.co_filename
            if name not in modules:
                path = pathlib.Path(name)
                inside = path.is_relative_to(FRONTEND)
                modules[name] = ".".join(path.relative_to(FRONTEND).with_suffix("").parts) if inside else None
            if modules[name] is not None:
                found.add((modules[name], code.co_qualname if sys.version_info >= (3, 11) else code.co_name))

    sys.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(None)


@functools.cache
def entered_by_all():
    """What a kernel with a plain loop enters."""
    import numpy as np

    def plain(x, y, a):
        s, n = 0.0, len(x)
        for i in range(n):
            if x[i] > a and i in (1, 2):
                y[i] = a * np.sqrt(x[i]) + y[i]
            s += y[i]
        z = np.zeros(n)
        z[:] = x + y
        return s + np.sum(z)

    arguments = (np.ones(3), np.ones(3), 2.0)
    parse_kernel(plain, arguments)  # imports the frontend
    found: set = set()
    with entering(found):
        parse_kernel(plain, arguments)
    return found


def report_features(results):
    """For each module of the frontend, how many kernels need it, of how many packages, and its lines."""
    parsed = [r for r in results if r["class"] == "parsed"]
    kernels = collections.Counter(module for r in parsed for module in r["features"])
    packages = collections.defaultdict(set)
    for r in parsed:
        for module in r["features"]:
            packages[module].add(r["package"])
    print(f"\nmodules of the frontend that {len(parsed)} kernels need\n{'module':34} kernels packages lines")
    for path in sorted(FRONTEND.rglob("*.py")):
        module = ".".join(path.relative_to(FRONTEND).with_suffix("").parts)
        if path.name != "__init__.py":
            lines = len(path.read_text(encoding="utf-8").splitlines())
            print(f"{module:34} {kernels[module]:7} {len(packages[module]):8} {lines:5}")
