"""What steps and replies reach the world with: functions that a node gives to the engine.

Transactions know no channels, topics or pools; what sends, publishes, produces and hands over is
given to them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from waystation.delivery.request import Outcome, Outgoing
from waystation.messages.envelope import Envelope
from waystation.transactions.wanted import Wanted


@dataclass(frozen=True)
class Services:
    """All of them are the node's."""

    send: Callable[[Outgoing], Awaitable[Outcome]]
    #: Project, channel, message id, JSON. An id that is known already is success.
    publish: Callable[[str, str, str, bytes], Awaitable[None]]
    #: Project, topic.
    produce: Callable[[str, str, Envelope], Awaitable[object]]
    #: Project, webhook, channel, topic; raises what is wrong with them.
    check: Callable[[Wanted], Awaitable[None]]
    #: Transaction, place; empty without a public URL.
    callback_url: Callable[[str, str], str]
    #: Project, pool, recipient key, message, where its answer goes. A known id is success.
    hand: Callable[[str, str, str, Envelope, str], Awaitable[None]]
    #: Transaction, place: where the answer to what a step hands over goes.
    answer_to: Callable[[str, str], str]
