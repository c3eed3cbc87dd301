"""The text of a generated program: its lines so far, and what is in use at the next step."""

import dataclasses

import generated_check

LENGTH = generated_check.LENGTH
FAMILIES = {"d": ["a", "b", "c", "d", "e"], "s": ["s", "t"], "z": ["z", "w"], "v": ["v"]}
FAMILY = {name: family for family, names in FAMILIES.items() for name in names}
NAMES = [name for names in FAMILIES.values() for name in names]
START = """\
a, s, z, v = x[0] * 1, x[1] * 1, x[2] * 1, x[3] * 1
b, c, d, e = np.sin(a[::-1]), smooth(a + 0.5), np.cos(2 * a), np.zeros(24, a.dtype)
t, w = np.cos(s), smooth(np.conj(z))
written, later = [], []"""


@dataclasses.dataclass
class Window:
    """A window whose memory on each rank is an array of numbers: its names and kind."""

    name: str
    memory: str
    comm: str
    kind: str

    def at(self, target, place):
        """The displacement of element ``place`` in the target's memory."""
        return f"{self.name}_at[{target}] + {8 * place}" if self.kind == "dynamic" else f"{place}"


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
    """Writes a program's lines, and tracks what is in use at the next step."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.lines = START.splitlines()
        self.pending = []
        self.comms = {"comm": "intra"}
        self.windows = []
        self.datatypes = []  # of buffers: not freed yet
        self.names = 0
        self.tags = 0
        self.choices = iter(())

    # ------------------------------------------------------------------------------------------------ choices

    def begin(self, choices):
        self.tear_down()
        if not self.pending:
            self.write(f"ask(np, x, [{', '.join(NAMES)}])")
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

    def two(self, families="dszv", changes=False):
        """Two different arrays of one family, the first to be read (and changed) and the second to be overwritten."""
        pairs = [(f, g) for family in families for f in FAMILIES[family] for g in FAMILIES[family] if f != g]
        pairs = [(f, g) for f, g in pairs if not self.busy(f, changes) and not self.busy(g, True)]
        if not pairs:
            self.complete(list(self.pending))
            return self.two(families, changes)
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
        """A buffer argument of n elements in one of its forms; its datatype is freed by `tear_down`."""
        forms = ["plain", "count", "bytes"]
        if scattered:
            forms += ["vector", "indexed", "block", "resized", "subarray", "struct", "hvector"]
        form = self.pick(forms)
        if form == "plain" or n == 0:
            return self.piece(name, n)
        if form == "count":
            return f"[{self.piece(name, n)}, {n}, typeof({name})]"
        if form == "bytes":
            return f"[{self.piece(name, n)}, MPI.BYTE]"
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
        self.write(make + ".Commit()")
        self.datatypes.append(kind)
        return f"[{name}[{start}:], {count}, {kind}]"

    def tear_down(self):
        """Free the datatypes of buffers."""
        self.write(*(f"{kind}.Free()" for kind in self.datatypes))
        self.datatypes.clear()

    def ring(self, c, k):
        """The ranks k steps ahead and k steps behind."""
        return f"({c}.rank + {k}) % {c}.size", f"({c}.rank - {k}) % {c}.size"

    # ----------------------------------------------------------------------------------------------- completion

    def requests(self, expressions, condition=None):
        """The name of a list of requests."""
        name = self.new("q")
        self.write(f"{name} = [{expressions}]{f' if {condition} else []' if condition else ''}")
        return name

    def leave(self, requests, comm, reads, writes, after=(), collective=False, persistent=False):
        """Complete requests now, or leave them to a later step."""
        self.tear_down()
        self.pending.append(Pending(requests, comm, reads, writes, list(after), collective, persistent))
        if self.pick([True, False]):
            self.complete([self.pending[-1]])

    def request(self, expressions, comm, reads, writes, after=(), collective=False, condition=None):
        """Start requests, and complete them now or later."""
        self.leave(self.requests(expressions, condition), comm, reads, writes, after, collective)

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
        """Complete the pending requests on a communicator."""
        self.complete([p for p in self.pending if p.comm == comm])

    # ------------------------------------------------------------------------------------ communicators and windows

    def comm(self, *kinds):
        """A communicator of one of the kinds, created if there is none."""
        kinds = kinds or ("intra", "cart", "graph", "dist")
        names = [name for name, kind in self.comms.items() if kind in kinds]
        return self.pick(names) if names else self.make_comm(self.pick(kinds))

    def make_comm(self, kind):
        """A new communicator."""
        text = self.pick(MAKES[kind])
        name = self.new("c")
        of = self.pick([c for c, kind in self.comms.items() if kind == "intra"])
        self.write(text.format(name=name, of="comm" if kind == "inter" else of))
        self.comms[name] = kind
        return name

    def free(self, comm):
        """Free a communicator, now or after the sweeps."""
        for window in [window for window in self.windows if window.comm == comm]:
            self.end(window)
        self.settle(comm)
        del self.comms[comm]
        self.write(f"{comm}.Free()" if self.pick([True, False]) else f"later.append({comm})")

    def window(self, *kinds):
        """A window of one of the kinds, created if there are none or few."""
        kinds = kinds or ("created", "allocated", "dynamic", "shared")
        windows = [window for window in self.windows if window.kind in kinds]
        if windows and (len(self.windows) > 1 or self.pick([True, False])):
            return self.pick(windows)
        window = Window(self.new("win"), self.new("mem"), self.comm("intra", "cart"), self.pick(kinds))
        self.write(WINDOWS[window.kind].format(win=window.name, mem=window.memory, c=window.comm))
        self.windows.append(window)
        return window

    def end(self, window):
        """Free a window, now or after the sweeps."""
        self.windows.remove(window)
        if window.kind == "dynamic":
            self.write(f"{window.name}.Detach({window.memory})")
        self.write(f"{window.name}.Free()" if self.pick([True, False]) else f"later.append({window.name})")

    def finish(self):
        """End the program."""
        self.begin(())
        self.complete(list(self.pending))
        for window in list(self.windows):
            self.end(window)
        for number, name in enumerate(c for c in self.comms if c != "comm"):
            self.write(f"{name}.Free()" if number % 2 else f"later.append({name})")
        self.write(f"return [{', '.join(NAMES)}], written, later")


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


WINDOWS = {
    "created": "{mem} = np.zeros(24)\n{win} = MPI.Win.Create({mem}, 8, comm={c})",
    "allocated": "{win} = MPI.Win.Allocate(192, 8, comm={c})\n{mem} = np.frombuffer({win}.tomemory(), 'd')\n"
    "{mem}[...] = 0.0\n{win}.Fence()",
    "dynamic": "{win}, {mem} = MPI.Win.Create_dynamic(comm={c}), np.zeros(24)\n{win}.Attach({mem})\n"
    "{win}_at = {c}.allgather(MPI.Get_address({mem}))",
    "shared": "{win} = MPI.Win.Allocate_shared(192, 8, comm={c})\n"
    "{mem} = np.frombuffer({win}.Shared_query({c}.rank)[0], 'd')\n{mem}[...] = 0.0\n{win}.Fence()",
}

MAKES = {
    "intra": [
        "{name} = {of}.Dup()",
        "{name} = {of}.Split({of}.rank % 2, {of}.rank)",
        "{name} = {of}.Split(0, -{of}.rank)",
        "{name} = {of}.Clone()",
        "{name}, r = {of}.Idup()\nr.Wait()",
        "{name} = {of}.Create_group({of}.group)",
    ],
    "cart": [
        "{name} = {of}.Create_cart([{of}.size], [True])",
        "{name} = {of}.Create_cart([{of}.size], [False])",
        "{name} = {of}.Create_cart([2, 2] if {of}.size == 4 else [{of}.size, 1], [True, False])",
    ],
    "graph": [
        "{name} = {of}.Create_graph([2 * (r + 1) for r in range({of}.size)], "
        "[(r + k) % {of}.size for r in range({of}.size) for k in (1, -1)])",
    ],
    "dist": [
        "{name} = {of}.Create_dist_graph_adjacent([({of}.rank - 1) % {of}.size, ({of}.rank - 2) % {of}.size], "
        "[({of}.rank + 1) % {of}.size, ({of}.rank + 2) % {of}.size])",
    ],
    "inter": [
        "{name} = between(MPI, {of}, 1)",
        "{name} = between(MPI, {of}, max(1, {of}.size // 2))",
    ],
}
