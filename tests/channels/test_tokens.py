"""Tokens of channels: claims and times, keys and algorithms, settings, caches, revocation ids."""

from __future__ import annotations

import base64
import datetime
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from waystation.channels import tokens as tokens_module
from waystation.channels.tokens import TokenVerifier, claim_text, read_token
from waystation.config import Algorithm, ChannelRule, TokenRule
from waystation.errors import SettingsError, UnauthenticatedError

SECRET = b"a shared secret that is long enough for 512 bits: 0123456789abcdef"
NOW = 1_800_000_000
RSA = rsa.generate_private_key(65537, 2048)
CURVES: dict[str, ec.EllipticCurve] = {
    "ES256": ec.SECP256R1(),
    "ES384": ec.SECP384R1(),
    "ES512": ec.SECP521R1(),
}
EC = {name: ec.generate_private_key(curve) for name, curve in CURVES.items()}
ALGORITHMS: tuple[str, ...] = Algorithm.__args__  # type: ignore[attr-defined]


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    return str(file)


def public_pem(key: Any) -> bytes:
    pem: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem


def public_file(key: Any, file: Path) -> str:
    file.write_bytes(public_pem(key))
    return str(file)


def verifier_of(*rules: TokenRule) -> TokenVerifier:
    return TokenVerifier([ChannelRule(pattern=".+", tokens=rule) for rule in rules])


def accepts(rule: TokenRule, token: str, *, now: float = NOW) -> bool:
    read = read_token(token)
    if read is None:
        return False
    try:
        verifier_of(rule).verify(read, [rule], now_ms=round(now * 1000))
    except UnauthenticatedError:
        return False
    return True


def shared(secret_file: str, **options: Any) -> TokenRule:
    defaults = {"algorithms": ("HS256",), "issuers": ("me",), "key_files": (secret_file,)}
    return TokenRule(**{**defaults, **options})


def signed(claims: dict[str, Any], *, key: Any = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode({"iss": "me", **claims}, key, algorithm=algorithm)


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(
    header: dict[str, Any] | bytes,
    claims: dict[str, Any] | bytes,
    key: bytes,
    digest: str = "sha256",
) -> str:
    """Return a token that is signed with HMAC, with any header."""
    parts = [
        each if isinstance(each, bytes) else json.dumps(each).encode() for each in (header, claims)
    ]
    text = ".".join(map(encoded, parts))
    return f"{text}.{encoded(hmac.digest(key, text.encode(), digest))}"


# -- Times and claims ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "accepted"),
    [
        ({}, True),
        ({"iss": "other"}, False),
        ({"iss": None}, False),
        ({"iss": ["me"]}, False),
        ({"exp": NOW + 1}, True),
        ({"exp": NOW - 299}, True),
        ({"exp": NOW - 300}, False),
        ({"exp": NOW - 299.5}, True),
        ({"nbf": NOW + 300}, True),
        ({"nbf": NOW + 301}, False),
        ({"iat": NOW + 300}, True),
        ({"iat": NOW + 301}, False),
        ({"exp": True}, False),
        ({"exp": str(NOW + 1)}, False),
        ({"exp": None}, False),
        ({"exp": 10**400}, True),
        ({"nbf": 10**400}, False),
        ({"nbf": -(10**400)}, True),
    ],
    ids=lambda value: str(value)[:40],
)
def test_token_times_allow_skew_and_issuer_must_match(
    secret_file: str, claims: dict[str, Any], accepted: bool
) -> None:
    token = forged({"alg": "HS256"}, {"iss": "me", **claims}, SECRET)

    assert accepts(shared(secret_file), token) is accepted


def test_token_without_issuer_is_rejected(secret_file: str) -> None:
    assert not accepts(shared(secret_file), jwt.encode({"sub": "x"}, SECRET, algorithm="HS256"))


def test_token_skew_is_that_of_rule(secret_file: str) -> None:
    rule = shared(secret_file, clock_skew_seconds=0)

    assert accepts(rule, signed({"exp": NOW + 1}))
    assert not accepts(rule, signed({"exp": NOW}))


@pytest.mark.parametrize(
    ("value", "accepted"),
    [("7", True), (7, True), (7.0, True), (7.5, False), (True, False), (None, False), ([7], False)],
    ids=str,
)
def test_token_claim_is_compared_as_text(secret_file: str, value: object, accepted: bool) -> None:
    rule = shared(secret_file, claims={"shop": ("7", "8")})

    assert accepts(rule, signed({"shop": value})) is accepted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-0.5, "-0.5"),
        (1e-7, "0.0000001"),
        (1e21, "1000000000000000000000"),
        (12345678901234567890, "12345678901234567890"),
        (10**400, None),
        ({}, None),
        (None, None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_token_claims_that_are_no_text_are_compared_as_json(
    value: object, text: str | None
) -> None:
    assert claim_text(value) == text


@pytest.mark.parametrize(
    ("audience", "accepted"),
    [("a", True), (["x", "b"], True), ("x", False), ([], False), (None, False), ({"a": 1}, False)],
    ids=str,
)
def test_token_with_one_accepted_audience_passes(
    secret_file: str, audience: object, accepted: bool
) -> None:
    rule = shared(secret_file, audiences=("a", "b"))

    assert accepts(rule, signed({"aud": audience})) is accepted
    assert accepts(shared(secret_file), signed({"aud": audience})), "where none is asked for"


def test_token_must_satisfy_every_rule(secret_file: str) -> None:
    first, second = shared(secret_file), shared(secret_file, claims={"shop": ("7",)})
    verifier = verifier_of(first, second)
    good, bad = read_token(signed({"shop": "7"})), read_token(signed({}))
    assert good
    assert bad

    verifier.verify(good, [first, second], now_ms=NOW * 1000)
    with pytest.raises(UnauthenticatedError):
        verifier.verify(bad, [first, second], now_ms=NOW * 1000)


# -- Keys and algorithms ---------------------------------------------------------------------


def key_for(algorithm: str) -> Any:
    return SECRET if algorithm.startswith("HS") else EC.get(algorithm, RSA)


def rule_for(algorithm: str, folder: Path) -> TokenRule:
    file = folder / algorithm
    key = key_for(algorithm)
    file.write_bytes(key if isinstance(key, bytes) else public_pem(key))
    return TokenRule(algorithms=(algorithm,), issuers=("me",), key_files=(str(file),))  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_token_algorithm_verifies_own_tokens_only(tmp_path: Path, algorithm: str) -> None:
    rule = rule_for(algorithm, tmp_path)

    for other in ALGORITHMS:
        token = signed({}, key=key_for(other), algorithm=other)
        assert accepts(rule, token) is (other == algorithm), other


def test_token_signed_by_any_key_passes(secret_file: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"another secret, also long enough to be used for signing")

    assert accepts(shared(secret_file, key_files=(str(other), secret_file)), signed({}))
    assert not accepts(shared(secret_file, key_files=(str(other),)), signed({}))


def test_rule_with_keys_of_several_kinds_verifies_all_their_tokens(
    secret_file: str, tmp_path: Path
) -> None:
    rule = shared(
        secret_file,
        algorithms=("HS256", "RS256", "ES384"),
        key_files=(
            public_file(EC["ES384"], tmp_path / "ec"),
            secret_file,
            public_file(RSA, tmp_path / "rsa"),
        ),
    )

    for algorithm in rule.algorithms:
        assert accepts(rule, signed({}, key=key_for(algorithm), algorithm=algorithm))


def test_token_key_can_be_certificate(tmp_path: Path) -> None:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(RSA.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(RSA, hashes.SHA256())
    )
    file = tmp_path / "certificate.pem"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    rule = TokenRule(algorithms=("RS256",), issuers=("me",), key_files=(str(file),))

    assert accepts(rule, signed({}, key=RSA, algorithm="RS256"))


@pytest.mark.parametrize("kind", ["RS256", "ES256"])
def test_token_signed_with_public_key_as_secret_is_rejected(
    secret_file: str, tmp_path: Path, kind: str
) -> None:
    """Reject a token that names HS256 and uses the public key of the rule as HMAC secret."""
    pem = public_file(key_for(kind), tmp_path / "public.pem")
    rule = shared(secret_file, algorithms=(kind, "HS256"), key_files=(pem, secret_file))

    for text in (Path(pem).read_bytes(), Path(pem).read_bytes().strip()):
        assert not accepts(rule, forged({"alg": "HS256"}, {"iss": "me"}, text))
    with pytest.raises(SettingsError, match="has a key for HS256"):
        verifier_of(shared(pem, algorithms=(kind, "HS256")))


@pytest.mark.parametrize("secret", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("algorithm", [each for each in ALGORITHMS if not each.startswith("HS")])
def test_rule_without_shared_secret_rejects_token_signed_with_public_key(
    tmp_path: Path, algorithm: str, secret: str
) -> None:
    """Reject HMAC tokens if the rule has no HS algorithm, for each form of its public key."""
    rule, public = rule_for(algorithm, tmp_path), key_for(algorithm).public_key()
    encoding, form = serialization.Encoding, serialization.PublicFormat.SubjectPublicKeyInfo
    pem, der = (public.public_bytes(each, form) for each in (encoding.PEM, encoding.DER))
    for text in (pem, pem.strip(), pem.replace(b"\n", b"\r\n"), der):
        token = forged({"alg": secret}, {"iss": "me"}, text, secret.replace("HS", "sha"))
        assert not accepts(rule, token)
        lying = forged({"alg": algorithm}, {"iss": "me"}, text, secret.replace("HS", "sha"))
        assert not accepts(rule, lying)


def test_token_without_signature_passes_with_allow_none_only(secret_file: str) -> None:
    unsigned = signed({}, key=None, algorithm="none")

    assert not accepts(shared(secret_file), unsigned)
    assert accepts(shared(secret_file, allow_none=True), unsigned)
    assert accepts(TokenRule(issuers=("me",), allow_none=True), unsigned)
    # A token with algorithm `none` must have an empty signature.
    assert not accepts(shared(secret_file, allow_none=True), unsigned + "AAAA")


@pytest.mark.parametrize(
    "name", ["None", "NONE", "nOnE", "", "hs256", "HS256 ", None, 7, ["HS256"]]
)
def test_token_algorithm_name_must_match_exactly(secret_file: str, name: object) -> None:
    rule = shared(secret_file, allow_none=True)
    unsigned = forged({"alg": name}, {"iss": "me"}, b"").rpartition(".")[0] + "."

    assert not accepts(rule, unsigned)
    assert not accepts(rule, forged({"alg": name}, {"iss": "me"}, SECRET))


def test_token_without_algorithm_is_rejected(secret_file: str) -> None:
    assert not accepts(shared(secret_file, allow_none=True), forged({}, {"iss": "me"}, SECRET))


def test_token_key_in_header_is_ignored(secret_file: str) -> None:
    mine = b"a key of my own, which I bring along in my own token"
    jwk = {"kty": "oct", "k": encoded(mine)}
    for extra in (
        {"jwk": jwk},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "http://127.0.0.1:1/cert"},
        {"kid": "../../../dev/null"},
        {"kid": secret_file},
        {"x5c": [encoded(mine)]},
    ):
        header = {"alg": "HS256", **extra}
        assert not accepts(shared(secret_file), forged(header, {"iss": "me"}, mine)), extra
        assert not accepts(shared(secret_file), forged(header, {"iss": "me"}, b"")), extra
        assert accepts(shared(secret_file), forged(header, {"iss": "me"}, SECRET)), extra


@pytest.mark.parametrize("critical", [["exp"], ["b64"], [], "x", None])
def test_token_with_critical_extension_is_rejected(secret_file: str, critical: object) -> None:
    header = {"alg": "HS256", "crit": critical, "b64": False}

    assert not accepts(shared(secret_file), forged(header, {"iss": "me"}, SECRET))


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "a.b.c",
        "ä.ö.ü",
        "." * 5,
        "e30.e30.",
        forged(b"[]", {}, SECRET),
        forged({"alg": "HS256"}, b"7", SECRET),
        forged({"alg": "HS256"}, b"\xff", SECRET),
        forged({"alg": "HS256"}, b'{"iss":NaN}', SECRET),
        forged(b"[" * 20_000, b"[" * 20_000, SECRET),
        forged({"alg": "HS256"}, b'{"iss":"me","x":' + b"[" * 20_000, SECRET),
        f"{encoded(b'{}')}.A.AA",
    ],
    ids=lambda token: token[:20],
)
def test_token_that_is_malformed_is_rejected(secret_file: str, token: str) -> None:
    assert not accepts(shared(secret_file, allow_none=True), token)


def test_token_with_altered_text_is_rejected(secret_file: str) -> None:
    token = signed({})
    header, claims, signature = token.split(".")

    for other in (
        f"{token}=",
        f" {token}",
        f"{token}\n",
        f"{header}.{claims}.{signature[:4]}!{signature[4:]}",
        f"{header}.{claims}.{signature}.",
        f"{header}.{claims}",
    ):
        assert not accepts(shared(secret_file), other), other


# -- Errors at start -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"algorithms": ()}, "no key for any algorithm"),
        ({"algorithms": (), "key_files": ()}, "has no `algorithms`"),
        ({"key_files": ()}, "has a key for HS256"),
        ({"key_files": ("/nowhere",)}, "/nowhere: No such file"),
        ({"algorithms": ("RS256",)}, "no key for RS256"),
        ({"algorithms": ("HS256", "ES256")}, "has a key for ES256"),
    ],
    ids=str,
)
def test_rule_without_usable_keys_is_rejected_at_start(
    secret_file: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        verifier_of(shared(secret_file, **options))
    assert "channels.rules" in str(caught.value)
    assert SECRET.decode() not in str(caught.value)


def test_rule_with_unsuitable_key_is_rejected_at_start(tmp_path: Path) -> None:
    empty, junk = tmp_path / "empty", tmp_path / "junk"
    empty.write_bytes(b"")
    junk.write_bytes(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    wrong = public_file(EC["ES256"], tmp_path / "p256")
    for algorithm, file in (("ES384", wrong), ("HS256", empty), ("RS256", junk), ("HS256", junk)):
        rule = TokenRule(algorithms=(algorithm,), issuers=("me",), key_files=(str(file),))  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match=f"no key for {algorithm}"):
            verifier_of(rule)


def test_rule_with_weak_key_logs_warning_without_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weak = tmp_path / "weak"
    weak.write_bytes(b"hush")

    verifier_of(shared(str(weak)))

    (record,) = caplog.records
    told = f"{record.getMessage()} {vars(record)['fields']}"
    assert "weak key loaded" in told
    assert "hush" not in told


# -- Caches ----------------------------------------------------------------------------------


def test_verifier_with_known_token_checks_times_only(
    secret_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = shared(secret_file, clock_skew_seconds=10)
    verifier = verifier_of(rule)
    checks = counted(monkeypatch)
    token = read_token(signed({"exp": NOW}))
    assert token

    for _ in range(100):
        verifier.verify(token, [rule], now_ms=NOW * 1000)

    assert checks == [True]
    with pytest.raises(UnauthenticatedError, match="expired"):
        verifier.verify(token, [rule], now_ms=(NOW + 10) * 1000)


def test_verifier_with_part_of_known_token_rejects_it(
    secret_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = shared(secret_file)
    verifier = verifier_of(rule)
    good = signed({"sub": "a"})
    read = read_token(good)
    assert read
    verifier.verify(read, [rule], now_ms=NOW * 1000)
    header, claims, signature = good.split(".")
    other = signed({"sub": "b"}).split(".")[1]

    for text in (f"{header}.{other}.{signature}", f"{header}.{claims}.{encoded(b'x' * 32)}"):
        tampered = read_token(text)
        assert tampered
        with pytest.raises(UnauthenticatedError):
            verifier.verify(tampered, [rule], now_ms=NOW * 1000)


def test_verifier_caches_neither_invalid_nor_long_tokens(
    secret_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = shared(secret_file)
    verifier = verifier_of(rule)
    checks = counted(monkeypatch)
    bad = read_token(signed({}, key=b"some other secret that is long enough"))
    long = read_token(signed({"pad": "x" * 5000}))
    assert bad
    assert long

    for _ in range(3):
        with pytest.raises(UnauthenticatedError):
            verifier.verify(bad, [rule], now_ms=NOW * 1000)
        verifier.verify(long, [rule], now_ms=NOW * 1000)

    assert checks == [False, True] * 3


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which each signature check after this call appends its outcome."""
    outcomes: list[bool] = []
    original = jwt.algorithms.HMACAlgorithm.verify

    def verify(self: Any, *arguments: Any) -> bool:
        outcomes.append(original(self, *arguments))
        return outcomes[-1]

    monkeypatch.setattr(jwt.algorithms.HMACAlgorithm, "verify", verify)
    return outcomes


def test_verifier_with_known_token_rejects_it_for_other_rule(
    secret_file: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"another secret, also long enough to be used for signing")
    mine, theirs = shared(secret_file), shared(str(other))
    verifier = verifier_of(mine, theirs)
    token = read_token(signed({}))
    assert token

    verifier.verify(token, [mine], now_ms=NOW * 1000)
    with pytest.raises(UnauthenticatedError):
        verifier.verify(token, [theirs], now_ms=NOW * 1000)


# -- Token ids -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jti", "told"),
    [("t-1", "t-1"), (7, "7"), (None, ""), ([], ""), ("", ""), ("ü {}\n", "ü {}\n")],
)
def test_token_id_of_unverified_token_is_read(jti: object, told: str) -> None:
    token = read_token(forged({"alg": "HS256"}, {"jti": jti, "exp": int(time.time()) - 9}, b"x"))

    assert token is not None
    assert token.id == told


def test_token_id_with_lone_surrogate_is_rejected() -> None:
    assert read_token(forged({"alg": "HS256"}, b'{"jti":"\\ud800"}', b"x")) is None


def test_verifier_of_several_rules_returns_largest_skew(secret_file: str) -> None:
    assert verifier_of().skew_max == 0
    rules = [shared(secret_file, clock_skew_seconds=each) for each in (5, 60, 7)]
    assert verifier_of(*rules).skew_max == 60


def test_verifier_cache_uses_at_most_64_mib() -> None:
    cached = tokens_module._CACHED_SIGNATURES_MAX * tokens_module._CACHED_TOKEN_BYTES_MAX
    assert cached <= 64 * 1_048_576
