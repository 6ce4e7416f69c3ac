"""Settings of channels by pattern: what a `[[channels.rules]]` table of the file may say."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

# One line per kind reads better than twelve.
# fmt: off
Algorithm = Literal[
    "ES256", "ES384", "ES512", "HS256", "HS384", "HS512",
    "PS256", "PS384", "PS512", "RS256", "RS384", "RS512",
]
# fmt: on
Backlog = Literal["refuse", "drop_oldest"]


class TokenRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which JSON Web Tokens open a channel."""

    algorithms: tuple[Algorithm, ...] = ()
    #: Files: PEM for RS, PS and ES, the raw secret for HS, byte for byte. Any of them may verify.
    key_files: tuple[str, ...] = ()
    issuers: Annotated[tuple[str, ...], Meta(min_length=1)]
    audiences: tuple[str, ...] = ()
    #: Claim → accepted values; templates allowed.
    claims: dict[str, tuple[str, ...]] = {}
    clock_skew_seconds: Annotated[float, Meta(ge=0, le=3600)] = 300.0
    #: Tokens without a signature, `alg` none; never without this.
    allow_none: bool = False


class WebhookRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the messages of a channel are sent; URL and header values may be templates."""

    name: Annotated[str, Meta(pattern=r"^[0-9a-z][0-9a-z_-]{0,62}$")]
    url: str
    method: Literal["PUT", "POST"] = "PUT"
    headers: dict[str, str] = {}
    #: File with the value of an Authorization header.
    authorization_file: str = ""
    #: File with the signing secret, `whsec_…`; empty: requests are not signed. Several lines: all
    #: sign, so that receivers can change from one to another in their own time.
    secret_file: str = ""
    #: All attempts, the first included, and the wait before the second one.
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 10
    first_wait_seconds: Annotated[float, Meta(ge=0, le=86400)] = 3.0
    #: Exponential: each wait is `multiplier` times as long. Linear: `first_wait_seconds` longer.
    growth: Literal["linear", "exponential"] = "exponential"
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    wait_seconds_min: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    wait_seconds_max: Annotated[float, Meta(gt=0, le=30 * 86400)] = 3600.0
    #: A wait varies by this share of itself, so that many do not come back at once.
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    #: Statuses after which there is no other attempt, beside those that DSPS never tries again;
    #: and those after which there is one nevertheless. With 410 among these, it disables nothing.
    fatal_codes: tuple[Annotated[int, Meta(ge=300, le=599)], ...] = ()
    retry_codes: tuple[Annotated[int, Meta(ge=300, le=599)], ...] = ()
    #: A request that takes longer has failed.
    connect_timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 5.0
    timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 30.0


class ChannelRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[channels.rules]]` of the settings."""

    #: Matches the whole name; the syntax is RE2's, as in DSPS. Named groups fill templates.
    pattern: Annotated[str, Meta(min_length=1, max_length=1000)]
    expire_seconds: Annotated[float, Meta(gt=0, le=365 * 86400)] | None = None
    tokens: TokenRule | None = None
    webhooks: tuple[WebhookRule, ...] = ()
    #: Most messages that a channel keeps, acknowledged or not; None = no bound.
    backlog_max: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    #: What becomes of one more: it is refused, or the oldest is dropped for it.
    backlog_policy: Backlog = "refuse"


def shown_rule(rule: ChannelRule) -> dict[str, Any]:
    """A rule fit to be shown: what differs from the defaults, without what may be secret."""
    told: dict[str, Any] = _told(rule)
    if rule.tokens is not None:
        told["tokens"] = shown_tokens(rule.tokens)
    if rule.webhooks:
        told["webhooks"] = [shown_webhook(each) for each in rule.webhooks]
    return told


def shown_tokens(tokens: TokenRule) -> dict[str, Any]:
    """A token rule fit to be shown; it names files with secrets, and holds none."""
    return _told(tokens)


def shown_webhook(webhook: WebhookRule) -> dict[str, Any]:
    """A webhook fit to be shown: headers, and all of the URL but its host, may hold secrets."""
    told = _told(webhook)
    scheme, _, rest = webhook.url.partition("://")
    told["url"] = f"{scheme}://{re.split('[/?#]', rest)[0].rpartition('@')[2]}/…"
    if webhook.headers:
        told["headers"] = dict.fromkeys(webhook.headers, "•••")
    return told


def _told(thing: msgspec.Struct) -> dict[str, Any]:
    """The fields that do not have their default."""
    return {
        field.name: value
        for field in msgspec.structs.fields(thing)
        if (value := getattr(thing, field.name)) != field.default
        and not (field.default_factory is dict and not value)
    }
