"""The data set that a process works with, checked on every new connection to a server.

A store that lost its data (its append-only directory was deleted, its volume came back empty) looks
like a new one. The format key therefore has the id of the data set, and each new connection asks
for it before a call of the application is sent. Another id, or none, refuses all calls with
`StoreDataLostError` until the data is back or an operator accepts the loss: then the new data set
names the ids that it replaces.

On a cluster each node can lose its part by itself. There, `MARKERS` small keys, spread evenly over
the slots, have the id too, and a connection to a node asks for markers of that node.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waystation.errors import StoreDataLostError, StoreReplyError
from waystation.store import keys
from waystation.store.address import Address
from waystation.store.slots import SLOTS, slot_of

#: Keys of a cluster that have the id of the data set; a primary with fewer slots than one in so
#: many may have none of them.
MARKERS = 64
#: Markers that a new connection asks for: more than one, because a slot may be on the move.
_ASKED = 3
#: Replies of a cluster node that say that it is not the one to ask.
_ELSEWHERE = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
#: Ids of earlier data sets that a data set names; the oldest are forgotten.
REPLACED_MAX = 32

HINT = (
    "Bring the store's data back, or accept the loss with `waystation store accept-loss`"
    " (docs/operating/store-loss.md)."
)


@dataclass(frozen=True)
class Stamp:
    """The id that a store has, and the ids of the lost data sets that it replaces."""

    dataset: str
    replaces: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.dataset, *self.replaces))


def parse_stamp(words: Sequence[bytes | None]) -> Stamp:
    """Return the stamp that replies of a store tell; its id is empty where they tell nothing."""
    dataset, *replaces = b" ".join(word for word in words if word).decode().split() or [""]
    return Stamp(dataset, tuple(replaces))


@functools.cache
def marker_keys() -> tuple[str, ...]:
    """Return the keys of the markers, one for each of `MARKERS` equal ranges of slots."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < MARKERS:
        key = keys.data_set_marker(number)
        found.setdefault(slot_of(key) * MARKERS // SLOTS, key)
        number += 1
    return tuple(found[place] for place in range(MARKERS))


class DataSet:
    """The data set that the clients of one store must find there."""

    def __init__(self, address: Address) -> None:
        self._topology = address.cluster
        #: The id; empty until the store was opened, and then nothing is checked.
        self.known = ""
        #: Whether this process goes on by itself with a data set that replaces its own. One that
        #: keeps more than the id has to be opened anew instead, which `replaced` tells it.
        self.adopts = True
        self.replaced = asyncio.Event()
        #: Whether the settings accept every loss beforehand.
        self.ephemeral = False
        #: Server -> the error of its last check. A server that passes is not in here.
        self._lost: dict[Address, StoreDataLostError] = {}

    @property
    def lost(self) -> StoreDataLostError | None:
        """The reason why calls are refused; None while all servers have the data set."""
        return next(iter(self._lost.values()), None)

    def questions(self, server: Address) -> list[tuple[str, ...]]:
        """Return the commands that a new connection to a server asks."""
        if not self.known:
            return []
        if self._topology is None:
            return [("HMGET", keys.FORMAT, "dataset", "replaces")]
        mine = (key for key in marker_keys() if self._topology.node_of(slot_of(key)) == server)
        return [("GET", key) for key, _ in zip(mine, range(_ASKED), strict=False)]

    def check(self, server: Address, answers: Sequence[Any]) -> None:
        """Judge the answers of a server; raise StoreDataLostError if it lost the data set.

        Raise StoreReplyError if a cluster node answered none of the questions: a node that has just
        restarted says CLUSTERDOWN for a moment, and must not get calls unchecked after that.
        """
        elsewhere = [
            each
            for each in answers
            if isinstance(each, StoreReplyError) and each.reply.startswith(_ELSEWHERE)
        ]
        if elsewhere and len(elsewhere) == len(answers):
            raise elsewhere[0]
        for answer in answers:
            if answer in elsewhere:
                continue
            if isinstance(answer, BaseException):
                raise answer
            try:
                self.judge(parse_stamp(answer if isinstance(answer, list) else [answer]))
            except StoreDataLostError as error:
                self._lost[server] = error
                raise
        self._lost.pop(server, None)

    def judge(self, found: Stamp) -> None:
        """Compare a stamp that a server has with the known id; StoreDataLostError if it differs."""
        if not self.known or found.dataset == self.known:
            return
        accepted = self.known in found.replaces
        if accepted and self.adopts:
            self.known = found.dataset
            return
        if accepted or self.ephemeral:
            self.replaced.set()
        raise lost_error(self.known, found, accepted=accepted)

    def forget(self, server: Address) -> None:
        """Drop the verdict on a server that is no longer used."""
        self._lost.pop(server, None)


def lost_error(known: str, found: Stamp, *, accepted: bool = False) -> StoreDataLostError:
    """Return the error of a store that has another data set than the known one, or none."""
    if accepted:
        return StoreDataLostError(
            f"The loss of data set {known} was accepted; this process opens {found.dataset}."
        )
    told = f"has data set {found.dataset} instead" if found.dataset else "has no data set"
    return StoreDataLostError(f"The store lost data set {known}: it {told}.", hint=HINT)
