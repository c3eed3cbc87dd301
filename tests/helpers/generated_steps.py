"""The kinds of steps of generated programs: each a function of the writer, which it has write some lines."""

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


# ------------------------------------------------------------------------------------------------------ point to point


def ends(w, c):
    """Destination and source: around a ring, or along a line with ends, or pairs."""
    k = w.number(1, 3)
    form = w.pick(["ring", "line", "pairs"])
    if form == "ring":
        return f"({c}.rank + {k}) % {c}.size", f"({c}.rank - {k}) % {c}.size", False
    if form == "line":
        dest = f"{c}.rank + {k} if {c}.rank + {k} < {c}.size else MPI.PROC_NULL"
        return dest, f"{c}.rank - {k} if {c}.rank >= {k} else MPI.PROC_NULL", True
    return (f"{c}.rank ^ 1 if {c}.rank ^ 1 < {c}.size else MPI.PROC_NULL",) * 2 + (True,)


def exchange(w):
    """Everybody sends one message and receives one."""
    c = w.comm()
    f, g = w.two()
    n = w.number(1, 4)
    dest, source, open_ended = ends(w, c)
    tag = w.tag()
    ranked = w.pick([False, True])
    sent, received = w.buffer(f, n), w.buffer(g, n + w.pick([0, 0, 1]) if n < 4 else n)
    w.write(f"dest, source = {dest}, {source}")
    going = f"{tag} + {c}.rank % 8" if ranked else f"{tag}"
    coming = f"{tag} + max(source, 0) % 8" if ranked else f"{tag}"
    who = "source"
    if not ranked and not open_ended:
        who = w.pick(["source", "MPI.ANY_SOURCE"])
    if who == "source" and not any(p.comm == c for p in w.pending):
        coming = w.pick([coming, "MPI.ANY_TAG"])
    mode = w.pick(["Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend"])
    barrier = [f"{c}.Barrier()"] if "rs" in mode.lower() else []
    form = w.pick(
        ["Irecv", "Recv", "Sendrecv", "Replace", "Isendrecv", "Ireplace", "Probe", "Mprobe", "Improbe", "init"]
    )
    if form in ("Recv", "Probe", "Mprobe", "Improbe"):
        send_and_receive(w, c, f"{sent}, dest, {going}", received, who, coming, "Recv" if open_ended else form)
    elif form in ("Sendrecv", "Isendrecv"):
        call = f"{c}.{form}({sent}, dest, {going}, {received}, {who}, {coming})"
        if form == "Sendrecv":
            w.write(call)
        else:
            w.request(call, c, (f,), (g,))
    elif form in ("Replace", "Ireplace"):
        # MPICH's Isendrecv_replace is wrong for memory with gaps.
        replaced = w.buffer(g, n, scattered=form == "Replace")
        arguments = f"({replaced}, dest, {going}, {who}, {coming})"
        if form == "Replace":
            w.write(f"{c}.Sendrecv_replace{arguments}")
        else:
            w.request(f"{c}.Isendrecv_replace{arguments}", c, (), (g,))
    elif form == "Irecv":
        send = f"{c}.{mode}({sent}, dest, {going})"
        q = w.requests(f"{c}.Irecv({received}, {who}, {coming})")
        w.write(*barrier, f"{q}.append({send})" if mode[0] == "I" else send)
        w.leave(q, c, (f,) if mode[0] == "I" else (), (g,))
    else:
        mode = mode if mode[0] != "I" else mode[1:].capitalize()
        q = w.requests(f"{c}.Recv_init({received}, {who}, {coming}), {c}.{mode}_init({sent}, dest, {going})")
        w.tear_down()
        begin = [f"{q}[0].Start()", *barrier, f"{q}[1].Start()"]
        if not barrier and w.pick([False, True]):
            begin = [f"MPI.Prequest.Startall({q})"]
        for _ in range(w.number(0, 2)):
            w.write(*begin, f"MPI.Request.Waitall({q})", f"{w.piece(f, n)} *= smooth({w.piece(g, n)})")
            if "ANY_TAG" in coming or who != "source":
                w.write(f"{c}.Barrier()")
        w.write(*begin)
        w.leave(q, c, (f,), (g,), [f"for r in {q}:\n    r.Free()"], persistent=True)


def send_and_receive(w, c, message, received, who, coming, form):
    """Blocking receives in several forms; the message waits for them, or is buffered."""
    mode = w.pick(["Isend", "Bsend", "Issend", "Ibsend"])
    send = f"{c}.{mode}({message})"
    q = w.requests(send) if mode[0] == "I" else w.write(send)
    matched = f"{w.pick(['Recv({})', 'Irecv({}).Wait()'])}".format(received)
    w.write(
        {
            "Recv": f"{c}.Recv({received}, {who}, {coming})",
            "Probe": f"st = MPI.Status()\n{c}.Probe({who}, {coming}, st)\n{c}.Recv({received}, st.source, st.tag)",
            "Mprobe": f"{c}.Mprobe({who}, {coming}).{matched}",
            "Improbe": f"while (msg := {c}.Improbe({who}, {coming})) is None:\n    pass\nmsg.{matched}",
        }[form]
    )
    if q:
        w.write(f"{q}[0].Wait()")


def cancelled(w):
    """A receive that nobody sends to, cancelled; its buffer is as before."""
    c = w.comm()
    g = w.writable()
    buffer, tag = w.buffer(g, w.number(1, 4)), w.tag()
    arguments = f"({buffer}, {w.pick([f'({c}.rank + 1) % {c}.size', 'MPI.ANY_SOURCE'])}, {tag})"
    if w.pick([True, False]):
        q = w.requests(f"{c}.Irecv{arguments}")
        after = []
    else:
        q = w.requests(f"{c}.Recv_init{arguments}")
        w.write(f"{q}[0].Start()")
        after = [f"{q}[0].Free()"]
    w.write(f"{q}[0].Cancel()")
    w.leave(q, c, (), (g,), after, persistent=bool(after))


def burst(w):
    """Several messages of one tag on their way at once, waited for in any order."""
    c = w.comm()
    f, g = w.two()
    n = w.number(2, 4)
    k, tag = w.number(1, 3), w.tag()
    order = w.pick([(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)])
    order = [i for i in order if i < n]
    fresh = w.pick([False, True])
    dest, source = w.ring(c, k)
    w.write(f"dest, source = {dest}, {source}")
    q = w.requests(f"{c}.Irecv({g}[3 * i : 3 * i + 2], source, {tag}) for i in range({n})")
    sent = f"smooth({f}[2 * i : 2 * i + 2])" if fresh else f"{f}[2 * i : 2 * i + 2]"
    w.write(f"{q} = [{q}[i] for i in {order}] + [{c}.Isend({sent}, dest, {tag}) for i in range({n})]")
    w.leave(q, c, () if fresh else (f,), (g,))


def from_everybody(w):
    """Each rank sends to all; whoever's message comes first is taken first, and put where it belongs."""
    c = w.comm()
    f, g = w.two()
    n = w.number(1, 3)
    tag = w.tag()
    sent = w.buffer(f, n)
    w.write(f"st, g, n = MPI.Status(), np.zeros(({c}.size, {n}), {f}.dtype), 0")
    w.write(f"q = [{c}.{w.pick(['Isend', 'Issend'])}({sent}, r, {tag}) for r in range({c}.size)]")
    form = w.pick(["Recv", "Mprobe", "Probe", "Irecv", "Waitany", "Waitsome"])
    if form in ("Recv", "Mprobe", "Probe", "Irecv"):
        receive = {
            "Recv": f"{c}.Recv(h, MPI.ANY_SOURCE, {tag}, st)",
            "Mprobe": f"{c}.Mprobe(MPI.ANY_SOURCE, {tag}).Recv(h, st)",
            "Probe": f"{c}.Probe(MPI.ANY_SOURCE, {tag}, st); {c}.Recv(h, st.source, {tag}, st)",
            "Irecv": f"{c}.Irecv(h, MPI.ANY_SOURCE, {tag}).Wait(st)",
        }[form]
        w.write(f"for _ in range({c}.size):\n    h = np.zeros({n}, {f}.dtype)\n    {receive}")
        w.write("    g[st.source] = h * smooth(h)")
    else:
        w.write(f"h = np.zeros(({c}.size, {n}), {f}.dtype)")
        w.write(f"p = [{c}.Irecv(h[r], MPI.ANY_SOURCE, {tag}) for r in range({c}.size)]")
        if form == "Waitany":
            w.write("for _ in p:\n    i = MPI.Request.Waitany(p, st)\n    g[st.source] = h[i] * smooth(h[i])")
        else:
            w.write(
                "sts = [MPI.Status() for _ in p]\nwhile (found := MPI.Request.Waitsome(p, sts)) is not None:\n"
                "    for i, s1 in zip(found, sts):\n        g[s1.source] = smooth(h[i])"
            )
    w.write("MPI.Request.Waitall(q)", f"{w.piece(g, n)} = smooth(fold(np, g))")


def one_message(w):
    """One rank sends, one receives; the others have no part in it."""
    c = w.comm()
    f, g = w.two()
    n, k, tag = w.number(0, 5), w.number(0, 3), w.tag()
    send = w.pick(["Send", "Ssend", "Bsend"])
    w.write(f"if {c}.size > 1 and {c}.rank == {k} % {c}.size:")
    w.write(f"    {c}.{send}({w.piece(f, n)}, {k + 1} % {c}.size, {tag})")
    w.write(f"elif {c}.size > 1 and {c}.rank == {k + 1} % {c}.size:")
    who = w.pick([f"{k} % {c}.size", "MPI.ANY_SOURCE"])
    w.write(f"    {c}.Recv({w.piece(g, n + w.number(0, 2))}, {who}, {tag})")


def across_groups(w):
    """Messages over an intercommunicator."""
    c = w.comm("inter")
    f, g = w.two()
    n, tag = w.number(1, 4), w.tag()
    sent, received = w.buffer(f, n), w.buffer(g, n)
    form = w.pick(["Isend", "Sendrecv", "Recv"])
    send = f"{c}.Isend({sent}, {c}.rank, {tag})"
    if form == "Isend":
        w.request(
            f"{c}.Irecv({received}, {c}.rank, {tag}), {send}", c, (f,), (g,), condition=f"{c}.rank < {c}.remote_size"
        )
        return
    w.write(f"if {c}.rank < {c}.remote_size:")
    if form == "Sendrecv":
        w.write(f"    {c}.Sendrecv({sent}, {c}.rank, {tag}, {received}, {c}.rank, {tag})")
    else:
        w.write(f"    q = {send}\n    {c}.Recv({received}, MPI.ANY_SOURCE, {tag})\n    q.Wait()")


def partitioned(w):
    """A message in parts, each ready when it has been computed."""
    c = w.comm()
    f, g = w.two(changes=True)
    k, tag, n = w.number(1, 3), w.tag(), w.pick([2, 3, 6])
    order = list(range(n))[:: w.pick([1, -1])]
    dest, source = w.ring(c, k)
    w.write(f"dest, source = {dest}, {source}")
    there = w.pick([n, 2, 6])
    p, q = w.new("p"), w.new("q")
    w.write(f"{p}, {q} = {c}.Psend_init({f}[:6], {n}, dest, {tag}), {c}.Precv_init({g}[6:12], {there}, source, {tag})")
    for _ in range(w.number(1, 2)):
        w.write(f"MPI.Prequest.Startall([{q}, {p}])")
        for i in order:
            w.write(
                f"{f}[{i * 6 // n}:{(i + 1) * 6 // n}] *= smooth({f}[{6 + i}:{6 + i + 6 // n}] + 0.3)",
                f"{p}.Pready({i})",
            )
        w.write(w.pick([f"MPI.Request.Waitall([{p}, {q}])", f"{q}.Wait()\n{p}.Wait()"]))
    w.write(f"{p}.Free()\n{q}.Free()")


def packed(w):
    """Two pieces packed into bytes behind a number, sent on, and unpacked in another order."""
    c = w.comm()
    f, g = w.two()
    n, m, k, tag = w.number(1, 3), w.number(1, 3), w.number(0, 3), w.tag()
    dest, source = w.ring(c, k)
    kind, item = f"typeof({f})", f"{f}.itemsize"
    w.write(
        f"room = np.zeros(4 + {n + m} * {item}, 'u1')\ncame = room.copy()",
        f"o = MPI.INT.Pack(np.full(1, {n}, 'i4'), room, 0, {c})",
        f"o = {kind}.Pack({w.piece(f, n)}, room, o, {c})",
        f"{kind}.Pack({w.piece(f, m)}, room, o, {c})",
    )
    form = w.pick(PACKED_MESSAGES)
    w.write(form.format(c=c, dest=dest, source=source, tag=tag, root=f"{k} % {c}.size", n=n, item=item))
    w.write(
        f"o = np.zeros(1, 'i4')\nMPI.INT.Unpack(came, 0, o, {c})\nassert o[0] == {n}",
        f"{kind}.Unpack(came, 4 + {n} * {item}, {w.piece(g, m)}, {c})",
        f"{kind}.Unpack(came, 4, {w.piece(g, n)}, {c})",
    )


PACKED_MESSAGES = [
    "{c}.Sendrecv([room, MPI.PACKED], {dest}, {tag}, [came, MPI.PACKED], MPI.ANY_SOURCE, {tag})",
    "came[...] = room",
    "q = {c}.Isend([room, MPI.BYTE], {dest}, {tag})\n{c}.Recv([came, MPI.PACKED], {source}, {tag})\nq.Wait()",
    "came[...] = room\n{c}.Sendrecv_replace([came, MPI.PACKED], {dest}, {tag}, {source}, {tag})",
    "came[...] = room\n{c}.Bcast([came, MPI.PACKED], {root})",
    "all_ = np.zeros({c}.size * room.size, 'u1')\n{c}.Allgather([room, MPI.PACKED], [all_, MPI.PACKED])\n"
    "came[...] = all_[-room.size :]",
    "all_ = np.zeros(({c}.size, room.size), 'u1')\nfor r in range({c}.size):\n    all_[r] = room\n"
    "{c}.Alltoall([all_.copy(), MPI.BYTE], [all_, MPI.BYTE])\nall_ = all_.reshape(-1)\n"
    "came[...] = all_[: room.size]",
    "came = {c}.sendrecv(room, {dest}, {tag}, None, {source}, {tag})",
    "came[: 4 + {n} * {item}] = room[: 4 + {n} * {item}]\n"
    "q = {c}.Irecv(came[4 + {n} * {item} :], {source}, {tag})\n"
    "{c}.Bsend([room[4 + {n} * {item} :], MPI.BYTE], {dest}, {tag})\nq.Wait()",
]


# --------------------------------------------------------------------------------------------------------- collectives


def start(w, c, name, arguments, reads, writes, after=()):
    """A collective in its blocking, nonblocking or persistent form."""
    form = w.pick(["blocking", "nonblocking", "persistent"])
    if form == "blocking":
        w.write(f"{c}.{name}({arguments})", *after)
    elif form == "nonblocking":
        w.request(f"{c}.I{name[0].lower()}{name[1:]}({arguments})", c, reads, writes, after, collective=True)
    else:
        q = w.requests(f"{c}.{name}_init({arguments})")
        for _ in range(w.number(0, 1)):
            w.write(f"{q}[0].Start()", f"{q}[0].Wait()", *(f"{g} *= 0.5" for g in writes))
        w.write(f"{q}[0].Start()")
        w.leave(q, c, reads, writes, [f"{q}[0].Free()", *after], collective=True, persistent=True)


def move(w):
    """Collectives that move data."""
    c = w.comm()
    name = w.pick(MOVES)
    f, g = w.two()
    n, o, p = w.number(1, 3), w.number(0, 12), w.number(0, 12)
    k = w.number(0, 3)
    root, size = f"{k} % {c}.size", f"{c}.size"
    one, all_ = f"{f}[{o}:{o + n}]", f"{g}[{p}:{p} + {n} * {size}]"
    source_all, mine = f"{f}[{o}:{o} + {n} * {size}]", f"{g}[{p}:{p + n}]"
    in_place = w.pick([False, True])
    counts, places = (
        f"[(r + {k}) % 3 for r in range({size})]",
        f"[3 * ({size} - 1 - r) + {p % 6} for r in range({size})]",
    )
    count = f"({c}.rank + {k}) % 3"
    at_root = f"{c}.rank == {root}"
    if name == "Bcast":
        start(w, c, name, f"{mine}, {root}", (), (g,))
    elif name == "Gather":
        first = f"MPI.IN_PLACE if {at_root} else {one}" if in_place else one
        start(w, c, name, f"{first}, {all_} if {at_root} else None, {root}", (f,), (g,))
    elif name == "Gatherv":
        spec = f"[{g}, ({counts}, {places}), typeof({g})] if {at_root} else None"
        start(w, c, name, f"{f}[{o}:{o} + {count}], {spec}, {root}", (f,), (g,))
    elif name == "Scatter":
        second = f"MPI.IN_PLACE if {at_root} else {mine}" if in_place else mine
        start(w, c, name, f"{source_all} if {at_root} else None, {second}, {root}", (f,), (g,))
    elif name == "Scatterv":
        spec = f"[{f}, ({counts}, {places}), typeof({f})] if {at_root} else None"
        start(w, c, name, f"{spec}, {g}[{p}:{p} + {count}], {root}", (f,), (g,))
    elif name == "Allgather":
        start(w, c, name, f"{'MPI.IN_PLACE' if in_place else one}, {all_}", (f,), (g,))
    elif name == "Allgatherv":
        mine = "MPI.IN_PLACE" if in_place else f"{f}[{o}:{o} + {count}]"
        start(w, c, name, f"{mine}, [{g}, ({counts}, {places}), typeof({g})]", (f,), (g,))
    elif name == "Alltoall":
        start(w, c, name, f"{'MPI.IN_PLACE' if in_place else source_all}, {all_}", (f,), (g,))
    elif name == "Alltoallv":
        there = f"[({c}.rank + r + {k}) % 3 for r in range({size})]"
        first = f"[{f}, ({there}, [5 * r for r in range({size})]), typeof({f})]"
        start(w, c, name, f"{first}, [{g}, ({there}, {places}), typeof({g})]", (f,), (g,))
    else:
        t = w.new("k")
        w.write(f"{t} = typeof({f}).Create_vector(2, 1, 2).Commit()")
        item = f"{f}.itemsize"
        first = f"[{f}, ([1] * {size}, [r * {item} for r in range({size})]), [{t}] * {size}]"
        second = f"[{g}, ([2] * {size}, [3 * r * {item} for r in range({size})]), [typeof({g})] * {size}]"
        start(w, c, name, f"{first}, {second}", (f,), (g,), [f"{t}.Free()"])


MOVES = "Bcast Gather Gatherv Scatter Scatterv Allgather Allgatherv Alltoall Alltoallv Alltoallw".split()


def reduce(w):
    """Collectives that reduce."""
    c = w.comm()
    name = w.pick(REDUCTIONS)
    op = w.pick(["SUM", "PROD", "MAX", "MIN", "hypot", "compose"])
    families = {"SUM": "dszv", "PROD": "dszv", "MAX": "ds", "MIN": "ds", "hypot": "d", "compose": "d"}[op]
    f, g = w.two(families)
    n, o, p, k = 2 * w.number(1, 2), w.number(0, 6), w.number(0, 6), w.number(0, 3)
    after = []
    if op in ("hypot", "compose"):
        made = w.new("op")
        w.write(f"{made} = reduction(np, {op}, {op == 'hypot'})")
        after = [f"{made}.Free()"]
    else:
        made = f"MPI.{op}"
    kind = f"typeof({f})"
    if op == "compose":
        kind = w.new("k")
        w.write(f"{kind} = typeof({f}).Create_contiguous(2).Commit()")
        after = [*after, f"{kind}.Free()"]
    many = name.startswith("Reduce_scatter")
    length = f"{n} * {c}.size" if many else f"{n}"
    if op in ("PROD", "compose") or w.pick([False, True]):
        used = w.new("u")
        w.write(f"{used} = smooth({f}[{o}:{o} + {length}]) + 0.4")
        reads = ()
    else:
        used, reads = f"{f}[{o}:{o} + {length}]", (f,)
    in_place = w.pick([False, True])
    if in_place and op in ("PROD", "compose"):
        w.write(f"{g}[...] = smooth({g}) + 0.4")
    items = f", {kind}]"
    first = "MPI.IN_PLACE" if in_place else f"[{used}{items}"
    target = f"[{g}[{p}:{p} + {length if in_place else n}]{items}"
    if name == "Reduce":
        root = f"{k} % {c}.size"
        mine = f"[{used}{items}"
        if in_place:
            first = f"MPI.IN_PLACE if {c}.rank == {root} else {mine}"
        start(w, c, name, f"{first}, {target} if {c}.rank == {root} else None, {made}, {root}", reads, (g,), after)
    elif name == "Reduce_scatter":
        width = 2 if op == "compose" else 1
        counts = f"[{n // width}] * {c}.size"
        start(w, c, name, f"{first}, {target}, {counts}, {made}", reads, (g,), after)
    else:
        start(w, c, name, f"{first}, {target}, {made}", reads, (g,), after)
    if not any(g in pending.writes for pending in w.pending) and w.pick([True, False]):
        w.write(f"{g}[...] = smooth({g})")


REDUCTIONS = "Allreduce Reduce Scan Exscan Reduce_scatter_block Reduce_scatter".split()


def locations(w):
    """Extremes and where they are."""
    c = w.comm()
    f, g = w.two("ds")
    n = w.number(1, 4)
    op = w.pick(["MAXLOC", "MINLOC"])
    w.write(f"g, h = pairs_of(np, {w.piece(f, n)}, {c}.rank), pairs_of(np, np.zeros({n}, {f}.dtype), 0)")
    name = w.pick(["Allreduce", "Scan", "Reduce"])
    if name == "Reduce":
        w.write(f"{c}.Reduce(g, h if {c}.rank == 0 else None, MPI.{op})")
    else:
        w.write(f"{c}.{name}({w.pick(['g, h', 'MPI.IN_PLACE, g'])}, MPI.{op})")
        if "IN_PLACE" in w.lines[-1]:
            w.write("h = g")
    w.write(f"{w.piece(g, n)} = smooth(h[0]['value'] * (1 + h[0]['location']))")


def neighbours(w):
    """Neighbourhood collectives."""
    c = w.comm("cart", "graph", "dist")
    f, g = w.two()
    n, o, p = w.number(1, 3), w.number(0, 10), w.number(0, 12)
    name = w.pick(["allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"])
    u, v = w.new("u"), w.new("v")
    reads = (f,)
    w.write(f"{v} = np.ones({3 * n} * {c}.indegree + 1, {f}.dtype) * {f}[0]")
    after = [f"{g}[{p}:{p + n}] = smooth(fold(np, {v}[: {n} * {c}.indegree].reshape({c}.indegree, {n})) + {v}[-1])"]
    coming = f"[0 if r == MPI.PROC_NULL else r % 3 for r in {c}.inoutedges[0]]"
    if name != "allgather" and name != "allgatherv":
        w.write(f"{u} = np.concatenate([smooth({f}[{o}:{o + n}] + 0.1 * k) for k in range({c}.outdegree)] + [{f}[:3]])")
        reads = ()
    if name == "allgather":
        start(w, c, "Neighbor_allgather", f"{f}[{o}:{o + n}], {v}[: {n} * {c}.indegree]", reads, (), after)
    elif name == "allgatherv":
        spec = f"[{v}, ({coming}, [{n} * k for k in range({c}.indegree)]), typeof({f})]"
        if n < 2:
            spec = f"[{v}, ({coming}, [3 * k for k in range({c}.indegree)]), typeof({f})]"
        start(w, c, "Neighbor_allgatherv", f"{f}[{o}:{o} + {c}.rank % 3], {spec}", reads, (), after)
    elif name == "alltoall":
        start(w, c, "Neighbor_alltoall", f"{u}[: {n} * {c}.outdegree], {v}[: {n} * {c}.indegree]", reads, (), after)
    elif name == "alltoallv":
        first = f"[{u}, ([{c}.rank % 3] * {c}.outdegree, [k % 2 for k in range({c}.outdegree)]), typeof({u})]"
        second = f"[{v}, ({coming}, [3 * k for k in range({c}.indegree)]), typeof({v})]"
        w.write(f"{v} = np.ones(3 * {c}.indegree + 4, {f}.dtype) * {f}[0]")
        start(w, c, "Neighbor_alltoallv", f"{first}, {second}", reads, (), after)
    else:
        t, item = w.new("k"), f"{u}.itemsize"
        w.write(f"{t} = typeof({u}).Create_vector(2, 1, 2).Commit()")
        w.write(f"{v} = np.ones(3 * {c}.indegree + 4, {f}.dtype) * {f}[0]")
        first = f"[{u}, ([1] * {c}.outdegree, [k % 2 * {item} for k in range({c}.outdegree)]), [{t}] * {c}.outdegree]"
        second = (
            f"[{v}, ([2] * {c}.indegree, [3 * k * {item} for k in range({c}.indegree)]), [typeof({v})] * {c}.indegree]"
        )
        w.write(f"{u} = np.concatenate([{u}, {f}[:3]])")
        start(w, c, "Neighbor_alltoallw", f"{first}, {second}", reads, (), [f"{t}.Free()", *after])


def between_groups(w):
    """Collectives on an intercommunicator."""
    c = w.comm("inter")
    f, g = w.two()
    n, o, p = w.number(1, 3), w.number(0, 8), w.number(0, 8)
    name = w.pick(["Allgather", "Allreduce", "Bcast", "Reduce", "Gather", "Scatter", "Alltoall", "Allgatherv"])
    here, there = f"{f}[{o}:{o + n}]", f"{g}[{p}:{p + n}]"
    many, wide = f"{f}[{o}:{o} + {n} * {c}.remote_size]", f"{g}[{p}:{p} + {n} * {c}.remote_size]"
    w.write(f"root = root_of(MPI, {c}, {w.pick([True, False])})")
    if name == "Allgather":
        arguments = f"{here}, {wide}"
    elif name == "Alltoall":
        arguments = f"{many}, {wide}"
    elif name == "Allgatherv":
        counts = f"([r % 3 for r in range({c}.remote_size)], [3 * r for r in range({c}.remote_size)])"
        arguments = f"{f}[{o}:{o} + {c}.rank % 3], [{g}, {counts}, typeof({g})]"
    elif name == "Allreduce":
        arguments = f"{here}, {there}, MPI.SUM"
    elif name == "Bcast":
        arguments = f"{f}[{o}:{o + n}] if root == MPI.ROOT else None if root == MPI.PROC_NULL else {there}, root"
    elif name == "Reduce":
        arguments = f"{here} if root >= 0 else None, {there} if root == MPI.ROOT else None, MPI.SUM, root"
    elif name == "Gather":
        arguments = f"{here} if root >= 0 else None, {wide} if root == MPI.ROOT else None, root"
    else:
        arguments = f"{many} if root == MPI.ROOT else None, {there} if root >= 0 else None, root"
    if name == "Bcast" or w.pick([True, False]):  # MPICH's Ibcast is wrong there
        w.write(f"{c}.{name}({arguments})")
        return
    w.request(f"{c}.I{name.lower()}({arguments})", c, (f,), (g,), collective=True)


# ------------------------------------------------------------------------------------------------------------- objects


def objects(w):
    """Lowercase methods."""
    pickled(w, w.comm(), OBJECTS)


def objects_apart(w):
    """Lowercase methods of pkl5, which sends big buffers apart."""
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
    """A file of numbers: what is read is a constant, what comes short leaves the rest."""
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
    # Nonblocking reads: MPICH crashes where the datatype is freed meanwhile, Open MPI never ends those that come short.
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


# ------------------------------------------------------------------------------------------------------------- windows


def window(w):
    """An epoch on a window: every rank accesses the next one's memory, or all that of one rank where that commutes."""
    win = w.window()
    mem, c = win.memory, win.comm
    f, g = w.two("d")
    n, o, k = w.number(1, 4), w.number(0, 8), w.number(1, 3)
    how = w.pick(EPOCHS)
    if w.pick([True, False]):
        w.write(f"{mem}[{o}:{o + 8}] = smooth({mem}[{o}:{o + 8}] + {f}[{o}:{o + 8}])")
    names = ["Put", "Get", "Accumulate", "REPLACE", "PROD", "everybody gets", "everybody adds", "two puts"]
    what = w.pick([*names, "Fetch_and_op", "Get_accumulate"])
    target, _ = w.ring(c, k)
    if what.startswith("everybody"):
        what = {"everybody gets": "Get", "everybody adds": "Accumulate"}[what]
        target = f"{k} % {c}.size" if how in ("fence", "lock_all") else target
    calls = accesses(w, win, what, f, g, target, o, n, with_requests=how.startswith("lock"))
    if what == "Get" and w.pick([False, True]) and how != "lock":
        calls.append(f"{f}[0:{n}] = smooth({mem}[{o}:{o + n}])")
    EPOCHS[how](w, win.name, c, k, target, calls)
    if w.pick([True, False]):
        w.write(f"{w.piece(g, n)} = smooth({mem}[{o}:{o + n}] * 0.8)")
    if w.pick([False, False, True]):
        w.end(win)


def accesses(w, win, what, f, g, target, o, n, with_requests):
    """Lines that access a window once or twice."""
    place, source = f"({win.at(target, o)}, {n})", w.piece(f, n)
    if what == "Fetch_and_op":
        op = w.pick(["SUM", "REPLACE", "NO_OP"])
        arguments = f"({w.piece(f, 1)}, {w.piece(g, 1)}, {target}, {win.at(target, o)}, MPI.{op})"
        return [f"{win.name}.Fetch_and_op{arguments}"]
    if what == "two puts":
        second = f"({win.at(target, o + n)}, {n})"
        return [f"{win.name}.Put({source}, {target}, {there})" for there in (place, second)]
    if what == "Put":
        call = f"Put({source}, {target}, {place})"
    elif what == "Get":
        call = f"Get({w.piece(g, n)}, {target}, {place})"
    elif what == "PROD":
        u = w.new("u")
        w.write(f"{u} = smooth({source}) + 0.4")
        call = f"Accumulate({u}, {target}, {place}, MPI.PROD)"
    elif what == "Get_accumulate":
        op = w.pick(["SUM", "NO_OP", "REPLACE"])
        call = f"Get_accumulate({source}, {w.piece(g, n)}, {target}, {place}, MPI.{op})"
    else:
        call = f"Accumulate({source}, {target}, {place}, MPI.{'REPLACE' if what == 'REPLACE' else 'SUM'})"
    if with_requests and w.pick([False, True]):
        return [f"{win.name}.R{call[0].lower()}{call[1:]}.Wait()"]
    return [f"{win.name}.{call}"]


def concurrent(w):
    """All ranks update one rank's memory in one epoch; without a tape one after the other, as ampi does it with one."""
    win = w.window()
    mem, c = win.memory, win.comm
    f, g = w.two("d")
    n, o, k = w.number(1, 4), w.number(0, 8), w.number(0, 3)
    root = f"{k} % {c}.size"
    op = w.pick(["MAX", "PROD", "SUM", "MIN", "REPLACE", "NO_OP"])
    fetches, twice = w.pick([False, True]) or op == "NO_OP", w.pick([False, True])
    w.write(f"{mem}[{o}:{o + n}] = smooth({mem}[{o}:{o + n}] + {f}[{o}:{o + n}]) + 0.2")
    w.write(f"u = smooth({w.piece(f, n)}) + 0.4", f"h = np.zeros((2, {n})) + {f}[0]")
    place = win.at(root, o)
    if fetches and n == 1 and w.pick([False, True]):
        call = f"Fetch_and_op({{}}, h[{{}}], {root}, {place}, MPI.{op})"
    elif fetches:
        call = f"Get_accumulate({{}}, h[{{}}], {root}, ({place}, {n}), MPI.{op})"
    else:
        call = f"Accumulate({{}}, {root}, ({place}, {n}), MPI.{op})"
    calls = [f"{win.name}.{call.format(*which)}" for which in (("u", 0), ("v1", 1))[: 1 + twice]]
    if twice:
        w.write("v1 = u * 0.9")
    calls = ["if turn in (None, {c}.rank):", *(f"    {line}" for line in calls)]
    if w.pick([True, False]):
        lines = [f"{win.name}.Fence()", *calls, f"{win.name}.Fence()"]
    else:
        lines = [
            f"if {c}.rank == {root}:\n    {win.name}.Post(g1)",
            f"{win.name}.Start(g2)",
            *calls,
            f"for r in range({c}.size):\n    if r == {c}.rank:\n        {win.name}.Complete()\n    {c}.Barrier()",
            f"if {c}.rank == {root}:\n    {win.name}.Wait()",
        ]
        w.write(f"g1 = {c}.Get_group()\ng2 = g1.Incl([{root}])")
    w.write(f"for turn in turns({c}):")
    w.write(*("    " + line for text in lines for line in text.format(c=c).splitlines()))
    if "Post" in lines[0]:
        w.write("g1.Free(); g2.Free()")
    w.write(f"{w.piece(g, n)} = smooth(h[0] + 0.5 * h[1] + {mem}[{o}:{o + n}])")


def shared_memory(w):
    """Loads from another rank's memory and stores to it, between fences or barriers."""
    win = w.window("shared")
    mem, c = win.memory, win.comm
    f, g = w.two("d")
    n, o, k = w.number(1, 4), w.number(0, 8), w.number(1, 3)
    there, _ = w.ring(c, k)
    w.write(f"near = np.frombuffer({win.name}.Shared_query({there})[0], 'd')")
    w.write(f"{mem}[{o}:{o + 8}] = smooth({mem}[{o}:{o + 8}] + {f}[{o}:{o + 8}])")
    begin, end = w.pick(
        [
            (f"{win.name}.Fence()", f"{win.name}.Fence()"),
            (f"{win.name}.Lock_all()\n{c}.Barrier()", f"{win.name}.Sync()\n{c}.Barrier()\n{win.name}.Unlock_all()"),
        ]
    )
    w.write(
        begin,
        w.pick(
            [
                f"{w.piece(g, n)} = smooth(near[{o}:{o + n}] * {w.piece(f, n)})",
                f"near[{o}:{o + n}] = {w.piece(f, n)}",
                f"near[{o}:{o + n}] *= smooth({w.piece(f, n)} + 0.4)",
                f"{w.piece(g, n)} += near[{o}:{o + n}]",
            ]
        ),
        end,
        f"{w.piece(g, n)} = smooth({mem}[{o}:{o + n}] * 0.7)",
        "del near",
    )
    if w.pick([False, True]):
        w.write(f"{c}.Barrier()")
        w.end(win)


def fence(w, win, c, k, target, calls):
    w.write(f"{win}.Fence()", *calls, f"{win}.Fence()")


def post(w, win, c, k, target, calls):
    w.write(
        f"g = {c}.Get_group()",
        f"g1, g2 = g.Incl([({c}.rank - {k}) % {c}.size]), g.Incl([({c}.rank + {k}) % {c}.size])",
        f"{win}.Post(g1)",
        f"{win}.Start(g2)",
        *calls,
        f"{win}.Complete()",
        w.pick([f"{win}.Wait()", f"while not {win}.Test():\n    pass"]),
        "g1.Free(); g2.Free(); g.Free()",
    )


def lock(w, win, c, k, target, calls):
    kind = w.pick(["", ", MPI.LOCK_SHARED"])
    w.write(f"{c}.Barrier()", f"{win}.Lock({target}{kind})", *calls)
    if w.pick([False, True]):
        w.write(f"{win}.Flush({target})")
    w.write(f"{win}.Unlock({target})", f"{c}.Barrier()")


def lock_all(w, win, c, k, target, calls):
    flush = w.pick([f"{win}.Flush({target})", f"{win}.Flush_all()"])
    w.write(f"{c}.Barrier()", f"{win}.Lock_all()", *calls, flush)
    if w.pick([False, True]):
        w.write(f"{c}.Barrier()", *calls)
    w.write(f"{win}.Unlock_all()", f"{c}.Barrier()")


EPOCHS = {"fence": fence, "post": post, "lock": lock, "lock_all": lock_all}


# ------------------------------------------------------------------------------------------ communicators and requests


def communicator(w):
    """Make one, or free one."""
    if len(w.comms) > 6 or (len(w.comms) > 1 and w.pick([False, False, True])):
        w.free(w.pick([c for c in w.comms if c != "comm"]))
    else:
        w.make_comm(w.pick(MAKES))


def completion(w):
    """Complete some of what is pending."""
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
