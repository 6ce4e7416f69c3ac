"""Private store servers for tests: each in a temporary folder that goes away with it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waystation.settings import Durability
from waystation.store.embedded import EmbeddedServer


@contextmanager
def private_server(*, durability: Durability = "memory") -> Iterator[EmbeddedServer]:
    """Runs an embedded server that nobody else uses."""
    folder = Path(tempfile.mkdtemp(prefix="waystation-test-"))
    try:
        with EmbeddedServer(folder / "store", durability=durability) as server:
            yield server
    finally:
        # The keeper stops the server a moment after us; what it leaves behind is only its log.
        shutil.rmtree(folder, ignore_errors=True)
