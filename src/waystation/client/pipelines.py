"""What clients get to see of pipelines."""

from __future__ import annotations

from typing import Any

import msgspec


class PipelineStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a pipeline: which one, and what it is told."""

    type: str
    options: dict[str, Any] = {}


class PipelineDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a pipeline: its content."""

    name: str
    version: str
    group: str
    steps: list[PipelineStep]
    description: str
    startable: bool
    snapshot: bool
    #: The pipeline that undoes what it did; empty: none.
    on_failure: str = ""
    #: What history keeps of its transactions: full, headers or none.
    record: str = "full"
    #: JSON pointers of values that history does not keep.
    redact: list[str] = []


class PipelineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline in a list."""

    name: str
    revision: int
    active: str
    versions: list[str]
    paused: bool


class PipelineDetails(PipelineInfo, frozen=True, kw_only=True):
    """A pipeline with the definition that is active."""

    definition: PipelineDefinition
    #: Steps that no living node serves, as sentences.
    unserved: list[str]


class PipelinePage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of pipelines."""

    pipelines: list[PipelineInfo]
    cursor: str
