"""Looks into a shard: what it has, what waits in it and why. Nothing is taken or changed.

Each look is one moment of one shard. Lists are told by pages, and what changes meanwhile makes no
page skip what stays.
"""

from __future__ import annotations

import re

from waystation.errors import InvalidInputError
from waystation.messages.envelope import unpack as unpack_envelope
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script
from waystation.subscriptions.group_entry import GroupEntry, parse_entry
from waystation.subscriptions.looks import (
    DeadLetter,
    DeadPage,
    DeadQuery,
    Found,
    GroupLook,
    GroupPage,
    GroupRow,
    OperationLook,
    PositionLook,
    Queue,
    ShardLook,
    SingleLook,
)
from waystation.subscriptions.names import Place
from waystation.subscriptions.operating import WORDS
from waystation.subscriptions.positions import Position
from waystation.subscriptions.record import RetryRecord, shown
from waystation.subscriptions.refusals import check
from waystation.subscriptions.shard_pages import PAGE_MAX, ShardPages
from waystation.subscriptions.states import GroupState, MessageState
from waystation.subscriptions.terms import anyone

_LOOK = script(__package__, "look")
_LOOK_GROUP = script(__package__, "look_group")

#: Calls of one page that filters: so it ends, and says where to go on.
_CALLS_MAX = 10
_TERMS = anyone().argument
#: As often as a message can be attempted.
_TRIES_MAX = 101
#: Where a page goes on: behind a time and number of `failed`, behind a number of a group's dead
#: letters, or by a cursor of the store.
_CURSOR = re.compile(r"([cfs])((?<=f)\d{1,16}\.\d{1,16}|(?<=[cs])\d{1,20}|(?<=f))", re.ASCII)


class Looking:
    """Looks into shards; ShardLostError for one that is not there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pages = ShardPages(store)

    async def shard(self, place: Place) -> ShardLook:
        """A shard as it is."""
        reply = check(await self._store.run(_LOOK, [place.log], (_TERMS,)), place)
        lease, head, low = (_pairs(each) for each in reply[2:5])
        groups, due, taken, failed, redriven = (int(each) for each in reply[5])

        def counter(name: str) -> int:
            return int(head.get(name, b"0"))

        return ShardLook(
            now_ms=int(reply[0]),
            owner=lease.get("owner", b"").decode(),
            until_ms=int(lease.get("until_ms", b"0")),
            epoch=int(lease.get("epoch", b"0")),
            incarnation=counter("incarnation"),
            low={at: int(offset) for at, offset in low.items()},
            frozen=head.get("frozen", b"").decode(),
            retry_count=counter("retry_count"),
            retry_bytes=counter("retry_bytes"),
            dead_count=counter("dead_count"),
            dead_bytes=counter("dead_bytes"),
            groups=groups,
            parked=failed - (counter("alone") - redriven),
            alone=counter("alone"),
            due=due,
            taken=taken,
            dropped=counter("dropped"),
            next_due_ms=int(reply[6][0]),
            oldest_failed_ms=int(reply[6][1]),
            log_end=int(reply[1]),
        )

    async def group(self, place: Place, group: str) -> GroupLook:
        """A group as it is."""
        reply = check(await self._store.run(_LOOK_GROUP, [place.log], (_TERMS, group)), place)
        if not reply[0]:
            return GroupLook(state=GroupState.CLEAN)
        entry = parse_entry(reply[0])
        return GroupLook(
            state=entry.state,
            retry=entry.retry,
            dead=entry.dead,
            head_name=entry.head_name,
            tries=entry.tries,
            due_ms=int(reply[1]),
            taken=bool(reply[2]),
            failed_ms=int(reply[3]),
            operation=entry.operation,
            head=shown(reply[4], group) if reply[4] else None,
        )

    async def groups(
        self, place: Place, *, state: GroupState | None = None, cursor: str = "", limit: int = 100
    ) -> GroupPage:
        """Some of the groups that are not clean; of one state if asked. Parked ones by their age.

        Fewer than the limit, even none, does not mean that it is the end.
        """
        limit = max(1, min(limit, PAGE_MAX))
        if state is GroupState.PARKED:
            _, at = _parse_cursor(cursor, "f")
            page, at = await self._pages.failed(place, 0, 0, at, limit)
            rows = [_row(group, entry) for group, _, entry in page if entry is not None]
            following = f"f{at}" if at else ""
        else:
            _, at = _parse_cursor(cursor, "s")
            args = ("HSCAN", place.key("groups"), at or "0", "COUNT", limit)
            found, pairs = await self._store.call(*args)
            rows = [
                _row(pairs[i].decode(), parse_entry(pairs[i + 1])) for i in range(0, len(pairs), 2)
            ]
            following = "" if found == b"0" else f"s{found.decode()}"
        if state is not None:
            rows = [row for row in rows if row.state is state]
        return GroupPage(rows, following)

    async def message(
        self, place: Place, storage: int, partition: int, offset: int
    ) -> PositionLook:
        """Where a message of the topic is, by its position; `find` tells more of some."""
        position = Position(0, storage, partition, offset)
        # In this order: what is acknowledged meanwhile goes from `acks` below low, never back.
        acked = await self._store.call("ZSCORE", place.key(f"acks:{position.at}"), offset)
        taken = await self._store.call("ZSCORE", place.key("taken"), position.member)
        offered = await self._store.call("LPOS", place.key("ready"), position.member)
        low = int(await self._store.call("HGET", place.key("pos"), position.at) or 0)
        has_it = taken is not None or offered is not None
        return PositionLook(acked is not None or offset < low, has_it, low)

    async def single(self, place: Place, queue: Queue, number: int) -> SingleLook:
        """One that has no group in which it waits, in retry or redriven alone."""
        members = [f"{queue[0]}{number}.{tries}" for tries in range(_TRIES_MAX + 1)]
        taken = await self._store.call("ZMSCORE", place.key("taken"), *members)
        due = await self._store.call("ZMSCORE", place.key("due"), *members)
        operation = await self._store.call("HGET", place.key("alone"), number)
        here = [i for i in range(len(members)) if taken[i] is not None or due[i] is not None]
        tries = here[0] if here else 0
        return SingleLook(
            tries=tries,
            due_ms=int(float(due[tries] or 0)),
            taken=due[tries] is None and taken[tries] is not None,
            operation=operation.decode() if operation and queue == "dead" else "",
        )

    # -- Dead letters ------------------------------------------------------------------------

    async def dead_letters(self, place: Place, query: DeadQuery) -> DeadPage:
        """Dead letters, by pages; of a group all that it has, else the heads of groups alone."""
        limit = max(1, min(query.limit, PAGE_MAX))
        kind, at = _parse_cursor(query.cursor, "cf")
        kind = kind or ("c" if query.group else "f")
        letters: list[DeadLetter] = []
        for _ in range(_CALLS_MAX):
            if kind == "c":
                some, more = await self._pages.chain(
                    place, query.group, int(at or 0), limit - len(letters)
                )
                letters += (each for each in some if _fits(each, query))
                # Behind those of the group itself come those of it that stand alone.
                kind, at = ("c", str(some[-1].number)) if more and some else ("f", "")
            else:
                some, at = await self._failed(place, query, at, limit - len(letters))
                letters += some
                kind = "f" if at else ""
            if not kind or len(letters) >= limit:
                break
        return DeadPage(letters, kind + at)

    async def _failed(
        self, place: Place, query: DeadQuery, cursor: str, most: int
    ) -> tuple[list[DeadLetter], str]:
        times = (query.failed_after_ms, query.failed_before_ms)
        # Where few of many are asked for, look at many.
        looked_at = PAGE_MAX if query.group or query.cause else most
        page, following = await self._pages.failed(place, *times, cursor, looked_at)
        letters = [
            letter
            for group, letter, _ in page
            if _fits(letter, query) and not (query.group and group)
        ]
        if len(letters) > most:
            letters = letters[:most]
            following = f"{letters[-1].failed_ms}.{letters[-1].number}"
        return letters, following

    async def find(self, place: Place, message: str, *, group: str = "") -> Found | None:
        """A message in retry or among dead letters, by its id.

        Of a group its own messages are looked at, then those of it that stand alone; without a
        group everything is, which takes its time where there is much.
        """
        queues: tuple[Queue, ...] = ("dead", "retry")
        if group:
            for queue in queues:
                ahead = 0
                async for number, record, entry in self._pages.walk(place, group, queue):
                    if _id_of(record, place) == message:
                        return _found(queue, number, ahead, record, entry)
                    ahead += 1
            if (await self.shard(place)).alone == 0:
                return None
        for queue in queues[:1] if group else queues:
            async for number, record in self._pages.scan(place, queue):
                if (group and record.group != group) or _id_of(record, place) != message:
                    continue
                if record.group and not group:
                    return await self.find(place, message, group=record.group)
                state = MessageState.ALONE if queue == "dead" else MessageState.RETRYING
                return Found(queue=queue, number=number, state=state, ahead=0, record=record)
        return None

    # -- Operations --------------------------------------------------------------------------

    async def operations(self, place: Place) -> dict[str, OperationLook]:
        """How far all operations are that the shard knows, by their ids."""
        fields = _pairs(await self._store.call("HGETALL", place.key("ops")))
        found: dict[str, dict[str, bytes]] = {}
        for field, value in fields.items():
            operation, _, word = field.partition(":")
            found.setdefault(operation, {})[word] = value
        return {operation: _operation(words) for operation, words in found.items()}


def _pairs(reply: Reply) -> dict[str, bytes]:
    return {reply[i].decode(): reply[i + 1] for i in range(0, len(reply), 2)}


def _parse_cursor(cursor: str, kinds: str) -> tuple[str, str]:
    """Kind and place of a cursor; of none both are empty."""
    found = _CURSOR.fullmatch(cursor)
    if not cursor:
        return "", ""
    if found is None or found[1] not in kinds:
        raise InvalidInputError("The cursor is not one that we gave out.", field="cursor")
    return found[1], found[2] or ""


def _row(group: str, entry: GroupEntry) -> GroupRow:
    return GroupRow(
        group=group,
        state=entry.state,
        retry=entry.retry,
        dead=entry.dead,
        tries=entry.tries,
        operation=entry.operation,
    )


def _fits(letter: DeadLetter, query: DeadQuery) -> bool:
    record = letter.record
    if query.group and record.group != query.group:
        return False
    if letter.failed_ms < query.failed_after_ms:
        return False
    if query.failed_before_ms and letter.failed_ms >= query.failed_before_ms:
        return False
    cause = query.cause.lower()
    return not cause or cause == record.failure.lower() or cause in record.cause.lower()


def _id_of(record: RetryRecord, place: Place) -> str:
    try:
        return unpack_envelope(record.envelope, project=place.project).id
    except ValueError:
        return ""  # What cannot be read has no id that anybody could ask for.


def _found(queue: Queue, number: int, ahead: int, record: RetryRecord, entry: GroupEntry) -> Found:
    state = MessageState.BEHIND
    if queue == "dead" and number == entry.dead_head:
        state = MessageState.PARKED
    elif queue == "retry" and number == entry.retry_head and not entry.dead:
        state = MessageState.RETRYING
    return Found(queue=queue, number=number, state=state, ahead=ahead, record=record)


def _operation(words: dict[str, bytes]) -> OperationLook:
    cursor = words.get("cursor", b"").decode()
    counts = {word: int(words.get(word, b"0")) for word in WORDS[1:]}
    known = {"", *WORDS}
    return OperationLook(
        asked=words.get("", b""),
        cursor="" if cursor == "end" else cursor,
        ended=cursor == "end",
        groups=counts["groups"],
        marked=counts["marked"],
        settled=counts["settled"],
        parked_again=counts["parked_again"],
        open=counts["open"],
        notes={word: value.decode() for word, value in words.items() if word not in known},
    )
