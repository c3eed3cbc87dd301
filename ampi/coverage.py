"""``python -m ampi.coverage``: all methods of mpi4py that move data, and how ampi treats them.

    python -m ampi.coverage               by class
    python -m ampi.coverage --rst         as a table for the documentation
    python -m ampi.coverage --rst FILE    the same, written between the marks in FILE

The reports are made from the table of operations.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

from .base import whole_files
from .base.arguments import ArgumentParser, add_files, add_version
from .errors import AmpiError
from .mpi.base.rules import TABLE, Operation, Treatment
from .mpi.namespace import BASE

CLASSES = (
    *("Comm", "Intracomm", "Intercomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm"),
    *("Request", "Prequest", "Message", "Win", "File", "Datatype", "Op"),
)
"""Classes of mpi4py with methods to account for."""

_HANDLES = "fromhandle free toint fromint py2f f2py Free"
_CALLBACKS = "Create_errhandler Get_errhandler Set_errhandler Call_errhandler"
_ATTRIBUTES = "Get_attr Set_attr Delete_attr Create_keyval Free_keyval Get_name Set_name"

MOVES_NO_DATA: dict[str, frozenset[str]] = {
    name: frozenset(" ".join(methods).split())
    for name, methods in {
        "Comm": (
            *(_HANDLES, _CALLBACKS, _ATTRIBUTES),
            "Get_group Get_size Get_rank Compare Is_inter Is_intra Get_topology Get_parent Set_info Get_info",
            "Clone Dup Dup_with_info Idup Idup_with_info Create Split Split_type Disconnect Join Abort",
            "Revoke Is_revoked Get_failed Ack_failed Agree Iagree Shrink Ishrink",
            "Attach_buffer Detach_buffer Flush_buffer Iflush_buffer",
            "Probe Iprobe Mprobe Improbe probe iprobe mprobe improbe",
            "Barrier Ibarrier Barrier_init barrier",
        ),
        "Intracomm": (
            "Create_group Create_from_group Create_cart Create_graph Create_dist_graph_adjacent Create_dist_graph",
            "Create_intercomm Cart_map Graph_map Spawn Spawn_multiple Accept Connect",
        ),
        "Intercomm": ("Create_from_groups Get_remote_group Get_remote_size Merge",),
        "Cartcomm": ("Get_dim Get_topo Get_cart_rank Get_coords Shift Sub",),
        "Graphcomm": ("Get_dims Get_topo Get_neighbors_count Get_neighbors",),
        "Distgraphcomm": ("Get_dist_neighbors_count Get_dist_neighbors",),
        "Request": (  # what they complete is in the table
            *(_HANDLES, "Cancel cancel"),
            "Wait Test Waitany Testany Waitall Testall Waitsome Testsome",
            "wait test waitany testany waitall testall waitsome testsome",
            "Get_status Get_status_any Get_status_all Get_status_some",
            "get_status get_status_any get_status_all get_status_some",
        ),
        "Prequest": ("Start Startall",),
        "Message": (_HANDLES, "Probe Iprobe probe iprobe"),
        "Win": (  # epochs are part of the operations in them
            *(_HANDLES, _CALLBACKS, _ATTRIBUTES, "Set_info Get_info Get_group"),
            "Create Allocate Allocate_shared Shared_query Create_dynamic Attach Detach tomemory",
            "Fence Start Complete Post Wait Test Lock Unlock Lock_all Unlock_all Sync",
            "Flush Flush_all Flush_local Flush_local_all",
        ),
        "File": (
            *(_HANDLES, _CALLBACKS, "Open Close Delete Set_size Preallocate Get_size Get_amode Get_group"),
            "Set_info Get_info Set_view Get_view Seek Get_position Get_byte_offset Seek_shared Get_position_shared",
            "Get_type_extent Set_atomicity Get_atomicity Sync",
        ),
        "Datatype": (
            *(_HANDLES, _ATTRIBUTES, "Get_size Get_extent Dup Commit Create_resized Resized Create_dup"),
            "Create_contiguous Create_vector Create_hvector Create_indexed Create_hindexed Create_indexed_block",
            "Create_hindexed_block Create_struct Create_subarray Create_darray Create_f90_integer Create_f90_real",
            "Create_f90_complex Match_size Get_value_index Get_true_extent Get_envelope Get_contents decode",
            "Pack_size Pack_external_size tocode fromcode",
        ),
        "Op": (_HANDLES, "Create Is_commutative"),
    }.items()
}
"""Methods that move no data: they make, query, name, complete or order objects; by class."""

_FAMILIES = (
    ("point to point", r"Comm\.[A-Z]\w*(end|ecv)(rec|_|$)|Message\.[A-Z]|Prequest\."),
    ("neighbourhood", r"Topocomm\.I?[nN]eighbor"),
    ("objects", r"\w+\.[a-z]"),
    ("collective", r"(Comm|Intracomm)\."),
    ("one-sided", r"Win\."),
    ("files", r"File\."),
    ("packing, local", r"(Datatype|Op)\."),
)


def families() -> Iterator[tuple[str, list[Operation]]]:
    """Families of operations in the table: names, and the operations of each."""
    left = list(TABLE.values())
    for family, pattern in _FAMILIES:
        found = [operation for operation in left if re.match(pattern, f"{operation.owner}.{operation.name}")]
        left = [operation for operation in left if operation not in found]
        yield family, found


def unaccounted() -> list[str]:
    """Methods of mpi4py, as ``"Class.method"``, that are neither in the table nor known to move no data."""
    return [
        f"{owner}.{name}"
        for owner in CLASSES
        for name in methods_of(owner)
        if f"{owner}.{name}" not in TABLE and name not in MOVES_NO_DATA.get(owner, ())
    ]


def methods_of(owner: str) -> Iterator[str]:
    """Public methods that a class of mpi4py itself defines."""
    base = BASE[owner]
    for name in vars(base):
        if not name.startswith("_") and callable(getattr(base, name)):
            yield name


def report() -> str:
    """The table of operations as text: a section for each class, a line for each method."""
    lines = []
    for owner in CLASSES:
        operations = [operation for operation in TABLE.values() if operation.owner == owner]
        if operations:
            lines += ["", owner]
        for operation in operations:
            what = f"    {operation.name:28}{operation.treatment.value:16}{operation.adjoint}"
            lines.append(what.rstrip())
    counts = [sum(o.treatment is treatment for o in TABLE.values()) for treatment in Treatment]
    told = ", ".join(f"{count} {treatment.value}" for count, treatment in zip(counts, Treatment))
    missing = unaccounted()
    lines += ["", f"{len(TABLE)} methods that move data: {told} (error: on active buffers only)"]
    if missing:
        lines += [f"not accounted for: {', '.join(missing)}"]
    return "\n".join(lines[1:])


# ----------------------------------------------------------------------------------------- for the documentation

_WIDTHS = (16, 50, 48)
_BEGIN, _END = ".. coverage begins", ".. coverage ends"


def rst() -> str:
    """The table of operations for the documentation: a row for each family of methods."""
    rule = "  ".join("=" * width for width in _WIDTHS)
    lines = [rule, _row("MPI", "differentiated", "not (an error on active data)"), rule]
    for family, found in families():
        rules = _wrapped(forms(found, Treatment.DIFFERENTIATED), _WIDTHS[1])
        errors = _wrapped(forms(found, Treatment.ERROR), _WIDTHS[2])
        lines += itertools.starmap(_row, itertools.zip_longest([family], rules, errors, fillvalue=""))
    return "\n".join([*lines, rule]) + "\n"


def _row(*cells: str) -> str:
    # reStructuredText: a row with an empty first cell continues the one above.
    return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, _WIDTHS)).rstrip()


def forms(operations: Sequence[Operation], treatment: Treatment) -> list[str]:
    """Names of the operations of a treatment; blocking, nonblocking and persistent forms in one."""
    found: dict[str, set[str]] = {}
    for operation in operations:
        if operation.treatment is treatment:
            blocking, form = _blocking(operation.name)
            found.setdefault(blocking, set()).add(form)
    return [_with_forms(name, kinds) for name, kinds in found.items()] or ["–"]


def _with_forms(name: str, forms: set[str]) -> str:
    """``[I]send[_init]`` for the three forms of Send."""
    if "I" in forms:
        name = ("[I]" if "" in forms else "I") + name[0].lower() + name[1:]
    if "_init" in forms:
        name += "[_init]" if len(forms) > 1 else "_init"
    return name


def _blocking(name: str) -> tuple[str, str]:
    if name.endswith("_init"):
        return name.removesuffix("_init"), "_init"
    if re.match("I[a-z]", name):
        return name[1:].capitalize() if name[1:].islower() else name[1].upper() + name[2:], "I"
    return name, ""


def _wrapped(names: Iterable[str], width: int) -> list[str]:
    lines = [""]
    for name in names:
        if lines[-1] and len(lines[-1]) + 2 + len(name) >= width:
            lines[-1] += ","
            lines.append(name)
        else:
            lines[-1] += f", {name}" if lines[-1] else name
    return lines


def put(text: str) -> str:
    """A text with the table between its marks updated."""
    before, found, rest = text.partition(f"{_BEGIN}\n")
    _, end, after = rest.partition(_END)
    if not found or not end:
        raise ValueError(f"no lines '{_BEGIN}' and '{_END}'")
    return f"{before}{found}\n{rst()}\n{end}{after}"


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to a parser."""
    parser.add_argument("-h", "--help", action="help", help="show this help message and exit")
    text = "a table for the documentation; into FILE"
    add_files(parser.add_argument("--rst", metavar="FILE", nargs="?", const="", help=text))
    add_version(parser)


def main(arguments: Sequence[str] | None = None, prog: str = "python -m ampi.coverage") -> None:
    """Run the command."""
    parser = ArgumentParser(prog=prog, description=report.__doc__, add_help=False)
    fill(parser)
    options = parser.parse_args(arguments)
    if not parser.prints:
        return
    if options.rst:
        path = pathlib.Path(options.rst)
        try:
            whole_files.write(path, put(path.read_text(encoding="utf-8")))
        except OSError as error:
            parser.error(f"--rst {path}: {error.strerror}")
        except (ValueError, AmpiError) as error:
            parser.error(f"--rst {path}: {error}")
    else:
        print(report() if options.rst is None else rst(), end="\n" if options.rst is None else "")


if __name__ == "__main__":
    main()
