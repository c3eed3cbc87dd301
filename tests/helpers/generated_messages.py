"""Steps of generated programs that send and receive."""


# ------------------------------------------------------------------------------------------------------ point to point


def ends(w, c):
    """Destination, source and whether some are PROC_NULL: around a ring, along a line with ends, or in pairs."""
    k = w.number(1, 3)
    form = w.pick(["ring", "line", "pairs"])
    if form == "ring":
        return f"({c}.rank + {k}) % {c}.size", f"({c}.rank - {k}) % {c}.size", False
    if form == "line":
        dest = f"{c}.rank + {k} if {c}.rank + {k} < {c}.size else MPI.PROC_NULL"
        return dest, f"{c}.rank - {k} if {c}.rank >= {k} else MPI.PROC_NULL", True
    return (f"{c}.rank ^ 1 if {c}.rank ^ 1 < {c}.size else MPI.PROC_NULL",) * 2 + (True,)


def exchange(w):
    """Each rank sends one message and receives one."""
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
    """A cancelled receive, to which no rank sends; its buffer is unchanged."""
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
    """Several messages with one tag in flight at once, waited for in any order."""
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
    """Each rank sends to all; messages are received in order of arrival and stored by source."""
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
    """One rank sends, one receives; the others do nothing."""
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
    """Two pieces packed into bytes after a number, sent, and unpacked in another order."""
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
