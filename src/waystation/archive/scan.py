"""Reading an archive as a whole, in ranges of ids that several may read at a time.

For those who have no event loop, such as a task of Spark. It reads and never writes, also not a
schema: an archive is made by the station that keeps it. A range is read page by page, so a
transaction is read once, whatever is archived meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol
from urllib.parse import quote

import msgspec

from waystation.archive.batch import is_fit
from waystation.archive.columns import COLUMNS, FACTS, state_of
from waystation.archive.protocol import ArchivedState
from waystation.archive.trouble import fail
from waystation.database import Trouble, check_postgres

#: Rows that are read at once.
_PAGE = 4_096
_BUSY_SECONDS = 10.0
#: Ids in one statement.
_IDS_MAX = 500
_SCHEMA = "waystation_archive"

Operator = Literal["=", "<", "<=", ">", ">=", "in"]


class Condition(msgspec.Struct, frozen=True):
    """What rows have to fulfil; of `in` one of several values."""

    column: str
    operator: Operator
    values: tuple[str | int, ...]


class IdRange(msgspec.Struct, frozen=True):
    """Ids from the first on, and before the end; None: there is no end."""

    first: str = ""
    end: str | None = None


class _Database(Protocol):
    """A connection: statements have `?` for each value."""

    def rows(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]: ...

    def close(self) -> None: ...


class ArchiveScan:
    """An archive to be read; close it when done."""

    def __init__(self, place: str) -> None:
        """Opens the archive of a PostgreSQL URL, or of a file.

        SettingsError: no such URL. ArchiveUnavailableError: it does not answer, or is none.
        """
        is_url = place.startswith(("postgresql:", "postgres:"))
        self._database: _Database = _Postgres(place) if is_url else _Sqlite(Path(place))

    def __enter__(self) -> ArchiveScan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._database.close()

    def identity(self) -> str:
        """Return the name that this archive got when it was made."""
        return str(self._database.rows("SELECT name FROM identity", ())[0][0])

    def get(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        """Return states by id; ids that the archive does not have are left out."""
        found: dict[str, ArchivedState] = {}
        fit = [each for each in ids if is_fit(each)]
        for first in range(0, len(fit), _IDS_MAX):
            some = fit[first : first + _IDS_MAX]
            where, values = _where([Condition("id", "in", tuple(some))])
            statement = f"SELECT {', '.join(COLUMNS)} FROM state{where}"  # noqa: S608
            found |= {row[0]: state_of(row) for row in self._database.rows(statement, values)}
        return found

    def ranges(self, conditions: Sequence[Condition], *, rows: int, most: int) -> list[IdRange]:
        """Ranges of about so many rows that fulfil the conditions; larger ones beyond `most`."""
        where, values = _where(conditions)
        count = self._database.rows(f"SELECT count(*) FROM state{where}", values)[0][0]  # noqa: S608
        step = max(rows, -(-count // most))
        if count <= step:
            return [IdRange()]
        numbered = f"SELECT id, row_number() OVER (ORDER BY id) AS number FROM state{where}"  # noqa: S608
        borders = self._database.rows(
            f"SELECT id FROM ({numbered}) AS numbered"  # noqa: S608
            f" WHERE number > 1 AND (number - 1) % {int(step)} = 0 ORDER BY id",
            values,
        )
        ids = [row[0] for row in borders]
        return [IdRange(*each) for each in zip(["", *ids], [*ids, None], strict=True)]

    def pages(
        self, range_: IdRange, conditions: Sequence[Condition]
    ) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a range by their ids, in the order of COLUMNS."""
        bounds = [] if range_.end is None else [Condition("id", "<", (range_.end,))]
        first = Condition("id", ">=", (range_.first,))
        while True:
            where, values = _where([first, *bounds, *conditions])
            page = self._database.rows(
                f"SELECT {', '.join(COLUMNS)} FROM state{where} ORDER BY id LIMIT {_PAGE}",  # noqa: S608
                values,
            )
            if page:
                yield page
            if len(page) < _PAGE:
                return
            first = Condition("id", ">", (page[-1][0],))


def _where(conditions: Sequence[Condition]) -> tuple[str, list[str | int]]:
    words, values = [], list[str | int]()
    for each in conditions:
        assert each.column in FACTS, "columns are ours, values are not"
        places = ", ".join("?" * len(each.values))
        words.append(f"{each.column} {each.operator} ({places})")
        values += each.values
    return (f" WHERE {' AND '.join(words)}" if words else ""), values


class _Sqlite:
    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise fail(Trouble.AWAY, f"There is no archive {file}.")
        self._connection = sqlite3.connect(
            f"file:{quote(str(file))}?mode=ro", uri=True, timeout=_BUSY_SECONDS
        )

    def rows(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        try:
            with closing(self._connection.execute(statement, values)) as cursor:
                return cursor.fetchall()
        except sqlite3.Error as error:
            raise fail(Trouble.AWAY, f"The archive cannot be read: {error}.") from error

    def close(self) -> None:
        self._connection.close()


class _Postgres:
    def __init__(self, url: str) -> None:
        check_postgres("archive", url)
        import psycopg  # noqa: PLC0415 (an extra)

        self._error = psycopg.Error
        try:
            self._connection = psycopg.connect(
                url, autocommit=True, connect_timeout=5, application_name="waystation"
            )
            self._connection.execute(f"SET search_path TO {_SCHEMA}".encode())
            self._connection.execute(b"SET default_transaction_read_only TO on")
        except psycopg.Error as error:
            raise self._trouble(error) from None

    def rows(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        # A percent sign of our own is doubled; all else that could have one is a value.
        text = statement.replace("%", "%%").replace("?", "%s")
        try:
            return self._connection.execute(text.encode(), values).fetchall()
        except self._error as error:
            raise self._trouble(error) from None

    def close(self) -> None:
        self._connection.close()

    def _trouble(self, error: Exception) -> Exception:
        """Without the error itself, which knows what was asked for."""
        line = next(iter(str(error).splitlines()), "")
        return fail(Trouble.AWAY, f"The archive cannot be read: {line}")
