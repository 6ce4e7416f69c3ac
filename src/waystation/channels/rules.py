"""Rules for channels, by pattern: expiry, tokens, webhooks, backlog.

    [[channels.rules]]
    pattern = "chat-(?P<room>[0-9]+)"
    expire_seconds = 3600

A pattern must match the whole name. Several rules may match one channel; they add up: the longest
expiry, every token rule must pass, every webhook fires, the tightest backlog holds. With rules, a
name that matches none is refused; without any, every name is allowed.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from waystation.channel_settings import Backlog, ChannelRule, TokenRule, WebhookRule
from waystation.channels.templates import check_template, fill_template
from waystation.errors import SettingsError

#: Names that were looked up lately; rules are few and names are many.
_KNOWN_MAX = 100_000


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one channel: all its rules together, templates filled."""

    expire_seconds: float
    tokens: tuple[TokenRule, ...] = ()
    webhooks: tuple[WebhookRule, ...] = ()
    backlog_max: int | None = None
    backlog_policy: Backlog = "refuse"


class ChannelRules:
    """Finds the terms of a channel by its name."""

    def __init__(self, rules: tuple[ChannelRule, ...], *, expire_seconds: float) -> None:
        self._expire_seconds = expire_seconds
        self._rules = [(_compiled(rule), rule) for rule in rules]
        self.terms = lru_cache(_KNOWN_MAX)(self._find)

    def _find(self, channel: str) -> Terms | None:
        """The terms; None when no rule allows the name. Cached as `terms`."""
        if not self._rules:
            return Terms(expire_seconds=self._expire_seconds)
        found = [
            (match.groupdict(default=""), rule)
            for pattern, rule in self._rules
            if (match := pattern.fullmatch(channel)) is not None
        ]
        if not found:
            return None
        bounds = [rule for _, rule in found if rule.backlog_max is not None]
        tightest = min(bounds, key=lambda rule: rule.backlog_max or 0, default=None)
        return Terms(
            expire_seconds=max(rule.expire_seconds or self._expire_seconds for _, rule in found),
            tokens=tuple(
                _filled_tokens(rule.tokens, values) for values, rule in found if rule.tokens
            ),
            webhooks=tuple(
                _filled_webhook(each, values) for values, rule in found for each in rule.webhooks
            ),
            backlog_max=tightest.backlog_max if tightest else None,
            backlog_policy=tightest.backlog_policy if tightest else "refuse",
        )


def _compiled(rule: ChannelRule) -> re.Pattern[str]:
    where = f"channels.rules {rule.pattern!r}"
    try:
        pattern = re.compile(rule.pattern)
    except re.error as error:
        raise SettingsError(f"{where} is no pattern: {error}.") from error
    names = set(pattern.groupindex)
    for webhook in rule.webhooks:
        for template in (webhook.url, *webhook.headers.values()):
            check_template(template, names, where=where)
    if rule.tokens is not None:
        for values in rule.tokens.claims.values():
            for template in values:
                check_template(template, names, where=where)
    return pattern


def _filled_webhook(rule: WebhookRule, values: dict[str, str]) -> WebhookRule:
    return msgspec.structs.replace(
        rule,
        url=fill_template(rule.url, values),
        headers={name: fill_template(value, values) for name, value in rule.headers.items()},
    )


def _filled_tokens(rule: TokenRule, values: dict[str, str]) -> TokenRule:
    claims = {
        name: tuple(fill_template(each, values) for each in accepted)
        for name, accepted in rule.claims.items()
    }
    return msgspec.structs.replace(rule, claims=claims)
