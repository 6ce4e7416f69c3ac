"""Gathering: who asks at once shares a call; each gets its own answer, or the error of the call."""

from __future__ import annotations

import asyncio

import pytest

from waystation.store.gathering import Gathering


async def test_who_asks_in_one_turn_shares_a_call_and_who_comes_meanwhile_the_next() -> None:
    calls: list[tuple[str, list[int]]] = []
    gate = asyncio.Event()

    async def ask(key: str, asked: list[int]) -> list[int]:
        calls.append((key, asked))
        await gate.wait()
        return [each * 10 for each in asked]

    gathering = Gathering(ask, most=3)
    first = [gathering.ask("a", number) for number in (1, 2)]
    other = gathering.ask("b", 7)
    await asyncio.sleep(0)
    later = [gathering.ask("a", number) for number in (3, 4, 5, 6)]
    await asyncio.sleep(0)
    assert calls == [("a", [1, 2]), ("b", [7])], "one call of a key at a time"
    gate.set()

    assert await asyncio.gather(*first, other, *later) == [10, 20, 70, 30, 40, 50, 60]
    assert calls[2:] == [("a", [3, 4, 5]), ("a", [6])], "no call is larger than allowed"
    await asyncio.sleep(0)
    assert repr(gathering) == "<Gathering [0 keys]>", "nothing is kept of a key"


async def test_an_error_is_that_of_all_who_shared_the_call_and_of_no_other() -> None:
    async def ask(key: str, asked: list[int]) -> list[int]:
        if 1 in asked:
            raise ConnectionError("away")
        return asked

    gathering = Gathering(ask)
    lost = [gathering.ask("a", 1), gathering.ask("a", 2)]
    await asyncio.sleep(0)
    kept = gathering.ask("a", 3)

    for each in lost:
        with pytest.raises(ConnectionError):
            await each
    assert await kept == 3


async def test_who_gives_up_before_the_call_is_not_asked_for_and_harms_nobody() -> None:
    calls: list[list[int]] = []

    async def ask(key: str, asked: list[int]) -> list[int]:
        calls.append(asked)
        return asked

    gathering = Gathering(ask)
    given_up, kept = gathering.ask("a", 1), gathering.ask("a", 2)
    given_up.cancel()

    assert await kept == 2
    alone = gathering.ask("b", 3)
    alone.cancel()
    await asyncio.sleep(0.01)
    assert calls == [[2]]
