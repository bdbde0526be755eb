"""/docs: the OpenAPI document as an HTML page that works offline. FastAPI's own loads its scripts from a CDN."""

from __future__ import annotations

import json
from html import escape
from typing import Any

CSS = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1f; background: #fff; }
h2 { margin: 2.2rem 0 .3rem; font-size: 1.1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9rem; }
pre { background: #f3f3f6; padding: .8rem; overflow-x: auto; border-radius: 6px; }
table { border-collapse: collapse; margin: .5rem 0; }
td { border-top: 1px solid #ddd; padding: .25rem .8rem .25rem 0; vertical-align: top; }
.method { color: #fff; background: #3a4a7a; border-radius: 4px; padding: .1rem .5rem; margin-right: .5rem; }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6ea; background: #17171b; } pre { background: #232329; } td { border-color: #3a3a42; }
  a { color: #9db4ff; }
}
"""


def docs_page(document: dict[str, Any]) -> str:
    """Every name and text of the document is escaped: labels may hold HTML."""
    info = document["info"]
    sections = [
        _section(path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="/docs.css">
<link rel="icon" href="/web/window.svg" type="image/svg+xml"></head>
<body><h1>{escape(info["title"])}</h1><p>{escape(info["description"])}</p>
<p><a href="/">The page</a> · <a href="/openapi.json">openapi.json</a></p>
{"".join(sections)}</body></html>
"""


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    parameters = [_parameter_row(parameter) for parameter in operation.get("parameters", ())]
    content = operation.get("requestBody", {}).get("content", {})
    content_types = ", ".join(f"<code>{escape(content_type)}</code>" for content_type in content)
    responses = [
        f"<tr><td>{escape(status)}</td><td>{escape(response['description'])}</td></tr>"
        for status, response in operation["responses"].items()
    ]
    example = operation.get("x-example")
    return (
        f'<h2><span class="method">{method.upper()}</span><code>{escape(path)}</code></h2>'
        f"<p>{escape(operation['summary'])}</p>"
        + (f"<p>Takes {content_types}.</p>" if content_types else "")
        + (f"<table>{''.join(parameters)}</table>" if parameters else "")
        + (f"<pre>{escape(example)}</pre>" if example else "")
        + f"<details><summary>Answers</summary><table>{''.join(responses)}</table></details>"
    )


def _parameter_row(parameter: dict[str, Any]) -> str:
    schema = {name: value for name, value in parameter["schema"].items() if name not in ("title", "description")}
    return (
        f"<tr><td><code>{escape(parameter['name'])}</code></td><td>{escape(parameter['description'])}</td>"
        f"<td><code>{escape(json.dumps(schema))}</code></td></tr>"
    )
