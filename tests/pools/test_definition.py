"""The definition of a pool: bad input is refused by field, and what is kept is read again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from waystation.config import PoolConfig
from waystation.errors import InvalidInputError
from waystation.pools.definition import (
    Pool,
    PoolOptions,
    check_options,
    decode_pool,
    encode_pool,
)
from waystation.pools.names import Place


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("assignment", "by_chance"),
        ("stale_seconds", 0),
        ("lease_seconds", -1),
        ("attempts", 0),
        ("key_retention_seconds", 0),
        ("dedup_seconds", 0),
        ("keys_max", 2**20),
        ("messages_max", 0),
        ("max_bytes", 0),
        ("dead_max", 0),
        ("agent_key_ms", -1),
    ],
)
def test_what_no_pool_can_have_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert({field: value}, PoolOptions)


def test_check_options_agents_answer_without_mirror_raises() -> None:
    with pytest.raises(InvalidInputError, match="mirrored pools only"):
        check_options(PoolOptions(agents_answer=True))
    check_options(PoolOptions(agents_answer=True, mirror=True))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="colour"):
        msgspec.convert({"colour": "red"}, PoolOptions)


def test_a_pool_is_read_as_it_was_written() -> None:
    pool = Pool(project="shop", name="agents", version=3, options=PoolOptions(max_bytes=7))
    assert decode_pool(encode_pool(pool)) == pool
    assert pool.place == Place("shop", "agents")


def test_scripts_are_told_what_the_options_say() -> None:
    options = PoolOptions(stale_seconds=1.5, assignment="least_loaded", max_bytes=None)
    pool = Pool(project="shop", name="agents", version=1, options=options)
    settings = PoolConfig(workers_max=3, taken_max=4)
    words = pool.terms(settings).argument.split(" ")
    assert words == [
        "1500",
        "least_loaded",
        "5",
        "1000000",
        "1000000",
        "-",
        "10000",
        "500",
        "3",
        "4",
    ]


def test_no_two_pools_share_a_tag() -> None:
    tags = {Place("a", "b").tag, Place("a", "b", 1).tag, Place("a-b", "c").tag, Place("a", "c").tag}
    assert len(tags) == 4
    assert Place("default", "agents").tag == "{p.default.agents}:"
