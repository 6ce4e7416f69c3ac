"""What is recorded of topics, as they say now: read before a round, for all of its tasks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from waystation.history.decoders.partitions import topic_place
from waystation.history.log_reader import LogReader
from waystation.messages.redaction import FULL, RedactionPolicy, redaction_policy
from waystation.runtime.logging import logger
from waystation.topics.keys import definition_key
from waystation.types.common import Pointers, Record

_log = logger("history")


class _Options(msgspec.Struct):
    """The options that history looks at; those of other releases are no reason to stop."""

    record: Record = "full"
    redact: Pointers = ()


class _Copy(msgspec.Struct):
    options: _Options


_decode = msgspec.json.Decoder(_Copy).decode


def recordings(reader: LogReader, logs: Iterable[str]) -> dict[str, RedactionPolicy]:
    """What to record of logs; one is left out whose topic says it in a way that we do not know.

    The store knows a topic before anything is produced to it: a log of no topic has no secrets.
    What is in the log of another part was chosen by whoever wrote it.
    """
    places = {log: topic_place(log, 0) for log in logs}
    topics = {log: place for log, place in places.items() if place is not None}
    found = {log: FULL for log, place in places.items() if place is None}
    keys = [definition_key(place.project, place.topic) for place in topics.values()]
    for log, body in zip(topics, reader.fields(keys, "body"), strict=True):
        try:
            options = _decode(body).options if body is not None else _Options()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            _log.warning("a log is left out: its topic cannot be read", log=log, problem=str(error))
            continue
        found[log] = redaction_policy(options.record, options.redact)
    return found
