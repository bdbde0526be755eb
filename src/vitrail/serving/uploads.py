"""The images of a request: multipart fields `image`, or JSON `{"images": [base64, ...]}`."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from vitrail.serving.http_errors import HttpError, unprocessable
from vitrail.serving.limits import Limits

MAX_BRACKETS = 100  # of lists and objects in a JSON body; two are needed


class InMemoryParser(MultiPartParser):
    """Starlette's parser without temporary files: a body is bounded, and nothing of it should be left on disk."""

    spool_max_size = 2**62


async def read_images(request: Request, limits: Limits) -> list[bytes]:
    """The image files of a request in their order, at least one."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if content_type == "multipart/form-data":
            images = await _images_from_form(request, limits)
        elif content_type == "application/json":
            body = await request.body()
            images = await asyncio.to_thread(_images_from_json, body, limits)  # decoding megabytes takes a while
        else:
            raise HttpError(415, "send multipart/form-data with a field 'image', or application/json with 'images'")
    except ClientDisconnect:
        raise HttpError(400, "the client hung up", reason="gone") from None
    if len(images) > limits.images:
        raise _too_many_images(limits)
    if not images:
        raise unprocessable("there is no image: send a field 'image' that is a file, or JSON with a list 'images'")
    return images


async def _images_from_form(request: Request, limits: Limits) -> list[bytes]:
    parser = InMemoryParser(
        request.headers, request.stream(), max_files=limits.images, max_fields=16, max_part_size=65536
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise _too_many_images(limits) from None
        raise HttpError(400, f"the multipart body is damaged: {error.message}") from None
    images = []
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(form.close)
        for name, part in form.multi_items():
            if name != "image" or not isinstance(part, UploadFile):
                raise unprocessable("every field of the form is called 'image' and is a file, with a file name")
            images.append(await part.read())
    return images


def _images_from_json(body: bytes, limits: Limits) -> list[bytes]:
    _check_json(body, limits)
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise HttpError(400, "the body is not JSON") from None
    images = value.get("images") if isinstance(value, dict) else None
    if not isinstance(images, list) or set(value) != {"images"} or not all(isinstance(image, str) for image in images):
        raise unprocessable('the JSON body is {"images": [...]}, a list of texts in base64')
    return [_decode_base64(image, number) for number, image in enumerate(images, start=1)]


def _check_json(body: bytes, limits: Limits) -> None:
    """Before it is parsed: 30 MB of `{}` would become a GB of objects. Base64 has neither brackets nor commas; a data:
    URL has one comma."""
    if body.count(b"{") + body.count(b"[") > MAX_BRACKETS:
        raise HttpError(400, 'the JSON body is {"images": [...]}, without other lists and objects')
    if body.count(b",") > 2 * limits.images + MAX_BRACKETS:
        raise _too_many_images(limits)


def _decode_base64(text: str, number: int) -> bytes:
    """With or without the prefix 'data:image/png;base64,' that browsers add."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise unprocessable(f"image number {number} is not base64") from None


def _too_many_images(limits: Limits) -> HttpError:
    return HttpError(413, f"a request has at most {limits.images} images: send them in several")
