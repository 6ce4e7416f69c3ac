"""`waystation history shell`: a Python shell with the lake."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Run, clean_environment, command, run  # noqa: F401 (a fixture)
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter, envelopes
from tests.history.quick_spark import QUICK

#: Time for a shell on a busy machine. Without it, a shell that waits would stop all tests.
_SHELL_S_MAX = 400.0

ORDERS = "t.default.orders.0"
#: The lake, then the live topic, then an error.
PROGRAM = """
def count(frame):
    return frame.count()
print("lake", count(spark.table("waystation.messages")))
print("topic", count(spark.read.format("waystation").option("topic", "orders").load()))
raise SystemError("for the test")
print("not reached")
"""


@pytest.fixture
def data(tmp_path: Path, writer: LogWriter, store_url: str) -> Path:
    """Return a data directory: its store has 5 messages of a topic, and its lake has 3 of them."""
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))
    local_ingest(tmp_path / "data" / "lake", store_url).run()
    writer.append(ORDERS, envelopes(2, first=3))
    return tmp_path / "data"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_shell_executes_a_program_from_a_pipe_and_fails_with_it(
    run: Run,  # noqa: F811
    data: Path,
    store_url: str,
) -> None:
    where = ("--data", str(data), "--store", store_url, "--master", "local[1]")
    done = run("history", "shell", *where, text=PROGRAM, seconds_max=400, **QUICK)
    assert done.stdout.splitlines() == ["lake 3", "topic 5"]
    assert done.returncode == 1
    assert "SystemError: for the test" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_shell_on_a_terminal_shows_the_views_and_two_examples(data: Path) -> None:
    shown = on_terminal(
        ("history", "shell", "--data", str(data), "--master", "local[1]", "--no-ui"),
        "print('rows', spark.table('waystation.messages').count())\nexit()\n",
    )
    assert f"The lake {data}/lake has the views" in " ".join(shown.split())
    assert {"channels", "deliveries", "messages", "pools"} <= set(re.findall(r"\w+", shown))
    assert "messages_all" not in shown
    assert shown.count("\n  spark.") == 2
    assert "rows 3" in shown
    assert "WARN" not in shown


def on_terminal(arguments: tuple[str, ...], typed: str) -> str:
    """Run a command on a terminal, type something and return what the terminal shows."""
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    with subprocess.Popen(
        command(*arguments),
        env={**clean_environment(), "COLUMNS": "200", "TERM": "xterm", **QUICK},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        seen = b""
        # Linux reports the end of a terminal as an error.
        with contextlib.suppress(OSError):
            until_s = time.monotonic() + _SHELL_S_MAX
            while select.select([ours], [], [], max(0, until_s - time.monotonic()))[0]:
                if not (read := os.read(ours, 65_536)):
                    break
                seen += read
            else:
                process.kill()
        os.close(ours)
        assert process.wait() == 0, seen
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", seen.decode())
