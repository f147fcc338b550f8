"""GET / and its assets: the playground, and GET /engine: what the engine does now, for its live view.

The files lie in the wheel (`page/`), are read once, and are public: they hold nothing of the model or of its users. A
path in a request never becomes a file's name: there is one route a file. The policy lets the page run its own scripts,
talk to this server, and nothing else; no text can become HTML (trusted types).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .answers import installed, json_response
from .errors import HttpError
from .services import Services

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
PAGE = "index.html"
ASSETS = (
    "api.js", "chat.js", "dom.js", "engine.js", "icon.svg", "main.js", "markdown.js", "settings.js", "style.css",
    "turn.js",
)  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
Endpoint = Callable[[Request], Awaitable[Response]]


def asset(name: str) -> Callable[[Services], Endpoint]:
    """The maker of one file's route."""

    def maker(services: Services) -> Endpoint:
        body = (files("tenon_core.serving") / "page" / name).read_bytes()
        kind = f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8"
        headers = {**HEADERS, "Content-Type": kind, "ETag": f'"{hashlib.sha256(body).hexdigest()[:24]}"'}

        async def get_asset(request: Request) -> Response:
            if not services.config.playground:
                raise HttpError(404, "there is no such path")
            if request.headers.get("if-none-match") == headers["ETag"]:
                return Response(status_code=304, headers=headers)
            return Response(body, headers=headers)

        return get_asset

    return maker


def engine(services: Services) -> Any:
    """GET /engine: state, facts, counters, chosen kernels."""
    known = installed()

    async def get_engine(request: Request) -> Response:
        facts, stats, ready = services.facts, services.metrics.latest, services.ready
        return json_response(
            {
                "status": "ready" if services.is_ready else _state(services),
                "model": services.model_names[0],
                "version": known,
                "platform": "" if facts is None else facts.platform,
                "max_model_len": None if facts is None else facts.max_model_len,
                "max_num_seqs": None if facts is None else facts.max_num_seqs,
                "block_size": None if facts is None else facts.block_size,
                "parsers": {"tools": services.parsers.tool_name, "reasoning": services.parsers.reasoning_name},
                "stats": None if stats is None else {name: getattr(stats, name) for name in STATS},
                "kernels": [
                    {"op": one.op, "kernel": one.kernel, "source": one.source, "uses": one.num_uses}
                    for one in (() if ready is None else ready.kernels)
                ],
                "start_seconds": {} if ready is None else ready.start_seconds,
            }
        )

    return get_engine


STATS = (
    "num_running", "num_waiting", "num_blocks", "num_free_blocks", "num_steps", "num_preemptions", "num_prompt_tokens",
    "num_generated_tokens", "num_prefix_queries", "num_prefix_hits", "num_compiles_after_ready",
)  # fmt: skip


def _state(services: Services) -> str:
    state = "shutting down" if services.is_draining else services.state()
    return "starting" if state == "ready" else state
