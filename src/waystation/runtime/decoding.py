"""JSON decoders that several threads can request concurrently.

msgspec builds its description of a struct class when the class is first decoded into, and makes it
visible to other threads before it is complete. A thread that decodes into the class meanwhile
crashes the process (docs/internals/dependencies.md). Code that threads run therefore gets its
decoders here, where one thread at a time builds them; all other code creates them at import.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")

#: Number of cached decoders. A limit is necessary, because a step can define a class in each call.
_DECODERS_MAX = 1024
# Reentrant, because building a decoder evaluates annotations, which can run code of a user.
_building = threading.RLock()


def decode_json(body: bytes | str, kind: type[_T]) -> _T:
    """Decode JSON into a type. Raise msgspec.ValidationError or DecodeError if it does not fit."""
    decoder: msgspec.json.Decoder[_T] = decoder_of(kind)
    return decoder.decode(body)


def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of a type, complete before any thread can use it.

    Raise TypeError if msgspec does not support the type. Must not be called while a module is
    imported: the thread that builds a decoder may wait for that import.
    """
    try:
        return _kept(kind)
    except TypeError:
        # A type that is not hashable, such as Annotated with a list, cannot be cached. For a type
        # that msgspec does not support, this call raises the error again.
        return _built(kind)


@lru_cache(_DECODERS_MAX)
def _kept(kind: Any) -> msgspec.json.Decoder[Any]:
    return _built(kind)


def _built(kind: Any) -> msgspec.json.Decoder[Any]:
    with _building:
        return msgspec.json.Decoder(kind)
