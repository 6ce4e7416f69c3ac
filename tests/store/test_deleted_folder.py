"""The embedded server does not outlive its folder: a deleted one leaves no process behind."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from waystation.store.embedded import EmbeddedServer


def test_a_server_ends_when_its_folder_is_deleted_right_after_the_last_user_left(
    tmp_path: Path,
) -> None:
    # Given a running server whose only user leaves
    server = EmbeddedServer(tmp_path / "store")
    server.start()
    process, socket_path = server.process_id, server.address.path
    server.close()

    # When its folder is gone before the keeper has looked
    shutil.rmtree(tmp_path / "store", ignore_errors=True)

    # Then neither the server nor its socket stays
    until = time.monotonic() + 10
    while Path(f"/proc/{process}").exists() or os.path.exists(socket_path):
        assert time.monotonic() < until, f"the server {process} outlived its folder"
        time.sleep(0.02)
