"""The ingest process of a node: start it, ask it for ingests, end it.

Spark and its Java process run outside of the node, so that their memory and crashes do not affect
the node. `history/jobs.py` is the program of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from waystation.config import Config, HistoryConfig, LogConfig
from waystation.errors import SparkGoneError
from waystation.history.jobs import JobEnded, JobEvent, JobFailure, JobReading, JobStarted
from waystation.history.store_file import store_url_file
from waystation.runtime.data_files import create_private, make_private

#: Program and arguments of the process.
COMMAND = (sys.executable, "-m", "waystation.history.jobs")
#: Time for the process to end after its standard input has ended, before it is killed. A batch that
#: is not committed by then is repeated by the next process.
END_S = 5.0
#: Time for the output of a process that has ended, unless a process that it started has the pipe.
_DISCARD_S = 1.0
#: Longest event: an error and a hint in characters of up to six bytes, as JSON writes them.
EVENT_BYTES_MAX = 262_144

_decode_event: msgspec.json.Decoder[JobEvent] = msgspec.json.Decoder(JobEvent)


class JobFailed(Exception):  # noqa: N818 (an event of the process, which the role handles)
    """An ingest failed, or the process ended."""

    def __init__(self, failure: JobFailure) -> None:
        super().__init__(f"{failure.error} {failure.hint}".rstrip())
        self.failure = failure


class IngestProcess:
    """A running ingest process, from the entry of a `with` block to its end."""

    def __init__(self, settings: Config) -> None:
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None before the start and after the end."""
        return None if self._process is None else self._process.pid

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *COMMAND,
            env=child_environment(self._settings, os.environ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=EVENT_BYTES_MAX,
            # Ctrl-C on a terminal signals all its processes, and the node ends this one itself.
            start_new_session=True,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.end()
        self._process = None

    async def end(self) -> None:
        """End the process after the batch in progress, or kill it if that takes too long."""
        assert self._process is not None, "the block was entered"
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await self._process.wait()
        finally:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
            await self._discard_output()

    async def _discard_output(self) -> None:
        """Read the rest of the output, because the pipe is only closed at its end."""
        assert self._process is not None, "the block was entered"
        assert self._process.stdout is not None, "it is a pipe"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_S):
                while await self._process.stdout.read(EVENT_BYTES_MAX):
                    pass

    async def started(self) -> None:
        """Wait until Spark runs. Raise JobFailed if it does not start."""
        while not isinstance(await self._event(), JobStarted):
            pass

    def request(self, dataset: str) -> None:
        """Ask for one ingest of a data set; empty: any."""
        assert self._process is not None, "the block was entered"
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(f"ingest {dataset}\n".encode())

    async def progress(self) -> JobReading | JobEnded:
        """Return the next event of the requested ingest. Raise JobFailed if it fails."""
        while True:
            event = await self._event()
            if isinstance(event, JobReading | JobEnded):
                return event

    async def _event(self) -> JobEvent:
        assert self._process is not None, "the block was entered"
        assert self._process.stdout is not None, "it is a pipe"
        try:
            line = await self._process.stdout.readline()
            event = _decode_event.decode(line) if line else None
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            # A line that is too long, or that another program wrote. What follows is unknown.
            failure = JobFailure(
                SparkGoneError.code,
                f"The ingest process sent an event that cannot be read: {error}.",
                f"The log of Spark is {self._settings.data_dir / 'history' / 'spark.log'}.",
                is_over=True,
            )
            raise JobFailed(failure) from error
        if event is None:
            code = await self._process.wait()
            failure = JobFailure(
                SparkGoneError.code,
                f"The ingest process ended with code {code}.",
                f"The log of Spark is {self._settings.data_dir / 'history' / 'spark.log'}.",
                is_over=True,
            )
            raise JobFailed(failure)
        if isinstance(event, JobFailure):
            raise JobFailed(event)
        return event


def child_environment(settings: Config, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the process: its settings are those of the node.

    The environment has them, because the command line is public on the machine.
    """
    kept = {
        name: value for name, value in environment.items() if not name.startswith("WAYSTATION_")
    }
    values: dict[str, Any] = {
        "config": str(_empty_file(settings.data_dir / "history")),
        "data": str(settings.data_dir),
        "store_durability": settings.store.durability,
        "store_cluster": settings.store.cluster,
    }
    if file := store_url_file(settings.store.url, environment):
        values["store_url_file"] = file
    elif settings.store.url:
        values["store_url"] = settings.store.url
    for section, config in (("history", HistoryConfig), ("log", LogConfig)):
        for field in msgspec.structs.fields(config):
            value = getattr(getattr(settings, section), field.name)
            if isinstance(value, dict):
                value = msgspec.json.encode(value).decode()
            elif field.name == "lake" and value and "://" not in value:
                value = os.path.abspath(value)
            values[f"{section}_{field.name}"] = value
    return kept | {
        f"WAYSTATION_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


def _empty_file(folder: Path) -> Path:
    """Return an empty settings file, which replaces one in the current directory."""
    make_private(folder)
    file = folder / "settings.toml"
    create_private(file)
    return file
