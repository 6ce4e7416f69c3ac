"""The book of pipelines: which versions there are, which one is active, what is paused.

The catalogue has the truth: a row per pipeline, and one per version, which is never changed. Each
cell has a working copy, which only goes forward, by the revision of the row; scripts look at it. A
change goes to the catalogue, then into the cells, then a hint is published. Whoever dies between is
finished by the next who changes that pipeline, or by upkeep (`mend`).

A running transaction keeps the version that it was started with, so versions are never deleted: one
that is not in the store any more is in the catalogue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from waystation.catalogue import Catalogue, DefinitionRecord
from waystation.errors import (
    ConflictError,
    InvalidInputError,
    PipelineInvalidError,
    PipelineUnknownError,
)
from waystation.messages.redaction import RedactionPolicy
from waystation.runtime.clock import Clock
from waystation.runtime.ids import require_name
from waystation.store.client import Store
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms
from waystation.transactions.pipeline import Pipeline, decode
from waystation.transactions.pipeline_row import PipelineRow, decode_row, encode_row
from waystation.transactions.wanted import Wanted

_DEFINE = script(__package__, "define")
_RESUME = script(__package__, "resume")
_KIND = "pipeline"
_KIND_VERSION = "pipeline-version"
#: What was read longer ago is read again before it is used. A change is told earlier, by a hint,
#: and a script refuses a version that is not active any more.
_FRESH_SECONDS = 2.0
_KNOWN_MAX = 10_000
#: Definitions may be large.
_VERSIONS_MAX = 1_000
_ATTEMPTS_MAX = 20
_PAGE = 200


class Pipelines:
    """All pipelines of all projects."""

    def __init__(
        self,
        catalogue: Catalogue,
        store: Store,
        *,
        cells: int,
        terms: Terms,
        clock: Clock,
        check: Callable[[Wanted], Awaitable[None]] | None = None,
    ) -> None:
        """With `check`, a definition is refused that sends requests where none may go."""
        self._catalogue = catalogue
        self._store = store
        self._cells = cells
        self._terms = terms
        self._clock = clock
        self._check = check
        #: (project, name) → active version, when it was read.
        self._active: dict[tuple[str, str], tuple[str, float]] = {}
        self._versions: dict[tuple[str, str, str], Pipeline] = {}

    # -- Looking -----------------------------------------------------------------------------

    def follow(self, wakeups: PubSub) -> Callable[[], None]:
        """Notices changes when they happen; the returned function ends it."""

        def look_again(_: bytes | None) -> None:
            self._active.clear()

        return wakeups.listen(names.PIPELINES_TOPIC.encode(), look_again)

    def known(self, project: str, name: str) -> Pipeline | None:
        """The active definition, if it was read a moment ago; never waits."""
        found = self._active.get((project, name))
        if found is None or self._clock.uptime_s() - found[1] > _FRESH_SECONDS:
            return None
        return self._versions.get((project, name, found[0]))

    async def active(self, project: str, name: str) -> Pipeline:
        """The definition that a transaction begins with now; PipelineUnknownError without one."""
        known = self.known(project, name)
        if known is not None:
            return known
        require_name(name, field="pipeline")
        read_at = self._clock.uptime_s()
        copy = names.pipeline(0, project, name)
        found = await self._store.call("HGET", copy, "active", repeatable=True)
        if found is None:
            # A new store, or a definition that died half-way: the catalogue knows.
            row = await self._row(project, name)
            if row is None or not row.alive:
                raise _unknown(name)
            await self.mend(row)
            found = row.active.encode()
        pipeline = await self.version(project, name, found.decode())
        self._remember_active(project, name, pipeline.version, read_at)
        return pipeline

    async def version(self, project: str, name: str, version: str) -> Pipeline:
        """A definition, active or not."""
        key = (project, name, version)
        pipeline = self._versions.get(key)
        if pipeline is None:
            copy = names.pipeline(0, project, name)
            encoded = await self._store.call("HGET", copy, f"v:{version}", repeatable=True)
            if encoded is None:
                record = await self._catalogue.definition(
                    _KIND_VERSION, project, f"{name}@{version}"
                )
                if record is None:
                    raise PipelineUnknownError(f"There is no version {version} of {name}.")
                encoded = record.body
            pipeline = decode(encoded)
            if len(self._versions) >= _VERSIONS_MAX:
                self._versions.clear()
            self._versions[key] = pipeline
        return pipeline

    async def recordings(
        self, project: str, wanted: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], RedactionPolicy]:
        """What history keeps, by name and version; of a version that nobody knows, little."""
        found = dict.fromkeys(wanted, RedactionPolicy("headers"))
        for name, version in found:
            with contextlib.suppress(PipelineUnknownError):
                found[name, version] = (await self.version(project, name, version)).recording
        return found

    def forget(self, project: str, name: str) -> None:
        """Reads the active version again, next time: a script has said that it is another."""
        self._active.pop((project, name), None)

    async def get(self, project: str, name: str) -> PipelineRow:
        """The row of a pipeline; PipelineUnknownError also for a retired one."""
        row = await self._row(project, name)
        if row is None or not row.alive:
            raise _unknown(name)
        return row

    async def list(self, project: str, *, after: str = "", limit: int) -> list[PipelineRow]:
        """Pipelines of a project by name, without the retired ones."""
        found: list[PipelineRow] = []
        while records := await self._catalogue.definitions(
            _KIND, project, after=after, limit=_PAGE
        ):
            rows = (decode_row(record.body) for record in records)
            found += [row for row in rows if row.alive]
            if len(found) >= limit or len(records) < _PAGE:
                break
            after = records[-1].name
        return found[:limit]

    async def everything(self) -> AsyncIterator[PipelineRow]:
        """All pipelines of all projects, retired ones too: what upkeep mends."""
        for project in await self._catalogue.projects():
            after = ""
            while records := await self._catalogue.definitions(
                _KIND, project.name, after=after, limit=_PAGE
            ):
                for record in records:
                    yield decode_row(record.body)
                after = records[-1].name

    # -- Changing ----------------------------------------------------------------------------

    async def put(self, project: str, pipeline: Pipeline) -> PipelineRow:
        """Makes a definition the active version of its name; the same one again changes nothing."""
        await self._require_allowed(project, pipeline)
        version = pipeline.version
        kept = DefinitionRecord(
            kind=_KIND_VERSION,
            project=project,
            name=f"{pipeline.name}@{version}",
            version=1,
            body=pipeline.encoded,
            changed_ms=self._clock.now_ms(),
        )
        # First: whoever finds it active must be able to read it. There already is the same content.
        with contextlib.suppress(ConflictError):
            await self._catalogue.add_definition(kept)
        return await self._change(
            project, pipeline.name, lambda row: row.activated(version), create=True
        )

    async def _require_allowed(self, project: str, pipeline: Pipeline) -> None:
        for place, url in pipeline.urls if self._check is not None else ():
            assert self._check is not None
            try:
                await self._check(Wanted(project=project, webhook=url))
            except InvalidInputError as error:
                told = f"Step {place} of pipeline {pipeline.name}: {error.message}"
                raise PipelineInvalidError(told, field="steps", hint=error.hint) from error

    async def pause(self, project: str, name: str) -> PipelineRow:
        """Holds what would begin the pipeline, or wakes in it, from now on; what runs goes on."""
        return await self._change(project, name, lambda row: row.pausing(True))

    async def resume(self, project: str, name: str) -> PipelineRow:
        """Lets the pipeline begin again, first what it held."""
        return await self._change(project, name, lambda row: row.pausing(False))

    async def retire(self, project: str, name: str) -> PipelineRow:
        """Ends a pipeline: nothing begins it any more, what was started with it goes on."""
        return await self._change(project, name, PipelineRow.retired)

    async def mend(self, row: PipelineRow) -> None:
        """Brings all cells up to a row, and lets go what they hold without a reason."""
        definition = b""
        if row.alive:
            definition = (await self.version(row.project, row.name, row.active)).encoded
        pipeline = names.pipeline_key(row.project, row.name)
        put = await asyncio.gather(
            *(self._define(cell, pipeline, row, definition) for cell in range(self._cells))
        )
        if any(put):
            await self._store.call("PUBLISH", names.PIPELINES_TOPIC, pipeline, repeatable=True)
        if not row.paused:
            for cell in range(self._cells):
                await self._let_go(cell, pipeline)

    async def _change(
        self,
        project: str,
        name: str,
        change: Callable[[PipelineRow], PipelineRow],
        *,
        create: bool = False,
    ) -> PipelineRow:
        for _ in range(_ATTEMPTS_MAX):
            row = await self._row(project, name)
            if row is None and create:
                revision = await self._newest_revision(project, name)
                row = PipelineRow(project=project, name=name, revision=revision, active="")
                write = self._catalogue.add_definition
            elif row is not None and (row.alive or create):
                write = self._catalogue.change_definition
            else:
                raise _unknown(name)
            changed = change(row)
            if changed is not row:
                try:
                    await write(self._record(changed))
                except ConflictError:
                    continue  # Another was quicker: what it did is the new beginning.
            await self.mend(changed)
            self.forget(project, name)
            return changed
        raise ConflictError(f"Pipeline {name} is changed by too many at once.")

    # -- Rows and cells ----------------------------------------------------------------------

    async def _row(self, project: str, name: str) -> PipelineRow | None:
        require_name(name, field="pipeline")
        record = await self._catalogue.definition(_KIND, project, name)
        return None if record is None else decode_row(record.body)

    async def _newest_revision(self, project: str, name: str) -> int:
        """What cells remember of a pipeline that this catalogue never knew."""
        found = await asyncio.gather(
            *(
                self._store.call(
                    "HGET", names.pipeline(cell, project, name), "revision", repeatable=True
                )
                for cell in range(self._cells)
            )
        )
        return max(int(each or 0) for each in found)

    async def _define(self, cell: int, name: str, row: PipelineRow, definition: bytes) -> bool:
        startable = row.alive and decode(definition).startable
        arguments: list[str | bytes | int] = [name, row.revision, row.active, definition]
        arguments += [int(startable), int(row.paused), *row.versions]
        return bool(await self._store.run(_DEFINE, [names.log(cell)], arguments))

    async def _let_go(self, cell: int, name: str) -> None:
        left, looked = 1, 1
        while left and looked:  # Nothing is looked at where it was paused again meanwhile.
            _, looked, left = await self._store.run(
                _RESUME, [names.log(cell)], [self._terms.argument, name, BATCH_MAX]
            )

    def _remember_active(self, project: str, name: str, version: str, read_at: float) -> None:
        if len(self._active) >= _KNOWN_MAX:
            self._active.clear()
        self._active[project, name] = (version, read_at)

    def _record(self, row: PipelineRow) -> DefinitionRecord:
        return DefinitionRecord(
            kind=_KIND,
            project=row.project,
            name=row.name,
            version=row.revision,
            body=encode_row(row),
            changed_ms=self._clock.now_ms(),
        )


def _unknown(name: str) -> PipelineUnknownError:
    return PipelineUnknownError(f"There is no pipeline {name}.")
