"""The PostgreSQL catalogue: the common suite, and what only a server can suffer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.catalogue.conformance import CatalogueConformance, Make, key
from tests.helpers.http import ask
from tests.helpers.postgres import PASSWORD, PostgresServer, postgres_server
from tests.helpers.processes import station_process
from tests.helpers.store_faults import Fate, proxy_to
from waystation.catalogue import SqliteCatalogue, catalogue_at
from waystation.catalogue import postgres as module
from waystation.catalogue.postgres import PostgresCatalogue, migrations
from waystation.config_sources import load_config
from waystation.database.postgres import Connection
from waystation.errors import CatalogueError, ConflictError, InvalidInputError, SettingsError
from waystation.testing.station import quick_settings, serving
from waystation_bench.postgres import wheel_programs

_NEWEST = migrations()[-1][0]
#: A migration that a later release might bring; each statement depends on the one before.
_NEXT = """\
CREATE TABLE later (name text PRIMARY KEY);
INSERT INTO later VALUES ('one');
ALTER TABLE later ADD COLUMN size integer NOT NULL DEFAULT 0;
UPDATE later SET size = 7;
"""
_VERSION = "SELECT max(version) FROM waystation_catalogue.migration"


class TestPostgres(CatalogueConformance):
    @pytest.fixture
    def make(self, postgres: PostgresServer) -> Make:
        url = postgres.url(postgres.empty_database())
        return lambda: PostgresCatalogue(url)


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.empty_database()


@asynccontextmanager
async def catalogue_in(url: str, **options: float) -> AsyncIterator[PostgresCatalogue]:
    catalogue = PostgresCatalogue(url, **options)
    await catalogue.open()
    try:
        yield catalogue
    finally:
        await catalogue.close()


# -- Which one -----------------------------------------------------------------------------------


def test_the_setting_decides_which_catalogue_it_is(tmp_path: Path) -> None:
    assert isinstance(catalogue_at("", folder=tmp_path), SqliteCatalogue)
    for url in ("postgresql://shop@db/main", "postgres://shop@db/main"):
        assert isinstance(catalogue_at(url, folder=tmp_path), PostgresCatalogue)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hush@host/db",
        "catalogue.db",
        "postgresql://u:hush/with-a-slash@host/db",
        "postgresql://u:pa%zzhush@host/db",
        "postgresql://u:pa@hush@host/db",
        "postgresql://host:hush/db",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_repeating_it(
    tmp_path: Path, url: str
) -> None:
    with pytest.raises(SettingsError, match="Setting catalogue") as caught:
        catalogue_at(url, folder=tmp_path)
    assert "hush" not in f"{caught.value!r} {caught.value} {caught.value.__cause__}"


def test_the_url_is_not_shown_with_the_settings() -> None:
    url = "postgresql://shop:hush@db/main"
    loaded = load_config(environment={"WAYSTATION_CATALOGUE": url})
    assert loaded.config.catalogue == url
    assert "hush" not in str(list(loaded.rows()))


def test_without_the_driver_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from pathlib import Path\n"
        "from waystation.catalogue import catalogue_at\n"
        "catalogue_at('', folder=Path())\n"
        "catalogue_at(sys.argv[1], folder=Path())\n"
    )
    # As an argument, because Python 3.13 shows the lines of such a program in its trace.
    ran = subprocess.run(
        [sys.executable, "-c", program, "postgresql://u:hush@host/db"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0
    assert "pip install 'waystation[postgres]'" in ran.stderr
    assert "hush" not in ran.stderr


async def test_it_works_on_the_server_of_the_wheel_too(tmp_path: Path) -> None:
    with postgres_server(programs=wheel_programs()) as server:
        async with catalogue_in(server.url(server.empty_database())) as catalogue:
            await catalogue.add_key(key("k1"))
            assert await catalogue.keys() == [key("k1")]


# -- Schema --------------------------------------------------------------------------------------


async def test_processes_that_start_together_migrate_once(
    postgres: PostgresServer, database: str
) -> None:
    url = postgres.url(database)
    catalogues = [PostgresCatalogue(url) for _ in range(8)]
    try:
        await asyncio.gather(*(each.open() for each in catalogues))
        assert [await each.generation() for each in catalogues] == [1] * 8
    finally:
        await asyncio.gather(*(each.close() for each in catalogues))


async def test_a_newer_schema_is_refused_and_left_alone(
    postgres: PostgresServer, database: str
) -> None:
    async with catalogue_in(postgres.url(database)):
        pass
    postgres.execute(database, f"INSERT INTO waystation_catalogue.migration VALUES ({_NEWEST + 5})")
    catalogue = PostgresCatalogue(postgres.url(database))
    with pytest.raises(CatalogueError, match=f"schema {_NEWEST + 5}; this release knows {_NEWEST}"):
        await catalogue.open()
    await catalogue.close()
    assert postgres.execute(database, _VERSION) == [(_NEWEST + 5,)]


async def test_an_older_schema_is_brought_up_to_date_with_its_data(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with catalogue_in(postgres.url(database)) as catalogue:
        await catalogue.add_key(key("k1"))
    known = migrations()
    monkeypatch.setattr(module, "migrations", lambda: [*known, (_NEWEST + 1, _NEXT)])
    async with catalogue_in(postgres.url(database)) as catalogue:
        assert await catalogue.keys() == [key("k1")]
    assert postgres.execute(database, _VERSION) == [(_NEWEST + 1,)]
    assert postgres.execute(database, "SELECT * FROM waystation_catalogue.later") == [("one", 7)]


async def test_a_server_killed_in_the_middle_of_a_migration_leaves_the_old_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with postgres_server("fsync=on") as server:
        name = server.empty_database()
        async with catalogue_in(server.url(name)) as catalogue:
            await catalogue.add_key(key("k1"))
        known = migrations()
        slow = _NEXT + "SELECT pg_sleep(600);"
        monkeypatch.setattr(module, "migrations", lambda: [*known, (_NEWEST + 1, slow)])
        half = PostgresCatalogue(server.url(name))
        opening = asyncio.ensure_future(half.open())
        await server.until_asleep(name)

        server.kill()
        with pytest.raises(CatalogueError):
            await opening
        await half.close()
        server.start()

        assert server.execute(name, _VERSION) == [(_NEWEST,)]
        assert server.execute(name, "SELECT to_regclass('waystation_catalogue.later')") == [(None,)]
        # And the next start does the work
        monkeypatch.setattr(module, "migrations", lambda: [*known, (_NEWEST + 1, _NEXT)])
        async with catalogue_in(server.url(name)) as catalogue:
            assert await catalogue.keys() == [key("k1")]
        assert server.execute(name, _VERSION) == [(_NEWEST + 1,)]


async def test_a_role_that_may_not_create_a_schema_can_be_given_one(
    postgres: PostgresServer, database: str
) -> None:
    role = postgres.new_role()
    url = postgres.url(database).replace("station@", f"{role}@")
    catalogue = PostgresCatalogue(url)
    with pytest.raises(CatalogueError, match="permission denied"):
        await catalogue.open()
    postgres.execute(database, f"CREATE SCHEMA waystation_catalogue AUTHORIZATION {role}")
    # And the same one can be opened now
    await catalogue.open()
    assert await catalogue.generation() == 1
    await catalogue.close()


# -- Trouble -------------------------------------------------------------------------------------


async def test_a_restart_between_two_calls_is_not_noticed() -> None:
    with postgres_server() as server:
        async with catalogue_in(server.url(server.empty_database())) as catalogue:
            await catalogue.add_key(key("k1"))
            server.kill()
            server.start()
            await catalogue.add_key(key("k2"))
            assert [each.id for each in await catalogue.keys()] == ["k1", "k2"]


async def test_while_the_server_is_down_calls_say_so_and_work_again_afterwards() -> None:
    with postgres_server() as server:
        async with catalogue_in(server.url(server.empty_database())) as catalogue:
            server.kill()
            for _ in range(10):
                with pytest.raises(CatalogueError, match="The catalogue test@"):
                    await catalogue.generation()
            server.start()
            assert await catalogue.generation() == 1


async def test_a_frozen_server_costs_a_call_its_time_and_no_more() -> None:
    with postgres_server() as server:
        name = server.empty_database()
        async with catalogue_in(server.url(name), call_seconds_max=1.5) as catalogue:
            await catalogue.ping()
            server.signal(signal.SIGSTOP)
            began = asyncio.get_running_loop().time()
            with pytest.raises(CatalogueError, match="does not answer"):
                await catalogue.keys()
            # Two seconds more to answer; without a time of its own it would be seven.
            assert asyncio.get_running_loop().time() - began < 6.5
            server.signal(signal.SIGCONT)
            assert await catalogue.keys() == []


async def test_a_statement_that_waits_for_a_lock_is_ended_by_the_server(
    postgres: PostgresServer, database: str
) -> None:
    async with (
        catalogue_in(postgres.url(database)) as one,
        catalogue_in(postgres.url(database), call_seconds_max=1.5) as other,
    ):

        async def hold(connection: Connection) -> None:
            async with connection.transaction():
                await connection.execute("LOCK TABLE project")
                with pytest.raises(CatalogueError, match="statement timeout"):
                    await other.projects()

        await one._database.do(hold)
        assert len(await other.projects()) == 1


async def test_a_write_whose_reply_is_lost_is_an_error_and_is_there_once(
    postgres: PostgresServer, database: str
) -> None:
    async with (
        proxy_to(postgres.address) as proxy,
        catalogue_in(postgres.loopback_url(database, port=proxy.address.port)) as catalogue,
        catalogue_in(postgres.url(database)) as witness,
    ):
        postgres.slow_commits(database, "waystation_catalogue.api_key")
        adding = asyncio.ensure_future(catalogue.add_key(key("k1")))
        await postgres.until_asleep(database)
        await proxy.set_fates(replies=Fate.CUT)
        with pytest.raises(CatalogueError):
            await adding
        await proxy.set_fates()

        assert await witness.keys() == [key("k1")]
        with pytest.raises(ConflictError):
            await catalogue.add_key(key("k1"))


async def test_more_callers_than_connections_wait_for_their_turn(
    postgres: PostgresServer, database: str
) -> None:
    async with catalogue_in(postgres.url(database)) as catalogue:
        assert await asyncio.gather(*(catalogue.generation() for _ in range(200))) == [1] * 200
        used = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"
        assert postgres.execute(database, used)[0][0] <= 5


async def test_a_caller_who_goes_away_leaves_a_connection_that_works(
    postgres: PostgresServer, database: str
) -> None:
    async with catalogue_in(postgres.url(database)) as catalogue:
        for number in range(12):
            asked = asyncio.ensure_future(catalogue.add_key(key(f"k{number}")))
            await asyncio.sleep(number * 0.0005)
            asked.cancel()
            await asyncio.wait([asked])
        assert await catalogue.generation() == len(await catalogue.keys()) + 1


async def test_what_postgresql_cannot_keep_is_bad_input_and_leaves_no_trace(
    postgres: PostgresServer, database: str
) -> None:
    async with catalogue_in(postgres.url(database)) as catalogue:
        bad = msgspec.structs.replace(key("k1"), label="a\0b")
        with pytest.raises(InvalidInputError, match="NUL"):
            await catalogue.add_key(bad)
        assert await catalogue.keys() == []
        assert await catalogue.generation() == 1


async def test_no_error_tells_the_password(postgres: PostgresServer, database: str) -> None:
    closed = postgres.loopback_url(database, port=1)
    wrong = postgres.loopback_url(database, password="wrong-" + PASSWORD)
    absent = postgres.loopback_url("absent")
    for url, told in ((closed, "refused"), (wrong, "authentication"), (absent, "does not exist")):
        catalogue = PostgresCatalogue(url)
        with pytest.raises(CatalogueError, match=told) as caught:
            await catalogue.open()
        await catalogue.close()
        whole = [caught.value, caught.value.__cause__, caught.value.__context__]
        assert PASSWORD not in " ".join(f"{each} {each!r}" for each in whole)


async def test_a_password_lets_it_in(postgres: PostgresServer, database: str) -> None:
    async with catalogue_in(postgres.loopback_url(database)) as catalogue:
        await catalogue.ping()


async def test_a_commit_is_on_disk_even_where_the_server_says_otherwise() -> None:
    with postgres_server("synchronous_commit=off") as server:
        async with catalogue_in(server.url(server.empty_database())) as catalogue:
            assert await catalogue._database.query("SHOW synchronous_commit") == [("on",)]
    with postgres_server("synchronous_commit=remote_write") as server:
        async with catalogue_in(server.url(server.empty_database())) as catalogue:
            assert await catalogue._database.query("SHOW synchronous_commit") == [("remote_write",)]


# -- A station on it -----------------------------------------------------------------------------


async def test_a_station_keeps_its_topics_there_and_another_node_finds_them(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    # One data directory: a catalogue belongs to one store
    settings = quick_settings(str(tmp_path), catalogue=postgres.url(database))
    async with serving(settings) as one:
        await one.node.topics.create("default", "orders")
    async with serving(settings) as two:
        assert (await two.node.topics.get("default", "orders")).name == "orders"
    assert not list(tmp_path.rglob("catalogue.db"))


@pytest.mark.slow
def test_keys_made_by_the_command_line_open_a_station_which_never_tells_the_password(
    tmp_path: Path,
) -> None:
    with postgres_server() as server:
        url = server.loopback_url(server.empty_database())
        made = subprocess.run(
            [
                sys.executable,
                "-m",
                "waystation.cli.main",
                "keys",
                "create",
                "--json",
                "--scope",
                "admin",
            ],
            env={**os.environ, "WAYSTATION_CATALOGUE": url},
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        admin = json.loads(made.stdout)["key"]
        with station_process(
            tmp_path / "data",
            *("--durability", "memory"),
            WAYSTATION_CATALOGUE=url,
            WAYSTATION_LOG_LEVEL="debug",
        ) as station:
            assert ask(station.url, "GET", "/v1/keys", key=admin).status == 200
            server.kill()
            ready = ask(station.url, "GET", "/readyz")
            refused = ask(station.url, "POST", "/v1/projects", b'{"name":"shop"}', key=admin)
            assert (ready.status, refused.status) == (503, 503)
            assert "catalogue" in ready.json()["problems"]
            server.start()
            assert ask(station.url, "GET", "/readyz").status == 200
            told = [ready.body, refused.body, str(station.said).encode(), station.log.read_bytes()]
    assert PASSWORD.encode() not in b"\n".join(told)
