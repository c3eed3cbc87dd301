"""Steps of generated programs with windows."""


# ------------------------------------------------------------------------------------------------------------- windows


def window(w):
    """An epoch on a window: every rank accesses the next one's memory, or all access one rank's where that commutes."""
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
    """All ranks update one rank's memory in one epoch; without a tape one after another, as ampi orders them on one."""
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
