"""What every archive must do. A test module of an implementation inherits this class.

    class TestSqlite(ArchiveConformance):
        @pytest.fixture
        def make(self, tmp_path):
            return lambda: SqliteArchive(tmp_path / "archive.db")

`make` returns a new, unopened archive of the same database each time.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from waystation.archive import (
    Archive,
    ArchivedFacts,
    ArchivedState,
    Mark,
    Refused,
    join_hash,
    split_hash,
)
from waystation.errors import ArchiveUnavailableError

Make = Callable[[], Archive]

#: Fields as scripts write them: text, packed bytes, names with places and words of users.
HASH = {
    b"head": b"1700000000000 sleeping 7 2 1 xe master in refund default - 1700000600000 ok 0 - -",
    b"state": bytes(range(256)) * 4,
    b"externalId": "ünïcode-1".encode(),
    b"switches": b'approved="yes",!count=3',
    b"wait:2.1:approved": b"1700000600000",
    b"once:2:charge": b"\xff\x00\xfe",
    b"result:1": b"success ",
    b"empty": b"",
}


@asynccontextmanager
async def opened(make: Make) -> AsyncIterator[Archive]:
    archive = make()
    await archive.open()
    try:
        yield archive
    finally:
        await archive.close()


def archived(tx: str, *, version: int = 1, **more: Any) -> ArchivedState:
    packed, fields = split_hash({**HASH, b"note": b"version %d" % version})
    facts: dict[str, Any] = {
        "id": tx,
        "owner": "default",
        "external_id": "",
        "pipeline": "refund",
        "status": "sleeping",
        "step": "2.1",
        "version": version,
        "wake_ms": 1_700_000_600_000,
        "deadline_ms": 0,
        "started_ms": 1_700_000_000_000,
        "updated_ms": 1_700_000_000_000 + version,
        "completed_ms": 0,
        "packed": packed,
        "fields": fields,
    }
    return ArchivedState(**{**facts, **more})


def facts_of(state: ArchivedState) -> ArchivedFacts:
    known = msgspec.structs.asdict(state)
    return ArchivedFacts(**{name: known[name] for name in ArchivedFacts.__struct_fields__})


class ArchiveConformance:
    """The suite; `make` is the only thing that an implementation brings."""

    # -- Keeping ---------------------------------------------------------------------------------

    async def test_a_state_comes_back_as_it_was_given(self, make: Make) -> None:
        odd = archived(
            "tx-2",
            owner="öwner",
            external_id="a 'quoted' \"thing\"; DROP TABLE state --\n\u2028🚉",
            version=2**63 - 1,
            updated_ms=2**63 - 2,
            deadline_ms=2**53,
            packed=b"",
            fields=b"\x00" * 10,
        )
        async with opened(make) as archive:
            kept = await archive.upsert([archived("tx-1"), odd])
            assert (kept.applied, kept.refused) == (2, [])
            assert await archive.get(["tx-1", "tx-2"]) == {"tx-1": archived("tx-1"), "tx-2": odd}

    async def test_a_hash_comes_back_byte_for_byte(self, make: Make) -> None:
        packed, fields = split_hash(HASH)
        async with opened(make) as archive:
            await archive.upsert([archived("tx-1", packed=packed, fields=fields)])
            found = (await archive.get(["tx-1"]))["tx-1"]
            assert join_hash(found.packed, found.fields) == HASH

    async def test_everything_is_there_after_a_reopening(self, make: Make) -> None:
        async with opened(make) as archive:
            await archive.upsert([archived("tx-1")])
        async with opened(make) as archive:
            assert await archive.get(["tx-1"]) == {"tx-1": archived("tx-1")}

    async def test_a_large_state_is_kept(self, make: Make) -> None:
        large = archived("tx-1", packed=random.randbytes(8 * 2**20))
        async with opened(make) as archive:
            assert (await archive.upsert([large, archived("tx-2")])).refused == []
            assert await archive.get(["tx-1"]) == {"tx-1": large}

    async def test_nothing_to_keep_is_nothing_done(self, make: Make) -> None:
        async with opened(make) as archive:
            kept = await archive.upsert([])
            assert (kept.applied, kept.refused) == (0, [])
            assert await archive.get([]) == {}
            assert await archive.counts() == {}

    # -- Versions --------------------------------------------------------------------------------

    async def test_only_a_higher_version_applies(self, make: Make) -> None:
        async with opened(make) as archive:
            told = []
            for version in (3, 1, 3, 2, 4, 4, 1):
                # Of the same version, but another content: the first one stays
                state = archived("tx-1", version=version, step=f"{len(told)}")
                told.append((await archive.upsert([state])).applied)
            assert told == [1, 0, 0, 0, 1, 0, 0]
            found = await archive.get(["tx-1"])
            assert found == {"tx-1": archived("tx-1", version=4, step="4")}

    async def test_in_one_batch_the_highest_version_of_an_id_wins(self, make: Make) -> None:
        batch = [archived("tx-1", version=version) for version in (2, 5, 1, 5, 4)]
        async with opened(make) as archive:
            assert (await archive.upsert([*batch, archived("tx-2")])).applied == 2
            assert (await archive.get(["tx-1"]))["tx-1"].version == 5

    async def test_a_batch_of_old_and_new_applies_the_new(self, make: Make) -> None:
        async with opened(make) as archive:
            await archive.upsert([archived("tx-1", version=9), archived("tx-2", version=1)])
            batch = [archived(f"tx-{number}", version=5) for number in (1, 2, 3)]
            assert (await archive.upsert(batch)).applied == 2
            found = await archive.get(["tx-1", "tx-2", "tx-3"])
            assert [found[f"tx-{n}"].version for n in (1, 2, 3)] == [9, 5, 5]

    async def test_writers_that_race_end_with_the_highest_version(self, make: Make) -> None:
        dice = random.Random(7)
        names = [f"tx-{number}" for number in range(20)]

        def batch() -> list[ArchivedState]:
            dice.shuffle(names)
            return [archived(name, version=dice.randrange(1, 1000)) for name in names]

        batches = [batch() for _ in range(24)]
        async with opened(make) as one, opened(make) as two, opened(make) as three:
            archives = [one, two, three] * 8
            pairs = zip(archives, batches, strict=True)
            await asyncio.gather(*(archive.upsert(each) for archive, each in pairs))
            highest = {
                name: max(each.version for some in batches for each in some if each.id == name)
                for name in names
            }
            found = await one.get(names)
            assert {name: state.version for name, state in found.items()} == highest

    # -- One bad state ---------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "bad",
        [
            archived("tx-bad", external_id="a\0b"),
            archived("tx-bad", pipeline="\0"),
            archived("tx-bad", external_id="\ud800"),
            archived("tx-bad", version=2**63),
            archived("tx-bad", wake_ms=-(2**70)),
        ],
        ids=["nul", "nul alone", "surrogate", "version", "time"],
    )
    async def test_a_state_that_cannot_be_kept_is_named_and_the_others_are_kept(
        self, make: Make, bad: ArchivedState
    ) -> None:
        good = [archived(f"tx-{number:02}") for number in range(20)]
        async with opened(make) as archive:
            for place in (0, 7, 20):
                kept = await archive.upsert([*good[:place], bad, *good[place:]])
                assert [each.id for each in kept.refused] == ["tx-bad"]
                assert kept.refused[0].reason
            assert len(await archive.get([state.id for state in good])) == 20
            assert await archive.get(["tx-bad"]) == {}

    async def test_many_bad_states_are_all_named(self, make: Make) -> None:
        states = [
            archived(f"tx-{number}", version=2**63 if number % 3 == 0 else 1)
            for number in range(50)
        ]
        async with opened(make) as archive:
            kept = await archive.upsert(states)
            assert {each.id for each in kept.refused} == {f"tx-{n}" for n in range(0, 50, 3)}
            assert kept.applied == 33
            assert await archive.counts() == {"sleeping": 33}

    async def test_what_is_refused_tells_nothing_of_the_payload(self, make: Make) -> None:
        secret = "hunter2-4111111111111111"
        bad = archived("tx-1", external_id=f"{secret}\ud800", packed=secret.encode())
        async with opened(make) as archive:
            (refused,) = (await archive.upsert([bad])).refused
            assert isinstance(refused, Refused)
            assert secret not in refused.reason

    # -- Getting ---------------------------------------------------------------------------------

    async def test_who_is_not_there_is_not_in_the_answer(self, make: Make) -> None:
        async with opened(make) as archive:
            await archive.upsert([archived("tx-1")])
            asked = ["tx-0", "tx-1", "tx-1", "TX-1", "", "tx-1\0", "\ud800"]
            assert await archive.get(asked) == {"tx-1": archived("tx-1")}
            assert await archive.get(["\0"]) == {}

    async def test_thousands_are_kept_and_loaded_at_once(self, make: Make) -> None:
        states = {f"tx-{number:05}": archived(f"tx-{number:05}") for number in range(3000)}
        async with opened(make) as archive:
            assert (await archive.upsert(list(states.values()))).applied == 3000
            assert await archive.get([*states, "tx-none"]) == states

    # -- Finding ---------------------------------------------------------------------------------

    async def test_an_external_id_finds_the_newest_of_its_owner(self, make: Make) -> None:
        def order(tx: str, started_ms: int, **more: Any) -> ArchivedState:
            return archived(tx, external_id="order-1", started_ms=started_ms, **more)

        newest = order("tx-1", 30)
        states = [
            *(order("tx-0", 10), newest, order("tx-2", 20), order("tx-3", 99, owner="shop")),
            *(archived("tx-4", started_ms=99), archived("tx-5", external_id="order-10")),
        ]
        async with opened(make) as archive:
            await archive.upsert(states)
            assert await archive.find("default", "order-1") == facts_of(newest)
            found = await archive.find("shop", "order-1")
            assert found is not None
            assert found.id == "tx-3"
            for owner, external_id in (
                *(("default", "order"), ("art", "order-1"), ("default", "")),
                *(("default", "order-1\0"), ("default", "\udfff")),
            ):
                assert await archive.find(owner, external_id) is None

    async def test_pages_come_newest_first_and_go_on_where_they_ended(self, make: Make) -> None:
        dice = random.Random(5)
        states = [
            archived(
                f"tx-{number:03}",
                status=dice.choice(["sleeping", "success", "failed"]),
                updated_ms=dice.randrange(20),
                pipeline=dice.choice(["refund", "order"]),
                owner=dice.choice(["default", "default", "shop"]),
            )
            for number in range(200)
        ]

        def expected(statuses: tuple[str, ...], pipeline: str, since: int) -> list[str]:
            chosen = [
                (each.updated_ms, each.id)
                for each in states
                if each.owner == "default" and each.status in statuses
                if pipeline in ("", each.pipeline) and each.updated_ms >= since
            ]
            return [name for _, name in sorted(chosen, reverse=True)]

        async with opened(make) as archive:
            await archive.upsert(states)
            for statuses, pipeline, since in (
                (("sleeping",), "", 0),
                (("success", "failed"), "", 5),
                (("sleeping", "success", "failed"), "order", 3),
                (("running",), "", 0),
                ((), "", 0),
            ):
                seen: list[ArchivedFacts] = []
                mark = None
                while page := await archive.page(
                    "default", statuses, pipeline=pipeline, since_ms=since, before=mark, limit=7
                ):
                    assert len(page) <= 7
                    seen += page
                    mark = Mark(page[-1].updated_ms, page[-1].id)
                assert [each.id for each in seen] == expected(statuses, pipeline, since)
            by_id = {each.id: facts_of(each) for each in states}
            assert await archive.page("default", ["failed"], limit=1) == [
                by_id[expected(("failed",), "", 0)[0]]
            ]

    async def test_counts_are_by_status_of_one_owner_or_of_all(self, make: Make) -> None:
        async with opened(make) as archive:
            await archive.upsert(
                [
                    *(archived("tx-1"), archived("tx-2", status="success")),
                    *(archived("tx-3"), archived("tx-4", owner="shop")),
                ]
            )
            assert await archive.counts() == {"sleeping": 3, "success": 1}
            assert await archive.counts("default") == {"sleeping": 2, "success": 1}
            assert await archive.counts("nobody") == {}
            # And a state that moves on is counted once
            await archive.upsert([archived("tx-1", version=2, status="failed")])
            assert await archive.counts("default") == dict.fromkeys(
                ("failed", "sleeping", "success"), 1
            )

    # -- Retention -------------------------------------------------------------------------------

    async def test_the_oldest_that_are_complete_are_deleted_and_sleepers_never(
        self, make: Make
    ) -> None:
        done = [
            archived(f"tx-{number}", status="success", completed_ms=number)
            for number in range(1, 10)
        ]
        async with opened(make) as archive:
            await archive.upsert([*done, archived("tx-asleep", updated_ms=1, started_ms=1)])
            told = [await archive.delete_completed(before_ms=8, most=3) for _ in range(4)]
            assert told == [3, 3, 1, 0]
            left = await archive.get([*(state.id for state in done), "tx-asleep"])
            assert sorted(left) == ["tx-8", "tx-9", "tx-asleep"]

    async def test_the_oldest_go_first(self, make: Make) -> None:
        done = [
            archived(f"tx-{number}", status="success", completed_ms=number) for number in (5, 2, 9)
        ]
        async with opened(make) as archive:
            assert await archive.oldest_completed() == 0
            await archive.upsert([*done, archived("tx-asleep", updated_ms=1, started_ms=1)])
            assert await archive.oldest_completed() == 2
            assert await archive.delete_completed(before_ms=100, most=2) == 2
            assert list(await archive.get(["tx-5", "tx-2", "tx-9"])) == ["tx-9"]
            assert await archive.oldest_completed() == 9

    # -- Coming and going ------------------------------------------------------------------------

    async def test_a_caller_who_goes_away_leaves_an_archive_that_works(self, make: Make) -> None:
        states = [archived(f"tx-{number}") for number in range(500)]
        async with opened(make) as archive:
            for number in range(10):
                asked = asyncio.ensure_future(archive.upsert(states))
                await asyncio.sleep(number * 0.002)
                asked.cancel()
                await asyncio.wait([asked])
            assert len(await archive.get([each.id for each in states])) in (0, 500)
            await archive.upsert(states)
            assert await archive.counts() == {"sleeping": 500}

    async def test_archives_that_open_together_migrate_once(self, make: Make) -> None:
        archives = [make() for _ in range(6)]
        try:
            await asyncio.gather(*(archive.open() for archive in archives))
            await asyncio.gather(*(archive.ping() for archive in archives))
        finally:
            await asyncio.gather(*(archive.close() for archive in archives))

    async def test_it_has_a_name_of_its_own_that_stays(self, make: Make) -> None:
        async with opened(make) as archive, opened(make) as same:
            name = await archive.identity()
            assert re.fullmatch("ar-[0-9a-f]{16}", name)
            assert await same.identity() == name
        async with opened(make) as again:
            assert await again.identity() == name

    async def test_a_closed_archive_says_so(self, make: Make) -> None:
        async with opened(make) as archive:
            pass
        for call in (archive.ping(), archive.get(["tx-1"]), archive.upsert([archived("tx-1")])):
            with pytest.raises(ArchiveUnavailableError, match="closed"):
                await call
        await archive.close()

    async def test_an_archive_that_was_never_opened_says_so(self, make: Make) -> None:
        archive = make()
        for call in (archive.ping(), archive.upsert([archived("tx-1")])):
            with pytest.raises(ArchiveUnavailableError, match="not open"):
                await call
        await archive.close()
