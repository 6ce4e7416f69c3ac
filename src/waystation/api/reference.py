"""The API reference as a page: the OpenAPI document rendered without scripts or other hosts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from html import escape
from typing import Any

from waystation.api.reply import Reply, encode
from waystation.api.request import Request
from waystation.api.routes import Route

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 2rem 1rem; }
h1 { margin: 0 0 .25rem; } h2 { margin: 2.5rem 0 .5rem; text-transform: capitalize; }
code, .path { font-family: ui-monospace, monospace; font-size: .92em; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; }
summary { cursor: pointer; display: flex; gap: .75rem; padding: .5rem .75rem; flex-wrap: wrap; }
summary .what { margin-left: auto; opacity: .75; }
.verb { border-radius: 4px; color: #fff; font-weight: 600; min-width: 4.2rem; text-align: center; }
.get { background: #1769aa; } .put { background: #8a5a00; }
.post { background: #2e7d32; } .delete { background: #b3261e; }
section { border-top: 1px solid var(--line); padding: .25rem .75rem .75rem; }
table { border-collapse: collapse; width: 100%; } td { padding: .25rem .75rem .25rem 0; }
td { border-bottom: 1px solid var(--soft); vertical-align: top; }
pre { background: var(--soft); border-radius: 6px; overflow-x: auto; padding: .75rem; }
"""
_POLICY = b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"


class ReferenceRoutes:
    """Serve the OpenAPI document and the page; both are built at the first request for one."""

    def __init__(self) -> None:
        self._build: Callable[[], dict[str, Any]] = dict
        self._building = asyncio.Lock()
        self._built: tuple[bytes, bytes] | None = None

    def use(self, build: Callable[[], dict[str, Any]]) -> None:
        """Take the function that returns the document, which contains these routes too."""
        self._build = build

    async def document(self, request: Request) -> Reply:
        """GET /openapi.json"""
        document, _ = await self._texts()
        return Reply(200, document, ((b"content-type", b"application/json"),))

    async def page(self, request: Request) -> Reply:
        """GET / and /reference"""
        _, page = await self._texts()
        headers = (
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", _POLICY),
        )
        return Reply(200, page, headers)

    async def _texts(self) -> tuple[bytes, bytes]:
        # In a thread: it takes about half a second, and other requests go on meanwhile.
        async with self._building:
            if self._built is None:
                self._built = await asyncio.to_thread(self._render)
            return self._built

    def _render(self) -> tuple[bytes, bytes]:
        document = self._build()
        return encode(document) + b"\n", render(document).encode()

    def routes(self) -> list[Route]:
        """The rows of the route table."""
        rows = (
            ("/openapi.json", self.document, "This document", "application/json"),
            ("/reference", self.page, "This document as a page", "text/html"),
            ("/", self.page, "The same page", "text/html"),
        )
        return [
            Route(
                method="GET",
                path=path,
                handler=handler,
                scope=None,
                manner="own",
                tag="reference",
                summary=summary,
                responses={200: ("Here it is.", media_type, {})},
            )
            for path, handler, summary, media_type in rows
        ]


def render(document: dict[str, Any]) -> str:
    """The page for an OpenAPI document."""
    by_tag: dict[str, list[str]] = {}
    shared = document.get("components", {}).get("schemas", {})
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            by_tag.setdefault(tag, []).append(_operation(path, method, operation, shared))
    parts = [f"<h2>{escape(tag)}</h2>{''.join(items)}" for tag, items in sorted(by_tag.items())]
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<style>{_STYLE}</style><h1>{title}</h1><p>{escape(info.get('description', ''))}</p>"
        f"<p><a href=openapi.json>openapi.json</a></p>{''.join(parts)}</html>\n"
    )


def _operation(path: str, method: str, operation: dict[str, Any], shared: dict[str, Any]) -> str:
    parameters = "".join(
        f"<tr><td><code>{escape(each['name'])}</code><td>{escape(each['in'])}"
        f"<td>{_prose(each.get('description', ''))} <code>{_schema(each['schema'], shared)}</code>"
        for each in operation.get("parameters", [])
    )
    responses = "".join(
        f"<tr><td><code>{escape(status)}</code><td>{_prose(each.get('description', ''))}"
        for status, each in operation["responses"].items()
    )
    body = operation.get("requestBody", {}).get("content", {})
    bodies = "".join(f"<pre>{_schema(each['schema'], shared)}</pre>" for each in body.values())
    return (
        f"<details><summary><span class='verb {method}'>{method.upper()}</span>"
        f"<span class=path>{escape(path)}</span>"
        f"<span class=what>{escape(operation.get('summary', ''))}</span></summary><section>"
        f"<p>{_prose(operation.get('description', ''))}</p>"
        + (f"<h4>Parameters</h4><table>{parameters}</table>" if parameters else "")
        + (f"<h4>Body</h4>{bodies}" if bodies else "")
        + f"<h4>Answers</h4><table>{responses}</table></section></details>"
    )


def _prose(text: str) -> str:
    """What stands between backquotes is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _schema(schema: dict[str, Any], shared: dict[str, Any]) -> str:
    schema = shared.get(schema.get("$ref", "").rpartition("/")[2], schema)
    return escape(encode(schema).decode()) if schema else "any JSON"
