"""Channel rules: whole-name patterns that add up, and templates that are checked at start."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from waystation.channels.rules import CACHED_NAMES_MAX, ChannelRules
from waystation.config import ChannelRule, TokenRule, WebhookRule
from waystation.config_sources import load_config
from waystation.errors import SettingsError

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


def rules(*each: ChannelRule) -> ChannelRules:
    return ChannelRules(each, expire_seconds=1800)


def test_without_rules_every_channel_is_allowed() -> None:
    terms = rules().terms_of("anything")

    assert terms is not None
    assert terms.expire_seconds == 1800


def test_with_rules_a_name_must_match_one_as_a_whole() -> None:
    found = rules(ChannelRule(pattern="chat-[0-9]+"))

    assert found.terms_of("chat-7") is not None
    assert found.terms_of("chat-7x") is None
    assert found.terms_of("xchat-7") is None


def test_matching_rules_add_up() -> None:
    found = rules(
        ChannelRule(pattern="chat-.*", expire_seconds=60, backlog_max=100),
        ChannelRule(
            pattern=".*-vip", expire_seconds=3600, backlog_max=10, backlog_policy="drop_oldest"
        ),
    )

    both, one = found.terms_of("chat-vip"), found.terms_of("chat-1")

    assert both is not None
    assert one is not None
    assert (both.expire_seconds, both.backlog_max, both.backlog_policy) == (3600, 10, "drop_oldest")
    assert (one.expire_seconds, one.backlog_max, one.backlog_policy) == (60, 100, "refuse")


def test_a_rule_without_an_expiry_has_the_general_one() -> None:
    terms = rules(ChannelRule(pattern=".+")).terms_of("a")

    assert terms is not None
    assert terms.expire_seconds == 1800


def test_templates_are_filled_from_the_pattern() -> None:
    webhook = WebhookRule(
        name="crm",
        url="https://crm.example/{{.channel.shop}}/{{ .channel.kind }}",
        headers={"x-shop": "{{.channel.shop}}"},
    )
    tokens = TokenRule(
        algorithms=("HS256",), issuers=("me",), claims={"shop": ("{{.channel.shop}}",)}
    )
    rule = ChannelRule(
        pattern="(?P<shop>[a-z]+)-(?P<kind>[a-z]+)", webhooks=(webhook,), tokens=tokens
    )

    terms = rules(rule).terms_of("acme-orders")

    assert terms is not None
    assert terms.webhooks[0].url == "https://crm.example/acme/orders"
    assert terms.webhooks[0].headers == {"x-shop": "acme"}
    assert terms.tokens[0].claims == {"shop": ("acme",)}


@pytest.mark.parametrize(
    "url",
    ["https://x/{{.channel.nobody}}", "https://x/{{channel.shop}}", "https://x/{{.channel.shop"],
)
def test_a_template_that_could_fail_later_fails_at_start(url: str) -> None:
    rule = ChannelRule(pattern="(?P<shop>[a-z]+)", webhooks=(WebhookRule(name="crm", url=url),))

    with pytest.raises(SettingsError, match=r"channels\.rules"):
        rules(rule)


def test_a_broken_pattern_is_told() -> None:
    with pytest.raises(SettingsError, match="not a valid pattern"):
        rules(ChannelRule(pattern="chat-("))


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(?=chat)x", "invalid perl operator"),
        (r"(a)\1", "invalid escape"),
        ("[z-a]", "invalid character class range"),
        ("((a{1,1000}){1,1000}){1,1000}", "invalid repetition size"),
        ("(?P<a>x)(?P<a>y)", "same name"),
        (r"\pL{1000}", "too large"),
    ],
)
def test_what_could_go_wrong_with_a_pattern_goes_wrong_at_start(pattern: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        rules(ChannelRule(pattern=pattern))
    assert caught.value.message.startswith("channels.rules")


@pytest.mark.parametrize(
    "pattern", ["(a+)+-x", "(a|a)*-x", "(a|aa)+-x", "(.*)(.*)(.*)(.*)(.*)(.*)-x", "(a?){60}a{60}-x"]
)
def test_no_pattern_takes_longer_than_linear_time(pattern: str) -> None:
    """With Python's own patterns each of these takes longer than anybody lives."""
    found = rules(ChannelRule(pattern=pattern))
    begun = time.process_time()

    assert found.terms_of("a" * 63) is None

    assert time.process_time() - begun < 0.1


def test_names_that_were_looked_up_are_remembered_in_bounds() -> None:
    found = rules(ChannelRule(pattern="chat-[0-9]+"))

    assert found.terms_of("chat-1") is found.terms_of("chat-1")
    for number in range(CACHED_NAMES_MAX + 100):
        assert found.terms_of(f"nothing-{number}") is None
    lookup: Any = found.terms_of
    assert lookup.cache_info().currsize == CACHED_NAMES_MAX


def test_without_rules_nothing_has_to_be_remembered() -> None:
    found = rules()

    assert found.terms_of("a") is found.terms_of("b")
    assert sys.getrefcount(found.terms_of("a")) < 10


def test_the_named_groups_of_dsps_are_understood_in_both_spellings() -> None:
    for pattern in ("(?P<shop>[a-z]+)-.*", "(?<shop>[a-z]+)-.*"):
        tokens = TokenRule(
            algorithms=("HS256",), issuers=("me",), claims={"shop": ("x{{.channel.shop}}y",)}
        )
        terms = rules(ChannelRule(pattern=pattern, tokens=tokens)).terms_of("acme-1")

        assert terms is not None
        assert terms.tokens[0].claims == {"shop": ("xacmey",)}


def test_a_group_that_took_no_part_is_empty() -> None:
    tokens = TokenRule(issuers=("me",), allow_none=True, claims={"a": ("<{{.channel.a}}>",)})
    terms = rules(ChannelRule(pattern="(?P<a>x)?y", tokens=tokens)).terms_of("y")

    assert terms is not None
    assert terms.tokens[0].claims == {"a": ("<>",)}


@pytest.mark.parametrize("value", ["{{.channel.nobody}}", "{{channel.a}}", "{{.channel.a", "a}}"])
def test_a_claim_that_names_no_group_is_refused_at_start(value: str) -> None:
    tokens = TokenRule(issuers=("me",), allow_none=True, claims={"a": (value,)})

    with pytest.raises(SettingsError, match=r"channels\.rules"):
        rules(ChannelRule(pattern="(?P<a>x)", tokens=tokens))


def test_the_tokens_of_every_matching_rule_are_asked_for() -> None:
    one, two = (TokenRule(issuers=(name,), allow_none=True) for name in ("one", "two"))
    found = rules(
        ChannelRule(pattern="chat-.*", tokens=one),
        ChannelRule(pattern=".*-vip", tokens=two),
        ChannelRule(pattern="chat-.*"),
    )

    both, alone = found.terms_of("chat-vip"), found.terms_of("chat-1")

    assert both is not None
    assert alone is not None
    assert both.tokens == (one, two)
    assert alone.tokens == (one,)


@pytest.mark.parametrize("guide", ["channels.md", "from-dsps.md"])
def test_the_rules_in_the_guides_are_good_ones(tmp_path: Path, guide: str) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL)
    (tmp_path / "waystation.toml").write_text(text)

    settings = load_config(file=tmp_path / "waystation.toml").config.channels

    terms = rules(*settings.rules).terms_of("room-7" if guide == "channels.md" else "chat-7")
    assert terms is not None
    assert "7" in terms.tokens[0].claims["room"]
