"""The OpenAPI document: Litestar's routes and the dispatcher's, in one."""

from __future__ import annotations

from typing import Any

from waystation.api.routes import Route

_PROBLEM: dict[str, object] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "hint": {"type": "string", "description": "Next step for a person; ends `detail` too."},
        "instance": {"type": "string"},
        "code": {"type": "string", "description": "Stable; test this, not the texts."},
        "request_id": {"type": "string"},
        "errors": {"type": "array", "items": {"type": "object"}},
        "retry_after_s": {"type": "integer"},
        "first": {"type": "integer", "description": "The first offset that is kept."},
        "end": {"type": "integer", "description": "The offset of the next message."},
        "path": {"type": "string", "description": "Where a payload does not match a schema."},
        "position": {"type": "integer", "description": "Of the message in its batch."},
        "policy": {"type": "string", "description": "Why what is full makes no room."},
        "key": {"type": "string", "description": "Store key that is damaged."},
    },
}
#: What every route behind a key can answer, and what those with input can.
_PROBLEM_STATUSES = {
    "400": "The request is malformed.",
    "401": "A key is needed.",
    "403": "The key does not suffice.",
    "404": "There is no such thing in this project.",
    "409": "It is there already.",
    "413": "The body is over the limit.",
    "503": "Not now. Try again.",
    "507": "The store, or the channel, is full.",
}


def build_document(
    wide: dict[str, Any], routes: list[Route], *, prefix: str = ""
) -> dict[str, Any]:
    """Everything that the server answers, as OpenAPI 3.1; `wide` is Litestar's part of it."""
    document = dict(wide)
    document["servers"] = [{"url": prefix or "/"}]
    document["info"]["description"] = (
        "Durable messages and transactions on Valkey/Redis. Errors of the channel and probe "
        "routes have DSPS's shape, all others are problem+json (RFC 9457)."
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = _PROBLEM
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key, `ws_…`."}
    }
    for operations in document["paths"].values():
        for operation in operations.values():
            _use_problems(operation)
    for route in routes:
        document["paths"].setdefault(route.path, {})[route.method.lower()] = _operation(route)
    document["paths"] = dict(sorted(document["paths"].items()))
    return document


def _use_problems(operation: dict[str, Any]) -> None:
    """Litestar documents its own error shape; ours is another."""
    responses = operation["responses"]
    for status in [status for status in responses if status.startswith(("4", "5"))]:
        del responses[status]
    for status, description in _PROBLEM_STATUSES.items():
        responses[status] = _response(
            description, "application/problem+json", {"$ref": "#/components/schemas/Problem"}
        )


def _operation(route: Route) -> dict[str, Any]:
    responses = {
        str(status): _response(description, media_type, schema)
        for status, (description, media_type, schema) in sorted(route.responses.items())
    }
    if route.manner == "own" and route.scope is not None:
        for status in ("401", "403"):
            responses[status] = _response(
                _PROBLEM_STATUSES[status],
                "application/problem+json",
                {"$ref": "#/components/schemas/Problem"},
            )
    operation: dict[str, Any] = {
        "operationId": route.name.replace(" ", "")
        .replace("/", "_")
        .translate({123: None, 125: None}),
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [
            {
                "name": each.name,
                "in": each.place,
                "required": each.place == "path",
                "description": each.description,
                "schema": each.schema,
            }
            for each in route.parameters
        ],
        "responses": responses,
        "security": [{"key": []}] if route.scope is not None or route.locked else [],
    }
    if route.description:
        operation["description"] = route.description
    if route.request_body is not None:
        operation["requestBody"] = {
            "required": True,
            "description": route.request_body["description"],
            "content": route.request_body.get("content")
            or {"application/json": {"schema": route.request_body["schema"]}},
        }
    return operation


def _response(description: str, media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": description}
    if media_type:
        response["content"] = {media_type: {"schema": schema}}
    return response
