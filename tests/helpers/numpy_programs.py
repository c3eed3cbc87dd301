# ruff: noqa: E501 (a line for each kind of statement)
"""Random NumPy programs: views of views, empty and 0-d parts, updates in place, all kinds of indices and dtypes.

A program is a list of lines.  Each is a random guess, kept if NumPy runs it and its results are finite and small; so a
line may be anything.  The independents are ``x`` (float64), ``z`` (complex128) and ``f`` (float32).
"""

import random
import warnings

import numpy as np

WIDE = {"F2": np.float64, "F4": np.float64, "C8": np.complex128}
NARROW = {"F2": np.float16, "F4": np.float32, "C8": np.complex64}
LARGEST = 300.0
MOST_ELEMENTS = 60

UNARY = "sin cos tanh square negative conj abs arctan exp positive sinh sign rint floor real imag".split()
BINARY = "+ - * / // % **".split()
UFUNCS2 = "add subtract multiply maximum minimum hypot arctan2 fmax logaddexp divide power copysign".split()
REDUCTIONS = "sum mean max min prod std var ptp median any all argmax cumsum cumprod nansum count_nonzero".split()
DTYPES = ["np.float64", "F4", "F2", "np.complex128", "C8", "np.int64", "np.float64", "float", "complex"]


def starts():
    """The values of the independents, in new arrays at each call."""
    rng = np.random.default_rng(3)
    z = rng.uniform(-1, 1, 6) + 1j * rng.uniform(-1, 1, 6)
    return {
        "x": rng.uniform(-1.5, 1.5, (3, 4)),
        "z": z.reshape(2, 3),
        "f": rng.uniform(-1, 1, 5).astype(np.float32),
    }


class Program:
    """A random program, in ``lines``."""

    def __init__(self, seed, length=14):
        self.random = random.Random(seed)
        self.lines = []
        self.names = {**NARROW, "np": np, **starts()}
        self.count = 0
        for _ in range(40 * length):
            if len(self.lines) == length:
                break
            self.try_line(self.line())

    # ------------------------------------------------------------------------------------------------ keeping lines

    def executed(self, lines, dtypes):
        return run(lines, np, dtypes, starts())

    def try_line(self, line):
        # A failing line may have changed something: run everything again.
        try:
            names = self.executed([*self.lines, line], NARROW)
        except Exception:
            return
        for value in names.values():
            if isinstance(value, np.ndarray) and value.size > MOST_ELEMENTS:
                return
            if not isinstance(value, (np.ndarray, np.generic)) or not in_range(value):
                return
        self.lines.append(line)
        self.names = names

    # ------------------------------------------------------------------------------------------------------- pieces

    def pick(self, *kinds):
        return self.random.choice(kinds)

    def int(self, low, high):
        return self.random.randint(low, high)

    def arrays(self, test=lambda a: True):
        return [n for n, v in self.names.items() if isinstance(v, np.ndarray) and n.islower() and test(v)]

    def array(self, test=lambda a: True):
        found = self.arrays(lambda a: a.dtype.names is None and test(a))
        # Prefer recent ones.
        return found[max(self.int(0, len(found) - 1), self.int(0, len(found) - 1))] if found else "x"

    def any(self):
        names = [n for n, v in self.names.items() if isinstance(v, (np.ndarray, np.generic)) and n.islower()]
        return names[max(self.int(0, len(names) - 1), self.int(0, len(names) - 1))]

    def number(self):
        return self.pick("2.0", "0.5", "-1", "3", "np.float64(1.5)", "1j", "F4(0.25)", "True", "np.int64(2)")

    def operand(self):
        return self.pick(self.any, self.any, self.array, self.number, self.element, self.view_of, self.nested)()

    def nested(self):
        return f"[{self.element()}, {self.number()}]"

    def element(self):
        name = self.array(lambda a: a.size and a.dtype.names is None)
        shape = self.names[name].shape
        return f"{name}[{', '.join(str(self.int(-n, n - 1)) for n in shape) or '()'}]"

    def slice(self, n):
        part = lambda: self.pick("", "", str(self.int(-n - 1, n + 1)))
        return f"{part()}:{part()}" + self.pick("", "", "", ":-1", ":2", ":-2")

    def index(self, shape, fancy=False):
        """Any index that may stand between brackets."""
        if fancy:
            kind = self.int(0, 4)
            n = shape[0] if shape else 1
            numbers = [self.int(-n, n - 1) for _ in range(self.int(0, 4))] if n else []
            if kind == 0:
                return str(numbers)
            if kind == 1:
                return f"np.array({numbers}, dtype=int)"
            if kind == 2:
                return f"np.array({[self.pick(True, False) for _ in range(n)]}, dtype=bool)"
            if kind == 3 and len(shape) > 1:
                return f"{self.slice(n)}, {[self.int(0, max(shape[1] - 1, 0)) for _ in range(2)]}"
            return self.pick(f"{numbers}, {self.int(0, 2)}", f"({numbers},)", "np.bool_(True)", "True", "None, [0]")
        items = []
        for n in shape[: self.int(0, len(shape)) or len(shape)]:
            items.append(self.pick(self.slice(n), self.slice(n), str(self.int(-n, max(n - 1, 0)))))
        if self.int(0, 5) == 0:
            items.insert(self.int(0, len(items)), self.pick("None", "..."))
        return ", ".join(items) or self.pick("()", "...", "None")

    def view_of(self):
        name = self.array()
        return f"{name}[{self.index(self.names[name].shape)}]"

    def square(self):
        # For other shapes NumPy takes memory past the array for part of the diagonal.
        return f"{self.array(lambda a: a.ndim == 2 and min(a.shape) > 1)}[:2, :2]"

    def shape_for(self, size):
        return self.pick(
            (size,), (-1,), (1, size), (size, 1), (2, -1), (-1, 2), (3, -1), (), (0,), (0, 3), (-1, 1, 2), size
        )  # fmt: skip

    def axis(self, a):
        return self.int(-a.ndim, a.ndim - 1) if a.ndim else 0

    # -------------------------------------------------------------------------------------------------------- lines

    def fresh(self):
        return f"v{len(self.lines)}"

    def line(self):
        kind = self.random.choices(
            [self.viewing, self.copying, self.elementwise, self.reducing, self.joining, self.product, self.updating,
             self.writing, self.alias, self.making, self.structured, self.looping],
            [24, 12, 14, 14, 7, 9, 16, 22, 3, 3, 3, 12],
        )[0]  # fmt: skip
        return kind()

    def viewing(self):
        n = self.array()
        a = self.names[n]
        k, m = self.axis(a), self.axis(a)
        order = self.pick("C", "F", "A", "K")
        shape = self.shape_for(a.size)
        return f"{self.fresh()} = " + self.pick(
            self.view_of(), self.view_of(), self.view_of(), self.view_of(),
            f"{n}.T", f"{n}.reshape({shape})", f"{n}.reshape({shape}, order={self.pick('C', 'F', 'A')!r})", f"np.reshape({n}, {shape})",
            f"np.ravel({n})", f"{n}.ravel({order!r})", f"np.ravel({n}, order={order!r})", f"np.squeeze({n})", f"{n}.squeeze()",
            f"np.expand_dims({n}, {k})", f"np.moveaxis({n}, {k}, {m})", f"np.swapaxes({n}, {k}, {m})", f"{n}.swapaxes({k}, {m})",
            f"np.flip({n})", f"np.flip({n}, {k})", f"np.rot90({n}, {self.int(0, 3)})", f"np.fliplr({n})",
            f"np.broadcast_to({n}, {(self.int(0, 2), *a.shape)})", f"np.broadcast_arrays({n}, {self.array()})[{self.int(0, 1)}]",
            f"np.split({n}, {self.int(1, 3)}, {k})[-1]", f"np.array_split({n}, {self.int(1, 5)})[-1]", f"np.split({n}, [1, 1])[1]",
            f"np.hsplit({n}, 1)[0]", f"np.atleast_1d({n})", f"np.atleast_2d({n})", f"np.atleast_3d({n})",
            f"np.diagonal({n}, {self.int(-1, 4)})", f"{n}.diagonal()", f"np.diag({n})", f"np.einsum('ii->i', {self.square()})",
            f"np.einsum('ij->ji', {n})", f"np.einsum('ij->', {n})", f"np.einsum('...->...', {n})", f"np.einsum('ij->i', {n})",
            f"{n}.real", f"{n}.imag", f"np.real({n})", f"np.imag({n})", f"np.asarray({n})", f"np.asanyarray({n})",
            f"np.asarray({n}, order='F')", f"np.asfortranarray({n})", f"np.ascontiguousarray({n})", f"np.array({n}, copy=None)",
            f"{n}.astype({n}.dtype, copy=False)", f"np.astype({n}, {n}.dtype, copy=False)", f"{n}.view()", f"np.transpose({n})",
            f"np.lib.stride_tricks.sliding_window_view({n}, {self.int(1, 2)}, axis={k})", f"np.conj({n})", f"{n}.conj()",
            f"np.real_if_close({n})", f"np.trim_zeros({n})", f"np.meshgrid({n}, {n})[0]", f"np.permute_dims({n})",
            f"np.matrix_transpose({n})", f"np.unstack({n})[0]", f"np.rollaxis({n}, {k})", f"np.nan_to_num({n}, copy=False)",
            f"np.require({n}, requirements='C')", f"np.linalg.diagonal({n})", f"np.array({n}, ndmin=3, copy=None)",
        )  # fmt: skip

    def copying(self):
        n = self.array()
        a = self.names[n]
        k = self.axis(a)
        return f"{self.fresh()} = " + self.pick(
            f"{n}[{self.index(a.shape, True)}]", f"{n}[{self.index(a.shape, True)}]", f"{n}[{n} > 0]", f"{n}.copy({self.pick('C', 'F', 'K')!r})",
            f"np.array({n})", f"np.array({n}, order='F')", f"{n}.astype({self.pick(*DTYPES)})", f"np.array({n}, dtype={self.pick(*DTYPES)})",
            f"np.copy({n})", f"{n}.flatten()", f"{n}.flatten('F')", f"np.take({n}, [0, -1, 0], axis={k})", f"{n}.take([0, 1])",
            f"np.repeat({n}, 2, axis={k})", f"np.tile({n}, 2)", f"np.roll({n}, 1, axis={k})", f"np.pad({n}, 1)", f"np.pad({n}, 1, mode='edge')",
            f"np.sort({n}, axis={k})", f"np.diff({n}, axis={k})", f"np.triu({n})", f"np.delete({n}, 0, axis={k})",
            f"np.insert({n}, 0, 2.0, axis={k})", f"np.append({n}, {self.operand()})", f"np.where({n} > 0, {n}, {self.operand()})",
            f"np.clip({n}, -0.5, 0.5)", f"np.nan_to_num({n})", f"np.full_like({n}, {self.element()})", f"np.zeros_like({n})",
            f"np.compress([True, False, True], {n}, axis={k})", f"np.partition({n}, 0, axis={k})", f"np.round({n}, 1)", f"np.take_along_axis({n}, np.argsort({n}, {k}), {k})",
            f"np.argsort({n}, axis={k})", f"np.extract({n} > 0, {n})", f"np.resize({n}, (2, 3))", f"np.gradient({n}, axis={k})", f"np.unwrap({n})",
            f"np.choose([0, 1, 0], [{n}[:3], {self.operand()}])", f"np.select([{n} > 0.2], [{n}], {self.number()})", f"np.diagflat({n}[:2])",
            f"np.fft.fft({n})", f"np.fft.rfft({n})", f"np.fft.fftshift({n})", f"np.ediff1d({n})", f"np.interp([0.1, 0.7], [0, 1], {n}[:2])",
            f"np.linspace({self.element()}, {self.operand()}, 4)", f"np.average({n}, axis={k})", f"np.quantile({n}, 0.3, axis={k})",
            f"np.trapezoid({n}, axis={k})", f"np.apply_along_axis(np.sum, {k}, {n})", f"np.convolve({n}, {n})", f"np.vander({n})",
            f"np.array([{self.element()}, {self.operand()}])", f"np.cross({n}[:3], {n}[:3])", f"np.ix_({n})[0]", f"np.cov({n})",
        )  # fmt: skip

    def elementwise(self):
        a, b = self.any(), self.operand()
        return f"{self.fresh()} = " + self.pick(
            f"np.{self.pick(*UNARY)}({self.any()})", f"np.{self.pick(*UNARY)}({self.view_of()})", f"{a} {self.pick(*BINARY)} {b}", f"{a} {self.pick(*BINARY)} {b}",
            f"{a} {self.pick('+', '-', '*')} {b}", f"{a} {self.pick('+', '-', '*')} {b}",
            f"np.{self.pick(*UFUNCS2)}({self.any()}, {b})", f"-{self.any()}", f"abs({self.any()})", f"{self.any()} ** 2", f"{a} {self.pick('<', '>=', '==')} {b}",
            f"np.{self.pick(*UFUNCS2)}.outer({self.any()}, {b})", f"np.sqrt(np.abs({self.any()}) + 1)", f"np.log(np.square({self.any()}) + 0.5)",
            f"np.exp({a}, where={self.array()} > 0, out=np.zeros(({a}).shape))", f"np.{self.pick(*UFUNCS2)}({a}, {b}, dtype={self.pick(*DTYPES)})",
            f"np.logical_not({a})", f"np.isfinite({a})", f"np.divmod({a}, 0.7)[{self.int(0, 1)}]", f"np.modf({a})[{self.int(0, 1)}]",
            f"np.vectorize(lambda t: t * 2)({a})", f"np.sinc({a})", f"np.angle({a})", f"np.heaviside({a}, 0.5)", f"np.float_power({a}, 2)", f"np.cbrt({a})",
        )  # fmt: skip

    def reducing(self):
        n = self.pick(self.array(), self.array(), self.array(), self.any())
        a = self.names[n]
        name = self.pick(*REDUCTIONS)
        axes = self.pick("", "", f"axis={self.axis(a)}", f"axis={self.axis(a)}", "axis=(0, 1)", "axis=()", "axis=None")
        more = self.pick(
            "",
            "",
            "",
            "keepdims=True",
            f"dtype={self.pick(*DTYPES)}",
            "initial=2.0",
            f"where={n} > 0",
            "where=[True, False], initial=0",
        )
        call = ", ".join(p for p in (axes, more) if p)
        return f"{self.fresh()} = " + self.pick(
            f"np.{name}({n}{', ' + call if call else ''})", f"np.{name}({n}{', ' + call if call else ''})", f"{n}.{name}({call})",
            f"np.add.reduce({n}{', ' + call if call else ''})", f"np.multiply.accumulate({n})", f"np.maximum.reduce({n}, axis=None)",
            f"np.add.reduceat({n}, [0, 2, 1])", f"np.linalg.norm({n}{', ' + axes if axes else ''})", f"np.trace({n})", f"{n}.trace()",
            f"np.nanmax({n})", f"np.nanstd({n})", f"np.mean({n}, out=np.zeros({self.pick('()', '4', '3')}))", f"np.dot({n}.ravel(), {n}.ravel())",
        )  # fmt: skip

    def joining(self):
        a, b, c = self.array(), self.array(), self.view_of()
        return f"{self.fresh()} = " + self.pick(
            f"np.concatenate([{a}, {b}, {c}])", f"np.concatenate([{a}, {b}], axis=None)", f"np.stack([{a}, {b}])", f"np.stack([{a}, {a}], axis=-1)",
            f"np.hstack([{a}, {c}])", f"np.vstack([{a}, {b}])", f"np.column_stack([{a}, {b}])", f"np.block([[{a}, {a}]])", f"np.dstack([{a}, {a}])",
            f"np.array([{a}, {a}])", f"np.concatenate([{a}, {c}], axis=-1, dtype={self.pick(*DTYPES)})", f"np.r_[{a}, {b}]", f"np.concatenate([{a}.ravel(), [{self.any()}]])",
        )  # fmt: skip

    def product(self):
        a, b = self.array(), self.array()
        return f"{self.fresh()} = " + self.pick(
            f"{a} @ {b}", f"{a} @ {a}.T", f"np.dot({a}, {b})", f"np.matmul({a}, {b})", f"np.outer({a}, {b}[:1])", f"np.inner({a}, {b})", f"np.vdot({a}, {a})",
            f"np.tensordot({a}, {b}, 1)", f"np.tensordot({a}, {b}, 0)", f"np.einsum('ij,ij->i', {a}, {a})", f"np.einsum('ij,kj->ik', {a}, {b})",
            f"np.einsum('i,i', {a}, {b})", f"np.einsum('i...,i...->...', {a}, {a})", f"np.kron({a}, {b})", f"np.linalg.multi_dot([{a}, {a}.T, {a}])",
            f"np.einsum('ii', {self.square()})", f"np.linalg.det({a}[:2, :2] + 3 * np.eye(2))", f"np.linalg.inv({a}[:2, :2] + 3 * np.eye(2))",
            f"np.linalg.solve({a}[:2, :2] + 3 * np.eye(2), {b}[:2])", f"np.vecdot({a}, {a})", f"np.matmul({a}, {a}.T, out=np.zeros(2))",
        )  # fmt: skip

    def updating(self):
        n = self.any()
        op = self.pick("+=", "-=", "*=", "*=", "/=", "**=", "//=", "@=")
        a = self.names[n]
        part = f"{n}[{self.index(a.shape, self.int(0, 2) == 0)}]" if isinstance(a, np.ndarray) else n
        return self.pick(
            f"{n} {op} {self.operand()}",
            f"{part} {op} {self.operand()}",
            f"{part} {self.pick('+=', '*=')} {self.number()}",
        )

    def writing(self):
        n = self.array()
        a = self.names[n]
        at, fancy = self.index(a.shape), self.index(a.shape, True)
        writeable = self.array(is_writeable)  # NumPy's add.at writes even into read-only ones
        b = self.operand()
        k = self.axis(a)
        return self.pick(
            f"{n}[{at}] = {b}", f"{n}[{at}] = {b}", f"{n}[{at}] = {b}", f"{n}[{fancy}] = {b}", f"{n}[{n} > 0.3] = {b}", f"{n}[...] = {n}[::-1]",
            f"np.{self.pick(*UFUNCS2)}({n}, {b}, out={n})", f"np.{self.pick(*UFUNCS2)}({n}, {b}, {n})", f"np.sin({b}, out={n}, where={n} > 0)",
            f"np.{self.pick(*UNARY[:8])}({n}, out={n})", f"np.copyto({n}, {b})", f"np.copyto({n}, {b}, where={n} > 0)", f"np.put({n}, [0, -1, 0], {b})",
            f"np.putmask({n}, {n} > 0, {b})", f"{n}.fill({self.element()})", f"{n}.sort(axis={k})", f"np.add.at({writeable}, ([0, 0],), {b})",
            f"{n}.real = {b}", f"{n}.imag = {b}", f"{n}.flat = {b}", f"{n}.flat[{self.slice(a.size)}] = {b}",
            f"np.fill_diagonal({n}, {b})", f"np.cumsum({n}, axis={k}, out={n})", f"np.clip({n}, -0.5, {b}, out={n})", f"np.place({n}, {n} > 0, [{self.element()}])",
            f"np.sum({self.array()}, axis=0, out={n})", f"np.mean({self.array()}, axis=0, out={n}[0])", f"np.take({n}, [0], axis={k}, out={n}[:1])",
            f"np.concatenate([{n}[1:], {n}[:1]], out={n})", f"np.einsum('ii->i', {self.square()})[:] = {b}", f"np.einsum('ij->ji', {n})[0] = {b}", f"np.diagonal({n})[:1] = 2",
            f"np.ravel({n})[:2] = {b}", f"{n}.T[0] += {b}", f"np.asarray({n})[-1:] = {b}", f"np.dot({n}, {n}, out={n})", f"np.matmul({n}, {n}, out={n})",
            f"np.put_along_axis({n}, np.argsort({n}, {k}), {b}, {k})", f"{n}.put([0], {b})", f"{n}.shape = ({a.size},)", f"np.broadcast_arrays({n}, {n})[0][:1] = {b}",
            f"np.split({n}, 2)[1][...] = {b}", f"np.real({n})[:1] = {b}", f"{n}.real[:] = {b}", f"np.atleast_2d({n})[0] = {b}", f"np.nan_to_num({n}, copy=False)",
            f"{n}.round(1, out={n})", f"np.einsum('ij,j->i', {n}, {n}[0], out={n}[:, 0])", f"{n}.partition(0)", f"np.reciprocal({n} + 3, out={n})",
            f"np.ravel({n})[::2] = np.ravel({n})[:{(a.size + 1) // 2}]",
        )  # fmt: skip

    def alias(self):
        return f"{self.fresh()} = {self.any()}"

    def making(self):
        return f"{self.fresh()} = " + self.pick(
            f"np.zeros({self.pick('3', '(2, 3)', '()', '0', '(0, 2)')}, dtype={self.pick(*DTYPES)})", "np.ones((3, 4), order='F')", "np.arange(4)",
            f"np.full((2, 2), {self.element()})", f"np.array({self.element()})", f"np.array({self.number()})", "np.arange(6.0).reshape(2, 3)[:, ::-1]",
            "np.empty(0)", f"np.array([{self.element()}, {self.element()}, 1])", f"np.asarray({self.element()})", "np.eye(3)", "np.float64(0.5)",
        )  # fmt: skip

    def structured(self):
        records = self.arrays(lambda a: a.dtype.names is not None)
        if not records or self.int(0, 3) == 0:
            return f"{self.fresh()} = np.zeros({self.pick('3', '(2, 2)', '4')}, dtype=[('p', 'f8'), ('k', 'i4'), ('q', 'f8', (2,)), ('c', 'c16')])"
        n = self.pick(*records)
        return self.pick(
            f"{n}['{self.pick(*'pqc')}'] = {self.operand()}", f"{n}['{self.pick(*'pqc')}'][{self.slice(3)}] = {self.operand()}",
            f"{self.fresh()} = {n}['{self.pick(*'pqc')}']", f"{self.fresh()} = {n}[{self.slice(3)}]['p']", f"{n}[{self.slice(3)}] = {n}[::-1]",
            f"{self.fresh()} = {n}[0]['{self.pick(*'pqc')}']", f"{n}[0]['p'] = {self.operand()}", f"{n}['p'] += {self.operand()}", f"{self.fresh()} = {n}.copy()",
            f"{self.fresh()} = {n}[[1, 0]]['q']",
        )  # fmt: skip

    def looping(self):
        """A Python loop over elements, with numbers carried from one iteration to the next."""
        found = self.arrays(lambda a: a.ndim in (1, 2) and a.size and min(a.shape) > 1 and a.dtype.names is None)
        if not found:
            return self.making()
        found = [self.pick(*found) for _ in range(3)]
        total = self.fresh()
        statements = [f"{total} = {self.pick('0.0', self.element(), 'np.float32(0.5)')}"]
        length = min(min(self.names[n].shape) for n in found)

        def at():
            n = self.pick(*found)
            steps = ("k", "k", "k - 1", "-k", "0", "-1", "np.int64(k)")
            return f"{n}[{', '.join(self.pick(*steps) for _ in self.names[n].shape)}]"

        def value():
            numbers = ("2.0", "-1", "3", "np.float64(1.5)", "F4(0.25)", "True", "np.int64(2)")
            a, b = self.pick(at, at, at, lambda: self.pick(*numbers), lambda: total, self.element)(), at()
            return self.pick(
                f"{a} {self.pick(*'+-*')} {b}", f"{b} {self.pick(*'+-*')} {a}", f"{a} / ({b} ** 2 + 2)", f"-{a}", f"abs({b})", f"{b} ** 2",
                f"np.sin({a}) - {b}", f"np.{self.pick(*UFUNCS2)}({a}, {b})", f"({a} + {b}) * {at()} - {at()}", a, f"np.hypot({a}, {b}) + {total}",
                f"np.sqrt(abs({a}) + 1)", f"np.array([{a}, {b}]).sum()", f"({b} if {a} > 0.1 else {at()})", f"np.float32(0.5) * {b}", f"{b}.real",
            )  # fmt: skip

        for _ in range(self.int(1, 4)):
            statements.append(
                self.pick(
                    f"{at()} = {value()}",
                    f"{at()} = {value()}",
                    f"{at()} = {value()}",
                    f"{at()} {self.pick('+=', '-=', '*=')} {value()}",
                    f"{total} = {value()}",
                    f"{total} += {value()}",
                    f"{at()} = {self.number()}",
                    f"{self.pick(*found)}[k] = {self.pick(*found)}[k - 1]",
                    f"{total} = {total} * 0.5 + {at()}",
                    f"{self.pick(*found)}[k] *= 0.5",
                    f"{total} = {self.pick(*found)}[0] * {self.number()}",
                )
            )
        first, *others = statements
        return "\n    ".join([f"{first}\nfor k in range(1, {length}):", *others]) + "\ndel k"


def is_writeable(value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns that broadcast arrays will not be writeable some day
        return value.flags.writeable


def in_range(value):
    """Return whether all numbers are finite and of moderate size."""
    if value.dtype.names is not None:
        return all(in_range(value[name]) for name in value.dtype.names)
    return value.dtype.kind in "biufc" and bool(np.all(np.abs(value.astype(complex)) < LARGEST))


def run(lines, module, dtypes, values):
    """The variables at the end of a program, in the order in which they were bound."""
    names = {**dtypes, "np": module, **values}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        exec("\n".join(lines), names)
    return {n: v for n, v in names.items() if n not in (*dtypes, "np") and not n.startswith("__")}
