"""Machine code on demand for functions that only other compiled functions call.

Numba makes machine code of every function that it compiles, such as its implementation of ``numpy.empty``, although
its callers contain a copy of the function and never use that code, and an entry for C code.  Here such a function has
no entry and is only optimised.  It gets machine code if its address is asked for, or if it is linked into a function
that Numba compiles outside `late_code`: Numba would not set its environment there (the objects that exceptions name).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from numba import _dynfunc
from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary, JITCPUCodegen, RuntimeLinker
from numba.core.cpu import CPUContext
from numba.core.typing.templates import _OverloadFunctionTemplate

from ampi.kernel.runtime import numba_parts

_PARTS: dict[Any, str] = {
    CPUContext: "get_executable get_env_name",
    CPUCodeLibrary: "add_linking_library _finalize_final_module _finalize_dynamic_globals "
    "_verify_declare_only_symbols _get_module_for_linking",
    JITCodeLibrary: "get_pointer_to_function _finalize_specific _get_compiled_object",
    JITCPUCodegen: "set_env _add_module",
    _OverloadFunctionTemplate: "_get_jit_decorator",
}
"""The parts of Numba that are replaced, or on which this depends."""

_inside = [0]


@contextlib.contextmanager
def late_code() -> Iterator[None]:
    """A context in which Numba makes no machine code of functions that only other compiled functions call.

    Enter it only while holding Numba's compiler lock.  It has no effect with a version of Numba that lacks these parts.
    """
    if not numba_parts.exist(_PARTS):
        yield
        return
    parts = (
        (CPUContext, "get_executable", _executable(CPUContext.get_executable)),
        (CPUCodeLibrary, "add_linking_library", _linking(CPUCodeLibrary.add_linking_library)),
        (_OverloadFunctionTemplate, "_get_jit_decorator", _decorator(_OverloadFunctionTemplate._get_jit_decorator)),
    )
    _inside[0] += 1
    try:
        with numba_parts.replaced(parts):
            yield
    finally:
        _inside[0] -= 1


class Late(JITCodeLibrary):
    """The code of a function that has no machine code yet."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True
        if any(RuntimeLinker.PREFIX in v.name for v in self._final_module.global_variables):
            self.compile()  # a part of a recursion, in which Numba calls it by its address

    def compile(self) -> None:
        """Make the machine code; from then on this is an ordinary library."""
        self._ensure_finalized()
        if type(self) is Late:
            self.__class__ = JITCodeLibrary
            self._dynamic_globals.clear()
            self._finalize_final_module()
            _set_environments(self)

    def get_pointer_to_function(self, name: str) -> int:
        self.compile()
        return self.get_pointer_to_function(name)

    def _get_compiled_object(self) -> bytes:
        self.compile()
        return self._get_compiled_object()

    def _get_module_for_linking(self) -> Any:
        if not _inside[0]:
            self.compile()
        return JITCodeLibrary._get_module_for_linking(self)


def _executable(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_executable(context: Any, library: Any, description: Any, environment: Any) -> Any:
        entries = {description.llvm_cpython_wrapper_name, description.llvm_cfunc_wrapper_name}
        is_new = type(library) is JITCodeLibrary and not library._finalized
        if is_new and entries.isdisjoint(f.name for f in library._final_module.functions):
            library.__class__ = Late
            library.environment = context.get_env_name(description), environment
            library._ensure_finalized()
            name = description.qualname.split(".")[-1]
            return _dynfunc.make_function(description.lookup_module(), name, name, 0, environment, (library,))
        found = original(context, library, description, environment)
        _set_environments(library)
        return found

    return get_executable


def _decorator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compile implementations of functions that have no entry for Python without one for C."""

    def get_jit_decorator(template: Any) -> Any:
        decorator = original(template)
        return lambda **options: decorator(
            **({"no_cfunc_wrapper": True, **options} if options.get("no_cpython_wrapper") else options)
        )

    return get_jit_decorator


def _linking(original: Callable[..., None]) -> Callable[..., None]:
    def add_linking_library(library: Any, linked: Any) -> None:
        if type(linked) is JITCodeLibrary and not linked._finalized:
            linked.__class__ = Late
        original(library, linked)

    return add_linking_library


def _set_environments(library: Any) -> None:
    """Set the environments of functions of which a library's machine code has copies."""
    waiting, seen = [library], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        waiting += getattr(part, "_linking_libraries", ())
        environment = getattr(part, "environment", None)
        if environment is not None and library.codegen._engine.is_symbol_defined(environment[0]):
            library.codegen.set_env(*environment)
