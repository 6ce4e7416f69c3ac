"""Content types, as far as they matter here: which form a request has, and what is JSON."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from waystation.errors import UnsupportedMediaTypeError
from waystation.messages.envelope import Headers

#: `message`: the body is the payload. The others hold one or several messages.
Form = Literal["message", "event", "events", "batch"]

EVENT = "application/cloudevents+json"
EVENTS = "application/cloudevents-batch+json"
BATCH = "application/vnd.waystation.batch+json"
_FORMS: dict[str, Form] = {EVENT: "event", EVENTS: "events", BATCH: "batch"}
#: Other formats under these names hold messages too, but nobody here reads them.
_RESERVED = ("application/cloudevents", "application/vnd.waystation.")


@lru_cache(maxsize=256)
def form_of(content_type: str) -> Form:
    """The form of a request; an error for one that holds messages in a way not spoken here."""
    media_type = _media_type(content_type)
    if media_type.startswith(_RESERVED) and media_type not in _FORMS:
        raise UnsupportedMediaTypeError(
            f"{media_type[:80]} is not understood.", hint=f"Use {', '.join(_FORMS)}."
        )
    return _FORMS.get(media_type, "message")


@lru_cache(maxsize=256)
def is_json_type(content_type: str) -> bool:
    """Whether it says that the payload is JSON."""
    media_type = _media_type(content_type)
    return media_type in ("application/json", "text/json") or media_type.endswith("+json")


def content_type_of(headers: Headers) -> str | None:
    """The content type among a message's headers."""
    for name, value in headers:
        if name == "content-type":
            return value
    return None


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
