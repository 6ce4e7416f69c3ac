"""Sends replies: makes the message of an event when it is sent, from the state as it is then.

Every attempt reads the state, out of the store or the archive. What cannot be read now, because the
archive is away, is neither counted nor lost: it is due again in a moment. A channel and a topic get
the same message as a webhook, under an id that is the same for every attempt, so that they keep it
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from waystation.config import WebhookConfig
from waystation.delivery.breaker import BreakerLimits
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.items import Claimed, Item
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import Schedule, Verdict
from waystation.delivery.secret_file import read_secrets
from waystation.delivery.sender import Sender
from waystation.delivery.settlement import Conclusion
from waystation.errors import (
    ArchiveError,
    BusyError,
    InvalidChannelError,
    InvalidInputError,
    NotFoundError,
    StoreError,
    StoreReplyError,
    TransactionLoadingError,
    WaystationError,
)
from waystation.messages.envelope import Envelope
from waystation.runtime.batcher import RequestBatcher
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.client import Store
from waystation.telemetry import metrics
from waystation.transactions import names
from waystation.transactions.found import Found, found_in
from waystation.transactions.record import TransactionState, decode
from waystation.transactions.reply_lanes import (
    KIND_NAMES,
    Receiver,
    ReplyNote,
    cell_of_lane,
    parse_receiver,
    receiver_of_lane,
    transaction_of,
)
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.states import State
from waystation.transactions.summary import SummaryMetadata, summary_of

_log = logger("replies")

#: States that are loaded in one call: each may be large.
_READ_MOST = 16
#: What we need ourselves is away: tried again after this, and not counted.
_AWAY = Outcome(failure=Failure.CANCELLED, detail="the state cannot be read now", retry_after=1.0)
_DONE = Outcome(status=200)
#: There was nothing to send: the event is past, and a newer one follows.
_PAST = Outcome(status=204)
_CONNECT_SECONDS_MAX = 5.0
#: What is brought back for a note may leave again before it is written, where little stays long.
_NOTE_TRIES_MAX = 5
_NOTE_SECONDS_MAX = 1.0
#: Lanes whose endpoints are remembered.
_LANES_MAX = 10_000
#: Answers of channels and topics that stay what they are.
_FATAL = (InvalidChannelError, InvalidInputError, NotFoundError)
_JSON = (("content-type", "application/json"),)
_EVENT_TYPES = {"complete": "complete", "progress": "progressReport", "status": "statusChange"}


class ReplyEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The message that a receiver gets: the summary, and what has happened."""

    event_type: str
    metadata: SummaryMetadata
    progress_report: msgspec.Raw
    data: msgspec.Raw
    #: Milliseconds since 1970: of the last change, and of this attempt.
    event_time: int
    delivery_time: int


class _Asked(msgspec.Struct):
    """What the metadata says about replies."""

    webhook: str = ""


_encode = msgspec.json.Encoder().encode
_asked = msgspec.json.Decoder(_Asked).decode


class ReplySender:
    """The endpoints of all reply lanes of a process."""

    def __init__(
        self,
        store: Store,
        signals: Signals,
        sender: Sender,
        services: Services,
        *,
        settings: WebhookConfig,
        clock: Clock,
    ) -> None:
        self._store = store
        self._signals = signals
        self._sender = sender
        self._services = services
        self._clock = clock
        self._settings = settings
        self._secrets = read_secrets(settings.secret_file, "webhooks.secret_file")
        self._schedule = Schedule(
            attempts=settings.attempts,
            first_seconds=settings.first_wait_seconds,
            multiplier=settings.multiplier,
            maximum_seconds=settings.wait_seconds_max,
        )
        self._breaker = BreakerLimits(
            failed_min=settings.fail_limit,
            forget_seconds=settings.fail_period_seconds,
            pause_seconds_max=settings.disable_seconds,
        )
        self._known = lru_cache(_LANES_MAX)(self._find)
        self._loads = RequestBatcher(self._load, items_max=_READ_MOST)

    def endpoint(self, lane: str) -> Endpoint | None:
        """The endpoint of a lane: it has the name of its receiver. The book of a deliverer."""
        known = self._known(lane)
        return None if known is None else known[1]

    def _find(self, lane: str) -> tuple[Receiver, Endpoint] | None:
        """Cached as `_known`: lanes recur."""
        receiver = parse_receiver(receiver_of_lane(lane))
        if receiver is None:
            return None
        timeout = self._settings.timeout_seconds
        endpoint = Endpoint(
            name=receiver_of_lane(lane),
            schedule=self._schedule,
            secrets=self._secrets,
            connect_seconds_max=min(_CONNECT_SECONDS_MAX, timeout),
            total_seconds_max=timeout,
            deliver=self.deliver,
            concluded=self.concluded,
            breaker=self._breaker if receiver.kind == "w" else None,
        )
        return receiver, endpoint

    # -- An attempt --------------------------------------------------------------------------

    async def deliver(self, lane: str, claimed: Claimed) -> Outcome:
        """Makes one attempt."""
        known = self._known(lane)
        assert known is not None, "a lane without an endpoint is not worked on"
        receiver, endpoint = known
        transaction_id, (event, seq) = transaction_of(claimed.id), _event(claimed)
        try:
            found = await self._find_state(receiver.project, transaction_id)
        except (ArchiveError, BusyError, StoreError):
            return _AWAY
        if found is None:
            # Deleted by age, or lost.
            told = "the state of the transaction is neither in the store nor in the archive"
            return Outcome(failure=Failure.FORBIDDEN, detail=told)
        if event != "complete" and found.head.state is State.COMPLETE:
            return _PAST
        message_id, kept = f"{transaction_id}.{seq}", decode(found.state)
        body = self._body(event, found, kept)
        if receiver.kind == "w":
            item = Item(url=_asked(kept.metadata).webhook, headers=_JSON, body=body)
            now_ms = self._clock.now_ms()
            return await self._sender.send(endpoint.request(lane, message_id, item, now_ms=now_ms))
        return await self._hand_over(receiver, message_id, found.id, kept, body)

    async def _find_state(self, project: str, transaction_id: str) -> Found | None:
        """Most are in the store, where all that is needed is one hash; the rest is loaded."""
        try:
            pairs = await self._store.call("HGETALL", names.state(transaction_id), repeatable=True)
        except StoreReplyError:
            pairs = []  # No hash at all: that is no state.
        if pairs:
            return found_in(transaction_id, dict(zip(pairs[::2], pairs[1::2], strict=True)))
        return await self._loads.ask((project, names.cell_of(transaction_id)), transaction_id)

    async def _load(self, place: tuple[str, int], ids: list[str]) -> list[Found | None]:
        return await self._signals.get(place[0], ids)

    async def _hand_over(
        self,
        receiver: Receiver,
        message_id: str,
        transaction_id: str,
        kept: TransactionState,
        body: bytes,
    ) -> Outcome:
        """To a channel or a topic of ours: known already is success."""
        try:
            if receiver.kind == "c":
                await self._services.publish(receiver.project, receiver.name, message_id, body)
                return _DONE
            envelope = Envelope(
                id=message_id,
                project=receiver.project,
                data=body,
                group=transaction_id,
                headers=_JSON,
                cause=transaction_id,
                traceparent=kept.traceparent or None,
            )
            await self._services.produce(receiver.project, receiver.name, envelope)
        except _FATAL as error:
            return Outcome(failure=Failure.FORBIDDEN, detail=error.message)
        except WaystationError as error:
            # Full or away: that may pass.
            return Outcome(failure=Failure.CONNECTION, detail=error.message)
        return _DONE

    def _body(self, event: str, found: Found, kept: TransactionState) -> bytes:
        summary = summary_of(found, kept=kept)
        return _encode(
            ReplyEvent(
                event_type=_EVENT_TYPES[event],
                metadata=summary.metadata,
                progress_report=summary.progress_report,
                data=summary.data,
                event_time=found.head.since,
                delivery_time=self._clock.now_ms(),
            )
        )

    # -- What came of it ---------------------------------------------------------------------

    async def concluded(self, lane: str, conclusions: Sequence[Conclusion]) -> None:
        """Notes at transactions that their clients were told, or cannot be."""
        webhook = receiver_of_lane(lane).startswith("w.")
        notes: list[ReplyNote] = []
        for claimed, decision, _ in conclusions:
            if decision.verdict is Verdict.FAILED:
                notes.append((transaction_of(claimed.id), "failed", decision.cause))
            elif webhook and decision.verdict is Verdict.DONE and _event(claimed)[0] == "complete":
                notes.append((transaction_of(claimed.id), "delivered", ""))
        await self._note(cell_of_lane(lane), notes)
        # Behind it: what the store does not take is concluded once more.
        kind = KIND_NAMES.get(receiver_of_lane(lane)[:1], "")
        for claimed, decision, _ in conclusions:
            metrics.replies.of(kind, _event(claimed)[0], decision.verdict.value).inc()

    async def _note(self, cell: int, notes: Sequence[ReplyNote]) -> None:
        """What has left the store since it was read is brought back for its note.

        One that is gone is not missed. What cannot be loaded at once is lost: the settlement of a
        whole lane waits for it.
        """
        problem = "it does not stay in the store for long enough"
        for _ in range(_NOTE_TRIES_MAX):
            if not notes or not (notes := await self._signals.note_replies(cell, notes)):
                return
            try:
                async with asyncio.timeout(_NOTE_SECONDS_MAX):
                    found = await self._signals.get("", [each[0] for each in notes])
            except TransactionLoadingError as error:
                problem = str(error)  # Others of them may be there by now.
                continue
            except (ArchiveError, TimeoutError) as error:
                problem = str(error) or "the archive takes long"
                break
            notes = [note for note, one in zip(notes, found, strict=True) if one is not None]
        if notes:
            _log.warning("notes about webhooks were lost", problem=problem, count=len(notes))


def _event(claimed: Claimed) -> tuple[str, str]:
    """What is to be told, and with which version of the state it came."""
    event, _, seq = claimed.packed.decode().partition(" ")
    return event, seq
