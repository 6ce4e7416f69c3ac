"""Redaction: which parts of messages and transactions are copied to the history.

A topic or pipeline sets `record`: `full` keeps everything, `headers` drops the content that users
put in, `none` drops all data of users. `redact` lists JSON pointers whose values are replaced by
`"[redacted]"`; all other values stay byte for byte. Content that is not JSON cannot be redacted,
so history drops it if the policy has any pointer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from waystation.errors import InvalidInputError
from waystation.types.common import (
    POINTER_CHARACTERS_MAX,
    POINTER_PATTERN,
    POINTERS_MAX,
    Record,
)

#: Passed to scripts instead of the id of the data set, so that they write no record log.
UNRECORDED = "-"
#: From the value that keeps most to the value that keeps least.
_RECORDS: tuple[Record, ...] = ("full", "headers", "none")

REDACTED = msgspec.Raw(b'"[redacted]"')
_INDEX = re.compile(r"0|[1-9][0-9]*")
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.Encoder().encode

#: Pointers as a tree of their tokens; None: the value at this place is redacted.
_Tree = dict[str, Any] | None


class RedactionPolicy(msgspec.Struct, frozen=True, dict=True):
    """The parts that the history keeps of the messages of a topic or the runs of a pipeline."""

    record: Record = "full"
    redact: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Value of the column `recorded`: `full`, `redacted`, `headers` or `none`."""
        return "redacted" if self.record == "full" and self.redact else self.record

    @property
    def keeps_all(self) -> bool:
        """Whether history keeps everything unchanged."""
        return self.record == "full" and not self.redact

    def keep_opaque(self, content: bytes | None) -> bytes | None:
        """Return content that is not JSON if history may keep it, else None."""
        return content if self.keeps_all else None

    def keep_json(self, content: bytes | None) -> bytes | None:
        """Return JSON with redacted values; None if history must not keep any of it."""
        if content is None or self.keeps_all:
            return content
        if self.record != "full":
            return None
        try:
            return bytes(_redacted(_decode_any(content), self._tree))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    @cached_property
    def _tree(self) -> _Tree:
        return _pointer_tree(self.redact)


#: Default policy of topics and pipelines.
FULL = RedactionPolicy()


def redaction_policy(record: Record, redact: Sequence[str]) -> RedactionPolicy:
    """Return the policy of a topic or pipeline; `FULL` itself if it keeps everything."""
    return RedactionPolicy(record, tuple(redact)) if record != "full" or redact else FULL


def strictest_policy(policies: Iterable[RedactionPolicy]) -> RedactionPolicy:
    """Return the policy that keeps only what all given policies keep."""
    strictest = FULL
    for policy in policies:
        if policy is not FULL:
            record = max(strictest.record, policy.record, key=_RECORDS.index)
            redact = tuple(dict.fromkeys((*strictest.redact, *policy.redact)))
            strictest = redaction_policy(record, redact)
    return strictest


def check_redaction(record: str, redact: Sequence[str]) -> None:
    """Raise InvalidInputError if `record` or a pointer of `redact` is invalid."""
    if record not in _RECORDS:
        raise InvalidInputError(f"record must be one of {', '.join(_RECORDS)}.", field="record")
    if isinstance(redact, str) or len(redact) > POINTERS_MAX:
        raise InvalidInputError(
            f"redact must be a list of at most {POINTERS_MAX} JSON pointers.", field="redact"
        )
    for pointer in redact:
        if not re.search(POINTER_PATTERN, pointer) or len(pointer) > POINTER_CHARACTERS_MAX:
            raise InvalidInputError(
                f"{pointer[:100]!r} is not a JSON pointer.",
                field="redact",
                hint="Write a pointer like /card/number, with ~1 for a slash and ~0 for a tilde.",
            )


def _pointer_tree(pointers: Iterable[str]) -> _Tree:
    root: dict[str, Any] = {}
    for pointer in pointers:
        if not pointer:
            return None
        tokens = (token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/"))
        _, *parents, last = tokens
        node: Any = root
        for token in parents:
            node = node.setdefault(token, {})
            if node is None:
                break  # Another pointer redacts the whole parent.
        else:
            node[last] = None
    return root


def _redacted(value: msgspec.Raw, tree: _Tree) -> msgspec.Raw:
    """Return JSON with the values at the pointers of `tree` replaced.

    Objects and arrays that contain such a value are written anew. Otherwise an object that repeats
    a name would keep the earlier values, because the parser reads only the last one.
    """
    if tree is None:
        return REDACTED
    match bytes(value).lstrip()[:1]:
        case b"{":
            members = _decode_object(value)
            for name, below in tree.items():
                if name in members:
                    members[name] = _redacted(members[name], below)
            return msgspec.Raw(_encode(members))
        case b"[":
            items = _decode_list(value)
            for name, below in tree.items():
                if _INDEX.fullmatch(name) and int(name) < len(items):
                    items[int(name)] = _redacted(items[int(name)], below)
            return msgspec.Raw(_encode(items))
        case _:
            return value
