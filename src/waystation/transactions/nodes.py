"""Nodes: who is there, which steps they serve, and what their node groups are told.

A node writes its record every few seconds; without that it is gone after a minute. Records are keys
of their own, named as in DATP; a sorted set lists them, so that nobody has to search.

A node group is told something by an event in its admin queue. The script that takes it off the
queue applies it to the node group's settings, so between the two there is no death; every node
follows the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from waystation.errors import InvalidInputError, StoreError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource, require_name
from waystation.runtime.service import Service
from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.pipeline import Pipeline
from waystation.transactions.steps import StepBook

_ENLIST = script(__package__, "enlist")
_HEED = script(__package__, "heed")
_REGISTER = script(__package__, "register")

BEAT_SECONDS = 5.0
#: A node that was not heard for this long is gone.
GONE_MS = 60_000
_PREFIX = "datp:node-registration:RECORD:"
#: Settings of a node group: the least and the most that each can be.
SETTINGS: dict[str, tuple[int, int]] = {
    "archive_batch": (0, 10_000),
    "archive_pause_idle_ms": (10, 3_600_000),
    "archive_pause_ms": (0, 3_600_000),
    "lease_ms": (1_000, 3_600_000),
    "paused": (0, 1),
    "prefetch": (0, 10_000),
    "webhook_pause_busy_ms": (0, 60_000),
    "webhook_pause_idle_ms": (10, 60_000),
    "webhook_pause_ms": (0, 60_000),
    "webhook_workers": (0, 10_000),
    "workers": (1, 10_000),
}


class StepType(msgspec.Struct, frozen=True, rename="camel"):
    """A step that a node serves."""

    name: str
    description: str = ""
    default_definition: dict[str, Any] = {}


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a node tells of itself; the names are those of DATP."""

    node_group: str
    #: `nodeId-` and 40 hex digits.
    node_id: str
    app_version: str = "-"
    datp_version: str = "-"
    build_time: str = "-"
    step_types: tuple[StepType, ...] = ()
    #: Whether it takes states to the archive.
    archives: bool = False
    #: Webhooks that it sends at a time.
    webhook_workers: int = 0

    @property
    def key(self) -> str:
        """Where the record is."""
        return f"{_PREFIX}{self.node_group}:{self.node_id}"

    @property
    def serves(self) -> frozenset[str]:
        """The types of its steps."""
        return frozenset(each.name for each in self.step_types)


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a node group was told; None: nothing, so each node does as it was started."""

    revision: int = 0
    archive_batch: int | None = None
    archive_pause_idle_ms: int | None = None
    archive_pause_ms: int | None = None
    lease_ms: int | None = None
    paused: bool = False
    prefetch: int | None = None
    webhook_pause_busy_ms: int | None = None
    webhook_pause_idle_ms: int | None = None
    webhook_pause_ms: int | None = None
    webhook_workers: int | None = None
    workers: int | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(NodeRecord).decode


def new_node_id(identity: IdSource) -> str:
    """An id for a node."""
    return f"nodeId-{identity.token(20)}"


def node_record(group: str, node_id: str, book: StepBook, *, version: str = "-") -> NodeRecord:
    """The record of a node that serves these steps."""
    require_name(group, field="group")
    steps = tuple(
        StepType(each.type, each.description, {"description": each.description})
        for each in book.steps
    )
    return NodeRecord(node_group=group, node_id=node_id, datp_version=version, step_types=steps)


class Nodes(Service):
    """The nodes of an installation, and the registration of this one.

    The first `register` starts the service.
    """

    #: A beat may be cancelled anywhere.
    grace_s = 0.0

    def __init__(self, store: Store, *, clock: Clock) -> None:
        super().__init__("nodes", clock=clock)
        self._store = store
        #: What else this node does, as told with its next record.
        self.archives: Callable[[], bool] = lambda: False
        self.webhook_workers: Callable[[], int] = lambda: 0
        self._record: NodeRecord | None = None
        self._started = False

    # -- This node ---------------------------------------------------------------------------

    async def register(self, record: NodeRecord) -> None:
        """Write a record now and every five seconds; it replaces an earlier record."""
        self._record = record
        await self._beat(record)
        if not self._started:
            self._started = True
            await self.start()

    async def renew(self) -> None:
        """Write the record of this node now, because its work has changed."""
        if self._record is not None:
            await self._beat(self._record)

    async def run(self) -> None:
        """Write the record until the service stops. A jump of test time may have expired it."""
        await self.repeat(self.renew, every_s=BEAT_SECONDS)

    async def on_stop(self) -> None:
        """Delete the record, or else other nodes would count on this one for a minute."""
        record, self._record = self._record, None
        if record is not None:
            await self._store.call("DEL", record.key, repeatable=True)
            await self._store.call("ZREM", names.NODES, record.key, repeatable=True)

    async def _beat(self, record: NodeRecord) -> None:
        told = msgspec.structs.replace(
            record, archives=self.archives(), webhook_workers=self.webhook_workers()
        )
        # In this order: what is listed can be read.
        await self._store.run(_REGISTER, [record.key], [_encode(told), GONE_MS])
        await self._store.run(_ENLIST, [names.NODES], [record.key, GONE_MS])

    # -- All nodes ---------------------------------------------------------------------------

    async def all(self) -> list[NodeRecord]:
        """The nodes that are alive, by node group and id."""
        keys = await self._store.call("ZRANGE", names.NODES, 0, -1, repeatable=True)
        # One by one, in one write: they lie in many slots.
        found = await self._store.pipeline([("GET", key) for key in keys], repeatable=True)
        records = []
        for key, body in zip(keys, found, strict=True):
            if isinstance(body, StoreError):
                raise body
            if body is None:
                continue
            try:
                records.append(_decode(body))
            except msgspec.MsgspecError as error:
                self._log.warning("node record rejected", key=key, reason=str(error))
        return sorted(records, key=lambda each: (each.node_group, each.node_id))

    async def serving(self, step_type: str, *, group: str | None = None) -> list[NodeRecord]:
        """The nodes that serve a step; of one node group, or of all."""
        return [
            each
            for each in await self.all()
            if step_type in each.serves and group in (None, each.node_group)
        ]

    async def unserved(self, pipelines: Iterable[Pipeline]) -> list[str]:
        """What no living node of its node group serves, by name: one sentence for each step."""
        served: dict[str, set[str]] = {}
        for node in await self.all():
            served.setdefault(node.node_group, set()).update(node.serves)
        return [text for each in pipelines for text in each.unserved(served.get(each.group, ()))]

    # -- Node groups -------------------------------------------------------------------------

    async def tell(self, group: str, setting: str, value: int) -> None:
        """Sets something for all nodes of a node group, as soon as one of them looks."""
        require_name(group, field="group")
        if setting not in SETTINGS:
            raise InvalidInputError(
                f"{setting[:80]!r} is not a setting of a node group.",
                field="setting",
                hint=f"There are {', '.join(SETTINGS)}.",
            )
        least, most = SETTINGS[setting]
        if not isinstance(value, int) or not least <= value <= most:
            raise InvalidInputError(f"{setting} can be {least} to {most}.", field=setting)
        await self._store.call("RPUSH", names.queue_admin(group), f"set {setting} {int(value)}")
        await self._store.call("PUBLISH", names.work_topic(0, group), "admin", repeatable=True)

    async def settings(self, group: str) -> GroupSettings:
        """What a node group was told, and has taken in."""
        require_name(group, field="group")
        pairs = await self._store.call("HGETALL", names.node_group(group), repeatable=True)
        found = {pairs[i].decode(): pairs[i + 1].decode() for i in range(0, len(pairs), 2)}
        return msgspec.convert(found, GroupSettings, strict=False)

    async def heed(self, group: str) -> int:
        """Takes in what a node group was told, up to ten, for a process that claims nothing."""
        require_name(group, field="group")
        return int(await self._store.run(_HEED, [names.log(0)], [group]))
