"""What is said of parts of Python that kernels do not have."""

from __future__ import annotations

import ast

_DESCRIPTIONS = {
    "ListComp": "a list comprehension",
    "SetComp": "a set comprehension",
    "DictComp": "a dict comprehension",
    "GeneratorExp": "a generator expression",
    "Dict": "a dict",
    "Set": "a set",
    "Lambda": "a lambda",
    "FunctionDef": "a nested function",
    "AsyncFunctionDef": "a coroutine",
    "ClassDef": "a class",
    "With": "with",
    "Try": "try",
    "TryStar": "try",
    "Import": "import",
    "ImportFrom": "import",
    "Global": "global",
    "Nonlocal": "nonlocal",
    "Delete": "del",
    "JoinedStr": "an f-string",
    "NamedExpr": "an assignment expression (:=)",
    "Starred": "a starred expression",
    "Slice": "a slice",
    "Match": "match",
    "Yield": "yield",
    "YieldFrom": "yield from",
    "Await": "await",
    "In": "in",
    "NotIn": "not in",
}
_ADVICE = {
    "ListComp": "allocate an array with np.empty and fill it in a loop",
    "GeneratorExp": "write a loop that adds up",
    "Dict": "pass a named tuple",
    "Lambda": "give it a name first, or write an @ampi.kernel",
    "NamedExpr": "assign on a line of its own",
    "Import": "import at the top of the module",
    "ImportFrom": "import at the top of the module",
    "JoinedStr": "use a plain string",
    "Global": "return the value instead",
    "Nonlocal": "return the value instead",
    "Match": "use if and elif",
}


_INSTEAD = {
    "numpy.linalg.eig": "use np.linalg.eigh where the matrix is symmetric",
    "numpy.linalg.eigvals": "use np.linalg.eigvalsh where the matrix is symmetric",
}
NUMPY = "call it outside of the kernel, where ampi.numpy has it, or write it with loops over the elements"


def instead_of(function: str) -> str:
    """What to write where a function is not known."""
    if function in _INSTEAD:
        return _INSTEAD[function]
    if function.startswith("numpy."):
        return NUMPY
    return "call a kernel (@ampi.kernel), or a function of math or NumPy on scalars that the table lists"


def describe(node: ast.AST) -> str:
    return _DESCRIPTIONS.get(type(node).__name__, f"'{type(node).__name__}'")


def advice_for(node: ast.AST) -> str:
    return _ADVICE.get(type(node).__name__, "write it with scalars, loops and array elements")
