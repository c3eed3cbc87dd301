"""Functions of a text that a generator has drawn, with source that the parser of kernels finds."""

import contextlib
import linecache


def written(text, name, **known):
    """What a text defines, beside what it knows; ``name`` is that of its file in messages."""
    filename = f"<{name}>"
    linecache.cache[filename] = len(text), None, text.splitlines(True), filename
    space = {"__name__": __name__, **known}
    exec(compile(text, filename, "exec"), space)
    return space


@contextlib.contextmanager
def examined(text, name):
    """Add the program to errors that are raised inside the block."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{name}:\n{text}") from error


def in_loops(head, loops, statements, end):
    """The text of a function: lines at its beginning, lines of which those with a colon begin loops, texts of
    statements in the innermost one, and a last line."""
    lines, depth = [head[0], *(f"    {line}" for line in head[1:])], 1
    for line in loops:
        lines.append("    " * depth + line)
        depth += line[-1] == ":"
    lines += ["    " * depth + line for text in statements for line in text.splitlines()]
    return "\n".join([*lines, f"    {end}", ""])
