"""The gate: who comes in, with what rights, and how fast it learns of a change."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from waystation.access import Access, Gate, Scope, gate, new_key
from waystation.catalogue import Catalogue, KeyRecord, ProjectRecord, SqliteCatalogue
from waystation.errors import CatalogueError, UnauthenticatedError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds


class House:
    """A gate in front of a real catalogue, and the means to hand out keys."""

    def __init__(self, catalogue: SqliteCatalogue, clock: Clock) -> None:
        self.catalogue = catalogue
        self.clock = clock
        self.gate = Gate(catalogue, clock=clock)

    async def hand_out(
        self, *, project: str = "default", scope: Scope = Scope.READ, expires_ms: int = 0
    ) -> tuple[bytes, KeyRecord]:
        """Creates a key; returns the header that it makes, and its record."""
        text, record = new_key(
            RandomIds(),
            project=project,
            scope=scope,
            label="test",
            now_ms=self.clock.now_ms(),
            expires_ms=expires_ms,
        )
        await self.catalogue.add_key(record)
        return b"Bearer " + text.encode(), record

    async def ask(self, authorization: bytes | None) -> Access:
        """Both steps of a request, as the dispatcher takes them."""
        access = self.gate.admit(authorization)
        return access if access is not None else await self.gate.admit_unknown(authorization)


@asynccontextmanager
async def house(folder: Path) -> AsyncIterator[House]:
    catalogue = SqliteCatalogue(folder / "catalogue.db")
    await catalogue.open()
    made = House(catalogue, Clock())
    await made.gate.start()
    try:
        yield made
    finally:
        await made.gate.stop()
        await catalogue.close()


# -- Keys ------------------------------------------------------------------------------------


async def test_a_key_is_kept_nowhere_but_with_its_user(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        header, record = await made.hand_out()
        secret = header.rpartition(b"_")[2]
        assert len(record.secret_hash) == 32
        on_disk = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        # Then the public id is on the disk, and the secret is not, in whatever form
        assert record.id.encode() in on_disk
        assert secret not in on_disk
        assert bytes.fromhex(secret.decode()) not in on_disk
        assert secret.decode() not in repr(record)


async def test_two_keys_have_nothing_in_common(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        (one, first), (two, second) = await made.hand_out(), await made.hand_out()
        assert one != two
        assert first.id != second.id
        assert first.secret_hash != second.secret_hash


@pytest.mark.parametrize(
    ("scope", "included"),
    [
        (Scope.READ, {Scope.READ}),
        (Scope.WRITE, {Scope.READ, Scope.WRITE}),
        (Scope.ADMIN, {Scope.READ, Scope.WRITE, Scope.ADMIN}),
    ],
)
async def test_a_scope_includes_the_lesser_ones_and_no_greater_one(
    tmp_path: Path, scope: Scope, included: set[Scope]
) -> None:
    async with house(tmp_path) as made:
        header, record = await made.hand_out(scope=scope)
        assert await made.ask(header) == Access("default", frozenset(included), record.id)


async def test_the_key_picks_the_project(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        await made.catalogue.add_project(ProjectRecord(name="shop", created_ms=1))
        header, _ = await made.hand_out(project="shop")
        assert (await made.ask(header)).project == "shop"


async def test_the_secret_is_compared_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []

    def spy(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(gate, "hmac", type("spied", (), {"compare_digest": staticmethod(spy)}))
    async with house(tmp_path) as made:
        header, _ = await made.hand_out(expires_ms=1)
        wrong = header[:-4] + (b"0000" if header[-4:] != b"0000" else b"1111")
        for attempt in (wrong, header):
            with pytest.raises(UnauthenticatedError):
                await made.ask(attempt)
    # Then right or wrong, expired or not: the same digests of the same length were compared
    assert compared == [(32, 32), (32, 32)]


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"bearer ws_0123456789abcdef_" + b"0" * 48,
        b"Basic ws_0123456789abcdef_" + b"0" * 48,
        b"Bearer ws_0123456789abcdef",
        b"Bearer ws_0123456789abcdef_" + b"0" * 47,
        b"Bearer ws_0123456789abcdef_" + b"0" * 49,
        b"Bearer ws_0123456789ABCDEF_" + b"0" * 48,
        b"Bearer  ws_0123456789abcdef_" + b"0" * 48,
        b"Bearer ws_0123456789abcdef_" + b"0" * 48 + b"\n",
        b"Bearer \xff\xfe",
        b"Bearer eyJhbGciOiJub25lIn0.e30.",
        b"Bearer ws_0123456789abcdef_" + "٣".encode() * 24,
    ],
)
async def test_a_malformed_header_is_refused(tmp_path: Path, header: bytes | None) -> None:
    """S-08."""
    async with house(tmp_path) as made:
        await made.hand_out()
        with pytest.raises(UnauthenticatedError):
            await made.ask(header)


async def test_a_wrong_secret_and_an_unknown_id_are_refused_with_the_same_words(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as made:
        header, record = await made.hand_out()
        said = set()
        for key in (f"ws_{record.id}_{'0' * 48}", f"ws_{'0' * 16}_{'0' * 48}"):
            with pytest.raises(UnauthenticatedError) as caught:
                await made.ask(f"Bearer {key}".encode())
            said.add(str(caught.value))
        assert len(said) == 1
        assert header.decode() not in said.pop()


async def test_an_expired_key_is_refused_from_that_moment_on(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        header, _ = await made.hand_out(expires_ms=made.clock.now_ms() + 60_000)
        await made.ask(header)
        made.clock.shift_to(59_000)
        await made.ask(header)
        made.clock.shift_to(60_000)
        with pytest.raises(UnauthenticatedError, match="expired"):
            await made.ask(header)


async def test_without_authentication_everyone_is_the_default_project(tmp_path: Path) -> None:
    catalogue: Catalogue = SqliteCatalogue(tmp_path / "catalogue.db")
    open_house = Gate(catalogue, clock=Clock(), insecure=True)
    access = open_house.admit(None)
    assert access is not None
    assert (access.project, access.scopes) == ("default", Scope.ADMIN.included())
    await catalogue.close()


# -- Changes ---------------------------------------------------------------------------------


async def test_a_new_key_works_at_its_first_use(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        assert not made.gate.has_keys
        header, _ = await made.hand_out()
        # The ring does not know it yet, so only a look at the catalogue can tell, though the gate
        # has looked a moment ago
        assert made.gate.admit(header) is None
        await made.gate.admit_unknown(header)
        assert made.gate.has_keys
        assert made.gate.admit(header) is not None


async def test_strangers_cannot_make_the_gate_read_the_catalogue_all_the_time(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as made:
        reads = 0
        generation = made.catalogue.generation

        async def counting() -> int:
            nonlocal reads
            reads += 1
            return await generation()

        made.catalogue.generation = counting  # type: ignore[method-assign]
        strangers = [f"Bearer ws_{number:016x}_{'0' * 48}".encode() for number in range(500)]
        refusals = await asyncio.gather(
            *(made.ask(stranger) for stranger in strangers), return_exceptions=True
        )
        assert {type(refusal) for refusal in refusals} == {UnauthenticatedError}
        # Then they shared a look, or two if some came while it was under way
        assert reads <= 2


async def test_a_revoked_key_stops_working_within_five_seconds(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        header, record = await made.hand_out()
        await made.ask(header)

        # When another process revokes it
        other = SqliteCatalogue(tmp_path / "catalogue.db")
        await other.open()
        await other.revoke_key("default", record.id, now_ms=made.clock.now_ms())
        await other.close()

        async with asyncio.timeout(5):
            while made.gate.admit(header) is not None:
                await asyncio.sleep(0.02)
        with pytest.raises(UnauthenticatedError, match="not valid"):
            await made.ask(header)


async def test_the_gate_closes_when_it_cannot_learn_of_revocations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_REFRESH_S", 0.05)
    monkeypatch.setattr(gate, "_RING_SECONDS_MAX", 2.0)
    async with house(tmp_path) as made:
        header, _ = await made.hand_out()
        await made.ask(header)
        assert made.gate.fresh

        # When the catalogue goes away
        await made.catalogue.close()

        assert made.gate.admit(header) is not None, "not at once: a moment's trouble is no reason"
        async with asyncio.timeout(20):
            while made.gate.fresh:
                await asyncio.sleep(0.01)
        with pytest.raises(CatalogueError, match="cannot be checked"):
            made.gate.admit(header)


async def test_after_a_standstill_the_ring_is_read_and_nobody_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has looked for long, but nothing says that a look would fail."""
    async with house(tmp_path) as made:
        header, record = await made.hand_out()
        await made.ask(header)
        monkeypatch.setattr(gate, "_RING_SECONDS_MAX", 0.3)
        await asyncio.sleep(0.4)  # The next look by itself is after two seconds.
        assert not made.gate.fresh

        assert made.gate.admit(header) is None, "what is old is not trusted either"
        await made.gate.admit_unknown(header)

        await made.catalogue.revoke_key("default", record.id, now_ms=made.clock.now_ms())
        await asyncio.sleep(0.4)
        with pytest.raises(UnauthenticatedError, match="not valid"):
            await made.gate.admit_unknown(header)


async def test_a_look_that_hangs_is_waited_for_a_moment_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_LOOK_SECONDS_MAX", 0.2)
    async with house(tmp_path) as made:
        header, _ = await made.hand_out()
        await made.ask(header)
        monkeypatch.setattr(gate, "_RING_SECONDS_MAX", 0.1)
        hanging = asyncio.Event()

        async def hang() -> int:
            await hanging.wait()
            raise CatalogueError("away")

        made.catalogue.generation = hang  # type: ignore[method-assign]
        await asyncio.sleep(0.3)
        look = asyncio.ensure_future(made.ask(header))
        await asyncio.sleep(0.05)
        assert not look.done(), "a look has just begun"
        await asyncio.sleep(0.5)
        with pytest.raises(CatalogueError, match="cannot be checked"):
            made.gate.admit(header)
        hanging.set()
        with pytest.raises(CatalogueError):
            await look


async def test_a_ring_is_trusted_for_five_seconds_and_read_again_well_before() -> None:
    assert gate._RING_SECONDS_MAX == 5
    assert gate._REFRESH_S * 2 < gate._RING_SECONDS_MAX


async def test_a_slow_reading_is_as_old_as_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_REFRESH_S", 60.0)
    monkeypatch.setattr(gate, "_RING_SECONDS_MAX", 1.0)
    async with house(tmp_path) as made:
        await made.hand_out()
        keys = made.catalogue.keys

        async def slow(project: str | None = None) -> list[KeyRecord]:
            found = await keys(project)
            # What happens from here on, a revocation for instance, is not in the result
            await asyncio.sleep(1.2)
            return found

        made.catalogue.keys = slow  # type: ignore[method-assign]
        with pytest.raises((CatalogueError, UnauthenticatedError)) as caught:
            await made.gate.admit_unknown(b"Bearer ws_0123456789abcdef_" + b"0" * 48)
        assert isinstance(caught.value, CatalogueError)
        assert not made.gate.fresh
