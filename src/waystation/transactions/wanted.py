"""What a client wants to hear of its transaction, and where."""

from __future__ import annotations

import msgspec


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Receivers of events; the end is told to all of them."""

    #: Whose channel and topic are meant; empty until that is known.
    project: str = ""
    #: A URL.
    webhook: str = ""
    channel: str = ""
    topic: str = ""
    #: Progress reports, too.
    progress: bool = False
    #: Changes of state, too: it sleeps, waits, runs again.
    status: bool = False
    #: A long poll that was told the end takes a webhook back that was not sent yet.
    poll_cancels: bool = False
