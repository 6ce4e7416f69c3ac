"""JSON Web Tokens that open channels: verified against every token rule that matches the channel.

A rule names algorithms, keys, issuers, and what claims must say. All of it must hold: the
signature, the times with the rule's skew, the issuer, an audience, every claim. A token without a
signature passes only where a rule says `allow_none`; one that asks for an extension that we do not
know (`crit`) never does.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec

from waystation.channels.key_rings import KeyRing
from waystation.config import ChannelRule, TokenRule
from waystation.errors import UnauthenticatedError

#: Strict, since decoders pass over what they do not know, and one token would have many texts.
_FORM = re.compile(r"([\w-]+)\.([\w-]+)\.([\w-]*)", re.ASCII).fullmatch
#: A claim with more digits is no number that anybody compares with.
_DIGITS_MAX = 100


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it was shown. Nothing in it is true until it is verified."""

    algorithm: str
    #: What the signature is about, as it came.
    signed: bytes
    signature: bytes
    claims: dict[str, Any]
    #: Whether the header demands something that we do not know.
    critical: bool

    @property
    def id(self) -> str:
        """The `jti`, by which it can be revoked; empty when there is none."""
        return as_text(self.claims.get("jti")) or ""


def read_token(text: str) -> Token | None:
    """Takes a token apart, without trusting it; None when it is none."""
    match = _FORM(text)
    if match is None:
        return None
    try:
        header, claims = (_decoded(part) for part in match.group(1, 2))
        signature = _bytes(match.group(3))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        return None
    return Token(
        algorithm=str(header.get("alg")),
        signed=text.rpartition(".")[0].encode(),
        signature=signature,
        claims=claims,
        critical="crit" in header,
    )


class TokenVerifier:
    """Knows the keys of all rules."""

    def __init__(self, rules: Iterable[ChannelRule]) -> None:
        self._rings: dict[tuple[Any, ...], KeyRing] = {}
        #: The widest skew of all rules, in seconds.
        self.skew_max = 0.0
        for rule in rules:
            if rule.tokens is not None:
                where = f"channels.rules {rule.pattern!r}"
                self._rings[_ring_of(rule.tokens)] = KeyRing(rule.tokens, where=where)
                self.skew_max = max(self.skew_max, rule.tokens.clock_skew_seconds)

    def verify(self, token: Token, rules: Iterable[TokenRule], *, now_ms: int) -> None:
        """Raises UnauthenticatedError unless every rule accepts the token."""
        for rule in rules:
            if token.critical:
                raise UnauthenticatedError("The token demands an extension that is not known.")
            ring = self._rings[_ring_of(rule)]
            if not ring.has_signed(token.algorithm, token.signed, token.signature):
                raise UnauthenticatedError(
                    "The token's signature is not valid, or its algorithm is not accepted."
                )
            _check_times(token.claims, rule, now_ms / 1000)
            _check_claims(token.claims, rule)


def _ring_of(rule: TokenRule) -> tuple[Any, ...]:
    """Which keys a rule has; the same before and after its templates are filled."""
    return rule.algorithms, rule.key_files, rule.allow_none


def _check_times(claims: dict[str, Any], rule: TokenRule, now: float) -> None:
    skew = rule.clock_skew_seconds
    limits = {"exp": now - skew, "nbf": now + skew, "iat": now + skew}
    for name, limit in limits.items():
        if name not in claims:
            continue
        moment = claims[name]
        if isinstance(moment, bool) or not isinstance(moment, int | float):
            raise UnauthenticatedError(f"The token's {name} is no time.")
        if name == "exp" and moment <= limit:
            raise UnauthenticatedError("The token has expired.")
        if name != "exp" and moment > limit:
            raise UnauthenticatedError("The token is not valid yet.")


def _check_claims(claims: dict[str, Any], rule: TokenRule) -> None:
    if claims.get("iss") not in rule.issuers:
        raise UnauthenticatedError("The token's issuer is not accepted.")
    if rule.audiences:
        told = claims.get("aud")
        given = told if isinstance(told, list) else [told]
        if not any(each in rule.audiences for each in given):
            raise UnauthenticatedError("The token's audience is not accepted.")
    for name, accepted in rule.claims.items():
        if as_text(claims.get(name)) not in accepted:
            raise UnauthenticatedError(f"The token's claim {name!r} is not accepted.")


def as_text(value: object) -> str | None:
    """A claim as it is compared: numbers as the shortest decimal, truth values in lower case.

    None for all else, and for what is too large to be anything but an attack.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_DIGITS_MAX else None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"
    return None


def _decoded(part: str) -> Any:
    return msgspec.json.decode(_bytes(part))


def _bytes(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))
