"""Options of the Spark source: each is known by name, and none is a secret.

Options are shown in plans, in the Spark UI and in checkpoints, so a store's password comes from a
file or from the environment of the machine that reads. All names are in lower case: Spark forgets
the case of options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from waystation.errors import (
    InvalidInputError,
    SettingsError,
    SourceOptionError,
    StoreUnavailableError,
)
from waystation.history.offsets import TASK_ROWS, TASKS_PER_CORE
from waystation.runtime.ids import require_name
from waystation.store.address import parse_address
from waystation.store.embedded.server import EmbeddedServer

OnGap = Literal["fail", "count"]
#: For all topics of a project.
EVERY = "*"
_URL = "WAYSTATION_STORE_URL"
_URL_FILE = "WAYSTATION_STORE_URL_FILE"


class StorePlace(msgspec.Struct, frozen=True):
    """Where the store's URL is found, on whichever machine asks."""

    option: str = ""
    file: str = ""

    def url(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the URL from option, file or environment, or of a running embedded store.

        The embedded store is that of the data directory, by default `.waystation` in the current
        folder. The URL may contain a password: do not keep it. Raise SourceOptionError if there is
        none.
        """
        environment = os.environ if environment is None else environment
        if self.option:
            return self.option
        file = self.file or environment.get(_URL_FILE, "")
        if file:
            try:
                return Path(file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise SourceOptionError(
                    f"The file with the store's URL cannot be read: {error.strerror}.",
                    field="store_file",
                    hint="It has to be on every machine that runs executors.",
                ) from error
        if url := environment.get(_URL, ""):
            return url
        if url := _embedded_url(Path(environment.get("WAYSTATION_DATA", "") or ".waystation")):
            return url
        raise SourceOptionError(
            "It is not said where the store is.",
            field="store",
            hint=f"Give store_file, or store for a URL without a password; or set ${_URL}; or run"
            " Spark in the folder of `waystation dev`.",
        )


def _embedded_url(data: Path) -> str:
    """Return the URL of the embedded store that runs in a data directory, "" without one."""
    if not (data / "store").is_dir():
        return ""
    try:
        return f"unix://{EmbeddedServer(data / 'store').address.path}"
    except StoreUnavailableError:
        return ""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader was told."""

    #: Empty: all of the project.
    topics: tuple[str, ...]
    #: What is read of the record logs instead of topics; empty: topics.
    table: str = ""
    project: str = "default"
    store: StorePlace = StorePlace()
    on_gap: OnGap = "fail"
    from_latest: bool = False
    rows_max: int | None = None
    partition_rows: int = TASK_ROWS
    partitions_max: int = 0

    @property
    def tasks_max(self) -> int:
        """Tasks at most; unless it was said, by the cores of the machine that plans."""
        return self.partitions_max or TASKS_PER_CORE * (os.cpu_count() or 1)


_KNOWN = (
    *("from", "on_gap", "partition_rows", "partitions_max", "project", "rows_max"),
    *("store", "store_file", "table", "topic"),
)
#: What there is in record logs.
RECORD_TABLES = (
    *("channels", "deliveries", "operations", "pools", "steps", "transactions"),
    "webhook_attempts",
)


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """Checked options; SourceOptionError names what is wrong."""
    if unknown := sorted(set(given) - set(_KNOWN)):
        raise SourceOptionError(
            f"There is no option {unknown[0]}.",
            field=unknown[0],
            hint=f"There are {', '.join(_KNOWN)}.",
        )
    table = _table(given)
    return SourceOptions(
        topics=() if table else _topics(given.get("topic", "")),
        table=table,
        project=_name(given.get("project", "default"), "project"),
        store=_store(given.get("store", ""), given.get("store_file", "")),
        on_gap="count" if read_choice(given, "on_gap", "fail", "count") == "count" else "fail",
        from_latest=read_choice(given, "from", "earliest", "latest") == "latest",
        rows_max=read_count(given, "rows_max"),
        partition_rows=read_count(given, "partition_rows") or TASK_ROWS,
        partitions_max=read_count(given, "partitions_max") or 0,
    )


def _table(given: Mapping[str, str]) -> str:
    table = given.get("table", "")
    if not table:
        return ""
    read_choice(given, "table", *RECORD_TABLES)
    for name in ("topic", "project"):
        if name in given:
            raise SourceOptionError(
                f"With table, {name} cannot be given.",
                field=name,
                hint="All record logs of the station are read; filter by columns.",
            )
    return table


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names:
        raise SourceOptionError(
            "It is not said which topic is to be read.",
            field="topic",
            hint=f"Give names separated by commas, or {EVERY} for all; or a table of record logs.",
        )
    return () if names == (EVERY,) else tuple(_name(name, "topic") for name in names)


def _name(text: str, field: str) -> str:
    try:
        return require_name(text, field=field)
    except InvalidInputError as error:
        raise SourceOptionError(error.message, field=field, hint=error.hint) from error


def _store(url: str, file: str) -> StorePlace:
    if url and file:
        raise SourceOptionError("Only one of store and store_file can be given.", field="store")
    if file and not Path(file).is_absolute():
        raise SourceOptionError(
            "store_file has to be an absolute path: executors run elsewhere.", field="store_file"
        )
    if url:
        try:
            address = parse_address(url)
        except SettingsError as error:
            raise SourceOptionError(error.message, field="store", hint=error.hint) from error
        if address.password:
            raise SourceOptionError(
                "The store's password must not be in an option, since options are shown.",
                field="store",
                hint=f"Put the URL into a file and give store_file, or set ${_URL_FILE}.",
            )
    return StorePlace(url, file)


def read_choice(given: Mapping[str, str], name: str, *choices: str) -> str:
    """One of several words, the first unless it is given."""
    value = given.get(name, choices[0])
    if value not in choices:
        raise SourceOptionError(f"{name} is {' or '.join(choices)}, not {value}.", field=name)
    return value


def read_count(given: Mapping[str, str], name: str) -> int | None:
    """A whole number from 1 on, if it is given."""
    text = given.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**53:
        raise SourceOptionError(f"{name} is a whole number from 1 on, not {text}.", field=name)
    return int(text)
