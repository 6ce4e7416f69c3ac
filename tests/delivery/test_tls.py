"""TLS to a pinned address: the name goes into SNI, and the certificate must be for that name."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from waystation.delivery.addresses import AddressGuard
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.resolver import Resolver
from waystation.delivery.sender import Sender

NAME = "hooks.example.com"


def certificate(folder: Path) -> Path:
    """A certificate for NAME, signed by itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    file.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file


@asynccontextmanager
async def tls_endpoint(file: Path, asked: list[str | None]) -> AsyncIterator[int]:
    """Answers 204; notes the names that clients asked for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    context.sni_callback = lambda _, name, __: asked.append(name)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert f"host: {NAME}".encode() in head.lower()
        writer.write(b"HTTP/1.1 204 X\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def sent_to(port: int, host: str) -> Outcome:
    guard = AddressGuard(loopback=True)
    sender = Sender(guard, resolver=Resolver(guard, lookup=lambda _: ["127.0.0.1"]))
    try:
        return await sender.send(Outgoing(url=f"https://{host}:{port}/hook"))
    finally:
        await sender.close()


async def test_the_name_is_kept_in_sni_and_host_while_the_address_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-02"""
    file, asked = certificate(tmp_path), list[str | None]()
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with tls_endpoint(file, asked) as port:
        outcome = await sent_to(port, NAME)

    assert (outcome.status, outcome.detail) == (204, "")
    assert asked == [NAME]


async def test_a_certificate_for_another_name_or_of_a_stranger_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, asked = certificate(tmp_path), list[str | None]()
    async with tls_endpoint(file, asked) as port:
        stranger = await sent_to(port, NAME)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        other = await sent_to(port, "other.example.com")

    for outcome in (stranger, other):
        assert outcome.failure is Failure.CONNECTION
        assert outcome.detail == "the endpoint's certificate could not be verified"
