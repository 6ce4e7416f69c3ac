"""JSON Web Tokens that open channels: verified against every token rule that matches the channel.

A rule names algorithms, keys, issuers, and what claims must say. Keys are files, read at start. A
key is only ever tried with algorithms of its own kind, so a public key can never pass for a shared
secret. A token without a signature passes only where a rule says `allow_none`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jwt

from waystation.channel_settings import ChannelRule, TokenRule
from waystation.errors import SettingsError, UnauthenticatedError

_SHARED = frozenset({"HS256", "HS384", "HS512"})
_PUBLIC = frozenset(f"{kind}{size}" for kind in ("RS", "PS", "ES") for size in (256, 384, 512))
_PEM = b"-----BEGIN"


class TokenVerifier:
    """Knows the keys of all rules."""

    def __init__(self, rules: Iterable[ChannelRule]) -> None:
        self._keys: dict[str, bytes] = {}
        for rule in rules:
            if rule.tokens is not None:
                self._load(rule.tokens, where=f"channels.rules {rule.pattern!r}")

    def verify(self, token: str, rules: Iterable[TokenRule], *, now_ms: int) -> None:
        """Raises UnauthenticatedError unless every rule accepts the token."""
        for rule in rules:
            claims = self._signed_claims(token, rule)
            _check_times(claims, rule, now_ms / 1000)
            _check_claims(claims, rule)

    def _load(self, rule: TokenRule, *, where: str) -> None:
        unknown = sorted(set(rule.algorithms) - _SHARED - _PUBLIC)
        if unknown:
            raise SettingsError(
                f"{where}: unknown algorithms {', '.join(unknown)}.",
                hint="HS, RS, PS or ES with 256, 384 or 512; `allow_none` stands for itself.",
            )
        if not rule.key_files and not rule.allow_none:
            raise SettingsError(f"{where}: tokens need key_files.")
        for name in rule.key_files:
            try:
                self._keys[name] = Path(name).read_bytes()
            except OSError as error:
                raise SettingsError(f"{where}: key file {name}: {error.strerror}.") from error

    def _signed_claims(self, token: str, rule: TokenRule) -> dict[str, Any]:
        try:
            algorithm = jwt.get_unverified_header(token).get("alg")
        except jwt.PyJWTError as error:
            raise UnauthenticatedError("The token is malformed.") from error
        if algorithm == "none" and rule.allow_none:
            return self._decoded(token, None, "none")
        if algorithm not in rule.algorithms:
            raise UnauthenticatedError("The token's algorithm is not accepted.")
        for name in rule.key_files:
            key = self._keys[name]
            if key.startswith(_PEM) != (algorithm in _PUBLIC):
                continue
            try:
                return self._decoded(token, key, algorithm)
            except UnauthenticatedError:
                continue
        raise UnauthenticatedError("The token's signature is not valid.")

    @staticmethod
    def _decoded(token: str, key: bytes | None, algorithm: str) -> dict[str, Any]:
        # Times and claims are checked by us, with the clock of the process.
        options = dict.fromkeys(("exp", "nbf", "iat", "aud", "iss", "sub", "jti"), False)
        try:
            return jwt.decode(
                token,
                key,  # type: ignore[arg-type]
                algorithms=[algorithm],
                options={f"verify_{name}": wanted for name, wanted in options.items()}  # type: ignore[arg-type]
                | {"verify_signature": key is not None},
            )
        except (jwt.PyJWTError, ValueError) as error:
            raise UnauthenticatedError("The token's signature is not valid.") from error


def token_id(token: str) -> str:
    """The token's `jti`, unverified; empty when there is none. For revocation only."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError):
        return ""
    found = claims.get("jti")
    return found if isinstance(found, str) else ""


def _check_times(claims: dict[str, Any], rule: TokenRule, now: float) -> None:
    skew = rule.clock_skew_seconds
    limits = {"exp": now - skew, "nbf": now + skew, "iat": now + skew}
    for name, limit in limits.items():
        if name not in claims:
            continue
        moment = claims[name]
        if isinstance(moment, bool) or not isinstance(moment, int | float) or math.isnan(moment):
            raise UnauthenticatedError(f"The token's {name} is no time.")
        if (moment <= limit) if name == "exp" else (moment > limit):
            raise UnauthenticatedError("The token is not valid at this time.")


def _check_claims(claims: dict[str, Any], rule: TokenRule) -> None:
    if claims.get("iss") not in rule.issuers:
        raise UnauthenticatedError("The token's issuer is not accepted.")
    if rule.audiences:
        told = claims.get("aud")
        given = told if isinstance(told, list) else [told]
        if not any(each in rule.audiences for each in given):
            raise UnauthenticatedError("The token's audience is not accepted.")
    for name, accepted in rule.claims.items():
        if _as_text(claims.get(name)) not in accepted:
            raise UnauthenticatedError("A claim of the token is not accepted.")


def _as_text(value: object) -> str | None:
    """Numbers in their shortest form, truth values in lower case; nothing else is comparable."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(int(value)) if float(value).is_integer() else json.dumps(value)
    return None
