"""The definition of a pipeline: a name, a node group, a list of steps. Its version is its content.

    {"name": "refund", "steps": ["refund/approve", {"type": "util/delay", "options": {"min": 50}}]}

A definition never changes: another content is another version, and the same content, written by
whomever, is the same one. What can be known to be wrong is refused before it is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from waystation.errors import InvalidInputError, PipelineInvalidError
from waystation.messages.redaction import RedactionPolicy, check_redaction, redaction_policy
from waystation.runtime.ids import require_name
from waystation.runtime.json_values import require_finite
from waystation.transactions.builtins import BUILT_IN, http
from waystation.transactions.steps import require_type
from waystation.types.common import Record

#: The node group of a pipeline that names none.
DEFAULT_GROUP = "master"
STEPS_MAX = 1000
DEFINITION_BYTES_MAX = 65_536
_VERSION_LENGTH = 16


class StepUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step of a pipeline: which one, and what it is told."""

    type: str
    options: dict[str, Any] = {}


#: What an author may write for a step: its type, a type with options, or all of it.
StepLike = str | tuple[str, dict[str, Any]] | dict[str, Any] | StepUse


class Pipeline(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    dict=True,
):
    """A definition. `define` makes one, and `decode` reads one that was made before."""

    name: str
    group: str = DEFAULT_GROUP
    steps: tuple[StepUse, ...]
    description: str = ""
    #: Whether a transaction may be started with it, from outside; else it is for other pipelines.
    startable: bool = True
    #: Whether the state goes to the archive, too, when it ends as a child.
    snapshot: bool = False
    #: The pipeline that is called when one of its steps has failed; empty: none.
    on_failure: str = ""
    #: What history keeps of transactions while they are in it.
    record: Record = "full"
    #: JSON pointers of values that history does not keep, in data, metadata and outputs.
    redact: tuple[str, ...] = ()

    @cached_property
    def encoded(self) -> bytes:
        """The one form in which it is kept: its version is made from this."""
        return msgspec.json.encode(self, order="deterministic")

    @cached_property
    def version(self) -> str:
        """The beginning of the SHA-256 of its content."""
        return hashlib.sha256(self.encoded).hexdigest()[:_VERSION_LENGTH]

    @cached_property
    def recording(self) -> RedactionPolicy:
        """What history keeps."""
        return redaction_policy(self.record, self.redact)

    @property
    def urls(self) -> list[tuple[int, str]]:
        """Where its steps send requests: the place of each, and the URL."""
        asking = (each for each in enumerate(self.steps, 1) if each[1].type == http.STEP.type)
        return [(place, step.options["url"]) for place, step in asking]

    @property
    def step_types(self) -> tuple[str, ...]:
        """The types of its steps, each once, in order."""
        return tuple(dict.fromkeys(step.type for step in self.steps))

    def unserved(self, served: Iterable[str]) -> list[str]:
        """Those of its steps that nobody serves, as sentences."""
        known = frozenset(served)
        return [
            f"Nobody in node group {self.group} serves {step.type}, step {place} of pipeline"
            f" {self.name}."
            for place, step in enumerate(self.steps, 1)
            if step.type not in known
        ]


class _Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A definition as an author writes it."""

    name: str
    steps: list[str | StepUse]
    group: str = DEFAULT_GROUP
    description: str = ""
    startable: bool = True
    snapshot: bool = False
    on_failure: str = ""
    record: Record = "full"
    redact: tuple[str, ...] = ()


_decode = msgspec.json.Decoder(Pipeline).decode
_decode_written = msgspec.json.Decoder(_Written | list[_Written]).decode


def define(
    name: str,
    steps: Sequence[StepLike],
    *,
    group: str = DEFAULT_GROUP,
    description: str = "",
    startable: bool = True,
    snapshot: bool = False,
    on_failure: str = "",
    record: Record = "full",
    redact: Sequence[str] = (),
) -> Pipeline:
    """A checked definition; PipelineInvalidError says what is wrong, and where."""
    if isinstance(steps, str):
        raise PipelineInvalidError("The steps of a pipeline are a list.", field="steps")
    try:
        require_name(name, field="name")
        require_name(group, field="group")
        if on_failure:
            require_name(on_failure, field="on_failure")
        check_redaction(record, redact)
        if not 1 <= len(steps) <= STEPS_MAX:
            raise PipelineInvalidError(
                f"Pipeline {name} has {len(steps)} steps; it can have 1 to {STEPS_MAX}.",
                field="steps",
            )
        # Through JSON: what is kept is what a reader will find.
        uses = tuple(_use(name, place, step) for place, step in enumerate(steps, 1))
        pipeline = Pipeline(
            name=name,
            group=group,
            steps=uses,
            description=description,
            startable=startable,
            snapshot=snapshot,
            on_failure=on_failure,
            record=record,
            redact=tuple(redact),
        )
        require_finite(pipeline)
        pipeline = _decode(pipeline.encoded)
    except PipelineInvalidError:
        raise
    except InvalidInputError as error:
        raise PipelineInvalidError(error.message, field=error.field, hint=error.hint) from error
    except (TypeError, ValueError) as error:
        raise PipelineInvalidError(f"Pipeline {name}: {error}.", field="steps") from error
    if len(pipeline.encoded) > DEFINITION_BYTES_MAX:
        raise PipelineInvalidError(
            f"Pipeline {name} has {len(pipeline.encoded)} bytes;"
            f" it can have {DEFINITION_BYTES_MAX}.",
            field="steps",
        )
    return pipeline


def decode(encoded: bytes) -> Pipeline:
    """A definition that was kept."""
    return _decode(encoded)


def parse_pipelines(text: bytes, *, source: str) -> list[Pipeline]:
    """The definitions in a JSON text: one, or a list of them."""
    try:
        found = _decode_written(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PipelineInvalidError(f"{source}: {error}.", field="steps") from error
    written = found if isinstance(found, list) else [found]
    try:
        return [
            define(
                each.name,
                each.steps,
                group=each.group,
                description=each.description,
                startable=each.startable,
                snapshot=each.snapshot,
                on_failure=each.on_failure,
                record=each.record,
                redact=each.redact,
            )
            for each in written
        ]
    except PipelineInvalidError as error:
        told = f"{source}: {error.message}"
        raise PipelineInvalidError(told, field=error.field, hint=error.hint) from error


def read_pipelines(file: str | Path) -> list[Pipeline]:
    """The definitions in a JSON file."""
    try:
        text = Path(file).read_bytes()
    except OSError as error:
        raise PipelineInvalidError(f"{file} cannot be read: {error.strerror}.") from error
    return parse_pipelines(text, source=str(file))


def _use(pipeline: str, place: int, step: object) -> StepUse:
    try:
        if isinstance(step, str):
            use = StepUse(step)
        else:
            if isinstance(step, tuple) and len(step) == 2:
                step = {"type": step[0], "options": step[1]}
            use = msgspec.convert(msgspec.to_builtins(step), StepUse)
        require_type(use.type)
        if use.type in BUILT_IN:
            BUILT_IN[use.type].check(use.options)
    except InvalidInputError as error:
        where = f"Step {place} of pipeline {pipeline}: {error.message}"
        raise PipelineInvalidError(where, field="steps", hint=error.hint) from error
    except (msgspec.ValidationError, TypeError) as error:
        where = f"Step {place} of pipeline {pipeline}: {error}."
        raise PipelineInvalidError(where, field="steps") from error
    return use
