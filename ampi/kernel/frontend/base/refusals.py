"""Error messages for parts of Python that kernels do not support."""

from __future__ import annotations

import ast

from numba import types

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
    "GeneratorExp": "write a loop",
    "Dict": "pass a named tuple",
    "Yield": "collect the values in an array, or loop where they are used",
    "YieldFrom": "collect the values in an array, or loop where they are used",
    "Lambda": "give it a name first, or write an @ampi.kernel",
    "Import": "import at the top of the module",
    "ImportFrom": "import at the top of the module",
    "JoinedStr": "use a plain string",
    "Global": "return the value instead",
    "Nonlocal": "return the value instead",
    "Match": "use if and elif",
    "Try": "test with if what would fail, and let other exceptions leave the kernel",
    "TryStar": "test with if what would fail, and let other exceptions leave the kernel",
    "With": "write it in Python: call one kernel before it and one after it",
    "Set": "sets support x in s, s.add(x) and len(s) here; otherwise use a tuple, or np.unique of an array",
    "SetComp": "use a list, or an array",
    "DictComp": "pass a named tuple",
    "ListComp": "write it on a line of its own, with one for",
}


_INSTEAD = {
    "numpy.linalg.eig": "use np.linalg.eigh of ampi.numpy outside of the kernel, where the matrix is symmetric",
    "numpy.einsum": "write it with @ and np.dot, or with loops",
    "numpy.nditer": "loop over a.flat or np.ndindex(a.shape)",
    "numpy.polyval": "write Horner's rule in a loop: s = s * x + c (Numba has no np.polyval either)",
    "map": "call the function in the loop, or in a list comprehension: [f(x) for x in a]",
    "filter": "write an if in the loop, or a list comprehension: [x for x in a if f(x)]",
    "functools.reduce": "write the loop: s = f(s, x)",
    "_functools.reduce": "write the loop: s = f(s, x)",
    "hash": "compute an integer from integers by arithmetic",
    "heapq.": "keep the numbers in an array: np.sort, np.partition and np.argmin find the smallest",
    "_heapq.": "keep the numbers in an array: np.sort, np.partition and np.argmin find the smallest",
    "dict": "pass a named tuple",
    "set": "sets support x in s, s.add(x) and len(s) here; otherwise use a tuple, or np.unique of an array",
    "list": "begin with [] and append in the same block, or use an array",
    "str": "pass what depends on it as a number",
    "numpy.random.": "draw the numbers outside of the kernel, and pass them as an array",
    "numpy.fft.": "call ampi.numpy.fft outside of the kernel (Numba itself compiles none of it)",
    "scipy.special.": "call it outside of the kernel, where ampi has derivatives of SciPy's functions",
    "numba.typed.typedlist.": "begin with List() and append in the same block, or use an array",
    "numba.typed.typeddict.": "pass a named tuple",
    "numpy.": "call it outside of the kernel, where ampi.numpy has it, or write it with loops over the elements",
}
_OTHERS = (
    "call a kernel (@ampi.kernel), or one of the functions of math and NumPy that the documentation lists;"
    " or give its derivative (@ampi.custom_jvp)"
)


def instead_of(function: str) -> str:
    """The advice for an unsupported function."""
    if function in _INSTEAD:
        return _INSTEAD[function]
    return next((text for name, text in _INSTEAD.items() if name.endswith(".") and function.startswith(name)), _OTHERS)


def describe(node: ast.AST) -> str:
    return _DESCRIPTIONS.get(type(node).__name__, f"'{type(node).__name__}'")


def advice_for(node: ast.AST) -> str:
    return _ADVICE.get(type(node).__name__, "write it with scalars, loops and array elements")


_ARGUMENTS = {
    (
        types.List,
        types.ListType,
    ): "lists hold numbers or arrays here: pass a matrix, or a list for each item of its tuples",
    (types.DictType, types.ClassInstanceType, types.Record): "pass its numbers in a named tuple",
    (types.Set,): "pass an array of its items",
    (types.Optional,): "declare the type itself; None can be passed where no type is declared",
    (types.RangeType, types.SliceType): "pass its bounds",
    (types.NPDatetime, types.NPTimedelta): "pass numbers: a.astype(np.float64)",
}


def instead_of_argument(type_: types.Type) -> str:
    """The advice for an argument of a type that kernels do not take."""
    known = "kernels take bools, integers, floats, complex numbers, arrays of them, and (named) tuples of these"
    return next((text for kinds, text in _ARGUMENTS.items() if isinstance(type_, kinds)), known)


BY_POSITION = {
    "complex": "complex(real, imag)",
    "enumerate": "enumerate(x, start)",
    "pow": "pow(base, exp)",
    "round": "round(number, ndigits)",
}
"""Built-in functions whose keyword arguments Numba does not compile."""


def keywords_of(name: str, call: ast.Call) -> tuple[str, str]:
    """The error message for a call of one of them with keywords."""
    given = ", ".join(k.arg or "**" for k in call.keywords)
    return f"{name} with keywords ({given}), which Numba does not compile", f"write {BY_POSITION[name]}"


READ, WRITTEN, POPPED = "getitem out of range", "setitem out of range", "pop index out of range"
OF_TUPLE = "tuple index out of range"
"""What Numba says of an index of a list or a tuple."""
