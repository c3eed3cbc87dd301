"""Random functions with loops for `ampi.compiled_loops`, and their comparison with Python.

A random function takes arrays (some of them views of one another), Python and NumPy numbers, integers used as indices,
and an object with attributes, one of which is a property with a side effect.  It runs twice, with compiled loops and
unmodified; results and their types, exceptions, the arrays, and the object must agree.
"""

import contextlib
import linecache
import math
import random
import warnings

import numpy as np
from loop_vectors import DrawnVectors

import ampi
import ampi.numpy
from ampi.programs.numbers import make_math
from ampi.programs.outlining import compiled_loops, running

_count = iter(range(1 << 60))
unchecked = []
"""Out-of-bounds accesses that kernels run by Python did not check themselves."""
SIZE = 5


class Thing:
    """An object with plain attributes and a property."""

    scale = 0.75

    def __init__(self):
        self.rate = 1.25
        self.length = 3
        self.field = np.linspace(0.2, 1.4, SIZE)
        self.pair = np.array([0.5, 0.25])
        self.looks = 0

    @property
    def seen(self):
        self.looks += 1
        return float(self.looks)


HELPERS = """
def flux(a, b):
    if a > b:
        return a * scale - b
    c = np.sin(a)
    return c + b * b

def total(z, i):
    t = 0.0
    for j in range(z.shape[1]):
        t += flux(z[i, j], 0.5)
    return t

def put(z, i, value):
    z[i] = value * scale

def shifted(z, h=0.75):
    r = z - h
    if h > 0.5:
        r *= 2.0
    return r

def bump(z, h):
    z += h
    z[1] -= 0.5

def first_of(z, r):
    r = r + z
    return z
""".strip().splitlines()


class Drawn(DrawnVectors):
    """A random function.

    Attributes
    ----------
    text : str
        Source of the helpers and of ``f(x, y, v, w, q, n, m, a, b, c, o)``.
    """

    def __init__(self, seed, smooth=False):
        self.random = random.Random(seed)
        self.smooth = smooth  # whether its derivatives are to be compared
        self.lines = []
        self.depth = 1
        self.loops = 0
        self.indices = []
        self.floats = ["s", "t"]
        self.integers = ["k"]
        self.vectors = []  # names of new arrays
        self.many = self.chance(0.3)  # vectors
        self.write()
        self.text = "\n".join([*HELPERS, "def f(x, y, v, w, q, n, m, a, b, c, o):", *self.lines]) + "\n"

    def chance(self, p):
        return self.random.random() < p

    def pick(self, *choices):
        return self.random.choice(choices)

    def emit(self, text):
        self.lines.append("    " * self.depth + text)

    def write(self):
        self.emit(f"s = {self.pick('0', '0.0', 'a', 'c', '1.5', 'v[0]')}")
        self.emit(f"t = {self.pick('0.0', 'b', 'c', '2')}")
        self.emit(f"k = {self.pick('0', '1', 'n', '-1')}")
        self.emit("pair = o.pair")
        if self.many and self.chance(0.5):
            for name in self.pick("d", "e", "de"):
                self.emit(f"{name} = {self.pick('v * 0.5', 'x[1]', 'v', 'np.ones(5)', 'w + o.field', 'x[0] - y[1]')}")
                self.vectors.append(name)
        if self.chance(0.1):
            self.emit("def inner(z):")
            self.emit("    return z * s")
        for _ in range(self.random.randint(1, 2)):
            self.loop(0)
        if self.chance(0.3):
            self.emit(f"t = t + {self.number(2)}")
        names = ["s", "t", "k"] + [name for name in ("i0", "j0", "u", "g") if self.chance(0.2)]
        names += [name for name in sorted({*self.vectors}) if self.chance(0.3)]
        self.emit(f"return {', '.join(names)}")

    # ----------------------------------------------------------------------------------------------- statements

    def loop(self, level):
        self.loops += 1
        level_name = "ij"[min(level, 1)] + str(level // 2)
        kind = self.random.random()
        named = len(self.indices)
        if kind < 0.62:
            self.emit(f"for {level_name} in {self.range()}:")
            self.indices.append(level_name)
        elif kind < 0.7:
            self.emit(f"for g in {self.pick('v', 'w', 'x[1]', 'y[0]', 'o.field')}:")
        elif kind < 0.78:
            self.emit(f"for u, g in zip({self.pick('v', 'x[2]')}, {self.pick('w', 'y[1]', 'v')}):")
        elif kind < 0.86:
            self.emit(f"for {level_name}, g in enumerate({self.pick('v', 'w', 'x[0]')}):")
            self.indices.append(level_name)
        elif kind < 0.88:
            self.emit(f"for d{level} in {self.pick('(-1, 0, 1)', '(0, 2)', '(3, -2, 1, 0)')}:")
            self.indices.append(f"d{level}")
        elif kind < 0.91:
            self.emit(f"for row in {self.pick('x', 'y')}:")
            self.depth += 1
            self.emit(f"s += row[{self.index()}]")
            self.depth -= 1
        else:
            count = f"h{self.loops}"
            self.emit(f"{count} = 0")
            self.emit(
                f"while {count} < {self.pick('n', '4', 'len(v)')} and {self.pick('s < 50.0', 't > -90', 'True')}:"
            )
            self.depth += 1
            self.emit(f"{count} += 1")
            self.depth -= 1
        self.depth += 1
        self.block(level + 1)
        self.depth -= 1
        if self.chance(0.12):
            self.emit("else:")
            self.depth += 1
            self.emit(f"t = {self.number(1)}")
            self.depth -= 1
        del self.indices[named:]

    def range(self):
        return self.pick(
            "range(n)", "range(m)", "range(1, n)", "range(n - 1)", "range(1, n - 1)", "range(n - 1, -1, -1)",
            "range(0, n, 2)", "range(len(v))", "range(x.shape[0])", "range(x.shape[1])", "range(o.length)",
            "range(m, n)",
            "range(-2, 2)", "range(5, 1)", "range(k % 6)", "range(-n, 0)", *[f"range({i} + 1)" for i in self.indices],
        )  # fmt: skip

    def block(self, level):
        for _ in range(self.random.randint(1, 3)):
            self.statement(level)

    def statement(self, level):
        kind = self.random.random()
        if self.many and self.chance(0.35):
            self.vector_statement()
        elif kind < 0.2:
            self.emit(f"s {self.pick('+=', '+=', '-=', '*=', '=')} {self.number(2)}")
        elif kind < 0.28:
            self.emit(f"t = {self.number(2)}")
        elif kind < 0.5:
            self.emit(f"{self.element()} {self.pick('=', '+=', '-=', '*=')} {self.number(2)}")
        elif kind < 0.62 and level < 3:
            self.loop(level)
        elif kind < 0.74:
            self.emit(f"if {self.test()}:")
            self.depth += 1
            if self.chance(0.3):
                self.emit(
                    self.pick("break", "continue", "return s", "return k, 1" if self.chance(0.2) else "return True")
                )
            else:
                self.block(level + 1)
            self.depth -= 1
            if self.chance(0.4):
                self.emit("else:")
                self.depth += 1
                self.block(level + 1)
                self.depth -= 1
        elif kind < 0.8:
            self.emit(f"k {self.pick('+=', '=', '-=', '*=')} {self.integer()}")
        elif kind < 0.86:
            self.emit(f"u = {self.number(1)}")
            self.emit(f"s = s + u * {self.number(1)}")
        elif kind < 0.9:
            name = self.pick("s", "t")
            self.emit(f"{name} = {self.pick('max', 'min')}({name}, {self.number(1)})")
        elif kind < 0.93:
            self.emit(f"k = {self.pick('k + 1', 'k + 2', 'k - 1', self.integer())}")
            self.emit(f"if c {self.pick('<', '>')} a {self.pick('or', 'and')} v[k] > 0.5:")
            self.emit("    s = s + v[k]")
            self.emit(f"t = {self.pick('w[k]', '1.5')} if b > a else {self.pick('s', 'w[k]')}")
            self.emit(f"w[0] = {self.pick('t', 'w[k]')}")
        elif kind < 0.94:
            self.emit(f"s, t = {self.number(1)}, {self.number(1)}")
        elif kind < 0.95:
            self.emit(f"row = {self.pick('x', 'y')}[{self.index()}]")
            self.emit(f"{self.pick('row[0]', 's', 't')} = row[{self.index()}] * {self.number(1)}")
        elif kind < 0.955:
            i = self.index()
            part = f"{self.pick('x[0, ', 'y[1, ', 'v[', 'w[', 'x[-1][')}{i}:{i} + 2]"
            other = self.pick(f"w[{i}:{i} + 2]", "v[1:3]", "x[1, 0:2]", "o.pair", self.number(0))
            self.emit(f"{part} {self.pick('=', '+=', '-=', '*=')} {other} * {self.number(0)}")
        elif kind < 0.96:
            self.emit(f"pair {self.pick('+=', '-=')} {self.pick('x[0, 1:3]', 'v[1:3]')} * {self.number(0)}")
        elif kind < 0.963:
            self.vector_statement()
        elif kind < 0.967:
            self.emit(f"put({self.pick('v', 'w', 'x[0]')}, {self.index()}, {self.number(0)})")
        elif kind < 0.98 and not self.smooth:
            self.emit(
                self.pick(
                    "put(v, 1, t)",
                    "o.rate += 0.5",
                    "o.total = s",
                    "w[0:2] = v[1:3]",
                    "print(end='')",
                    "q[0] = k",
                    "q[k] += 1",
                )
            )
        else:
            self.emit(self.pick(f"s = {self.pick('1', '0.5', 'a', 'k', 'o.rate')}", f"k = {self.pick('0', '1', 'n')}"))

    # ---------------------------------------------------------------------------------------------- expressions

    def index(self):
        known = [*self.indices, *self.indices, *self.indices]
        choices = ["0", "1", "-1", "m - 2"] + known
        for i in self.indices:
            choices += [f"{i} - 1", f"{i} + 1" if self.chance(0.5) else i, f"-{i}", f"n - 1 - {i}"]
        if self.chance(0.12):
            choices = ["k", "q[0]", "q[k]", "k % n", "n", "2 * m - n", "k // 2", f"q[{self.pick(*choices)}]"]
        return self.pick(*choices)

    def element(self):
        return self.pick(
            f"x[{self.index()}, {self.index()}]", f"y[{self.index()}, {self.index()}]", f"v[{self.index()}]",
            f"w[{self.index()}]", f"x[{self.index()}][{self.index()}]", f"o.field[{self.index()}]",
        )  # fmt: skip

    def integer(self):
        return self.pick("1", "2", "n", "k", "m", "q[1]", "3 * n", "n // 2", "(n - 7) % 3", "-1", *self.indices)

    def number(self, depth):
        kind = self.random.random()
        if depth == 0 or kind < 0.3:
            return self.pick(
                self.element(), self.element(), self.element(), "a", "b", "c", "s", "t", "2.0", "0.5", "3", "o.rate",
                "o.scale", "n", *self.indices, *(["o.seen"] if self.chance(0.1) else []), "float(n)",
            )  # fmt: skip
        if kind < 0.62:
            return f"({self.number(depth - 1)} {self.pick('+', '-', '*', '*')} {self.number(depth - 1)})"
        if kind < 0.7:
            below = self.pick(
                "2.0", "(2.5 + c * c)", "a", self.number(0), "(n - 3)", "(s - s)" if self.chance(0.1) else "4"
            )
            return f"({self.number(depth - 1)} / {below})"
        if kind < 0.76:
            return f"{self.pick('np.sin', 'math.cos', 'np.tanh', 'math.atan')}({self.number(depth - 1)})"
        if kind < 0.8:
            name = self.pick("np.sqrt", "math.sqrt", "np.log", "math.exp", "np.exp", "math.log")
            return f"{name}({self.number(depth - 1)})"
        if kind < 0.84:
            return f"{self.pick('abs', 'np.abs', '-', 'float')}({self.number(depth - 1)})"
        if kind < 0.88:
            return f"{self.pick('max', 'min', 'np.maximum')}({self.number(depth - 1)}, {self.number(depth - 1)})"
        if kind < 0.92:
            return f"({self.number(0)} if {self.test()} else {self.number(0)})"
        if kind < 0.95:
            return f"{self.element()} ** {self.pick('2', '3', '0.5', '-1', 'a')}"
        if self.chance(0.4):
            test = self.pick("", "", " if v[j1] > 0.5")
            inner = f"x[{self.index()}, j1] * w[j1] for j1 in range({self.pick('n', '3')}){test}"
            return self.pick(f"sum({inner})", f"sum([{inner}])")
        if self.chance(0.6):
            return self.pick(f"flux({self.number(0)}, {self.number(0)})", f"total(x, {self.index()})")
        if self.chance(0.2) and any("def inner" in line for line in self.lines):
            return f"inner({self.number(0)})"
        return f"({self.number(0)} {self.pick('//', '%')} {self.pick('2.0', '3', 'a')})"

    def test(self):
        kind = self.random.random()
        if kind < 0.4:
            return f"{self.number(0)} {self.pick('<', '>', '<=', '>=')} {self.number(0)}"
        if kind < 0.65 and self.indices:
            return (
                f"{self.pick(*self.indices)} {self.pick('<', '>', '==', '!=')} {self.pick('0', '1', 'n - 1', 'm', 'k')}"
            )
        if kind < 0.75 and self.indices:
            i = self.pick(*self.indices)
            return f"{i} < n - 1 and v[{i} + 1] > {self.number(0)}"
        if kind < 0.82:
            return f"0 < {self.pick('s', 'k')} <= 3"
        if kind < 0.88:
            return f"not {self.number(0)} > 0.4"
        if kind < 0.92:
            return "k"
        if kind < 0.95:
            return f"{self.pick('k', *self.indices)} {self.pick('in', 'not in')} (0, {self.pick('2', '-1, 3')})"
        return f"k % 2 == {self.pick('0', '1')} or {self.number(0)} < 1"

    # ------------------------------------------------------------------------------------------------ arguments

    def arguments(self, array=np.array):
        """New arguments with the same values at each call; ``array`` makes the arrays."""
        r = random.Random(str(self.text))
        numbers = np.random.default_rng(r.randrange(1 << 30))
        draw = lambda *shape: (
            numbers.uniform(-1.0, 2.0, shape) if r.random() < 0.5 else numbers.uniform(0.3, 1.7, shape)
        )
        x, y, v, w = draw(SIZE, SIZE), draw(SIZE, SIZE), draw(SIZE), draw(SIZE)
        q = numbers.integers(-2, SIZE, SIZE)
        x, y, v, w = map(array, (x, y, v, w))
        kind = r.random()
        if kind < 0.1:
            y = x
        elif kind < 0.2:
            w = v
        elif kind < 0.3:
            v = x[1]
        elif kind < 0.37 and not self.smooth:
            whole = array(numbers.uniform(0.3, 1.7, SIZE + 1))
            v, w = whole[1:], whole[:-1]
        elif kind < 0.45:
            y = x.T
        elif kind < 0.5:
            v = v[::-1]
        n = r.choice([SIZE, SIZE, SIZE, 3, 1, 0, SIZE + 1 if r.random() < 0.3 else SIZE])
        a = r.choice([0.5, 1.5, -0.75, 2])
        b = r.choice([0.25, 0.0, 1, np.float64(2.0)])
        return x, y, v, w, q, n, r.choice([2, 3, SIZE]), a, b, np.float64(r.choice([0.4, 1.1])), Thing()


def function_of(text, active=False):
    """The function of a source that tracebacks and `inspect` find; ``active``: with ampi's NumPy and `math`."""
    filename = f"<loops {next(_count)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    space = {"np": ampi.numpy if active else np, "math": make_math() if active else math, "scale": 1.75}
    exec(compile(text, filename, "exec"), space)
    return space["f"]


@contextlib.contextmanager
def at_once(interpreted):
    """Compile loops at their first entry; ``interpreted``: Python runs their kernels."""
    before = {
        name: getattr(running, name) for name in ("RECORDED", "UNRECORDED", "FEWEST", "made_kernel", "REMEMBERED")
    }
    running.RECORDED = running.UNRECORDED = running.FEWEST = -1
    running.REMEMBERED = 1 << 60
    if interpreted:
        running.made_kernel = in_python
    running_note, running.note_hot = running.note_hot, lambda loop: None
    try:
        yield
    finally:
        running.note_hot = running_note
        for name, value in before.items():
            setattr(running, name, value)


def in_python(loop, lowered):
    """The kernel of a loop, run by Python."""
    names = ", ".join(name for _, name, _ in lowered.arguments)
    lines = [f"    {text}" for _, text in lowered.text] or ["    pass"]
    space = {"math": math, "_np": np}
    exec("\n".join([f"def kernel({names}):", *lines]), space)

    def kernel(*arguments):
        try:
            return space["kernel"](*arguments)
        except IndexError as error:
            if error.args:  # raised by NumPy: a compiled kernel would have read out of bounds
                unchecked.append(f"line {lines[error.__traceback__.tb_next.tb_lineno - 2]}: {error}")
            raise

    return kernel


class Outcome:
    """The effects of a call: result or error, the arrays, and the object."""

    def __init__(self, function, arguments):
        self.error = self.result = None
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                self.result = function(*arguments)
            except Exception as error:
                self.error = error
                self.line = _line_of(error, function.__code__.co_filename)
        self.arrays = [np.array(a) for a in arguments[:5]] + [np.array(arguments[-1].field)]
        self.arrays.append(np.array(arguments[-1].pair))
        self.thing = {k: v for k, v in vars(arguments[-1]).items() if k not in ("field", "pair")}


def _line_of(error, filename):
    found, frames = 0, error.__traceback__
    while frames is not None:
        if frames.tb_frame.f_code.co_filename == filename:
            found = frames.tb_lineno
        frames = frames.tb_next
    return found


def difference(one, other):
    """How two outcomes differ; empty if they agree."""
    if type(one.error) is not type(other.error) or str(one.error) != str(other.error):
        return f"errors: {one.error!r}, {other.error!r}"
    if one.error is not None and one.line != other.line:
        return f"lines: {one.line}, {other.line}"
    for a, b in zip(one.arrays, other.arrays):
        if not alike(a, b):
            return f"arrays: {a}, {b}"
    if not alike(list(one.thing.items()), list(other.thing.items())):
        return f"objects: {one.thing}, {other.thing}"
    return "" if alike(one.result, other.result) else f"results: {one.result!r}, {other.result!r}"


def alike(a, b):
    """Return whether values and types are equal, floating-point numbers up to rounding."""
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.allclose(a, b, rtol=1e-9, atol=1e-11, equal_nan=True)
    if isinstance(a, float):
        return bool(np.isclose(a, b, rtol=1e-9, atol=1e-11, equal_nan=True))
    return a == b


def compared(seed, interpreted=True):
    """Run a random function both ways.

    Returns what differs, the numbers of compiled forms and of loops, the function and the forms."""
    drawn = Drawn(seed)
    plain = Outcome(function_of(drawn.text), drawn.arguments())
    loops = []
    with at_once(interpreted):
        function = compiled_loops.with_compiled_loops(function_of(drawn.text), loops)
        compiled = Outcome(function, drawn.arguments())
    forms = [form for one in loops for form in one.forms.values()]
    done = sum(form.kernel is not None for form in forms)
    found = difference(plain, compiled) or (unchecked.pop() if unchecked else "")
    return found, done, len(loops), drawn, forms


def recorded(function, arguments):
    """The value and gradient of a function of watched arrays, or its error and None.

    The gradient is empty if a derivative was dropped with a warning (by ``float``, which compiled loops
    differentiate).
    """
    with ampi.Tape() as tape, warnings.catch_warnings(record=True) as heard, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        seen = {}
        watched = []
        for a in arguments[:4]:
            watched.append(seen.setdefault(id(a), a))
        for a in seen.values():
            tape.watch(a)
        try:
            result = function(*arguments)
        except ampi.AmpiError as error:
            return type(error), None
        except Exception as error:
            return (type(error), str(error)), None
        found = result if isinstance(result, tuple) else (result,)
        numbers = [v for v in found if isinstance(v, float) or (isinstance(v, np.ndarray) and v.dtype.kind == "f")]
        total = sum((v.sum() if isinstance(v, np.ndarray) else v for v in numbers), 0.0) + sum(
            (a.sum() for a in seen.values()), 0.0
        )
        total = total + arguments[-1].field.sum() + arguments[-1].pair.sum()
    if any(issubclass(w.category, ampi.ActivityWarning) for w in heard):
        return float(ampi.value(total)), []
    return float(ampi.value(total)), tape.gradient(total, list(seen.values()))


def gradients_compared(seed):
    """Differentiate a random function both ways; returns as `compared` does."""
    drawn = Drawn(seed, smooth=True)
    array = lambda a: ampi.numpy.array(a)
    wants = drawn.arguments(array), drawn.arguments(array)
    for arguments in wants:
        arguments[-1].field = ampi.numpy.array(arguments[-1].field)
        arguments[-1].pair = ampi.numpy.array(arguments[-1].pair)
    value, gradient = recorded(function_of(drawn.text, active=True), wants[0])
    loops = []
    with at_once(interpreted=False):
        function = compiled_loops.with_compiled_loops(function_of(drawn.text, active=True), loops)
        again, other = recorded(function, wants[1])
    forms = [form for one in loops for form in one.forms.values()]
    done = sum(form.kernel is not None for form in forms)
    found = ""
    if isinstance(value, float) and isinstance(again, float):
        if not np.isclose(value, again, rtol=1e-9, atol=1e-11, equal_nan=True):
            found = f"values: {value}, {again}"
        for a, b in zip(gradient, other):
            if np.abs(a).max() < 1e8 and not np.allclose(a, b, rtol=1e-7, atol=1e-9):
                found = f"gradients: {a}, {b}"
    elif value != again:
        found = f"errors: {value}, {again}"
    return found, done, len(loops), drawn, forms


__all__ = ["Drawn", "Outcome", "alike", "at_once", "compared", "gradients_compared", "unchecked"]
