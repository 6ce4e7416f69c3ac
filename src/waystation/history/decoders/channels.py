"""Rows of the table `channels`, from the record logs of channels.

An entry has the events of one script call. Each event becomes a row. An entry of a channel with
`record` none names neither the channel nor the events; it becomes one row of kind `withheld`, so
that the table has a row for every offset of a log. An entry that cannot be decoded becomes a
malformed row with its bytes in `content`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from waystation.channels.model import decode_message
from waystation.history.decoders.facts import WITHHELD, Row, decode_entries, moment
from waystation.history.lake.schema import CHANNELS
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.logs.records import unpack_entry
from waystation.messages.redaction import FULL, RedactionPolicy

_HEADERS = RedactionPolicy(record="headers")


def channel_rows(offsets: OffsetRange, block: LogBatch) -> pa.RecordBatch:
    """Return the rows of a block."""
    return decode_entries(CHANNELS, block, _events)


def _events(payload: bytes, ms: int) -> Iterator[Row]:
    try:
        entry = unpack_entry(payload)
    except ValueError:
        yield {"malformed": True, "content": payload}
        return
    if entry.is_withheld:
        yield WITHHELD
        return
    whose = {"project": entry.project, "channel": entry.name}
    for text, detail in entry.events:
        try:
            event = _event(text, detail, ms)
            yield {**whose, "malformed": False, "recorded": FULL.label, **event}
        except (ValueError, TypeError):
            yield {**whose, "malformed": True, "content": text.encode()}


def _event(text: str, detail: Any, ms: int) -> Row:
    """Return the columns of an event. Raise ValueError or TypeError if it is invalid."""
    kind, *words = text.split(" ")
    row: Row = {"kind": kind, "clock": int(words[0])}
    if kind == "published":
        return row | _published(detail) | {"expires": moment(ms + int(words[1]) * 1000)}
    if kind == "dropped":
        return row | {"to_clock": int(words[1])}
    return row | {"subscriber": str(detail)}


def _published(detail: bytes | str) -> Row:
    if isinstance(detail, str):
        return {"message_id": detail, "recorded": _HEADERS.label}
    message = decode_message(detail)
    if message is None:
        return {"malformed": True, "content": detail}
    return {"message_id": message.id, "content": bytes(message.content)}
