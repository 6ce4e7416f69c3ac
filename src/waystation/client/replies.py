"""What clients get to see of the replies of transactions."""

from __future__ import annotations

import msgspec

from waystation.client.deliveries import DeliveryAttempt


class ReplyReceiver(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of one transaction, and what is on its way to it."""

    #: webhook, channel or topic.
    kind: str
    #: Its URL without the query, or its name.
    where: str
    #: Its name among endpoints: `ws.deliveries.enable(receiver)`.
    receiver: str
    #: enabled; disabled: it has answered 410; held: it is left alone for a while.
    standing: str
    #: waiting, failed, or idle: nothing is on its way.
    state: str
    #: complete, progress or status.
    event: str
    attempts: int
    cause: str
    #: When it was given up; when it is tried next.
    at_ms: int | None


class ReplyStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How the replies of one transaction stand."""

    transaction_id: str
    #: `delivered`: its webhook was told the end; `failed`: something was given up; or empty.
    status: str
    comment: str
    latest_ms: int | None
    #: When the client was told the end first, by a webhook or a wait.
    notified_ms: int | None
    receivers: list[ReplyReceiver]
    #: Those that are kept, oldest first.
    attempts: list[DeliveryAttempt]


class ReplyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A reply in a list."""

    transaction_id: str
    #: `w.<project>.<digest of the URL>`, `c.<project>.<channel>`, `t.<project>.<topic>`.
    receiver: str
    event: str
    #: failed or waiting.
    state: str
    attempts: int
    cause: str
    #: When it was given up; when it is tried next.
    at_ms: int
    #: Of a waiting reply whose receiver is paused because it fails or asked for it: about how many
    #: ms until the next request.
    paused_ms: int | None = None


class ReplyPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of replies."""

    replies: list[ReplyInfo]
    cursor: str


class ReplyCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many replies a verb was about."""

    count: int
