"""The wire format: commands to bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hiredis

#: Packs one command. The library's own stub admits only tuples of one element.
pack: Callable[[tuple[Any, ...]], bytes] = cast(Any, hiredis.pack_command)
