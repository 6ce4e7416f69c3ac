"""Lanes of replies: where the events of a transaction wait until its receivers have them.

A receiver is a webhook, a channel or a topic of a project. Its lane lies in the cell, so the script
that changes a transaction puts the event there; so does the register of the cell's lanes, which
therefore need no gates. An item is the id of its transaction, with `.c` or `.t` behind it for
channel and topic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from waystation.delivery.layout import LaneKeys
from waystation.transactions import names
from waystation.transactions.wanted import Wanted

Kind = Literal["w", "c", "t"]
KindName = Literal["webhook", "channel", "topic"]
KINDS: tuple[Kind, ...] = ("w", "c", "t")
KIND_NAMES: dict[str, KindName] = {"w": "webhook", "c": "channel", "t": "topic"}
#: Transaction, what became of its reply, why not.
ReplyNote = tuple[str, Literal["delivered", "failed"], str]
_DIGEST_LENGTH = 16
_PORTS = {"http": 80, "https": 443}
_LANE = "webhooksZ:"


class Receiver(msgspec.Struct, frozen=True):
    """Where the items of a lane go."""

    kind: Kind
    project: str
    #: Name of the channel or topic; digest of the URL.
    name: str


def receiver_of(project: str, kind: Kind, where: str) -> str:
    """The name of a receiver: a URL without its query, a channel or a topic of a project.

    Tokens in a query do not make receivers; one host's paths are different ones.
    """
    if kind == "w":
        parts = urlsplit(where)
        port = parts.port or _PORTS.get(parts.scheme, 0)
        place = f"{parts.scheme}://{parts.hostname}:{port}{parts.path or '/'}"
        where = hashlib.sha256(place.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{kind}.{project}.{where}"


def parse_receiver(receiver: str) -> Receiver | None:
    """What `receiver_of` was given, less the URL; None for what is no receiver."""
    parts = receiver.split(".")
    if len(parts) != 3 or parts[0] not in KINDS:
        return None
    return Receiver(parts[0], parts[1], parts[2])


def reply_word(project: str, wanted: Wanted) -> str:
    """The field `reply`: letters of what is wanted, `-` for none, then the receivers.

    Empty when there is no receiver.
    """
    asked: tuple[tuple[Kind, str], ...]
    asked = (("w", wanted.webhook), ("c", wanted.channel), ("t", wanted.topic))
    receivers = [receiver_of(project, kind, where) for kind, where in asked if where]
    if not receivers:
        return ""
    marks = (("p", wanted.progress), ("s", wanted.status), ("k", wanted.poll_cancels))
    letters = "".join(letter for letter, is_wanted in marks if is_wanted)
    return " ".join([letters or "-", *receivers])


def receivers_in(word: str) -> list[str]:
    """The receivers that a field `reply` names."""
    return word.split(" ")[1:]


def item_of(transaction_id: str, kind: Kind) -> str:
    """What a transaction's event is called in the lane of a receiver."""
    return transaction_id if kind == "w" else f"{transaction_id}.{kind}"


def transaction_of(item_id: str) -> str:
    """The transaction that an item is about."""
    return item_id.partition(".")[0]


def lane_of(cell: int, receiver: str) -> str:
    """The lane of a receiver in a cell; it is the key of what is due."""
    return f"{names.tag(cell)}{_LANE}{receiver}"


def failed_list(cell: int, project: str) -> str:
    """What was given up, of all receivers of a project in a cell."""
    return f"{names.tag(cell)}webhooksFailedZ:{project}"


def item_hash(cell: int) -> str:
    """The events that wait in a cell, and those that were given up."""
    return f"{names.tag(cell)}webhookH"


def cell_of_lane(lane: str) -> int:
    """The cell that a lane is in."""
    return int(lane[: lane.index("}")].rpartition(".")[2])


def receiver_of_lane(lane: str) -> str:
    """The receiver that a lane leads to."""
    return lane.partition(_LANE)[2]


class ReplyLayout:
    """Lanes of all cells, each found by the register of its own."""

    gated = False
    shares_failed = True
    records_max = 10_000

    def __init__(self, cells: int) -> None:
        self.registers: Sequence[str] = tuple(map(_register, range(cells)))

    def keys(self, lane: str) -> LaneKeys:
        """Its own are what is due and what is untold."""
        cell, receiver = cell_of_lane(lane), receiver_of_lane(lane)
        tag = names.tag(cell)
        return LaneKeys(
            due=lane,
            items=item_hash(cell),
            failed=failed_list(cell, receiver.split(".")[1]),
            untold=f"{tag}webhooksUntoldZ:{receiver}",
            gate=f"{tag}webhookCountH",
            attempts=f"{tag}webhookAttempts",
            inbox="",
        )

    def register_of(self, lane: str) -> str:
        """That of its cell."""
        return _register(cell_of_lane(lane))


def _register(cell: int) -> str:
    return f"{names.tag(cell)}webhookLanesZ"
