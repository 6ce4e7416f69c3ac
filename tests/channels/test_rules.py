"""Channel rules: patterns, combination of matching rules, templates, and errors at start."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from waystation.channels.rules import CACHED_NAMES_MAX, ChannelRules
from waystation.config import ChannelRule, TokenRule, WebhookRule
from waystation.config_sources import load_config
from waystation.errors import SettingsError

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


def rules(*each: ChannelRule) -> ChannelRules:
    return ChannelRules(each, expire_seconds=1800)


def test_rules_empty_allow_every_channel() -> None:
    terms = rules().terms_of("anything")

    assert terms is not None
    assert terms.expire_seconds == 1800


def test_rules_match_whole_name_only() -> None:
    found = rules(ChannelRule(pattern="chat-[0-9]+"))

    assert found.terms_of("chat-7") is not None
    assert found.terms_of("chat-7x") is None
    assert found.terms_of("xchat-7") is None


def test_rules_that_match_are_combined() -> None:
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


def test_rule_without_expiry_uses_default() -> None:
    terms = rules(ChannelRule(pattern=".+")).terms_of("a")

    assert terms is not None
    assert terms.expire_seconds == 1800


def test_template_is_filled_from_groups_of_pattern() -> None:
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
def test_template_with_unknown_group_is_rejected_at_start(url: str) -> None:
    rule = ChannelRule(pattern="(?P<shop>[a-z]+)", webhooks=(WebhookRule(name="crm", url=url),))

    with pytest.raises(SettingsError, match=r"channels\.rules"):
        rules(rule)


def test_pattern_that_is_invalid_raises_settings_error() -> None:
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
def test_pattern_errors_are_raised_at_start(pattern: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        rules(ChannelRule(pattern=pattern))
    assert caught.value.message.startswith("channels.rules")


@pytest.mark.parametrize(
    "pattern", ["(a+)+-x", "(a|a)*-x", "(a|aa)+-x", "(.*)(.*)(.*)(.*)(.*)(.*)-x", "(a?){60}a{60}-x"]
)
def test_pattern_matches_in_linear_time(pattern: str) -> None:
    """Match patterns for which a backtracking engine, such as `re`, needs exponential time."""
    found = rules(ChannelRule(pattern=pattern))
    begun = time.process_time()

    assert found.terms_of("a" * 63) is None

    assert time.process_time() - begun < 0.1


def test_rules_cache_bounded_number_of_names() -> None:
    found = rules(ChannelRule(pattern="chat-[0-9]+"))

    assert found.terms_of("chat-1") is found.terms_of("chat-1")
    for number in range(CACHED_NAMES_MAX + 100):
        assert found.terms_of(f"nothing-{number}") is None
    assert found._cached_terms.cache_info().currsize == CACHED_NAMES_MAX


def test_rules_empty_cache_nothing() -> None:
    found = rules()

    assert found.terms_of("a") is found.terms_of("b")
    assert sys.getrefcount(found.terms_of("a")) < 10


def test_pattern_accepts_both_spellings_of_named_groups() -> None:
    for pattern in ("(?P<shop>[a-z]+)-.*", "(?<shop>[a-z]+)-.*"):
        tokens = TokenRule(
            algorithms=("HS256",), issuers=("me",), claims={"shop": ("x{{.channel.shop}}y",)}
        )
        terms = rules(ChannelRule(pattern=pattern, tokens=tokens)).terms_of("acme-1")

        assert terms is not None
        assert terms.tokens[0].claims == {"shop": ("xacmey",)}


def test_template_of_unmatched_group_is_empty() -> None:
    tokens = TokenRule(issuers=("me",), allow_none=True, claims={"a": ("<{{.channel.a}}>",)})
    terms = rules(ChannelRule(pattern="(?P<a>x)?y", tokens=tokens)).terms_of("y")

    assert terms is not None
    assert terms.tokens[0].claims == {"a": ("<>",)}


@pytest.mark.parametrize("value", ["{{.channel.nobody}}", "{{channel.a}}", "{{.channel.a", "a}}"])
def test_claim_with_unknown_group_is_rejected_at_start(value: str) -> None:
    tokens = TokenRule(issuers=("me",), allow_none=True, claims={"a": (value,)})

    with pytest.raises(SettingsError, match=r"channels\.rules"):
        rules(ChannelRule(pattern="(?P<a>x)", tokens=tokens))


def test_rules_that_match_require_all_their_tokens() -> None:
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
def test_rules_of_guides_are_valid(tmp_path: Path, guide: str) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL)
    (tmp_path / "waystation.toml").write_text(text)

    settings = load_config(file=tmp_path / "waystation.toml").config.channels

    terms = rules(*settings.rules).terms_of("room-7" if guide == "channels.md" else "chat-7")
    assert terms is not None
    assert "7" in terms.tokens[0].claims["room"]
