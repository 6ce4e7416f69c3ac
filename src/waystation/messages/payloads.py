"""Payloads as parts of JSON: as they are if they are JSON, else as text, where they are that."""

from __future__ import annotations

import msgspec

_decode_any = msgspec.json.Decoder().decode


def json_payload(data: bytes) -> msgspec.Raw | None:
    """A payload that is JSON, on one line and token by token as it is; None for any other."""
    try:
        # Strictly: what some parsers of JSON refuse must not spoil the whole that it is put into.
        _decode_any(data)
        if b"\n" in data or b"\r" in data:
            data = msgspec.json.format(data, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return msgspec.Raw(data.strip())


def text_payload(data: bytes) -> str | None:
    """A payload that is UTF-8; None for any other."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
