"""The kinds of steps of generated programs: functions that write some lines with a `Writer`."""

from generated_collectives import between_groups, locations, move, neighbours, reduce
from generated_messages import (
    across_groups,
    burst,
    cancelled,
    exchange,
    from_everybody,
    one_message,
    packed,
    partitioned,
)
from generated_windows import concurrent, shared_memory, window
from generated_writer import FAMILY, LENGTH, MAKES

# --------------------------------------------------------------------------------------------------------- local steps


def local(w):
    form = w.pick(LOCAL)
    form(w)


def combine(w):
    f, g = w.two()
    n = w.number(1, 12)
    w.write(f"{w.piece(g, n)} = smooth({w.piece(f, n)} + {w.piece(g, n)})")


def multiply(w):
    f, g = w.two()
    n, step = w.number(1, 8), w.number(1, 3)
    w.write(f"{w.piece(g, n, step)} *= smooth({w.piece(f, n, step)} + 0.3)")


def add_reversed(w):
    f, g = w.two()
    w.write(f"{g} += 0.3 * smooth({f}[::-1] * {f})")


def copy_piece(w):
    f, g = w.two()
    n = w.number(1, 6)
    w.write(f"{w.piece(g, n, w.number(1, 3))} = {w.pick(['', '0.7 * '])}{w.piece(f, n, w.number(1, 3))}")


def elements(w):
    f, g = w.two()
    i = [w.number(0, LENGTH - 1) for _ in range(3)]
    w.write(f"{g}[{sorted(set(i))}] = {f}[{[i[0]] * len(set(i))}]", f"{g}[{i[1]}] = {f}[{i[2]}] * {f}[{i[0]}]")


def constant(w):
    w.write(f"{w.piece(w.writable(), w.number(1, 24))} = {w.pick([0.5, 0.0])}")


def matrix(w):
    f, g = w.two()
    i, j = w.number(0, 5), w.number(0, 3)
    w.write(f"{g}.reshape(4, 6)[:, {i}] += 0.5 * smooth({f}.reshape(6, 4).T[:, {j}])")


def rebind(w):
    name = w.writable()
    w.write(f"{name} = {w.pick([f'smooth({name})', f'{name} * 0.9', f'{name}[::-1] + 0.1'])}")
    if not w.lines[-1].endswith(("smooth", ")")):
        w.write(f"{name} = {name}.copy()")


def run_kernel(w):
    f, g = w.two("d")
    n = w.number(1, 12)
    w.write(f"call(np, mix, {w.piece(g, n)}, {w.piece(f, n)})")


def shift_in_place(w):
    g = w.writable()
    n = w.number(1, 10)
    w.write(f"{w.piece(g, n)} = 0.8 * {w.piece(g, n)}")


def across_types(w):
    n = w.number(1, 8)
    target = w.writable()
    f = w.readable("zv" if FAMILY[target] in "ds" else "ds")
    if FAMILY[target] in "ds":
        w.write(f"{w.piece(target, n)} = {w.piece(f, n)}.{w.pick(['real', 'imag'])}")
    else:
        h = w.readable("ds")
        w.write(f"{w.piece(target, n)} = {w.piece(f, n)} + 1j * smooth({w.piece(h, n)})")


def across_reals(w):
    target = w.writable("ds")
    f = w.readable("s" if FAMILY[target] == "d" else "d")
    n = w.number(1, 12)
    w.write(f"{w.piece(target, n)} = smooth({w.piece(f, n)})")


LOCAL = [combine, copy_piece, multiply, add_reversed, elements, constant, matrix, rebind, run_kernel, shift_in_place]
LOCAL += [across_types, across_reals]


# ------------------------------------------------------------------------------------------------------------- objects


def objects(w):
    """Lowercase methods."""
    pickled(w, w.comm(), OBJECTS)


def objects_apart(w):
    """Lowercase methods of pkl5, which sends large buffers separately."""
    c = w.new("p")
    w.write(f"{c} = pkl5.Intracomm({w.comm()})")
    pickled(w, c, [form for form in OBJECTS if "irecv" not in form and "ibsend" not in form])


def pickled(w, c, forms):
    f, g = w.two()
    n, k, tag = w.number(1, 3), w.number(0, 3), w.tag()
    dest, source = w.ring(c, k)
    lines = w.pick(forms).format(c=c, u=w.piece(f, n), to=dest, source=source, root=f"{k} % {c}.size", tag=tag)
    w.write(lines, f"{w.piece(g, n)} = smooth(o)")


OBJECTS = [
    "o = {c}.sendrecv({u}, {to}, {tag}, None, {source}, {tag})",
    "q = {c}.isend({{'u': {u}, 'n': 2.0}}, {to}, {tag})\no = {c}.recv(source={source}, tag={tag})\nq.wait()\n"
    "o = o['u'] * o['n']",
    "p = {c}.irecv(source={source}, tag={tag})\n{c}.bsend([{u}, ({u}[0], 'text')], {to}, {tag})\no = p.wait()\n"
    "o = o[0] * o[1][0]",
    "q = {c}.issend([smooth({u})], {to}, {tag})\no = {c}.mprobe({source}, {tag}).recv()[0]\nq.wait()",
    "p = {c}.irecv(source=MPI.ANY_SOURCE, tag={tag})\nq = {c}.ibsend({u} * 1, {to}, {tag})\n"
    "o = MPI.Request.waitall([p, q])[0]",
    "o = {c}.bcast([{u}, 3] if {c}.rank == {root} else None, {root})\no = o[0] * o[1]",
    "o = {c}.gather({u}, {root})\no = {u} * 2 if o is None else sum(h / (i + 1) for i, h in enumerate(o))",
    "o = {c}.scatter([{u} * (i + 1) for i in range({c}.size)] if {c}.rank == {root} else None, {root})",
    "o = sum(h['u'] / (i + 1) for i, h in enumerate({c}.allgather({{'u': {u}}})))",
    "o = sum(smooth(h) / (i + 1) for i, h in enumerate({c}.alltoall([{u} * (i + 1) for i in range({c}.size)])))",
    "o = {c}.reduce({u}, MPI.SUM, {root})\no = {u} if o is None else o",
    "o = {c}.allreduce({u}, MPI.SUM)",
    "o = {c}.allreduce(smooth({u}) + 0.3, MPI.PROD)",
    "o = {c}.allreduce(({u}, smooth({u})), lambda h, i: (h[0] * i[1] + i[0], h[1]))[0]",
    "o = {c}.scan({u}, lambda h, i: h + smooth(h * i))",
    "o = {c}.exscan({u})\no = {u} if o is None else o",
]


# --------------------------------------------------------------------------------------------------------------- files


def file_write(w):
    """A file of active values: an output of the program."""
    c, file = w.comm("intra", "cart"), w.new("file")
    f = w.readable()
    n = w.number(1, 4)
    w.write(f"o = smooth({w.piece(f, n)}) + 0.1 * x[{list('dszv').index(FAMILY[f])}][:{n}]")
    w.write(f"{file} = MPI.File.Open({c}, scratch({c}, '{file}'), FRESH)")
    buffer, values = w.pick(
        [
            ("o", "o"),
            (f"[o, {n}, typeof(o)]", "o"),
            ("[o, MPI.BYTE]", "o"),
            (f"[o, {(n + 1) // 2}, k]", f"o[::2][: {(n + 1) // 2}]"),
        ]
    )
    if "k]" in buffer:
        w.write("k = typeof(o).Create_resized(0, 2 * o.itemsize).Commit()")
        w.write("o = np.concatenate([o, o[:1]])")
    place = f"{c}.rank * {n} * o.itemsize"
    w.write(
        w.pick(WRITES).format(file=file, buffer=buffer, place=place),
        f"written.append(np.array(ampi.value({values})))",
        f"{file}.Close()",
    )
    if "k]" in buffer:
        w.write("k.Free()")


WRITES = [
    "{file}.Write_at({place}, {buffer})",
    "{file}.Write_at_all({place}, {buffer})",
    "{file}.Seek({place})\n{file}.Write({buffer})",
    "{file}.Iwrite_at({place}, {buffer}).Wait()",
    "{file}.Seek({place})\n{file}.Iwrite_all({buffer}).Wait()",
    "{file}.Write_shared({buffer})",
    "{file}.Write_ordered({buffer})",
    "{file}.Seek({place})\n{file}.Write_all_begin({buffer})\n{file}.Write_all_end({buffer})",
]


def file_read(w):
    """A file of numbers: what is read is constant; a short read leaves the rest of the buffer unchanged."""
    c, file = w.comm("intra", "cart"), w.new("file")
    g = w.writable()
    n = w.number(1, 4)
    place = f"{c}.rank * {n} * {g}.itemsize"
    w.write(
        f"{file} = MPI.File.Open({c}, scratch({c}, '{file}'), FRESH)",
        f"{file}.Write_at_all({place}, numpy.full({n}, 0.1 + 0.2 * {c}.rank, {g}.dtype))",
        f"{file}.Sync()\n{c}.Barrier()\n{file}.Sync()",
    )
    form = w.pick(["{}.Iread_at{}", "{}.Iread_at_all{}", "Read_at", "Read_at_all", "Read", "Read_all_begin"])
    nonblocking = form.startswith("{")
    # Nonblocking reads: MPICH crashes if the datatype is freed meanwhile, short ones never end in Open MPI.
    more = 0 if nonblocking else w.pick([0, 0, 2])
    buffer = w.buffer(g, n + more, scattered=not more and not nonblocking)
    end = [f"{file}.Close()"]
    if nonblocking:
        w.request(form.format(file, f"({place}, {buffer})"), c, (), (g,), end)
    elif form == "Read_all_begin":
        w.write(f"{file}.Seek({place})", f"{file}.Read_all_begin({buffer})", f"{file}.Read_all_end({buffer})", *end)
    elif form == "Read":
        w.write(f"{file}.Seek({place})", f"{file}.Read({buffer})", *end)
    else:
        w.write(f"{file}.{form}({place}, {buffer})", *end)


# ------------------------------------------------------------------------------------------ communicators and requests


def communicator(w):
    """Make or free a communicator."""
    if len(w.comms) > 6 or (len(w.comms) > 1 and w.pick([False, False, True])):
        w.free(w.pick([c for c in w.comms if c != "comm"]))
    else:
        w.make_comm(w.pick(MAKES))


def completion(w):
    """Complete some of the pending requests."""
    n = w.number(1, max(1, len(w.pending)))
    chosen = w.pending[:n] if w.pick([True, False]) else w.pending[-n:]
    w.complete(list(chosen))


KINDS = {
    kind.__name__: kind
    for kind in (
        *(local, exchange, move, reduce, completion, burst, from_everybody, one_message, objects, communicator),
        *(neighbours, window, locations, across_groups, between_groups, partitioned, packed, cancelled, concurrent),
        *(objects_apart, file_write, file_read, shared_memory),
    )
}
