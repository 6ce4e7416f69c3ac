"""Stored definitions of topics."""

from __future__ import annotations

from waystation.db.definitions import Definitions
from waystation.errors import TopicNotFoundError
from waystation.topics.model import Topic, TopicState, decode_topic, encode_topic

#: States of a topic that can be used.
ALIVE: tuple[TopicState, ...] = ("active", "blocked")
EVERY: tuple[TopicState, ...] = (*ALIVE, "deleted", "purged")


class TopicDefinitions(Definitions[Topic]):
    """Definitions of topics. Versions grow across a purge."""

    kind = "topic"
    usable_states = ALIVE

    def encode(self, definition: Topic) -> bytes:
        return encode_topic(definition)

    def decode(self, body: bytes) -> Topic:
        return decode_topic(body)

    def cache_key(self, project: str, name: str) -> str:
        return definition_key(project, name)

    def not_found(self, name: str) -> TopicNotFoundError:
        return not_found(name)


def not_found(name: str) -> TopicNotFoundError:
    """Return the error for a topic that is missing, deleted or in another project."""
    return TopicNotFoundError(f"There is no topic {name}.")


def definition_key(project: str, name: str) -> str:
    """Return the store key of a cached topic: a hash whose `body` is the definition."""
    return f"{{t.{project}.{name}}}:topic"
