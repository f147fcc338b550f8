"""Who may call what: keys, checked at the routed handler, and the Host rule against DNS rebinding.

Every route is guarded unless it is declared public, and so are paths that do not exist. A key is compared by its digest
in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .config import ServerConfig
from .errors import HttpError, error_response

MAX_SENT_KEY = 1024
_HOST = re.compile(r"(?:(?P<name>[A-Za-z0-9._-]{1,253})|\[(?P<v6>[0-9A-Fa-f:.]{2,45})\])(?::[0-9]{1,5})?")
LOCAL_NAMES = frozenset({"localhost"})


class Keys:
    """The operator's keys, as digests. Without any, everybody may call."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def check(self, headers: Headers) -> str:
        """Whose request it is: a digest of the key, nothing where none is asked for.

        Raises 401 unless exactly one key was sent and it is right (the same one by both headers is one).
        """
        if not self._digests:
            return ""
        sent = _sent_keys(headers)
        digests = {_digest(key) for key in sent}
        if len(digests) != 1 or len(headers.getlist("authorization")) > 1 or len(headers.getlist("x-api-key")) > 1:
            raise _unauthenticated()
        (digest,) = digests
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, always
        if not any(matches):
            raise _unauthenticated()
        return digest.hex()


class NoKeys(Keys):
    """Nobody may call: no key was set for it."""

    def __init__(self) -> None:
        super().__init__(())

    def check(self, headers: Headers) -> str:
        """Raises 403."""
        raise HttpError(
            403, "this needs an administrator's key, and the server has none: start it with --admin-api-key"
        )


def admin_keys(config: ServerConfig) -> Keys:
    """Who may change the server: with such a key; without any, everybody, where no request needs one."""
    if config.admin_api_key:
        return Keys(config.admin_api_key)
    return Keys(()) if config.is_loopback and not config.api_key else NoKeys()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _sent_keys(headers: Headers) -> list[bytes]:
    keys = []
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthenticated()
        keys.append(key.strip(" "))
    keys += headers.getlist("x-api-key")
    if any(not key or len(key) > MAX_SENT_KEY for key in keys):
        raise _unauthenticated()
    return [key.encode("latin-1") for key in keys]  # as header bytes were decoded


def _unauthenticated() -> HttpError:
    return HttpError(
        401,
        "a valid API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


class GuardedRoute(Route):
    """A route that asks for a key before anything else, unless it is public."""

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, methods: Sequence[str], keys: Keys, is_public: bool = False
    ) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.keys, self.is_public = keys, is_public

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not self.is_public:
                scope["tenon.owner"] = self.keys.check(Headers(scope=scope))
            if self.methods and scope["method"] not in self.methods:
                allowed = ", ".join(sorted(self.methods))
                raise HttpError(405, "this path does not take that method", headers={"Allow": allowed})
        except HttpError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        await super().handle(scope, receive, send)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedNotFound:
    """Paths that do not exist: known only to those with a key."""

    keys: Keys
    message: str = "there is no such path"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = HttpError(404, self.message)
        try:
            self.keys.check(Headers(scope=scope))
        except HttpError as refusal:
            error = refusal
        await error_response(error, scope)(scope, receive, send)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """Which Host headers are answered. names: those by which browsers may know this server."""

    names: frozenset[str]

    @classmethod
    def of(cls, host: str, further: Sequence[str]) -> HostRule:
        """From the address listened on and the operator's further names."""
        return cls(names=LOCAL_NAMES | {host.lower(), *(name.lower() for name in further)})

    def check(self, headers: Headers) -> None:
        """Raise 400 for a malformed Host, 403 where a browser came by a name that is not ours."""
        hosts = headers.getlist("host")
        if len(hosts) > 1:
            raise HttpError(400, "several Host headers were sent")
        match = _HOST.fullmatch(hosts[0]) if hosts else None
        if hosts and match is None:
            raise HttpError(400, "the Host header is malformed")
        if "origin" not in headers:
            return
        name = "" if match is None else (match["name"] or match["v6"]).lower().rstrip(".")
        if name not in self.names and not _is_address(name):
            raise HttpError(
                403, "this server is not known by that Host name: pass --allowed-hosts to let browsers use it"
            )


def _is_address(name: str) -> bool:
    """Addresses cannot be rebound: only names can."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def refuse_other_pages(request: Request, allowed: Sequence[str]) -> None:
    """Raise 403 where a browser sends this for a page of another origin that is not allowed to."""
    origin = request.headers.get("origin")
    if origin is None or origin in allowed:
        return
    scheme, _, authority = origin.partition("://")
    if scheme in ("http", "https") and authority and authority == request.headers.get("host"):
        return
    raise HttpError(403, f"pages of {origin[:80]!r} may not do this: name it with --allowed-origins")
