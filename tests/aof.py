"""Append-only files in tests: find, grow, tear and spoil them."""

from __future__ import annotations

from pathlib import Path


def newest_part(folder: Path) -> Path:
    """The part of an append-only file that the server of `folder` appends to."""
    (part,) = (folder / "appendonlydir").glob("*.incr.aof")
    return part


def grow(folder: Path, commands: int) -> None:
    """Adds that many SETs, as if the server had written them; much quicker than calling it."""
    with newest_part(folder).open("ab") as part:
        for number in range(commands):
            key = b"grown-%07d" % number
            part.write(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$1\r\nx\r\n" % (len(key), key))


def tear(folder: Path) -> None:
    """Cuts the last command in two, as a crash in the middle of a write does."""
    part = newest_part(folder)
    with part.open("r+b") as file:
        file.truncate(part.stat().st_size - 5)


def spoil(folder: Path) -> bytes:
    """Overwrites the beginning of a command in the middle; returns the content as it is then."""
    part = newest_part(folder)
    content = bytearray(part.read_bytes())
    # A changed letter within a value would be a value too, and what begins with # is a comment.
    place = content.index(b"\r\n*", len(content) // 2) + 2
    content[place : place + 9] = b"!spoiled!"
    part.write_bytes(content)
    return bytes(content)
