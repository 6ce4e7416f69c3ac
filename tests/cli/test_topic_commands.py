"""`waystation topic` as a user runs it: make, grow, produce, browse, tail, advice."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Run, command, running_station
from tests.cli.test_channel_commands import started
from waystation import Waystation
from waystation.cli.main import main
from waystation.cli.topic_tail import Follower
from waystation.client import NewMessage
from waystation.errors import TopicNotFoundError
from waystation.testing import Station


@pytest.fixture
def client(station: Station) -> Iterator[Waystation]:
    with Waystation(station.url) as opened:
        yield opened


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, which saves the start of another."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("sys.argv", ["waystation", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return run


def contents(client: Waystation, group: str) -> list[Any]:
    return [each.content for each in client.topics.messages("orders", group=group)]


def lines_of(process: subprocess.Popen[str], count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def append_foreign_entry(station: Station, entry: bytes) -> None:
    """Append an entry that is not a message to partition 0 of topic `orders`."""
    node = station._running().node

    async def append() -> None:
        (log,) = [each for each in await node.logs.names() if each.startswith("t.default.orders.")]
        await node.logs.append(log, 0, [entry])

    station._await(append())


# -- Topics ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("max_bytes=null", "max_age_seconds=null"), "each keeps any number of bytes, forever"),
        (("max_bytes=1000", "max_age_seconds=90"), "each keeps 1,000 bytes, for 90 s unless"),
        (("max_bytes=1024", "max_age_seconds=86400"), "each keeps 1 KiB, for 1 day unless"),
    ],
)
def test_topic_create_tells_limits(
    here: Run, station: Station, options: tuple[str, str], told: str
) -> None:
    words = [word for option in options for word in ("-o", option)]
    made = here("topic", "create", "limited", *words, "--url", station.url)
    assert told in made.stdout
    assert here("topic", "delete", "limited", "--url", station.url).returncode == 0
    assert here("topic", "purge", "limited", "--yes", "--url", station.url).returncode == 0


def test_a_topic_is_made_grown_and_shown(here: Run, station: Station) -> None:
    url = ("--url", station.url)
    assert "topic create" in here("topic", "list", *url).stdout

    made = here("topic", "create", "crates", "--partitions", "2", "-o", "grouped=true", *url)
    added = here("topic", "add-storage", "crates", "10", *url)
    early = here("topic", "switch", "crates", "--version", "1", *url)
    switched = here("topic", "switch", "crates", "--version", "2", *url)
    produced = here("topic", "produce", "crates", '{"n": 1}', "--group", "g", "--id", "m-1", *url)
    listed = here("topic", "list", *url)
    shown = here("topic", "show", "crates", *url)

    limits = "each keeps 256 MiB, for 7 days unless a reader needs it longer"
    assert (made.returncode, made.stdout) == (0, f"crates has 2 partitions; {limits}\n")
    assert "storage topic 1 with 10 partitions (K 5)" in added.stdout
    assert "topic switch crates" in added.stdout
    assert "multiples of 4" in " ".join(added.stderr.split()), "10 is not advised"
    assert early.returncode != 0
    assert "has version 2, not 1" in early.stderr
    assert "produced to storage topic 1" in switched.stdout
    assert produced.stdout.startswith("produced m-1: storage topic 1, partition ")
    assert listed.stdout.splitlines()[1].split()[:6] == [
        *("crates", "active", "2", "→", "[10]", "yes")
    ]
    assert "crates is active, version 3; 1 messages" in shown.stdout
    assert "grouped = true" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines() if line[:1] in "01"]
    assert [row[3] for row in rows] == ["sealed"] * 2 + ["open"] * 10
    assert sum(int(row[5]) for row in rows) == 1


def test_a_topic_is_blocked_deleted_restored_and_purged(
    here: Run, run: Run, station: Station, client: Waystation
) -> None:
    client.topics.create("orders")
    url = ("--url", station.url)

    assert json.loads(here("topic", "block", "orders", "--json", *url).stdout)["state"] == "blocked"
    refused = here("topic", "produce", "orders", "1", *url)
    assert refused.returncode == 4
    assert "topic unblock" in refused.stderr
    assert here("topic", "unblock", "orders", *url).returncode == 0
    assert "topic restore orders" in here("topic", "delete", "orders", *url).stdout
    again = here("topic", "create", "orders", *url)
    assert again.returncode == 6
    assert "restore" in again.stderr
    assert "deleted" in here("topic", "list", "--deleted", *url).stdout
    assert here("topic", "restore", "orders", *url).stdout == "orders is back\n"
    assert client.topics.get("orders").state == "active"
    client.topics.delete("orders")
    assert run("topic", "purge", "orders", *url, text="n\n").returncode == 1
    assert here("topic", "purge", "orders", "--yes", *url).stdout == "orders is gone\n"
    assert list(client.topics.list(deleted=True)) == []


def test_options_are_changed_by_name_and_the_others_stay(
    here: Run, station: Station, client: Waystation
) -> None:
    client.topics.create("orders", grouped=True)

    done = here(
        *("topic", "change", "orders", "-o", "dedup_seconds=60", "-o", "full_policy=refuse"),
        *("-o", 'rate={"mode": "shadow", "qps": 5}', "--json", "--url", station.url),
    )

    options = json.loads(done.stdout)["options"]
    assert (options["grouped"], options["dedup_seconds"]) == (True, 60)
    assert options["rate"]["qps"] == 5


def test_where_tells_partition_and_shard_in_every_storage_topic(
    here: Run, station: Station, client: Waystation
) -> None:
    client.topics.create("orders", partitions=6)
    client.topics.add_storage_topic("orders", 9)
    url = ("--url", station.url)

    table = here("topic", "where", "orders", "customer-17", "--shards", "3", *url)
    told = json.loads(here("topic", "where", "orders", "customer-17", "--json", *url).stdout)

    # The hash is one of the published vectors; 6 and 9 partitions are no chain.
    assert told["hash"] == 5972413428757149882
    partitions = [5972413428757149882 % 6, 5972413428757149882 % 9]
    assert [each["partition"] for each in told["positions"]] == partitions
    rows = [line.split() for line in table.stdout.splitlines()]
    assert rows[1] == ["0", str(partitions[0]), str(partitions[0] * 3 // 6), "produced", "to"]
    assert rows[2] == ["1", str(partitions[1]), str(partitions[1] * 3 // 9)]
    assert "do not leave every group" in " ".join(table.stderr.split())


# -- Produce ---------------------------------------------------------------------------------


def test_lines_are_produced_in_order_and_a_second_run_doubles_none(
    run: Run, station: Station, client: Waystation
) -> None:
    client.topics.create("orders", dedup_seconds=600)
    lines = "".join(f'{{"n": {n}, "customer": "c{n % 2}"}}\n' for n in range(1, 1201)) + "\n"
    arguments = (
        *("topic", "produce", "orders", "--stdin", "--id", "day-1", "--group-by", "customer"),
        *("--header", "x-run=a=b", "--url", station.url),
    )

    first = run(*arguments, text=lines)
    again = run(*arguments, "--json", text=lines)

    assert (first.returncode, first.stdout) == (0, "produced 1,200 messages\n")
    assert json.loads(again.stdout) == {"topic": "orders", "produced": 1200, "duplicates": 1200}
    assert [each["n"] for each in contents(client, "c1")] == list(range(1, 1201, 2))
    (last,) = client.topics.messages("orders", id="day-1-1200", group="c0")
    assert last.headers == [("x-run", "a=b")]
    assert first.stderr == "", "no bar without a terminal"


def test_a_line_that_is_refused_is_named_and_the_others_of_its_batch_are_produced(
    run: Run, station: Station, client: Waystation
) -> None:
    client.topics.create("orders", json_schema={"type": "integer"})
    arguments = ("topic", "produce", "orders", "--stdin", "--group", "g", "--url", station.url)

    mismatch = run(*arguments, text='1\n\n"two"\n3\n')
    broken = run(*arguments, text="4\nno\n5\n")

    assert (mismatch.returncode, broken.returncode) == (2, 2)
    assert "Line 3 was not produced" in mismatch.stderr
    assert "before 5 are produced, but 1; go on with tail -n +5" in " ".join(
        mismatch.stderr.split()
    )
    assert "Line 2 is not JSON" in broken.stderr
    assert "tail -n +2" in broken.stderr
    assert contents(client, "g") == [1, 3, 4]


def test_text_and_standard_input_are_produced_as_they_are(
    run: Run, station: Station, client: Waystation
) -> None:
    client.topics.create("orders")
    url = ("--group", "g", "--url", station.url)

    assert run("topic", "produce", "orders", "not JSON", "--text", *url).returncode == 0
    assert run("topic", "produce", "orders", "-", *url, text='{"a":1.0}').returncode == 0

    text, data = client.topics.messages("orders", group="g")
    assert (text.content, text.content_type) == ("not JSON", "text/plain; charset=utf-8")
    assert data.payload == b'{"a":1.0}'


def test_a_terminal_sees_how_far_it_is(
    station: Station, client: Waystation, tmp_path: Path
) -> None:
    client.topics.create("orders")
    lines = tmp_path / "lines"
    lines.write_text("1\n" * 3000)
    mine, its = pty.openpty()
    arguments = ("topic", "produce", "orders", "--stdin", "--url", station.url)
    with lines.open() as file, started(*arguments, stdin=file, stderr=its) as process:
        os.close(its)
        shown = b""
        # A terminal whose other end is gone answers with an error.
        while b"3,000 messages" not in shown:
            shown += os.read(mine, 65536)
        assert process.stdout is not None
        assert process.stdout.readline() == "produced 3,000 messages\n"
    os.close(mine)


# -- Browse ----------------------------------------------------------------------------------


def test_browse_finds_by_place_group_and_id_and_else_shows_the_newest(
    here: Run, station: Station, client: Waystation
) -> None:
    client.topics.create("orders", partitions=2)
    messages = [NewMessage(n, id=f"m-{n}", group=f"g{n % 4}") for n in range(40)]
    client.topics.produce_many("orders", messages[:39])
    station.advance(seconds=1)
    client.topics.produce_many("orders", messages[39:])
    station.advance(seconds=1)
    client.topics.produce("orders", b"\xff", id="odd")

    def ids(*arguments: str) -> list[str]:
        done = here("topic", "browse", "orders", "--json", "--url", station.url, *arguments)
        assert done.returncode == 0, done.stderr
        return [each["message"]["id"] for each in json.loads(done.stdout)["messages"]]

    assert ids("--group", "g1", "--max", "3") == ["m-1", "m-5", "m-9"]
    assert ids("--id", "m-7") == ["m-7"]
    assert ids("--max", "2") == ["m-39", "odd"]
    everything = [each.id for each in client.topics.messages("orders", partition=0)]
    assert ids("--partition", "0", "--since", "1h", "--max", "99") == everything
    assert ids("--partition", "0", "--since", "2099-01-01T00:00") == []
    first = ids("--partition", "0", "--offset", "2", "--max", "1")
    assert first == everything[2:3]
    table = here("topic", "browse", "orders", "--max", "2", "--url", station.url).stdout
    assert [line.split()[2] for line in table.splitlines()[1:]] == ["m-39", "odd"]
    assert "(1 bytes, no content type)" in table


def test_browse_and_tail_of_foreign_entry_print_location_and_reason(
    here: Run, station: Station, client: Waystation
) -> None:
    client.topics.create("orders", partitions=1)
    client.topics.produce("orders", "first", id="m-0")
    append_foreign_entry(station, b"\xffplain")
    client.topics.produce("orders", "last", id="m-2")
    url = ("--url", station.url)

    browse = here("topic", "browse", "orders", *url)
    rows = here("topic", "browse", "orders", "--partition", "0", "--json", *url)
    tail = here("topic", "tail", "orders", "--from", "beginning", "--count", "3", *url)
    lines = here("topic", "tail", "orders", "--from", "beginning", "--count", "3", "--json", *url)

    for printed in (browse, tail):
        assert printed.returncode == 0
        (line,) = [each for each in printed.stdout.splitlines() if " 0/0/1 " in each]
        assert "unreadable entry, 6 bytes: not an envelope" in line
        assert printed.stdout.count("unreadable") == 1
    listed = json.loads(rows.stdout)["messages"]
    for foreign in (listed[1], json.loads(lines.stdout.splitlines()[1])):
        assert (foreign["storage"], foreign["partition"], foreign["offset"]) == (0, 0, 1)
        assert foreign["unreadable"].startswith("not an envelope")
        assert b64decode(foreign["message"]["base64"]) == b"\xffplain"
    assert ["unreadable" in each for each in listed] == [False, True, False]


def test_what_browse_prints_can_be_produced_again(
    here: Run, station: Station, client: Waystation
) -> None:
    client.topics.create("orders", partitions=1)
    client.topics.produce("orders", {"a": 1.0}, group="g", headers={"x-a": "b"}, cause="c")
    client.topics.produce("orders", "text", content_type="")
    client.topics.produce("orders", b"\xff\x00")

    shown = here("topic", "browse", "orders", "--json", "--url", station.url)

    rows = [each["message"] for each in json.loads(shown.stdout)["messages"]]
    answer = client.topics._transport.request(
        "POST",
        "/v1/topics/orders/messages",
        body=msgspec.json.encode({"messages": rows}),
        content_type="application/vnd.waystation.batch+json",
    )
    assert answer.status == 200, answer.body
    found = list(client.topics.messages("orders", partition=0))
    for first, second in zip(found[:3], found[3:], strict=True):
        assert (first.id, first.payload, first.headers) == (
            *(second.id, second.payload, second.headers),
        )
        assert (first.content_type, first.cause) == (second.content_type, second.cause)


# -- Tail ------------------------------------------------------------------------------------


def test_tail_prints_what_comes_to_any_partition_over_a_switch_in_the_order_of_groups(
    station: Station, client: Waystation
) -> None:
    client.topics.create("orders", partitions=2)
    client.topics.produce_many("orders", [NewMessage(n, group=f"g{n % 5}") for n in range(50)])
    arguments = ("topic", "tail", "orders", "--from", "beginning", "--json", "--url", station.url)
    with started(*arguments) as process:
        rows = lines_of(process, 50)
        client.topics.add_storage_topic("orders", 4)
        for number in range(50, 150):
            client.topics.produce("orders", number, group=f"g{number % 5}")
            if number == 100:
                client.topics.switch_produce("orders")
        rows += lines_of(process, 100)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)

    assert (process.returncode, told) == (130, "")
    assert {row["storage"] for row in rows} == {0, 1}
    for rest in range(5):
        printed = [row["message"]["data"] for row in rows if row["message"]["group"] == f"g{rest}"]
        assert printed == list(range(rest, 150, 5))


def test_tail_begins_where_it_is_told_to(here: Run, station: Station, client: Waystation) -> None:
    client.topics.create("orders", partitions=1)
    client.topics.produce_many("orders", [NewMessage(n, group=f"g{n % 2}") for n in range(10)])
    tail = ("topic", "tail", "orders", "--url", station.url)

    some = here(*tail, "--from", "10m", "--count", "3", "--json")
    grouped = here(*tail, "--from", "beginning", "--group", "g1", "--count", "5")
    wrong = here(*tail, "--from", "7")

    assert [json.loads(each)["offset"] for each in some.stdout.splitlines()] == [0, 1, 2]
    assert [each.split()[-1] for each in grouped.stdout.splitlines()] == list("13579")
    assert wrong.returncode == 2
    assert "how long ago" in wrong.stderr


def test_tail_by_default_prints_only_what_comes_from_now_on(client: Waystation) -> None:
    client.topics.create("orders", partitions=2)
    client.topics.produce_many("orders", [NewMessage(n, group=f"g{n}") for n in range(20)])

    follower = iter(Follower(client.topics, "orders", {"to": "end"}))
    client.topics.produce("orders", "new", group="g7")

    assert next(follower).content == "new"


def test_tail_and_browse_of_a_damaged_topic_name_the_missing_offsets(
    here: Run, station: Station, client: Waystation
) -> None:
    client.topics.create("orders", partitions=1)
    client.topics.produce_many("orders", [NewMessage(n) for n in range(5)])
    node = station._running().node
    store = node.opened.store

    async def remove(offset: int) -> None:
        (log,) = [each for each in await node.logs.names() if each.startswith("t.default.orders.")]
        stream = f"{{{log}.0}}:log"
        ((entry, _),) = await store.call("XRANGE", stream, offset, offset)
        await store.call("XDEL", stream, entry)

    station._await(remove(2))
    asked = ("--url", station.url, "--json")

    tail = here("topic", "tail", "orders", "--from", "beginning", "--count", "4", *asked)
    browse = here("topic", "browse", "orders", "--partition", "0", *asked)

    for told in (tail, browse):
        assert "log.damaged: offsets 2 to 2 of 0/0 are missing" in " ".join(told.stderr.split())
        assert "gone before" not in told.stderr
    assert [json.loads(each)["offset"] for each in tail.stdout.splitlines()] == [0, 1, 3, 4]
    assert [each["offset"] for each in json.loads(browse.stdout)["messages"]] == [0, 1, 3, 4]


def test_tail_says_what_was_gone_before_it_could_be_printed(
    station: Station, client: Waystation, capsys: pytest.CaptureFixture[str]
) -> None:
    client.topics.create("orders", partitions=1, max_bytes=2000, full_policy="drop_and_count")
    client.topics.produce("orders", 0)
    follower = iter(Follower(client.topics, "orders", {"to": "beginning"}))
    assert next(follower).content == 0

    for number in range(1, 200):
        client.topics.produce("orders", number)
    seen = next(follower)

    assert seen.content > 1
    assert f"{seen.offset - 1} messages were gone" in capsys.readouterr().err


@pytest.mark.parametrize("start", ["beginning", "end"])
@pytest.mark.parametrize("count", [2, 20])
def test_tail_goes_on_with_a_topic_that_was_purged_and_made_anew(
    client: Waystation, capsys: pytest.CaptureFixture[str], start: str, count: int
) -> None:
    """Whether it has fewer messages by then, or as many; each is printed once."""
    client.topics.create("orders", partitions=2)
    client.topics.produce_many("orders", [NewMessage("old", group=f"g{n}") for n in range(10)])
    follower = iter(Follower(client.topics, "orders", {"to": start}))
    if start == "end":
        client.topics.produce_many("orders", [NewMessage("old", group=f"g{n}") for n in range(10)])
    assert [next(follower).content for _ in range(10)] == ["old"] * 10

    client.topics.delete("orders")
    client.topics.purge("orders")
    client.topics.create("orders", partitions=2)
    for number in range(count):
        client.topics.produce("orders", number, group=f"g{number}")

    assert sorted(next(follower).content for _ in range(count)) == list(range(count))
    client.topics.produce("orders", "last", group="g")
    assert next(follower).content == "last"
    assert "was made anew" in capsys.readouterr().err


def test_tail_says_so_when_its_topic_is_not_there_any_more(client: Waystation) -> None:
    client.topics.create("orders", partitions=1)
    follower = iter(Follower(client.topics, "orders", {"to": "end"}))
    client.topics.delete("orders")
    with pytest.raises(TopicNotFoundError):
        next(follower)


@pytest.mark.slow
def test_tail_outlives_a_station_that_restarts(tmp_path: Path) -> None:
    with running_station(tmp_path, "dev", "--port", "0") as first:
        url = first["url"]
        tail = ("topic", "tail", "orders", "--from", "beginning", "--json", "--url", url)
        with Waystation(url) as client:
            client.topics.create("orders")
            client.topics.produce("orders", 1)
            with started(*tail) as process:
                assert lines_of(process, 1)[0]["message"]["data"] == 1
                first["process"].send_signal(signal.SIGKILL)
                first["process"].wait()
                with running_station(tmp_path, "dev", "--port", url.rpartition(":")[2]):
                    client.topics.produce("orders", 2)
                    assert lines_of(process, 1)[0]["message"]["data"] == 2


# -- Advice ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "advice"),
    [
        (("show", "nowhere"), 3, "topic create"),
        (("tail", "nowhere"), 3, "topic list"),
        (("produce", "nowhere", "1"), 3, "topic list"),
        (("create", "Bad Name"), 2, "starting with a letter"),
        (("create", "odd", "-o", "grouped"), 2, "name=value"),
        (("create", "odd", "-o", "colour=red"), 2, "There are grouped, max_bytes"),
        (("create", "odd", "-o", "partitions=8"), 2, "no option 'partitions'"),
        (("create", "odd", "-o", "topic=8"), 2, "no option 'topic'"),
        (("change", "orders", "-o", "topic=1"), 2, "no option 'topic'"),
        (("change", "orders", "-o", "version=1"), 2, "no option 'version'"),
        (("change", "orders"), 2, "-o name=value"),
        (("produce", "orders"), 2, "--stdin"),
        (("produce", "orders", "{"), 2, "--text"),
        (("produce", "orders", "1"), 2, "--group"),
        (("produce", "orders", "1", "--group", "g", "--header", "x"), 2, "x-name=value"),
        (("browse", "orders", "--offset", "1"), 2, "--partition"),
        (("browse", "orders", "--partition", "0", "--offset", "9"), 2, "0 to 0"),
        (("browse", "orders", "--partition", "9"), 3, "0 to 3"),
        (("restore", "orders"), 6, "not deleted"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_an_error_says_what_to_do_next(
    here: Run,
    station: Station,
    client: Waystation,
    arguments: tuple[str, ...],
    code: int,
    advice: str,
) -> None:
    client.topics.create("orders", grouped=True)

    done = here("topic", *arguments, "--url", station.url)

    assert done.returncode == code, done.stderr
    assert advice in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("produce", "orders", b"\xff", "--text"), "'\\udcff' is not UTF-8"),
        (("produce", "orders", "1", "--group", b"\xff"), "is not UTF-8"),
        (("where", "orders", b"g\xff"), "is not UTF-8"),
        (("create", "odd", "-o", b"full_policy=\xff"), "is not UTF-8"),
        (("produce", "orders", "-", "--text"), "The content is not UTF-8"),
        (("produce", "orders", "-"), "The content is not JSON"),
        (("produce", "orders", "--stdin"), "Line 1 is not JSON"),
    ],
    ids=str,
)
def test_bytes_that_are_no_text_are_told_as_such(
    station: Station, client: Waystation, arguments: tuple[str | bytes, ...], said: str
) -> None:
    client.topics.create("orders")

    done = subprocess.run(
        [*command("topic"), *arguments, "--url", station.url],
        check=False,
        input=b"\xff\n",
        capture_output=True,
        timeout=60,
    )

    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.decode().split())
    assert b"Traceback" not in done.stderr
    assert client.topics.state("orders").messages == 0


@pytest.mark.parametrize("name", ["{a}", "*", "a:b", "..", "a/b", "a%00b", "x" * 300, "ä"])
def test_a_name_that_tries_to_break_out_is_no_name_to_any_command(
    here: Run, station: Station, name: str
) -> None:
    for verb, *more in (
        *([verb] for verb in ("create", "show", "switch", "block", "unblock", "delete", "restore")),
        *([verb] for verb in ("browse", "tail")),
        ("add-storage", "4"),
        ("change", "-o", "grouped=true"),
        ("produce", "1"),
        ("purge", "--yes"),
        ("where", "group"),
    ):
        done = here("topic", verb, name, *more, "--url", station.url)
        assert done.returncode == 2, (verb, done)
        assert "starting with a letter" in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
