"""The HTTP pages on the port of the sockets: GET and HEAD, one answer a connection. Owns no state but the chat page."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from actors.ingress.config import IngressConfig
from actors.ingress.live_requests import EngineStatus
from actors.ingress.metrics import EXPOSITION_TYPE, EngineProbe, IngressMetrics, label, merge, render
from protocol.model_info import ModelInfo

OPEN_PATHS = ("/", "/health", "/healthz", "/readyz")
"""Answered without a key."""
PATHS = (*OPEN_PATHS, "/metrics", "/v1/models", "/version")
METHODS = ("GET", "HEAD")
_REQUEST_LINE = re.compile(rb"(?P<method>[A-Z]{1,32}) (?P<path>[!-~]+) HTTP/1\.[01]\r?\n")
PAGE = Path(__file__).parent / "pages" / "index.html"


def _version() -> str:
    try:
        return version("tokenstage")
    except PackageNotFoundError:  # run from a checkout
        return "0+checkout"


VERSION = _version()


class Pages:
    """Answers every path that is no WebSocket's."""

    def __init__(
        self,
        config: IngressConfig,
        model: ModelInfo,
        status: EngineStatus,
        probe: EngineProbe,
        metrics: IngressMetrics,
    ) -> None:
        self._config = config
        self._model = model
        self._status = status
        self._probe = probe
        self._metrics = metrics
        self._page = PAGE.read_bytes() if PAGE.is_file() else b"<!doctype html><title>tokenstage</title>tokenstage"
        self._page_headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Security-Policy": _policy(self._page),
        }

    async def answer(self, request: Request, path: str) -> Response:
        """The response to a GET or HEAD of `path`; other paths are 404, other methods 405."""
        if request.method not in METHODS:
            return refuse_method(path)
        response = await self._page_at(path)
        if request.method == "HEAD":
            response.body = b""
        return response

    async def _page_at(self, path: str) -> Response:
        match path:
            case "/":
                response = respond(HTTPStatus.OK, self._page, self._page_headers)
            case "/health" | "/healthz":
                response = await self._health()
            case "/readyz":
                response = self._ready()
            case "/metrics":
                snapshots = [self._metrics.snapshot(), *await self._probe.metrics()]
                families = label(merge(snapshots), "model_name", self._model.name)
                response = respond(HTTPStatus.OK, render(families).encode(), {"Content-Type": EXPOSITION_TYPE})
            case "/v1/models":
                response = respond_json(HTTPStatus.OK, self._models())
            case "/version":
                response = respond_json(HTTPStatus.OK, {"version": VERSION})
            case _:
                response = _not_found()
        return response

    async def _health(self) -> Response:
        health = await self._probe.health()
        status = HTTPStatus.OK if health.ok else HTTPStatus.SERVICE_UNAVAILABLE
        return respond_json(status, {"status": "ok" if health.ok else "failing", "detail": health.detail})

    def _ready(self) -> Response:
        word = "draining" if self._status.is_draining else "ready" if self._status.is_ready else "loading"
        status = HTTPStatus.OK if word == "ready" else HTTPStatus.SERVICE_UNAVAILABLE
        return respond_json(status, {"status": word})

    def _models(self) -> dict[str, object]:
        model = {
            "id": self._model.name,
            "object": "model",
            "created": self._model.created,
            "owned_by": "tokenstage",
            "max_model_len": self._status.max_model_len,
            "max_message_bytes": self._config.max_message_bytes,
        }
        return {"object": "list", "data": [model]}


def refuse_method(path: str) -> Response:
    """The answer to any method but GET and HEAD; a client of another API learns that its path is not served at all."""
    if path not in PATHS:
        return _not_found()
    return refuse(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served here", {"Allow": ", ".join(METHODS)})


def refuse_unread(head: bytes) -> Response:
    """The answer to a request that was not read to its end, such as one with a body; `head` is how it began."""
    line = _REQUEST_LINE.match(head)
    if line is not None and line["method"].decode() not in METHODS:
        return refuse_method(line["path"].partition(b"?")[0].decode())
    return refuse(HTTPStatus.BAD_REQUEST, "this is not a GET or HEAD of HTTP/1.1 without a body")


def _not_found() -> Response:
    return refuse(HTTPStatus.NOT_FOUND, "there is nothing at this path")


def refuse(status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as JSON, in the shape that OpenAI's clients know."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": status.phrase.lower().replace(" ", "_")}
    return respond_json(status, {"error": error}, headers)


def respond_json(status: HTTPStatus, value: object, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON body."""
    body = json.dumps(value).encode() + b"\n"
    return respond(status, body, {"Content-Type": "application/json", **(headers or {})})


def respond(status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> Response:
    """Any body. The connection ends with it; nothing is cached, framed or sniffed."""
    fields = {
        "Date": formatdate(usegmt=True),
        "Connection": "close",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        **headers,
    }
    return Response(status.value, status.phrase, Headers(fields), body)


def _policy(page: bytes) -> str:
    """A Content-Security-Policy that allows exactly the scripts and styles that `page` holds."""
    return (
        f"default-src 'none'; script-src {_inline(page, 'script')}; style-src {_inline(page, 'style')}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _inline(page: bytes, tag: str) -> str:
    bodies = re.findall(rf"<{tag}(?:\s[^>]*)?>(.*?)</{tag}>".encode(), page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(body).digest()).decode() for body in bodies]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
