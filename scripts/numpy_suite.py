"""Run NumPy's own tests on `ampi.numpy`, and report differences from plain NumPy (``scripts/numpy_suite``).

Ways:

plain      NumPy alone, for comparison
idle       the test modules' names of NumPy are bound to those of `ampi.numpy`; no tape
recording  the same, and every test runs inside a tape that records
active     the same, and every floating-point array that a test makes carries derivatives

A difference is a test whose outcome is not that of the plain run. A test that ends with one of ampi's errors about
derivatives (`AmpiError`) is ``refused``, which is allowed in the way ``active``: such a test uses what is not
differentiated. Unavoidable differences are listed in `EXPECTED`, with the reason. The table has for each file and way
the numbers of tests with the same outcome, refused, with an expected difference, and with another one.
"""

import argparse
import builtins
import collections
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest
from foreign_suite import kind

WAYS = ("plain", "idle", "recording", "active")
PACKAGES = ("numpy._core.tests", "numpy.lib.tests", "numpy.linalg.tests", "numpy.fft.tests", "numpy.random.tests")
# Files about NumPy's internals (compilers, SIMD, dtypes' C interface, files of records), without arrays to replace.
LEFT_OUT = {
    "test__datasource",
    "test__exceptions",
    "test__iotools",
    "test__version",
    "test_abc",
    "test_argparse",
    "test_casting_unittests",
    "test_cpu_dispatcher",
    "test_cpu_features",
    "test_cython",
    "test_defchararray",
    "test_extint128",
    "test_extending",
    "test_hashtable",
    "test_limited_api",
    "test_simd",
    "test_simd_module",
    "test_stringdtype",
    "test_strings",
    "test_umath_accuracy",
}
PATIENCE = 900 * float(os.environ.get("AMPI_TEST_PATIENCE", 1))  # seconds for one file

_SUBCLASSES = "classes derived from ndarray are not kept: results are ampi.ndarrays (docs, Limits)"
_TYPES = "the test asks for numpy.generic, float64 or ndarray itself, where ampi gives a class derived from ndarray"
_VIEWS = "what NumPy computes is seen through an ampi.ndarray that does not own the memory (flags, base)"
_IDENTITY = "NumPy gives back its very argument, ampi another array on the same memory"
_PLAIN = "arrays that NumPy's own objects hold are plain, and no instances of ampi.numpy.ndarray (docs, Limits)"
_THREADS = "another thread computes with active arrays, which is an error there (docs, Limits)"
_NAME = "the representation of an ampi.ndarray begins with its own name"
_CPYTHON = "CPython treats classes written in Python otherwise than those in C (sequences' slots, signatures)"
_TESTING = "numpy.testing compares 0-d arrays otherwise than numbers"
_LISTS = "lists are searched for ampi's arrays before NumPy reads them; these change while they are read"
_FUNCTIONS = "classes of the test's own tell NumPy's functions and `like=` apart by ampi.numpy's (__array_function__)"
_PROTOCOLS = "protocols of the arguments (__array_wrap__, __array_priority__) are given an ampi.ndarray"

# Test names (regular expressions) -> why their outcome must differ from NumPy's.
EXPECTED: dict[str, str] = {
    r"::test_(\w+_)?(subclass(es|2)?|subok|subclass_preservation|preserve_subclass)\b": _SUBCLASSES,
    r"Test(Solve|Inv)::test_0_size|TestKeepdims::test_raise|test_reduce_output_subclass_ok": _SUBCLASSES,
    r"test_outer_(subclass_preserve|bad_subclass)": _SUBCLASSES,
    r"TestSubclasses::|test_nonbaseclass_values|TestAverage::test_subclasses|TestLikeFuncs::": _SUBCLASSES,
    r"TestKron::test_return_type|test_fix_with_subclass|test_out_wrap_subok|test_default_prepare": _SUBCLASSES,
    r"TestLoadTxt::test_from_float_hex|test_iter_too_large_with_multiindex": _TYPES,
    r"TestNorm(Double|Single|Int64)::test_vector_return_type": _TESTING,
    r"test_iter_allocate_output_subtype": _SUBCLASSES,
    r"test_nditer::test_signature_methods": _CPYTHON,
    r"test_scalar_return_type|TestNonzero::test_return_type|test_zero_dimensional_interpolation_point": _TYPES,
    r"TestNanToNum::test_(complex_bad2?|complex_good|float)$|TestUfunclike::test_scalar": _TYPES,
    r"TestApplyAlongAxis::test_axis_insertion|test_stride_tricks::test_subclasses": _TYPES,
    r"TestRequire::test_(require_each|non_array_input)|TestRollaxis::test_results|test_einsum_views": _VIEWS,
    r"TestClip::test_(clip_(func_takes|inplace|with)_\w+|simple_(in|int)\w+(\[unsafe\])?|type_cast_11)$": _VIEWS,
    r"TestDiff::test_n$|TestStackArrays::test_solo": _IDENTITY,
    r"test_api::test_array_astype$|TestArrayLikes::test_0d_generic_special_case": _SUBCLASSES,
    r"TestBadSequences::test_replace_0d_array": _LISTS,
    r"TestSimpleStridedCall::test_invalid_arguments": _TYPES,
    r"test_arrayobject::test_array_wrap\[\w+-ndarray\]": _PROTOCOLS,
    r"TestCApiAccess::|test_operator_concat|test_broadcast_error_kwargs": _CPYTHON,
    r"test_array_wrap_array_priority": _PROTOCOLS,
    r"TestUfunc::test_output_ellipsis": "NumPy does not tell arrays' classes of out=...",
    r"TestUfunc::test_scalar_reduction": _TYPES,
    r"test_zero_width_string|test_structured_non_void|TestIO::test_roundtrip_repr": _NAME,
    r"TestFlags::test_(writeable_any_base|writeable_pickle|otherflags)|test_structured_asarray_is_view": _VIEWS,
    r"TestFromBuffer::test_array_base|TestResize::|TestNewBufferProtocol::test_(roundtrip|padd|max_dims)": _VIEWS,
    r"test_interface_nullptr|TestSizeOf::|test_compatible_cast|test_order_mismatch|test_array_interfaces": _VIEWS,
    r"TestMatmul(Operator)?::test_result_types|TestDet::test_zero": _TYPES,
    r"test_ufunc_binop_interaction|test_equal_subclass_no_override": _SUBCLASSES,
    r"TestTextSignatures::": _CPYTHON,
    r"TestMemmap::test_(getitem|ufunc_return_ndarray)": _TYPES,
    r"TestMemmap::test_view": _VIEWS,
    r"test_legacy_pickle|test_direct::Test\w+::test_(getstate|pickle|set_key)": _PLAIN,
    r"test_shuffle_untyped_warning": "the warning comes from ampi's call of NumPy",
    r"TestFlags::test_warnonwrite": _VIEWS,
    r"TestThread::|TestFFTThreadSafe::": _THREADS,
    r"test_smoke::Test(MT19937|Philox|SFC64)::test_(advance|entropy|gamma|init|jump|normal|seed|uniform)": _PLAIN,
    r"test_scalar_repr_numbers": _TYPES,
    r"TestArrayRepr::test_self_containing": "an array that holds itself is met again as another array on its memory",
    r"TestSFloat::test_np_save_load|test_custom_dtypes::test_type_pickle": "a dtype of the tests' own",
    r"test_(0d_boolean|float)_assign_index_deprecated": "the warning comes once more, from ampi's look at the key",
    r"TestDLPack::test_dunder_dlpack_refcount|TestSubarray::test_subarray_base_item": _VIEWS,
    r"TestIndexing::test_small_regressions": "the test counts references to a dtype, of which a tape holds one",
    r"TestSpecialMethods::test_(failing_out_wrap|priority_with_scalar|wrap_out|wrap_with_iterable)": _PROTOCOLS,
    r"test_array_scalar_method_signatures|test_signature_error_message_simple": _CPYTHON,
    r"test_overrides::Test(ArrayLike|NDArrayArrayFunction|NumPyFunctions)::|test_function_like": _FUNCTIONS,
    r"TestNDArrayMethods::test_repr|TestRegression::test_attributes|test_ufunc_override_with_super": _SUBCLASSES,
    r"test_squeeze_axis_handling|test_ufunc_override_where": _SUBCLASSES,
    r"test___?array_namespace__|test_void_scalar_structured_data|test_void_arraylike_trumps": _TYPES,
    r"TestFromrecords::test_recarray_(from_repr|views|returntypes)|test_for_object_scalar_creation": _TYPES,
    r"TestArrayCreationCopyArgument::test_scalars|test_array_scalar_ufunc_dtypes": _TYPES,
    r"test_ndmax_less_than_ndim": _TYPES,
    r"test_blasdot_uninitialized_memory|TestClip::test_array_double": _VIEWS,
    r"test_scalar_interface": "the test counts references to a dtype, of which a tape holds one",
    r"test_(smoke|direct)::Test\w+::test_pickle|test_generator_ctor_old_style_pickle": _PLAIN,
    r"test_shuffle_no_object_unpacking": "the parameters of the test have other names, those of ampi's module",
}


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:5], sys.argv[5:])
    parser = argparse.ArgumentParser(prog="scripts/numpy_suite", allow_abbrev=False)
    parser.add_argument("--way", choices=WAYS[1:], action="append", help="compare only this way with plain NumPy")
    parser.add_argument("--file", action="append", help="only this file of tests, e.g. test_indexing or lib/test_io")
    parser.add_argument("--keep", type=pathlib.Path, help="folder of outcomes; tests that have one there are not rerun")
    options, arguments = parser.parse_known_args()
    files = {label: path for label, path in find_files() if is_asked_for(label, options.file)}
    ways = options.way or WAYS[1:]
    table, reasons = [], collections.Counter()
    for label, path in files.items():
        found = {way: kept_outcomes(way, label, path, arguments, options.keep) for way in ("plain", *ways)}
        differences = compare(found)
        for name, outcomes in differences.items():
            reason = explanation(name)
            if reason is None:
                print(f"{name}: {'; '.join(f'{way}: {outcome}' for way, outcome in outcomes.items())}", flush=True)
            else:
                reasons[reason] += 1
        table.append((label, len(found["plain"]), {way: tally(found, way, differences) for way in ways}))
        show(table[-1:], ways)
    print()
    show([*table, total(table, ways)], ways)
    for reason, n in reasons.most_common():
        print(f"{n} tests: {reason}", flush=True)
    return 1 if any(counts["differ"] for _, _, row in table for counts in row.values()) else 0


def is_asked_for(label, names):
    """Return whether a file of tests, such as ``lib/test_io``, is among those that were named, if any were."""
    return not names or label in names or label.rpartition("/")[2] in names


def find_files():
    """The files of tests of the installed NumPy, with names such as ``lib/test_io``."""
    for package in PACKAGES:
        parent = package.rpartition(".")[0]
        spec = importlib.util.find_spec(parent)
        folder = pathlib.Path(spec.submodule_search_locations[0], "tests")
        for file in sorted(folder.glob("test_*.py")):
            if file.stem not in LEFT_OUT:
                yield f"{parent.rpartition('.')[2].lstrip('_')}/{file.stem}", file


def explanation(name):
    """The reason why a test's outcome must differ from NumPy's; None if there is none."""
    return next((reason for pattern, reason in EXPECTED.items() if re.search(pattern, name)), None)


def kept_outcomes(way, label, path, arguments, folder):
    """Outcomes of a file's tests in a way: from a folder, or from a run, whose outcomes are stored there."""
    if folder is None:
        return outcomes(way, label, path, arguments)
    kept = folder / f"{label.replace('/', '-')}-{way}.json"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(outcomes(way, label, path, arguments), indent=0))
    return json.loads(kept.read_text())


def outcomes(way, label, path, arguments):
    """Outcomes of a file's tests in a way, by their names.  The file has a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        notes, log = pathlib.Path(folder, "outcomes"), pathlib.Path(folder, "log")
        command = [sys.executable, __file__, "--child", way, str(path), str(notes), *arguments]
        with log.open("w") as output:
            try:
                status = subprocess.run(
                    command, stdout=output, stderr=output, cwd=folder, timeout=PATIENCE, stdin=subprocess.DEVNULL
                ).returncode
            except subprocess.TimeoutExpired:
                status = f"no end within {PATIENCE} s"
        lines = notes.read_text().splitlines() if notes.exists() else ()
        if status not in (0, 1, 5) or (not lines and status == 1):
            tail = log.read_text(errors="replace")[-1500:]
            print(f"{way}: {label}: {status}; the end of the output:\n{tail}", file=sys.stderr, flush=True)
        return {f"{label}{name[name.find('::') :]}": outcome for name, outcome in map(json.loads, lines)}


def differs(way, before, outcome):
    """Return whether an outcome is not that of plain NumPy; with active arrays, ampi may refuse what has no
    derivative."""
    return kind(outcome) != kind(before) and not (way == "active" and kind(outcome) == "refused")


def compare(found):
    """Tests with different outcomes: dict of test name -> dict of way -> outcome."""
    differences = {}
    for name in sorted(set().union(*found.values())):
        before = found["plain"].get(name, "not run")
        ways = {way: found[way].get(name, "not run") for way in found}
        ways = {way: outcome for way, outcome in ways.items() if differs(way, before, outcome)}
        if ways:
            differences[name] = ways
    return differences


COLUMNS = ("same", "refused", "expected", "differ")


def tally(found, way, differences):
    """The numbers of a file's tests with the plain outcome, refused, and with a difference with or without a reason."""
    counts = collections.Counter({name: 0 for name in COLUMNS})
    for name, before in found["plain"].items():
        if way in differences.get(name, ()):
            counts["differ" if explanation(name) is None else "expected"] += 1
        else:
            outcome = found[way].get(name, "not run")
            counts["same" if kind(outcome) == kind(before) else "refused"] += 1
    return counts


def total(table, ways):
    """The sum of rows of the table."""
    sums = {way: sum((row[way] for _, _, row in table), collections.Counter()) for way in ways}
    return f"{len(table)} files", sum(tests for _, tests, _ in table), sums


def show(table, ways):
    """Print rows; with headings if there are several."""
    if len(table) > 1:
        print(f"{'':38}", *(f"{way:^35}" for way in ways))
        print(f"{'file':32} tests", *(f"{name:>8}" for _ in ways for name in COLUMNS))
    for label, tests, row in table:
        print(f"{label:32} {tests:5}", *(f"{row[way][name]:8}" for way in ways for name in COLUMNS), flush=True)


# ---------------------------------------------------------------------------------------------------------- the child


def child(way, file, notes, arguments):
    """Run one file of tests in a way and write the outcomes to a file."""
    os.environ.update(NUMPY_EXPERIMENTAL_DTYPE_API="1", NPY_AVAILABLE_MEM="1GB")
    with open(notes, "w", buffering=1) as output:
        options = ["-q", "-x" if "-x" in arguments else "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull]
        return pytest.main([*options, "--rootdir=.", file, *arguments], plugins=[Plugin(way, output)])


class Plugin:
    """Replaces NumPy in the test modules, and writes the outcome of every test as soon as it is known."""

    def __init__(self, way, output):
        self.way = way
        self.output = output
        self.tape = None
        self.replace = {}
        if way != "plain":
            import ampi.numpy

            if way == "active":
                activate_what_is_made(ampi.numpy)
            self.ours = ampi.numpy

    @pytest.hookimpl(hookwrapper=True)
    def pytest_pycollect_makemodule(self, module_path, parent):
        if self.way == "plain":
            yield
            return
        original = builtins.__import__
        builtins.__import__ = importing(original, module_path.stem, self.ours)
        try:
            result = yield
            substitute(vars(result.get_result().obj), self.ours)
        finally:
            builtins.__import__ = original

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        self.note(item.nodeid, "not finished")
        if self.way in ("recording", "active"):
            import numpy

            import ampi

            with ampi.Tape() as tape:
                tape.watch(numpy.zeros(1))  # active arrays need an independent on the tape
                yield
        else:
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        if report.when == "call" or report.outcome != "passed":
            self.note(item.nodeid, describe(report, call.excinfo))

    def note(self, name, outcome):
        self.output.write(json.dumps([name, outcome]) + "\n")


def describe(report, error):
    """The outcome of a test in a few words."""
    if hasattr(report, "wasxfail"):
        return "expected failure" if report.skipped else "unexpected success"
    if report.outcome != "failed":
        return report.outcome
    line = next(
        (entry for entry in reversed(error.traceback) if pathlib.Path(entry.path).name.startswith("test_")), None
    )
    place = f" (line {line.lineno + 1}: {str(line.statement).strip()[:80]})" if line else ""
    text = f"{error.typename}: {error.value}".replace("\n", " ")[:300] + place
    raised, seen = error.value, set()
    while raised is not None and id(raised) not in seen:
        seen.add(id(raised))
        if any(cls.__name__ == "AmpiError" for cls in type(raised).__mro__):
            return f"refused: {text}"
        raised = raised.__cause__ or raised.__context__
    return f"failed: {text}"


def importing(original, module, ours):
    """The import function for a test module that must find `ampi.numpy` instead of NumPy."""

    def imported(name, names=None, locals=None, fromlist=(), level=0):
        found = original(name, names, locals, fromlist, level)
        if (names or {}).get("__name__", "").rpartition(".")[2] != module:
            return found
        if name == "numpy" or (name.startswith("numpy.") and not fromlist):
            return ours
        replaced = {f"numpy.{part}": getattr(ours, part) for part in ("fft", "lib", "linalg", "random")}
        return replaced.get(name, found)

    return imported


def substitute(names, ours):
    """Bind a test module's names of NumPy to those of `ampi.numpy`."""
    import numpy

    for name, found in list(names.items()):
        if found is numpy:
            names[name] = ours
        elif getattr(found, "__module__", "").startswith("numpy") and callable(found):
            public = getattr(found, "__name__", "")
            for theirs, replacement in ((numpy, ours), (numpy.linalg, ours.linalg), (numpy.fft, ours.fft)):
                if not public.startswith("_") and getattr(theirs, public, None) is found:
                    names[name] = getattr(replacement, public)
        elif any(found is module for module in (numpy.linalg, numpy.fft, numpy.random)):
            names[name] = getattr(ours, found.__name__.rpartition(".")[2])


def activate_what_is_made(ours):
    """Make floating-point arrays from `ampi.numpy`'s creation functions active."""
    import functools

    from ampi.memory.storages import TrackedArray, carries_derivatives
    from ampi.tape import current

    def activating(function):
        @functools.wraps(function)
        def make(*arguments, **keywords):
            made = function(*arguments, **keywords)
            tape = current()
            if tape is not None and isinstance(made, TrackedArray) and carries_derivatives(made.dtype):
                tape.activate(made)
            return made

        return functools.update_wrapper(functools.partial(make), function)  # binds no self, as in NumPy

    made = "arange array asarray empty empty_like eye full full_like identity linspace ones ones_like zeros zeros_like"
    for name in made.split():
        setattr(ours, name, activating(getattr(ours, name)))


if __name__ == "__main__":
    sys.exit(main())
