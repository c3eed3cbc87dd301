"""Numba's type inference without code generation, for tests that run ampi's programs as plain Python.

The frontend asks Numba for the type of, say, ``np.where(c, x, y)``. To answer, Numba compiles its implementation, which
takes most of the time of such a test, although the code never runs.
"""

import contextlib
from unittest import mock

from numba.core import compiler, compiler_machinery, errors, sigutils, typing
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.typed_passes import NopythonTypeInference

_compile = compiler.CompilerBase._compile_core
_template, _overload = Dispatcher.get_call_template, Dispatcher.get_overload
_found = {}  # by dispatcher and types of arguments
_inside = False


@compiler_machinery.register_pass(mutates_CFG=False, analysis_only=True)
class _Done(compiler_machinery.AnalysisPass):
    _name = "only_types_done"

    def __init__(self):
        super().__init__()

    def run_pass(self, state):
        signature = typing.signature(state.return_type, *state.args)
        state.cr = compiler.compile_result(
            typing_context=state.typingctx, target_context=state.targetctx, signature=signature, objectmode=False
        )
        return True


class _Types(compiler.CompilerBase):
    def define_pipelines(self):
        manager = compiler_machinery.PassManager("only types")
        manager.passes.extend(compiler.DefaultPassBuilder.define_untyped_pipeline(self.state).passes)
        manager.add_pass(NopythonTypeInference, "types")
        manager.add_pass(_Done, "done")
        manager.finalize()
        return [manager]


@global_compiler_lock
def _types_of(dispatcher, arguments):
    made = dispatcher._compiler
    with mock.patch.object(made, "pipeline_class", _Types), dispatcher._compiling_counter:
        try:
            return made.compile(arguments, None).signature
        except errors.ForceLiteralArg as problem:
            raise problem.bind_fold_arguments(lambda args, kws: made.fold_argument_types(args, kws)[1]) from None


def _call_template(self, args, kws):
    """Replacement of `Dispatcher.get_call_template`, which compiles."""
    python_signature, folded = self._compiler.fold_argument_types(args, kws)
    folded = tuple(folded)
    if not _inside or not self._can_compile or folded in self.overloads:
        return _template(self, args, kws)
    if (self, folded) not in _found:
        _found[self, folded] = _types_of(self, folded)
    template = typing.make_concrete_template(self.py_func.__name__, self.py_func.__name__, [_found[self, folded]])
    return template, python_signature, folded, {}


def _get_overload(self, signature):
    """Replacement of `Dispatcher.get_overload`: nothing was compiled, so that there is none."""
    if not _inside or sigutils.normalize_signature(signature)[0] in self.overloads:
        return _overload(self, signature)
    return None


def _compile_core(self):
    """Compile fully whatever is really compiled inside `only_types`."""
    with _switched(_inside and isinstance(self, _Types)):
        return _compile(self)


@contextlib.contextmanager
def _switched(value):
    global _inside
    before, _inside = _inside, value
    try:
        yield
    finally:
        _inside = before


@contextlib.contextmanager
def only_types():
    """A context in which Numba infers types without compiling what it is asked about."""
    with (
        mock.patch.object(compiler.CompilerBase, "_compile_core", _compile_core),
        mock.patch.object(Dispatcher, "get_call_template", _call_template),
        mock.patch.object(Dispatcher, "get_overload", _get_overload),
        _switched(True),
    ):
        yield
