"""Rows of operations that belong to no shard and no cell."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from waystation.history.decoders.registry import decoder_for
from waystation.history.offsets import OffsetRange
from waystation.logs.operations import OperationRecord
from waystation.logs.protocol import LogBatch

_pack = msgspec.msgpack.encode


def made(*payloads: bytes) -> list[dict[str, Any]]:
    decoder = decoder_for("operations")
    assert decoder is not None
    block = LogBatch(7, 7 + len(payloads), [1_000] * len(payloads), list(payloads))
    return decoder.decode(OffsetRange("operations", 0, 7, 99), block).to_pylist()


def test_what_was_done_is_a_row_with_its_detail() -> None:
    prune = OperationRecord(kind="prune", detail={"before_ms": 12})
    erase = OperationRecord(project="shop", kind="erase", subject="tx-1")

    first, second = made(_pack(prune), _pack(erase))

    assert (first["log_offset"], first["kind"], first["subject"]) == (7, "prune", None)
    assert json.loads(first["detail"]) == {"before_ms": 12}
    assert (second["project"], second["subject"]) == ("shop", "tx-1")


def test_an_entry_that_cannot_be_read_is_a_row_with_its_bytes() -> None:
    newer = _pack(OperationRecord(format=2, kind="prune"))
    odd = _pack({"format": 1, "kind": "prune", "detail": {"x": b"bytes"}})
    payloads = (b"no entry", newer, odd, b"\x91" * 5000)
    for row, payload in zip(made(*payloads), payloads, strict=True):
        assert row["kind"] == "unknown"
        assert bytes.fromhex(json.loads(row["detail"])["bytes"]) == payload
