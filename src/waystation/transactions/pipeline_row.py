"""The row of a pipeline in the catalogue: which version is active, and whether it is paused."""

from __future__ import annotations

import msgspec

#: Definitions that the store keeps of one pipeline, so that few workers have to ask the catalogue.
VERSIONS_KEPT = 20


class PipelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as it is now."""

    project: str
    name: str
    #: One more with every change; never backwards, not even over a retirement.
    revision: int
    #: Empty: retired.
    active: str
    #: The newest first, at most 20; the active one is among them.
    versions: tuple[str, ...] = ()
    #: What would begin it is held.
    paused: bool = False

    @property
    def alive(self) -> bool:
        """Whether transactions can be started with it."""
        return bool(self.active)

    def activated(self, version: str) -> PipelineRow:
        """The row with another active version."""
        if version == self.active:
            return self
        older = [each for each in self.versions if each != version]
        return self._changed(active=version, versions=(version, *older)[:VERSIONS_KEPT])

    def pausing(self, paused: bool) -> PipelineRow:
        """The row paused, or not."""
        return self if paused == self.paused else self._changed(paused=paused)

    def retired(self) -> PipelineRow:
        """The row of a pipeline that nothing begins any more; what it held goes on."""
        return self._changed(active="", versions=(), paused=False) if self.alive else self

    def _changed(self, **changes: object) -> PipelineRow:
        return msgspec.structs.replace(self, revision=self.revision + 1, **changes)


encode_row = msgspec.json.Encoder().encode
decode_row = msgspec.json.Decoder(PipelineRow).decode
