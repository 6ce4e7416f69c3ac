"""Tokens that open channels, and all the ones that must not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from waystation.channel_settings import ChannelRule, TokenRule
from waystation.channels.tokens import TokenVerifier, token_id
from waystation.errors import SettingsError, UnauthenticatedError

SECRET = b"a shared secret that is long enough for 512 bits: 0123456789abcdef"
NOW = 1_800_000_000


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    return str(file)


def public_file(key: Any, file: Path) -> str:
    file.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return str(file)


def accepts(rule: TokenRule, token: str, *, now: float = NOW) -> bool:
    verifier = TokenVerifier([ChannelRule(pattern=".+", tokens=rule)])
    try:
        verifier.verify(token, [rule], now_ms=round(now * 1000))
    except UnauthenticatedError:
        return False
    return True


def shared(secret_file: str, **options: Any) -> TokenRule:
    defaults = {"algorithms": ("HS256",), "issuers": ("me",), "key_files": (secret_file,)}
    return TokenRule(**{**defaults, **options})


def signed(claims: dict[str, Any], *, key: Any = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode({"iss": "me", **claims}, key, algorithm=algorithm)


@pytest.mark.parametrize(
    ("claims", "accepted"),
    [
        ({}, True),
        ({"iss": "other"}, False),
        ({"exp": NOW + 1}, True),
        ({"exp": NOW - 299}, True),
        ({"exp": NOW - 301}, False),
        ({"nbf": NOW + 299}, True),
        ({"nbf": NOW + 301}, False),
        ({"iat": NOW + 301}, False),
        ({"exp": True}, False),
    ],
    ids=str,
)
def test_times_have_the_skew_and_the_issuer_must_fit(
    secret_file: str, claims: dict[str, Any], accepted: bool
) -> None:
    assert accepts(shared(secret_file), signed(claims)) is accepted


@pytest.mark.parametrize(
    ("value", "accepted"),
    [("7", True), (7, True), (7.0, True), (7.5, False), (True, False), (None, False), ([7], False)],
    ids=str,
)
def test_a_claim_is_compared_as_text(secret_file: str, value: object, accepted: bool) -> None:
    rule = shared(secret_file, claims={"shop": ("7", "8")})

    assert accepts(rule, signed({"shop": value})) is accepted


def test_a_truth_value_is_compared_in_lower_case(secret_file: str) -> None:
    assert accepts(shared(secret_file, claims={"staff": ("true",)}), signed({"staff": True}))


@pytest.mark.parametrize(("audience", "accepted"), [("a", True), (["x", "b"], True), ("x", False)])
def test_any_audience_may_match(secret_file: str, audience: object, accepted: bool) -> None:
    rule = shared(secret_file, audiences=("a", "b"))

    assert accepts(rule, signed({"aud": audience})) is accepted


def test_several_keys_are_tried(secret_file: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"another secret, also long enough to be used for signing")

    assert accepts(shared(secret_file, key_files=(str(other), secret_file)), signed({}))
    assert not accepts(shared(secret_file, key_files=(str(other),)), signed({}))


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS384", "ES256"])
def test_public_keys(tmp_path: Path, algorithm: str) -> None:
    private: Any
    if algorithm.startswith("ES"):
        private = ec.generate_private_key(ec.SECP256R1())
    else:
        private = rsa.generate_private_key(65537, 2048)
    rule = TokenRule(
        algorithms=(algorithm,),
        issuers=("me",),
        key_files=(public_file(private, tmp_path / "public.pem"),),
    )

    assert accepts(rule, signed({}, key=private, algorithm=algorithm))


def test_a_public_key_never_passes_for_a_shared_secret(tmp_path: Path) -> None:
    private = rsa.generate_private_key(65537, 2048)
    pem = public_file(private, tmp_path / "public.pem")
    rule = TokenRule(algorithms=("RS256", "HS256"), issuers=("me",), key_files=(pem,))
    header = jwt.utils.base64url_encode(b'{"alg":"HS256","typ":"JWT"}')
    payload = jwt.utils.base64url_encode(b'{"iss":"me"}')
    import hashlib
    import hmac

    signature = hmac.digest(Path(pem).read_bytes(), header + b"." + payload, hashlib.sha256)
    forged = b".".join((header, payload, jwt.utils.base64url_encode(signature))).decode()

    assert not accepts(rule, forged)


def test_a_token_without_a_signature_passes_only_where_that_is_wanted(secret_file: str) -> None:
    unsigned = signed({}, key=None, algorithm="none")

    assert not accepts(shared(secret_file), unsigned)
    assert accepts(shared(secret_file, allow_none=True), unsigned)


def test_an_algorithm_outside_the_rule_is_refused(secret_file: str) -> None:
    assert not accepts(shared(secret_file), signed({}, algorithm="HS512"))


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "ä.ö.ü", "." * 5, "e30.e30."])
def test_garbage_is_refused(secret_file: str, token: str) -> None:
    assert not accepts(shared(secret_file), token)


def test_every_matching_rule_must_accept(secret_file: str) -> None:
    first, second = shared(secret_file), shared(secret_file, claims={"shop": ("7",)})
    verifier = TokenVerifier([ChannelRule(pattern=".+", tokens=each) for each in (first, second)])

    verifier.verify(signed({"shop": "7"}), [first, second], now_ms=NOW * 1000)
    with pytest.raises(UnauthenticatedError):
        verifier.verify(signed({}), [first, second], now_ms=NOW * 1000)


@pytest.mark.parametrize(
    "options",
    [
        {"algorithms": ("none",)},
        {"algorithms": ("MD5",)},
        {"key_files": ()},
        {"key_files": ("/nowhere",)},
    ],
    ids=str,
)
def test_a_rule_that_cannot_work_is_refused_at_start(
    secret_file: str, options: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match=r"channels\.rules"):
        TokenVerifier([ChannelRule(pattern=".+", tokens=shared(secret_file, **options))])


def test_the_id_for_revocation_is_read_without_trusting_the_token() -> None:
    assert token_id(signed({"jti": "t-1", "exp": int(time.time()) - 9})) == "t-1"
    assert token_id(signed({"jti": 7})) == ""
    assert token_id("garbage") == ""
