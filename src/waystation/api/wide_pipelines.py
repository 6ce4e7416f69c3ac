"""`/v1/pipelines`: defining pipelines, pausing them, looking at their versions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, delete, get, post, put
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta

from waystation.access import Access, Scope
from waystation.api.exact_body import ExactBody
from waystation.errors import InvalidInputError
from waystation.runtime.ids import NAME_PATTERN, require_name
from waystation.transactions.engine import Engine
from waystation.transactions.pipeline import DEFAULT_GROUP, STEPS_MAX, Pipeline, StepUse, define
from waystation.transactions.pipeline_row import PipelineRow
from waystation.types.common import Pointers, Record

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
_PAGE_MAX = 1000


class NewPipeline(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A definition as its author writes it; a step is its type, or a type with options."""

    steps: Annotated[list[str | StepUse], Meta(min_length=1, max_length=STEPS_MAX)]
    #: May be left out; if it is there, it is the one in the path.
    name: Name | None = None
    group: Name = DEFAULT_GROUP
    description: str = ""
    #: Whether transactions may be started with it from outside.
    startable: bool = True
    #: Whether the state goes to the archive, too, when it ends as a child.
    snapshot: bool = False
    #: The pipeline that undoes what it did, when a step has failed; empty: none.
    on_failure: str = ""
    #: What history keeps of its transactions.
    record: Record = "full"
    #: JSON pointers of values that history does not keep, in data, metadata and outputs.
    redact: Pointers = ()


class ShownPipeline(msgspec.Struct, kw_only=True):
    """A pipeline as the API shows it."""

    name: str
    #: One more with every change.
    revision: int
    #: The version that transactions begin with.
    active: str
    #: The newest first, at most 20.
    versions: list[str]
    paused: bool


class PipelinePage(msgspec.Struct, kw_only=True):
    """A page of pipelines; `cursor` leads to the next and is empty on the last."""

    pipelines: list[ShownPipeline]
    cursor: str


class Definition(msgspec.Struct, kw_only=True):
    """A version of a pipeline: its content."""

    name: str
    version: str
    group: str
    steps: list[StepUse]
    description: str
    startable: bool
    snapshot: bool
    on_failure: str
    record: Record
    redact: list[str]


class PipelineDetails(ShownPipeline, kw_only=True):
    """A pipeline with the definition that is active."""

    definition: Definition
    #: Steps that no living node serves, as sentences.
    unserved: list[str]


class PipelineController(Controller):
    """Pipelines of the caller's own project."""

    path = "/pipelines"
    tags = ("pipelines",)

    @get(opt={"scope": Scope.READ}, summary="List pipelines")
    async def list_pipelines(
        self,
        request: Request[Any, Any, Any],
        state: State,
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> PipelinePage:
        """Lists pipelines by name, page by page."""
        if not 1 <= limit <= _PAGE_MAX:
            raise InvalidInputError(f"limit must be between 1 and {_PAGE_MAX}.", field="limit")
        book = _engine(state).pipelines
        found = await book.list(_project(request), after=cursor, limit=limit + 1)
        rows = [_shown(each) for each in found[:limit]]
        return PipelinePage(pipelines=rows, cursor=rows[-1].name if len(found) > limit else "")

    @put(
        "/{pipeline:str}",
        opt={"scope": Scope.ADMIN},
        summary="Define a pipeline",
        dto=ExactBody[NewPipeline],
        return_dto=None,
    )
    async def put_pipeline(
        self,
        request: Request[Any, Any, Any],
        state: State,
        pipeline: FromPath[str],
        data: JSONBody[NewPipeline],
    ) -> PipelineDetails:
        """Makes a definition the active version; the same one again changes nothing.

        What was started before keeps the version that it began with.
        """
        if data.name not in (None, pipeline):
            raise InvalidInputError("The name is not the one in the path.", field="name")
        definition = define(
            pipeline,
            data.steps,
            group=data.group,
            description=data.description,
            startable=data.startable,
            snapshot=data.snapshot,
            on_failure=data.on_failure,
            record=data.record,
            redact=data.redact,
        )
        row = await _engine(state).pipelines.put(_project(request), definition)
        return await _details(state, row)

    @get("/{pipeline:str}", opt={"scope": Scope.READ}, summary="Look at a pipeline")
    async def show_pipeline(
        self, request: Request[Any, Any, Any], state: State, pipeline: FromPath[str]
    ) -> PipelineDetails:
        """Shows a pipeline, its active definition, and the steps that nobody serves."""
        return await _details(
            state, await _engine(state).pipelines.get(_project(request), pipeline)
        )

    @get(
        "/{pipeline:str}/versions/{version:str}",
        opt={"scope": Scope.READ},
        summary="Look at a version",
    )
    async def show_version(
        self,
        request: Request[Any, Any, Any],
        state: State,
        pipeline: FromPath[str],
        version: FromPath[str],
    ) -> Definition:
        """Shows a definition, active or not."""
        require_name(pipeline, field="pipeline")
        require_name(version, field="version")
        found = await _engine(state).pipelines.version(_project(request), pipeline, version)
        return _definition(found)

    @post(
        "/{pipeline:str}/pause",
        opt={"scope": Scope.ADMIN},
        summary="Pause a pipeline",
        status_code=200,
    )
    async def pause(
        self, request: Request[Any, Any, Any], state: State, pipeline: FromPath[str]
    ) -> ShownPipeline:
        """Holds what would begin it from now on; what is under way goes on."""
        return _shown(await _engine(state).pipelines.pause(_project(request), pipeline))

    @post(
        "/{pipeline:str}/resume",
        opt={"scope": Scope.ADMIN},
        summary="Resume a pipeline",
        status_code=200,
    )
    async def resume(
        self, request: Request[Any, Any, Any], state: State, pipeline: FromPath[str]
    ) -> ShownPipeline:
        """Lets it begin again, first what it held."""
        return _shown(await _engine(state).pipelines.resume(_project(request), pipeline))

    @delete("/{pipeline:str}", opt={"scope": Scope.ADMIN}, summary="Retire a pipeline")
    async def retire(
        self, request: Request[Any, Any, Any], state: State, pipeline: FromPath[str]
    ) -> None:
        """Nothing begins it any more; what was started with it goes on."""
        await _engine(state).pipelines.retire(_project(request), pipeline)


async def _details(state: State, row: PipelineRow) -> PipelineDetails:
    engine = _engine(state)
    definition = await engine.pipelines.version(row.project, row.name, row.active)
    return PipelineDetails(
        **msgspec.structs.asdict(_shown(row)),
        definition=_definition(definition),
        unserved=await engine.nodes.unserved([definition]),
    )


def _shown(row: PipelineRow) -> ShownPipeline:
    return ShownPipeline(
        name=row.name,
        revision=row.revision,
        active=row.active,
        versions=list(row.versions),
        paused=row.paused,
    )


def _definition(pipeline: Pipeline) -> Definition:
    return Definition(
        name=pipeline.name,
        version=pipeline.version,
        group=pipeline.group,
        steps=list(pipeline.steps),
        description=pipeline.description,
        startable=pipeline.startable,
        snapshot=pipeline.snapshot,
        on_failure=pipeline.on_failure,
        record=pipeline.record,
        redact=list(pipeline.redact),
    )


def _project(request: Request[Any, Any, Any]) -> str:
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    return access.project


def _engine(state: State) -> Engine:
    engine: Engine = state["engine"]
    return engine
