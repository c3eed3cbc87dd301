"""Functions from generated text, with source that the kernel parser finds."""

import contextlib
import linecache


def written(text, name, **known):
    """The namespace of an executed text, including ``known``; ``name`` is its file name in messages."""
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
    """The text of a function: its first lines, lines that open loops if they end with a colon, statements in the
    innermost loop, and a last line."""
    lines, depth = [head[0], *(f"    {line}" for line in head[1:])], 1
    for line in loops:
        lines.append("    " * depth + line)
        depth += line[-1] == ":"
    lines += ["    " * depth + line for text in statements for line in text.splitlines()]
    return "\n".join([*lines, f"    {end}", ""])
