"""What transactions and subscriptions reach the world with, as a node has it.

Messages of steps go through the same checks as those of clients.
"""

from __future__ import annotations

import msgspec

from waystation.channels.service import ChannelService
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.attempt_log import AttemptLog
from waystation.delivery.sender import Sender
from waystation.errors import (
    InvalidChannelError,
    InvalidInputError,
    NotFoundError,
    PoolCannotAnswerError,
    PoolFullError,
)
from waystation.messages.envelope import Envelope, pack
from waystation.pools.answers import ANSWER_TO
from waystation.pools.held import Letter
from waystation.pools.pools import Pools
from waystation.runtime.ids import require_name
from waystation.topics.producer import CheckedProducer
from waystation.transactions.callbacks import CallbackUrls
from waystation.transactions.services import Services
from waystation.transactions.wanted import Wanted


class Reach:
    """The parts of a node that steps, replies and endpoints use."""

    def __init__(
        self,
        guard: AddressGuard,
        sender: Sender,
        channels: ChannelService,
        within: CheckedProducer,
        urls: CallbackUrls,
        pools: Pools,
        attempts: AttemptLog | None = None,
    ) -> None:
        self.guard = guard
        self.sender = sender
        self.channels = channels
        self._within = within
        self.urls = urls
        self.attempts = attempts
        self.pools = pools

    def services(self) -> Services:
        """As transactions know them."""
        return Services(
            send=self.sender.send,
            publish=self._publish,
            produce=self._within.produce,
            check=self._check,
            callback_url=self.urls,
            hand=self._hand,
            answer_to=self.urls.ticket,
        )

    async def _publish(self, project: str, channel: str, message_id: str, content: bytes) -> None:
        await self.channels.publish(project, channel, message_id, content)

    async def _hand(
        self, project: str, pool: str, key: str, message: Envelope, answer_to: str
    ) -> None:
        if answer_to:
            if (await self.pools.use(project, pool)).options.mirror:
                # Agents answer by a list that the relay reads, which resumes no transaction.
                raise PoolCannotAnswerError(
                    f"A transaction cannot wait for an answer of agents, who serve pool '{pool}'.",
                    field="wait",
                )
            headers = (*message.headers, (ANSWER_TO, answer_to))
            message = msgspec.structs.replace(message, headers=headers)
        letter = Letter(message.id, key, pack(message))
        (enqueued,) = await self.pools.enqueue(project, pool, [letter])
        if enqueued.outcome == "full":
            raise PoolFullError(f"Pool {pool} has no room.")

    async def _check(self, wanted: Wanted) -> None:
        """Raises an InvalidInputError that names what cannot be reached."""
        if wanted.webhook:
            try:
                self.guard.check_url(wanted.webhook)
            except InvalidInputError as error:
                raise type(error)(error.message, field="webhook", hint=error.hint) from error
        if wanted.channel:
            require_name(wanted.channel, field="channel")
            try:
                self.channels.terms_of(wanted.channel)
            except InvalidChannelError as error:
                raise InvalidInputError(error.message, field="channel") from error
        if wanted.topic:
            try:
                await self._within.topics.get(wanted.project, wanted.topic)
            except NotFoundError as error:
                raise InvalidInputError(error.message, field="topic") from error

    async def check_endpoint(self, project: str, endpoint: str) -> None:
        """Raises an InvalidInputError for one that no subscription can deliver to.

        A pipeline may be defined later; the rules of channels are those of the settings. A pool has
        to be there: what is delivered to none is a dead letter.
        """
        if endpoint.startswith("channel:"):
            try:
                self.channels.terms_of(endpoint.removeprefix("channel:"))
            except InvalidChannelError as error:
                raise InvalidInputError(error.message, field="endpoint") from error
        elif endpoint.startswith("pool:"):
            try:
                await self.pools.get(project, endpoint.removeprefix("pool:"))
            except NotFoundError as error:
                raise InvalidInputError(error.message, field="endpoint") from error
        elif not endpoint.startswith("pipeline:"):
            self.guard.check_url(endpoint)
