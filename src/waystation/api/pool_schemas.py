"""Pieces of the OpenAPI document that tell of the hot routes of pools."""

from __future__ import annotations

from typing import Any

from waystation.api.channel_schemas import parameter
from waystation.api.routes import Parameter
from waystation.api.transaction_schemas import Responses, Told
from waystation.messages.formats import BATCH_TYPE
from waystation.pools.mail import BATCH_MAX
from waystation.pools.recipient import ID_BYTES_MAX, KEY_BYTES_MAX
from waystation.pools.states import WorkerState

_TEXT: dict[str, object] = {"type": "string"}
_WHOLE: dict[str, object] = {"type": "integer", "minimum": 0}
_SECONDS: dict[str, object] = {"type": "number", "minimum": 0}
_SESSION: dict[str, object] = {"type": "integer", "minimum": 1}
_KEY: dict[str, object] = {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX}
_ID: dict[str, object] = {"type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX}
_STATE: dict[str, object] = {"enum": [each.value for each in WorkerState]}


def _object(*required: str, **properties: object) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _whole_object(**properties: object) -> dict[str, Any]:
    return _object(*properties, **properties)


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": BATCH_MAX}


_PAYLOAD: dict[str, object] = {
    "data": {"description": "A payload that is JSON."},
    "text": {"type": "string", "description": "A payload that is UTF-8."},
    "base64": {"type": "string", "description": "Any other payload."},
    "content_type": _TEXT,
}
_HEADERS: dict[str, object] = {
    "type": "array",
    "items": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2},
}
_MESSAGE = _object(
    "key",
    key=_KEY,
    id=_ID,
    **_PAYLOAD,
    headers=_HEADERS,
    cause=_TEXT,
    traceparent=_TEXT,
)
_ENQUEUED = _whole_object(
    id=_TEXT,
    outcome={"enum": ["added", "duplicate", "full"]},
    number=_WHOLE,
    owner={"type": "string", "description": "Its worker; `-`: it waits for one."},
    epoch=_WHOLE,
    pending=_WHOLE,
)
_ITEM = _object("key", "epoch", "number", "token", key=_KEY, epoch=_WHOLE, number=_WHOLE)
_ITEM["properties"]["token"] = _TEXT
_TAKEN = _whole_object(
    key=_TEXT,
    epoch=_WHOLE,
    number=_WHOLE,
    token=_TEXT,
    tries=_WHOLE,
    crashes=_WHOLE,
    enqueued_ms=_WHOLE,
    message=_object("id", id=_TEXT, group=_TEXT, **_PAYLOAD, headers=_HEADERS),
)
_TAKEN["properties"]["answer_to"] = {
    "type": "string",
    "description": "Somebody waits for an answer to it.",
}
_NACK = {
    **_ITEM,
    "properties": {
        **_ITEM["properties"],
        "tries": {**_WHOLE, "description": "As the worker was told; the wait grows with it."},
        "verdict": {"enum": ["again", "dead", "release"], "default": "again"},
        "wait_seconds": {"type": ["number", "null"], "minimum": 0},
        "cause": _TEXT,
    },
}
_POOL = parameter("pool", "Name of the pool.")
_UID = parameter("uid", "Name of the worker.")


def _query(name: str, description: str, schema: dict[str, object]) -> Parameter:
    return parameter(name, description, "query", schema)


def _responses(text: str, schema: dict[str, Any], **problems: str) -> Responses:
    problem: dict[str, object] = {"$ref": "#/components/schemas/Problem"}
    told = {
        "s400": "The request is malformed.",
        "s404": "There is no such pool, or the worker is not registered: register anew.",
        "s413": "The body is over the limit.",
        "s503": "Not now, or the outcome is unknown: `code` tells which.",
        **problems,
    }
    return {200: (text, "application/json", schema)} | {
        int(status.removeprefix("s")): (words, "application/problem+json", problem)
        for status, words in sorted(told.items())
    }


def _worker(
    summary: str,
    description: str,
    body: dict[str, Any],
    answer: dict[str, Any],
    *parameters: Parameter,
    answered: str = "What came of it.",
    **problems: str,
) -> Told:
    return Told(
        summary=summary,
        description=description,
        parameters=(_POOL, _UID, *parameters),
        request_body={"description": "Who calls, and what it says.", "schema": body},
        responses=_responses(answered, answer, **problems),
    )


_EVICTED = "The worker was evicted: register anew."

SEND = Told(
    summary="Send messages to recipient keys",
    description=(
        "The body is one message, or a batch. A message is durable when this is answered, and an "
        "id that the pool remembers is there once. With `wait` the answer of the worker to the one "
        "message comes with the reply, if it comes in time: `answer` is null else. The parameters "
        "can also be headers: `waystation-key`, `waystation-id`, `waystation-wait`."
    ),
    parameters=(
        _POOL,
        _query("key", "Recipient key of the one message.", _KEY),
        _query("id", "Its id; else one is made.", _ID),
        _query("wait", "How long to wait for an answer: `15s`; cut to the maximum.", _TEXT),
    ),
    request_body={
        "description": "A payload, or a batch.",
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {"schema": {}},
            BATCH_TYPE: {
                "schema": _object(
                    "messages", messages=_list({**_MESSAGE, "additionalProperties": False})
                )
            },
        },
    },
    responses=_responses(
        "Where it is; of a batch, a result for each message in its order.",
        {
            "anyOf": [
                {
                    **_ENQUEUED,
                    "properties": {
                        **_ENQUEUED["properties"],
                        "answer": {"anyOf": [_object(**_PAYLOAD), {"type": "null"}]},
                    },
                },
                _object("results", results={"type": "array", "items": _ENQUEUED}),
            ]
        },
        s409="The pool is being deleted.",
        s503="Not now: the pool is full, or the store is away. `code` tells which.",
    ),
)
REGISTER = _worker(
    "Register a worker",
    "With the nonce of the process: the same one again is the same session, another one takes the "
    "place of the former process, and what that had taken counts as crashed.",
    _object("nonce", nonce=_TEXT),
    _whole_object(uid=_TEXT, session=_SESSION, lease_seconds=_SECONDS, stale_seconds=_SECONDS),
    answered="The session, which every other call names.",
    s409="The pool is being deleted.",
    s503="The pool has as many workers as it may have, or the store is away.",
)
BEAT = _worker(
    "Say that a worker is there",
    "Everything that a worker does says so; this is for one that has nothing to do.",
    _object("session", session=_SESSION),
    _whole_object(state=_STATE, keys=_WHOLE, pending=_WHOLE),
    s409=_EVICTED,
)
DRAIN = _worker(
    "Drain a worker",
    "It gets no more keys; those of which nothing is taken go at once, the others when that is "
    "settled. Without a session it takes an admin key.",
    _object(session=_SESSION),
    _whole_object(taken=_WHOLE),
    answered="How many messages it still has.",
)
LEAVE = _worker(
    "Take a worker off",
    "Its keys go to others, what it had taken is given back and not counted. Without a session it "
    "takes an admin key.",
    _object(session=_SESSION),
    _object(),
)
TAKE = _worker(
    "Take messages, or wait for some",
    "One of each key, under a lease, in the order of the key: the next one comes when this is "
    "settled. With the token of the last take again, as after a lost reply: the same ones. It is "
    "answered at once where the worker drains.",
    _object("session", "token", session=_SESSION, token=_TEXT),
    _whole_object(state=_STATE, items={"type": "array", "items": _TAKEN}),
    _query("wait", "How long to wait: `30s`, `500ms`; cut to the maximum.", _TEXT),
    _query(
        "max",
        "Most messages.",
        {"type": "integer", "minimum": 1, "maximum": BATCH_MAX, "default": BATCH_MAX},
    ),
    s409=_EVICTED,
)
ACK = _worker(
    "Acknowledge messages",
    "`done`; `known`: it was settled before; `lost`: it is another's by now, and is done again. "
    "With `next` the next message of each key comes with the reply, taken under the same token.",
    _object("session", "items", session=_SESSION, items=_list(_ITEM), next={"type": "boolean"}),
    _whole_object(
        results={
            "type": "array",
            "items": _whole_object(
                outcome={"enum": ["done", "known", "lost"]},
                next={"anyOf": [_TAKEN, {"type": "null"}]},
            ),
        }
    ),
)
NACK = _worker(
    "Give messages back",
    "`again`: after a wait, as long as tries are left; `dead`: as a dead letter; `release`: as if "
    "it had not been taken.",
    _object("session", "items", session=_SESSION, items=_list(_NACK)),
    _whole_object(
        results={
            "type": "array",
            "items": _whole_object(outcome={"enum": ["done", "dead", "known", "lost"]}),
        }
    ),
)
RENEW = _worker(
    "Keep messages for longer",
    "Their leases begin anew.",
    _object("session", "items", session=_SESSION, items=_list(_ITEM)),
    _whole_object(lost={"type": "array", "items": _TEXT}),
    answered="Keys of which the message is lost.",
    s409=_EVICTED,
)
ANSWER = _worker(
    "Answer a message",
    "To a message that has `answer_to`. The first answer counts; nobody waits for it longer than "
    "60 s. A step that waits is answered with JSON, once.",
    _object("session", "answer_to", session=_SESSION, answer_to=_TEXT, **_PAYLOAD),
    _object(),
    s409="The step was answered already, or has ended.",
)
