"""Functions that only compiled functions call have machine code when it is needed, and their exceptions are Numba's."""

import gc

import numba
import numpy as np
import pytest
from numba import types
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import CPUContext
from numba.extending import overload, register_jitable

from ampi.kernel.runtime import late_code
from ampi.kernel.runtime.quick_compilation import quick_compilation


@pytest.fixture
def linked(monkeypatch):
    """The libraries that functions compiled in this test contain."""
    found = []
    original = CPUCodeLibrary.add_linking_library
    monkeypatch.setattr(CPUCodeLibrary, "add_linking_library", lambda a, b: (found.append(b), original(a, b))[1])
    return found


def compiled(function, *arguments):
    """The function as a kernel's compilation makes it."""
    made = numba.njit(function)
    with global_compiler_lock, quick_compilation():
        made.compile(arguments)
    return made


def checked_root(x):
    """Its implementation raises an exception with a value, for which it needs its environment."""


def implementation_of_root():
    def implementation(x):
        if x < 0:
            raise ValueError("negative", x)
        return np.sqrt(x)

    return implementation


@overload(checked_root)
def _of_root(x):
    return implementation_of_root()


def raises(function):
    with pytest.raises(ValueError, match="negative") as caught:
        function(-1.0)
    return caught.value.args == ("negative", -1.0)


def test_what_is_only_linked_has_no_machine_code(linked):
    outer = compiled(lambda x: checked_root(x) + 1.0, types.float64)
    late = [library for library in linked if type(library) is late_code.Late]
    assert late and all(library._compiled_object is None for library in late if library._object_caching_enabled)
    assert outer(4.0) == 3.0


def test_exceptions_of_functions_without_machine_code():
    """Two functions have copies of one function; a third one is compiled by Numba itself."""
    first, second = (compiled(lambda x, n=n: checked_root(x) * n, types.float64, types.int64) for n in (2, 3))
    third = numba.njit(lambda x: checked_root(x))
    assert (first(4.0, 2), second(4.0, 3), third(4.0)) == (4.0, 6.0, 2.0)
    gc.collect()
    assert raises(lambda x: first(x, 2)) and raises(lambda x: second(x, 3)) and raises(third)


def test_two_levels():
    @register_jitable
    def between(x):
        return checked_root(x) - 1.0

    outer = compiled(lambda x: between(x) * 2.0, types.float32)
    assert outer(np.float32(4.0)) == 2.0
    with pytest.raises(ValueError, match="negative"):
        outer(np.float32(-4.0))


@numba.njit
def product_to(n):
    if n < 2:
        return 1.0
    return n * product_to(n - 1.0)  # for other types of arguments Numba calls it by its address


def product_of(n):
    """Its implementation contains a recursion."""


@overload(product_of)
def _of_product(n):
    return lambda n: product_to(n)


def test_recursion():
    assert compiled(lambda n: product_of(n), types.int64)(6) == 720


def test_threads():
    def outer(x):
        s = 0.0
        for i in numba.prange(x.shape[0]):
            s += checked_root(x[i])
        return s

    made = numba.njit(outer, parallel=True)
    with global_compiler_lock, quick_compilation():
        made.compile((types.float64[::1],))
    assert made(np.full(5, 4.0)) == 10.0


def test_numbas_functions_are_back():
    before = CPUContext.get_executable, CPUCodeLibrary.add_linking_library
    with pytest.raises(RuntimeError), global_compiler_lock, late_code.late_code():
        assert CPUContext.get_executable is not before[0]
        raise RuntimeError
    assert before == (CPUContext.get_executable, CPUCodeLibrary.add_linking_library)
