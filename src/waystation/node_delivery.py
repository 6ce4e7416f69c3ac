"""The outgoing side of a node: who guards addresses, who sends, and what channels have to send."""

from __future__ import annotations

from dataclasses import dataclass

from waystation.channels.service import ChannelService
from waystation.channels.webhooks import webhook_endpoints
from waystation.config import Config, DeliveryConfig
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.attempt_log import AttemptLog, open_attempt_log
from waystation.delivery.deliverer import Deliverer
from waystation.delivery.desk import Desk
from waystation.delivery.outbox import Outbox, endpoint_of
from waystation.delivery.sender import Sender
from waystation.errors import InvalidInputError, SettingsError
from waystation.logs.protocol import Logs
from waystation.logs.records import RecordLogs
from waystation.runtime.clock import Clock
from waystation.store.opening import OpenStore


@dataclass(frozen=True)
class Delivery:
    """The outgoing side of a node; without a deliverer when there is nothing to deliver to."""

    desk: Desk
    sender: Sender
    #: Where attempts are written down for history.
    #: None where nothing is recorded.
    attempts: AttemptLog | None
    deliverer: Deliverer | None = None

    async def close(self) -> None:
        """Lets attempts finish, gives the rest back."""
        if self.deliverer is not None:
            await self.deliverer.stop()
        await self.sender.close()


def open_guard(settings: DeliveryConfig) -> AddressGuard:
    """The guard of all outgoing requests."""
    try:
        guard = AddressGuard(settings.allowed_networks, loopback=settings.loopback)
    except ValueError as error:
        raise SettingsError(f"delivery.allowed_networks: {error}.") from error
    if settings.notice_url:
        try:
            guard.check_url(settings.notice_url)
        except InvalidInputError as error:
            raise SettingsError(f"delivery.notice_url: {error.message}") from error
    return guard


def open_channels(
    settings: Config,
    opened: OpenStore,
    guard: AddressGuard,
    *,
    clock: Clock,
    records: RecordLogs,
) -> ChannelService:
    """The channels, by their rules."""
    return ChannelService(
        opened.store,
        opened.wakeups,
        clock=clock,
        settings=settings.channels,
        guard=guard,
        waiting_max=settings.delivery.waiting_max,
        records=records,
    )


async def open_delivery(
    settings: Config, opened: OpenStore, logs: Logs, guard: AddressGuard, *, clock: Clock
) -> Delivery:
    """Begins to deliver, when there is anything that a delivery could go to."""
    book = webhook_endpoints(settings.channels.rules, guard)
    attempts = await open_attempt_log(logs) if settings.history.record == "full" else None
    outbox, sender = Outbox(opened.store, attempts=attempts), Sender(guard)
    if not book:
        return Delivery(Desk(outbox, book), sender, attempts)
    deliverer = Deliverer(
        outbox,
        opened.wakeups,
        sender,
        lambda lane: book.get(endpoint_of(lane)),
        clock=clock,
        notice_url=settings.delivery.notice_url,
    )
    await deliverer.start()
    return Delivery(Desk(outbox, book, deliverer.standing), sender, attempts, deliverer)
