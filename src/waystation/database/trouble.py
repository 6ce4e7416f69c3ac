"""What is wrong when a database does not do what it was asked, whatever database it is."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from waystation.errors import WaystationError


class Trouble(Enum):
    """None of these says anything about what was asked; it may be asked again."""

    #: Down, slow, locked, closed: it may work later.
    AWAY = auto()
    #: No room on its disk.
    FULL = auto()
    #: Its schema is newer than this release.
    NEWER = auto()


#: Makes the error of the part that uses the database, from the trouble and a sentence.
Fail = Callable[[Trouble, str], WaystationError]
