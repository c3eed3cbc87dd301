"""Random programs that call functions, with numbers, arrays, small arrays that they change, and several results."""

import random

import numpy as np
from by_python import recursive
from kernel_checks import Check
from numba import typeof
from random_check import examine_second, require_slopes
from written import written

from ampi.kernel import separate_functions
from ampi.kernel.ir import calls

PATTERNS = (("a", "b", "x", "y", "z", "t"), ("a",), ("x", "z"), ("t",))
TABLE = np.array([0.4, 0.9, 1.3])


def expression(rng, names, depth=2):
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([*names, repr(round(rng.uniform(0.5, 2.0), 2))])
    inner = lambda: expression(rng, names, depth - 1)
    return rng.choice(
        [
            f"({inner()} + {inner()})",
            f"({inner()} - {inner()})",
            f"0.5 * ({inner()} * {inner()})",
            f"np.sin({inner()})",
            f"np.exp(-{inner()} * {inner()} * 0.1)",
            f"({inner()} / (1.5 + np.cos({inner()})))",
        ]
    )


def function(rng, number, known):
    """A random function: its text, parameters and kinds of results."""
    numbers = ["p", "q"][: rng.randint(1, 2)]
    vectors = rng.sample(["u", "v"], rng.randint(0, 2))
    block, matrix, count, flag = (rng.random() < p for p in (0.5, 0.3, 0.5, 0.3))
    parameters = numbers + vectors + ["w"] * block + ["m"] * matrix + ["n"] * count + ["flag"] * flag
    rng.shuffle(parameters)
    lines = ["s = 0.1"]
    for u in vectors:
        lines += rng.choice(
            [
                [f"for i in range(len({u})):", f"    s += {expression(rng, [*numbers, f'{u}[i]'])}"],
                [f"s += np.sum({u} * {u}) * p"],
                [f"for i in range(1, {u}.shape[0]):"]
                + [f"    if {u}[i] > p:", f"        s += {u}[i] * {u}[i - 1]", "    else:", "        s = s * 0.5 + p"],
                [f"t = {u}.copy()", "t[0] = p * s", f"for i in range(len({u})):", "    s += t[i] * t[i] * 0.3"],
            ]
        )
    names = [*numbers, "s"]
    if block:
        names += ["w[0]", "w[1]", "w[2]"]
        if rng.random() < 0.7:
            lines += [
                "for j in range(3):",
                f"    w[j] {rng.choice(['', '+'])}= {expression(rng, [*numbers, 's', 'w[j]'])}",
            ]
        if rng.random() < 0.4:
            lines += [f"w[{rng.randrange(3)}] = {expression(rng, names)}"]
        if rng.random() < 0.2:
            lines += ["w[:] = w * 0.5"]
    if matrix:
        names += ["m[0, 1]", "m[1, 0]"]
        if rng.random() < 0.6:
            lines += ["for c in range(2):", "    for d in range(2):"]
            lines += [f"        m[c, d] = 0.5 * m[d, c] + {expression(rng, [*numbers, 's'])}"]
    if count:
        names += ["n"]
        lines += ["for c in range(n):", f"    s = 0.6 * s + {expression(rng, [*numbers, 's'], 1)} / (c + 1.5)"]
    if flag:
        lines += ["if flag:", f"    s = {expression(rng, names)}"]
    if rng.random() < 0.2:
        lines += [f"s += TABLE[{rng.randrange(3)}] * p"]
    if known and rng.random() < 0.6:
        given = {"number": names, "vectors": vectors, "block": ["w"] * block, "matrix": ["m"] * matrix}
        lines += call(rng, rng.choice(known), given, "s", "inner") or []
    results, kinds = [expression(rng, names)], ["number"]
    while rng.random() < 0.4 and len(results) < 4:
        kind = rng.choice(["number", "integer", "flag"])
        made = {"number": expression(rng, names), "integer": "n * 3 - 5" if count else "-7", "flag": "s > 0.5"}
        kinds.append(kind)
        results.append(made[kind])
    if block and rng.random() < 0.3:
        results.append("w")
        kinds.append("block")
    if rng.random() < 0.2 and len(results) == 1:
        lines += ["if s > 1.0:", f"    return {expression(rng, names)}"]
    text = [f"@recursive\ndef g{number}({', '.join(parameters)}):", *(f"    {line}" for line in lines)]
    text.append(f"    return {', '.join(results)}")
    return {"name": f"g{number}", "parameters": parameters, "kinds": kinds, "text": "\n".join(text)}


def call(rng, callee, given, total, tag):
    """Lines that call a function and use its results; None if the caller has no suitable arguments."""
    arguments = []
    for parameter in callee["parameters"]:
        choices = {
            "p": [expression(rng, given["number"], 1)],
            "q": [expression(rng, given["number"], 1)],
            "u": given["vectors"],
            "v": given["vectors"],
            "w": given["block"],
            "m": given["matrix"],
            "n": ["2", "3"],
            "flag": ["True", f"{total} > 0.7"],
        }[parameter]
        if not choices:
            return None
        arguments.append(rng.choice(choices))
    names = [f"{tag}{k}" for k in range(len(callee["kinds"]))]
    uses = {
        "number": f"{total} = 0.7 * {total} + np.sin({{}})",
        "integer": f"{total} += 0.01 * {total} * {{}}",
        "flag": f"{total} = {total} * 1.1 if {{}} else {total} + 0.2",
        "block": f"{total} += {{}}[1] * 0.2",
    }
    lines = [f"{', '.join(names)} = {callee['name']}({', '.join(arguments)})"]
    return lines + [uses[kind].format(name) for name, kind in zip(names, callee["kinds"])]


def program(seed):
    rng = random.Random(seed)
    functions = []
    for number in range(rng.randint(1, 3)):
        functions.append(function(rng, number, functions))
    given = {"number": ["a", "b", "total", "z[1]", "x[0]"], "vectors": ["x", "y"], "block": ["z"], "matrix": ["t"]}
    lines = ["total = 0.2 * a", "for k in range(2):"]
    for number in range(rng.randint(1, 3)):
        inside = "    "
        if rng.random() < 0.3:
            lines.append(f"    if total > {rng.choice(['a', '0.5', 'b'])}:")
            inside = "        "
        lines += [inside + line for line in call(rng, rng.choice(functions), given, "total", f"r{number}_")]
        if rng.random() < 0.3:
            lines.append("    z[0] = z[0] * total")
        if rng.random() < 0.1:
            lines.append("    x[1] = x[1] * 0.5")
    if rng.random() < 0.5:
        lines += call(rng, rng.choice(functions), given, "total", "after")
    lines.append("return total + z[0] + z[2] + t[0, 1]")
    body = "\n".join(f"    {line}" for line in lines)
    head = "import numpy as np\n"
    return head + "\n\n".join(f["text"] for f in functions) + f"\n\ndef kernel(a, b, x, y, z, t):\n{body}\n"


def examine(seed):
    """Raise if derivatives of a program are wrong; return the number of functions compiled separately."""
    text = program(seed)
    kernel = written(text, f"random calls {seed}", recursive=recursive, TABLE=TABLE)["kernel"]
    rng = np.random.default_rng(seed)
    arguments = [1.1, 0.7, rng.random(3) + 0.2, rng.random(4) + 0.1, rng.random(3), rng.random((2, 2))]
    code = separate_functions.primal(kernel, tuple(map(typeof, arguments)), (), frozenset(), frozenset())
    check = Check(kernel, arguments, PATTERNS[0], code=code)
    direction = check.direction()
    require_slopes(check, direction, check.tangents(direction))
    others = (Check(kernel, arguments, active, code=code) for active in PATTERNS[1:])
    for each in (check, *others):
        each.compare(1e-9, against_differences=False, values=True)
    if seed % 3 == 0:
        examine_second(check, 1e-9)
    return len(set(calls.called(code)))
