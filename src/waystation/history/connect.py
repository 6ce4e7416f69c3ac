"""Sessions of Spark Connect: a server does the work, and there is no Java here."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from waystation.errors import HistoryMissingError, SparkStartError

#: Where a URL names none.
_PORT = 15002
_SECONDS_MAX = 10.0
#: What PySpark needs for it, and does not bring by itself.
_NEEDED = ("grpc", "grpc_status", "google.rpc", "zstandard")


def connect_session(url: str) -> SparkSession:
    """A session of the server at a URL (`sc://host:port`).

    HistoryMissingError without what that needs, SparkStartError if nobody is there.
    """
    if missing := [name for name in _NEEDED if not _is_there(name)]:
        raise HistoryMissingError(
            f"Spark Connect needs {' and '.join(missing)}.",
            hint="pip install 'waystation[connect]'",
        )
    place = urlsplit(url)
    try:
        # PySpark itself would try for ten minutes to reach somebody who is not there.
        socket.create_connection((place.hostname, place.port or _PORT), _SECONDS_MAX).close()
        return SparkSession.builder.remote(url).getOrCreate()
    except (OSError, ValueError, PySparkException) as error:
        raise SparkStartError(
            f"There is no server of Spark Connect at {place.netloc}: {error}.",
            hint="Start one (sbin/start-connect-server.sh of Spark), or name another master.",
        ) from error


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
