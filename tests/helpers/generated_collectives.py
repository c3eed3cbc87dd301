"""Steps of generated programs with collectives."""


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
