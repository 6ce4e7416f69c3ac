"""`waystation channel` as a user runs it: many lines in, messages out, lists, positions, advice."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cli.conftest import Run, clean_environment, command, running_station
from tests.helpers.server import background_station
from waystation import Waystation
from waystation.cli import patience
from waystation.cli.output import printable
from waystation.cli.positions import parse_position
from waystation.config import ChannelConfig, ChannelRule, Config
from waystation.errors import InvalidInputError, StationUnreachableError
from waystation.runtime.clock import Clock
from waystation.testing import Station


@pytest.fixture
def client(station: Station) -> Iterator[Waystation]:
    with Waystation(station.url) as opened:
        yield opened


@contextmanager
def started(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command that runs during the block."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = subprocess.Popen(command(*arguments), env=clean_environment(), text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def contents(client: Waystation, channel: str, subscriber: str = "me") -> list[Any]:
    fetched = client.channels.fetch(channel, subscriber, limit=2000)
    return [message.content for message in fetched.messages]


def wait_for_reader(client: Waystation, channel: str) -> str:
    """The name of the first subscriber, once there is one."""
    until = time.monotonic() + 20
    while not (names := [each.name for each in client.channels.subscribers(channel)]):
        assert time.monotonic() < until, "nobody subscribed"
        time.sleep(0.02)
    return names[0]


# -- publish ---------------------------------------------------------------------------------


def test_lines_are_published_in_order_and_a_second_run_doubles_none(
    run: Run, station: Station, client: Waystation
) -> None:
    client.channels.subscribe("orders", "me")
    lines = "".join(f'{{"n": {number}}}\n' for number in range(1, 1201)) + '\n  "the last one"'
    arguments = ("channel", "publish", "orders", "--stdin", "--id", "day-1", "--url", station.url)

    first = run(*arguments, text=lines)
    again = run(*arguments, "--json", text=lines)

    assert (first.returncode, first.stdout) == (0, "published 1,201 messages\n")
    assert json.loads(again.stdout) == {"channel": "orders", "published": 1201, "duplicates": 1201}
    expected = [{"n": number} for number in range(1, 1201)]
    assert contents(client, "orders") == [*expected, "the last one"]
    batch = client.channels.fetch("orders", "me", limit=2000)
    assert [batch.messages[place].id for place in (0, 1199, 1200)] == [
        *("day-1-1", "day-1-1200", "day-1-1202")
    ]
    assert first.stderr == "", "no bar without a terminal"


def test_a_line_that_is_not_json_is_named_and_what_came_before_it_is_published(
    run: Run, station: Station, client: Waystation
) -> None:
    client.channels.subscribe("orders", "me")

    done = run(
        *("channel", "publish", "orders", "--stdin", "--url", station.url), text="1\n\n2\nno\n3\n"
    )

    assert done.returncode == 2
    assert "Line 4 is not JSON" in done.stderr
    assert "tail -n +4" in done.stderr
    assert contents(client, "orders") == [1, 2]


def test_lines_are_not_held_back_for_those_that_have_not_come(
    station: Station, client: Waystation
) -> None:
    client.channels.subscribe("orders", "me")
    arguments = ("channel", "publish", "orders", "--stdin", "--url", station.url)
    with started(*arguments, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number in range(2):
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            batch = client.channels.fetch("orders", "me", timeout=20)
            assert [message.content for message in batch.messages] == [number]
            client.channels.ack("orders", "me", batch.handle)

        # And Ctrl-C tells how far it came
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)

    assert process.returncode == 130
    # The second one had arrived, but perhaps not the reply that says so.
    assert told in ("stopped after 1 message\n", "stopped after 2 messages\n")


@pytest.mark.slow
def test_a_full_channel_is_told_with_the_line_that_found_no_room(
    run: Run, settings: Config
) -> None:
    rules = (ChannelRule(pattern="tight", backlog_max=3),)
    with background_station(replace(settings, channels=ChannelConfig(rules=rules))) as station:
        arguments = ("channel", "publish", "tight", "--stdin", "--url", station.url)
        some = run(*arguments, text="1\n2\n3\n4\n5\n")
        none = run(*arguments, "--id", "again", text="6\n")
        elsewhere = run("channel", "publish", "wide", "1", "--url", station.url)

    assert (some.returncode, none.returncode, elsewhere.returncode) == (5, 5, 2)
    assert "line 4 found no room" in some.stderr
    assert "line 1 found no room" in none.stderr
    assert "--id" in none.stderr
    assert "channels.rules" in elsewhere.stderr


def test_a_terminal_sees_how_far_it_is(station: Station, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("1\n" * 3000)
    mine, its = pty.openpty()
    arguments = ("channel", "publish", "orders", "--stdin", "--url", station.url)
    with lines.open() as file, started(*arguments, stdin=file, stderr=its) as process:
        os.close(its)
        shown = b""
        # A terminal whose other end is gone answers with an error.
        while b"3,000 messages" not in shown:
            shown += os.read(mine, 65536)
        assert process.stdout is not None
        assert process.stdout.readline() == "published 3,000 messages\n"
    os.close(mine)


# -- tail ------------------------------------------------------------------------------------


def test_tail_prints_what_comes_and_leaves_nothing_behind_on_ctrl_c(
    station: Station, client: Waystation
) -> None:
    with started("channel", "tail", "orders", "--url", station.url) as process:
        assert process.stdout is not None
        assert wait_for_reader(client, "orders").startswith("tail-")
        for number in range(3):
            client.channels.publish("orders", {"n": number}, message_id=f"m-{number}")
            assert process.stdout.readline() == f'm-{number}  {{"n":{number}}}\n'

        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)

    assert process.returncode == 130
    assert told == ""
    assert list(client.channels.subscribers("orders")) == []


@pytest.mark.slow
def test_tail_with_a_name_goes_on_where_it_was(
    run: Run, station: Station, client: Waystation
) -> None:
    client.channels.subscribe("orders", "me")
    client.channels.publish_many("orders", [(f"m-{n}", n) for n in range(1, 8)])
    tail = ("channel", "tail", "orders", "--as", "me", "--json", "--url", station.url)

    def ids(*more: str) -> list[str]:
        return [json.loads(line)["id"] for line in run(*tail, *more).stdout.splitlines()]

    assert ids("--count", "2") == ["m-1", "m-2"]
    assert ids("--count", "2") == ["m-3", "m-4"]
    assert ids("--count", "1", "--from", "beginning") == ["m-1"]
    assert ids("--count", "3", "--from", "10m") == ["m-1", "m-2", "m-3"]
    (left,) = client.channels.subscribers("orders")
    assert (left.name, left.lag) == ("me", 4)


@pytest.mark.slow
def test_tail_outlives_a_station_that_restarts(tmp_path: Path) -> None:
    with running_station(tmp_path, "dev", "--port", "0") as first:
        url = first["url"]
        tail = ("channel", "tail", "orders", "--as", "me", "--json", "--url", url)
        with started(*tail) as process, Waystation(url) as client:
            assert process.stdout is not None
            wait_for_reader(client, "orders")
            client.channels.publish("orders", 1)
            assert json.loads(process.stdout.readline())["content"] == 1
            first["process"].terminate()
            first["process"].wait()
            with running_station(tmp_path, "dev", "--port", url.rpartition(":")[2]):
                client.channels.publish("orders", 2)
                assert json.loads(process.stdout.readline())["content"] == 2


def test_tail_waits_for_a_station_that_is_away_for_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patience, "_PAUSE_SECONDS", 0)
    answers = [StationUnreachableError("It is away."), StationUnreachableError("It is away."), 7]

    def verb() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    assert patience.patiently(verb) == 7
    told = capsys.readouterr().err
    assert told.count("waiting for it") == 1
    assert "is back" in told


# -- seek and list ---------------------------------------------------------------------------


@pytest.mark.slow
def test_list_and_seek_tell_who_is_where(run: Run, station: Station, client: Waystation) -> None:
    url = ("--url", station.url)
    assert "makes it" in run("channel", "list", *url).stdout
    for name in ("billing", "shipping"):
        client.channels.subscribe("orders", name)
    client.channels.publish_many("orders", [("", number) for number in range(1234)])

    sought = run("channel", "seek", "orders", "billing", "1230", *url)
    listed = run("channel", "list", *url).stdout.splitlines()
    subscribers = run("channel", "list", "orders", *url).stdout.splitlines()
    shown = json.loads(run("channel", "list", "orders", "--json", *url).stdout)

    assert sought.stdout == "billing goes on after clock 1230, 4 unread\n"
    assert [line.split()[:2] for line in listed] == [["channel", "clock"], ["orders", "1,234"]]
    assert [line.split()[:3] for line in subscribers] == [
        ["subscriber", "lag", "cursor"],
        ["billing", "4", "1,230"],
        ["shipping", "1,234", "0"],
    ]
    assert {each["name"]: each["lag"] for each in shown["subscribers"]} == {
        "billing": 4,
        "shipping": 1234,
    }
    assert run("channel", "subscribe", "orders", "billing", "--delete", *url).returncode == 0
    assert [each.name for each in client.channels.subscribers("orders")] == ["shipping"]


@pytest.mark.parametrize(
    ("arguments", "code", "advice"),
    [
        (("seek", "orders", "nobody", "end"), 3, "channel subscribe"),
        (("seek", "orders", "me", "yesterday"), 2, "beginning, end, a clock"),
        (("seek", "orders", "me", "99"), 2, "clock from 0 to 0"),
        (("publish", "orders"), 2, "--stdin"),
        (("list", "Bad Name"), 2, "starting with a letter"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_an_error_says_what_to_do_next(
    run: Run,
    station: Station,
    client: Waystation,
    arguments: tuple[str, ...],
    code: int,
    advice: str,
) -> None:
    client.channels.subscribe("orders", "me")

    done = run("channel", *arguments, "--url", station.url)

    assert done.returncode == code, done.stderr
    assert advice in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_error_without_a_station_names_the_command_that_starts_one(run: Run) -> None:
    done = run("channel", "list", "--url", "http://127.0.0.1:1")

    assert done.returncode == 5
    assert "waystation dev" in done.stderr


def test_positions_are_ends_clocks_times_and_spans() -> None:
    clock = Clock()
    assert parse_position("beginning", clock=clock) == {"to": "beginning"}
    assert parse_position("end", clock=clock) == {"to": "end"}
    assert parse_position("-7", clock=clock) == {"clock": -7}
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert parse_position("2026-11-15T12:00:00Z", clock=clock) == {"since": noon}
    assert parse_position("2026-11-15T13:00+01:00", clock=clock) == {"since": noon}
    local = parse_position("2026-11-15T12:00", clock=clock)["since"]
    assert local == datetime(2026, 11, 15, 12).astimezone(UTC)
    ago = parse_position("1h30m", clock=clock)["since"].timestamp() * 1000
    assert abs(clock.now_ms() - 5_400_000 - ago) < 5000
    for text in ("", "soon", "-5m", "0001-01-01T00:00+14:00", "99999999h"):
        with pytest.raises(InvalidInputError):
            parse_position(text, clock=clock)


def test_content_cannot_speak_to_the_terminal() -> None:
    assert printable('"a\x9b31mred\x7f"') == '"a\\u009b31mred\\u007f"'
    assert json.loads(printable('"\x9b"')) == "\x9b"
    assert printable('"é\t✓"') == '"é\t✓"'
