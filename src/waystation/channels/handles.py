"""Acknowledgement handles: how far a subscriber has read, in the form that DSPS made.

A handle is opaque to clients: base64 of a JSON object {storage: inner}, where inner is JSON with a
clock and a checksum over channel, subscriber and clock. The checksum finds mistakes (a handle of
another channel), it is no signature: what a handle may do is decided by the store.

The text has no character that a URL would need to escape: clients put it there as it is.
"""

from __future__ import annotations

import binascii
import struct
from binascii import a2b_base64, b2a_base64, crc32

import msgspec

from waystation.errors import AckHandleMalformedError

#: DSPS can write to several storages; ours is one, under the name that DSPS gives it.
_STORAGE = "default"
_TAG = "dsps.storage.redis"
_CLOCK_MAX = 2**53 - 1


class _Inner(msgspec.Struct):
    clk: int
    xs: str


_packed_clock = struct.Struct(">q").pack
_decode_outer = msgspec.json.Decoder(dict[str, str]).decode
_decode_inner = msgspec.json.Decoder(_Inner).decode


def encode_handle(channel: str, subscriber: str, clock: int) -> str:
    """The handle that acknowledges everything up to `clock`."""
    checksum = _checksum(channel, subscriber, clock)
    inner = f'{{\\"clk\\":{clock},\\"xs\\":\\"{checksum}\\"}}'
    return b2a_base64(f'{{"{_STORAGE}":"{inner}"}}'.encode(), newline=False).decode()


def decode_handle(channel: str, subscriber: str, handle: str) -> int | None:
    """The clock in a handle; None when it names only other storages and so acknowledges nothing."""
    try:
        outer = _decode_outer(a2b_base64(handle, strict_mode=True))
        if _STORAGE not in outer:
            return None
        inner = _decode_inner(outer[_STORAGE])
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise AckHandleMalformedError("The ack handle cannot be read.") from error
    if abs(inner.clk) > _CLOCK_MAX or inner.xs != _checksum(channel, subscriber, inner.clk):
        raise AckHandleMalformedError("The ack handle is not one of this channel and subscriber.")
    return inner.clk


def _checksum(channel: str, subscriber: str, clock: int) -> str:
    text = f"{_TAG}\0{channel}\0{subscriber}\0".encode() + _packed_clock(clock)
    # Four bytes are six characters and two of padding, which DSPS leaves out.
    return b2a_base64(crc32(text).to_bytes(4, "big"))[:6].decode()
