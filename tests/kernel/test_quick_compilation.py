"""Functions come out of our reconstruction of single assignment as they come out of Numba's: drawn ones."""

import importlib
import io
import random

import numpy as np
import pytest
from numba.core import errors, ssa, types, untyped_passes
from numba.core.compiler import run_frontend

quick = importlib.import_module("ampi.kernel.runtime.quick_compilation")

NAMES = "abcdef"


class Writer:
    """A function of four arguments whose variables are assigned in branches and loops, some of them nowhere before."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = ["def drawn(n, a, b, x):", "    if n > 0:", "        c = d = e = f = 1.0"]
        self.block(1, 3)
        self.line(f"return {self.value()}", 1)

    def line(self, text, depth):
        self.lines.append("    " * depth + text)

    def value(self):
        left, right = self.random.choices([*NAMES, "1.5", "x[0]"], k=2)
        return f"{left} {self.random.choice('+-*')} {right}"

    def condition(self):
        return f"{self.random.choice(NAMES)} {self.random.choice('<>')} {self.random.choice(['0.0', 'n', *NAMES])}"

    def block(self, depth, nested, in_loop=False):
        for _ in range(self.random.randint(1, 4)):
            kind = self.random.choice(("assign", "assign", "store", "if", "else", "for", "while", "leave", "two"))
            if kind == "store":
                self.line(f"x[{self.random.randint(0, 2)}] = {self.value()}", depth)
            elif kind == "leave" and in_loop:
                self.line(f"if {self.condition()}:", depth)
                self.line(self.random.choice(("break", "continue", f"return {self.value()}")), depth + 1)
            elif kind == "two":
                self.line(
                    f"{', '.join(self.random.sample(NAMES, 2))} = {', '.join(self.random.sample(NAMES, 2))}", depth
                )
            elif kind in ("if", "else", "for", "while") and nested:
                head = f"for {self.random.choice('gh' + NAMES)} in range(n)" if kind == "for" else None
                self.line(f"{head or ('while ' if kind == 'while' else 'if ') + self.condition()}:", depth)
                self.block(depth + 1, nested - 1, in_loop or kind in ("for", "while"))
                if kind == "else":
                    self.line("else:", depth)
                    self.block(depth + 1, nested - 1, in_loop)
            else:
                self.line(f"{self.random.choice(NAMES)} = {self.value()}", depth)

    def function(self):
        space = {}
        exec("\n".join(self.lines), space)
        return space["drawn"]


def dumped(function, reconstruct):
    """What a reconstruction makes of the function, as text; and the names that it gave to each variable."""
    program = run_frontend(function)
    found = reconstruct(program.blocks)
    text = io.StringIO()
    for label, block in sorted(found.items()):
        print(label, file=text)
        block.dump(text)
    scope = next(iter(found.values())).scope
    return text.getvalue(), {name: sorted(names) for name, names in scope.var_redefinitions.items()}


@pytest.mark.parametrize("seed", range(60))
def test_as_numba_does(seed):
    writer = Writer(seed)
    ours, numbas = dumped(writer.function(), quick.reconstructed), dumped(writer.function(), ssa._run_ssa)
    assert ours == numbas, "\n".join(writer.lines)


def test_nothing_is_left_behind():
    before = ssa._run_ssa, untyped_passes.fixup_var_define_in_scope, types.Function.get_call_type
    with pytest.raises(RuntimeError), quick.quick_compilation():
        assert ssa._run_ssa is quick.reconstructed
        raise RuntimeError
    assert before == (ssa._run_ssa, untyped_passes.fixup_var_define_in_scope, types.Function.get_call_type)


def test_what_has_no_type_is_refused_each_time():
    import numba

    with quick.quick_compilation():
        for _ in range(2):
            with pytest.raises(errors.TypingError, match=r"No implementation of function|Invalid use"):
                numba.njit(lambda x: x + (1, 2))(np.ones(3))
            assert numba.njit(lambda x: x + 1 + x.sum())(np.ones(3))[0] == 5.0
