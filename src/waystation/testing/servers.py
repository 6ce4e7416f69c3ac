"""Private store servers for tests: each in a temporary folder that goes away with it.

With WAYSTATION_TEST_STORE=cluster in the environment each is a cluster of one node, which refuses
scripts that leave their slot; so are the stores of stations whose settings do not say otherwise.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waystation.errors import SettingsError
from waystation.store.embedded.server import EmbeddedServer
from waystation.types.message import Durability


def on_cluster() -> bool:
    """Whether tests were asked to run on clusters."""
    kind = os.environ.get("WAYSTATION_TEST_STORE", "server")
    if kind not in ("server", "cluster"):
        raise SettingsError(f"WAYSTATION_TEST_STORE is 'server' or 'cluster', not {kind!r}.")
    return kind == "cluster"


@contextmanager
def private_server(
    *, durability: Durability = "memory", cluster: bool | None = None
) -> Iterator[EmbeddedServer]:
    """Runs an embedded server that nobody else uses; as a cluster, if that is said or asked for."""
    cluster = on_cluster() if cluster is None else cluster
    folder = Path(tempfile.mkdtemp(prefix="waystation-test-"))
    try:
        with EmbeddedServer(folder / "store", durability=durability, cluster=cluster) as server:
            yield server
    finally:
        # The supervisor stops the server after the handle is closed, and leaves only its log.
        shutil.rmtree(folder, ignore_errors=True)
