"""The keys that may have signed a token, and whether one of them did.

Files are read and taken apart at start. A key serves the algorithms of its own kind alone, so a
public key can never pass for a shared secret, whatever a token's header says; nor is a key ever
taken from the token itself (`jwk`, `jku`, `x5u`, `kid` are not even looked at).

A signature that was good is remembered: it stays good for ever, and whether the token is expired,
revoked, or for another channel is asked anew each time. Bad ones are not, so that strangers cannot
push out what is known.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509 import load_pem_x509_certificate

from waystation.config import TokenRule
from waystation.errors import SettingsError
from waystation.runtime.logging import logger

_log = logger("tokens")

#: Good signatures that are remembered, and how long a token may be for that: 64 MiB at most.
_REMEMBERED_MAX = 16_384
_REMEMBERED_BYTES_MAX = 4096


class KeyRing:
    """The keys of one rule."""

    def __init__(self, rule: TokenRule, *, where: str) -> None:
        self._allow_none = rule.allow_none
        self._keys: dict[str, list[tuple[Any, Any]]] = {name: [] for name in rule.algorithms}
        for name in dict.fromkeys(rule.key_files):
            self._add(name, where=where)
        for algorithm, keys in self._keys.items():
            if not keys:
                raise SettingsError(f"{where}: no key file is fit for {algorithm}.")
        if not self._keys and not rule.allow_none:
            raise SettingsError(
                f"{where}: tokens need algorithms and key_files.",
                hint="`allow_none` accepts tokens without a signature: anybody can write those.",
            )
        self._check_once = lru_cache(_REMEMBERED_MAX)(self._check)

    def has_signed(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether one of the keys made the signature, with an algorithm that the rule accepts."""
        if algorithm == "none":
            return self._allow_none and not signature
        if algorithm not in self._keys:
            return False
        known = len(signed) + len(signature) <= _REMEMBERED_BYTES_MAX
        try:
            (self._check_once if known else self._check)(algorithm, signed, signature)
        except _ForgedError:
            return False
        return True

    def _check(self, algorithm: str, signed: bytes, signature: bytes) -> None:
        for verifier, key in self._keys[algorithm]:
            if verifier.verify(signed, key, signature):
                return
        # An error and not False: what is raised is not remembered.
        raise _ForgedError

    def _add(self, name: str, *, where: str) -> None:
        try:
            text = Path(name).read_bytes()
        except OSError as error:
            raise SettingsError(f"{where}: key file {name}: {error.strerror}.") from error
        fits = [algorithm for algorithm in self._keys if self._fit(algorithm, text, name)]
        if not fits:
            wanted = ", ".join(self._keys) or "any algorithm"
            raise SettingsError(
                f"{where}: key file {name} is no key for {wanted}.",
                hint="PEM for RS, PS and ES (ES256 wants P-256, ES384 P-384, ES512 P-521); for HS "
                "the secret itself, byte for byte.",
            )

    def _fit(self, algorithm: str, text: bytes, name: str) -> bool:
        verifier = jwt.get_algorithm_by_name(algorithm)
        try:
            key = verifier.prepare_key(_public_key(text))
        except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError):
            return False
        if weakness := verifier.check_key_length(key):
            _log.warning("a weak key opens channels", file=name, algorithm=algorithm, why=weakness)
        self._keys[algorithm].append((verifier, getattr(key, "public_key", lambda: key)()))
        return True


def _public_key(text: bytes) -> Any:
    """The key of a certificate, which tokens' issuers also hand out; anything else as it is."""
    if b"-----BEGIN CERTIFICATE-----" in text:
        return load_pem_x509_certificate(text).public_key()
    return text


class _ForgedError(Exception):
    """No key made the signature."""
