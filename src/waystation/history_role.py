"""The history role: a process of its own that ingests, for as long as a station runs.

Spark and its Java do not belong into the process that answers. The child is started anew when it
ends, with growing pauses; it ends by itself when the station is gone, however that happened. Of
several stations at one store, one child works and the others wait for its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from waystation.config import Config, HistoryConfig
from waystation.errors import HistoryMissingError
from waystation.runtime.clock import Clock
from waystation.runtime.data_files import create_private, make_private
from waystation.runtime.logging import logger
from waystation.telemetry import history_metrics

_log = logger("history")

_NEEDED = ("pyspark", "pyarrow", "deltalake")
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 1.0, 300.0
#: What the child gets to end the round that it is in.
_STOP_SECONDS = 20.0
#: Later than so many turns is worth a note.
_LATE_TURNS = 10


class _Counts(msgspec.Struct):
    rows: int = 0
    malformed: int = 0
    gap_rows: int = 0
    damaged_rows: int = 0
    withheld_rows: int = 0
    lost_rows: int = 0
    rounds: int = 0
    left: int = 0


class _Line(msgspec.Struct):
    """What the child tells after each turn."""

    ingested: _Counts
    problem: str = ""


_decode = msgspec.json.Decoder(_Line).decode


class HistoryRole:
    """Keeps the child running, and tells what it does."""

    def __init__(self, settings: Config, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or Clock()
        self._task: asyncio.Task[None] | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._problem = ""
        self._done_at = self._clock.monotonic()
        #: Set when a turn was told.
        self.told = asyncio.Event()

    @property
    def notes(self) -> list[str]:
        """What a person should know; history that is late keeps nobody from being served."""
        if self._problem:
            return [f"history does not get on: {self._problem}"]
        late = self._clock.monotonic() - self._done_at
        if late > _LATE_TURNS * self._settings.history.every_seconds:
            return [f"history was brought up to date {late:.0f} s ago"]
        return []

    @property
    def pid(self) -> int | None:
        """The process of the child; None while there is none."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Begins; HistoryMissingError if what it needs is not installed."""
        if missing := [name for name in _NEEDED if find_spec(name) is None]:
            raise HistoryMissingError(
                f"history.run needs {' and '.join(missing)}.",
                hint="pip install 'waystation[history]', or leave history.run off.",
            )
        history_metrics.lag_seconds.set_function(lambda: self._clock.monotonic() - self._done_at)
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    async def close(self) -> None:
        """Ends the child after its round, or without it if that takes long."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_running(self) -> None:
        pause = _PAUSE_SECONDS
        while True:
            began = self._clock.monotonic()
            code = await self._run_once()
            if self._clock.monotonic() - began > _PAUSE_SECONDS_MAX:
                pause = _PAUSE_SECONDS
            self._problem = self._problem or f"its process ended with code {code}"
            history_metrics.failures.inc()
            _log.warning("the process of history ended", code=code, pause_seconds=pause)
            await self._clock.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    async def _run_once(self) -> int:
        # A pipe of our own: others that the child has started may keep theirs when it is gone.
        ours, theirs = os.pipe()
        try:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "waystation.cli.main", "history", "ingest"),
                *("--follow", "--until-eof", "--json"),
                env=child_environment(self._settings, os.environ),
                # The child ends when this end of it is closed, also by our death.
                stdin=asyncio.subprocess.PIPE,
                stdout=theirs,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._child = child
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(ours, "rb")
        )
        hearing = loop.create_task(self._listen(lines))
        try:
            return await child.wait()
        finally:
            await _end(child)
            hearing.cancel()
            pipe.close()
            self._child = None

    async def _listen(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            self._hear(line)

    def _hear(self, line: bytes) -> None:
        try:
            told = _decode(line)
        except msgspec.DecodeError:
            return  # Somebody else's words, such as Spark's.
        counts, self._problem = told.ingested, told.problem
        history_metrics.rows.inc(counts.rows)
        history_metrics.malformed.inc(counts.malformed)
        history_metrics.lost.inc(counts.lost_rows)
        gaps = {
            "trimmed": counts.gap_rows,
            "damaged": counts.damaged_rows,
            "policy": counts.withheld_rows,
        }
        for cause, rows in gaps.items():
            history_metrics.gaps.labels(cause).inc(rows)
        history_metrics.rounds.inc(counts.rounds)
        history_metrics.lag_rows.set(counts.left)
        if told.problem:
            history_metrics.failures.inc()
        else:
            self._done_at = self._clock.monotonic()
        self.told.set()


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is not None:
        return
    assert child.stdin is not None, "it was asked for"
    child.stdin.close()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def child_environment(settings: Config, environment: Any) -> dict[str, str]:
    """The settings of the station for its child; nothing secret is on the command line."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith("WAYSTATION_") or name == "WAYSTATION_STORE_URL_FILE"
    }
    told: dict[str, Any] = {
        "config": str(_empty_file(settings.data_dir / "history")),
        "data": str(settings.data_dir),
        "store_durability": settings.store.durability,
    }
    if settings.store.url and "WAYSTATION_STORE_URL_FILE" not in kept:
        told["store_url"] = settings.store.url
    for field in msgspec.structs.fields(HistoryConfig):
        value = getattr(settings.history, field.name)
        if isinstance(value, dict):
            value = msgspec.json.encode(value).decode()
        elif field.name == "lake" and value and "://" not in value:
            value = os.path.abspath(value)
        told[f"history_{field.name}"] = str(value).lower() if isinstance(value, bool) else value
    return kept | {f"WAYSTATION_{name.upper()}": str(value) for name, value in told.items()}


def _empty_file(folder: Path) -> Path:
    """In the place of a settings file that may lie where the station was started."""
    make_private(folder)
    file = folder / "settings.toml"
    create_private(file)
    return file
