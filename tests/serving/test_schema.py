"""The OpenAPI document is a promise: schemathesis sends what it allows and what it forbids, and checks what comes."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving.server import Server, form, picture

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def api(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"http://{server.host}:{server.port}/openapi.json")


ADDRESSES = [("GET", path) for path in ("/v1/model", "/healthz", "/readyz", "/metrics")]
ADDRESSES += [("POST", f"/v1/{name}") for name in ("predict", "embed", "look", "attention", "explain", "walk")]


POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
KINDS = [(*address, POSITIVE) for address in ADDRESSES]
KINDS += [(*address, NEGATIVE) for address in ADDRESSES if address[0] == "POST"]  # a plain GET leaves nothing to forbid


@pytest.mark.parametrize(("method", "path", "mode"), KINDS, ids=str)
def test_requests_of_all_kinds(api: Any, method: str, path: str, mode: GenerationMode) -> None:
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def every(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    every()


def test_the_document_names_every_address(server: Server) -> None:
    assert set(server.get("/openapi.json").json["paths"]) == {path for _, path in ADDRESSES}


@pytest.mark.parametrize(
    "path", ["/v1/predict", "/v1/predict?unknown=1", "/v1/embed", "/v1/attention?query=0,0", "/v1/explain", "/v1/walk"]
)
def test_real_answers_are_of_the_promised_form(server: Server, api: Any, path: str) -> None:
    """Schemathesis sends no real image, so that it sees no real answer."""
    import jsonschema_rs

    body, kind = form(picture())
    response = server.ask("POST", path, body, {"Content-Type": kind, "Accept": "application/json"})
    assert response.status == 200
    document = server.get("/openapi.json").json
    promised = document["paths"][path.partition("?")[0]]["post"]["responses"]["200"]
    schema = {**promised["content"]["application/json"]["schema"], "components": document["components"]}
    jsonschema_rs.validate(schema, response.json)
