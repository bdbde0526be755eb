"""The routes: what each address takes and gives. All of it runs in the event loop and waits; work is elsewhere."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from vitrail.data.unreadable import UnreadableImage
from vitrail.explanation.tokens import prefix_names, token_name, token_of
from vitrail.serving.answers import as_png, plain, sentence_of, without_arrays
from vitrail.serving.asking import check_names, numbers, one_of, whole
from vitrail.serving.docs_page import CSS, docs_page
from vitrail.serving.explaining import explained, methods_of, walked
from vitrail.serving.framing import placed, thinned
from vitrail.serving.maps import Maps, maps_of, maps_of_queries, packed
from vitrail.serving.openapi import document
from vitrail.serving.passing import Part, Passed
from vitrail.serving.refusals import Refusal, as_json, busy, unfit
from vitrail.serving.still import Still
from vitrail.serving.working import Workshop

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

TOP = 1000  # guesses
ENTRIES = 2_000_000  # numbers of maps in a JSON answer; more go as bytes
BINARY = "application/octet-stream"


class Api:
    """What stands at each address. `ready` is false while the server drains."""

    def __init__(self, work: Workshop, web: dict[str, Still], samples: Sequence[Still]) -> None:
        self.work, self.served, self.metrics = work, work.served, work.metrics
        self.ready: Callable[[], bool] = lambda: True
        self.in_hand: Callable[[], int] = lambda: 0
        addresses = [{"name": one.name, "url": f"/v1/samples/{place}"} for place, one in enumerate(samples)]
        self.description = self.served.describe(addresses)
        self.routes = self._routes(web, samples)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        methods = self.routes.get(scope["path"])
        if methods is None:
            raise Refusal(404, "there is nothing at this address: /docs tells what there is", why="address")
        handler = methods.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if handler is None:
            allowed = {"allow": ", ".join(methods)}
            raise Refusal(405, f"this address takes {allowed['allow']}", why="address", headers=allowed)
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)

    def path(self, path: str) -> str:
        """An address for the metrics, of which there are only as many as there are routes."""
        if path.startswith(("/web/", "/v1/samples/")):
            path = path[: path.rindex("/") + 1]
            return path if path in ("/web/", "/v1/samples/") else "other"
        return path if path in self.routes else "other"

    def _routes(self, web: dict[str, Still], samples: Sequence[Still]) -> dict[str, dict[str, Handler]]:
        described = document(self.description)
        asked: dict[str, Handler] = {
            "/v1/model": _constant(as_json(self.description), "application/json"),
            "/openapi.json": _constant(as_json(described), "application/json"),
            "/docs": _constant(docs_page(described).encode(), "text/html; charset=utf-8"),
            "/docs.css": _constant(CSS.encode(), "text/css; charset=utf-8"),
            "/healthz": _constant(b'{"status":"alive"}', "application/json"),
            "/readyz": self.readyz,
            "/metrics": self.show_metrics,
        }
        asked |= {f"/web/{name}": _constant(one.data, one.kind, "no-cache") for name, one in web.items()}
        asked |= {f"/v1/samples/{place}": _constant(one.data, one.kind) for place, one in enumerate(samples)}
        if "index.html" in web:
            asked["/"] = _constant(web["index.html"].data, web["index.html"].kind, "no-cache")
        sent: dict[str, Handler] = {
            "/v1/predict": self.predict,
            "/v1/embed": self.embed,
            "/v1/look": self.look,
            "/v1/attention": self.attention,
            "/v1/explain": self.explain,
            "/v1/walk": self.walk,
        }
        return {path: {"GET": handler} for path, handler in asked.items()} | {
            path: {"POST": handler} for path, handler in sent.items()
        }

    # ---- answers

    async def predict(self, request: Request) -> Response:
        check_names(request, "top")
        top = whole(request, "top", 5, 1, TOP)
        if self.served.task is None:
            raise unfit(self.served.no_task)
        started = time.perf_counter()
        results = await self.work.each(request, lambda picture, passed: self.served.answer(picture, passed, top))
        answers = [await self._told(one) for one in results]
        return _json({"results": answers, "milliseconds": _milliseconds(started)})

    async def embed(self, request: Request) -> Response:
        check_names(request)
        results = await self.work.each(request, lambda _, passed: self.served.embedding(passed), always_pass=True)
        vectors = [{"error": sentence_of(one)} if isinstance(one, UnreadableImage) else one for one in results]
        return _json({"embeddings": vectors, "width": next(len(one) for one in results if isinstance(one, list))})

    async def look(self, request: Request) -> Response:
        """Everything that the page shows first, from one pass through the model."""
        check_names(request, "block", "top")
        block, top = self._block(request), whole(request, "top", 5, 1, TOP)

        async with self.work.one_picture(request, self.work.images, shown=True) as (picture, seconds, jpeg):

            def finish(result: Passed) -> tuple[Any, dict[str, Any], float, float]:
                begun = time.perf_counter()
                assert result.tokens is not None
                maps = maps_of(self.served.model, block, result.tokens, result.turns).parts()
                if result.queries is not None:
                    maps |= maps_of_queries(self.served.model, result.queries).parts("queries")
                answer = None if self.served.task is None else self.served.answer(picture, result, top)
                return answer, maps, result.seconds, time.perf_counter() - begun

            found = await self.work.in_time(request, self.work.thread.batched(Part(picture.pixels, finish, block)))
        answer, maps, forward, spent = found
        told, arrays = without_arrays(answer)
        header = {
            "answer": told,
            "words": self.served.words(answer),
            "grid": list(self.served.grid),
            "prefix": prefix_names(self.served.checkpoint.config),
            "block": block,
            "size": list(picture.size),
            "milliseconds": {"decode": _ms(seconds), "forward": _ms(forward), "maps": _ms(spent)},
            **placed(answer or {}, picture.frame),
        }
        parts = {"picture": jpeg, **maps, **{name: thinned(array) for name, array in arrays.items()}}
        return Response(packed(header, parts), media_type=BINARY)

    async def attention(self, request: Request) -> Response:
        check_names(request, "block", "query", "heads")
        config, grid = self.served.checkpoint.config, self.served.grid
        block, heads = self._block(request), numbers(request, "heads", 0, config.heads - 1)
        asked = request.query_params.get("query")
        query = None if asked is None else token_of(_number_or_text(asked), config, grid)
        as_text = "application/json" in request.headers.get("accept", "")
        tokens = config.prefix + grid[0] * grid[1]
        entries = len(heads or range(config.heads)) * (tokens if query is None else 1) * tokens
        if as_text and entries > ENTRIES:
            raise unfit(f"{entries:,} numbers are too many for JSON: ask for one query, or for {BINARY}")

        def finish(result: Passed) -> Maps:
            assert result.tokens is not None
            rows = None if query is None else [query]
            return maps_of(self.served.model, block, result.tokens, result.turns, queries=rows, heads=heads)

        async with self.work.one_picture(request, self.work.images) as (picture, _, _):
            maps = await self.work.in_time(request, self.work.thread.batched(Part(picture.pixels, finish, block)))
        header = {
            "block": block,
            "query": None if query is None else token_name(query, config, grid),
            "heads": heads if heads is not None else list(range(config.heads)),
            "grid": list(grid),
            "prefix": prefix_names(config),
        }
        if as_text:
            return await self.work.in_pool(lambda: _json({**header, "maps": np.round(maps.values(), 6).tolist()}))
        return Response(packed(header, {**maps.parts()}), media_type=BINARY)

    async def explain(self, request: Request) -> Response:
        check_names(request, "method", "label")
        methods = methods_of(self.served.looked_at)
        method = one_of(request, "method", methods, methods[0])
        target = self._target(request.query_params.get("label"))
        started = time.perf_counter()
        async with self.work.one_picture(request, self.work.slow) as (picture, _, _):
            work = self.work.thread.alone(
                lambda: explained(self.served.looked_at, self.served.input_of(picture), method, target)
            )
            found, explains = await self.work.in_time(request, work)
        labels = self.served.looked_at_labels
        answer = {
            "method": method,
            "label": labels[explains] if labels is not None and explains is not None else None,
            "grid": list(found.shape),
            "map": _rounded(found),
            "milliseconds": _milliseconds(started),
        }
        return _json(answer)

    async def walk(self, request: Request) -> Response:
        check_names(request, "block")
        block, labels = self._block(request), self.served.looked_at_labels
        async with self.work.one_picture(request, self.work.slow) as (picture, _, _):
            work = self.work.thread.alone(
                lambda: walked(self.served.looked_at, self.served.input_of(picture), picture.pixels, labels, block)
            )
            steps = await self.work.in_time(request, work)
        return await self.work.in_pool(lambda: _json({"block": block, "steps": plain(steps)}))

    # ---- the server itself

    async def readyz(self, request: Request) -> Response:
        if not self.ready():
            raise busy("the server is stopping", why="stopping")
        return _json({"status": "ready"})

    async def show_metrics(self, request: Request) -> Response:
        gauges = {
            "vitrail_requests_in_hand": self.in_hand(),
            "vitrail_images_in_hand": self.work.images.taken + self.work.slow.taken,
            "vitrail_jobs_waiting": self.work.thread.waiting,
        }
        return Response(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    # ---- parts

    async def _told(self, result: Any) -> Any:
        """An answer, or why there is none, fit for JSON."""
        if isinstance(result, UnreadableImage):
            return {"error": sentence_of(result)}
        answer, arrays = without_arrays(result)
        for name, array in arrays.items():
            answer[f"{name}_png"] = await self.work.in_pool(functools.partial(as_png, array))
        return answer

    def _block(self, request: Request) -> int:
        depth = self.served.checkpoint.config.depth
        return whole(request, "block", -1, -depth, depth - 1) % depth

    def _target(self, label: str | None) -> int | None:
        if label is None:
            return None
        labels = self.served.looked_at_labels or []
        if label not in labels:
            raise unfit("the model knows no such label: /v1/model has the list")
        return labels.index(label)


def _constant(data: bytes, kind: str, cache: str | None = None) -> Handler:
    headers = {"cache-control": cache} if cache else {}

    async def give(request: Request) -> Response:
        return Response(data, headers={**headers, "content-type": kind})

    return give


def _json(value: Any) -> Response:
    return Response(as_json(value), media_type="application/json")


def _number_or_text(text: str) -> int | str:
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 10 else text


def _rounded(values: np.ndarray) -> Any:
    """Five digits: more than a map is good for."""
    flat = [float(f"{value:.5g}") for value in np.asarray(values, np.float64).ravel()]
    return np.array(flat).reshape(values.shape).tolist()


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)


def _milliseconds(started: float) -> float:
    return _ms(time.perf_counter() - started)
