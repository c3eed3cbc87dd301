"""Whole MPI programs, drawn by hypothesis and valid by construction.

A program is data: the number of ranks and a list of steps, each a kind and some numbers.  `source` writes it as Python,
the same text for all ranks.  The numbers choose among what is valid where the step stands, the simplest first, so that
any list of any numbers is a program: hypothesis can leave out steps and lower numbers as it likes to find a small one.
"""

import dataclasses
import linecache

import generated_check
from hypothesis import strategies as st

LENGTH = generated_check.LENGTH
FAMILIES = {"d": ["a", "b", "c", "d", "e"], "s": ["s", "t"], "z": ["z", "w"], "v": ["v"]}
FAMILY = {name: family for family, names in FAMILIES.items() for name in names}
START = """\
a, s, z, v = x[0] * 1, x[1] * 1, x[2] * 1, x[3] * 1
b, c, d, e = np.sin(a[::-1]), smooth(a + 0.5), np.cos(2 * a), np.zeros(24, a.dtype)
t, w = np.cos(s), smooth(np.conj(z))
later = []"""


@dataclasses.dataclass(frozen=True)
class Program:
    """What hypothesis draws; `narrow`: some of the arrays are of single precision."""

    ranks: int
    steps: tuple
    narrow: bool = False


def programs(ranks, least=1, most=40):
    """Strategy: programs on so many ranks."""
    step = st.tuples(st.sampled_from(list(KINDS)), st.lists(st.integers(0, 999), max_size=14).map(tuple))
    steps = st.lists(step, min_size=least, max_size=most).map(tuple)
    return st.builds(Program, st.just(ranks), steps, st.booleans())


def source(program):
    """The program as a Python function."""
    writer = Writer(program.ranks)
    for kind, choices in program.steps:
        writer.begin(choices)
        KINDS[kind](writer)
    writer.finish()
    return "\n".join(["def program(np, MPI, comm, x):", *("    " + line for line in writer.lines), ""])


def function(text):
    """The function itself; its lines are found by tracebacks."""
    name = f"<generated program {hash(text) & 0xFFFFFFFF:x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace = dict(vars(generated_check), __name__="generated")
    exec(compile(text, name, "exec"), namespace)
    return namespace["program"]


def script(program):
    """A script that checks the program; run it with mpiexec."""
    head = open(generated_check.__file__, encoding="utf-8").read()
    return (
        f"{head}\n\n# {'-' * 100} the program\n\n\n{source(program)}\n\n"
        "attach_buffer()\n"
        f"problems = check(program, narrow={program.narrow})\n"
        "if WORLD.rank == 0:\n"
        '    print("\\n".join(problems) or "all is well")\n'
    )


@dataclasses.dataclass
class Pending:
    """Requests that have been started: what they use, and what follows their completion."""

    requests: str
    comm: str
    reads: tuple
    writes: tuple
    after: list
    collective: bool = False
    persistent: bool = False


class Writer:
    """Writes a program's lines, and knows what is in use where the next step stands."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.lines = START.splitlines()
        self.pending = []
        self.comms = {"comm": "intra"}
        self.windows = {}  # name of the window: (memory, communicator)
        self.names = 0
        self.tags = 0
        self.choices = iter(())

    # ------------------------------------------------------------------------------------------------ choices

    def begin(self, choices):
        self.choices = iter(choices)

    def pick(self, options):
        options = list(options)
        return options[next(self.choices, 0) % len(options)]

    def number(self, least, most):
        return self.pick(range(least, most + 1))

    def write(self, *lines):
        for line in lines:
            self.lines.extend(line.splitlines())

    def new(self, letter):
        self.names += 1
        return f"{letter}{self.names}"

    def tag(self):
        self.tags += 8
        return self.tags

    # ----------------------------------------------------------------------------------------- arrays and pieces

    def busy(self, name, writing):
        return any(name in p.writes or (writing and name in p.reads) for p in self.pending)

    def two(self, families="dszv"):
        """Two different arrays of one family, the first to be read and the second to be overwritten."""
        pairs = [(f, g) for family in families for f in FAMILIES[family] for g in FAMILIES[family] if f != g]
        pairs = [(f, g) for f, g in pairs if not self.busy(f, False) and not self.busy(g, True)]
        if not pairs:
            self.complete(list(self.pending))
            return self.two(families)
        return self.pick(pairs)

    def readable(self, families="dszv"):
        return self.one(families, False)

    def writable(self, families="dszv"):
        return self.one(families, True)

    def one(self, families, writing):
        names = [name for family in families for name in FAMILIES[family] if not self.busy(name, writing)]
        if not names:
            self.complete(list(self.pending))
            return self.one(families, writing)
        return self.pick(names)

    def piece(self, name, n, step=1):
        """n elements, contiguous."""
        start = self.number(0, LENGTH - n * step)
        return f"{name}[{start}:{start + n * step}{f':{step}' if step > 1 else ''}]"

    def buffer(self, name, n, scattered=True):
        """A buffer argument of n elements in one of its forms; lines before and after it."""
        forms = ["plain", "count", "bytes"]
        if scattered:
            forms += ["vector", "indexed", "block", "resized", "subarray", "struct", "hvector"]
        form = self.pick(forms)
        if form == "plain" or n == 0:
            return self.piece(name, n), [], []
        if form == "count":
            return f"[{self.piece(name, n)}, {n}, typeof({name})]", [], []
        if form == "bytes":
            return f"[{self.piece(name, n)}, MPI.BYTE]", [], []
        kind = self.new("k")
        make = f"{kind} = typeof({name})"
        start, count = self.number(0, LENGTH - 2 * n - 1), 1
        if form == "vector":
            make += f".Create_vector({n}, 1, 2)"
        elif form == "indexed":
            make += f".Create_indexed({[1] * n}, {[2 * i + i % 2 for i in range(n)]})"
        elif form == "block":
            make += f".Create_indexed_block(1, {[2 * i for i in range(n)][::-1]})"
        elif form == "resized":
            make += f".Create_resized(0, 2 * {name}.itemsize)"
            count = n
        elif form == "subarray":
            start = 0
            make += f".Create_subarray([4, 6], [1, {n}], [{self.number(0, 3)}, {self.number(0, 6 - n)}])"
        elif form == "struct":
            make = (
                f"{kind} = MPI.Datatype.Create_struct([1, {n - 1}], [0, 2 * {name}.itemsize], "
                f"[typeof({name}), typeof({name})])"
            )
        else:
            make += f".Create_hvector({n}, 1, 2 * {name}.itemsize)"
        return f"[{name}[{start}:], {count}, {kind}]", [make + ".Commit()"], [f"{kind}.Free()"]

    # ----------------------------------------------------------------------------------------------- completion

    def started(self, requests, comm, reads, writes, after=(), collective=False, persistent=False):
        self.pending.append(Pending(requests, comm, reads, writes, list(after), collective, persistent))

    def complete(self, chosen):
        """Complete some of the requests, in one of the forms."""
        if not chosen:
            return
        forms = [
            "waitall",
            "wait",
            "backwards",
            "statuses",
            "waitany",
            "waitsome",
            "test",
            "status",
            "lower",
            "testany",
        ]
        if not any(p.collective and p.persistent for p in chosen):  # MPICH's Testall is wrong there
            forms += ["testall", "testsome"]
        form = self.pick(forms)
        self.write(f"q = {' + '.join(p.requests for p in chosen)}")
        self.write(COMPLETIONS[form])
        for p in chosen:
            self.pending.remove(p)
            self.write(*p.after)

    def settle(self, comm):
        """Complete what is under way on a communicator."""
        self.complete([p for p in self.pending if p.comm == comm])

    def comm(self, *kinds):
        """A communicator of one of the kinds; made if there is none."""
        kinds = kinds or ("intra", "cart", "graph", "dist")
        names = [name for name, kind in self.comms.items() if kind in kinds]
        if not names:
            names = [make_communicator(self, self.pick(MAKES[self.pick(kinds)]))]
        return self.pick(names)

    def free(self, comm):
        for win, (_, of) in list(self.windows.items()):
            if of == comm:
                self.end(win)
        self.settle(comm)
        del self.comms[comm]
        self.write(f"{comm}.Free()" if self.pick([True, False]) else f"later.append({comm})")

    def end(self, win):
        del self.windows[win]
        self.write(f"{win}.Free()" if self.pick([True, False]) else f"later.append({win})")

    def finish(self):
        self.begin(())
        self.complete(list(self.pending))
        for number, name in enumerate([*self.windows, *(c for c in self.comms if c != "comm")]):
            self.write(f"{name}.Free()" if number % 2 else f"later.append({name})")
        self.write("return [a, b, c, d, e, s, t, z, w, v], later")


COMPLETIONS = {
    "waitall": "MPI.Request.Waitall(q)",
    "wait": "for r in q:\n    r.Wait()",
    "backwards": "for r in q[::-1]:\n    r.Wait()",
    "statuses": "MPI.Request.Waitall(q[::-1], [MPI.Status() for _ in q])",
    "waitany": "for _ in q:\n    MPI.Request.Waitany(q)",
    "waitsome": "while MPI.Request.Waitsome(q) is not None:\n    pass",
    "test": "for r in q:\n    while not r.Test():\n        pass",
    "status": "for r in q:\n    while not r.Get_status():\n        pass\n    r.Wait()",
    "lower": "for r in q:\n    r.wait()",
    "testany": "n = 0\nwhile n < len(q):\n    n += MPI.Request.Testany(q)[1]",
    "testall": "while not MPI.Request.Testall(q):\n    pass",
    "testsome": "while MPI.Request.Testsome(q) is not None:\n    pass",
}


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
    sent, set_up, tear_down = w.buffer(f, n)
    received, more, less = w.buffer(g, n + w.pick([0, 0, 1]) if n < 4 else n)
    set_up, tear_down = set_up + more, tear_down + less
    w.write(f"dest, source = {dest}, {source}", *set_up)
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
        mode = w.pick(["Isend", "Bsend", "Issend", "Ibsend"])
        form = "Recv" if open_ended else form
        first = f"{c}.{mode}({sent}, dest, {going})"
        end = []
        if mode[0] == "I":
            q = w.new("q")
            first, end = f"{q} = {first}", [f"{q}.Wait()"]
        w.write(first)
        if form == "Recv":
            w.write(f"{c}.Recv({received}, {who}, {coming})")
        elif form == "Probe":
            w.write(f"st = MPI.Status()\n{c}.Probe({who}, {coming}, st)\n{c}.Recv({received}, st.source, st.tag)")
        elif form == "Mprobe":
            w.write(f"{c}.Mprobe({who}, {coming}).{w.pick(['Recv({})', 'Irecv({}).Wait()']).format(received)}")
        else:
            w.write(f"while (msg := {c}.Improbe({who}, {coming})) is None:\n    pass")
            w.write(f"msg.{w.pick(['Recv({})', 'Irecv({}).Wait()']).format(received)}")
        w.write(*end, *tear_down)
    elif form == "Sendrecv":
        w.write(f"{c}.Sendrecv({sent}, dest, {going}, {received}, {who}, {coming})", *tear_down)
    elif form == "Isendrecv":
        q = w.new("q")
        w.write(f"{q} = [{c}.Isendrecv({sent}, dest, {going}, {received}, {who}, {coming})]", *tear_down)
        finish_or_leave(w, q, c, (f,), (g,))
    elif form in ("Replace", "Ireplace"):
        # MPICH's Isendrecv_replace is wrong for memory with gaps.
        replaced, more, less = w.buffer(g, n, scattered=form == "Replace")
        w.write(*more)
        if form == "Replace":
            w.write(f"{c}.Sendrecv_replace({replaced}, dest, {going}, {who}, {coming})", *tear_down, *less)
        else:
            q = w.new("q")
            w.write(f"{q} = [{c}.Isendrecv_replace({replaced}, dest, {going}, {who}, {coming})]", *tear_down, *less)
            finish_or_leave(w, q, c, (), (g,))
    elif form == "Irecv":
        q = w.new("q")
        w.write(f"{q} = [{c}.Irecv({received}, {who}, {coming})]", *barrier)
        if mode[0] == "I":
            w.write(f"{q}.append({c}.{mode}({sent}, dest, {going}))")
        else:
            w.write(f"{c}.{mode}({sent}, dest, {going})")
        w.write(*tear_down)
        finish_or_leave(w, q, c, (f,) if mode[0] == "I" else (), (g,))
    else:
        q = w.new("q")
        mode = mode if mode[0] != "I" else mode[1:].capitalize()
        w.write(
            f"{q} = [{c}.Recv_init({received}, {who}, {coming}), {c}.{mode}_init({sent}, dest, {going})]", *tear_down
        )
        begin = [f"{q}[0].Start()", *barrier, f"{q}[1].Start()"]
        if not barrier and w.pick([False, True]):
            begin = [f"MPI.Prequest.Startall({q})"]
        for _ in range(w.number(0, 2)):
            w.write(*begin, f"MPI.Request.Waitall({q})", f"{w.piece(f, n)} *= smooth({w.piece(g, n)})")
            if "ANY_TAG" in coming or who != "source":
                w.write(f"{c}.Barrier()")
        w.write(*begin)
        finish_or_leave(w, q, c, (f,), (g,), [f"for r in {q}:\n    r.Free()"], persistent=True)


def finish_or_leave(w, q, c, reads, writes, after=(), collective=False, persistent=False):
    w.started(q, c, reads, writes, after, collective, persistent)
    if w.pick([True, False]):
        w.complete([w.pending[-1]])


def burst(w):
    """Several messages of one tag on their way at once, waited for in any order."""
    c = w.comm()
    f, g = w.two()
    n = w.number(2, 4)
    k, tag = w.number(1, 3), w.tag()
    order = w.pick([(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)])
    order = [i for i in order if i < n]
    q = w.new("q")
    fresh = w.pick([False, True])
    w.write(f"dest, source = ({c}.rank + {k}) % {c}.size, ({c}.rank - {k}) % {c}.size")
    w.write(f"{q} = [{c}.Irecv({g}[3 * i : 3 * i + 2], source, {tag}) for i in range({n})]")
    sent = f"smooth({f}[2 * i : 2 * i + 2])" if fresh else f"{f}[2 * i : 2 * i + 2]"
    w.write(f"{q} = [{q}[i] for i in {order}] + [{c}.Isend({sent}, dest, {tag}) for i in range({n})]")
    finish_or_leave(w, q, c, () if fresh else (f,), (g,))


def from_everybody(w):
    """Each rank sends to all; whoever's message comes first is taken first, and put where it belongs."""
    c = w.comm()
    f, g = w.two()
    n = w.number(1, 3)
    tag = w.tag()
    sent, set_up, tear_down = w.buffer(f, n)
    w.write(*set_up, f"st, g, n = MPI.Status(), np.zeros(({c}.size, {n}), {f}.dtype), 0")
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
    w.write("MPI.Request.Waitall(q)", *tear_down, f"{w.piece(g, n)} = smooth(fold(np, g))")


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
    sent, set_up, tear_down = w.buffer(f, n)
    received, more, less = w.buffer(g, n)
    form = w.pick(["Isend", "Sendrecv", "Recv"])
    q = w.new("q")
    w.write(*set_up, *more, f"if {c}.rank < {c}.remote_size:")
    if form == "Isend":
        w.write(f"    {q} = [{c}.Irecv({received}, {c}.rank, {tag}), {c}.Isend({sent}, {c}.rank, {tag})]")
        w.write(f"else:\n    {q} = []", *tear_down, *less)
        finish_or_leave(w, q, c, (f,), (g,))
        return
    if form == "Sendrecv":
        w.write(f"    {c}.Sendrecv({sent}, {c}.rank, {tag}, {received}, {c}.rank, {tag})")
    else:
        w.write(f"    {q} = {c}.Isend({sent}, {c}.rank, {tag})")
        w.write(f"    {c}.Recv({received}, MPI.ANY_SOURCE, {tag})\n    {q}.Wait()")
    w.write(*tear_down, *less)


def partitioned(w):
    """A message in parts, each ready when it has been computed."""
    c = w.comm()
    f, g = w.two()
    k, tag, n = w.number(1, 3), w.tag(), w.pick([2, 3, 6])
    order = list(range(n))[:: w.pick([1, -1])]
    w.write(f"dest, source = ({c}.rank + {k}) % {c}.size, ({c}.rank - {k}) % {c}.size")
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
    """Two pieces packed into bytes, sent on, and unpacked in another order."""
    c = w.comm()
    f, g = w.two()
    n, m, k, tag = w.number(1, 3), w.number(1, 3), w.number(0, 3), w.tag()
    w.write(f"room, came = np.zeros({n + m} * {f}.itemsize, 'u1'), np.zeros({n + m} * {f}.itemsize, 'u1')")
    w.write(f"o = typeof({f}).Pack({w.piece(f, n)}, room, 0, {c})", f"typeof({f}).Pack({w.piece(f, m)}, room, o, {c})")
    w.write(
        f"{c}.Sendrecv([room, MPI.PACKED], ({c}.rank + {k}) % {c}.size, {tag}, "
        f"[came, MPI.PACKED], MPI.ANY_SOURCE, {tag})"
    )
    w.write(
        f"typeof({g}).Unpack(came, {n} * {f}.itemsize, {w.piece(g, m)}, {c})",
        f"typeof({g}).Unpack(came, 0, {w.piece(g, n)}, {c})",
    )


# --------------------------------------------------------------------------------------------------------- collectives


def start(w, c, name, arguments, reads, writes, after=()):
    """A collective in its blocking, nonblocking or persistent form."""
    form = w.pick(["blocking", "nonblocking", "persistent"])
    if form == "blocking":
        w.write(f"{c}.{name}({arguments})", *after)
        return
    q = w.new("q")
    if form == "nonblocking":
        w.write(f"{q} = [{c}.I{name[0].lower()}{name[1:]}({arguments})]")
        finish_or_leave(w, q, c, reads, writes, after, collective=True)
        return
    w.write(f"{q} = [{c}.{name}_init({arguments})]")
    for _ in range(w.number(0, 1)):
        w.write(f"{q}[0].Start()", f"{q}[0].Wait()")
        for name in writes:
            w.write(f"{name} *= 0.5")
    w.write(f"{q}[0].Start()")
    finish_or_leave(w, q, c, reads, writes, [f"{q}[0].Free()", *after], collective=True, persistent=True)


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
    q = w.new("q")
    w.write(f"{q} = [{c}.I{name.lower()}({arguments})]")
    finish_or_leave(w, q, c, (f,), (g,), collective=True)


# ------------------------------------------------------------------------------------------------------------- objects


def objects(w):
    """Lowercase methods."""
    c = w.comm()
    f, g = w.two()
    n, o, k, tag = w.number(1, 3), w.number(0, 12), w.number(0, 3), w.tag()
    u = f"{f}[{o}:{o + n}]"
    ring = f"({c}.rank + {k}) % {c}.size", f"({c}.rank - {k}) % {c}.size"
    root = f"{k} % {c}.size"
    form = w.pick(OBJECTS)
    lines = form.format(c=c, u=u, to=ring[0], source=ring[1], root=root, tag=tag, f=f, n=n)
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


# ------------------------------------------------------------------------------------------------------------- windows


def window(w):
    """An epoch on a window: every rank accesses the next one's memory, or all that of one rank where that commutes."""
    if not w.windows or (len(w.windows) < 2 and w.pick([False, True])):
        make_window(w)
    win = w.pick(w.windows)
    mem, c = w.windows[win]
    f, g = w.two("d")
    n, o, k = w.number(1, 4), w.number(0, 8), w.number(1, 3)
    how = w.pick(["fence", "post", "lock", "lock_all"])
    if w.pick([True, False]):
        w.write(f"{mem}[{o}:{o + 8}] = smooth({mem}[{o}:{o + 8}] + {f}[{o}:{o + 8}])")
    names = ["Put", "Get", "Accumulate", "REPLACE", "PROD", "everybody gets", "everybody adds", "two puts"]
    if how != "post":  # they are not ordered in epochs of Start
        names += ["Fetch_and_op", "Get_accumulate"]
    what = w.pick(names)
    target = f"({c}.rank + {k}) % {c}.size"
    if what.startswith("everybody"):
        what = {"everybody gets": "Get", "everybody adds": "Accumulate"}[what]
        target = f"{k} % {c}.size" if how in ("fence", "lock_all") else target
    calls = accesses(w, win, what, f, g, target, o, n, with_requests=how.startswith("lock"))
    if what == "Get" and w.pick([False, True]) and how != "lock":
        calls.append(f"{f}[0:{n}] = smooth({mem}[{o}:{o + n}])")
    EPOCHS[how](w, win, c, k, target, calls)
    if w.pick([True, False]):
        w.write(f"{w.piece(g, n)} = smooth({mem}[{o}:{o + n}] * 0.8)")
    if w.pick([False, False, True]):
        w.end(win)


def accesses(w, win, what, f, g, target, o, n, with_requests):
    """Lines that access a window once or twice."""
    place, source = f"({o}, {n})", w.piece(f, n)
    if what == "Fetch_and_op":
        op = w.pick(["SUM", "REPLACE", "NO_OP"])
        return [f"{win}.Fetch_and_op({w.piece(f, 1)}, {w.piece(g, 1)}, {target}, {o}, MPI.{op})"]
    if what == "two puts":
        return [f"{win}.Put({source}, {target}, {place})", f"{win}.Put({source}, {target}, ({o + n}, {n}))"]
    if what == "Put":
        call = f"Put({source}, {target}, {place})"
    elif what == "Get":
        call = f"Get({w.piece(g, n)}, {target}, {place})"
    elif what == "PROD":
        u = w.new("u")
        w.write(f"{u} = smooth({source}) + 0.4")
        call = f"Accumulate({u}, {target}, {place}, MPI.PROD)"
    elif what == "Get_accumulate":
        call = (
            f"Get_accumulate({source}, {w.piece(g, n)}, {target}, {place}, MPI.{w.pick(['SUM', 'NO_OP', 'REPLACE'])})"
        )
    else:
        call = f"Accumulate({source}, {target}, {place}, MPI.{'REPLACE' if what == 'REPLACE' else 'SUM'})"
    if with_requests and w.pick([False, True]):
        return [f"{win}.R{call[0].lower()}{call[1:]}.Wait()"]
    return [f"{win}.{call}"]


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


def make_window(w):
    c = w.comm("intra", "cart")
    win, mem = w.new("win"), w.new("mem")
    if w.pick([True, False]):
        w.write(f"{mem} = np.zeros(24)", f"{win} = MPI.Win.Create({mem}, 8, comm={c})")
    else:
        w.write(f"{win} = MPI.Win.Allocate(192, 8, comm={c})", f"{mem} = np.frombuffer({win}.tomemory(), 'd')")
        w.write(f"{mem}[...] = 0.0", f"{win}.Fence()")
    w.windows[win] = mem, c


# ------------------------------------------------------------------------------------------ communicators and requests


def make_communicator(w, make):
    kind, text = make
    name = w.new("c")
    of = w.pick([c for c, kind in w.comms.items() if kind == "intra"])
    if kind == "inter":
        of = "comm"
    w.write(text.format(name=name, of=of))
    w.comms[name] = kind
    return name


MAKES = {
    "intra": [
        ("intra", "{name} = {of}.Dup()"),
        ("intra", "{name} = {of}.Split({of}.rank % 2, {of}.rank)"),
        ("intra", "{name} = {of}.Split(0, -{of}.rank)"),
        ("intra", "{name} = {of}.Clone()"),
        ("intra", "{name}, r = {of}.Idup()\nr.Wait()"),
        ("intra", "{name} = {of}.Create_group({of}.group)"),
    ],
    "cart": [
        ("cart", "{name} = {of}.Create_cart([{of}.size], [True])"),
        ("cart", "{name} = {of}.Create_cart([{of}.size], [False])"),
        ("cart", "{name} = {of}.Create_cart([2, 2] if {of}.size == 4 else [{of}.size, 1], [True, False])"),
    ],
    "graph": [
        (
            "graph",
            "{name} = {of}.Create_graph([2 * (r + 1) for r in range({of}.size)], "
            "[(r + k) % {of}.size for r in range({of}.size) for k in (1, -1)])",
        )
    ],
    "dist": [
        (
            "dist",
            "{name} = {of}.Create_dist_graph_adjacent([({of}.rank - 1) % {of}.size, ({of}.rank - 2) % {of}.size], "
            "[({of}.rank + 1) % {of}.size, ({of}.rank + 2) % {of}.size])",
        )
    ],
    "inter": [
        ("inter", "{name} = between(MPI, {of}, 1)"),
        ("inter", "{name} = between(MPI, {of}, max(1, {of}.size // 2))"),
    ],
}


def communicator(w):
    """Make one, or free one."""
    if len(w.comms) > 6 or (len(w.comms) > 1 and w.pick([False, False, True])):
        w.free(w.pick([c for c in w.comms if c != "comm"]))
    else:
        make_communicator(w, w.pick(MAKES[w.pick(MAKES)]))


def completion(w):
    """Complete some of what is pending."""
    n = w.number(1, max(1, len(w.pending)))
    chosen = w.pending[:n] if w.pick([True, False]) else w.pending[-n:]
    w.complete(list(chosen))


KINDS = {
    kind.__name__: kind
    for kind in (
        *(local, exchange, move, reduce, completion, burst, from_everybody, one_message, objects, communicator),
        *(neighbours, window, locations, across_groups, between_groups, partitioned, packed),
    )
}
