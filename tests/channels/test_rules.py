"""Channel rules: whole-name patterns that add up, and templates that are checked at start."""

from __future__ import annotations

import pytest

from waystation.channel_settings import ChannelRule, TokenRule, WebhookRule
from waystation.channels.rules import ChannelRules
from waystation.errors import SettingsError


def rules(*each: ChannelRule) -> ChannelRules:
    return ChannelRules(each, expire_seconds=1800)


def test_without_rules_every_channel_is_allowed() -> None:
    terms = rules().terms("anything")

    assert terms is not None
    assert terms.expire_seconds == 1800


def test_with_rules_a_name_must_match_one_as_a_whole() -> None:
    found = rules(ChannelRule(pattern="chat-[0-9]+"))

    assert found.terms("chat-7") is not None
    assert found.terms("chat-7x") is None
    assert found.terms("xchat-7") is None


def test_matching_rules_add_up() -> None:
    found = rules(
        ChannelRule(pattern="chat-.*", expire_seconds=60, backlog_max=100),
        ChannelRule(
            pattern=".*-vip", expire_seconds=3600, backlog_max=10, backlog_policy="drop_oldest"
        ),
    )

    both, one = found.terms("chat-vip"), found.terms("chat-1")

    assert both is not None
    assert one is not None
    assert (both.expire_seconds, both.backlog_max, both.backlog_policy) == (3600, 10, "drop_oldest")
    assert (one.expire_seconds, one.backlog_max, one.backlog_policy) == (60, 100, "refuse")


def test_a_rule_without_an_expiry_has_the_general_one() -> None:
    terms = rules(ChannelRule(pattern=".+")).terms("a")

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

    terms = rules(rule).terms("acme-orders")

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
    with pytest.raises(SettingsError, match="no pattern"):
        rules(ChannelRule(pattern="chat-("))
