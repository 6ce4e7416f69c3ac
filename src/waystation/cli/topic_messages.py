"""Messages of topics as commands print them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.cli.output import printable
from waystation.cli.patience import note

if TYPE_CHECKING:
    from waystation.client import MessagePage, TopicMessage
    from waystation.client.sync_topics import Topics


def read_messages(topics: Topics, topic: str, **wishes: Any) -> Iterator[TopicMessage]:
    """Yield messages page after page, and tell on standard error which ones are missing."""
    page = topics.page(topic, limit=1000, **wishes)
    fixed = {name: value for name, value in wishes.items() if name not in ("offset", "since")}
    while True:
        note_missing(page)
        yield from page.messages
        if page.ended:
            return
        page = topics.page(topic, limit=1000, **fixed, cursor=page.cursor)


def note_missing(page: MessagePage) -> None:
    """Tell on standard error which messages are missing from a damaged log."""
    for each in page.damaged:
        note(
            f"log.damaged: offsets {each.from_offset} to {each.to_offset - 1} of"
            f" {each.storage}/{each.partition} are missing"
        )


def place_of(message: TopicMessage) -> str:
    """Storage topic, partition and offset."""
    return f"{message.storage}/{message.partition}/{message.offset}"


def time_of(time_ms: int) -> str:
    """A time for people, to the millisecond."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def payload_of(message: TopicMessage) -> str:
    """Return the payload if it is text, else its size and type; of a foreign entry, the reason."""
    if message.unreadable:
        size = len(message.stored)
        return printable(f"(unreadable entry, {size:,} bytes: {message.unreadable})")
    encoding = [value for name, value in message.headers if name == "content-encoding"]
    if not encoding:
        try:
            return printable(message.stored.decode())
        except UnicodeDecodeError:
            pass
    kind = ", ".join([*filter(None, [message.content_type]), *encoding]) or "no content type"
    return printable(f"({len(message.stored):,} bytes, {kind})")


def as_json(message: TopicMessage) -> dict[str, Any]:
    """Return a message with its location; a batch accepts its `message`.

    An entry that is not a message also has the reason, in `unreadable`.
    """
    shown: dict[str, Any] = {"id": message.id}
    if message.group is not None:
        shown["group"] = message.group
    field, payload = _payload(message)
    shown[field] = payload
    shown["content_type"] = message.content_type
    for name in ("headers", "not_before_ms", "cause", "traceparent"):
        if value := getattr(message, name):
            shown[name] = value
    row: dict[str, Any] = {
        "storage": message.storage,
        "partition": message.partition,
        "offset": message.offset,
        "time_ms": message.time_ms,
        "message": shown,
    }
    if message.unreadable:
        row["unreadable"] = message.unreadable
    return row


def _payload(message: TopicMessage) -> tuple[str, Any]:
    """As the station showed it: it chose JSON only where the payload is that."""
    if message.is_json:
        return "data", msgspec.Raw(message.stored)
    try:
        return "text", message.stored.decode()
    except UnicodeDecodeError:
        return "base64", b64encode(message.stored).decode()
