"""The scripts of a shard's owner, but for the commit; and those of who takes work from it.

Every script of an owner writes only under its epoch, and if the shard is not frozen: else it raises
ShardLostError or ShardFrozenError, and nothing was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script
from waystation.subscriptions.held import Due, Head, Offered, Opened
from waystation.subscriptions.log_entry import StartDetail, pack_detail
from waystation.subscriptions.names import Place
from waystation.subscriptions.rate import take_permits
from waystation.subscriptions.record import group_of
from waystation.subscriptions.refusals import check
from waystation.subscriptions.states import GroupState
from waystation.subscriptions.terms import Terms, anyone

_ESTABLISH = script(__package__, "establish")
_OPEN = script(__package__, "open_shard")
_DUE = script(__package__, "due")
_FOLLOW = script(__package__, "follow")
_PASS_OVER = script(__package__, "pass_over")
_GIVE_BACK = script(__package__, "give_back")
_OFFER = script(__package__, "offer")
_TAKE = script(__package__, "take")
_RENEW = script(__package__, "renew")

#: Positions, members or groups of one call; a loop in a script is never longer.
BATCH_MAX = 500
#: Records that one call moves into dead letters.
FOLLOW_MAX = 100

#: Of those who own nothing; what they may do is not decided by terms.
_ANYONE = anyone()


class ShardStore:
    """Runs the scripts of shards."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def take_permits(self, key: str, per_second: float, most: int) -> tuple[int, float]:
        """Take permits from the bucket of a rate (`rate.py`)."""
        return await take_permits(self._store, key, per_second, most)

    async def establish(
        self, place: Place, terms: Terms, start: Mapping[str, int], *, topic: str
    ) -> bool:
        """Opens a shard at these positions; those that are there stay. Whether it was new.

        Its record log begins with the topic: only so can its positions be told by themselves.
        """
        detail = pack_detail(StartDetail(topic))
        words = [word for pair in start.items() for word in pair]
        opened = False
        for i in range(0, max(1, len(words)), 2 * BATCH_MAX):
            some = (terms.argument, detail, *words[i : i + 2 * BATCH_MAX])
            reply = check(await self._store.run(_ESTABLISH, [place.log], some), place)
            opened = reply[0] == 1 or opened
        return opened

    async def open(self, place: Place, terms: Terms) -> Opened:
        """Begins an ownership: what the former owner had taken is due; where to go on from."""
        while True:
            arguments = (terms.argument, BATCH_MAX)
            reply = check(await self._store.run(_OPEN, [place.log], arguments), place)
            if reply[0] == 0:
                break
        low = {reply[i].decode(): int(reply[i + 1]) for i in range(6, len(reply), 2)}
        acks: dict[str, list[int]] = {}
        for at in low:
            found = await self._store.call("ZRANGE", place.key(f"acks:{at}"), 0, -1)
            acks[at] = [int(each) for each in found]
        _, now_ms, log_end, incarnation, retry_bytes, dead_bytes = (int(each) for each in reply[:6])
        return Opened(now_ms, log_end, incarnation, low, acks, retry_bytes, dead_bytes)

    async def unclean(self, place: Place, groups: Sequence[str]) -> set[str]:
        """Which of these groups are not clean."""
        found: set[str] = set()
        for i in range(0, len(groups), BATCH_MAX):
            some = groups[i : i + BATCH_MAX]
            entries = await self._store.call("HMGET", place.key("groups"), *some)
            found |= {
                group for group, entry in zip(some, entries, strict=True) if entry is not None
            }
        return found

    async def due(self, place: Place, terms: Terms, *, call: int, most: int, bytes_max: int) -> Due:
        """Takes heads that are due. Asked again with the same number: the same ones."""
        assert call > 0, "0 is nobody's call"
        arguments = (terms.argument, call, min(most, BATCH_MAX), bytes_max)
        reply = check(await self._store.run(_DUE, [place.log], arguments), place)
        now_ms, log_end, next_ms = (int(each) for each in reply[:3])
        return Due(now_ms, log_end, next_ms, _heads(reply, 3))

    async def follow(self, place: Place, terms: Terms, group: str) -> int:
        """Moves what is left of a group behind its first dead letter; how many are left."""
        arguments = (terms.argument, group, FOLLOW_MAX)
        reply = check(await self._store.run(_FOLLOW, [place.log], arguments), place)
        return int(reply[1])

    async def pass_over(
        self, place: Place, terms: Terms, at: str, from_: int, to: int, kind: str
    ) -> bool:
        """Acknowledges a range of a partition; false where low is not at its beginning."""
        arguments = (terms.argument, at, from_, to, kind)
        reply = check(await self._store.run(_PASS_OVER, [place.log], arguments), place)
        return bool(reply[0])

    async def give_back(self, place: Place, terms: Terms, members: Sequence[str]) -> int:
        """Gives back heads that were taken: due at once, not counted. How many were."""
        count = 0
        for i in range(0, len(members), BATCH_MAX):
            arguments = (terms.argument, *members[i : i + BATCH_MAX])
            reply = check(await self._store.run(_GIVE_BACK, [place.log], arguments), place)
            count += int(reply[0])
        return count

    async def offer(
        self, place: Place, terms: Terms, members: Sequence[str], *, most: int, seen: int
    ) -> Offered:
        """Offers messages to other workers; `seen` is how many endings were told since ever."""
        assert len(members) <= BATCH_MAX, "more members than one call may have"
        arguments: list[str | int] = [terms.argument, most, seen, *members]
        reply = check(await self._store.run(_OFFER, [place.log], arguments), place)
        ended = []
        for each in reply[2:]:
            member, state = each.decode().split(" ")
            ended.append((member, GroupState(state)))
        return Offered(int(reply[0]), int(reply[1]), ended)

    async def take(self, place: Place, *, most: int, lease_ms: int, token: str) -> list[Head]:
        """Takes messages for a worker that owns nothing; main positions have no record."""
        arguments = (_ANYONE.argument, min(most, BATCH_MAX), lease_ms, token)
        reply = check(await self._store.run(_TAKE, [place.log], arguments), place)
        return _heads(reply, 1)

    async def renew(self, place: Place, members: Mapping[str, str], *, lease_ms: int) -> list[str]:
        """Makes the leases of a worker longer, member by token; returns those that are lost."""
        assert len(members) <= BATCH_MAX, "more members than one call may have"
        words = [word for pair in members.items() for word in pair]
        arguments: list[str | int] = [_ANYONE.argument, lease_ms, *words]
        reply = await self._store.run(_RENEW, [place.log], arguments)
        return [each.decode() for each in check(reply, place)[1:]]


def _heads(reply: list[Reply], first: int) -> list[Head]:
    heads = []
    for i in range(first, len(reply), 2):
        member, record = reply[i].decode(), reply[i + 1]
        heads.append(Head(member, _group_of(record), record))
    return heads


def _group_of(record: bytes) -> str:
    """The group of a record; none where there is no record, or none that can be read.

    One of a newer release must not keep its owner from all others: who unpacks it sees what it is.
    """
    try:
        return group_of(record) if record else ""
    except ValueError:
        return ""
