"""The book of topics: what each is now, in the catalogue, in the store, in this process."""

from __future__ import annotations

from waystation.db.definitions import Book
from waystation.errors import TopicNotFoundError
from waystation.topics.model import Topic, TopicState, decode_topic, encode_topic

#: States of a topic that can be used.
ALIVE: tuple[TopicState, ...] = ("active", "blocked")
EVERY: tuple[TopicState, ...] = (*ALIVE, "deleted", "purged")


class TopicBook(Book[Topic]):
    """Reads and changes topics; versions under one name never run backwards, also over a purge."""

    kind = "topic"
    alive = ALIVE

    def encode(self, definition: Topic) -> bytes:
        return encode_topic(definition)

    def decode(self, body: bytes) -> Topic:
        return decode_topic(body)

    def working_copy(self, project: str, name: str) -> str:
        return working_copy(project, name)

    def not_found(self, name: str) -> TopicNotFoundError:
        return not_found(name)


def not_found(name: str) -> TopicNotFoundError:
    """What is said of a topic that is absent, deleted or another project's."""
    return TopicNotFoundError(f"There is no topic {name}.")


def working_copy(project: str, name: str) -> str:
    """The key of a topic's working copy, a hash whose `body` is the topic."""
    return f"{{t.{project}.{name}}}:topic"
