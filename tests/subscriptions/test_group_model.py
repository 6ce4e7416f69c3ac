"""Ordered groups, proved on their model: every order of steps of small worlds is gone through.

Promises are those of the protocol: order, no loss, settled once, independence, progress. Whatever
rule is left out, one of them breaks: so the model would notice, and no rule is there for nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import pytest

from tests.models.groups import Broken, Budget, GroupModel, Label, Rules, World

#: More than any of the worlds below has; beyond it the exploration is not exhaustive.
STATES_MAX = 400_000


@dataclass
class Explored:
    """What an exploration found: how many worlds, and the way to a broken promise."""

    states: int
    broken: Broken | None = None
    trace: tuple[str, ...] = ()


def explore(model: GroupModel) -> Explored:
    """Goes through all worlds that can come about, nearest first."""
    first = model.begin()
    came_from: dict[World, tuple[World, Label]] = {first: (first, ())}
    waiting = deque([first])

    def found(broken: Broken, world: World, label: Label) -> Explored:
        trace = [label]
        while world is not first:
            world, label = came_from[world]
            trace.append(label)
        lines = (" ".join(map(str, label)) for label in reversed(trace))
        return Explored(len(came_from), broken, tuple(lines))

    while waiting:
        world = waiting.popleft()
        label: Label = ()
        ended = True
        try:
            for label, after in model.steps(world):
                ended = ended and str(label[0]).startswith("!")
                known = len(came_from)
                came_from.setdefault(after, (world, label))
                if len(came_from) > known:
                    model.check(after)
                    waiting.append(after)
            if ended:
                label = ("the end",)
                model.check_end(world)
        except Broken as broken:
            return found(broken, world, label)
        assert len(came_from) < STATES_MAX, "too many worlds to go through"
    return Explored(len(came_from))


#: One group that fails, is parked and redriven, while its owner is taken for dead. To die is the
#: case in which it is not heard of again.
PARKED = GroupModel(((0, 0, 0),), Budget(takeovers=1, redrives=1))
#: A skip, and a purge, that the owner does not know of.
SKIPPED = GroupModel(((0, 0, 0),), Budget(redrives=1, skips=1))
PURGED = GroupModel(((0, 0, 0),), Budget(redrives=1, purges=1))
#: Replies of commits are lost, and messages fail for good at once.
REPEATED = GroupModel(
    ((0, 0, 0),), Budget(crashes=1, losses=1, redrives=1), outcomes=("ok", "again", "never")
)
SKIPPED_DEAD = GroupModel(((0, 0),), Budget(skips=1), outcomes=("ok", "again", "never"))
REDRIVEN = GroupModel(((0, 0, 0),), Budget(redrives=2))
#: An owner that was taken for dead goes on with what it had read, until it is refused.
STALLED = GroupModel(((0, 0, 0),), Budget(takeovers=1), zombies=True)
REWOUND = GroupModel(((0, 0),), Budget(rewinds=1, redrives=1))
MIXED = GroupModel(((0, 1, 0),), Budget(takeovers=1))
SHARDS = GroupModel(((0, 0), (1,)), Budget(takeovers=1))
#: The policy is changed under a group.
SKIPPING = GroupModel(((0, 0, 0),), Budget(crashes=1, changes=1, redrives=1), policy="skip")
PARKING = replace(SKIPPING, policy="park")
RESHARDED = GroupModel(((0, 0),), Budget(takeovers=1, reshards=1, redrives=1))
#: The first message is not to be delivered before its time.
DELAYED = GroupModel(((0, 0, 1),), Budget(takeovers=1), delayed=frozenset({(0, 0)}))
#: The last message is in the next storage topic, which is read when the first one is finished.
SWITCHED = GroupModel(((0, 1, 0),), Budget(takeovers=1), switched_at=2)
#: Without any attempt after the first.
IMPATIENT = GroupModel(((0, 0, 0),), Budget(takeovers=1, redrives=1), retries=0)
#: Where the log of retries is elsewhere: first the push, then the commit.
APART = GroupModel(((0, 0, 0),), Budget(takeovers=1, redrives=1), split=True)
APART_CRASHED = replace(APART, budget=Budget(crashes=1, redrives=1))
APART_REWOUND = GroupModel(((0, 0),), Budget(rewinds=1), split=True)

WORLDS = {
    "parked": PARKED,
    "skipped": SKIPPED,
    "purged": PURGED,
    "repeated": REPEATED,
    "stalled": STALLED,
    "rewound": REWOUND,
    "mixed": MIXED,
    "shards": SHARDS,
    "skipping": SKIPPING,
    "parking": PARKING,
    "resharded": RESHARDED,
    "delayed": DELAYED,
    "switched": SWITCHED,
    "impatient": IMPATIENT,
    "apart": APART,
    "apart_crashed": APART_CRASHED,
    "apart_rewound": APART_REWOUND,
}
#: The same with more in them; they take a minute each.
LARGE_WORLDS = {
    "mixed": GroupModel(((0, 0, 0, 1, 1, 1),), Budget(crashes=1)),
    "parked": GroupModel(((0, 0, 0),), Budget(crashes=1, takeovers=1, redrives=2)),
    "skipped": replace(SKIPPED, budget=Budget(takeovers=1, redrives=1, skips=2)),
    "rewound": replace(REWOUND, budget=Budget(crashes=1, takeovers=1, rewinds=1, redrives=1)),
    "apart": replace(APART, budget=Budget(crashes=1, takeovers=1, redrives=1)),
    "apart_rewound": replace(APART_REWOUND, budget=Budget(takeovers=1, rewinds=1)),
}

#: Rule → a world in which it is needed, and the promise that breaks without it.
NEEDED = {
    "begins_apart": (PARKED, "no loss"),
    "begins_below": (APART_CRASHED, "settled once"),
    "retry_before_dead": (PARKED, "order"),
    "stays_head": (PARKED, "order"),
    "passes_itself": (PARKED, "independence"),
    "rest_follows": (PARKED, "order"),
    "skip_forgets": (SKIPPING, "settled once"),
    "redrive_holds": (PARKED, "order"),
    "parks_in_place": (REDRIVEN, "order"),
    "one_at_a_time": (PARKED, "order"),
    "epochs": (PARKED, "order"),
    "refused_stops": (STALLED, "order"),
    "knows_repetitions": (REPEATED, "settled once"),
    "checks_head": (SKIPPED_DEAD, "settled once"),
    "rewind_fences": (REWOUND, "no loss"),
    "rewind_renews": (APART_REWOUND, "no loss"),
    "acknowledges_each": (MIXED, "no loss"),
    "finishes_storage": (SWITCHED, "order"),
    "reads_on": (MIXED, "independence"),
    "own_slot": (SHARDS, "order"),
    "freezes": (RESHARDED, "settled once"),
    "drops_orphans": (APART_CRASHED, "settled once"),
    "drop_settles": (APART, "progress"),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_promise_holds_in_every_order_of_steps(name: str) -> None:
    found = explore(WORLDS[name])
    assert found.broken is None, "\n".join((*found.trace, str(found.broken)))
    assert found.states > 300, "the world is too small to prove anything"


@pytest.mark.parametrize("rule", NEEDED)
def test_without_a_rule_a_promise_breaks(rule: str) -> None:
    world, promise = NEEDED[rule]
    found = explore(replace(world, rules=replace(Rules(), **{rule: False})))
    assert found.broken is not None, f"{rule} could be left out"
    assert found.broken.promise == promise, "\n".join((*found.trace, str(found.broken)))


def test_no_rule_is_left_untested() -> None:
    assert set(NEEDED) == set(Rules.__dataclass_fields__)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_WORLDS)
def test_every_promise_holds_in_larger_worlds(name: str) -> None:
    found = explore(LARGE_WORLDS[name])
    assert found.broken is None, "\n".join((*found.trace, str(found.broken)))
