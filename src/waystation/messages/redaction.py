"""Redaction: the parts of messages and transactions that history may copy.

A topic or pipeline sets `record`: `full` keeps everything, `headers` drops the content that users
put in, `none` drops all data of users. `redact` lists JSON pointers. History replaces their values
by `"[redacted]"` and keeps all other values byte for byte. If the policy has pointers, history
drops content that is not JSON, because pointers do not apply to it.
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

#: Scripts that get this text instead of the id of the data set write no record log.
UNRECORDED = "-"
#: Values of `record`, sorted from the one that keeps most to the one that keeps least.
_RECORDS: tuple[Record, ...] = ("full", "headers", "none")

REDACTED = msgspec.Raw(b'"[redacted]"')
_INDEX = re.compile(r"0|[1-9][0-9]*")
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.Encoder().encode

#: JSON pointers as a tree: token -> subtree, or None if the value at this path is redacted.
_Tree = dict[str, Any] | None


class RedactionPolicy(msgspec.Struct, frozen=True, dict=True):
    """The parts that the history keeps of the messages of a topic or the runs of a pipeline."""

    record: Record = "full"
    redact: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Value for the column `recorded` of history: `full`, `redacted`, `headers` or `none`."""
        return "redacted" if self.record == "full" and self.redact else self.record

    @property
    def keeps_all(self) -> bool:
        """True if history keeps everything unchanged."""
        return self.record == "full" and not self.redact

    def keep_opaque(self, content: bytes | None) -> bytes | None:
        """Return content that is not JSON, or None if any of it would have to be redacted."""
        return content if self.keeps_all else None

    def keep_json(self, content: bytes | None) -> bytes | None:
        """Return JSON content with redacted values. Return None if history must drop it."""
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
    """Return the policy for the options of a topic or pipeline.

    Return the constant `FULL` if it keeps everything.
    """
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
                break  # Another pointer redacts the parent and everything in it.
        else:
            node[last] = None
    return root


def _redacted(value: msgspec.Raw, tree: _Tree) -> msgspec.Raw:
    """Replace the values at the pointers of `tree` and return the JSON.

    Encode objects and arrays again even if only one value in them changes. An object can repeat a
    name, and the decoder returns only the last value. Copied bytes would keep the earlier values.
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
