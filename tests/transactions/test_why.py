"""Why a transaction is where it is: each reason, word by word."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tests.transactions.helpers import after
from tests.transactions.service_helpers import GROUP, Outside, open_outside, packed, state_of
from waystation.archive import Archive, SqliteArchive
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.app import App
from waystation.transactions.archive_row import row_of
from waystation.transactions.entry import NewTransaction
from waystation.transactions.holding import Claimed
from waystation.transactions.nodes import node_record
from waystation.transactions.order import Moment
from waystation.transactions.progress import FanOpen, FanWait, Sleep
from waystation.transactions.record import Frame
from waystation.transactions.states import Status
from waystation.transactions.why import Reason

OpenHere = Callable[..., AbstractAsyncContextManager[Outside]]
NODE = "nodeId-" + "1" * 40


@pytest.fixture
def open_here(store_server: EmbeddedServer, tmp_path: Path) -> OpenHere:
    """An engine with pipeline `refund`, whose steps a living node serves."""

    @asynccontextmanager
    async def opened(**settings: object) -> AsyncIterator[Outside]:
        async with open_outside(store_server.address, tmp_path, **settings) as outside:
            app = App()
            app.step("refund/approve")(lambda ctx, given: given)
            app.step("refund/pay")(lambda ctx, given: given)
            nodes = outside.engine.nodes
            await nodes.register(node_record(GROUP, NODE, app.book()))
            try:
                await outside.define("refund", "refund/approve", "refund/pay")
                yield outside
            finally:
                await nodes.stop()

    return opened


async def why(outside: Outside, transaction_id: str, project: str = "default") -> Reason:
    return await outside.engine.why.explain(project, transaction_id)


def told(at_ms: int | None) -> str:
    assert at_ms is not None
    moment = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return moment.removesuffix("+00:00") + "Z"


async def asleep(outside: Outside, claimed: Claimed, **sleep: object) -> int:
    """Puts it to sleep; returns when it wakes."""
    move = Sleep(held=claimed.held, **sleep)  # type: ignore[arg-type]
    (verdict,) = await outside.progress.sleep(0, [move])
    assert verdict.outcome == "waiting"
    (found,) = await outside.signals.get("default", [claimed.id])
    assert found is not None
    return found.head.wake


STEP_1 = "step 1 (refund/approve) of pipeline refund"


async def test_unknown(open_here: OpenHere) -> None:
    async with open_here() as outside:
        transaction_id = await outside.start()
        text = "This project has no such transaction: it was never started, or it is another's."
        for each, project in (
            ("tx-0000" + "f" * 36, "default"),
            ("junk", "default"),
            (transaction_id, "shop"),
        ):
            assert await why(outside, each, project) == Reason(id=each, code="unknown", text=text)


async def test_queued(open_here: OpenHere) -> None:
    async with open_here() as outside:
        await outside.start()
        reason = await why(outside, await outside.start())
        assert reason.code == "queued"
        assert reason.text == f"It is number 2 in qInL of node group master; next is {STEP_1}."
        assert reason.facts == {
            "state": "queued",
            "step": "refund/approve",
            "place": "1",
            "pipeline": "refund",
            "group": "master",
            "queue": "qInL",
            "position": 2,
        }


async def test_queued_far_behind(open_here: OpenHere) -> None:
    async with open_here() as outside:
        key = names.queue_in(0, GROUP)
        await outside.store.call("RPUSH", key, *("x" for _ in range(10_000)))
        reason = await why(outside, await outside.start())
        assert reason.code == "queued"
        assert reason.text == "More than 10,000 are before it in qInL of node group master."


async def test_no_node_for_step(open_here: OpenHere) -> None:
    async with open_here() as outside:
        await outside.define("other", "nobody/serves")
        reason = await why(outside, await outside.start("other"))
        assert reason.code == "no_node_for_step"
        assert reason.text == (
            "No living node of node group master serves step 1 (nobody/serves) of pipeline other,"
            " which is next."
        )
        # A worker that does not know the step puts the transaction off.
        (claimed,) = await outside.claim()
        await asleep(outside, claimed, state=packed(claimed), delay_ms=5000)
        assert (await why(outside, claimed.id)).text == reason.text
        await outside.engine.nodes.stop()
        gone = await why(outside, await outside.start())
        assert gone.code == "no_node_for_step", "not even one who served it is left"


async def test_held(open_here: OpenHere) -> None:
    async with open_here() as outside:
        await outside.engine.pipelines.pause("default", "refund")
        first, second = await outside.start(), await outside.start()
        assert (await why(outside, second)).code == "queued", "no worker has looked at it"
        assert await outside.claim(most=2) == []
        assert (await why(outside, first)).facts["position"] == 1
        reason = await why(outside, second)
        assert reason.code == "held"
        assert reason.text == "Pipeline refund is paused; it is number 2 of what it holds."


async def test_held_by_its_node_group(open_here: OpenHere) -> None:
    async with open_here() as outside:
        transaction_id = await outside.start()
        await outside.engine.nodes.tell(GROUP, "paused", 1)
        assert await outside.claim() == []
        reason = await why(outside, transaction_id)
        assert (reason.code, reason.text) == ("held", "Node group master is paused.")


async def test_scheduled(open_here: OpenHere) -> None:
    async with open_here() as outside:
        transaction_id = await outside.start(start_at=Moment(60_000, after_start=True))
        reason = await why(outside, transaction_id)
        assert reason.code == "scheduled"
        assert reason.text == f"It begins at {told(reason.facts['wake_ms'])}."


async def test_running(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        reason = await why(outside, claimed.id)
        (found,) = await outside.signals.get("default", [claimed.id])
        assert found is not None
        assert reason.code == "running"
        assert reason.text == (
            f"It runs on node n1 since {told(found.processing_ms)}, {STEP_1}; its lease ends at"
            f" {told(found.lease_ms)}."
        )
        assert (reason.facts["node"], reason.facts["lease_ms"]) == ("n1", found.lease_ms)


async def test_store_full(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        await outside.store.call("CONFIG", "SET", "maxmemory", 1)
        try:
            reason = await why(outside, claimed.id)
        finally:
            await outside.store.call("CONFIG", "SET", "maxmemory", 0)
        assert reason.code == "store_full"
        assert reason.text == (
            f"It runs on node n1, {STEP_1}, and the store is full: it can end, but nothing can"
            " begin."
        )
        assert (await why(outside, claimed.id)).code == "running", "there is room again"


async def test_suspect(open_here: OpenHere) -> None:
    async with open_here(rescues_max=3) as outside:
        claimed = await outside.running()
        await outside.machine.advance(60)
        await outside.holding.rescue(0, most=100, rescues_max=3)
        reason = await why(outside, claimed.id)
        assert reason.code == "suspect"
        assert reason.text == (
            f"The process that ran it was lost, so it waits to run alone: {STEP_1}."
        )
        (again,) = await outside.claim()
        assert (await outside.holding.begin(again.held)).outcome == "done"
        reason = await why(outside, claimed.id)
        assert reason.text == (
            f"The process that ran it was lost, so it runs alone on node n1: {STEP_1}."
        )
        await outside.machine.advance(60)
        await outside.holding.rescue(0, most=100, rescues_max=3)
        reason = await why(outside, claimed.id)
        assert (reason.code, reason.facts["rescues"]) == ("suspect", 1)
        assert reason.text.endswith(f"{STEP_1}. So it went 1 times before.")


async def test_sleeping_until(open_here: OpenHere) -> None:
    async with open_here() as outside:
        await outside.define("slow", "util/delay")
        claimed = await outside.running(type_="slow")
        wake = await asleep(outside, claimed, state=packed(claimed), delay_ms=60_000)
        reason = await why(outside, claimed.id)
        assert reason.code == "sleeping_until"
        step = "step 1 (util/delay) of pipeline slow"
        assert reason.text == f"It sleeps until {told(wake)} in {step}."


async def test_retrying(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        (frame,) = state_of(claimed).frames
        frames = [msgspec.structs.replace(frame, retries=3)]
        state = packed(claimed, frames=frames, note="the bank is closed")
        wake = await asleep(outside, claimed, state=state, delay_ms=60_000)
        reason = await why(outside, claimed.id)
        assert reason.code == "retrying"
        assert reason.text == (
            f"It calls {STEP_1} again at {told(wake)}, retry 3: the bank is closed."
        )
        assert (reason.facts["retries"], reason.facts["wake_ms"]) == (3, wake)


async def test_waiting_switch(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        state = packed(claimed)
        wake = await asleep(
            outside, claimed, state=state, switch="approved", place="1", at_most_ms=172_800_000
        )
        reason = await why(outside, claimed.id)
        ends = reason.facts["wait_ends_ms"]
        assert reason.code == "waiting_switch"
        assert reason.text == (
            f"It waits for switch approved in {STEP_1}; it looks again at {told(wake)}, and waits"
            f" until {told(ends)} at most."
        )
        assert ends - wake == 172_800_000 - 7_200_000


async def test_waiting_switch_for_ever(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        state = packed(claimed)
        wake = await asleep(outside, claimed, state=state, switch="approved", place="1")
        reason = await why(outside, claimed.id)
        assert reason.text == (
            f"It waits for switch approved in {STEP_1}; it looks again at {told(wake)}."
        )


async def with_children(outside: Outside, total: int) -> Claimed:
    """A parent that waits for children, none of which has ended."""
    parent = await outside.running()
    state = packed(parent)
    await outside.progress.fan_open(
        0, [FanOpen(held=parent.held, state=state, round=1, total=total)]
    )
    pipeline = await outside.engine.pipelines.active("default", "refund")
    frame = Frame("refund", pipeline.version, GROUP, 0, b"1")
    items = [
        NewTransaction(
            id=names.child_id(parent.id, 1, n),
            owner="default",
            pipeline="refund",
            version=pipeline.version,
            group=GROUP,
            state=packed(parent, frames=[frame]),
            inside=True,
        )
        for n in range(1, total + 1)
    ]
    held = after(parent.held)
    made = await outside.entry.fan_out(held, round_=1, first=1, items=items)
    assert made.outcome == "done", made
    (verdict,) = await outside.progress.fan_wait(0, [FanWait(held=held, state=state)])
    assert verdict.outcome == "waiting", verdict
    return parent


async def test_waiting_children(open_here: OpenHere) -> None:
    async with open_here() as outside:
        parent = await with_children(outside, 3)
        (child,) = await outside.claim()
        await outside.finish(child)
        reason = await why(outside, parent.id)
        assert (reason.code, reason.text) == ("waiting_children", "1 of 3 children have ended.")
        assert (reason.facts["done"], reason.facts["total"]) == (1, 3)
        found = await outside.engine.transactions.children("default", parent.id)
        assert [(each.number, each.status) for each in found.children] == [
            (1, "success"),
            (2, ""),
            (3, ""),
        ]
        assert (found.total, found.created, found.done) == (3, 3, 1)


async def test_cancelling_a_running_one(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        await outside.engine.transactions.cancel("default", claimed.id, cause="sold out")
        reason = await why(outside, claimed.id)
        (found,) = await outside.signals.get("default", [claimed.id])
        assert found is not None
        assert reason.code == "cancelling"
        assert reason.text == (
            "A cancel was asked for (sold out): it ends with its next commit; at"
            f" {told(found.deadline_ms)} it is ended anyway."
        )


async def test_cancelling_a_parent(open_here: OpenHere) -> None:
    async with open_here() as outside:
        parent = await with_children(outside, 2)
        children = await outside.claim(most=2)
        assert len(children) == 2, "what runs is not cancelled at once"
        await outside.engine.transactions.cancel("default", parent.id, cause="sold out")
        reason = await why(outside, parent.id)
        assert reason.code == "cancelling"
        assert reason.text.startswith(
            "A cancel was asked for (sold out): it ends when its children have; at "
        )


async def test_cancelling_since_the_deadline_has_passed(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running(deadline=Moment(5000, after_start=True))
        await outside.machine.advance(6)
        await outside.signals.expire(0, grace_ms=30_000)
        reason = await why(outside, claimed.id)
        assert reason.code == "cancelling"
        assert reason.text.startswith("Its deadline has passed: it ends with its next commit; at ")


async def test_final(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        await outside.finish(claimed, Status.FAILED, note="no money")
        reason = await why(outside, claimed.id)
        assert reason.code == "final"
        ended = told(reason.facts["ended_ms"])
        assert reason.text == f"It has ended as failed at {ended}: no money."
        assert (reason.facts["status"], reason.facts["cause"]) == ("failed", "no money")


async def test_a_cause_that_is_a_sentence_ends_only_once(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        await outside.finish(claimed, Status.INTERNAL_ERROR, note="There is no pipeline nowhere.")
        reason = await why(outside, claimed.id)
        ended = told(reason.facts["ended_ms"])
        begun = f"It has ended as internal-error at {ended}"
        assert reason.text == f"{begun}: There is no pipeline nowhere."
        assert reason.facts["cause"] == "There is no pipeline nowhere."


async def test_final_by_a_script(open_here: OpenHere) -> None:
    async with open_here() as outside:
        transaction_id = await outside.start()
        await outside.engine.transactions.cancel("default", transaction_id, cause="sold out")
        reason = await why(outside, transaction_id)
        ended = told(reason.facts["ended_ms"])
        assert reason.text == f"It has ended as cancelled at {ended}: sold out."


async def test_final_success_has_no_cause(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        await outside.finish(claimed, note="500ms")
        reason = await why(outside, claimed.id)
        assert reason.text == f"It has ended as success at {told(reason.facts['ended_ms'])}."


async def test_archiving_failed(open_here: OpenHere) -> None:
    """The archive has refused it, and it was set aside."""
    async with open_here() as outside:
        claimed = await outside.running()
        await outside.finish(claimed)
        key = names.archive_failed(names.cell_of(claimed.id))
        await outside.store.call("HSET", key, claimed.id, "1700000000000 1 the disk is full")
        reason = await why(outside, claimed.id)
        assert reason.code == "archiving_failed"
        assert reason.text == "It could not be archived: the disk is full."


async def test_archiving_failed_tells_the_cause_as_a_fact(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        await asleep(outside, claimed, state=packed(claimed), delay_ms=3_600_000)
        key = names.archive_failed(names.cell_of(claimed.id))
        cause = "text that is not UTF-8."
        await outside.store.call("HSET", key, claimed.id, f"1700000000000 3 {cause}")
        reason = await why(outside, claimed.id)
        assert reason.code == "archiving_failed"
        assert reason.text == "It could not be archived: text that is not UTF-8."
        assert (reason.facts["cause"], reason.facts["state"]) == (cause, "sleeping")


@asynccontextmanager
async def with_archive(open_here: OpenHere, folder: Path) -> AsyncIterator[tuple[Outside, Archive]]:
    """An engine that archives nothing by itself, and its archive."""
    archive = SqliteArchive(folder / "archive.db")
    await archive.open()
    try:
        async with open_here(archive=archive, archive_batch=0) as outside:
            yield outside, archive
    finally:
        await archive.close()


async def to_archive(outside: Outside, archive: Archive, transaction_id: str) -> None:
    """From the store into the archive, as it is."""
    key = names.state(transaction_id)
    flat = await outside.store.call("HGETALL", key)
    row = row_of(transaction_id, dict(zip(flat[::2], flat[1::2], strict=True)))
    assert (await archive.upsert([row])).applied == 1
    await outside.store.call("DEL", key)


IN_ARCHIVE = "Until then it is in the archive alone, and takes no room in the store."


async def test_archived(open_here: OpenHere, tmp_path: Path) -> None:
    async with with_archive(open_here, tmp_path) as (outside, archive):
        claimed = await outside.running()
        wake = await asleep(outside, claimed, state=packed(claimed), switch="approved", place="1")
        before = await why(outside, claimed.id)
        assert before.code == "waiting_switch"
        await to_archive(outside, archive, claimed.id)
        reason = await why(outside, claimed.id)
        assert reason.code == "archived"
        assert reason.text == f"{before.text} {IN_ARCHIVE}"
        assert reason.facts == {**before.facts, "reason": "waiting_switch"}
        assert reason.facts["wake_ms"] == wake
        assert (await why(outside, claimed.id, "shop")).code == "unknown"
        assert await outside.store.call("EXISTS", names.state(claimed.id)) == 0, "it only looks"
        await outside.engine.nodes.stop()
        assert (await why(outside, claimed.id)).code == "archived", "a switch needs no node"


async def test_archived_and_nobody_serves_it(open_here: OpenHere, tmp_path: Path) -> None:
    async with with_archive(open_here, tmp_path) as (outside, archive):
        await outside.define("other", "nobody/serves")
        await outside.start("other")
        (claimed,) = await outside.claim()
        await asleep(outside, claimed, state=packed(claimed), delay_ms=3_600_000)
        await to_archive(outside, archive, claimed.id)
        assert (await why(outside, claimed.id)).code == "no_node_for_step"


async def test_what_has_ended_is_final_in_the_archive_too(
    open_here: OpenHere, tmp_path: Path
) -> None:
    async with with_archive(open_here, tmp_path) as (outside, archive):
        claimed = await outside.running()
        await outside.finish(claimed, Status.FAILED, note="the bank has refused")
        before = await why(outside, claimed.id)
        await to_archive(outside, archive, claimed.id)
        assert before.code == "final"
        assert await why(outside, claimed.id) == before


async def test_state_lost(open_here: OpenHere, tmp_path: Path) -> None:
    async with with_archive(open_here, tmp_path) as (outside, _):
        claimed = await outside.running()
        wake = await asleep(outside, claimed, state=packed(claimed), delay_ms=3_600_000)
        await outside.store.call("DEL", names.state(claimed.id))
        reason = await why(outside, claimed.id)
        assert reason == Reason(
            id=claimed.id,
            code="state_lost",
            text="It sleeps, and its state is neither in the store nor in the archive; it is"
            f" looked for again at {told(wake)}.",
            facts={"wake_ms": wake},
        )


async def test_state_lost_but_for_a_snapshot(open_here: OpenHere, tmp_path: Path) -> None:
    async with with_archive(open_here, tmp_path) as (outside, archive):
        claimed = await outside.running()
        (found,) = await outside.signals.get("default", [claimed.id])
        assert found is not None
        await to_archive(outside, archive, claimed.id)
        reason = await why(outside, claimed.id)
        assert reason.code == "state_lost"
        assert reason.text == (
            "The store has lost it; the archive has it as it was running at"
            f" {told(found.head.since)}."
        )


async def test_a_definition_that_is_gone_does_not_hide_the_rest(open_here: OpenHere) -> None:
    async with open_here() as outside:
        claimed = await outside.running()
        (frame,) = state_of(claimed).frames
        state = packed(claimed, frames=[msgspec.structs.replace(frame, version="0" * 16)])
        await asleep(outside, claimed, state=state, switch="approved", place="1")
        reason = await why(outside, claimed.id)
        assert (reason.code, reason.facts["step"]) == ("waiting_switch", "unknown")
