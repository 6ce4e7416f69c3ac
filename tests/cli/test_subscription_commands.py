"""`waystation subscription` as a user runs it: make, watch, find out why, redrive, give up."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Run, clean_environment, command
from tests.cli.test_topic_commands import client, here  # noqa: F401 (fixtures)
from tests.helpers.http import Receiver
from tests.helpers.waiting import eventually_sync
from waystation import Waystation
from waystation.testing import Station
from waystation.testing.endpoint import Answer, FakeEndpoint

#: Given up at the second attempt, at once.
QUICK: Any = {"attempts": 1, "first_seconds": 0, "jitter": 0}


@pytest.fixture
def hook() -> Iterator[Receiver]:
    """An endpoint that takes everything, until it is broken."""
    with Receiver(FakeEndpoint(plan=[200])) as receiver:
        yield receiver


class Shop:
    """A station with topic `orders`, delivered to the hook by subscription `billing`."""

    def __init__(self, client: Waystation, here: Run, hook: Receiver, url: str) -> None:  # noqa: F811
        self.client = client
        self.hook = hook
        self.url = url
        self._here = here
        client.topics.create("orders", partitions=4, grouped=True)
        client.subscriptions.create("billing", topic="orders", endpoint=hook.url, retry=QUICK)

    def __call__(self, *words: str, code: int = 0) -> str:
        """What a command prints; on standard error if it fails."""
        done = self._here("subscription", *words, "--url", self.url)
        assert done.returncode == code, done
        return str(done.stdout if code in (0, 1, 3) and done.stdout else done.stderr)

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))

    def says(self, status: int) -> None:
        """What the hook answers from now on."""
        self.hook.endpoint.plan = [status]

    def park(self, group: str = "order-17", count: int = 3, *, status: int = 500) -> None:
        """A group whose messages could not be delivered; the hook is repaired after that."""
        self.says(status)
        for n in range(count):
            self.client.topics.produce("orders", {"n": n}, group=group, id=f"{group}-{n}")
        self.client.subscriptions.wait("billing", group=group, state="parked")
        eventually_sync(lambda: self.client.subscriptions.group("billing", group).dead == count)
        self.says(200)

    def received(self, group: str = "order-17") -> list[int]:
        """The numbers that the hook has taken, in order."""
        return [
            json.loads(each.body)["n"]
            for each in self.hook.received
            if each.status == 200 and each.headers["waystation-group"] == group
        ]


@pytest.fixture
def shop(station: Station, client: Waystation, here: Run, hook: Receiver) -> Shop:  # noqa: F811
    return Shop(client, here, hook, station.url)


# -- Definitions -----------------------------------------------------------------------------


def test_a_subscription_is_made_shown_changed_paused_and_deleted(
    here: Run,  # noqa: F811
    run: Run,
    station: Station,
    client: Waystation,  # noqa: F811
    hook: Receiver,
) -> None:
    client.topics.create("parcels", partitions=4, grouped=True)
    url = ("--url", station.url)
    assert "subscription create" in here("subscription", "list", *url).stdout

    made = here(
        *("subscription", "create", "tracking", "--topic", "parcels", "--endpoint", hook.url),
        *("-o", "retry.attempts=2", "-o", "poison=skip", *url),
    )
    again = here(
        *("subscription", "create", "tracking", "--topic", "parcels", "--endpoint", hook.url, *url)
    )
    listed = here("subscription", "list", *url)
    changed = here("subscription", "change", "tracking", "-o", "retry.jitter=0", *url)
    shown = here("subscription", "show", "tracking", *url)
    paused = here("subscription", "pause", "tracking", "--until", "10m", "--reason", "move", *url)
    told = here("subscription", "show", "tracking", *url)
    resumed = here("subscription", "resume", "tracking", *url)
    kept = run("subscription", "delete", "tracking", *url, text="n\n")
    gone = here("subscription", "delete", "tracking", "--yes", *url)

    assert made.returncode == 0, made
    assert made.stdout.startswith(f"tracking delivers parcels to {hook.url}, 4 shards\n")
    assert "whsec_" in made.stdout
    assert "not shown again" in " ".join(made.stderr.split())
    assert again.returncode == 6
    assert "subscription show tracking" in again.stderr
    assert listed.stdout.splitlines()[1].split()[:5] == [
        *("tracking", "parcels", hook.url, "active", "4")
    ]
    assert "version" in changed.stdout
    assert '"attempts":2' in shown.stdout
    assert '"jitter":0' in shown.stdout
    assert 'poison = "skip"' in shown.stdout
    assert "0 wait in the topic" in shown.stdout
    assert "tracking delivers nothing until 20" in paused.stdout
    assert "; paused, version" in told.stdout
    assert "because: move" in told.stdout
    assert resumed.stdout == "tracking delivers\n"
    assert kept.returncode == 1
    assert gone.stdout == "tracking is deleted\n"
    assert list(client.subscriptions.list()) == []


def test_options_that_do_not_exist_are_told_with_those_that_do(shop: Shop) -> None:
    for option in ("poisson=skip", "retry.tries=3", "rate.qps=1"):
        said = shop("change", "billing", "-o", option, code=2)
        assert option.partition("=")[0] in said
        assert "retry.attempts" in said
        assert "concurrency_max" in said
    assert "name=value" in shop("change", "billing", "-o", "poison", code=2)
    assert "Nothing to change" in shop("change", "billing", code=2)
    assert "as a whole and in parts" in shop(
        *("change", "billing", "-o", 'retry="x"', "-o", "retry.attempts=1"), code=2
    )


def test_it_begins_where_it_is_told_to(shop: Shop) -> None:
    shop.client.subscriptions.delete("billing")
    shop.client.topics.produce("orders", {"n": 0}, group="order-1", id="old")

    words = ("--topic", "orders", "--endpoint", shop.hook.url)
    shop("create", "early", *words, "--from", "beginning")
    assert "is no position" in shop("create", "never", *words, "--from", "whenever", code=2)

    eventually_sync(lambda: shop.received("order-1"))
    assert shop.hook.received[-1].headers["waystation-subscription"] == "early"


# -- Failing and going on --------------------------------------------------------------------


def test_an_operator_finds_out_why_and_redrives(shop: Shop) -> None:
    shop.park()

    groups = shop("groups", "billing", "--state", "parked")
    group = shop("group", "billing", "order-17")
    heads = shop("dead", "billing")
    letters = shop.json("dead", "billing", "--group", "order-17", "--payload")["dead_letters"]
    why = shop("why", "billing", "--group", "order-17")
    dry = shop("redrive", "billing", "--group", "order-17", "--dry-run")
    before = shop.received()
    done = shop("redrive", "billing", "--group", "order-17")

    assert groups.splitlines()[1].split()[:2] == ["order-17", "parked"]
    assert "order-17 is parked" in group
    assert "3 among dead letters" in group
    assert "order-17-0" in group
    assert "500" in group
    assert "redrive billing --group order-17 " in group
    assert [line.split()[1:4] for line in heads.splitlines()[1:]] == [
        ["order-17-0", "order-17", "parked"]
    ]
    assert [each["id"] for each in letters] == [f"order-17-{n}" for n in range(3)]
    assert letters[0]["message"]["data"] == {"n": 0}
    assert why.startswith("parked ")
    assert "go on with: waystation subscription redrive billing --group order-17\n" in why
    assert dry.startswith("would redrive 3 messages")
    assert before == []
    assert "is done: 3 messages, 3 settled" in done
    assert shop.received() == [0, 1, 2]
    assert "No group is parked" in shop("groups", "billing", "--state", "parked")
    assert "No dead letters" in shop("dead", "billing")
    assert "order-17 is clean" in shop("group", "billing", "order-17")
    (operation,) = shop.json("operations", "billing")["operations"]
    assert (operation["kind"], operation["state"], operation["count"]) == ("redrive", "done", 3)
    assert operation["id"] in shop("operations", "billing")
    assert "is done" in shop("operations", "billing", operation["id"], "--wait")


def test_what_fails_again_is_told_by_text_and_exit_code(shop: Shop) -> None:
    shop.park()
    shop.says(403)

    said = shop("redrive", "billing", "--all", code=1)

    assert "3 messages, 0 settled, 1 failed again" in said
    assert shop.json("group", "billing", "order-17")["state"] == "parked"


def test_a_redrive_of_a_message_takes_those_before_it_and_no_more(shop: Shop) -> None:
    shop.park()

    shop("redrive", "billing", "--message", "order-17-1")

    assert shop.received() == [0, 1]
    assert shop.json("group", "billing", "order-17")["dead"] == 1


def test_by_time_those_are_redriven_that_failed_then(shop: Shop) -> None:
    shop.park()
    assert shop.json("redrive", "billing", "--failed-after", "1h", "--dry-run")["count"] == 3
    assert shop.json("redrive", "billing", "--failed-before", "1h", "--dry-run")["count"] == 0
    assert shop.json("dead", "billing", "--failed-before", "1h")["dead_letters"] == []


def test_a_head_is_skipped_and_a_group_is_purged(shop: Shop, run: Run) -> None:
    shop.park()
    shop.park("order-18", 2)

    assert "skip" in shop("skip", "billing", "order-17")
    shop.client.subscriptions.wait("billing", group="order-17", state="clean")
    asked = run(
        *("subscription", "purge", "billing", "--group", "order-18", "--url", shop.url), text="n\n"
    )
    left = shop.json("group", "billing", "order-18")["dead"]
    purged = shop("purge", "billing", "--group", "order-18", "--yes")

    assert shop.received() == [1, 2]
    assert asked.returncode == 1
    assert "Give up 2 messages of billing for good?" in asked.stdout
    assert left == 2
    assert "2 settled" in purged
    assert shop.json("group", "billing", "order-18")["state"] == "clean"
    assert shop.received("order-18") == []


def test_a_reset_delivers_anew_under_another_webhook_id(shop: Shop, run: Run) -> None:
    shop.client.topics.produce("orders", {"n": 0}, group="order-17", id="o17-0")
    eventually_sync(shop.received)
    words = ("subscription", "reset", "billing", "--to", "beginning", "--url", shop.url)
    assert run(*words, text="n\n").returncode == 1

    assert "is done" in shop("reset", "billing", "--to", "beginning", "--yes")

    eventually_sync(lambda: len(shop.received()) == 2)
    ids = [each.headers["webhook-id"] for each in shop.hook.received]
    # Of a name that was used before the first incarnation is not 1.
    now = shop.client.subscriptions.get("billing").incarnation
    assert [each.split(":")[1] for each in ids] == [str(now - 1), str(now)]
    assert [each.headers["waystation-id"] for each in shop.hook.received] == ["o17-0"] * 2


def test_an_operation_is_paused_resumed_and_cancelled(shop: Shop) -> None:
    for n in range(5):
        # Not 500: after some of them the hook would be left alone for a while.
        shop.park(f"order-{n}", 1, status=403)
    begun = shop.json("redrive", "billing", "--all", "--rate", "0.01", "--no-wait")
    words = ("operations", "billing", begun["id"])

    assert shop.json(*words, "--pause")["state"] == "paused"
    assert shop.json(*words, "--resume")["state"] == "begun"
    assert shop.json(*words, "--cancel")["state"] == "cancelled"
    assert "is cancelled" in shop(*words)
    ended = shop(*words, "--resume", code=6)
    assert "operations NAME ID" in ended
    assert "operations NAME" in shop("operations", "billing", "op-unknown", code=3)
    assert "one of" in shop(*words, "--pause", "--cancel", code=2)
    assert "Which one" in shop("operations", "billing", "--cancel", code=2)


def test_a_bar_tells_how_far_it_is_and_ctrl_c_ends_the_wait_not_the_redrive(shop: Shop) -> None:
    shop.park()
    # So the endpoint is asked, and the redrive comes to no end by itself.
    shop.hook.endpoint.plan = [Answer(hang=True)]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("subscription", "redrive", "billing", "--all", "--url", shop.url),
        env={**clean_environment(), "TERM": "xterm", "COLUMNS": "120"},
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said = read_until(ours, "0/3")
    process.send_signal(signal.SIGINT)
    said += read_until(ours, "")
    os.close(ours)
    (operation,) = shop.client.subscriptions.operations("billing")

    assert process.wait(timeout=30) == 130
    assert "redrive" in said
    assert f"operations billing {operation.id}" in " ".join(said.split())
    assert operation.state == "begun"
    assert shop.json("group", "billing", "order-17")["state"] == "redriving"


def read_until(terminal: int, text: str) -> str:
    """What is written to a terminal, up to a text, or, without one, to its end."""
    said = ""
    while not text or text not in said:
        try:
            said += os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # Nobody has it open any more.
            assert not text, said
            break
    return said


# -- Looking ---------------------------------------------------------------------------------


def test_watch_tells_the_lag_of_each_shard_as_it_changes(shop: Shop) -> None:
    shop.hook.endpoint.plan = [Answer(hang=True)]
    for n in range(4):
        shop.client.topics.produce("orders", {"n": n}, group="order-17", id=f"o-{n}")

    standing = shop.client.subscriptions.shards
    eventually_sync(lambda: {each.state for each in standing("billing").shards} == {"running"})

    lines = shop("watch", "billing", "--count", "2", "--every", "0.1", "--json").splitlines()
    table = shop("watch", "billing", "--count", "1")

    looks = [json.loads(line) for line in lines]
    assert [look["lag"] for look in looks] == [4, 4]
    assert [each["shard"] for each in looks[0]["shards"]] == [0, 1, 2, 3]
    assert table.splitlines()[0].split()[:4] == ["shard", "state", "owner", "lag"]
    assert [line.split()[1] for line in table.splitlines()[1:]] == ["running"] * 4
    assert json.loads(lines[0])["shards"] == shop.json("shards", "billing")["shards"]


def test_watch_is_shown_in_place_on_a_terminal_until_ctrl_c(shop: Shop) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("subscription", "watch", "billing", "--every", "0.1", "--url", shop.url),
        env={**clean_environment(), "TERM": "xterm", "COLUMNS": "120"},
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said = "".join(read_until(ours, "lag/s") for _ in range(3))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    os.close(ours)
    assert "\x1b[" in said
    assert "all" in said


def test_a_sample_shows_request_and_reply(shop: Shop) -> None:
    good = shop("test", "billing")
    shop.says(418)
    bad = shop("test", "billing", code=1)
    as_json = shop.json("test", "billing", code=1)

    assert good.startswith(f"POST {shop.hook.url}\n")
    assert "webhook-signature: v1," in good
    assert '{"sample":true,"subscription":"billing","topic":"orders"}' in good
    assert "200 after" in good
    assert "418 after" in bad
    assert as_json["status"] == 418
    assert [each.status for each in shop.hook.received] == [200, 418, 418]


def test_a_secret_is_made_anew_and_told_once(shop: Shop) -> None:
    assert "--rotate" in shop("secret", "billing", code=2)
    made = shop("secret", "billing", "--rotate")
    assert made.startswith("whsec_")
    assert shop.json("secret", "billing", "--rotate")["secret"] != made.strip()


def test_why_tells_of_subscription_shard_group_and_message(shop: Shop) -> None:
    shop.client.subscriptions.pause("billing", reason="moving house")
    assert "moving house" in shop("why", "billing")
    assert "subscription resume billing" in shop("why", "billing")
    assert shop("why", "billing", "--shard", "0").split()[0] == "paused"
    assert shop.json("why", "billing", "--message", "nobody", code=3)["code"] == "unknown"


def test_errors_say_what_to_do_next(shop: Shop) -> None:
    assert "subscription list" in shop("show", "nothing", code=3)
    assert "subscription list" in shop("watch", "nothing", code=3)
    assert "--all" in shop("redrive", "billing", code=2)
    assert "--all" in shop("redrive", "billing", "--all", "--group", "order-1", code=2)
    assert "subscription dead NAME" in shop("redrive", "billing", "--group", "order-1", code=6)
    assert "subscription groups NAME" in shop("skip", "billing", "order-1", code=6)
    assert "retrying, parked, redriving" in shop("groups", "billing", "--state", "dead", code=2)
    assert "is no time" in shop("dead", "billing", "--failed-after", "7", code=2)
    refused = shop("create", "other", "--topic", "orders", "--endpoint", "ftp://x", code=2)
    assert "pipeline:<name>" in refused
    assert "topic create" in shop("create", "o", "--topic", "no", "--endpoint", "channel:c", code=3)


def test_an_endpoint_that_was_gone_is_found_and_enabled_again(shop: Shop, here: Run) -> None:  # noqa: F811
    shop.says(410)
    shop.client.topics.produce("orders", {"n": 0}, group="order-17", id="o17-0")
    eventually_sync(lambda: shop.json("why", "billing")["code"] == "endpoint_disabled")
    target = shop.json("why", "billing")["facts"]["target"]
    assert f"go on with: waystation deliveries enable {target}" in shop("why", "billing")
    shop.says(200)

    listed = here("deliveries", "list", "--url", shop.url)
    enabled = here("deliveries", "enable", target, "--url", shop.url)

    assert [line.split()[:2] for line in listed.stdout.splitlines() if target in line] == [
        [target, "disabled"]
    ]
    assert enabled.returncode == 0, enabled
    eventually_sync(lambda: shop.received() == [0])


def test_what_an_endpoint_replies_is_not_obeyed_by_a_terminal(shop: Shop) -> None:
    shop.hook.endpoint.plan = [Answer(403, body=b"\x1b]0;gotcha\x07no")]
    shop.client.topics.produce("orders", {"n": 0}, group="order-17", id="x")
    shop.client.subscriptions.wait("billing", group="order-17", state="parked")

    said = shop("group", "billing", "order-17")

    assert "gotcha" in said
    assert "\x1b" not in said
    assert "\x07" not in said
