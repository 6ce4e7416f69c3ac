"""An endpoint that fails by a seeded plan, and keeps a log of its own of all that has come.

One message in five fails, in every way that receivers fail: codes that ask for another attempt,
resets, silence until the sender gives up, slow replies. A few messages are poison: they fail until
they are dead, once or twice, and are taken only when they are redriven. Half of these die by a code
that is tried again in vain, half by one that ends it at once. What happens to a message depends on
the seed, its id, and how often it has come; not on who asks, or when.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from waystation.testing.endpoint import Answer, FakeEndpoint, ReceivedRequest

#: A code that is tried again here, and says nothing about the health of the endpoint.
CONFLICT = 409
#: A code that ends it at once here, as `fatal_codes` of the subscription say.
UNFIT = 400
#: How requests end, and how many of a thousand do so.
_ENDS: dict[Answer, int] = {
    Answer(200): 776,
    Answer(200, delay_seconds=0.03): 24,
    Answer(CONFLICT): 135,
    Answer(500): 45,
    Answer(503): 8,
    Answer(429): 2,
    Answer(reset=True): 8,
    Answer(hang=True): 2,
}


@dataclass
class FlakyEndpoint(FakeEndpoint):
    """Needs a seed, how often a message is attempted before it is dead, and how many die."""

    attempts_max: int = 1
    poison_share: float = 0.0
    _times: Counter[tuple[str, str]] = field(default_factory=Counter)

    def next_answer(self) -> Answer:
        request = self.received[-1]
        # There will be many: only what is looked at afterwards is kept.
        request.body = b""
        request.headers = {"waystation-id": request.headers["waystation-id"]}
        of = request.path, request.headers["waystation-id"]
        self._times[of] += 1
        return self._end(of, self._times[of])

    def _end(self, of: tuple[str, str], times: int) -> Answer:
        once = random.Random(f"{self.seed} {of}")
        if once.random() < self.poison_share:
            code, deaths = once.choice([UNFIT, CONFLICT]), once.choice([1, 2])
            if times <= deaths * (1 if code == UNFIT else self.attempts_max):
                return Answer(code)
        each = random.Random(f"{self.seed} {of} {times}")
        (answer,) = each.choices([*_ENDS], [*_ENDS.values()])
        return answer

    def log(self, path: str) -> dict[str, list[ReceivedRequest]]:
        """What has come for one subscription, group by group, in its order."""
        found: dict[str, list[ReceivedRequest]] = defaultdict(list)
        for request in self.received:
            if request.path == path:
                found[split(id_of(request))[0]].append(request)
        return found


def id_of(request: ReceivedRequest) -> str:
    """The id of its message."""
    return request.headers["waystation-id"]


def split(message: str) -> tuple[str, int]:
    """Group and number of a message."""
    group, _, number = message.rpartition("-")
    return group, int(number)


def accepted(requests: Sequence[ReceivedRequest]) -> Counter[str]:
    """How often each message was taken, as its receiver sees it."""
    return Counter(id_of(each) for each in requests if each.status == 200 and each.answered)
