"""Messages that match in order are matched at once, with the same result as by MPI's general matching rules."""

import types

import numpy
import pytest
from mpi4py import MPI

from ampi.mpi.log import matching
from ampi.mpi.log.matching import match_received, match_sent, received_columns, sent_columns

REVERSE = types.SimpleNamespace(rank=0, tags=5, name="a communicator")


class Memory:
    """A buffer of a message."""

    def __init__(self, dtype, packed, uncertain):
        self.dtype, self.packed, self._uncertain = numpy.dtype(dtype), packed, uncertain

    def uncertain(self):
        return self._uncertain


class Message:
    """One side of a message, with the attributes that matching reads and sets."""

    back, nbytes = "unset", 24

    def __init__(self, rng, tag, number, plain):
        self.route = types.SimpleNamespace(tag=tag)
        self.number = number
        self.dropped = bool(rng.random() < 0.02)
        kinds = "d" if plain else "dddddfD"
        packed = not plain and rng.random() < 0.05
        active = rng.random() < (0.9 if number % 3 else 0.3)
        self.buffer = Memory(kinds[rng.integers(len(kinds))], packed, packed and rng.random() < 0.5) if active else None
        if not plain and rng.random() < 0.02:
            self.parts = 2

    @property
    def active(self):
        return self.buffer is not None

    def describe(self):
        return f"message {self.number} with tag {self.route.tag}"


class Early:
    """Notes the calls of its methods; some messages are early."""

    first = 1

    def __init__(self, early):
        self.noted, self._early = [], early

    def is_early(self, sent):
        return self._early[sent.number]

    def note_received(self, receive, was_early):
        self.noted.append((receive.number, was_early))


def drawn(seed):
    """Random messages and posted receives: often the same tags in the same order, sometimes with one difference."""
    rng = numpy.random.default_rng(seed)
    plain = bool(rng.random() < 0.7)
    tags = rng.integers(0, 3, rng.integers(0, 8)).tolist()
    posted = list(tags) if rng.random() < 0.8 else [MPI.ANY_TAG] * len(tags)
    if posted and rng.random() < 0.3:
        posted[rng.integers(len(posted))] = [MPI.ANY_TAG, 0, 1, 2][rng.integers(4)]
    if rng.random() < 0.2:
        posted = rng.permutation(posted).tolist()
    if rng.random() < 0.1:
        posted = posted[1:]
    state = rng.integers(1 << 30)

    def side(tags, shift):
        twin = numpy.random.default_rng(state)
        found = [Message(twin, int(tag), k, plain) for k, tag in enumerate(tags)]
        if found and rng.random() < 0.3:
            changed = found[rng.integers(len(found))]
            changed.buffer = None if changed.active else Memory("d", False, False)
        return found

    return side(tags, 0), side(posted, 1), [bool(b) for b in rng.random(len(tags)) < (0.0 if plain else 0.05)], rng


def outcome(seed, first):
    """The results of matching on both sides, independent of other calls."""
    sent, got, early, _ = drawn(seed)
    problems, noted = [], Early(early)
    columns, posted = sent_columns(sent, noted), received_columns(got)
    match_sent(REVERSE, 1, sent, columns, posted, first, problems)
    match_received(REVERSE, 1, got, posted, columns, first, noted, problems)
    backs = [(message.back, getattr(message, "parts_there", 0)) for message in sent]
    return backs, [(receive.back, receive.nbytes) for receive in got], problems, noted.noted


@pytest.mark.parametrize("part", range(3))
def test_matching_at_once(part, monkeypatch):
    at_once = 0
    for seed in range(400 * part, 400 * part + 400):
        found = outcome(seed, seed % 7)
        sent, got, early, _ = drawn(seed)
        at_once += matching.are_alike(sent_columns(sent, Early(early)), received_columns(got))
        with monkeypatch.context() as patch:
            patch.setattr(matching, "are_alike", lambda *_: False)
            assert outcome(seed, seed % 7) == found
    assert 50 < at_once < 350
