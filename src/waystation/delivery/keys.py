"""Names of the outbox queues of channels.

A queue is a key prefix in the slot of its channel, so that the script that publishes a message
also adds it to the queue.
"""

from __future__ import annotations

import re

from waystation.store.keys import DEFAULT_PROJECT

_CHANNEL_LANE = re.compile(r"c\.\{(?:([^.{}]+)\.)?([^.{}]+)\}\.out\.[^.{}]+")


def channel_tag(project: str, channel: str) -> str:
    """Return the hash tag of a channel, with its braces.

    In project `default` the tag is the name, as in DSPS. Other projects put their name and a dot
    before it, which is unambiguous because names contain no dot.
    """
    return f"{{{channel}}}" if project == DEFAULT_PROJECT else f"{{{project}.{channel}}}"


def outbox_lane(tag: str, endpoint: str) -> str:
    """Return the key prefix of the outbox queue from a channel to an endpoint."""
    return f"c.{tag}.out.{endpoint}"


def channel_of_lane(lane: str) -> tuple[str, str] | None:
    """Return project and channel of an outbox queue; None if no channel owns it."""
    match = _CHANNEL_LANE.fullmatch(lane)
    return (match.group(1) or DEFAULT_PROJECT, match.group(2)) if match else None
