"""Store URLs, parsed once. Errors and logs never show the password."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field, replace
from typing import Any

from redis.asyncio.connection import SSLConnection, parse_url

from waystation.errors import SettingsError
from waystation.store.slots import SlotMap


@dataclass(frozen=True, kw_only=True)
class Address:
    """A parsed store URL."""

    host: str = "localhost"
    port: int = 6379
    #: Path of a Unix socket; if set, host and port are unused.
    path: str = ""
    database: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    #: Slot map of the cluster; None: the address is that of a single server.
    cluster: SlotMap | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"

    def clustered(self, *more: Address) -> Address:
        """Return this address as the entry to a cluster; `more` are other nodes of it."""
        return replace(self, cluster=SlotMap((self, *more)))

    async def open(self, protocol: asyncio.Protocol) -> None:
        """Open a connection for `protocol`. Raise OSError if the server cannot be reached."""
        loop = asyncio.get_running_loop()
        if self.path:
            await loop.create_unix_connection(lambda: protocol, self.path)
        else:
            await loop.create_connection(lambda: protocol, self.host, self.port, ssl=self.tls)

    def handshake(self) -> list[tuple[str, ...]]:
        """Return the first commands of a new connection: authentication, database, client name."""
        commands: list[tuple[str, ...]] = []
        if self.password:
            name = (self.username,) if self.username else ()
            commands.append(("AUTH", *name, self.password))
        if self.database:
            commands.append(("SELECT", str(self.database)))
        commands.append(("CLIENT", "SETNAME", "waystation"))
        return commands


def parse_address(url: str) -> Address:
    """Parse a redis://, rediss:// or unix:// URL by the rules of redis-py.

    `redis+cluster://` and `rediss+cluster://` URLs name one or more nodes of a cluster, separated
    by commas. Raise SettingsError if the URL is invalid.
    """
    scheme, cluster, rest = url.partition("+cluster://")
    if not cluster:
        return _parse(url)
    user, at, places = rest.rpartition("@")
    places, mark, query = places.partition("?")
    hosts, slash, database = places.partition("/")
    nodes = [_parse(f"{scheme}://{user}{at}{host}{mark}{query}") for host in hosts.split(",")]
    if scheme not in ("redis", "rediss") or not all(hosts.split(",")):
        raise _invalid_url()
    if slash and database not in ("", "0"):
        raise SettingsError(
            f"The store URL selects database {database!r}, but a cluster has only database 0.",
            hint="Remove the database number from the store URL.",
        )
    return nodes[0].clustered(*nodes[1:])


def _parse(url: str) -> Address:
    try:
        parts: dict[str, Any] = dict(parse_url(url))
    except ValueError as error:
        raise _invalid_url() from error
    return Address(
        host=parts.get("host", "localhost"),
        port=int(parts.get("port", 6379)),
        path=parts.get("path", ""),
        database=int(parts.get("db", 0)),
        username=parts.get("username") or "",
        password=parts.get("password") or "",
        tls=_tls(parts) if parts.get("connection_class") is SSLConnection else None,
    )


def _invalid_url() -> SettingsError:
    return SettingsError(
        "The store URL is invalid.",
        hint="Use redis://[user:password@]host[:port][/db], rediss://…, unix:///path, or "
        "redis+cluster://host:port,host:port for a cluster.",
    )


def _tls(parts: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=parts.get("ssl_ca_certs"))
    if parts.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if parts.get("ssl_certfile"):
        context.load_cert_chain(parts["ssl_certfile"], parts.get("ssl_keyfile"))
    return context
