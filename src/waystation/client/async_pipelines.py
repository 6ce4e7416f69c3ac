"""The verbs of pipelines for the asynchronous client; those that change one need an admin key.

All of them may be repeated without harm, so they are, when the station is away for a moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from waystation.client.async_caller import AsyncCaller
from waystation.client.async_transport import AsyncTransport
from waystation.client.messages import decode_answer
from waystation.client.pipelines import (
    PipelineDefinition,
    PipelineDetails,
    PipelineInfo,
    PipelinePage,
)
from waystation.client.transactions import encode_body
from waystation.runtime.ids import require_name

_PATH = "/v1/pipelines"


class AsyncPipelines:
    """Define pipelines, pause them, look at them."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._caller = AsyncCaller(transport)

    async def put(
        self, pipeline: str, steps: Sequence[str | Mapping[str, Any]], **definition: Any
    ) -> PipelineDetails:
        """Makes a definition the active version; the same one again changes nothing.

        Beside its steps it may have `group`, `description`, `startable`, `snapshot`, `on_failure`,
        `record` and `redact`.
        """
        body = encode_body({"steps": steps, **definition}, field="definition")
        answer = await self._caller.call("PUT", _path(pipeline), body=body)
        return decode_answer(answer, PipelineDetails)

    async def get(self, pipeline: str) -> PipelineDetails:
        """The pipeline, and the definition that is active."""
        return decode_answer(await self._caller.call("GET", _path(pipeline)), PipelineDetails)

    async def version(self, pipeline: str, version: str) -> PipelineDefinition:
        """A definition, active or not."""
        path = f"{_path(pipeline)}/versions/{require_name(version, field='version')}"
        return decode_answer(await self._caller.call("GET", path), PipelineDefinition)

    async def pause(self, pipeline: str) -> PipelineInfo:
        """Holds what would begin it from now on; what is under way goes on."""
        answer = await self._caller.call("POST", f"{_path(pipeline)}/pause")
        return decode_answer(answer, PipelineInfo)

    async def resume(self, pipeline: str) -> PipelineInfo:
        """Lets it begin again, first what it held."""
        answer = await self._caller.call("POST", f"{_path(pipeline)}/resume")
        return decode_answer(answer, PipelineInfo)

    async def delete(self, pipeline: str) -> None:
        """Retires it: nothing begins it any more, what was started with it goes on."""
        await self._caller.call("DELETE", _path(pipeline), repeatable=False)

    async def list(self) -> AsyncIterator[PipelineInfo]:
        """Yields the pipelines of the project by name."""
        cursor = ""
        while True:
            query = urlencode({"limit": 1000, "cursor": cursor})
            page = decode_answer(await self._caller.call("GET", f"{_PATH}?{query}"), PipelinePage)
            for each in page.pipelines:
                yield each
            cursor = page.cursor
            if not cursor:
                return


def _path(pipeline: str) -> str:
    return f"{_PATH}/{require_name(pipeline, field='pipeline')}"
