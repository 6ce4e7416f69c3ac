"""What history keeps of a message or a transaction, as its topic or pipeline says.

`full` is everything, `headers` all but what users have put into it, `none` nothing that they have.
`redact` names places in their JSON whose values are not kept: `"[redacted]"` stands there, and all
other values are as they came, byte for byte. What is not JSON cannot be looked into, so with any
such place nothing of it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from waystation.errors import InvalidInputError

Record = Literal["full", "headers", "none"]
#: Stands for the data set in the terms of scripts where nothing is written down at all.
UNRECORDED = "-"
#: From the one that keeps most to the one that keeps least.
_RECORDS: tuple[Record, ...] = ("full", "headers", "none")
#: RFC 6901: empty is the whole, else tokens with a slash before each; `~0` is `~`, `~1` is `/`.
_POINTER = r"^(/([^/~]|~[01])*)*\Z"
_POINTER_CHARACTERS_MAX = 1000
_POINTERS_MAX = 100

Pointer = Annotated[str, Meta(pattern=_POINTER, max_length=_POINTER_CHARACTERS_MAX)]
Pointers = Annotated[tuple[Pointer, ...], Meta(max_length=_POINTERS_MAX)]

REDACTED = msgspec.Raw(b'"[redacted]"')
_INDEX = re.compile(r"0|[1-9][0-9]*")
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.Encoder().encode

#: Places below a place, by their next token; None: this one is redacted.
_Tree = dict[str, Any] | None


class Recording(msgspec.Struct, frozen=True, dict=True):
    """What is kept of one topic or pipeline."""

    record: Record = "full"
    redact: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """What it is called in a row."""
        return "redacted" if self.record == "full" and self.redact else self.record

    @property
    def is_whole(self) -> bool:
        """Whether everything is kept as it is."""
        return self.record == "full" and not self.redact

    def opaque(self, content: bytes | None) -> bytes | None:
        """What is kept of content that cannot be looked into."""
        return content if self.is_whole else None

    def json(self, content: bytes | None) -> bytes | None:
        """What is kept of JSON of a user; None: nothing."""
        if content is None or self.is_whole:
            return content
        if self.record != "full":
            return None
        try:
            return bytes(_without(_decode_any(content), self._tree))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    @cached_property
    def _tree(self) -> _Tree:
        return _tree_of(self.redact)


#: What is asked for unless somebody says otherwise.
FULL = Recording()


def recording(record: Record, redact: Sequence[str]) -> Recording:
    """What a topic or a pipeline asks for; the same object for all that ask for everything."""
    return Recording(record, tuple(redact)) if record != "full" or redact else FULL


def strictest(recordings: Iterable[Recording]) -> Recording:
    """What is kept of something that belongs to several."""
    found = FULL
    for each in recordings:
        if each is not FULL:
            record = max(found.record, each.record, key=_RECORDS.index)
            found = recording(record, tuple(dict.fromkeys((*found.redact, *each.redact))))
    return found


def require_recording(record: str, redact: Sequence[str]) -> None:
    """InvalidInputError for what is no way to record."""
    if record not in _RECORDS:
        raise InvalidInputError(f"record is one of {', '.join(_RECORDS)}.", field="record")
    if isinstance(redact, str) or len(redact) > _POINTERS_MAX:
        raise InvalidInputError(
            f"redact is a list of at most {_POINTERS_MAX} JSON pointers.", field="redact"
        )
    for each in redact:
        if not re.search(_POINTER, each) or len(each) > _POINTER_CHARACTERS_MAX:
            raise InvalidInputError(
                f"{each[:100]!r} is not a JSON pointer.",
                field="redact",
                hint="A pointer is like /card/number; ~1 stands for a slash, ~0 for a tilde.",
            )


def _tree_of(pointers: Iterable[str]) -> _Tree:
    root: dict[str, Any] = {}
    for pointer in pointers:
        if not pointer:
            return None
        tokens = (token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/"))
        _, *way, last = tokens
        node: Any = root
        for token in way:
            node = node.setdefault(token, {})
            if node is None:
                break  # All of it is redacted already.
        else:
            node[last] = None
    return root


def _without(value: msgspec.Raw, tree: _Tree) -> msgspec.Raw:
    """JSON without some of its values.

    All on the way to them is written anew: a name that is there twice, of which readers see the
    last, must not hide the first.
    """
    if tree is None:
        return REDACTED
    match bytes(value).lstrip()[:1]:
        case b"{":
            members = _decode_object(value)
            for name, below in tree.items():
                if name in members:
                    members[name] = _without(members[name], below)
            return msgspec.Raw(_encode(members))
        case b"[":
            items = _decode_list(value)
            for name, below in tree.items():
                if _INDEX.fullmatch(name) and int(name) < len(items):
                    items[int(name)] = _without(items[int(name)], below)
            return msgspec.Raw(_encode(items))
        case _:
            return value
