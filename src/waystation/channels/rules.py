"""Channel rules: the expiry, tokens, webhooks and backlog limit of a channel, by its name.

    [[channels.rules]]
    pattern = "chat-(?P<room>[0-9]+)"
    expire_seconds = 3600

A rule applies if its pattern matches the whole name. Several matching rules are combined: the
longest expiry, all token rules, all webhooks, the smallest backlog limit, the `record` that keeps
least. If rules are configured, a name that matches no rule is rejected. Without rules, all names
are allowed.

Templates in webhooks and claims insert named groups of the pattern: `{{.channel.room}}`.

RE2 compiles the patterns, as in DSPS. It matches in linear time, so that no channel name can block
the process. Invalid patterns and templates are reported at start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
import re2

from waystation.config import Backlog, ChannelRule, TokenRule, WebhookRule
from waystation.errors import SettingsError
from waystation.types.common import Record

#: Number of channel names whose terms are cached, including names that no rule allows.
CACHED_NAMES_MAX = 20_000

#: Values of `record`, from the one that keeps most to the one that keeps least.
_RECORDS = ("full", "headers", "none")

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
# Use leftmost-longest matching, as DSPS does. It affects only the texts of the groups, because a
# pattern must match the whole name.
_OPTIONS.longest_match = True
# Limit the size of a compiled pattern, in bytes.
_OPTIONS.max_mem = 1_048_576
_GROUP_NAME = re.compile(r"(?<!\\)\(\?P?<(\w+)>")
_TEMPLATE_FIELD = re.compile(r"\{\{\s*\.channel\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


class ChannelTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Terms of a channel: the combined settings of all rules that match its name.

    Their templates are filled with the groups of the match.
    """

    expire_seconds: float
    tokens: tuple[TokenRule, ...] = ()
    webhooks: tuple[WebhookRule, ...] = ()
    #: Maximum number of stored messages; None: unlimited.
    backlog_max: int | None = None
    backlog_policy: Backlog = "refuse"
    #: Parts of the messages that history keeps.
    record: Record = "full"


class ChannelRules:
    """The compiled channel rules. The only state is a cache of terms by channel name."""

    def __init__(self, rules: tuple[ChannelRule, ...], *, expire_seconds: float) -> None:
        self._expire_seconds = expire_seconds
        self._rules = [(_compile(rule), rule) for rule in rules]
        self._default = ChannelTerms(expire_seconds=expire_seconds)
        self._cached_terms = lru_cache(CACHED_NAMES_MAX)(self._combine)

    def terms_of(self, channel: str) -> ChannelTerms | None:
        """Return the combined settings of all rules that match a channel.

        Return None if rules are configured and none of them matches.
        """
        return self._cached_terms(channel) if self._rules else self._default

    def _combine(self, channel: str) -> ChannelTerms | None:
        matching = [
            (match.groupdict(default=""), rule)
            for pattern, rule in self._rules
            if (match := pattern.fullmatch(channel)) is not None
        ]
        if not matching:
            return None
        bounded = [rule for _, rule in matching if rule.backlog_max is not None]
        smallest = min(bounded, key=lambda rule: rule.backlog_max or 0, default=None)
        return ChannelTerms(
            expire_seconds=max(rule.expire_seconds or self._expire_seconds for _, rule in matching),
            tokens=tuple(
                _fill_token_rule(rule.tokens, groups) for groups, rule in matching if rule.tokens
            ),
            webhooks=tuple(
                _fill_webhook(webhook, groups)
                for groups, rule in matching
                for webhook in rule.webhooks
            ),
            backlog_max=smallest.backlog_max if smallest else None,
            backlog_policy=smallest.backlog_policy if smallest else "refuse",
            record=max((rule.record for _, rule in matching), key=_RECORDS.index),
        )


def rule_location(rule: ChannelRule) -> str:
    """Return the name of a rule for error messages, such as `channels.rules 'news-.*'`."""
    return f"channels.rules {rule.pattern!r}"


def _compile(rule: ChannelRule) -> Any:
    """Compile the pattern of a rule and check its templates.

    Raise SettingsError if the pattern or a template is invalid.
    """
    where = rule_location(rule)
    try:
        pattern = re2.compile(rule.pattern, _OPTIONS)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise SettingsError(
            f"{where} is not a valid pattern: {reason}.",
            hint="Use RE2 syntax, without look-around and back references.",
        ) from error
    names = set(pattern.groupindex)
    if len(_GROUP_NAME.findall(rule.pattern)) > len(names):
        raise SettingsError(f"{where} is not a valid pattern: two groups have the same name.")
    templates = [
        template
        for webhook in rule.webhooks
        for template in (webhook.url, *webhook.headers.values())
    ]
    if rule.tokens is not None:
        templates += [template for values in rule.tokens.claims.values() for template in values]
    for template in templates:
        _check_template(template, names, where=where)
    return pattern


def _fill_webhook(rule: WebhookRule, groups: Mapping[str, str]) -> WebhookRule:
    return msgspec.structs.replace(
        rule,
        url=_fill_template(rule.url, groups),
        headers={name: _fill_template(value, groups) for name, value in rule.headers.items()},
    )


def _fill_token_rule(rule: TokenRule, groups: Mapping[str, str]) -> TokenRule:
    claims = {
        name: tuple(_fill_template(value, groups) for value in accepted)
        for name, accepted in rule.claims.items()
    }
    return msgspec.structs.replace(rule, claims=claims)


# -- Templates -------------------------------------------------------------------------------


def has_template_fields(template: str) -> bool:
    """Return True if the template has fields, so that its text depends on the channel."""
    return _TEMPLATE_FIELD.search(template) is not None


def sample_texts(template: str) -> list[str]:
    """Return two samples of the template: every field replaced by `x`, and every field by `1`."""
    return [_TEMPLATE_FIELD.sub(sample, template) for sample in ("x", "1")]


def _fill_template(template: str, groups: Mapping[str, str]) -> str:
    return _TEMPLATE_FIELD.sub(lambda field: groups[field.group(1)], template)


def _check_template(template: str, names: set[str], *, where: str) -> None:
    rest = _TEMPLATE_FIELD.sub("", template)
    if "{{" in rest or "}}" in rest:
        raise SettingsError(
            f"{where}: template {template!r} is malformed.",
            hint="Write a field as {{.channel.name}}.",
        )
    unknown = sorted(set(_TEMPLATE_FIELD.findall(template)) - names)
    if unknown:
        raise SettingsError(
            f"{where}: template {template!r} uses {', '.join(unknown)}, but the pattern has no"
            " group of that name.",
            hint="Name a group of the pattern with (?P<name>…).",
        )
