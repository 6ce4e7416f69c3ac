"""The PostgreSQL archive: the common suite, and what only a server can suffer."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from tests.archive.conformance import ArchiveConformance, Make, archived
from tests.helpers.postgres import PASSWORD, PostgresServer, postgres_server
from tests.helpers.store_faults import Fate, proxy_to
from waystation.archive import ArchivedState, archive_at
from waystation.archive.postgres import PostgresArchive
from waystation.archive.trouble import fail
from waystation.database import Trouble
from waystation.errors import ArchiveFullError, ArchiveRefusedError, ArchiveUnavailableError
from waystation_bench.postgres import wheel_programs


class TestPostgres(ArchiveConformance):
    @pytest.fixture
    def make(self, postgres: PostgresServer) -> Make:
        url = postgres.url(postgres.empty_database())
        return lambda: PostgresArchive(url)


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.empty_database()


@asynccontextmanager
async def archive_in(url: str, **options: float) -> AsyncIterator[PostgresArchive]:
    archive = PostgresArchive(url, **options)
    await archive.open()
    try:
        yield archive
    finally:
        await archive.close()


def versions_in(server: PostgresServer, database: str) -> dict[str, int]:
    return dict(server.execute(database, "SELECT id, version FROM waystation_archive.state"))


def test_with_a_url_it_is_postgresql(tmp_path: Path) -> None:
    assert isinstance(archive_at("postgresql://shop@db/main", folder=tmp_path), PostgresArchive)


async def test_it_works_on_the_server_of_the_wheel_too() -> None:
    with postgres_server(programs=wheel_programs()) as server:
        async with archive_in(server.url(server.empty_database())) as archive:
            await archive.upsert([archived("tx-1")])
            assert await archive.get(["tx-1"]) == {"tx-1": archived("tx-1")}


# -- One bad state -------------------------------------------------------------------------------


async def test_a_rule_of_the_database_refuses_one_state_and_no_other(
    postgres: PostgresServer, database: str
) -> None:
    async with archive_in(postgres.url(database)) as archive:
        postgres.execute(
            database,
            "ALTER TABLE waystation_archive.state ADD CONSTRAINT rule CHECK (id <> 'tx-13')",
        )
        secret = b"hunter2-4111111111111111"
        states = [archived(f"tx-{number}", packed=secret) for number in range(40)]
        kept = await archive.upsert(states)
        ((name, reason),) = [(each.id, each.reason) for each in kept.refused]
        assert name == "tx-13"
        assert 'violates check constraint "rule"' in reason
        assert secret.decode() not in reason
        assert secret.hex() not in reason
        assert kept.applied == 39


async def test_what_is_over_a_limit_of_the_database_is_refused(
    postgres: PostgresServer, database: str
) -> None:
    long = "".join(random.choices("0123456789abcdefghijklmnopqrstuvwxyz", k=20_000))
    async with archive_in(postgres.url(database)) as archive:
        kept = await archive.upsert([archived("tx-1"), archived("tx-2", external_id=long)])
        assert [each.id for each in kept.refused] == ["tx-2"]
        assert "index row" in kept.refused[0].reason
        assert list(versions_in(postgres, database)) == ["tx-1"]


# -- A server that dies --------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_server_killed_in_the_middle_of_an_upsert_loses_nothing() -> None:
    with postgres_server("fsync=on") as server:
        name = server.empty_database()
        async with archive_in(server.url(name)) as archive:
            confirmed = [archived(f"tx-{number}", version=3) for number in range(50)]
            await archive.upsert(confirmed)
            newer = [archived(f"tx-{number}", version=4) for number in range(100)]
            # Its rows are written, and its commit is under way
            server.slow_commits(name, "waystation_archive.state")
            upsert = asyncio.ensure_future(archive.upsert(newer))
            await server.until_asleep(name)

            server.kill()
            with pytest.raises(ArchiveUnavailableError):
                await upsert
            with pytest.raises(ArchiveUnavailableError):
                await archive.upsert(newer)
            server.start()

            assert versions_in(server, name) == {each.id: 3 for each in confirmed}
            server.execute(name, "DROP TRIGGER doze ON waystation_archive.state")
            # And it goes on by itself when it is sent again
            assert (await archive.upsert(newer)).applied == 100
            assert set(versions_in(server, name).values()) == {4}


@pytest.mark.slow
async def test_a_server_that_is_killed_again_and_again_has_all_that_was_confirmed() -> None:
    dice = random.Random(11)
    with postgres_server("fsync=on") as server:
        name = server.empty_database()
        async with archive_in(server.url(name)) as archive:
            confirmed: dict[str, int] = {}
            failed = 0
            for round_ in range(4):
                done = asyncio.Event()

                async def write(number: int, round_: int = round_) -> None:
                    nonlocal failed
                    while not done.is_set():  # noqa: B023
                        version = confirmed.get(f"tx-{number}-0", 0) + 1
                        batch = [
                            archived(f"tx-{number}-{each}", version=version) for each in range(20)
                        ]
                        try:
                            await archive.upsert(batch)
                        except ArchiveUnavailableError:
                            failed += 1
                            await asyncio.sleep(0.01)
                        else:
                            confirmed.update({each.id: each.version for each in batch})

                writers = [asyncio.ensure_future(write(number)) for number in range(3)]
                await asyncio.sleep(dice.uniform(0.02, 0.15))
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                await asyncio.sleep(0.02)
                done.set()
                await asyncio.gather(*writers)
            there = versions_in(server, name)
            assert confirmed
            assert failed
            # One more than was confirmed is there where a reply was lost
            assert all(there[each] in (v, v + 1) for each, v in confirmed.items())


async def test_an_upsert_whose_reply_is_lost_can_be_repeated(
    postgres: PostgresServer, database: str
) -> None:
    async with (
        proxy_to(postgres.address) as proxy,
        archive_in(postgres.loopback_url(database, port=proxy.address.port)) as archive,
    ):
        postgres.slow_commits(database, "waystation_archive.state")
        upsert = asyncio.ensure_future(archive.upsert([archived("tx-1", version=7)]))
        await postgres.until_asleep(database)
        await proxy.set_fates(replies=Fate.CUT)
        with pytest.raises(ArchiveUnavailableError):
            await upsert
        await proxy.set_fates()

        kept = await archive.upsert([archived("tx-1", version=7)])
        assert (kept.applied, kept.refused) == (0, [])
        assert versions_in(postgres, database) == {"tx-1": 7}


async def test_an_upsert_cut_at_any_reply_leaves_all_of_it_or_nothing(
    postgres: PostgresServer, database: str
) -> None:
    """F-04: whatever is lost on the way, what is sent again ends the same."""
    async with proxy_to(postgres.address) as proxy:
        url = postgres.loopback_url(database, port=proxy.address.port)
        async with archive_in(url, call_seconds_max=2) as archive:
            found = []
            for delay in range(12):
                states = [archived(f"tx-{delay}-{number}") for number in range(200)]
                upsert = asyncio.ensure_future(archive.upsert(states))
                await asyncio.sleep(delay * 0.001)
                proxy.cut()
                await asyncio.wait([upsert])
                there = [each for each in versions_in(postgres, database) if f"-{delay}-" in each]
                assert len(there) in (0, 200)
                found.append((len(there), upsert.exception() is None))
                assert (200, True) in found or upsert.exception() is not None
                assert (0, True) not in found, "confirmed, and not there"
                await archive.upsert(states)
            assert len(versions_in(postgres, database)) == 2400


async def test_a_restart_between_two_upserts_is_not_noticed() -> None:
    with postgres_server() as server:
        async with archive_in(server.url(server.empty_database())) as archive:
            await archive.upsert([archived("tx-1")])
            server.kill()
            server.start()
            assert (await archive.upsert([archived("tx-2")])).applied == 1


async def test_an_archive_that_could_not_be_opened_can_be_opened_later() -> None:
    with postgres_server() as server:
        name = server.empty_database()
        server.kill()
        archive = PostgresArchive(server.url(name))
        for _ in range(2):
            with pytest.raises(ArchiveUnavailableError):
                await archive.open()
        server.start()
        await archive.open()
        assert (await archive.upsert([archived("tx-1")])).applied == 1
        await archive.close()


# -- A server that is slow, shut or full ---------------------------------------------------------


@pytest.mark.slow
async def test_a_frozen_server_costs_a_call_its_time_and_no_more() -> None:
    with postgres_server() as server:
        name = server.empty_database()
        async with archive_in(server.url(name), call_seconds_max=1.5) as archive:
            await archive.upsert([archived("tx-1")])
            server.signal(signal.SIGSTOP)
            began = asyncio.get_running_loop().time()
            with pytest.raises(ArchiveUnavailableError, match="does not answer"):
                await archive.upsert([archived("tx-1", version=2)])
            assert asyncio.get_running_loop().time() - began < 20
            server.signal(signal.SIGCONT)
            await archive.upsert([archived("tx-1", version=3)])
            assert versions_in(server, name) == {"tx-1": 3}


async def test_a_table_that_is_locked_is_an_error_that_may_pass(
    postgres: PostgresServer, database: str
) -> None:
    async with archive_in(postgres.url(database), call_seconds_max=1.5) as archive:
        with psycopg.connect(postgres.url(database)) as other:
            other.execute("LOCK TABLE waystation_archive.state")
            with pytest.raises(ArchiveUnavailableError, match="statement timeout"):
                await archive.upsert([archived("tx-1")])
            other.rollback()
        assert (await archive.upsert([archived("tx-1")])).applied == 1


async def test_a_standby_that_only_reads_is_an_error_that_may_pass(
    postgres: PostgresServer, database: str
) -> None:
    async with archive_in(postgres.url(database)) as archive:
        postgres.execute(database, f"ALTER DATABASE {database} SET default_transaction_read_only=1")
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = "
        postgres.execute("postgres", f"{ended}'{database}'")
        with pytest.raises(ArchiveUnavailableError, match="read-only"):
            await archive.upsert([archived("tx-1")])
        reset = f"ALTER DATABASE {database} RESET default_transaction_read_only"
        postgres.execute("postgres", reset)
        postgres.execute("postgres", f"{ended}'{database}'")
        assert (await archive.upsert([archived("tx-1")])).applied == 1


async def test_a_server_without_a_free_connection_is_an_error_that_may_pass(
    postgres: PostgresServer, database: str
) -> None:
    async with archive_in(postgres.url(database)):
        pass
    role = postgres.new_role("CONNECTION LIMIT 1")
    postgres.execute(database, f"ALTER SCHEMA waystation_archive OWNER TO {role}")
    for table in ("state", "migration"):
        postgres.execute(database, f"ALTER TABLE waystation_archive.{table} OWNER TO {role}")
    url = postgres.url(database).replace("station@", f"{role}@")
    async with archive_in(url) as archive:
        outcomes = await asyncio.gather(
            *(archive.upsert([archived(f"tx-{number}")]) for number in range(8)),
            return_exceptions=True,
        )
        failed = [each for each in outcomes if isinstance(each, BaseException)]
        assert failed
        assert all(isinstance(each, ArchiveUnavailableError) for each in failed)
        assert len(versions_in(postgres, database)) == 8 - len(failed)
        await archive.upsert([archived("tx-after")])


async def test_a_full_disk_loses_nothing_and_the_archive_goes_on_when_there_is_room() -> None:
    """F-32, by a limit on the size of files of the server."""
    with postgres_server("wal_recycle=off") as server:
        name = server.empty_database()
        async with archive_in(server.url(name)) as archive:
            await archive.ping()
            server.limit_files(4_000_000)
            confirmed = 0
            batch = _hundred(0)
            try:
                while confirmed < 5000:
                    await archive.upsert(batch)
                    confirmed += 100
                    batch = _hundred(confirmed)
            except ArchiveUnavailableError:
                pass
            assert 0 < confirmed < 5000, "the limit was met in the middle"
            with pytest.raises(ArchiveUnavailableError):
                await archive.upsert(batch)
            assert len(versions_in(server, name)) == confirmed

            server.limit_files(2**40)
            assert (await archive.upsert(batch)).applied == 100
            assert len(versions_in(server, name)) == confirmed + 100


def _hundred(first: int) -> list[ArchivedState]:
    """States that fill a file fast: small enough to stay in the table itself."""
    return [archived(f"tx-{first + n:04}", packed=os.urandom(1900)) for n in range(100)]


async def test_no_room_is_told_as_such(postgres: PostgresServer, database: str) -> None:
    """F-32: the very code that the server has for it, raised by the server."""
    assert isinstance(fail(Trouble.FULL, "x"), ArchiveUnavailableError)
    async with archive_in(postgres.url(database)) as archive:
        postgres.execute(
            database,
            """
            CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql
              AS 'BEGIN RAISE EXCEPTION USING ERRCODE = ''53100'', MESSAGE = ''no space''; END';
            CREATE TRIGGER no_room BEFORE INSERT ON waystation_archive.state
              FOR EACH ROW EXECUTE FUNCTION public.no_room();
            """,
        )
        with pytest.raises(ArchiveFullError, match="no space"):
            await archive.upsert([archived("tx-1"), archived("tx-2")])
        postgres.execute(database, "DROP TRIGGER no_room ON waystation_archive.state")
        assert (await archive.upsert([archived("tx-1"), archived("tx-2")])).applied == 2


# -- Schema and secrets --------------------------------------------------------------------------


async def test_a_newer_schema_is_refused_and_left_alone(
    postgres: PostgresServer, database: str
) -> None:
    async with archive_in(postgres.url(database)):
        pass
    postgres.execute(database, "INSERT INTO waystation_archive.migration VALUES (99)")
    archive = PostgresArchive(postgres.url(database))
    with pytest.raises(ArchiveRefusedError, match=r"schema 99; this release knows 2\."):
        await archive.open()
    await archive.close()


async def test_no_error_tells_the_password(postgres: PostgresServer, database: str) -> None:
    archive = PostgresArchive(postgres.loopback_url(database, port=1))
    with pytest.raises(ArchiveUnavailableError, match=f"The archive {database}@127") as caught:
        await archive.open()
    await archive.close()
    whole = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert PASSWORD not in " ".join(f"{each} {each!r}" for each in whole)


async def test_pages_and_look_ups_use_their_indexes(
    postgres: PostgresServer, database: str
) -> None:
    async with archive_in(postgres.url(database)) as archive:
        await archive.upsert([archived(f"tx-{n}", external_id=f"x-{n}") for n in range(3000)])
    # Counters of a connection are there for sure once it is closed.
    postgres.execute(database, "ANALYZE waystation_archive.state")
    scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'state'"
    before = postgres.execute(database, scans)
    async with archive_in(postgres.url(database)) as archive:
        await archive.find("default", "x-7")
        await archive.page("default", ["sleeping", "success"], limit=5)
        await archive.get(["tx-5"])
        await archive.delete_completed(before_ms=5, most=10)
        await archive.upsert([archived("tx-5", version=2)])
    assert postgres.execute(database, scans) == before
