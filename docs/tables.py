"""Sphinx directives that write what ampi's own tables say.

``mpi-operations``
    the operations of some families (`ampi.coverage.families`): what each reads and writes, and its adjoint
``kernel-passes``
    all passes of the kernel differentiator, by stages (`ampi.kernel.pipeline`)
``tested-versions``
    environments in which ampi is tested (`ampi.base.versions`)
``kernel-adjoint``
    a kernel of a file beside its adjoint, as it is generated now

The functions above the directives make reStructuredText and need no Sphinx.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ampi import coverage
from ampi.base import versions
from ampi.kernel import pipeline
from ampi.kernel.differentiate import facts
from ampi.mpi.base.rules import Operation, Treatment

EXAMPLES = Path(__file__).parents[1] / "tests" / "data" / "passes"

# ----------------------------------------------------------------------------------------------- MPI operations


def operations_of(names: str) -> list[Operation]:
    """The operations of families, whose names are separated by semicolons.

    Raises
    ------
    ValueError
        There is no family of such a name.
    """
    families = dict(coverage.families())
    found = []
    for name in map(str.strip, names.split(";")):
        if name not in families:
            raise ValueError(f"there is no family '{name}' of MPI operations; there are {'; '.join(families)}")
        found += families[name]
    return found


def operations_text(names: str) -> str:
    """A table of the operations of families: those with one adjoint and the same buffers are one row."""
    rows: dict[tuple[Any, ...], list[Operation]] = {}
    for operation in operations_of(names):
        key = (operation.owner, operation.reads, operation.writes, operation.treatment, operation.adjoint)
        rows.setdefault(key, []).append(operation)
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 12 34 22 32", ""]
    lines += _row("class", "methods", "reads → writes", "in the sweep")
    for (owner, reads, writes, treatment, adjoint), operations in rows.items():
        methods = ", ".join(f"``{name}``" for name in coverage.forms(operations, treatment))
        moved = f"{_buffers(reads)} → {_buffers(writes)}" if reads or writes else "–"
        said = adjoint if treatment is Treatment.DIFFERENTIATED else f"{treatment.value}; {adjoint}"
        lines += _row(owner, methods, moved, said)
    return "\n".join([*lines, ""])


def _buffers(names: tuple[str, ...]) -> str:
    return ", ".join(f"``{name}``" for name in names) or "–"


def _row(*cells: str) -> list[str]:
    return [f"   {'* -' if not k else '  -'} {cell}" for k, cell in enumerate(cells)]


# ----------------------------------------------------------------------------------------------------- versions


def versions_text() -> str:
    """A table of the environments in which ampi is tested."""
    names = list(versions.TESTED[0])
    lines = [".. list-table::", "   :header-rows: 1", "", *_row(*names)]
    for environment in versions.TESTED:
        lines += _row(*(environment[name] for name in names))
    return "\n".join([*lines, ""])


# ------------------------------------------------------------------------------------------------------- passes


def passes_text() -> str:
    """Sections for the stages and all their passes: what each does, its technique, and an example from the tests."""
    lines: list[str] = []
    shown: set[str] = set()
    for stage, does in pipeline.STAGES.items():
        title = f"{stage}: {does}".replace("->", "→")
        lines += [title, "=" * len(title), ""]
        for step in pipeline.PASSES:
            if step.stage == stage:
                lines += _pass_section(step, shown)
    return "\n".join(lines)


def _pass_section(step: pipeline.Pass, shown: set[str]) -> list[str]:
    lines = [f"``{step.name}``", "-" * (len(step.name) + 4), ""]
    switch = {
        pipeline.ALWAYS: "Always made.",
        pipeline.ON: f'Made by default; ``without="{step.name}"`` leaves it out.',
    }.get(step.default, f'Made under the option ``{step.default}``; ``without="{step.name}"`` leaves it out.')
    lines += [f"{step.doc[0].upper()}{step.doc[1:]}. {switch}", ""]
    module = module_of(step)
    if module is not None:
        name = module.__name__.removeprefix("ampi.")
        if name not in shown:
            shown.add(name)
            lines += [*inspect.getdoc(module).splitlines(), "", f"*Module* ``{name}``", ""]  # type: ignore[union-attr]
    example = EXAMPLES / f"{step.stage}-{step.name}.txt"
    key = example.name
    if example.exists() and key not in shown:
        shown.add(key)
        lines += [".. pass-example::", f"   :file: {example.name}", ""]
    return lines


def module_of(step: pipeline.Pass) -> ModuleType | None:
    """The module in which a pass is written; None for one that changes how another works."""
    for function in _functions(step.run):
        if function.__module__ == facts.__name__:  # which asks an analysis
            for name in _names(function.__code__):
                found = inspect.getmodule(getattr(facts, name, None))
                if found is not None and found.__name__.startswith("ampi.kernel.analysis."):
                    return found
        if function.__module__ != pipeline.__name__:
            return sys.modules[function.__module__]
    return None


def _functions(run: Callable | None) -> Iterator[FunctionType]:
    """What the callable of a row calls: what it closes over, and what its code names."""
    if not isinstance(run, FunctionType):
        return
    yield run
    for cell in run.__closure__ or ():
        yield from _functions(cell.cell_contents)
    if run.__module__ == pipeline.__name__:
        names = list(_names(run.__code__))
        for found in (getattr(pipeline, name, None) for name in names):
            if isinstance(found, FunctionType) and found.__module__ != pipeline.__name__:
                yield found
            elif isinstance(found, ModuleType):
                yield from (f for f in (getattr(found, n, None) for n in names) if isinstance(f, FunctionType))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


# ------------------------------------------------------------------------------------------ kernels and adjoints


def kernel_and_adjoint(path: Path, name: str, types: str, active: str | None) -> tuple[str, str]:
    """The text of a kernel and of its adjoint, without what stands before the function."""
    from ampi.kernel.__main__ import find, parsed
    from ampi.kernel.programs import adjoint_source

    kernel = find(str(path), name, [], run=False)
    wanted = None if active is None else frozenset(map(str.strip, active.split(",")))
    text = adjoint_source(kernel, parsed(types), wanted)
    begin = text.index(f"def {name}_adjoint")
    program = "".join(itertools.takewhile(_first_function(), text[begin:].splitlines(keepends=True)))
    return inspect.getsource(kernel.py_func), program.rstrip() + "\n"


def _first_function() -> Callable[[str], bool]:
    count = itertools.count()
    return lambda line: not (line.startswith("def ") and next(count))


# -------------------------------------------------------------------------------------------------- directives


def setup(app: Any) -> dict[str, Any]:
    """Register the directives."""
    from docutils import nodes
    from docutils.parsers.rst import directives
    from sphinx.util.docutils import SphinxDirective

    class Operations(SphinxDirective):
        required_arguments = 1
        final_argument_whitespace = True

        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(operations_text(self.arguments[0]))

    class Passes(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(passes_text(), allow_section_headings=True)

    class Versions(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(versions_text())

    class Example(SphinxDirective):
        option_spec = {"file": directives.unchanged_required}

        def run(self) -> list[nodes.Node]:
            path = EXAMPLES / self.options["file"]
            self.env.note_dependency(str(path))
            text = path.read_text(encoding="utf-8").replace("\n-----\n", "\n# becomes\n")
            block = nodes.literal_block(text, text, language="text")
            before = '<details class="example"><summary>A program before and after it</summary>'
            return [nodes.raw("", before, format="html"), block, nodes.raw("", "</details>", format="html")]

    class KernelAdjoint(SphinxDirective):
        required_arguments = 2
        option_spec = {"types": directives.unchanged_required, "active": directives.unchanged}

        def run(self) -> list[nodes.Node]:
            file, name = self.arguments
            relative, path = self.env.relfn2path(file)
            self.env.note_dependency(relative)
            texts = kernel_and_adjoint(Path(path), name, self.options["types"], self.options.get("active"))
            blocks = [nodes.literal_block(text, text, language="python") for text in texts]
            return [nodes.container("", *blocks, classes=["side-by-side"])]

    app.add_directive("mpi-operations", Operations)
    app.add_directive("kernel-passes", Passes)
    app.add_directive("tested-versions", Versions)
    app.add_directive("pass-example", Example)
    app.add_directive("kernel-adjoint", KernelAdjoint)
    return {"version": "1", "parallel_read_safe": True}
