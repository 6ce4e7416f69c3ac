"""The commit of a shard: what came of messages, acknowledged, pushed, dropped and recorded in one.

A commit whose reply was lost is sent again as it is: what it did already is `known`, and the next
heads that it took are told again by the number of the call.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script
from waystation.subscriptions.held import Committed, Head, Settled, Settlement
from waystation.subscriptions.names import Place
from waystation.subscriptions.refusals import check
from waystation.subscriptions.states import GroupState
from waystation.subscriptions.terms import Terms

_COMMIT = script(__package__, "commit")

#: Items of one call; a loop in a script is never longer.
ITEMS_MAX = 100


#: What becomes of most.
_DELIVERED = Settled("done", GroupState.CLEAN, None)


class Commits:
    """Runs the commit script."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def commit(
        self, place: Place, terms: Terms, items: Sequence[Settlement], *, call: int
    ) -> Committed:
        """Settles messages, all or, with ShardLostError or ShardFrozenError, none.

        `call` is a number that the owner uses once; 0: no next heads are wanted.
        """
        assert len(items) <= ITEMS_MAX, "more items than one call may have"
        words: list[str | int | bytes] = [terms.argument, call]
        for each in items:
            words += (each.member, each.token, each.group, each.verdict)
            words += (each.wait_ms, each.record, each.detail)
        reply = check(await self._store.run(_COMMIT, [place.log], words), place)
        log_end, retry_bytes, dead_bytes = (int(each) for each in reply[:3])
        settled = [
            _settled(each.group, reply[i : i + 4])
            for each, i in zip(items, range(3, len(reply), 4), strict=True)
        ]
        return Committed(log_end, retry_bytes, dead_bytes, settled)


def _settled(group: str, words: list[Reply]) -> Settled:
    outcome, state, member, record = words
    if not member and outcome == b"done" and state == b"clean":
        return _DELIVERED
    following = Head(member.decode(), group, record) if member else None
    return Settled(outcome.decode(), GroupState(state.decode()), following)
