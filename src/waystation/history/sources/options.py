"""Options of the Spark sources, and the locations of the store and the archive.

Spark shows options in plans, in its UI and in checkpoints, so an option must not contain a
password. A file, or the environment of the machine that reads, has the URL with the password. All
names are in lower case, because Spark ignores the case of options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from waystation.database import check_postgres
from waystation.errors import (
    InvalidInputError,
    SettingsError,
    SourceOptionError,
    StoreUnavailableError,
)
from waystation.history.offsets import TASK_ROWS, TASKS_PER_CORE, OnGap
from waystation.runtime.ids import require_name
from waystation.store.address import parse_address
from waystation.store.embedded.server import EmbeddedServer

#: Value of the option `topic` for all topics of a project.
ALL_TOPICS = "*"
#: Values of the option `table`: the tables that have rows of record logs.
RECORD_TABLES = (
    *("channels", "deliveries", "operations", "pools", "steps", "transactions"),
    "webhook_attempts",
)
_READ_OPTIONS = ("partition_rows", "partitions_max")
_TOPIC_OPTIONS = (
    *("consumer", "from", "on_gap", *_READ_OPTIONS, "project", "rows_max"),
    *("store", "store_file", "table", "topic"),
)
_ARCHIVE_OPTIONS = ("archive", "archive_file", *_READ_OPTIONS)
_POSTGRES = ("postgresql:", "postgres:")

_T = TypeVar("_T")

LocationKind = Literal["store", "archive"]


class Location(msgspec.Struct, frozen=True):
    """Origin of the URL of the store or the archive: an option, a file or the environment."""

    #: URL without a password; of the archive also the absolute path of a file.
    option: str = ""
    #: Absolute path of a file with the URL, on each machine that reads.
    file: str = ""
    kind: LocationKind = "store"

    def resolve(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the URL from the option, the file or the environment; of an archive also a path.

        A store without any of them is the running embedded store of the data directory, which is
        `.waystation` in the current folder unless WAYSTATION_DATA names another. The URL may
        contain a password: do not keep it. Raise SourceOptionError if there is no URL.
        """
        environment = os.environ if environment is None else environment
        variable = f"WAYSTATION_{self.kind.upper()}_URL"
        if self.option:
            return self.option
        if file := self.file or environment.get(f"{variable}_FILE", ""):
            return self._read_file(Path(file))
        if url := environment.get(variable, ""):
            return url
        if self.kind == "archive":
            raise SourceOptionError(
                "No option names the archive.",
                field="archive",
                hint="Give archive, the path of archive.db or a URL without a password; or"
                f" archive_file, a file with the URL; or set ${variable}.",
            )
        if url := _embedded_url(Path(environment.get("WAYSTATION_DATA", "") or ".waystation")):
            return url
        raise SourceOptionError(
            "No option names the store.",
            field="store",
            hint=f"Give store_file, or store for a URL without a password; or set ${variable}; or"
            " run Spark in the folder of `waystation dev`.",
        )

    def _read_file(self, file: Path) -> str:
        field = f"{self.kind}_file"
        try:
            url = file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SourceOptionError(
                f"The file with the URL of the {self.kind} cannot be read: {error.strerror}.",
                field=field,
                hint="Each machine that runs executors needs the file.",
            ) from error
        except UnicodeDecodeError:
            url = ""
        if not url:
            # Without its content, which may have a password.
            raise SourceOptionError(
                f"The file {file} does not contain the URL of the {self.kind}: it is empty or not"
                " UTF-8.",
                field=field,
                hint="Write the URL and nothing else into it.",
            )
        return url


def _embedded_url(data: Path) -> str:
    """Return the URL of the embedded store that runs in a data directory, "" without one."""
    if not (data / "store").is_dir():
        return ""
    try:
        return f"unix://{EmbeddedServer(data / 'store').address.path}"
    except StoreUnavailableError:
        return ""


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that both sources have."""

    location: Location
    #: Rows of a Spark task.
    partition_rows: int = TASK_ROWS
    #: Spark tasks of a scan; 0 for a number that depends on the cores of the planning machine.
    partitions_max: int = 0

    @property
    def tasks_max(self) -> int:
        """Highest number of tasks of a scan."""
        return self.partitions_max or TASKS_PER_CORE * (os.cpu_count() or 1)


class ArchiveOptions(ReadOptions, frozen=True, kw_only=True):
    """Options of the source `waystation.archive`."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ArchiveOptions:
        """Return checked options. Raise SourceOptionError for an unknown or invalid one."""
        _check_names(given, _ARCHIVE_OPTIONS)
        return cls(location=_location(given, "archive", _check_archive), **_read_options(given))


class TopicSourceOptions(ReadOptions, frozen=True, kw_only=True):
    """Options of the source `waystation`."""

    #: Names of topics; empty for all topics of the project.
    topics: tuple[str, ...] = ()
    #: Table of record logs, which the source reads instead of topics; empty for topics.
    table: str = ""
    project: str = "default"
    on_gap: OnGap = "fail"
    #: Start a new stream behind the entries that exist.
    from_latest: bool = False
    #: Entries of a micro-batch; None for all that exist.
    rows_max: int | None = None
    #: Name under which a stream holds entries that it has not read; empty for no hold.
    consumer: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> TopicSourceOptions:
        """Return checked options. Raise SourceOptionError for an unknown or invalid one."""
        _check_names(given, _TOPIC_OPTIONS)
        table = _table(given)
        return cls(
            topics=() if table else _topics(given.get("topic", "")),
            table=table,
            project=_name(given.get("project", "default"), "project"),
            location=_location(given, "store", _check_store),
            on_gap="count" if _choice(given, "on_gap", "fail", "count") == "count" else "fail",
            from_latest=_choice(given, "from", "earliest", "latest") == "latest",
            rows_max=_count(given, "rows_max"),
            consumer=_name(given["consumer"], "consumer") if "consumer" in given else "",
            **_read_options(given),
        )


def _check_names(given: Mapping[str, str], known: tuple[str, ...]) -> None:
    if unknown := sorted(set(given) - set(known)):
        raise SourceOptionError(
            f"Option {unknown[0]} does not exist.",
            field=unknown[0],
            hint=f"The options are {', '.join(known)}.",
        )


def _read_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the given options that both sources have, without the location."""
    counts = {name: _count(given, name) for name in _READ_OPTIONS}
    return {name: count for name, count in counts.items() if count is not None}


def _location(
    given: Mapping[str, str], kind: LocationKind, check: Callable[[str], None]
) -> Location:
    option, file = given.get(kind, ""), given.get(f"{kind}_file", "")
    if option and file:
        raise SourceOptionError(f"Give only one of {kind} and {kind}_file.", field=kind)
    if file and not Path(file).is_absolute():
        raise SourceOptionError(
            f"{kind}_file must be an absolute path, because executors run in other folders.",
            field=f"{kind}_file",
        )
    if option:
        check(option)
    return Location(option, file, kind)


def _check_store(url: str) -> None:
    if _settings_of("store", lambda: parse_address(url)).password:
        raise _password_error("store")


def _check_archive(place: str) -> None:
    if not place.startswith(_POSTGRES):
        if not Path(place).is_absolute():
            raise SourceOptionError(
                "archive must be a URL of PostgreSQL or the absolute path of a file.",
                field="archive",
            )
        return
    _settings_of("archive", lambda: check_postgres("archive", place))
    try:
        parts = urlsplit(place)
        has_password = bool(parts.password) or "password" in parse_qs(parts.query)
    except ValueError:
        has_password = True  # The part that cannot be parsed may be one, so it must not be shown.
    if has_password:
        raise _password_error("archive")


def _settings_of(field: str, parse: Callable[[], _T]) -> _T:
    """Return the result of a parser of settings. Raise its error as one of an option."""
    try:
        return parse()
    except SettingsError as error:
        raise SourceOptionError(error.message, field=field, hint=error.hint) from error


def _password_error(kind: LocationKind) -> SourceOptionError:
    return SourceOptionError(
        f"The password of the {kind} must not be in an option, because Spark shows options.",
        field=kind,
        hint=f"Put the URL into a file and give {kind}_file, or set"
        f" $WAYSTATION_{kind.upper()}_URL_FILE.",
    )


def _table(given: Mapping[str, str]) -> str:
    table = given.get("table", "")
    if not table:
        return ""
    _choice(given, "table", *RECORD_TABLES)
    for name in ("topic", "project"):
        if name in given:
            raise SourceOptionError(
                f"Option {name} cannot be combined with table.",
                field=name,
                hint="A table has the rows of all projects; filter by columns.",
            )
    if "consumer" in given:
        raise SourceOptionError(
            "Option consumer cannot be combined with table: a slow stream would fill record logs,"
            " which all projects share.",
            field="consumer",
            hint="Ingest copies record logs into the lake; read the lake.",
        )
    return table


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names:
        raise SourceOptionError(
            "No option names a topic.",
            field="topic",
            hint=f"Give names separated by commas, or {ALL_TOPICS} for all topics; or a table of"
            " record logs.",
        )
    return () if names == (ALL_TOPICS,) else tuple(_name(name, "topic") for name in names)


def _name(text: str, field: str) -> str:
    try:
        return require_name(text, field=field)
    except InvalidInputError as error:
        raise SourceOptionError(error.message, field=field, hint=error.hint) from error


def _choice(given: Mapping[str, str], name: str, *choices: str) -> str:
    """Return one of several words; the first one if the option is not given."""
    value = given.get(name, choices[0])
    if value not in choices:
        raise SourceOptionError(f"{name} must be {' or '.join(choices)}, not {value}.", field=name)
    return value


def _count(given: Mapping[str, str], name: str) -> int | None:
    """Return a positive whole number; None if the option is not given."""
    text = given.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**53:
        raise SourceOptionError(
            f"{name} must be a whole number greater than 0, not {text}.", field=name
        )
    return int(text)
