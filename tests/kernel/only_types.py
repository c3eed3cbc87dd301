"""Numba's type inference without its code generation, for tests that run programs of ours as plain Python.

The frontend asks Numba what type ``np.where(c, x, y)`` has. Numba compiles its own implementation to tell, which takes
most of the time of such a test, and the code is never run.
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
    """`Dispatcher.get_call_template`, which compiles."""
    python_signature, folded = self._compiler.fold_argument_types(args, kws)
    folded = tuple(folded)
    if not _inside or not self._can_compile or folded in self.overloads:
        return _template(self, args, kws)
    if (self, folded) not in _found:
        _found[self, folded] = _types_of(self, folded)
    template = typing.make_concrete_template(self.py_func.__name__, self.py_func.__name__, [_found[self, folded]])
    return template, python_signature, folded, {}


def _get_overload(self, signature):
    """What would be called by compiled code, of which there is none."""
    if not _inside or sigutils.normalize_signature(signature)[0] in self.overloads:
        return _overload(self, signature)
    return None


def _compile_core(self):
    """What is compiled in earnest inside, is compiled as a whole."""
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
    """Inside, what Numba is asked for the type of is not compiled."""
    with (
        mock.patch.object(compiler.CompilerBase, "_compile_core", _compile_core),
        mock.patch.object(Dispatcher, "get_call_template", _call_template),
        mock.patch.object(Dispatcher, "get_overload", _get_overload),
        _switched(True),
    ):
        yield
