"""Names of a subscription's keys; what the keys hold is in the catalogue of all keys.

All keys of a shard share its tag, so that every transition is one script. A project and a name have
no dot, so no two shards share a tag.
"""

from __future__ import annotations

import msgspec

from waystation.logs import keys as log_names

#: The register of delivery nodes, node → last beat. Also the hint that placement may have changed.
DELIVERY = "waystation.{delivery}"


def reader(subscription: str) -> str:
    """The name under which a subscription holds what it needs of a topic's partitions."""
    return f"sub.{subscription}"


def record_log(project: str, subscription: str, generation: int) -> str:
    """The log of what happened to messages; each shard has its own partition of it."""
    return f"s.{project}.{subscription}.{generation}"


class Place(msgspec.Struct, frozen=True):
    """A shard of a generation of a subscription: whose keys."""

    project: str
    subscription: str
    generation: int
    shard: int

    @property
    def record_log(self) -> str:
        """The record log of its generation; `shard` is its partition."""
        return record_log(self.project, self.subscription, self.generation)

    @property
    def tag(self) -> str:
        """What all its keys begin with."""
        return f"{{{self.record_log}.{self.shard}}}:"

    @property
    def log(self) -> str:
        """The stream of its record log: the one key that its scripts are given."""
        return log_names.entries(self.record_log, self.shard)

    @property
    def lease(self) -> str:
        """Who owns it."""
        return self.tag + "lease"

    @property
    def due_hint(self) -> str:
        """Pub/sub hint: something is due earlier than before, or an operation is there."""
        return self.tag + "due"

    @property
    def definition_key(self) -> str:
        """Store key of the cached definition."""
        return definition_key(self.project, self.subscription)

    def key(self, kind: str) -> str:
        """One of its keys, such as `groups`."""
        return self.tag + kind


def definition_key(project: str, subscription: str) -> str:
    """Return the store key of the cached definition of a subscription."""
    return f"{{sub.{project}.{subscription}}}:definition"


def operations(project: str, subscription: str) -> str:
    """All operations of a subscription that are not forgotten yet."""
    return f"{{sub.{project}.{subscription}}}:operations"


def rate(project: str, subscription: str, operation: str = "") -> str:
    """Bucket of the rate of a subscription, or of a redrive."""
    bucket = f"{{sub.{project}.{subscription}}}:rate"
    return f"{bucket}:{operation}" if operation else bucket


def open_operations(project: str, subscription: str) -> str:
    """The ids of those operations that have not ended; owners of shards look here."""
    return f"{{sub.{project}.{subscription}}}:open"
