"""The folder of what a demo leaves behind; the next demo may replace it, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

from waystation.errors import SettingsError

#: Says that a demo has made the folder.
_MARK = ".waystation-demo"


def make_room(folder: Path) -> None:
    """Makes the folder, without what an earlier demo left; SettingsError if it is somebody else's.

    The mark comes first and goes last: a demo that dies anywhere leaves what the next one takes.
    """
    mark = folder / _MARK
    if folder.exists() and not mark.exists() and not _is_empty(folder):
        raise SettingsError(
            f"{folder} is there, and no demo has made it.", hint="Name another one with --keep."
        )
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()
    shutil.rmtree(folder / "data", ignore_errors=True)
    (folder / "report.html").unlink(missing_ok=True)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
