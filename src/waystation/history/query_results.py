"""Results of SQL queries as bytes: JSON lines, CSV, or lines for a table on a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import msgspec

from waystation.history.query_protocol import ResultFormat

#: Rows of a table for a terminal; JSON and CSV have all rows.
TABLE_ROWS_MAX = 1_000
#: Characters of a cell of such a table.
_CELL_CHARACTERS_MAX = 60
_PIECE_BYTES = 65_536

_decode_cells: msgspec.json.Decoder[list[str]] = msgspec.json.Decoder(list[str])


def encode_result(
    columns: list[str], rows: Iterable[tuple[Any, ...]], form: ResultFormat
) -> Iterator[bytes]:
    """Yield a result in pieces of at most 64 KiB. Rows are computed while the caller iterates."""
    buffer = bytearray()
    for line in _lines(columns, rows, form):
        buffer += line
        while len(buffer) >= _PIECE_BYTES:
            yield bytes(buffer[:_PIECE_BYTES])
            del buffer[:_PIECE_BYTES]
    if buffer:
        yield bytes(buffer)


def decode_table(pieces: Iterable[bytes]) -> tuple[list[str], list[list[str]], bool]:
    """Return columns and rows of a result in the format `table`, and whether there are more."""
    columns, *rows = (_decode_cells.decode(line) for line in b"".join(pieces).splitlines())
    return columns, rows[:TABLE_ROWS_MAX], len(rows) > TABLE_ROWS_MAX


def _lines(
    columns: list[str], rows: Iterable[tuple[Any, ...]], form: ResultFormat
) -> Iterator[bytes]:
    if form == "json":
        names = _unique(columns)
        for row in rows:
            document = dict(zip(names, row, strict=True))
            yield msgspec.json.encode(document, enc_hook=str) + b"\n"
    elif form == "csv":
        for cells in chain([columns], rows):
            line = io.StringIO()
            csv.writer(line).writerow(cells)
            yield line.getvalue().encode()
    else:
        yield msgspec.json.encode(columns) + b"\n"
        for row in islice(rows, TABLE_ROWS_MAX + 1):
            yield msgspec.json.encode([_cell(value) for value in row]) + b"\n"


def _unique(columns: Iterable[str]) -> list[str]:
    """Return the names of columns with a number behind repeated ones: `id`, `id_2`."""
    columns = list(columns)
    names: dict[str, None] = {}
    for index, column in enumerate(columns):
        name, number = column, 1
        # A later column can have the name that a number makes.
        while name in names or (number > 1 and name in columns[index:]):
            number += 1
            name = f"{column}_{number}"
        names[name] = None
    return list(names)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _CELL_CHARACTERS_MAX else f"{text[: _CELL_CHARACTERS_MAX - 1]}…"
