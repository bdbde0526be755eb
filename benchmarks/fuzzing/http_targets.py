"""What is fuzzed: requests to the server, through its own app and protocol, in this process and without a socket."""

from __future__ import annotations

import asyncio
import atexit
import base64
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.fuzzing.image_targets import image_seeds
from benchmarks.fuzzing.model_targets import tiny
from benchmarks.fuzzing.target import Broken, Target

if TYPE_CHECKING:
    from uvicorn import Config

    from vitrail.serving.middleware.security import SecurityMiddleware

PATHS = ("/v1/predict", "/v1/embed", "/v1/attention", "/v1/look", "/v1/explain", "/v1/walk")
TYPES = ("multipart/form-data; boundary=edge", "application/json", "multipart/form-data", "text/plain")
MARK = b"\xff\0\xff"  # where a body is cut into messages
SECONDS = 20.0  # for an answer


class InProcess:
    """A server of a tiny model: its event loop runs while a request is answered, and stands still between them."""

    def __init__(self) -> None:
        from vitrail.serving.app import create_app
        from vitrail.serving.job_runner import JobRunner
        from vitrail.serving.middleware.access_policy import AccessPolicy
        from vitrail.serving.served_model import ServedModel
        from vitrail.serving.server import limits_from_options

        limits = limits_from_options(bytes=100_000, pixels=250_000, images=4, patience=0.2, seconds=SECONDS)
        self.loop = asyncio.new_event_loop()
        self.runner = JobRunner(ServedModel(tiny(), "model.safetensors", limits, device="cpu"), limits, workers=1)
        self.app: SecurityMiddleware = create_app(self.runner, AccessPolicy())
        assert self._config.loaded  # which also ends the log lines about damaged bodies
        self.loop.run_until_complete(self.runner.warm_up())
        atexit.register(self.runner.close)

    def answer(self, path: str, query: bytes, headers: dict[str, str], parts: list[bytes]) -> tuple[int, bytes]:
        """Status and body, for a request whose body comes in these parts."""
        messages: list[Any] = []
        pending = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        pending.append({"type": "http.request", "body": b"", "more_body": False})

        async def receive() -> Any:
            if pending:
                return pending.pop(0)
            return await asyncio.Event().wait()  # this client never hangs up

        async def send(message: Any) -> None:
            messages.append(message)

        named = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": query, "headers": named}
        self.loop.run_until_complete(asyncio.wait_for(self.app(scope, receive, send), 2 * SECONDS))
        return messages[0]["status"], b"".join(message.get("body", b"") for message in messages[1:])

    def exchange(self, data: bytes) -> bytes:
        """What the server writes to a connection on which these bytes arrive, and nothing after them."""
        return self.loop.run_until_complete(self._exchange(data))

    async def _exchange(self, data: bytes) -> bytes:
        import h11

        transport = Wire()
        protocol = self._protocol_class(self._config, self._state, {}, asyncio.get_running_loop())
        protocol.connection_made(transport)
        for part in data.split(MARK):
            if part and not transport.closing:
                protocol.data_received(part)
                await asyncio.sleep(0)
        complete = protocol.conn.their_state is not h11.SEND_BODY  # else the client is gone, and nobody waits for it
        while complete and self._state.tasks and not transport.closing:
            await asyncio.wait(self._state.tasks, timeout=2 * SECONDS)
        protocol.connection_lost(None)
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=2 * SECONDS)
        return bytes(transport.written)

    @functools.cached_property
    def _config(self) -> Config:
        from vitrail.serving.http_server.draining_server import create_server

        config = create_server(self.app, lambda: None).config
        config.load()
        return config

    @functools.cached_property
    def _protocol_class(self) -> Any:
        return self._config.http_protocol_class

    @functools.cached_property
    def _state(self) -> Any:
        from uvicorn.server import ServerState

        return ServerState()


class Wire(asyncio.Transport):
    """Stands for a connection: keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.closing = bytearray(), False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: Any) -> None: ...


@functools.cache
def server() -> InProcess:
    return InProcess()


def check_answer(status: int, body: bytes) -> None:
    if status >= 500 and status != 503:
        raise Broken(f"the server answered {status}: {body[:200]!r}")
    if status >= 400:
        sentence = json.loads(body)["error"]
        if "\n" in sentence or not sentence.strip():
            raise Broken(f"the sentence is {sentence[:200]!r}")


def body(data: bytes, folder: Path) -> None:
    """A body for one of the routes: the first byte says which, the second its type; after them, marks cut it."""
    route, kind = (*data[:2], 0, 0)[:2]
    headers = {"host": "localhost", "content-type": TYPES[kind % 4], "transfer-encoding": "chunked"}
    check_answer(*server().answer(PATHS[route % 6], b"", headers, data[2:].split(MARK)))


def request(data: bytes, folder: Path) -> None:
    """All bytes of a connection: request lines, headers and bodies."""
    written = server().exchange(data)
    while written:
        head, _, rest = written.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 "):
            raise Broken(f"this is no response: {written[:200]!r}")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length, status = int(fields.get(b"content-length", 0)), int(head.split()[1])
        if b"HEAD" in data:  # its answer has a length, and no body
            return
        if fields.get(b"content-type") == b"application/json" or status >= 400:
            check_answer(status, rest[:length])
        written = rest[length:]


def form(*images: bytes) -> bytes:
    head = b'--edge\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    return b"".join(head + image + b"\r\n" for image in images) + b"--edge--\r\n"


def body_seeds() -> list[bytes]:
    jpeg, png = image_seeds()[0], image_seeds()[2]
    texts = [base64.b64encode(png).decode(), "data:image/png;base64," + base64.b64encode(jpeg).decode()]
    as_json = json.dumps({"images": texts}).encode()
    seeds = [bytes([route, 0]) + form(jpeg) for route in range(len(PATHS))]
    seeds += [b"\0\0" + form(png, b"broken", jpeg), b"\1\1" + as_json, b"\0\1" + as_json[:50] + MARK + as_json[50:]]
    return [*seeds, b"\0\1" + b'{"images": []}', b"\0\2" + form(png), b"\0\3hello"]


def request_seeds() -> list[bytes]:
    jpeg = form(image_seeds()[0])
    head = b"POST /v1/predict?top=2 HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=edge\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(jpeg) + jpeg
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(jpeg), jpeg)
    gets = [b"/", b"/healthz", b"/v1/model", b"/metrics", b"/docs", b"/web/../x", b"/v1/samples/0", b"*"]
    seeds = [b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://a\r\n\r\n" % path for path in gets]
    both = head + b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    expect = head + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"
    return [*seeds, whole, chunked, whole[:100] + MARK + whole[100:], seeds[1] + seeds[2] + whole, both, expect]


HTTP_TARGETS = {"body": Target(body, body_seeds), "request": Target(request, request_seeds)}
