"""The sections `[relay]` and `[deliverer]` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.setting_section import Seconds
from waystation.setting_section import Section as _Section

Port = Annotated[int, Meta(ge=0, le=65535)]
#: Beginning of list names. It has no braces, because they would change the slot of a list.
Prefix = Annotated[str, Meta(pattern=r"^[^{}\s]{1,100}$")]
_LETTERS = r"[^{}\x00-\x1f\x7f]"
#: Name of a list, or its beginning. Braces must form one hash tag. Empty: the default.
Topic = Annotated[
    str, Meta(pattern=rf"^{_LETTERS}*(\{{{_LETTERS}+\}}{_LETTERS}*)?$", max_length=400)
]


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

    #: How long the relay waits for a direct response.
    answer_seconds: Annotated[float, Meta(gt=0, le=60)] = 15.0
    #: Largest envelope; a larger one is answered 413, or closes its WebSocket.
    body_bytes_max: Annotated[int, Meta(ge=1, le=64 * 1_048_576)] = 1_048_576
    #: Where it listens, each as `[kind, host, port]`; kinds are `http` and `ws`.
    doors: tuple[DoorRule, ...] = (
        DoorRule("http", "127.0.0.1", 8071),
        DoorRule("ws", "127.0.0.1", 8081),
    )
    #: List of direct responses: the plugin's `acapy_direct_resp_topic`. Empty: the relay reads
    #: `<topic_prefix>_inbound_direct_resp` and `<topic_prefix>_inbound_direct_response`.
    direct_response_topic: Topic = ""
    #: A WebSocket that is silent for longer, with nothing under way, is closed.
    idle_seconds: Seconds = 15.0
    #: Beginning of the lists of agents, `<inbound_topic>_<recipient key>`: the plugin's
    #: `acapy_inbound_topic`. Empty: `<topic_prefix>_inbound`.
    inbound_topic: Topic = ""
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
    #: Beginning of all list names that are not set.
    topic_prefix: Prefix = "acapy"

    @property
    def inbound(self) -> str:
        """Beginning of the names of the agents' lists."""
        return self.inbound_topic or f"{self.topic_prefix}_inbound"

    @property
    def direct_responses(self) -> tuple[str, ...]:
        """Names of the lists that agents write direct responses to."""
        if self.direct_response_topic:
            return (self.direct_response_topic,)
        # The plugin's agents and its relay use different names.
        prefix = f"{self.topic_prefix}_inbound"
        return (f"{prefix}_direct_resp", f"{prefix}_direct_response")


class DelivererSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`waystation deliverer`: sends what agents put into their outbound list."""

    #: Messages that are sent at once.
    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 64
    #: Lists of events that are produced to topics, each a `[[deliverer.events]]` table.
    events: tuple[EventRule, ...] = ()
    #: List of outbound messages: the plugin's `acapy_outbound_topic`. The retry set is
    #: `<outbound_topic>_retry`. Empty: `<topic_prefix>_outbound`.
    outbound_topic: Topic = ""
    #: A message whose endpoint is ill or busy for longer is a dead letter.
    patience_seconds: Seconds = 86_400.0
    #: Key that the status door asks for in the header `access_token`; empty: no status door.
    status_api_key: str = ""
    #: Where the status door listens.
    status_host: str = "127.0.0.1"
    status_port: Port = 8092
    #: An attempt that has no answer by then has failed.
    timeout_seconds: Seconds = 10.0
    #: Beginning of the names of list and retry set, unless `outbound_topic` is set.
    topic_prefix: Prefix = "acapy"

    @property
    def outbound(self) -> str:
        """Name of the list of outbound messages."""
        return self.outbound_topic or f"{self.topic_prefix}_outbound"
