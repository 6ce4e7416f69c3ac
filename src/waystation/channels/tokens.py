"""JSON Web Tokens that open channels: reading, verification and revocation.

A token must satisfy every token rule of a channel: signature, times, issuer, audience and claims.
An unsigned token passes only rules with `allow_none`. A token with critical extensions (`crit`)
never passes.

A key verifies only algorithms of its own kind, even if the header of a token names another
algorithm. Therefore a public key is never used as a shared secret. All keys come from the files in
the settings. The header fields `jwk`, `jku`, `x5u` and `kid` of a token are ignored.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509 import load_pem_x509_certificate

from waystation.channels import keys
from waystation.channels.rules import rule_location
from waystation.config import ChannelRule, TokenRule
from waystation.errors import InvalidInputError, SettingsError, UnauthenticatedError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.client import Store
from waystation.store.scripts import script

_log = logger("tokens")

_REVOKE = script(__package__, "revoke")

#: Accepts only base64url characters. Decoders skip other characters, so several texts could be the
#: same token. A cache entry would then cover only one of these texts.
_match_token = re.compile(r"([\w-]+)\.([\w-]+)\.([\w-]*)", re.ASCII).fullmatch
#: Integers with more digits are not compared, because their conversion to text is slow.
_CLAIM_DIGITS_MAX = 100
#: Maximum number of cached signatures.
_CACHED_SIGNATURES_MAX = 16_384
#: Signatures of longer tokens are not cached, so that the tokens in the cache have at most 64 MiB.
_CACHED_TOKEN_BYTES_MAX = 4096
#: Maximum age of a cached answer of the store. It leaves 3 of the 5 seconds within which all
#: processes must reject a revoked token.
_REVOCATION_AGE_S_MAX = 2.0
#: Maximum number of cached answers, because a client can send any number of tokens.
_CACHED_REVOCATIONS_MAX = 16_384
#: Latest expiry of a revoked token, in seconds since the epoch.
EXPIRY_MAX = 2**53 - 1


# -- Reading ---------------------------------------------------------------------------------


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as a client sent it. It is not verified."""

    algorithm: str
    #: Part of the token that the signature covers.
    signed: bytes
    signature: bytes
    claims: dict[str, Any]
    #: True if the header has critical extensions.
    critical: bool

    @property
    def id(self) -> str:
        """Claim `jti`, by which the token can be revoked. It is empty if the claim is missing."""
        return claim_text(self.claims.get("jti")) or ""


def read_token(text: str) -> Token | None:
    """Decode a token without verification. Return None if the text is not a token."""
    match = _match_token(text)
    if match is None:
        return None
    try:
        header, claims = (msgspec.json.decode(_decode_part(part)) for part in match.group(1, 2))
        signature = _decode_part(match.group(3))
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


def _decode_part(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def claim_text(value: object) -> str | None:
    """Convert a claim to the text that rules compare.

    Numbers become their shortest decimal form, booleans `true` or `false`. Return None for objects,
    arrays, null, and integers of more than 100 digits.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_CLAIM_DIGITS_MAX else None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"
    return None


# -- Verification ----------------------------------------------------------------------------


class TokenVerifier:
    """Verifies tokens by token rules. Reads all key files when it is created."""

    def __init__(self, rules: Iterable[ChannelRule]) -> None:
        self._keys: dict[tuple[Any, ...], TokenKeys] = {}
        #: Largest clock skew of all rules, in seconds.
        self.skew_max = 0.0
        for rule in rules:
            if rule.tokens is not None:
                token_keys = TokenKeys(rule.tokens, where=rule_location(rule))
                self._keys[_key_settings(rule.tokens)] = token_keys
                self.skew_max = max(self.skew_max, rule.tokens.clock_skew_seconds)

    def verify(self, token: Token, rules: Iterable[TokenRule], *, now_ms: int) -> None:
        """Raise UnauthenticatedError unless the token satisfies every rule."""
        for rule in rules:
            if token.critical:
                raise UnauthenticatedError(
                    "The token requires extensions (`crit`), which are not supported."
                )
            token_keys = self._keys[_key_settings(rule)]
            if not token_keys.has_signed(token.algorithm, token.signed, token.signature):
                raise UnauthenticatedError(
                    "The token's signature is not valid, or its algorithm is not accepted."
                )
            _check_times(token.claims, rule, now_ms / 1000)
            _check_claims(token.claims, rule)


class TokenKeys:
    """The keys of one token rule. The only state is a cache of verified signatures.

    A verified signature is cached, because it stays valid. Expiry, revocation and claims are
    checked for each request. Invalid signatures are not cached, so that they cannot evict valid
    ones.
    """

    def __init__(self, rule: TokenRule, *, where: str) -> None:
        self._allow_none = rule.allow_none
        self._keys: dict[str, list[tuple[Any, Any]]] = {name: [] for name in rule.algorithms}
        for name in dict.fromkeys(rule.key_files):
            self._load(name, where=where)
        for algorithm, loaded in self._keys.items():
            if not loaded:
                raise SettingsError(f"{where}: no file of `key_files` has a key for {algorithm}.")
        if not self._keys and not rule.allow_none:
            raise SettingsError(
                f"{where}: the token rule has no `algorithms` and no `key_files`.",
                hint="Set both, or accept unsigned tokens, which anybody can write, with"
                " `allow_none`.",
            )
        self._verify_cached = lru_cache(_CACHED_SIGNATURES_MAX)(self._verify)

    def has_signed(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Return True if one of the keys made the signature with an accepted algorithm."""
        if algorithm == "none":
            return self._allow_none and not signature
        if algorithm not in self._keys:
            return False
        cacheable = len(signed) + len(signature) <= _CACHED_TOKEN_BYTES_MAX
        try:
            (self._verify_cached if cacheable else self._verify)(algorithm, signed, signature)
        except _InvalidSignatureError:
            return False
        return True

    def _verify(self, algorithm: str, signed: bytes, signature: bytes) -> None:
        for verifier, key in self._keys[algorithm]:
            if verifier.verify(signed, key, signature):
                return
        # Raise instead of returning False, because lru_cache does not cache exceptions.
        raise _InvalidSignatureError

    def _load(self, name: str, *, where: str) -> None:
        try:
            text = Path(name).read_bytes()
        except OSError as error:
            raise SettingsError(f"{where}: key file {name}: {error.strerror}.") from error
        fitting = [algorithm for algorithm in self._keys if self._add(algorithm, text, name)]
        if not fitting:
            accepted = ", ".join(self._keys) or "any algorithm"
            raise SettingsError(
                f"{where}: key file {name} has no key for {accepted}.",
                hint="Use PEM for RS, PS and ES (ES256: P-256, ES384: P-384, ES512: P-521). For HS"
                " the file is the secret, byte for byte.",
            )

    def _add(self, algorithm: str, text: bytes, name: str) -> bool:
        """Add a key to the keys of an algorithm. Return False if it does not fit the algorithm.

        `text` is the content of the key file `name`.
        """
        verifier = jwt.get_algorithm_by_name(algorithm)
        try:
            key = verifier.prepare_key(_key_or_certificate(text))
        except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError):
            return False
        if weakness := verifier.check_key_length(key):
            _log.warning("weak key loaded", file=name, algorithm=algorithm, reason=weakness)
        self._keys[algorithm].append((verifier, getattr(key, "public_key", lambda: key)()))
        return True


class _InvalidSignatureError(Exception):
    """No key of the rule verifies the signature."""


def _key_settings(rule: TokenRule) -> tuple[Any, ...]:
    """Return the settings of a token rule that determine its keys.

    They have no template fields. Therefore a rule that was filled for a channel finds the keys that
    were loaded for the rule.
    """
    return rule.algorithms, rule.key_files, rule.allow_none


def _key_or_certificate(text: bytes) -> Any:
    """Return the public key if the text is a certificate. Return any other text unchanged."""
    if b"-----BEGIN CERTIFICATE-----" in text:
        return load_pem_x509_certificate(text).public_key()
    return text


def _check_times(claims: dict[str, Any], rule: TokenRule, now: float) -> None:
    skew = rule.clock_skew_seconds
    limits = {"exp": now - skew, "nbf": now + skew, "iat": now + skew}
    for name, limit in limits.items():
        if name not in claims:
            continue
        time = claims[name]
        if isinstance(time, bool) or not isinstance(time, int | float):
            raise UnauthenticatedError(f"The token's {name} is not a number of seconds.")
        if name == "exp" and time <= limit:
            raise UnauthenticatedError("The token has expired.")
        if name != "exp" and time > limit:
            raise UnauthenticatedError("The token is not valid yet.")


def _check_claims(claims: dict[str, Any], rule: TokenRule) -> None:
    if claims.get("iss") not in rule.issuers:
        raise UnauthenticatedError("The token's issuer is not accepted.")
    if rule.audiences:
        claim = claims.get("aud")
        audiences = claim if isinstance(claim, list) else [claim]
        if not any(audience in rule.audiences for audience in audiences):
            raise UnauthenticatedError("The token's audience is not accepted.")
    for name, accepted in rule.claims.items():
        if claim_text(claims.get(name)) not in accepted:
            raise UnauthenticatedError(f"The token's claim {name!r} is not accepted.")


# -- Revocation ------------------------------------------------------------------------------


class RevocationList:
    """The revoked token ids, shared by all nodes and by DSPS servers on the same store.

    The only state is a cache of answers. A revocation takes effect immediately in this process and
    within two seconds in other processes. An entry of the list expires with its token.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        #: Key of a token -> answer of the store (True: revoked), and time of the query.
        self._cache: dict[str, tuple[bool, float]] = {}

    async def revoke(self, token_id: str, expires_s: int) -> None:
        """Revoke a token. Do nothing if it has expired. The revocation expires with the token."""
        if not token_id:
            raise InvalidInputError(
                "The token has no id. Only tokens with a `jti` can be revoked.", field="jti"
            )
        if abs(expires_s) > EXPIRY_MAX:
            raise InvalidInputError(
                f"exp must be seconds since the epoch, at most {EXPIRY_MAX}.", field="exp"
            )
        if expires_s * 1000 <= self._clock.now_ms():
            return
        key = keys.token_revocation(token_id)
        # Convert test time to real time, because the store expires its keys by real time, which the
        # time machine does not move.
        store_expires_s = expires_s - self._clock.shift_ms // 1000
        await self._store.run(_REVOKE, [key], [expires_s, store_expires_s])
        self._cache.pop(key, None)

    async def is_revoked(self, token_id: str) -> bool:
        """Return True if the token is revoked. The answer can be two seconds old."""
        key = keys.token_revocation(token_id)
        # Read the time before the call, because the token can be revoked during the call.
        now = self._clock.uptime_s()
        cached = self._cache.get(key)
        if cached is not None and now - cached[1] <= _REVOCATION_AGE_S_MAX:
            return cached[0]
        revoked = bool(await self._store.call("EXISTS", key, repeatable=True))
        if len(self._cache) >= _CACHED_REVOCATIONS_MAX:
            self._cache.clear()
        self._cache[key] = (revoked, now)
        return revoked
