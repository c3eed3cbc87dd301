"""Kernels that combine language constructs: each of the contents below in each of the surroundings.

All have the signature ``kernel(u, v, m, index, c)`` and return a scalar; values stay near 1, and away from kinks.
"""

import itertools

import numba
import numpy as np
from kernel_cases import random_array
from written import written

HEADER = "import math\nimport numpy as np\nfrom numba import prange\n\n"
SIZE = 6

CONTENTS = {
    "assignment": "s = s * c + u[1]",
    "loop": "for i in range(1, n):\n    v[i] = 0.5 * u[i - 1] * u[i] + 0.5 * v[i]",
    "recurrence": "for i in range(n - 2, -1, -1):\n    u[i] = 0.5 * u[i + 1] * c + 0.3 * u[i]",
    "slice": "v[1:-1] = 0.5 * u[1:-1] + 0.1 * c * (u[2:] - u[:-2]) * v[1:-1]",
    "strided slice": "u[::2] *= 0.5 * u[1]\nu[::-3] = v[:2] * u[-1:-3:-1]",
    "whole arrays": "v[:] = np.sin(u) * c + 0.3 * v",
    "choice": "v[:] = np.where(index > 2, 0.5 * u * v, c)",
    "reduction": "s += 0.1 * np.sum(u * v) + 0.1 * u.sum()",
    "swap": "u, v = v, u\nfor i in range(1, n):\n    v[i] = 0.5 * u[i] * u[i - 1] + 0.2",
    "buffer": "t = u\nu = v\nv = t\nv[0] = u[1] * c",
    "local array": "w = np.zeros(3, u.dtype)\nfor i in range(3):\n    w[i] = u[i] * c\ns += 0.1 * w[0] * w[2]",
    "array of a value": "w = u * v\nw[1] *= c\nu[:] = 0.5 * w + 0.1",
    "call": "s += 0.1 * weighted(u, c)",
    "call that writes": "smoothed(u[1:], v[:-1])",
    "index array": "for i in range(n):\n    v[index[i]] += 0.1 * u[index[i]] ** 2",
    "fancy index": "v[index] = 0.5 * u[index[::-1]] * c",
    "while": "i = 0\nwhile i < 3 and abs(s) < 50.0:\n    s = 0.9 * s + u[i]\n    i += 1",
    "branch": "if index[0] > 2:\n    s += u[0]\nelif index[1] > 0:\n    s = 0.5 * s + u[1] * v[1]\nelse:\n    u[0] = c",
    "conditional": "s = 0.5 * s + (u[0] * u[0] if index[1] > index[2] else v[0] * c)",
    "break": "for i in range(n):\n    s += 0.1 * u[i] * u[i]\n    if index[i] == 2:\n        break\nelse:\n    s = c",
    "continue": "for i in range(n):\n    if index[i] > 3:\n        continue\n    v[i] = 0.5 * v[i] * u[i]",
    "tuple": "pair = (u[0] * c, v[1])\na, b = pair\ns += 0.1 * a * b",
    "zip": "for a, b in zip(u, v):\n    s += 0.1 * a * b",
    "enumerate": "for i, a in enumerate(u):\n    s += 0.1 * a * v[-1 - i]",
    "function inside": "def scaled(a):\n    return 0.5 * a * c\n\nu[0] = scaled(u[1]) + scaled(v[0])",
    "product": "v[:3] = 0.1 * (m @ u)",
    "row": "row = m[1]\nrow[1:] = 0.5 * row[:-1] * u[1:]\ns += 0.1 * row[2]",
    "early return": "if index[0] + index[1] > 100:\n    return s * c\ns += 0.1 * c",
}

AROUND = {
    "alone": "{}",
    "time loop": "for step in range(3):\n{}",
    "while": "k = 0\nwhile k < 2:\n    k += 1\n{}",
    "branch": "if index[0] < 10:\n{}\nelse:\n    s = 2.0 * s",
    "prange": "for k in prange(m.shape[0] - 1):\n    row = m[k]\n    s = c * row[0]\n{}\n    m[k, 1] = s\ns = m[0, 1]",
}

# Several contents in one loop, one after another.
MIXTURES = [
    ("branch", "break", "call", "tuple", "slice"),
    ("local array", "index array", "conditional", "break", "call that writes"),
    ("function inside", "while", "conditional", "tuple", "strided slice"),
    ("call", "index array", "branch", "function inside", "local array"),
    ("break", "function inside", "continue", "fancy index", "reduction"),
    ("conditional", "call", "slice", "while", "zip"),
    ("tuple", "local array", "index array", "whole arrays", "loop"),
    ("while", "break", "array of a value", "choice", "recurrence"),
    ("tuple", "index array", "slice", "while", "enumerate"),
]

# In prange, contents work on arrays of the iteration: those that pass arrays on, or leave the loop, are excluded.
NOT_IN_PRANGE = {"swap", "buffer", "early return", "product", "row"}


def weighted(a, c):
    s = 0.0 * c
    for i in range(a.shape[0]):
        s += a[i] * a[i] * c
    return s


def smoothed(a, out):
    for i in range(1, a.shape[0] - 1):
        out[i] = 0.25 * a[i - 1] + 0.5 * a[i] * a[i] + 0.25 * a[i + 1]


CALLED = {"weighted": numba.njit(weighted), "smoothed": numba.njit(smoothed)}


def indented(text, by=1):
    return "\n".join("    " * by + line if line else line for line in text.split("\n"))


def source(content, around):
    text = content
    if around == "prange":
        own = "u = row * c\nv = 0.5 * row + 0.2\n"
        text = own + content + "\ns += 0.1 * u[1] + 0.1 * v[2]"
    body = AROUND[around].format(text if around == "alone" else indented(text))
    name = "kernel(x, y, m, index, c)" if around == "prange" else "kernel(u, v, m, index, c)"
    size = "n = m.shape[1]\ns = 0.5 * c\n"
    return f"def {name}:\n{indented(size + body)}\n    return s\n"


def compiled(text, name):
    """The function of a text, with source that the parser finds."""
    return written(HEADER + text, name, **CALLED)["kernel"]


def make_arguments(dtype=np.float64):
    rng = np.random.default_rng(4)
    u, v = (random_array(rng, dtype, (SIZE,), 0.5, 1.2) for _ in range(2))
    m = random_array(rng, dtype, (3, SIZE), 0.5, 1.2)
    return [u, v, m, np.array([1, 3, 0, 5, 2, 4]), random_array(rng, dtype, (), 0.6, 0.9)[()]]


CASES = {
    f"{content} in {around}": compiled(source(CONTENTS[content], around), f"{content} in {around}")
    for around, content in itertools.product(AROUND, CONTENTS)
    if not (around == "prange" and content in NOT_IN_PRANGE)
}
CASES |= {
    f"{', '.join(mixture)} in {around}": compiled(
        source("\n".join(CONTENTS[c] for c in mixture), around), f"{', '.join(mixture)} in {around}"
    )
    for around, mixture in itertools.product(("time loop", "prange"), MIXTURES)
}


def pairs():
    """Pairs of contents in a time loop: a name, and a function that makes the kernel."""
    for first, second in itertools.combinations(CONTENTS, 2):
        name = f"{first}, {second}"
        yield name, lambda a=first, b=second, n=name: compiled(source(f"{CONTENTS[a]}\n{CONTENTS[b]}", "time loop"), n)
