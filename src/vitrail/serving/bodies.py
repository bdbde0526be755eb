"""What a client sends: read with patience but not without end, and taken apart into pictures."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from vitrail.serving.limits import Limits
from vitrail.serving.refusals import Refusal, unfit

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]

SLOWEST = 16_000  # bytes a second that a client must reach on the whole, beyond the first seconds of patience
LEFT_OVER = 1_000_000  # bytes of a refused body that are read and thrown away, so that the connection can go on


class Body:
    """A request's `receive`, with an end: too much is 413, too slow is 408."""

    def __init__(self, receive: Receive, limits: Limits, headers: dict[bytes, bytes]) -> None:
        self.receive, self.limits = receive, limits
        self.received, self.started = 0, time.monotonic()
        length = headers.get(b"content-length", b"")
        self.announced = int(length) if length.isdigit() else None
        self.complete = self.announced == 0 or (self.announced is None and b"transfer-encoding" not in headers)
        self.gone = self.hopeless = False  # hopeless: what is left of it is not worth reading

    async def __call__(self) -> Message:
        if self.complete or self.gone:  # nothing more to read: this tells when the client hangs up
            return await self.receive()
        self._check_size(self.announced or 0)
        spent = time.monotonic() - self.started
        left = self.limits.patience + self.received / SLOWEST - spent
        try:
            async with asyncio.timeout(max(0.0, min(left, self.limits.patience))):
                message = await self.receive()
        except TimeoutError:
            self.hopeless = True
            raise Refusal(408, "the request's body came too slowly: send it again", why="slow") from None
        self._count(message)
        self._check_size(self.received)
        return message

    async def thrown_away(self) -> bool:
        """Whether what is left of the body could be read in a moment; a connection is of no use before that."""
        if self.hopeless or (self.announced or 0) > self.received + LEFT_OVER:
            return False
        try:
            async with asyncio.timeout(min(1.0, self.limits.patience)):
                while not self.complete and not self.gone and self.received <= self.limits.bytes + LEFT_OVER:
                    self._count(await self.receive())
        except TimeoutError:
            return False
        return self.complete

    def _check_size(self, size: int) -> None:
        if size > self.limits.bytes:
            raise Refusal(413, f"a request has at most {self.limits.bytes:,} bytes: send fewer or smaller images")

    def _count(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            self.gone = True
        else:
            self.received += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)


class InMemory(MultiPartParser):
    """Starlette's, without files on disk: a body is bounded, and nothing of it should be left behind."""

    spool_max_size = 2**62


async def pictures(request: Request, limits: Limits) -> list[bytes]:
    """The images of a request, in their order: multipart fields `image`, or JSON {"images": [base64, ...]}."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "multipart/form-data":
            found = await _from_form(request, limits)
        elif kind == "application/json":
            found = await asyncio.to_thread(_from_json, await request.body())  # megabytes take a while
        else:
            raise Refusal(415, "send multipart/form-data with a field 'image', or application/json with 'images'")
    except ClientDisconnect:
        raise Refusal(400, "the client hung up", why="gone") from None
    if len(found) > limits.images:
        raise Refusal(413, f"a request has at most {limits.images} images: send them in several")
    if not found:
        raise unfit("there is no image: send a field 'image' that is a file, or JSON with a list 'images'")
    return found


async def _from_form(request: Request, limits: Limits) -> list[bytes]:
    parser = InMemory(request.headers, request.stream(), max_files=limits.images, max_fields=16, max_part_size=65536)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise Refusal(413, f"a request has at most {limits.images} images: send them in several") from None
        raise Refusal(400, f"the multipart body is damaged: {error.message}") from None
    found = []
    async with _closing(form):
        for name, part in form.multi_items():
            if name != "image" or not isinstance(part, UploadFile):
                raise unfit("every field of the form is called 'image' and is a file, with a file name")
            found.append(await part.read())
    return found


class _closing:
    def __init__(self, form: Any) -> None:
        self.form = form

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        await self.form.close()


def _from_json(body: bytes) -> list[bytes]:
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None
    images = sent.get("images") if isinstance(sent, dict) else None
    if not isinstance(images, list) or set(sent) != {"images"} or not all(isinstance(image, str) for image in images):
        raise unfit('the JSON body is {"images": [...]}, a list of texts in base64')
    return [_decoded(image, number) for number, image in enumerate(images, start=1)]


def _decoded(text: str, number: int) -> bytes:
    """Base64, with or without the 'data:image/png;base64,' that browsers put before it."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise unfit(f"image number {number} is not base64") from None
