"""The replies of a node: its desk, and the deliverer that sends them."""

from __future__ import annotations

from dataclasses import dataclass

from waystation.config import Config, WebhookConfig
from waystation.delivery.attempt_log import AttemptLog
from waystation.delivery.deliverer import Deliverer
from waystation.delivery.outbox import Outbox
from waystation.delivery.sender import Sender
from waystation.delivery.workshop import Pauses
from waystation.runtime.clock import Clock
from waystation.store.opening import OpenStore
from waystation.transactions.group_settings import Following
from waystation.transactions.nodes import GroupSettings, Nodes
from waystation.transactions.reply_desk import ReplyDesk
from waystation.transactions.reply_lanes import ReplyLayout
from waystation.transactions.reply_sender import ReplySender
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals

#: A lane that has been empty for this long is retired: tokens in paths make many.
_IDLE_SECONDS = 5.0


@dataclass(frozen=True)
class Replies:
    """What others use of them."""

    desk: ReplyDesk
    #: Without workers it claims nothing, until its node group is told otherwise.
    deliverer: Deliverer

    async def close(self) -> None:
        """Lets attempts finish, gives the rest back."""
        await self.deliverer.stop()


async def open_replies(
    settings: Config,
    opened: OpenStore,
    signals: Signals,
    sender: Sender,
    services: Services,
    nodes: Nodes,
    following: Following,
    *,
    clock: Clock,
    attempts: AttemptLog | None = None,
) -> Replies:
    """Begins to send, with as many workers as the settings say, or the node group was told."""
    cells, webhooks = settings.transactions.cells, settings.webhooks
    outbox = Outbox(opened.store, ReplyLayout(cells), attempts=attempts)
    desk = ReplyDesk(outbox, signals, cells=cells)
    replies = ReplySender(opened.store, signals, sender, services, settings=webhooks, clock=clock)
    deliverer = Deliverer(
        outbox,
        opened.wakeups,
        sender,
        replies.endpoint,
        clock=clock,
        notice_url=settings.delivery.notice_url,
        attempts_max=_workers(webhooks, following.value),
        idle_seconds=_IDLE_SECONDS,
        pauses=_pauses(webhooks, following.value),
    )
    nodes.webhook_workers = lambda: _workers(webhooks, following.value)
    following.on_change(
        lambda: deliverer.pace(
            attempts_max=_workers(webhooks, following.value),
            pauses=_pauses(webhooks, following.value),
        )
    )
    await nodes.renew()
    await deliverer.start()
    return Replies(desk, deliverer)


def _workers(settings: WebhookConfig, told: GroupSettings) -> int:
    return settings.workers if told.webhook_workers is None else told.webhook_workers


def _pauses(settings: WebhookConfig, told: GroupSettings) -> Pauses:
    return Pauses(
        claim_seconds=_seconds(told.webhook_pause_ms, settings.pause_seconds),
        busy_seconds=_seconds(told.webhook_pause_busy_ms, settings.pause_busy_seconds),
        idle_seconds=_seconds(told.webhook_pause_idle_ms, settings.pause_idle_seconds),
    )


def _seconds(told_ms: int | None, given: float) -> float:
    return given if told_ms is None else told_ms / 1000
