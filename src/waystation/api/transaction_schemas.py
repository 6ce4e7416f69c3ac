"""Pieces of the OpenAPI document that tell of the hot routes of transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from waystation.api.channel_schemas import parameter
from waystation.api.routes import Parameter
from waystation.runtime.ids import NAME_PATTERN
from waystation.transactions.order import EXTERNAL_ID_LENGTH_MAX, ORDERS_MAX
from waystation.transactions.states import State, Status

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
#: Final ones, and the states that what is alive was archived in.
ARCHIVED_STATUSES = (
    *(each.value for each in Status),
    *(each.value for each in State if each is not State.COMPLETE),
)

Responses = dict[int, tuple[str, str, dict[str, object]]]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the document tells of a route."""

    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    request_body: dict[str, object] | None = None
    responses: Responses = field(default_factory=dict)


_TEXT: dict[str, object] = {"type": "string"}
_MS: dict[str, object] = {"type": "integer", "minimum": 0}
_MS_OR_NULL: dict[str, object] = {"type": ["integer", "null"]}
_EXTERNAL_ID: dict[str, object] = {
    "type": ["string", "null"],
    "minLength": 1,
    "maxLength": EXTERNAL_ID_LENGTH_MAX,
}
_WHERE: dict[str, object] = {"type": ["string", "null"], "maxLength": 2000}
_SCALAR: dict[str, object] = {"type": ["boolean", "number", "string"]}
_MOMENT: dict[str, object] = {
    "type": ["string", "integer", "null"],
    "description": "2030-01-31T12:00:00Z, milliseconds since 1970, or 30s, 5m, 2d from the start.",
}


def _object(*required: str, **properties: object) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


_ORDER = {
    **_object(
        "type",
        type={"type": "string", "pattern": NAME_PATTERN, "description": "Name of a pipeline."},
        metadata={
            **_object(
                externalId=_EXTERNAL_ID,
                startAt=_MOMENT,
                deadline=_MOMENT,
                poll={
                    "enum": ["short", "long", None],
                    "description": "`long`: the answer waits for the end, as long as a wait may "
                    "take. Not in a list.",
                },
                webhook={
                    **_WHERE,
                    "description": "URL that is told the end. It is checked before the start.",
                },
                channel={**_WHERE, "description": "Channel that the same is published to."},
                topic={**_WHERE, "description": "Topic that the same is produced to."},
                progressReports={
                    "type": ["boolean", "null"],
                    "description": "They are told of progress reports, too.",
                },
                statusChanges={
                    "type": ["boolean", "null"],
                    "description": "They are told, too, that it sleeps, waits or runs again.",
                },
                pollReplyCancelsWebhook={
                    "type": ["boolean", "null"],
                    "description": "A wait that was answered with the end takes back a webhook "
                    "that was not sent yet.",
                },
                cancelWebhook={
                    "type": ["boolean", "null"],
                    "description": "The same as `pollReplyCancelsWebhook`.",
                },
                reply={
                    **_WHERE,
                    "description": "Of older clients: `shortpoll`, `longpoll`, or a webhook.",
                },
                lang={"type": ["string", "null"], "maxLength": 100},
                traceLevel={"type": ["string", "integer", "null"]},
            ),
            "description": "Names that are not known are kept. `warnings` of the reply tell of "
            "those that look like an option.",
        },
        data={"description": "Any JSON: the input of the first step."},
    ),
    "additionalProperties": False,
}
_ORDERS = {
    **_object(
        "transactions",
        transactions={
            "type": "array",
            "items": _ORDER,
            "minItems": 1,
            "maxItems": ORDERS_MAX,
        },
    ),
    "additionalProperties": False,
}
_SUMMARY = _object(
    "metadata",
    "progressReport",
    "data",
    metadata=_object(
        "owner",
        "txId",
        "externalId",
        "transactionType",
        "status",
        "completionTime",
        "lastUpdated",
        "sequenceOfUpdate",
        "notifiedTime",
        owner=_TEXT,
        txId=_TEXT,
        externalId={"type": ["string", "null"]},
        transactionType=_TEXT,
        status={
            "type": "string",
            "description": "Once it has ended: success, failed, aborted, internal-error, timeout "
            "or cancelled. Before that its state; what is queued is shown as running.",
        },
        completionTime=_MS_OR_NULL,
        lastUpdated=_MS,
        sequenceOfUpdate={
            "type": "integer",
            "minimum": 1,
            "description": "One more with every change; for `after`.",
        },
        notifiedTime={
            **_MS_OR_NULL,
            "description": "When the client was told the end first: by a wait, or a webhook.",
        },
    ),
    progressReport={"description": "The newest progress report, until the end."},
    data={"description": "The output, once there is one."},
    duplicate={"type": "boolean", "description": "The start was known: this is what is there."},
    warnings={
        "type": "array",
        "items": _TEXT,
        "description": "Only in the reply to a start: names in its metadata that look like "
        "options and have no effect.",
    },
)
_REFUSED = _object(
    "error", error=_object("code", "detail", code=_TEXT, detail=_TEXT, existing_id=_TEXT)
)
_RESULTS = _object("results", results={"type": "array", "items": {"anyOf": [_SUMMARY, _REFUSED]}})
_ROW = _object(
    "id",
    "state",
    id=_TEXT,
    external_id={"type": ["string", "null"]},
    pipeline=_TEXT,
    group=_TEXT,
    state={"enum": [each.value for each in State]},
    status=_TEXT,
    since_ms=_MS,
    wake_ms=_MS,
    switch=_TEXT,
    cancelling={"type": "boolean"},
)
_PAGE = _object(
    "transactions", "cursor", transactions={"type": "array", "items": _ROW}, cursor=_TEXT
)
_SWITCHED = _object(
    "outcome",
    "switches",
    outcome={"enum": ["nochange", "updated", "woken"]},
    switches={"type": "object", "additionalProperties": _SCALAR},
)
_ID = parameter("id", "Id of the transaction.")
_SWITCH = parameter("name", "Name of the switch.")


def _query(name: str, description: str, schema: dict[str, object]) -> Parameter:
    return parameter(name, description, "query", schema)


def _problems(**descriptions: str) -> Responses:
    schema: dict[str, object] = {"$ref": "#/components/schemas/Problem"}
    return {
        int(status.removeprefix("s")): (text, "application/problem+json", schema)
        for status, text in descriptions.items()
    }


START = Told(
    summary="Start transactions",
    description=(
        "One, or a list. All of a request is accepted by its form, or nothing of it is. Of a list "
        "each then has a summary or an error of its own; when nothing was started, the answer is "
        "a problem. A start with an external id can be repeated: if its content is the same "
        "(type, data and metadata but for `poll`, as parsed), the answer is 200 with what is "
        "there and `duplicate`, else 409 with `existing_id`."
    ),
    request_body={
        "description": "What to start.",
        "content": {"application/json": {"schema": {"anyOf": [_ORDER, _ORDERS]}}},
    },
    responses={
        200: (
            "It was started before; of a list, a result for each in its order.",
            "application/json",
            {"anyOf": [_SUMMARY, _RESULTS]},
        ),
        201: ("It is started.", "application/json", _SUMMARY),
        **_problems(
            s400="The request or an order is malformed.",
            s404="There is no such pipeline in this project.",
            s409="The external id is taken by a start with other content: `existing_id`.",
            s413="The body or a transaction is over the limit.",
            s422="The pipeline cannot be started from outside, or replies cannot be sent as asked.",
            s503="Not now, or the outcome is unknown: `code` tells which.",
            s507="The store or the record log is full.",
        ),
    },
)
LIST = Told(
    summary="List transactions",
    description=(
        "Page by page, found by scanning: a page may have more rows than asked for, or none; only "
        "one without a cursor is the last. With an external id, the transaction that has it. What "
        "has ended leaves the store after a while: with `archived` the archive is asked instead, "
        "newest change first."
    ),
    parameters=(
        _query("state", "Only those in this state.", {"enum": [each.value for each in State]}),
        _query("pipeline", "Only those in this pipeline.", _TEXT),
        _query("external_id", "Only the newest that has this external id.", _TEXT),
        _query(
            "archived",
            "`true`: what the archive has, as it was when it was archived; without a status, what "
            "has ended.",
            {"type": "boolean", "default": False},
        ),
        _query("status", "Of the archive: one, or several with commas between them.", _TEXT),
        _query(
            "since",
            "Of the archive: changed since 2030-01-31T12:00:00Z, milliseconds since 1970, or how "
            "long ago, `2d`.",
            _TEXT,
        ),
        _query(
            "limit",
            "About how many a page has.",
            {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
        ),
        _query("cursor", "From the page before, with the same question.", _TEXT),
    ),
    responses={
        200: ("A page.", "application/json", _PAGE),
        **_problems(s400="A parameter is malformed.", s503="Not now. Try again."),
    },
)
GET = Told(
    summary="Look at a transaction, or wait for its end",
    parameters=(
        _ID,
        _query("wait", "How long to wait for its end: `30s`, `500ms`; cut to the maximum.", _TEXT),
        _query(
            "after",
            "A `sequenceOfUpdate`: a progress report that came after it ends the wait, too.",
            {"type": "integer", "minimum": 0},
        ),
    ),
    responses={
        200: ("Its summary.", "application/json", _SUMMARY),
        **_problems(
            s400="A parameter is malformed.",
            s404="There is no such transaction in this project.",
            s503="Not now. Try again.",
        ),
    },
)
GET_BY_EXTERNAL_ID = Told(
    summary="Look at the transaction that has an external id, or wait for its end",
    description=(
        "Where several had it one after the other, the newest. It is found while the id is taken, "
        "and in the archive afterwards. For an id with a slash, ask the list by `external_id`."
    ),
    parameters=(parameter("externalId", "The external id."), *GET.parameters[1:]),
    responses=GET.responses,
)
_SWITCHED_RESPONSES: Responses = {
    200: ("What it did, and all switches.", "application/json", _SWITCHED),
    **_problems(
        s400="The name or the value is none that can be kept.",
        s404="There is no such transaction in this project.",
        s409="The transaction has ended.",
        s413="The body is over the limit.",
        s503="Not now. Try again.",
        s507="The store is full.",
    ),
}
SET_SWITCH = Told(
    summary="Set a switch",
    description="The step that waits for it goes on. The same value again changes nothing.",
    parameters=(_ID, _SWITCH),
    request_body={
        "description": "True, false, a number, or up to 32 characters without blanks and commas.",
        "schema": {**_object("value", value=_SCALAR), "additionalProperties": False},
    },
    responses=_SWITCHED_RESPONSES,
)
DELETE_SWITCH = Told(
    summary="Delete a switch",
    description="To be deleted is a change: the step that waits for it goes on.",
    parameters=(_ID, _SWITCH),
    responses=_SWITCHED_RESPONSES,
)
