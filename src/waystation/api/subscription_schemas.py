"""Pieces of the OpenAPI document that tell of the routes of subscriptions one can wait at."""

from __future__ import annotations

from typing import Any

from waystation.api.channel_schemas import parameter
from waystation.api.routes import Parameter
from waystation.api.transaction_schemas import Responses, Told
from waystation.subscriptions.states import GroupState, OperationState

_TEXT: dict[str, object] = {"type": "string"}
_COUNT: dict[str, object] = {"type": "integer", "minimum": 0}
_MS: dict[str, object] = {"type": "integer", "minimum": 0, "description": "0: there is none."}


def _object(**properties: object) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


_FAILED = _object(
    id=_TEXT,
    group={"type": ["string", "null"]},
    position=_TEXT,
    attempts=_COUNT,
    first_failure_ms=_MS,
    last_failure_ms=_MS,
    failure=_TEXT,
    cause=_TEXT,
    excerpt=_TEXT,
    bytes=_COUNT,
    not_before_ms=_MS,
)
_GROUP = _object(
    group=_TEXT,
    shard=_COUNT,
    state={"enum": [each.value for each in GroupState]},
    retry=_COUNT,
    dead=_COUNT,
    tries=_COUNT,
    operation=_TEXT,
    due_ms=_MS,
    failed_ms=_MS,
    under_way={"type": "boolean"},
    head={"anyOf": [_FAILED, {"type": "null"}]},
)
_OPERATION = _object(
    id=_TEXT,
    kind={"enum": ["redrive", "skip", "purge", "reset"]},
    asked={"type": "object"},
    state={"enum": [each.value for each in OperationState]},
    begun_ms=_MS,
    ended_ms=_MS,
    count=_COUNT,
    progress=_object(
        matched=_COUNT,
        marked=_COUNT,
        settled=_COUNT,
        parked_again=_COUNT,
        open=_COUNT,
        shards_done=_COUNT,
    ),
    sample={"type": "array", "items": _FAILED},
)
_SUBSCRIPTION = parameter("subscription", "Name of the subscription.")


def _query(name: str, description: str, schema: dict[str, object]) -> Parameter:
    return parameter(name, description, "query", schema)


_WAIT = _query("wait", "How long to wait: `30s`, `500ms`; cut to the maximum.", _TEXT)


def _responses(text: str, schema: dict[str, Any], **problems: str) -> Responses:
    problem: dict[str, object] = {"$ref": "#/components/schemas/Problem"}
    return {200: (text, "application/json", schema)} | {
        int(status.removeprefix("s")): (told, "application/problem+json", problem)
        for status, told in problems.items()
    }


GROUP = Told(
    summary="Look at a group, or wait for its state",
    description=(
        "A group that nothing waits of is clean. With `wait` the answer comes when the group is "
        "in the state that is asked for, or after so long: `state` tells which."
    ),
    parameters=(
        _SUBSCRIPTION,
        _query("group", "The group.", _TEXT),
        _query("state", "Which state to wait for.", {"enum": [each.value for each in GroupState]}),
        _WAIT,
    ),
    responses=_responses(
        "The group, with the message that all others of it wait for.",
        _GROUP,
        s400="A parameter is malformed.",
        s404="There is no such subscription in this project.",
        s409="The subscription is being created or deleted.",
        s503="Not now. Try again.",
    ),
)
OPERATION = Told(
    summary="Look at an operation, or wait for its end",
    description="It has ended when nothing that it has marked is open any more.",
    parameters=(_SUBSCRIPTION, parameter("operation", "Id of the operation."), _WAIT),
    responses=_responses(
        "The operation with its progress.",
        _OPERATION,
        s400="A parameter is malformed.",
        s404="There is no such subscription or operation in this project.",
        s503="Not now. Try again.",
    ),
)
