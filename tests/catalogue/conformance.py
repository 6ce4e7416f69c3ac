"""What every catalogue must do. A test module of an implementation inherits this class.

    class TestSqlite(CatalogueConformance):
        @pytest.fixture
        def make(self, tmp_path):
            return lambda: SqliteCatalogue(tmp_path / "catalogue.db")

`make` returns a new, unopened catalogue of the same database each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from waystation.catalogue import Catalogue, DefinitionRecord, KeyRecord, ProjectRecord
from waystation.errors import CatalogueError, ConflictError, NotFoundError

Make = Callable[[], Catalogue]


@asynccontextmanager
async def opened(make: Make) -> AsyncIterator[Catalogue]:
    catalogue = make()
    await catalogue.open()
    try:
        yield catalogue
    finally:
        await catalogue.close()


def key(key_id: str, *, project: str = "default", created_ms: int = 1) -> KeyRecord:
    return KeyRecord(
        id=key_id,
        project=project,
        scopes=("read", "write"),
        secret_hash=bytes(range(32)),
        label="of a test, with 'quotes' and ünïcode",
        created_ms=created_ms,
        expires_ms=2**53,
    )


def topic(name: str, *, version: int = 1, project: str = "default") -> DefinitionRecord:
    return DefinitionRecord(
        kind="topic",
        project=project,
        name=name,
        version=version,
        body=b'{"of":"version %d"}' % version,
        changed_ms=version,
    )


class CatalogueConformance:
    """The suite; `make` is the only thing that an implementation brings."""

    async def test_data_sets_are_changed_by_one_of_two_processes(self, make: Make) -> None:
        async with opened(make) as one, opened(make) as two:
            assert await one.data_sets() == ()
            assert await one.change_data_sets((), ("ds-1",))
            assert not await two.change_data_sets((), ("ds-2",))
            assert await two.change_data_sets(("ds-1",), ("ds-2", "ds-1"))
            assert await one.data_sets() == ("ds-2", "ds-1")

    async def test_a_new_catalogue_has_the_default_project_and_no_key(self, make: Make) -> None:
        async with opened(make) as catalogue:
            assert [project.name for project in await catalogue.projects()] == ["default"]
            assert await catalogue.keys() == []
            await catalogue.ping()

    async def test_projects_come_by_name(self, make: Make) -> None:
        async with opened(make) as catalogue:
            await catalogue.add_project(ProjectRecord(name="zoo", created_ms=1))
            await catalogue.add_project(ProjectRecord(name="art", created_ms=2))
            names = [project.name for project in await catalogue.projects()]
            assert names == ["art", "default", "zoo"]

    async def test_a_project_cannot_be_added_twice(self, make: Make) -> None:
        async with opened(make) as catalogue:
            with pytest.raises(ConflictError, match="default"):
                await catalogue.add_project(ProjectRecord(name="default", created_ms=1))

    async def test_a_project_comes_with_its_first_key_or_not_at_all(self, make: Make) -> None:
        async with opened(make) as catalogue:
            zoo, art = (
                ProjectRecord(name="zoo", created_ms=1),
                ProjectRecord(name="art", created_ms=1),
            )
            await catalogue.add_project(zoo, key=key("k1", project="zoo"))
            with pytest.raises(ConflictError, match="key k1"):
                await catalogue.add_project(art, key=key("k1", project="art"))
            with pytest.raises(ConflictError, match="project zoo"):
                await catalogue.add_project(zoo, key=key("k2", project="zoo"))
            assert [project.name for project in await catalogue.projects()] == ["default", "zoo"]
            assert await catalogue.keys() == [key("k1", project="zoo")]

    async def test_a_key_is_kept_as_it_was_given(self, make: Make) -> None:
        async with opened(make) as catalogue:
            await catalogue.add_key(key("k1"))
            assert await catalogue.keys() == [key("k1")]

    async def test_keys_come_oldest_first_and_by_project(self, make: Make) -> None:
        async with opened(make) as catalogue:
            await catalogue.add_project(ProjectRecord(name="shop", created_ms=1))
            await catalogue.add_key(key("late", created_ms=9))
            await catalogue.add_key(key("theirs", project="shop", created_ms=5))
            await catalogue.add_key(key("early", created_ms=2))
            assert [each.id for each in await catalogue.keys()] == ["early", "theirs", "late"]
            assert [each.id for each in await catalogue.keys("default")] == ["early", "late"]
            assert [each.id for each in await catalogue.keys("shop")] == ["theirs"]
            assert await catalogue.keys("nobody") == []

    async def test_a_key_needs_a_project(self, make: Make) -> None:
        async with opened(make) as catalogue:
            with pytest.raises(NotFoundError, match="nowhere"):
                await catalogue.add_key(key("k1", project="nowhere"))
            assert await catalogue.keys() == []

    async def test_the_id_of_a_key_cannot_be_taken_twice(self, make: Make) -> None:
        async with opened(make) as catalogue:
            await catalogue.add_key(key("k1", created_ms=1))
            with pytest.raises(ConflictError, match="k1"):
                await catalogue.add_key(key("k1", created_ms=2))
            assert await catalogue.keys() == [key("k1", created_ms=1)]

    async def test_a_key_is_revoked_once_and_keeps_that_time(self, make: Make) -> None:
        async with opened(make) as catalogue:
            await catalogue.add_key(key("k1"))
            assert await catalogue.revoke_key(None, "k1", now_ms=100)
            assert await catalogue.revoke_key(None, "k1", now_ms=200)
            assert [each.revoked_ms for each in await catalogue.keys()] == [100]

    async def test_a_key_of_another_project_is_as_good_as_absent(self, make: Make) -> None:
        async with opened(make) as catalogue:
            await catalogue.add_project(ProjectRecord(name="shop", created_ms=1))
            await catalogue.add_key(key("k1", project="shop"))
            assert not await catalogue.revoke_key("default", "k1", now_ms=100)
            assert not await catalogue.revoke_key(None, "k2", now_ms=100)
            assert [each.revoked_ms for each in await catalogue.keys()] == [0]
            assert await catalogue.revoke_key("shop", "k1", now_ms=100)

    async def test_the_generation_grows_with_every_change_that_others_must_see(
        self, make: Make
    ) -> None:
        async with opened(make) as ours, opened(make) as theirs:
            seen = [await ours.generation()]
            await theirs.add_project(ProjectRecord(name="shop", created_ms=1))
            seen.append(await ours.generation())
            await theirs.add_key(key("k1", project="shop"))
            seen.append(await ours.generation())
            await theirs.revoke_key("shop", "k1", now_ms=5)
            seen.append(await ours.generation())
            assert seen == sorted(set(seen))
            # And what has the new generation has the change
            assert [each.revoked_ms for each in await ours.keys()] == [5]

    async def test_a_refused_change_leaves_no_trace(self, make: Make) -> None:
        async with opened(make) as catalogue:
            before = await catalogue.generation()
            with pytest.raises(ConflictError):
                await catalogue.add_project(ProjectRecord(name="default", created_ms=1))
            with pytest.raises(NotFoundError):
                await catalogue.add_key(key("k1", project="nowhere"))
            assert await catalogue.generation() == before

    async def test_concurrent_writers_lose_nothing(self, make: Make) -> None:
        async with opened(make) as one, opened(make) as two:
            await asyncio.gather(
                *(one.add_key(key(f"a{number}")) for number in range(20)),
                *(two.add_key(key(f"b{number}")) for number in range(20)),
            )
            assert len(await one.keys()) == 40

    async def test_everything_is_there_after_a_reopening(self, make: Make) -> None:
        async with opened(make) as catalogue:
            await catalogue.add_key(key("k1"))
            generation = await catalogue.generation()
        async with opened(make) as catalogue:
            assert await catalogue.keys() == [key("k1")]
            assert await catalogue.generation() == generation

    async def test_a_definition_is_kept_as_it_was_given(self, make: Make) -> None:
        async with opened(make) as catalogue:
            await catalogue.add_definition(topic("orders"))
            assert await catalogue.definition("topic", "default", "orders") == topic("orders")
            assert await catalogue.definition("topic", "default", "order") is None
            assert await catalogue.definition("pool", "default", "orders") is None
            with pytest.raises(ConflictError):
                await catalogue.add_definition(topic("orders", version=7))
            with pytest.raises(NotFoundError):
                await catalogue.add_definition(topic("orders", project="nobody"))

    async def test_of_two_who_change_one_version_one_gets_through(self, make: Make) -> None:
        async with opened(make) as one, opened(make) as other:
            await one.add_definition(topic("orders"))
            changes = [each.change_definition(topic("orders", version=2)) for each in (one, other)]
            results = await asyncio.gather(*changes, return_exceptions=True)
            assert sorted(type(result) for result in results if result) == [ConflictError]
            assert await other.definition("topic", "default", "orders") == topic(
                "orders", version=2
            )
            with pytest.raises(ConflictError):
                await one.change_definition(topic("orders", version=4))
            with pytest.raises(ConflictError):
                await one.change_definition(topic("unknown", version=2))

    async def test_a_definition_can_take_the_place_of_a_version_that_is_named(
        self, make: Make
    ) -> None:
        async with opened(make) as catalogue:
            await catalogue.add_definition(topic("orders", version=2))
            with pytest.raises(ConflictError):
                await catalogue.change_definition(topic("orders", version=7), over=3)
            await catalogue.change_definition(topic("orders", version=7), over=2)
            assert await catalogue.definition("topic", "default", "orders") == topic(
                "orders", version=7
            )

    async def test_definitions_come_by_name_page_by_page(self, make: Make) -> None:
        async with opened(make) as catalogue:
            for name in ("b", "d", "a", "c"):
                await catalogue.add_definition(topic(name))
            page = await catalogue.definitions("topic", "default", limit=3)
            rest = await catalogue.definitions("topic", "default", after="c", limit=3)
            assert [each.name for each in page] == ["a", "b", "c"]
            assert [each.name for each in rest] == ["d"]

    async def test_definitions_are_no_news_for_those_who_watch_keys(self, make: Make) -> None:
        async with opened(make) as catalogue:
            before = await catalogue.generation()
            await catalogue.add_definition(topic("orders"))
            await catalogue.change_definition(topic("orders", version=2))
            assert await catalogue.generation() == before

    async def test_a_closed_catalogue_says_so(self, make: Make) -> None:
        async with opened(make) as catalogue:
            pass
        with pytest.raises(CatalogueError, match="closed"):
            await catalogue.keys()
        await catalogue.close()

    async def test_a_catalogue_that_was_never_opened_says_so(self, make: Make) -> None:
        catalogue = make()
        with pytest.raises(CatalogueError, match="not open"):
            await catalogue.ping()
        await catalogue.close()
