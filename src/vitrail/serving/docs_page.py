"""/docs: the OpenAPI document as a page for people. Made here, so that nothing is loaded from elsewhere."""

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
    """Every name and text of the document is text here, whatever it contains."""
    info = document["info"]
    sections = [
        _section(path, method, told) for path, methods in document["paths"].items() for method, told in methods.items()
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="/docs.css"></head>
<body><h1>{escape(info["title"])}</h1><p>{escape(info["description"])}</p>
<p><a href="/">The page</a> · <a href="/openapi.json">openapi.json</a></p>
{"".join(sections)}</body></html>
"""


def _section(path: str, method: str, told: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['description'])}</td>"
        f"<td><code>{escape(json.dumps(one['schema']))}</code></td></tr>"
        for one in told.get("parameters", ())
    ]
    taken = ", ".join(f"<code>{escape(kind)}</code>" for kind in told.get("requestBody", {}).get("content", {}))
    answers = [
        f"<tr><td>{escape(status)}</td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in told["responses"].items()
    ]
    example = told.get("x-example")
    return (
        f'<h2><span class="method">{method.upper()}</span><code>{escape(path)}</code></h2>'
        f"<p>{escape(told['summary'])}</p>"
        + (f"<p>Takes {taken}.</p>" if taken else "")
        + (f"<table>{''.join(rows)}</table>" if rows else "")
        + (f"<pre>{escape(example)}</pre>" if example else "")
        + f"<details><summary>Answers</summary><table>{''.join(answers)}</table></details>"
    )
