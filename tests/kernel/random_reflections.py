"""Random kernels with functions that call themselves for an argument reflected at a point, and functions that only look
like it."""

import random

FORMULAS = (
    "math.exp(-0.5 * {x} * {x}) * {y}",
    "1.0 / (1.3 + {x} * {x}) + {y}",
    "math.sin({x}) * {y} - 0.2",
    "{y} * {y} + 0.3 * {x}",
    "math.tanh({x} * {y})",
)
AROUND = (
    "1.0 - {call}",
    "-{call}",
    "{call} * {y} + {x}",
    "{call} / (2.0 + {x} * {x})",
    "{call} - {call} * {call}",
    "{call}",
)
FORMS = (
    "if {here}:\n    {work}return {around}\nreturn {formula}",
    "if {there}:\n    return {formula}\n{work}return {around}",
    "if {there}:\n    s = {formula}\nelse:\n    {work}s = {around}\nreturn s",
    "if {here}:\n    {work}s = {around}\nelse:\n    s = {formula}\ns = s * 1.5\nreturn s + {x}",
    "return {around} if {here} else {formula}",
    "s = {formula}\nif y > 0.1:\n    s += {formula} if {there} else {around}\nreturn s",
    "if y > 5.0:\n    return {x}\nelif {here}:\n    {work}return {around}\nelse:\n    s = {formula}\n    return s * y",
    "s = 0.0\nfor i in range(2):\n    s += 0.5 * ({around} if {here} else {formula})\nreturn s",  # needs a stack
)


class Reflection:
    """The source of a function ``mirrored`` and of a kernel that calls it. ``unfolded``: whether it needs no stack."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        limit = self.random.choice([0, 0.0, 0.5, -0.25, 1])
        below = self.random.random() < 0.5
        shifted = self.random.random() < 0.15  # x + 1 reaches the other side only after several steps
        total = 2 * limit + (0.75 if below else -0.75) * self.random.choice([0, 0, 1])
        signs = ("<", ">=") if below else (">", "<=")
        argument = "-x" if limit == 0 and self.random.random() < 0.7 else f"{total} - x"
        argument = f"x {'+' if below else '-'} 0.9" if shifted else argument
        form = self.random.choice(FORMS)
        self.unfolded = not shifted and not form.startswith("s = 0.0\nfor")
        self.text = form.format(
            here=f"x {signs[0]} {limit}",
            there=f"x {signs[1]} {limit}",
            work=self.random.choice(["", "y = y * 0.7; ", "x_2 = x * x; y += 0.1 * x_2; "]),
            around=self.random.choice(AROUND).format(call=f"mirrored({argument}, 0.5 * y)", x="x", y="y"),
            formula=self.random.choice(FORMULAS).format(x="x", y="y"),
            x="x",
        )

    def source(self):
        body = "\n".join(f"    {line}" for line in self.text.splitlines())
        calls = [f"mirrored({self.random.choice(['u', 'v', 'a[i]', '2 * b[i] - u'])}, b[i])" for _ in range(2)]
        return (
            f"@recursive\ndef mirrored(x, y):\n{body}\n\n\ndef kernel(a, b, c, index, u, v, n):\n    s = 0.0\n"
            f"    for i in range(n):\n        s += {calls[0]} * c[i]\n        c[i] = {calls[1]}\n    return s\n"
        )
