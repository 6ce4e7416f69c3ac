"""Processes of a benchmark: they answer one JSON line with another, and end when we do.

A child lives as long as its standard input is open, so it cannot outlive the benchmark, however
that one ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import uvloop

from waystation_bench.benchmark import BenchmarkError

#: The longest that a child may take for one answer, unless its parent knows better; more means
#: that it hangs.
_ANSWER_SECONDS_MAX = 120.0
_END_SECONDS_MAX = 10.0

Answer = Callable[[dict[str, Any]], Awaitable[object]]


def _python_path() -> str:
    """Return a PYTHONPATH with which a child finds this package, which is not installed."""
    return os.pathsep.join(
        filter(None, (str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")))
    )


class Child:
    """The parent's side."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
            [sys.executable, "-m", module, *arguments],
            env=os.environ | {"PYTHONPATH": _python_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def process_id(self) -> int:
        """Of this child."""
        return self._process.pid

    def ask(self, question: object, *, seconds_max: float = _ANSWER_SECONDS_MAX) -> Any:
        """Sends a question and returns the answer; BenchmarkError with the child's own words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        guard = threading.Timer(seconds_max, self._process.kill)
        guard.start()
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            guard.cancel()
        if not line:
            raise BenchmarkError(f"The process {self._module} ended before it had answered.")
        answer = msgspec.json.decode(line)
        if problem := answer.get("problem"):
            raise BenchmarkError(f"The process {self._module} failed: {problem}")
        return answer["result"]


def answer_questions(life: AbstractAsyncContextManager[Answer]) -> None:
    """The child's side: answers line by line until standard input is closed, then ends in order."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_answer_questions(life))


async def _answer_questions(life: AbstractAsyncContextManager[Answer]) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with life as answer:
        while line := await reader.readline():
            reply: dict[str, object]
            try:
                reply = {"result": await answer(msgspec.json.decode(line))}
            except Exception as error:
                # Told to the parent, who stops the run.
                reply = {"problem": f"{type(error).__name__}: {error}"}
            sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
            sys.stdout.buffer.flush()
