"""The addresses of the server, and what they answer."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from importlib.resources import files
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.config.schema.calls.of_serving import ServeRules
from runner.tools.serve.image_queue import Answer, ImageQueue, QueueFullError, WorkerLostError
from runner.tools.serve.request_images import compact_json, images_of, inference_request, refusal
from runner.tools.serve.serving_metrics import CONTENT_TYPE, ServingMetrics
from runner.tools.serve.versions import ServedVersion

_OPEN = ("/", "/v2/health/live", "/v2/health/ready")  # without a token: for probes, and a page without secrets
_LARGE_BYTES = 1 << 20  # parsed in a thread
_DISCONNECTED = 499  # nginx's code, for the metrics only
_INFERENCE_LENGTH = "inference-header-content-length"


class Serving(Protocol):
    """What the endpoints need of the server."""

    queue: ImageQueue
    metrics: ServingMetrics

    @property
    def current(self) -> ServedVersion | None:
        """The version that is served; None before the first is ready."""

    @property
    def is_ready(self) -> bool:
        """Whether a worker can score."""


class Endpoints:
    """The addresses of one server."""

    def __init__(self, serving: Serving, rules: ServeRules) -> None:
        self._serving = serving
        self._rules = rules
        self._num_buffered = 0
        self._page, self._page_policy = _page()

    def application(self, token: str | None) -> Starlette:
        """The ASGI application.

        Args:
            token: that requests must have; None: anyone may ask.
        """
        one = "/v2/models/{name:str}"
        of_version = one + "/versions/{version:str}"
        routes = [
            self._route("/", self._show_page, "page"),
            self._route("/score", self._score, "score", "POST"),
            self._route("/metrics", self._show_metrics, "metrics"),
            self._route("/v2", self._describe_server, "server"),
            self._route("/v2/health/live", self._is_live, "live"),
            self._route("/v2/health/ready", self._say_ready, "ready"),
        ]
        for path in (one, of_version):
            routes += [
                self._route(path, self._describe_model, "model"),
                self._route(f"{path}/ready", self._say_model_ready, "model_ready"),
                self._route(f"{path}/infer", self._infer, "infer", "POST"),
            ]
        middleware = []
        if self._rules.cors:
            headers = ["Authorization", "Content-Type", _INFERENCE_LENGTH]
            origins, methods = self._rules.cors, ("GET", "POST")
            middleware.append(
                Middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=headers)
            )
        if token is not None:
            middleware.append(Middleware(_TokenCheck, token=token))
        return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _refused})

    def _route(
        self, path: str, answer: Callable[[Request], Awaitable[Response]], name: str, method: str = "GET"
    ) -> Route:
        async def measured(request: Request) -> Response:
            began, status = time.perf_counter(), 500
            try:
                response = await answer(request)
                status = response.status_code
            except HTTPException as error:
                status = error.status_code
                raise
            except ClientDisconnect:
                status = _DISCONNECTED
                return Response(status_code=400)  # nobody reads it
            finally:
                self._serving.metrics.record_request(name, status, time.perf_counter() - began)
            return response

        return Route(path, measured, methods=[method], name=name)

    async def _score(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        answers = await self._answers(request, lambda body: images_of(kind, body, self._rules.max_images))
        results = [_result(answer) for answer in answers]
        model = answers[0].version.to_json()
        value = {**results[0], "model": model} if len(results) == 1 else {"results": results, "model": model}
        return _json(value)

    async def _infer(self, request: Request) -> Response:
        self._named_version(request)
        text = request.headers.get(_INFERENCE_LENGTH)
        if text is not None and not re.fullmatch(r"[0-9]{1,12}", text):
            raise refusal(400, f"the header {_INFERENCE_LENGTH} must be a number")
        asked: list[Any] = []

        def parse(body: bytes) -> list[bytes]:
            asked.append(inference_request(body, int(text) if text is not None else None, self._rules.max_images))
            images: list[bytes] = asked[0].images
            return images

        answers = await self._answers(request, parse)
        outputs = _outputs(answers)
        if asked[0].outputs is not None:
            unknown = set(asked[0].outputs) - {output["name"] for output in outputs}
            if unknown:
                raise refusal(400, "there is no such output; there are probabilities and label")
            outputs = [output for output in outputs if output["name"] in asked[0].outputs]
        served = answers[0].version
        head = {"model_name": served.name, "model_version": served.version}
        identity = {"id": asked[0].id} if asked[0].id is not None else {}
        return _json({**head, **identity, "outputs": outputs})

    async def _answers(self, request: Request, parse: Callable[[bytes], list[bytes]]) -> list[Answer]:
        """Receive a request, let the workers score its images, and wait for all of them.

        Raises:
            HTTPException: the request or one of its images is refused, or no worker can answer now.
        """
        self._ready_version()
        queue = self._serving.queue
        with self._buffer() as add:
            with queue.receiving():
                body = await self._body(request, add)
                images = await asyncio.to_thread(parse, body) if len(body) > _LARGE_BYTES else parse(body)
                del body
                try:
                    waiting = queue.put(images)
                except QueueFullError:
                    raise self._busy("too many images wait already (serve.queue_size)") from None
            del images
            answers = await self._scored(waiting)
        wrong = [(number, answer.error) for number, answer in enumerate(answers) if answer.error is not None]
        if wrong:
            of_which = f"image {wrong[0][0] + 1} of {len(answers)}: " if len(answers) > 1 else ""
            raise HTTPException(422, f"{of_which}{wrong[0][1]}")
        return answers

    async def _scored(self, waiting: Sequence[asyncio.Future[Answer]]) -> list[Answer]:
        # A worker that dies is replaced, and its images are tried once more.
        seconds = 3 * self._rules.batch_seconds
        try:
            async with asyncio.timeout(seconds):
                return list(await asyncio.gather(*waiting))
        except WorkerLostError:
            raise HTTPException(503, "the worker that had this request has died", {"Retry-After": "1"}) from None
        except TimeoutError:
            raise HTTPException(
                503, f"no worker has answered within {seconds:g} seconds", {"Retry-After": "1"}
            ) from None
        finally:
            for one in waiting:  # after an error the others need no answer
                one.cancel()
                if not one.cancelled():
                    one.exception()

    async def _body(self, request: Request, add: Callable[[int], None]) -> bytes:
        most = int(self._rules.max_body_mib * 2**20)
        too_large = f"the request is too large; at most {self._rules.max_body_mib:g} MiB are read (serve.max_body_mib)"
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > most:
            raise refusal(413, too_large)
        chunks, num_bytes = [], 0
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > most:
                raise refusal(413, too_large)
            add(len(chunk))
            chunks.append(chunk)
        return b"".join(chunks)

    @contextmanager
    def _buffer(self) -> Iterator[Callable[[int], None]]:
        """Counts the bytes of a request that are held in memory, and refuses it where all requests hold too many."""
        held = 0

        def add(num_bytes: int) -> None:
            nonlocal held
            if self._num_buffered + num_bytes > self._rules.max_buffered_mib * 2**20:
                raise self._busy("too many bytes of requests are held already (serve.max_buffered_mib)")
            held += num_bytes
            self._num_buffered += num_bytes

        try:
            yield add
        finally:
            self._num_buffered -= held

    def _busy(self, message: str) -> HTTPException:
        return HTTPException(429, message, {"Retry-After": "1", "Connection": "close"})

    def _ready_version(self) -> ServedVersion:
        current = self._serving.current
        if current is None:
            raise HTTPException(503, "no model is ready yet", {"Retry-After": "5", "Connection": "close"})
        return current

    def _named_version(self, request: Request) -> ServedVersion:
        """The version that a path names; only the one that is served has an address."""
        served, asked = self._ready_version(), request.path_params
        if asked["name"] != served.name or asked.get("version", served.version) != served.version:
            raise refusal(404, "no such model or version is served; GET /v2 names those that are")
        return served

    async def _describe_server(self, request: Request) -> Response:
        del request
        current = self._serving.current
        models = [current.name] if current is not None else []
        return _json(
            {
                "name": "runner",
                "version": installed_version("runner"),
                "extensions": ["binary_tensor_data"],
                "models": models,
            }
        )

    async def _describe_model(self, request: Request) -> Response:
        served = self._named_version(request)
        num_classes = len(served.card.classes)
        return _json(
            {
                "name": served.name,
                "versions": [served.version],
                "platform": "onnxruntime_onnx" if self._rules.format == "onnx" else "pytorch",
                "inputs": [{"name": "image", "datatype": "BYTES", "shape": [-1]}],
                "outputs": [
                    {"name": "probabilities", "datatype": "FP32", "shape": [-1, num_classes]},
                    {"name": "label", "datatype": "BYTES", "shape": [-1]},
                ],
                "parameters": {"classes": list(served.card.classes)},
            }
        )

    async def _is_live(self, request: Request) -> Response:
        del request
        return _json({"live": True})

    async def _say_ready(self, request: Request) -> Response:
        del request
        is_ready = self._serving.is_ready
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    async def _say_model_ready(self, request: Request) -> Response:
        self._named_version(request)
        return await self._say_ready(request)

    async def _show_metrics(self, request: Request) -> Response:
        del request
        return Response(self._serving.metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def _show_page(self, request: Request) -> Response:
        del request
        headers = {"Content-Security-Policy": self._page_policy, "Cache-Control": "no-store"}
        return Response(self._page, headers={**_GUARDS, **headers}, media_type="text/html")


_GUARDS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(compact_json(value), status, _GUARDS, "application/json")


async def _refused(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    headers = {**_GUARDS, **(error.headers or {})}
    return Response(compact_json({"error": error.detail}), error.status_code, headers, "application/json")


def _result(answer: Answer) -> dict[str, Any]:
    classes = answer.version.card.classes
    # As doubles, whose shortest text is read back to the same float32.
    shares = dict(zip(classes, answer.probabilities.tolist(), strict=True))
    return {"label": classes[answer.predicted], "probabilities": shares}


def _outputs(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    classes = answers[0].version.card.classes
    shares = [share for answer in answers for share in answer.probabilities.tolist()]
    labels = [answer.version.card.classes[answer.predicted] for answer in answers]
    return [
        {"name": "probabilities", "datatype": "FP32", "shape": [len(answers), len(classes)], "data": shares},
        {"name": "label", "datatype": "BYTES", "shape": [len(answers)], "data": labels},
    ]


def _page() -> tuple[bytes, str]:
    """The page, and the policy that lets a browser run its own script and style and nothing else."""
    page = files("runner.tools.serve").joinpath("page.html").read_text(encoding="utf-8")
    digests = {}
    for tag in ("script", "style"):
        content = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digests[tag] = b64encode(hashlib.sha256(content.encode()).digest()).decode()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'sha256-{digests['script']}'",
            f"style-src 'sha256-{digests['style']}'",
            "img-src blob: data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return page.encode(), policy


class _TokenCheck:
    """Refuses requests without the token; the probes and the page need none."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, self._expected):
                headers = {**_GUARDS, "WWW-Authenticate": "Bearer", "Connection": "close"}
                answer = Response(compact_json({"error": "a token is needed"}), 401, headers, "application/json")
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)
