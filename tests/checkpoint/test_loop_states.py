"""What time loops remember of states: whether they still hold the same arrays, how they are put back, and checksums."""

import random as randomness

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.checkpoint.states import InPlace
from ampi.checkpoint.views import View
from ampi.checkpoint.written import Values, Written
from ampi.memory.handouts import checksum
from ampi.memory.storages import storage_of


class Plain:
    """An object with attributes."""


class Slotted:
    """An object with slots and attributes."""

    __slots__ = ("__dict__", "first", "second")


class Maker:
    """Draws states and changes to them."""

    def __init__(self, seed):
        self.rng = randomness.Random(seed)

    def part(self, depth):
        kinds = "array number text none integers generator".split() + 3 * (depth > 0) * "list dict tuple object".split()
        kind = self.rng.choice(kinds)
        if kind == "array":
            return np.array(numpy.arange(3.0))
        if kind == "integers":
            return numpy.arange(self.rng.randrange(4))
        if kind == "generator":
            return numpy.random.default_rng(1)
        if kind in ("number", "text", "none"):
            return {"number": self.rng.randrange(1000) + 0.5, "text": "text", "none": None}[kind]
        parts = [self.part(depth - 1) for _ in range(self.rng.randrange(4))]
        if kind == "dict":
            return dict(zip(("a", 2, "c", "d"), parts))
        if kind == "object":
            made = self.rng.choice((Plain, Slotted))()
            for name, value in zip(("first", "second", "third"), parts):
                setattr(made, name, value)
            return made
        return parts if kind == "list" else tuple(parts)

    def change(self, state):
        """Change something somewhere, as a step may."""
        inside = self.rng.choice([x for x in containers(state) if not isinstance(x, tuple)])
        made = self.part(1)
        how = self.rng.choice(["add", "remove", "replace", "replace", "exchange"])
        if isinstance(inside, list):
            at = self.rng.randrange(len(inside)) if inside else 0
            if how == "add":
                inside.append(made)
            elif inside and how == "remove":
                del inside[at]
            elif inside and how == "replace":
                inside[at] = made
            else:
                inside.reverse()
            return
        names = [n for n in named(inside)]
        name = self.rng.choice([*names, "first", "new"])
        if how == "remove" and name in names:
            remove(inside, name)
        elif how == "exchange" and len(names) > 1:
            a, b = self.rng.sample(names, 2)
            held = named(inside)
            x, y = held[a], held[b]
            put(inside, a, y)
            put(inside, b, x)
        else:
            put(inside, name, made)


def named(x):
    if isinstance(x, dict):
        return dict(x)
    slots = {n: getattr(x, n) for n in ("first", "second") if isinstance(x, Slotted) and hasattr(x, n)}
    return {**slots, **x.__dict__}


def put(x, name, value):
    if isinstance(x, dict):
        x[name] = value
    else:
        setattr(x, str(name), value)


def remove(x, name):
    if isinstance(x, dict):
        del x[name]
    else:
        delattr(x, name)


def parts(x):
    if isinstance(x, (list, tuple)):
        return dict(enumerate(x))
    return named(x) if isinstance(x, (dict, Plain, Slotted)) else {}


def containers(x, found=None):
    found = [] if found is None else found
    if isinstance(x, (list, tuple, dict, Plain, Slotted)) and not any(x is other for other in found):
        found.append(x)
        for part in parts(x).values():
            containers(part, found)
    return found


def arrays(x, way=(), met=None):
    """All arrays by their paths, found independently; each once."""
    met = [] if met is None else met
    if any(x is other for other in met):
        return {}
    if isinstance(x, numpy.ndarray):
        met.append(x)
        return {way: id(x)}
    found = {}
    if isinstance(x, (list, tuple, dict, Plain, Slotted)):
        met.append(x)
        for name, part in parts(x).items():
            found.update(arrays(part, (*way, name), met))
    return found


def told(x):
    """Everything in a state, objects by their identity."""
    return [(id(c), {k: (id(p), repr(p)) if isinstance(p, float) else id(p) for k, p in parts(c).items()}) for c in x]


@pytest.mark.parametrize("seed", range(300))
def test_a_state_with_the_same_arrays_is_distinguished_from_others(seed):
    maker = Maker(seed)
    state = [maker.part(3) for _ in range(3)]
    view = View(state)
    before = arrays(state)
    kept = [maker.part(0)]  # objects that have gone must not lend their identity to others
    for _ in range(4):
        kept.append(containers(state))
        maker.change(state)
        after = arrays(state)
        if view.still_holds():
            assert after == before, seed
        elif after == before:
            fresh = View(state)
            assert fresh.still_holds()
        view, before = View(state), after
        assert {id(a) for a in view.arrays.values()} == set(after.values())


def test_numbers_and_lists_of_messages_may_change():
    state = Plain()
    state.n, state.requests, state.u, state.said = 1, [], np.ones(3), ["a"]
    view = View(state)
    for n in range(3):
        state.n, state.requests = n, [None] * n
        state.said.append("b")
        assert view.still_holds()
    state.u = np.ones(3)
    assert not view.still_holds()


@pytest.mark.parametrize("seed", range(200))
def test_a_state_in_place_is_put_back(seed):
    maker = Maker(1000 + seed)
    state = [maker.part(3) for _ in range(3)]
    inside = containers(state)
    before = told(inside)
    plain = [a for a in View(state).arrays.values() if not isinstance(a, ampi.ndarray)]
    generators = View(state).generators
    snapshot = InPlace(View(state), {})
    values = [a.copy() for a in plain]
    kept = [containers(state)]
    for _ in range(5):
        maker.change(state)
        kept.append(containers(state))
    for a in plain:
        a += 1
    drawn = [g.random() for g in generators]
    assert snapshot.restore() is state
    assert told(inside) == before
    assert all(numpy.array_equal(a, v) for a, v in zip(plain, values))
    assert [g.random() for g in generators] == drawn


@pytest.mark.parametrize("n", [0, 1, 7, 100, 2047, 5000, 12288, 40000, 100001])
def test_checksums_differ_where_bytes_do(n):
    rng = numpy.random.default_rng(n)
    whole = rng.integers(0, 256, n + 64, dtype=numpy.uint8)
    a = whole[3 : 3 + n].copy()
    found = checksum(a)
    assert found == checksum(a.copy())
    for k in {0, n // 3, n // 2, n - 1} if n else ():
        for bit in (1, 0x80):
            b = a.copy()
            b[k] ^= bit
            assert checksum(b) != found, (k, bit)
    if n >= 5000:
        x = rng.standard_normal(n // 8)
        known = checksum(x)
        for change in (
            x[::-1],
            -x,
            numpy.roll(x, 1),
            numpy.roll(x, 256),
            numpy.concatenate([x[256:512], x[:256], x[512:]]),
        ):
            assert checksum(numpy.ascontiguousarray(change)) != known
        y = x.copy()
        y[[5, 300]] *= -1.0
        assert checksum(y) != known


@ampi.kernel
def double(u, out):
    for i in range(len(u)):
        out[i] = 2.0 * u[i]


def test_kernels_without_a_tape_take_arrays_as_they_are_now():
    """What was run before with the same arrays is run again at once; unless they are something else by then."""
    idle = ampi.Tape()  # lives, and does not record
    u, out = np.arange(4.0), np.zeros(4)
    for _ in range(4):
        out[...] = 0.0
        double(u, out)
        assert numpy.array_equal(out, 2.0 * numpy.arange(4.0))
    out.flags.writeable = False
    with pytest.raises(ampi.errors.KernelError, match="'out' is read-only"):
        double(u, out)
    out.flags.writeable = True
    other = np.zeros(8)[::2]
    for _ in range(3):
        double(u, other)
        assert numpy.array_equal(other, 2.0 * numpy.arange(4.0))
    del idle
    with ampi.Tape() as tape:
        x = tape.watch(u)
        y = x * x
        with ampi.passive():
            double(np.ones(4), u)  # what the tape needs of it is kept
            double(np.ones(4), u)
        total = np.sum(y)
    assert numpy.array_equal(tape.gradient(total, x), 2.0 * numpy.arange(4.0))
    assert numpy.array_equal(u, 2.0 * numpy.ones(4))


@pytest.mark.parametrize("seed", range(40))
def test_copies_of_what_was_written_take_the_bytes_of_that(seed):
    """Views of all types, with gaps and without, are put back; a copy takes no more than their bytes and alignment."""
    draw, values = randomness.Random(seed), numpy.random.default_rng(seed)
    written, views = Written(), []
    for _ in range(draw.randrange(1, 8)):
        dtype = numpy.dtype(draw.choice(["f4", "f8", "c8", "c16", "i1", "i8", "?", "g"]))
        array = np.array((values.standard_normal((draw.randrange(1, 5), 6)) * 9).astype(dtype))
        views.append(array[draw.choice([slice(None), slice(0, 1), (slice(None), slice(None, None, 2))])])
        written.add(storage_of(array), views[-1])
    known = [numpy.array(view) for view in views]
    kept = Values(written)
    total = sum(view.nbytes for view in views)
    assert total <= kept.nbytes < total + 16 * len(views)
    assert total == kept.nbytes or len({view.dtype for view in views}) > 1
    held = kept._block.nbytes + sum(copy.nbytes for copy in kept._others.values())
    assert held == kept.nbytes
    for view in views:
        view[...] = 0
    kept.put_back()
    assert all(numpy.array_equal(view, was) for view, was in zip(views, known))
