"""Callbacks: no answer comes too early to be heard, it counts once, and it is no forger's."""

from __future__ import annotations

import pytest

from tests.transactions.helpers import CELL, TERMS, TransactionStore, after, open_transactions
from waystation.errors import CallbackInvalidError, CallbackUnknownError, CallbackUsedError
from waystation.runtime.ids import RandomIds
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.callbacks import Callbacks, CallbackUrls, open_secret
from waystation.transactions.held import Held
from waystation.transactions.progress import Commit, Finish, Sleep
from waystation.transactions.states import State, Status
from waystation.transactions.switches import CALLBACK_SWITCH, SWITCHES_MAX, parse_switches

URLS = CallbackUrls(b"s" * 32, "https://example.com/base/")
NOBODY = "tx-0000" + "f" * 36


def callbacks(tx: TransactionStore) -> Callbacks:
    return Callbacks(tx.signals, URLS, terms=TERMS, identity=RandomIds())


def token(transaction_id: str, place: str = "1") -> str:
    return URLS(transaction_id, place).rpartition("/")[2]


async def use(tx: TransactionStore, held: Held, body: bytes = b"42", place: str = "1") -> None:
    await callbacks(tx).use(held.id, place, token(held.id, place), body)


async def asked(tx: TransactionStore) -> Held:
    """A step that runs, and may be called back."""
    held = await tx.running()
    assert (await tx.progress.open_callback(held, "1")).outcome == "done"
    return held


async def wait(tx: TransactionStore, held: Held) -> str:
    move = Sleep(held=held, state=b"asleep", switch=CALLBACK_SWITCH, place="1")
    (verdict,) = await tx.progress.sleep(CELL, [move])
    return verdict.outcome


async def answer(tx: TransactionStore, held: Held) -> bytes:
    return (await tx.fields(held.id))["callback:1"]


# -- When ------------------------------------------------------------------------------------


async def test_an_answer_that_comes_before_the_step_sleeps_queues_it_at_once(
    store_server: EmbeddedServer,
) -> None:
    """Before the 202 has come, or between that and the sleep: to the store it is the same."""
    async with open_transactions(store_server) as tx:
        held = await asked(tx)
        await use(tx, held, b'{"a": 1.0}')
        assert (await tx.check()).heads[held.id].state is State.RUNNING
        assert await wait(tx, held) == "queued"
        assert await answer(tx, held) == b'+{"a": 1.0}'


async def test_an_answer_that_comes_after_it_sleeps_wakes_it(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await asked(tx)
        assert await wait(tx, held) == "waiting"
        await use(tx, held)
        assert (await tx.check()).heads[held.id].state is State.QUEUED
        assert await answer(tx, held) == b"+42"
        kinds = [fact.kind for fact in await tx.facts() if fact.id == held.id]
        assert kinds == ["started", "slept", "switched"]


async def test_an_answer_wakes_a_step_that_sleeps_before_it_asks_again(
    store_server: EmbeddedServer,
) -> None:
    """Its 202 was lost: it takes the server to be away, and would ask once more."""
    async with open_transactions(store_server) as tx:
        held = await asked(tx)
        await tx.progress.sleep(CELL, [Sleep(held=held, state=b"asleep", delay_ms=3_600_000)])
        await use(tx, held)
        assert (await tx.check()).heads[held.id].state is State.QUEUED


async def test_a_step_may_be_called_back_only_once_it_has_asked(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        with pytest.raises(CallbackUsedError):
            await use(tx, held)
        assert (await tx.head(held.id)).version == 2


async def test_an_answer_after_the_end_of_the_step_is_refused(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await asked(tx)
        commit = Commit(held=held, state=b"s", drop=("callback:1",))
        await tx.progress.commit(CELL, [commit])
        with pytest.raises(CallbackUsedError):
            await use(tx, held)
        end = Finish(held=after(held), state=b"s", status=Status.SUCCESS, output=b"")
        await tx.progress.finish(CELL, [end])
        with pytest.raises(CallbackUsedError):
            await use(tx, held)


# -- Once ------------------------------------------------------------------------------------


async def test_the_first_answer_counts_and_a_second_one_is_refused(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held, calls = await asked(tx), callbacks(tx)
        await calls.use(held.id, "1", token(held.id), b"1")
        for body in (b"1", b"2"):
            with pytest.raises(CallbackUsedError):
                await calls.use(held.id, "1", token(held.id), body)
        assert await answer(tx, held) == b"+1"
        # Nor does asking again open it anew.
        assert (await tx.progress.open_callback(held, "1")).outcome == "known"
        assert await answer(tx, held) == b"+1"


@pytest.mark.parametrize("ended", [False, True])
async def test_a_call_that_is_repeated_since_its_reply_was_lost_is_no_second_use(
    store_server: EmbeddedServer, ended: bool
) -> None:
    """Also when the step has ended meanwhile, which takes it a few milliseconds."""
    async with open_transactions(store_server) as tx:
        held, verb = await asked(tx), script("waystation.transactions", "callback")
        words = (TERMS.argument, "", held.id, "1", "0badcafe", b"1")
        assert (await tx.signals.reach(verb, CELL, words))[0] == b"done"
        if ended:
            commit = Commit(held=held, state=b"s", drop=("callback:1",))
            await tx.progress.commit(CELL, [commit])
        before = await tx.fields(held.id)
        assert (await tx.signals.reach(verb, CELL, words))[0] == b"done"
        assert await tx.fields(held.id) == before


# -- Who -------------------------------------------------------------------------------------


async def test_a_forged_or_foreign_token_is_unknown_and_leaves_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held, other = await asked(tx), await asked(tx)
        calls, before = callbacks(tx), await tx.fields(held.id)
        for place, forged in (
            ("1", "0" * 32),
            ("1", token(held.id)[:-1]),
            ("1", token(held.id).upper()),
            ("1", token(held.id, "2")),
            ("2", token(held.id)),
            ("1", token(other.id)),
            ("1", "ü"),
            ("\ud800", token(held.id)),
        ):
            with pytest.raises(CallbackUnknownError):
                await calls.use(held.id, place, forged, b"1")
        assert await tx.fields(held.id) == before


async def test_a_transaction_that_is_not_there_is_unknown(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        with pytest.raises(CallbackUnknownError):
            await callbacks(tx).use(NOBODY, "1", token(NOBODY), b"1")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"1 2"])
async def test_what_is_no_json_is_refused_and_can_be_posted_again(
    store_server: EmbeddedServer, body: bytes
) -> None:
    async with open_transactions(store_server) as tx:
        held = await asked(tx)
        with pytest.raises(CallbackInvalidError):
            await use(tx, held, body)
        await use(tx, held, b"null")
        assert await answer(tx, held) == b"+null"


async def test_all_processes_have_one_secret_and_tokens_outlive_them(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        secrets = [await open_secret(tx.store, RandomIds()) for _ in range(3)]
        assert len(set(secrets)) == 1
        assert len(secrets[0]) == 32
        first, second = (CallbackUrls(each, "http://a") for each in secrets[:2])
        assert first(NOBODY, "2.1") == second(NOBODY, "2.1")
        assert CallbackUrls(secrets[0])(NOBODY, "1") == ""


def test_a_url_leads_through_the_public_one() -> None:
    assert URLS(NOBODY, "2~.1").startswith(f"https://example.com/base/v1/callbacks/{NOBODY}/2~.1/")


# -- Switches --------------------------------------------------------------------------------


async def test_our_own_switch_is_neither_seen_nor_counted(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await asked(tx)
        await use(tx, held)
        for number in range(SWITCHES_MAX):
            told = await tx.signals.set_switch("default", held.id, f"s{number}", True)
        assert len(told.switches) == SWITCHES_MAX
        text = (await tx.store.call("HGET", names.state(held.id), "switches")) or b""
        assert b"$callback=1:" in text
        assert CALLBACK_SWITCH not in parse_switches(text)
