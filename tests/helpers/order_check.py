"""A check of delivery order, loss and duplicates, with the endpoint that records deliveries."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from waystation.logs.protocol import Logs
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.log_entry import AttemptDetail, Fact, unpack, unpack_attempt
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


_PAGE = 1000
#: Facts of requests that were made.
_ATTEMPTS = ("attempt", "parked", "dead")


@dataclass
class Records:
    """What the record log of one shard says."""

    shard: int
    #: By message: where in the log it was settled, and under which epoch.
    settled: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    #: By message: where it first let others of its group go before it, dead under `skip`.
    given_up: dict[str, int] = field(default_factory=dict)
    #: By message: what each of its attempts had seen of the log when it began.
    begun_after: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    #: Attempts that ended without a reply: the sender does not know what came of them.
    unknown: Counter[str] = field(default_factory=Counter)
    #: Messages that were to be tried again after a code that ends it at once.
    insisted: list[str] = field(default_factory=list)
    #: Deaths by such a code, with the first attempt.
    dead_at_once: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    #: Where messages are that are not settled: `r5`, `d2` → id; and places of the topic.
    _places: dict[str, str] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)

    def add(self, offset: int, fact: Fact) -> None:
        """The next fact of the log."""
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
        """Messages that are in retry or among dead letters, by this log."""
        return self._places.values()

    def lets_pass(self, message: str) -> int:
        """The offset from which on the next of its group may be attempted."""
        settled = self.settled[message][0][0] if self.settled.get(message) else None
        given_up = self.given_up.get(message)
        found = [each for each in (settled, given_up) if each is not None]
        return min(found) if found else 2**53

    def problems(self) -> Iterator[str]:
        """What does not hold by this log alone: settled once, in order, given up where asked."""
        yield from (f"{each} was never settled" for each in self.left)
        yield from (f"{each} was to be tried again after {UNFIT}" for each in self.insisted)
        for message, settled in self.settled.items():
            if len(settled) > 1:
                yield f"{message} was settled {len(settled)} times"
        numbered = {split(message): message for message in self.settled}
        for message, begun in self.begun_after.items():
            group, number = split(message)
            before = numbered.get((group, number - 1), "nobody")
            if number and min(begun) <= self.lets_pass(before):
                yield f"{message} was attempted before {before} was settled"


def _detail(fact: Fact) -> AttemptDetail | None:
    """The detail of a fact that has a message in it."""
    if fact.detail is None or fact.kind in ("purged", "skipped"):
        return None
    return unpack_attempt(fact.detail)


def _name(place: str) -> str:
    """A place without the tries, which members have behind it."""
    return place if place.startswith("m") else place.partition(".")[0]


async def records_of(logs: Logs, subscription: Subscription) -> list[Records]:
    """All that the record logs of a subscription have, by shard."""
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
    """What the endpoint itself has seen out of order.

    A group never goes back, and never goes on before the one before was taken. Under `skip`, with
    so many attempts, one that has failed so often lets others pass, and may come alone later.
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
                yield f"{id_of(request)} came, and {newest + 1} never did"
            elif number > newest >= 0:
                if attempts_max is not None and attempts[newest] >= attempts_max:
                    # A reply that came too late is none: it may have been taken and be dead.
                    passed.add(newest)
                elif newest not in taken:
                    yield f"{id_of(request)} came before {newest} was taken or dead"
            newest = max(newest, number)
            if request.status == 200 and request.answered:
                taken.add(number)
            attempts[number] += (attempts_max or 1) if request.status == UNFIT else 1


def loss_problems(produced: Collection[str], requests: Sequence[ReceivedRequest]) -> Iterator[str]:
    """What the endpoint never took, or was never produced."""
    taken = accepted(requests)
    yield from (f"{each} was never taken" for each in produced if not taken[each])
    yield from (f"{each} was never produced" for each in taken.keys() - set(produced))


def double_problems(
    requests: Sequence[ReceivedRequest], records: Records, cut_off: Collection[int]
) -> Iterator[str]:
    """Messages that were taken more than once without a reason.

    `cut_off` are the epochs that ended with the death of their owner. Each may have had one request
    for a message that it could not write down. So may a sender that gave up before the reply.
    """
    for message, times in accepted(requests).items():
        if times == 1 or message not in records.settled:
            continue
        ((_, epoch),) = records.settled[message]
        deaths = sum(each < epoch for each in cut_off)
        if times - 1 > deaths + records.unknown[message]:
            yield f"{message} was taken {times} times: {deaths} deaths, settled under {epoch}"
