"""The sections `[relay]` and `[deliverer]` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.setting_section import Seconds
from waystation.setting_section import Section as _Section

Port = Annotated[int, Meta(ge=0, le=65535)]
#: Beginnings of list names; a brace in one would give what belongs together two slots.
Prefix = Annotated[str, Meta(pattern=r"^[^{}\s]{1,100}$")]


class EventRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A list of events, and the topic that they are produced to."""

    #: Name of the list, such as `acapy-record-base`.
    list: Annotated[str, Meta(pattern=r"^[^{}\s]{1,512}$")]
    topic: str
    project: str = "default"


class DoorRule(
    msgspec.Struct, frozen=True, kw_only=False, array_like=True, forbid_unknown_fields=True
):
    """A door of the relay, written as `["http", "127.0.0.1", 8071]`."""

    kind: Literal["http", "ws"]
    host: str
    port: Port


class RelaySettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`waystation relay`: the door of agents."""

    #: How long a sender that wants its answer at once waits for it.
    answer_seconds: Annotated[float, Meta(gt=0, le=60)] = 15.0
    #: Largest envelope; a larger one is answered 413, or closes its WebSocket.
    body_bytes_max: Annotated[int, Meta(ge=1, le=64 * 1_048_576)] = 1_048_576
    #: Where it listens, each as `[kind, host, port]`; kinds are `http` and `ws`.
    doors: tuple[DoorRule, ...] = (
        DoorRule("http", "127.0.0.1", 8071),
        DoorRule("ws", "127.0.0.1", 8081),
    )
    #: A WebSocket that is silent for longer, with nothing under way, is closed.
    idle_seconds: Seconds = 15.0
    #: Whether agents with the redis-events plugin serve the pool, if the relay has to make it.
    mirror: bool = False
    #: The pool that envelopes wait in; it is made where it is missing.
    pool: str = "agents"
    project: str = "default"
    #: Key that the status door asks for in the header `access_token`; empty: no status door.
    status_api_key: str = ""
    #: Where the status door listens.
    status_host: str = "127.0.0.1"
    status_port: Port = 8091
    #: Agents find their messages in lists `<prefix>_inbound_<recipient key>`.
    topic_prefix: Prefix = "acapy"


class DelivererSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`waystation deliverer`: sends what agents put into their outbound list."""

    #: Messages that are sent at once.
    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 64
    #: Lists of events that are produced to topics, each a `[[deliverer.events]]` table.
    events: tuple[EventRule, ...] = ()
    #: A message whose endpoint is ill or busy for longer is a dead letter.
    patience_seconds: Seconds = 86_400.0
    #: Key that the status door asks for in the header `access_token`; empty: no status door.
    status_api_key: str = ""
    #: Where the status door listens.
    status_host: str = "127.0.0.1"
    status_port: Port = 8092
    #: An attempt that has no answer by then has failed.
    timeout_seconds: Seconds = 10.0
    #: The list is `<prefix>_outbound`, the retry set `<prefix>_outbound_retry`.
    topic_prefix: Prefix = "acapy"
