"""Pieces of the OpenAPI document that tell of the hot routes of topics."""

from __future__ import annotations

from typing import Any

from waystation.api.channel_schemas import parameter
from waystation.api.routes import Parameter
from waystation.messages.envelope import KEY_CHARACTERS_MAX, MESSAGES_MAX
from waystation.messages.formats import BATCH_TYPE, EVENT_BATCH_TYPE, EVENT_TYPE
from waystation.topics.queries import LIMIT_DEFAULT, LIMIT_MAX

_Responses = dict[int, tuple[str, str, dict[str, object]]]

PRODUCE = (
    "The body is the payload of one message, or a CloudEvent, or a batch; see the guide on "
    "producing. All of a request is accepted by form, schema and limit, or nothing of it is. Of a "
    "batch each message then has a receipt or an error of its own; when all were refused for the "
    "same reason, the answer is that problem."
)
BROWSE = (
    "Messages of one partition, from an offset or a time on; or those of a group, or with an id, "
    "over all storage topics. The cursor leads on, also at the end, where new messages follow; a "
    "page that searches may be empty before `ended` is true."
)

TOPIC = parameter("topic", "Name of the topic.")
_KEY: dict[str, object] = {"type": "string", "minLength": 1, "maxLength": KEY_CHARACTERS_MAX}
_WHOLE: dict[str, object] = {"type": "integer", "minimum": 0}
_TEXT: dict[str, object] = {"type": "string"}


def _query(name: str, description: str, schema: dict[str, object]) -> Parameter:
    return parameter(name, description, "query", schema)


CHOICE = (
    _query("storage", "Index of the storage topic; the first if not given.", _WHOLE),
    _query("partition", "Partition of that storage topic.", _WHOLE),
    _query("offset", "Offset in the partition to begin at.", _WHOLE),
    _query("time_ms", "Begin at the first message at or after this time.", _WHOLE),
    _query("group", "Messages of this group.", _KEY),
    _query("id", "Messages with this id; quicker with their `group`, if they have one.", _KEY),
    _query(
        "limit",
        "Most messages of a page.",
        {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
    ),
    _query("cursor", "From the page before, with the same question.", _TEXT),
)


def _object(*required: str, **properties: object) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


_MESSAGE = _object(
    id=_KEY,
    group=_KEY,
    data={"description": "A payload that is JSON."},
    text={"type": "string", "description": "A payload that is UTF-8."},
    base64={"type": "string", "description": "Any other payload."},
    content_type=_TEXT,
    headers={
        "type": "array",
        "items": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2},
    },
    not_before_ms=_WHOLE,
    cause=_KEY,
    traceparent=_TEXT,
)
_EVENT = _object("specversion", "id", "source", "type")
FORMS: dict[str, object] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    "application/json": {"schema": {}},
    EVENT_TYPE: {"schema": _EVENT},
    EVENT_BATCH_TYPE: {"schema": {"type": "array", "items": _EVENT, "maxItems": MESSAGES_MAX}},
    BATCH_TYPE: {
        "schema": _object(
            "messages",
            messages={
                "type": "array",
                "items": {**_MESSAGE, "additionalProperties": False},
                "minItems": 1,
                "maxItems": MESSAGES_MAX,
            },
        )
    },
}

_RECEIPT = _object(
    "id",
    "storage",
    "partition",
    "offset",
    "time_ms",
    "duplicate",
    "durability",
    id=_TEXT,
    storage=_WHOLE,
    partition=_WHOLE,
    offset=_WHOLE,
    time_ms=_WHOLE,
    duplicate={"type": "boolean", "description": "Known already: this is where the first is."},
    durability={"type": "string", "enum": ["memory", "disk"]},
)
_REFUSED = _object("id", "error", id=_TEXT, error=_object("code", "detail", code=_TEXT, hint=_TEXT))
_RESULTS = _object("results", results={"type": "array", "items": {"anyOf": [_RECEIPT, _REFUSED]}})
_FOUND = _object(
    "storage",
    "partition",
    "offset",
    "time_ms",
    "message",
    storage=_WHOLE,
    partition=_WHOLE,
    offset=_WHOLE,
    time_ms=_WHOLE,
    message=_MESSAGE,
    unreadable={
        "type": "string",
        "description": "Why the entry is not a message. `message` then has its bytes and an"
        " empty `id`.",
    },
)
_MISSING = _object(
    "storage",
    "partition",
    "from_offset",
    "to_offset",
    storage=_WHOLE,
    partition=_WHOLE,
    from_offset=_WHOLE,
    to_offset=_WHOLE,
)
_PAGE = _object(
    "messages",
    "cursor",
    "ended",
    "damaged",
    messages={"type": "array", "items": _FOUND},
    cursor=_TEXT,
    ended={"type": "boolean", "description": "Whether all that is there now was seen."},
    damaged={
        "type": "array",
        "items": _MISSING,
        "description": "Offsets that are missing from the log, though retention did not remove "
        "them: from `from_offset` up to, but not including, `to_offset`.",
    },
)


def _problems(**descriptions: str) -> _Responses:
    schema: dict[str, object] = {"$ref": "#/components/schemas/Problem"}
    return {
        int(status.removeprefix("s")): (text, "application/problem+json", schema)
        for status, text in descriptions.items()
    }


PRODUCED: _Responses = {
    200: (
        "The receipt; of a batch, a result for each message in its order.",
        "application/json",
        {"anyOf": [_RECEIPT, _RESULTS]},
    ),
    **_problems(
        s400="The request or a message is malformed.",
        s404="There is no such topic in this project.",
        s409="The topic is sealed, and no storage topic follows.",
        s413="The body or a message is over the limit.",
        s415="A format that is not spoken.",
        s422="The topic is blocked, or needs a group, or has a schema that does not match.",
        s429="More than the topic's limit allows; Retry-After tells when.",
        s503="Not now, or the outcome is unknown: `code` tells which.",
        s507="The partition or the store is full; `policy` names why it makes no room.",
    ),
}
BROWSED: _Responses = {
    200: ("A page.", "application/json", _PAGE),
    **_problems(
        s400="A parameter is malformed, or the offset is not kept: `first` and `end` tell.",
        s404="There is no such topic, storage topic or partition.",
        s503="Not now. Try again.",
    ),
}
