"""`/v1/nodes`: who runs steps, and what node groups are told. They belong to the installation."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Controller, Request, get, put
from litestar.datastructures import State
from litestar.params import FromPath, JSONBody

from waystation.access import Access, Scope
from waystation.api.exact_body import ExactBody
from waystation.errors import NotFoundError
from waystation.runtime.ids import require_name
from waystation.store.keys import DEFAULT_PROJECT
from waystation.transactions.nodes import GroupSettings, Nodes


class ShownNode(msgspec.Struct, kw_only=True):
    """A living node as the API shows it."""

    id: str
    group: str
    version: str
    #: The types of its steps.
    steps: list[str]
    #: Whether it takes states to the archive.
    archives: bool
    #: Replies that it sends at a time.
    webhook_workers: int


class NodeList(msgspec.Struct, kw_only=True):
    """The living nodes, and what their node groups were told."""

    nodes: list[ShownNode]
    groups: dict[str, GroupSettings]


class NewSetting(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A setting of a node group: `workers`, `prefetch`, `lease_ms`, `paused` (1 or 0).

    Of archiving: `archive_batch`, `archive_pause_ms`, `archive_pause_idle_ms`. Of replies:
    `webhook_workers`, `webhook_pause_ms`, `webhook_pause_busy_ms`, `webhook_pause_idle_ms`.
    """

    setting: str
    value: int


class NodeController(Controller):
    """Nodes; for keys of project `default` alone."""

    path = "/nodes"
    tags = ("nodes",)

    @get(opt={"scope": Scope.READ}, summary="List nodes")
    async def list_nodes(self, request: Request[Any, Any, Any], state: State) -> NodeList:
        """Lists the nodes that were heard in the last minute, with the steps that they serve."""
        _require_operator(request)
        nodes = _nodes(state)
        found = await nodes.all()
        return NodeList(
            nodes=[
                ShownNode(
                    id=each.node_id,
                    group=each.node_group,
                    version=each.datp_version,
                    steps=sorted(each.serves),
                    archives=each.archives,
                    webhook_workers=each.webhook_workers,
                )
                for each in found
            ],
            groups={
                group: await nodes.settings(group)
                for group in sorted({each.node_group for each in found})
            },
        )

    @put(
        "/{group:str}/settings",
        opt={"scope": Scope.ADMIN},
        summary="Tell a node group",
        dto=ExactBody[NewSetting],
        return_dto=None,
    )
    async def tell(
        self,
        request: Request[Any, Any, Any],
        state: State,
        group: FromPath[str],
        data: JSONBody[NewSetting],
    ) -> NewSetting:
        """Sets something for all nodes of a node group, as soon as one of them looks."""
        _require_operator(request)
        require_name(group, field="group")
        await _nodes(state).tell(group, data.setting, data.value)
        return data


def _require_operator(request: Request[Any, Any, Any]) -> None:
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    if access.project != DEFAULT_PROJECT:
        raise NotFoundError("Nodes are seen with keys of project 'default'.")


def _nodes(state: State) -> Nodes:
    nodes: Nodes = state["engine"].nodes
    return nodes
