"""The drawn programs can fail: each mutation of what orders tasks, or hands adjoints on, is found by some of them."""

import concurrent.futures._base as base
from concurrent.futures import ThreadPoolExecutor

import pytest
from task_programs import check, check_race

import ampi
from ampi.futures import races, seen, signals, strands, sweeps, threads
from ampi.interception.hooks import hook_of

SEEDS = 120


def without_edges(module, *functions):
    """What tells that a task has ended orders nothing."""

    def mutate(patch):
        if not functions:
            patch.setattr(module, "joined", lambda tasks: None)
        for function in functions:
            found = hook_of(function)
            patch.setattr(found, "handle", lambda hook, arguments, keywords: hook.original(*arguments, **keywords))

    return mutate


def signals_of_nobody(patch):
    patch.setattr(signals, "got", lambda found: None)


def in_order_of_completion(patch):
    """As it might be with one worker, and with several."""

    def receive_at(self, sweep, place):
        found = sorted(self._mail.pop(place, {}).items())
        for _, mail in found if self.episode.workers == 1 else reversed(found):
            sweeps.receive(sweep, mail)

    patch.setattr(sweeps.Reversal, "receive_at", receive_at)


def nothing_is_put_back(patch):
    hand_on = sweeps.Reversal._hand_on

    def mutated(self, sweep, here, event):
        sweep.put_all_back = lambda: None
        try:
            hand_on(self, sweep, here, event)
        finally:
            del sweep.put_all_back

    patch.setattr(sweeps.Reversal, "_hand_on", mutated)


def nobody_waits_for_signals(patch):
    is_finished = sweeps.Reversal.is_finished
    patch.setattr(sweeps.Reversal, "is_finished", lambda self, at: at[1] is not None or is_finished(self, at))


def shadows_are_dropped(patch):
    patch.setattr(sweeps, "merge", lambda into, found: found.clear())


def adjoints_stay(patch):
    patch.setattr(sweeps.Reversal, "_adjoints_of", lambda self, sweep, event: [])


def all_is_ordered(patch):
    patch.setattr(races.Access, "precedes", lambda self, other: True)


def reads_are_not_seen(patch):
    patch.setattr(races, "regions_of", lambda *arguments: [])
    patch.setattr(strands.Strand, "read", lambda self, storage, extent: None)


def writes_are_not_seen(patch):
    patch.setattr(strands.Strand, "write", lambda self, storage, array: None)


def nothing_is_learned_of_others(patch):
    """Joining a task tells of that task, and not of those that it has joined."""
    learn = strands.Strand._learn
    patch.setattr(
        strands.Strand,
        "_learn",
        lambda self, clock, path, number=None: learn(self, {path: clock[path]}, path, number),
    )


MUTATIONS = {
    "no edge of wait": without_edges(None, base.wait),
    "no edge of as_completed": without_edges(None, base.as_completed),
    "no edge of result": without_edges(None, base.Future.result),
    "no edge of futures at all": without_edges(seen),
    "no edge of join": without_edges(threads),
    "no edge of signals": signals_of_nobody,
    "in the order of completion": in_order_of_completion,
    "nothing is put back": nothing_is_put_back,
    "nobody waits for signals": nobody_waits_for_signals,
    "shadows are dropped": shadows_are_dropped,
    "adjoints stay": adjoints_stay,
    "all is ordered": all_is_ordered,
    "reads are not seen": reads_are_not_seen,
    "writes are not seen": writes_are_not_seen,
    "nothing is learned of others": nothing_is_learned_of_others,
}


QUICK = ("no edge of result", "no edge of join", "in the order of completion", "adjoints stay", "all is ordered")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MUTATIONS if name not in QUICK)]
)
def test_mutations_are_found(monkeypatch, name):
    ampi.grad(lambda x: ThreadPoolExecutor(1).submit(lambda: x).result())(1.0)  # all is hooked now
    MUTATIONS[name](monkeypatch)
    for seed in range(SEEDS):
        try:
            check(seed)
            check_race(seed)
        except Exception:
            return
    pytest.fail("no program has found it")
