"""Random statements on vectors of a few numbers, for the functions of `loop_programs`."""


class DrawnVectors:
    """Statements on vectors: rows of arrays, slices, new arrays with one or two names, and expressions of them."""

    def vector_statement(self):
        kind = self.random.random()
        place = self.pick("d", "d", "e", f"x[{self.index()}]", f"y[{self.index()}]", "v", f"x[{self.index()}, :]")
        if kind < 0.4 or not self.vectors:
            name = self.pick("d", "d", "e")
            self.emit(f"{name} = {self.vector(2)}")
            self.vectors.append(name)
        elif kind < 0.65:
            value = self.pick(self.vector(1), self.vector(1), self.number(1))
            self.emit(f"{place} {self.pick('=', '+=', '-=', '*=') if place != 'e' else '+='} {value}")
        elif kind < 0.75:
            self.emit(f"{self.pick('d', 'e')}[{self.index()}] {self.pick('=', '+=', '-=')} {self.number(1)}")
        elif kind < 0.8:
            self.emit(f"bump({place}, {self.number(0)})")
        elif kind < 0.85:
            self.emit(f"p0, p1, p2, {self.pick('p3, p4', 'p3, p4', 'u, t')} = {self.vector(1)}")
            self.emit("s = s + p0 * p2")
        elif kind < 0.86:
            self.emit(f"d, e = {self.pick('e, d', 'x[0], d', 'd, v', f'{self.vector(1)}, {self.vector(1)}')}")
            self.vectors += "d", "e"
        elif kind < 0.88:
            self.emit(f"part = {self.pick('v[1:4]', f'x[{self.index()}, 1:4]', 'w[n - 3:n]', 'd[1:4]')}")
            self.emit(f"{self.pick('s = s + part[0]', 'part[k] = t', 'part[-1] += 1.0', 't = part @ x[0, 0:3]')}")
            self.emit(f"{self.pick('part *= 2.0', 's = s + np.sum(part)', 'v[2] = 1.5', 's = s + part[1]')}")
        elif kind < 0.91:
            statements = "e = d", "d = e", "e = first_of(d, d)", "d = np.zeros(5)", "d = np.array([s, a, v[0], 2, t])"
            self.emit(self.pick(*statements, "e = np.ones_like(v)", "e = d[::-1]", "d[1:3] = v[0:2]", "d[1:] *= d[0]"))
        else:
            self.emit(f"{self.pick('s', 't')} {self.pick('=', '+=')} {self.number(0)} + {self.reduced()}")

    def vector(self, depth):
        kind = self.random.random()
        if depth == 0 or kind < 0.25:
            i = self.index()
            return self.pick(*self.vectors, *self.vectors, f"x[{i}]", f"y[{i}]", "v", "w", "o.field", f"y[{i}, :]")
        if kind < 0.55:
            return f"({self.vector(depth - 1)} {self.pick('+', '-', '*')} {self.vector(depth - 1)})"
        if kind < 0.75:
            pair = [self.vector(depth - 1), self.number(1)]
            self.random.shuffle(pair)
            return f"({pair[0]} {self.pick('+', '-', '*', '/')} {pair[1]})"
        if kind < 0.85:
            function = self.pick(
                "-", "np.sin", "np.tanh", "np.abs", "np.copy", *[] if self.smooth else ["np.rint", "np.floor"]
            )
            return f"{function}({self.vector(depth - 1)})"
        if kind < 0.9:
            given = self.pick(f", {self.number(0)}", "")
            return f"shifted({self.vector(depth - 1)}{given})"
        if kind < 0.93:
            return f"({self.vector(0)} if {self.test()} else {self.vector(1)})"
        if kind < 0.96:
            return f"{self.vector(0)} ** {self.pick('2', '3', '0.5')}"
        return f"{self.pick('np.maximum', 'np.minimum')}({self.vector(0)}, {self.pick(self.vector(0), self.number(0))})"

    def reduced(self):
        one = self.vector(1)
        other = self.vector(0)
        return self.pick(
            f"np.sum({one})", f"({one}).sum()", f"({one}) @ {other}", f"np.dot({one}, {other})", f"{other}.dot({one})",
            f"np.linalg.norm({one})", f"({one}).max()", f"np.mean({one})", f"np.min({one})", f"len({other})",
            f"{other}[{self.index()}]", f"{other}.shape[0]",
        )  # fmt: skip
