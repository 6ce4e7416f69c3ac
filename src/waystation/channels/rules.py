"""Rules for channels, by pattern: expiry, tokens, webhooks, backlog.

    [[channels.rules]]
    pattern = "chat-(?P<room>[0-9]+)"
    expire_seconds = 3600

A pattern must match the whole name. Several rules may match one channel; they add up: the longest
expiry, every token rule must pass, every webhook fires, the tightest backlog holds. With rules, a
name that matches none is refused; without any, every name is allowed.

Patterns are RE2's, as those of DSPS: no pattern takes longer than linear time, so no name that a
stranger sends can keep the process busy. Everything that could fail later fails at start.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import re2

from waystation.channels.templates import check_template, fill_template
from waystation.config import Backlog, ChannelRule, TokenRule, WebhookRule
from waystation.errors import SettingsError

#: Names that were looked up lately, allowed or not; anybody may ask for any name.
KNOWN_MAX = 20_000

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
#: As in DSPS; where a whole name must match, it only decides how groups are filled.
_OPTIONS.longest_match = True
#: A pattern that compiles to more is refused.
_OPTIONS.max_mem = 1_048_576
_GROUP_NAMES = re.compile(r"(?<!\\)\(\?P?<(\w+)>")


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
        general = Terms(expire_seconds=expire_seconds)
        #: The terms of a channel; None when no rule allows the name.
        self.terms: Callable[[str], Terms | None] = (
            lru_cache(KNOWN_MAX)(self._find) if rules else lambda _: general
        )

    def _find(self, channel: str) -> Terms | None:
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


def _compiled(rule: ChannelRule) -> Any:
    where = f"channels.rules {rule.pattern!r}"
    try:
        pattern = re2.compile(rule.pattern, _OPTIONS)
    except re2.error as error:
        told = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise SettingsError(
            f"{where} is no pattern: {told}.",
            hint="The syntax is RE2's: no look-around and no back references.",
        ) from error
    names = set(pattern.groupindex)
    if len(_GROUP_NAMES.findall(rule.pattern)) > len(names):
        raise SettingsError(f"{where} is no pattern: two groups have the same name.")
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
