"""Settings of channels by pattern: what a `[[channels.rules]]` table of the file may say."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Backlog = Literal["refuse", "drop_oldest"]


class TokenRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which JSON Web Tokens open a channel."""

    algorithms: tuple[str, ...]
    #: Files: PEM for RS, PS and ES, the raw secret for HS. Any of them may verify.
    key_files: tuple[str, ...] = ()
    issuers: tuple[str, ...]
    audiences: tuple[str, ...] = ()
    #: Claim → accepted values; templates allowed.
    claims: dict[str, tuple[str, ...]] = {}
    clock_skew_seconds: Annotated[float, Meta(ge=0, le=3600)] = 300.0
    #: Tokens without a signature; never without this.
    allow_none: bool = False


class WebhookRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the messages of a channel are sent; URL and header values may be templates."""

    name: Annotated[str, Meta(pattern=r"^[0-9a-z][0-9a-z_-]{0,62}$")]
    url: str
    method: Literal["PUT", "POST"] = "PUT"
    headers: dict[str, str] = {}
    #: File with the signing secret, `whsec_…`; empty: requests are not signed.
    secret_file: str = ""
    #: All attempts, the first included, and the wait before the second one.
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 10
    first_wait_seconds: Annotated[float, Meta(ge=0, le=86400)] = 3.0
    #: A request that takes longer has failed.
    timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 30.0


class ChannelRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[channels.rules]]` of the settings."""

    pattern: str
    expire_seconds: Annotated[float, Meta(gt=0, le=365 * 86400)] | None = None
    tokens: TokenRule | None = None
    webhooks: tuple[WebhookRule, ...] = ()
    #: Most messages that wait in a channel; None = no bound.
    backlog_max: Annotated[int, Meta(ge=1)] | None = None
    backlog_policy: Backlog = "refuse"
