"""Moves of a holder: what they write, whom they refuse, and what a repetition finds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from tests.transactions.helpers import (
    ARCHIVE_MS,
    CELL,
    EXTERNAL_MS,
    TERMS,
    VERSION,
    after,
    open_transactions,
)
from waystation.errors import (
    IllegalTransitionError,
    LeaseLostError,
    NotRunningError,
    StatusInvalidError,
    TooLargeError,
    TransactionUnknownError,
)
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.held import Held, Verdict
from waystation.transactions.progress import (
    Commit,
    FanOpen,
    FanWait,
    Finish,
    PassOn,
    Progress,
    Sleep,
    raise_refusal,
)
from waystation.transactions.states import State, Status

Mover = Callable[[Progress, Held], Awaitable[list[Verdict]]]


def finish_of(held: Held, status: Status = Status.SUCCESS) -> Finish:
    return Finish(held=held, state=b"end", status=status, output=b'"out"')


#: Each move once, with what it answers.
MOVES: dict[str, tuple[Mover, str]] = {
    "commit": (lambda p, h: p.commit(CELL, [Commit(held=h, state=b"s")]), "done"),
    "finish": (lambda p, h: p.finish(CELL, [finish_of(h)]), "done"),
    "pass_on": (
        lambda p, h: p.pass_on(
            CELL, [PassOn(held=h, state=b"s", group="main", queue="out", pipeline="p")]
        ),
        "done",
    ),
    "sleep": (lambda p, h: p.sleep(CELL, [Sleep(held=h, state=b"s")]), "waiting"),
    "fan_open": (
        lambda p, h: p.fan_open(CELL, [FanOpen(held=h, state=b"s", round=1, total=2)]),
        "done",
    ),
}
KINDS = {
    "commit": "step",
    "finish": "finished",
    "pass_on": "passed",
    "sleep": "slept",
    "fan_open": "fanned",
}


# -- What holds for all of them --------------------------------------------------------------


@pytest.mark.parametrize("verb", MOVES)
async def test_a_move_whose_reply_was_lost_is_known_and_recorded_once(
    store_server: EmbeddedServer, verb: str
) -> None:
    move, outcome = MOVES[verb]
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        (first,) = await move(tx.progress, held)
        before = await tx.fields(held.id), await tx.head(held.id)

        (again,) = await move(tx.progress, held)

        assert (first.outcome, again.outcome) == (outcome, "known")
        assert again.version == first.version
        assert again.log_end == first.log_end == 2
        assert (await tx.fields(held.id), await tx.head(held.id)) == before
        assert await tx.kinds(held.id) == ["started", KINDS[verb]]
        await tx.check()


@pytest.mark.parametrize("verb", MOVES)
async def test_a_late_holder_is_refused_and_changes_nothing(
    store_server: EmbeddedServer, verb: str
) -> None:
    """F-13: the lease is over, another has it by now."""
    move, _ = MOVES[verb]
    async with open_transactions(store_server) as tx:
        late = await tx.running()
        await tx.machine.advance(11)
        await tx.holding.rescue(CELL, most=10, rescues_max=3)
        for holder in ("nobody", "another"):
            if holder == "another":
                assert len(await tx.claim()) == 1
            before = await tx.fields(late.id), await tx.head(late.id)
            (verdict,) = await move(tx.progress, late)
            assert verdict.outcome == "refused"
            assert (await tx.fields(late.id), await tx.head(late.id)) == before
        assert await tx.kinds(late.id) == ["started", "rescued"]
        with pytest.raises(LeaseLostError):
            raise_refusal(late, verdict)


@pytest.mark.parametrize("verb", MOVES)
async def test_a_move_that_skips_one_before_it_is_refused(
    store_server: EmbeddedServer, verb: str
) -> None:
    move, _ = MOVES[verb]
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        (verdict,) = await move(tx.progress, after(held))
        assert verdict.outcome == "refused"
        assert await tx.kinds(held.id) == ["started"]


@pytest.mark.parametrize("verb", [*MOVES, "fan_wait"])
async def test_a_move_of_what_nobody_knows_leaves_nothing_behind(
    store_server: EmbeddedServer, verb: str
) -> None:
    """A stub hash would be a leak for ever."""
    moves = MOVES | {
        "fan_wait": (lambda p, h: p.fan_wait(CELL, [FanWait(held=h, state=b"s")]), "waiting")
    }
    async with open_transactions(store_server) as tx:
        nobody = Held("tx-0000" + "f" * 36, 1, 0)
        (verdict,) = await moves[verb][0](tx.progress, nobody)
        assert verdict == Verdict("unknown", 0, 0)
        assert (await tx.picture()).heads == {}
        with pytest.raises(TransactionUnknownError):
            raise_refusal(nobody, verdict)


async def test_one_late_item_does_not_fail_the_others_of_its_call(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        helds = [await tx.running() for _ in range(3)]
        late = msgspec.structs.replace(helds[1], epoch=7)
        verdicts = await tx.progress.commit(
            CELL, [Commit(held=each, state=b"new") for each in (helds[0], late, helds[2])]
        )
        assert [each.outcome for each in verdicts] == ["done", "refused", "done"]
        assert [(await tx.fields(each.id))["state"] for each in helds] == [
            b"new",
            b"state-0",
            b"new",
        ]


async def test_a_call_appends_one_entry_with_all_its_records(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        helds = [await tx.running() for _ in range(3)]
        details = [msgspec.msgpack.encode({"n": n}) for n in range(3)]
        verdicts = await tx.progress.commit(
            CELL,
            [
                Commit(held=held, state=b"new", detail=detail)
                for held, detail in zip(helds, details, strict=True)
            ],
        )
        assert {each.log_end for each in verdicts} == {4}, "three starts, and one more"
        facts = (await tx.facts())[3:]
        assert [(each.kind, each.id, each.detail) for each in facts] == [
            ("step", held.id, detail) for held, detail in zip(helds, details, strict=True)
        ]
        for fact, verdict in zip(facts, verdicts, strict=True):
            assert (fact.version, fact.epoch, fact.state) == (verdict.version, 1, "running")


async def test_a_move_clears_the_mark_of_a_suspect(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        await tx.running()
        await tx.machine.advance(11)
        await tx.holding.rescue(CELL, most=10, rescues_max=3)
        (claimed,) = await tx.claim()
        await tx.holding.begin(claimed.held)
        await tx.machine.advance(11)
        await tx.holding.rescue(CELL, most=10, rescues_max=3)
        (claimed,) = await tx.claim()
        await tx.holding.begin(claimed.held)
        head = await tx.head(claimed.id)
        assert (head.flags, head.rescues) == ("sb", 1)
        await tx.progress.commit(CELL, [Commit(held=claimed.held, state=b"s")])
        head = await tx.head(claimed.id)
        assert (head.flags, head.rescues) == ("", 0)


# -- Commit ----------------------------------------------------------------------------------


async def test_a_commit_keeps_the_state_and_drops_what_the_step_had(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        since = (await tx.head(held.id)).since
        await tx.progress.once(held, "1", "charge", b"paid")
        await tx.progress.once(held, "1", "mail", b"sent")

        (verdict,) = await tx.progress.commit(
            CELL, [Commit(held=held, state=b"step-2", drop=("once:1:charge", "once:1:mail"))]
        )

        assert await tx.fields(held.id) == {"state": b"step-2"}
        head = await tx.head(held.id)
        assert (head.state, head.commits, head.since) == (State.RUNNING, 1, since)
        assert head.version == verdict.version == 5, "start, claim, two notes, commit"
        (again,) = await tx.progress.commit(CELL, [Commit(held=after(held), state=b"step-3")])
        assert again.outcome == "done"


async def test_a_checkpoint_has_the_state_archived_and_goes_on(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.progress.commit(CELL, [Commit(held=held, state=b"s", snapshot=True)])
        picture = await tx.check()
        assert picture.where(held.id) == {"processingZ", "leaseZ", "toArchiveZ"}
        assert picture.heads[held.id].archive == "snapshot"


# -- Finish ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", Status)
async def test_finish_completes_with_every_final_status(
    store_server: EmbeddedServer, status: Status
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running(external_id="r-1", deadline_in_ms=60_000)
        await tx.progress.report(held, b'"half"')
        now = await tx.now_ms()

        (verdict,) = await tx.progress.finish(CELL, [finish_of(held, status)])

        assert verdict.outcome == "done"
        picture = await tx.check()
        assert picture.where(held.id) == {"toArchiveZ"}
        assert picture.sets["toArchiveZ"][held.id] == pytest.approx(now + ARCHIVE_MS, abs=2000)
        head = picture.heads[held.id]
        assert (head.state, head.status, head.archive) == (State.COMPLETE, status, "ttl")
        assert (head.node, head.flags) == ("", "ex")
        assert await tx.fields(held.id) == {"state": b"end", "externalId": b"r-1"}
        _, left_ms = picture.external["default:r-1"]
        assert EXTERNAL_MS - 5000 < left_ms <= EXTERNAL_MS
        assert (await tx.facts())[-1].status == status


async def test_an_external_id_is_free_again_when_its_period_is_over(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running(external_id="r-1")
        await tx.machine.advance(10 * EXTERNAL_MS / 1000)
        (claimed,) = [await tx.head(held.id)]
        assert claimed.state is State.RUNNING, "while it lives, the id stays reserved"
        other = tx.new(external_id="r-1")
        (started,) = await tx.entry.start(CELL, [other])
        assert (started.outcome, started.detail) == ("duplicate", held.id)
        await tx.progress.finish(CELL, [finish_of(held)])
        (started,) = await tx.entry.start(CELL, [other])
        assert started.outcome == "duplicate"
        await tx.machine.advance(EXTERNAL_MS / 1000 + 1)
        (started,) = await tx.entry.start(CELL, [other])
        assert started.outcome == "started"


async def test_a_final_status_never_changes(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.progress.finish(CELL, [finish_of(held)])
        before = await tx.head(held.id)
        for commits in range(4):
            again = msgspec.structs.replace(held, commits=commits)
            (verdict,) = await tx.progress.finish(CELL, [finish_of(again, Status.FAILED)])
            assert verdict.outcome == ("known" if commits == 0 else "not-running")
        (cancelled,) = await tx.signals.cancel("default", [held.id], cause="me", grace_ms=0)
        assert (cancelled.outcome, cancelled.status) == ("final", Status.SUCCESS)
        assert await tx.head(held.id) == before
        assert await tx.kinds(held.id) == ["started", "finished"]


async def test_only_what_runs_can_be_completed(store_server: EmbeddedServer) -> None:
    """Sanity check of DATP's completeTransaction."""
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.progress.sleep(CELL, [Sleep(held=held, state=b"s")])
        (verdict,) = await tx.progress.finish(CELL, [finish_of(after(held))])
        assert verdict.outcome == "not-running"
        with pytest.raises(NotRunningError):
            raise_refusal(held, verdict)
        assert (await tx.head(held.id)).state is State.SLEEPING


async def test_only_a_final_status_completes(store_server: EmbeddedServer) -> None:
    """Sanity check of DATP: by the caller, and by the script for callers that do not ask."""
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        wrong = finish_of(held, "running")  # type: ignore[arg-type]
        with pytest.raises(StatusInvalidError):
            await tx.progress.finish(CELL, [wrong])
        finish = script("waystation.transactions", "finish")
        words = [TERMS.argument, held.id, held.epoch, 1, b"end", b"", 0, "running", b""]
        _, outcome, version = await tx.store.run(finish, [names.log(CELL)], words)
        verdict = Verdict(outcome.decode(), version, 0)
        assert verdict.outcome == "status-invalid"
        with pytest.raises(StatusInvalidError):
            raise_refusal(held, verdict)
        await tx.check()
        assert (await tx.head(held.id)).state is State.RUNNING


async def test_those_who_wait_for_an_end_hear_of_it_and_no_one_else(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        first, second = await tx.running(), await tx.running()
        third = await tx.running()
        async with tx.hearing(names.ended_topic(CELL)) as heard:
            await tx.signals.mark([second.id, third.id], wait_ms=30_000)
            await tx.progress.finish(CELL, [finish_of(first)])
            await tx.progress.finish(CELL, [finish_of(second), finish_of(third)])
            async with asyncio.timeout(5):
                assert await heard.get() == f"{second.id} {third.id}"


# -- Pass on ---------------------------------------------------------------------------------


async def test_a_child_frame_goes_to_the_queue_of_its_node_group_and_comes_back_by_out(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        await tx.define("child")
        held = await tx.running()
        into = PassOn(
            held=held, state=b"2 frames", group="far", queue="in", pipeline="child", version=VERSION
        )
        (verdict,) = await tx.progress.pass_on(CELL, [into])
        assert verdict.outcome == "done"
        picture = await tx.check()
        assert picture.where(held.id) == {"qInL:far"}
        assert picture.heads[held.id].pipeline == "child"

        (claimed,) = await tx.claim(group="far")
        back = PassOn(
            held=claimed.held, state=b"1", group="main", queue="out", pipeline="p", snapshot=True
        )
        await tx.progress.pass_on(CELL, [back])
        picture = await tx.check()
        assert picture.where(held.id) == {"qOutL:main", "toArchiveZ"}
        assert picture.heads[held.id].archive == "snapshot"
        assert (await tx.claim())[0].state == b"1"


@pytest.mark.parametrize("there", [True, False])
async def test_a_child_of_another_version_is_stale_and_nothing_is_written(
    store_server: EmbeddedServer, there: bool
) -> None:
    async with open_transactions(store_server) as tx:
        if there:
            await tx.define("child", version="f" * 16)
        held = await tx.running()
        move = PassOn(
            held=held, state=b"no", group="far", queue="in", pipeline="child", version=VERSION
        )
        (verdict,) = await tx.progress.pass_on(CELL, [move])
        assert (verdict.outcome, verdict.version) == ("stale", 2)
        picture = await tx.check()
        assert picture.heads[held.id].state is State.RUNNING
        assert (await tx.fields(held.id))["state"] == b"state-0"
        (verdict,) = await tx.progress.commit(CELL, [Commit(held=held, state=b"s")])
        assert verdict.outcome == "done", "the holder goes on with the same number"


# -- Once and report -------------------------------------------------------------------------


async def test_what_was_done_once_stays_as_it_was_recorded_first(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        assert (await tx.progress.once(held, "2.1", "charge", b"first")).outcome == "done"
        again = await tx.progress.once(held, "2.1", "charge", b"second")
        assert again.outcome == "known"
        assert (await tx.fields(held.id))["once:2.1:charge"] == b"first"
        await tx.holding.release(CELL, [held])
        (claimed,) = await tx.claim()
        assert claimed.extras == {b"once:2.1:charge": b"first"}


async def test_a_late_holder_records_nothing_while_its_step_runs(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        late = await tx.running()
        await tx.machine.advance(11)
        await tx.holding.rescue(CELL, most=10, rescues_max=3)
        await tx.claim()
        before = await tx.head(late.id)
        assert (await tx.progress.once(late, "1", "charge", b"x")).outcome == "refused"
        assert (await tx.progress.report(late, b"{}")).outcome == "refused"
        assert await tx.fields(late.id) == {"state": b"state-0"}
        assert await tx.head(late.id) == before
        nobody = msgspec.structs.replace(late, id="tx-0000" + "f" * 36)
        assert (await tx.progress.once(nobody, "1", "charge", b"x")).outcome == "unknown"
        assert (await tx.progress.report(nobody, b"{}")).outcome == "unknown"
        assert await tx.store.call("EXISTS", names.state(nobody.id)) == 0


async def test_the_newest_report_counts_and_the_same_one_is_no_change(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        first = await tx.progress.report(held, b'{"percent":10}')
        same = await tx.progress.report(held, b'{"percent":10}')
        newer = await tx.progress.report(held, b'{"percent":20}')
        assert [each.outcome for each in (first, same, newer)] == ["done", "known", "done"]
        assert [each.version for each in (first, same, newer)] == [3, 3, 4]
        assert (await tx.fields(held.id))["progress"] == b'{"percent":20}'


async def test_what_is_too_large_is_refused_before_it_is_sent(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        with pytest.raises(TooLargeError):
            await tx.progress.once(held, "1", "charge", b"x" * 262_145)
        with pytest.raises(TooLargeError):
            await tx.progress.report(held, b"x" * 262_145)


async def test_children_that_are_not_created_cannot_be_waited_for(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        for number in range(2):
            wait = FanWait(held=after(held, number), state=b"s")
            (verdict,) = await tx.progress.fan_wait(CELL, [wait])
            assert verdict.outcome == "fan-incomplete"
            with pytest.raises(IllegalTransitionError) as caught:
                raise_refusal(held, verdict)
            assert caught.value.from_state == "running"
            assert caught.value.to_state == "waiting_children"
            await tx.progress.fan_open(CELL, [FanOpen(held=held, state=b"s", round=1, total=2)])
        await tx.check()


async def test_an_empty_call_is_none(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        assert await tx.progress.commit(CELL, []) == []
        assert await tx.signals.cancel("default", [], cause="", grace_ms=0) == []
        assert await tx.signals.get("default", []) == []
