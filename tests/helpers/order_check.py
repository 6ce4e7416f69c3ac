"""Checks of delivery order, loss and duplicates, with an endpoint that records deliveries."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from waystation.logs.protocol import Logs
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.log_entry import AttemptDetail, Fact, unpack, unpack_attempt
from waystation.testing.endpoint import Answer, FakeEndpoint, ReceivedRequest

#: Status code that is retried and does not count against the health of the endpoint.
CONFLICT = 409
#: Status code in `fatal_codes` of the subscriptions: the message fails permanently.
UNFIT = 400
#: Outcomes of requests, and their number among a thousand.
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
    """Endpoint that fails by a random plan, which its seed determines.

    `poison_share` of the messages fail until they are dead letters. `attempts_max` is the limit of
    attempts of the subscription.
    """

    attempts_max: int = 1
    poison_share: float = 0.0
    _times: Counter[tuple[str, str]] = field(default_factory=Counter)

    def next_answer(self) -> Answer:
        request = self.received[-1]
        # Store only what the checks read, because there are many requests.
        request.body = b""
        request.headers = {"waystation-id": request.headers["waystation-id"]}
        of = request.path, request.headers["waystation-id"]
        self._times[of] += 1
        return self._end(of, self._times[of])

    def _end(self, of: tuple[str, str], times: int) -> Answer:
        once = random.Random(f"{self.seed} {of}")
        if once.random() < self.poison_share:
            code, rounds = once.choice([UNFIT, CONFLICT]), once.choice([1, 2])
            if times <= rounds * (1 if code == UNFIT else self.attempts_max):
                return Answer(code)
        each = random.Random(f"{self.seed} {of} {times}")
        (answer,) = each.choices([*_ENDS], [*_ENDS.values()])
        return answer

    def log(self, path: str) -> dict[str, list[ReceivedRequest]]:
        """Return the requests of one subscription by group, in the order of arrival."""
        found: dict[str, list[ReceivedRequest]] = defaultdict(list)
        for request in self.received:
            if request.path == path:
                found[split(id_of(request))[0]].append(request)
        return found


def id_of(request: ReceivedRequest) -> str:
    """Return the message id of a request."""
    return request.headers["waystation-id"]


def split(message: str) -> tuple[str, int]:
    """Split a message id into group and number."""
    group, _, number = message.rpartition("-")
    return group, int(number)


def accepted(requests: Sequence[ReceivedRequest]) -> Counter[str]:
    """Count the successful requests of each message."""
    return Counter(id_of(each) for each in requests if each.status == 200 and each.answered)


_PAGE = 1000
#: Kinds of facts that record an attempt.
_ATTEMPTS = ("attempt", "parked", "dead")


@dataclass
class Records:
    """State of the messages of a shard, rebuilt from its record log."""

    shard: int
    #: By message: log offset and epoch of each settlement.
    settled: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    #: By message: log offset at which it became a dead letter under `skip`.
    given_up: dict[str, int] = field(default_factory=dict)
    #: By message: end of the log at the start of each attempt.
    begun_after: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    #: By message: attempts without a reply, whose outcome the sender does not know.
    unknown: Counter[str] = field(default_factory=Counter)
    #: Messages that were retried after a fatal code.
    insisted: list[str] = field(default_factory=list)
    #: Number of messages that failed permanently at the first attempt, by a fatal code.
    dead_at_once: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    #: Places of unsettled messages, such as `r5` and `d2` → id; and places of the topic.
    _places: dict[str, str] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)

    def add(self, offset: int, fact: Fact) -> None:
        """Apply the next fact of the log."""
        self.kinds[fact.kind] += 1
        if fact.kind in ("start", "redriven"):
            return
        detail = _detail(fact)
        was = _name(fact.was)
        message = detail.id if detail is not None else self._places[was]
        if was.startswith("m"):
            assert was not in self._read, f"{message} was acknowledged twice"
            self._read.add(was)
        else:
            assert self._places.pop(was) == message, fact
        if detail is not None and fact.kind in _ATTEMPTS:
            self.begun_after[message].append(detail.begun_after)
            self.unknown[message] += not detail.failure.isdigit() and bool(detail.failure)
            if detail.failure == str(UNFIT):
                self.dead_at_once += fact.kind != "attempt" and fact.attempt == 1
                self.insisted += [message] if fact.kind == "attempt" else []
        if fact.now == "-":
            self.settled[message].append((offset, fact.epoch))
        else:
            self._places[fact.now] = message
        if fact.kind == "dead":
            self.given_up.setdefault(message, offset)

    @property
    def left(self) -> Collection[str]:
        """Messages in retry or among dead letters."""
        return self._places.values()

    def lets_pass(self, message: str) -> int:
        """Return the offset from which on the next message of the group may be attempted."""
        settled = self.settled[message][0][0] if self.settled.get(message) else None
        given_up = self.given_up.get(message)
        found = [each for each in (settled, given_up) if each is not None]
        return min(found) if found else 2**53

    def problems(self) -> Iterator[str]:
        """Yield what this log alone contradicts.

        Each message is settled once and in order, and fails permanently after a fatal code.
        """
        yield from (f"{each} was never settled" for each in self.left)
        yield from (f"{each} was retried after {UNFIT}" for each in self.insisted)
        for message, settled in self.settled.items():
            if len(settled) > 1:
                yield f"{message} was settled {len(settled)} times"
        numbered = {split(message): message for message in self.settled}
        for message, begun in self.begun_after.items():
            group, number = split(message)
            before = numbered.get((group, number - 1), "no message")
            if number and min(begun) <= self.lets_pass(before):
                yield f"{message} was attempted before {before} was settled"


def _detail(fact: Fact) -> AttemptDetail | None:
    """Return the detail of a fact about a message."""
    if fact.detail is None or fact.kind in ("purged", "skipped"):
        return None
    return unpack_attempt(fact.detail)


def _name(place: str) -> str:
    """Return a place without the attempt counter that retries and dead letters carry."""
    return place if place.startswith("m") else place.partition(".")[0]


async def records_of(logs: Logs, subscription: Subscription) -> list[Records]:
    """Read the record logs of a subscription. Return one `Records` per shard."""
    found = []
    for shard in range(subscription.shards):
        records, offset = Records(shard), 0
        while page := await logs.read(subscription.record_log, shard, offset, limit=_PAGE):
            for entry in page.entries():
                for fact in unpack(entry.payload).facts:
                    records.add(entry.offset, fact)
            offset = page.next_offset
        found.append(records)
    return found


def order_problems(
    log: dict[str, list[ReceivedRequest]], *, attempts_max: int | None = None
) -> Iterator[str]:
    """Yield the requests that arrived out of order.

    A group never returns to an earlier message, and reaches the next one only after the endpoint
    accepted the one before. With `attempts_max`, the limit under `skip`, a message that failed as
    often lets later ones pass, and may arrive once more.
    """
    for requests in log.values():
        newest = -1
        taken, passed = set[int](), set[int]()
        attempts = Counter[int]()
        for request in requests:
            _, number = split(id_of(request))
            if number < newest and number not in passed:
                yield f"{id_of(request)} came after {newest}"
            elif number > newest + 1:
                yield f"{id_of(request)} came without {newest + 1}"
            elif number > newest >= 0:
                if attempts_max is not None and attempts[newest] >= attempts_max:
                    # The sender ignores a late reply, so an accepted message can be dead.
                    passed.add(newest)
                elif newest not in taken:
                    yield f"{id_of(request)} came before {newest} was taken or dead"
            newest = max(newest, number)
            if request.status == 200 and request.answered:
                taken.add(number)
            attempts[number] += (attempts_max or 1) if request.status == UNFIT else 1


def loss_problems(produced: Collection[str], requests: Sequence[ReceivedRequest]) -> Iterator[str]:
    """Yield messages that the endpoint never accepted or that were never produced."""
    taken = accepted(requests)
    yield from (f"{each} was never taken" for each in produced if not taken[each])
    yield from (f"{each} was never produced" for each in taken.keys() - set(produced))


def double_problems(
    requests: Sequence[ReceivedRequest], records: Records, cut_off: Collection[int]
) -> Iterator[str]:
    """Yield messages that the endpoint accepted more than once without a reason.

    `cut_off` are the epochs whose owner crashed. Each crash allows one duplicate, because the owner
    could not commit its last request. A request whose sender got no reply allows one, too.
    """
    for message, times in accepted(requests).items():
        if times == 1 or message not in records.settled:
            continue
        ((_, epoch),) = records.settled[message]
        crashes = sum(each < epoch for each in cut_off)
        if times - 1 > crashes + records.unknown[message]:
            yield f"{message} was taken {times} times: {crashes} crashes, settled under {epoch}"
