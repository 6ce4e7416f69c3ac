"""Producing from within: a message of ours goes through the checks of one that a client sends.

Rules of ids, groups and headers, the size, the schema of the topic and its rate; an error is the
one that a client would get.
"""

from __future__ import annotations

from waystation.messages.envelope import (
    Envelope,
    check_header_name,
    check_header_value,
    check_message,
)
from waystation.topics.flow import require_open
from waystation.topics.lane import Receipt
from waystation.topics.producer import Producer
from waystation.topics.rate_limits import Limits
from waystation.topics.schemas import Schemas
from waystation.topics.service import Topics


class Within:
    """Produces one message at a time, for parts of this process."""

    def __init__(
        self, topics: Topics, producer: Producer, schemas: Schemas, limits: Limits, bytes_max: int
    ) -> None:
        self.topics = topics
        self._producer = producer
        self._schemas = schemas
        self._limits = limits
        self._bytes_max = bytes_max

    async def produce(self, project: str, name: str, envelope: Envelope) -> None:
        """Produces a message; one whose id is known already is there."""
        topic = self.topics.known(project, name) or await self.topics.get(project, name)
        require_open(topic)
        for header, value in envelope.headers:
            check_header_value(value, field=check_header_name(header))
        size = check_message(envelope, topic, bytes_max=self._bytes_max)
        await self._schemas.check(topic, [envelope], batch=False)
        admission = self._limits.admit(topic, messages=1, size=size)
        if admission is not None:
            admission.require()
        (result,) = await self._producer.produce(project, name, [envelope])
        if not isinstance(result, Receipt):
            raise result
