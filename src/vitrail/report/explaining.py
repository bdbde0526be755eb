"""The command `vitrail explain`: answers with their reasons, as text, a page, PNG files or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.data.names import counted, shown
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.explanation.as_json import as_json
from vitrail.explanation.explain import Explainer
from vitrail.explanation.png import file_prefixes, write_pngs
from vitrail.explanation.result import Explanation
from vitrail.explanation.words import averaged, lines_of, trust_table
from vitrail.files import write_text
from vitrail.infer.ahead import Pause
from vitrail.infer.sources import STDIN, expand
from vitrail.report.explain_page import page

STDOUT = "-"
MOST = 200  # images of one command: each is kept with all its maps


def run_explain(
    model: str | Path,
    images: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    png: str | Path | None = None,
    json: str | Path | None = None,
    **how: Any,
) -> int:
    """Explain every image; the result is the exit code: 0, or 1 where one could not be read or there was none.

    out: an HTML page. png: a folder for pictures. json: a file, or '-' for standard output. how: see `Explainer`.
    """
    if Path(out or "").is_dir() and out:
        raise VitrailError(f"{out} is a folder: give the name of the page to write, such as {Path(out) / 'page.html'}")
    paths = _paths(images)
    explainer = Explainer(model, walk=out is not None, every_query=out is not None, **how)
    quiet = str(json) == STDOUT
    found, unreadable = [], 0
    for path in paths:
        try:
            one = explainer(path)
        except UnreadableImage as error:
            unreadable += 1
            print(f"{shown(path)}: error: {error.why}", file=sys.stderr if quiet else sys.stdout, flush=True)
            continue
        explainer.walk = False  # one walk shows the network; a second would repeat it
        found.append(one)
        if not quiet:
            _print(one)
    if found and explainer.compare and len(found) > 1 and not quiet:
        print(f"over {counted(len(found), 'image')}")
        print("\n".join(trust_table(averaged(found))))
    if found:
        _write(found, explainer, str(model), out, png, json)
    return 1 if unreadable or not found else 0


def _paths(images: Sequence[str | Path]) -> list[str | Path]:
    if STDIN in [str(image) for image in images]:
        raise VitrailError("explain takes files and folders, not standard input: name the images")
    paths = [path for path in expand(images) if not isinstance(path, Pause)]
    if not paths:
        raise VitrailError("no images were found")
    if len(paths) > MOST:
        raise VitrailError(f"{len(paths):,} images are more than the {MOST} that one command explains: name fewer")
    return paths


def _print(found: Explanation) -> None:
    print("\n".join(lines_of(found)), flush=True)
    if found.curves:
        print("\n".join(trust_table(found.curves)), flush=True)


def _write(
    found: list[Explanation],
    explainer: Explainer,
    model: str,
    out: str | Path | None,
    png: str | Path | None,
    to_json: str | Path | None,
) -> None:
    if to_json is not None:
        text = json.dumps([as_json(one) for one in found], ensure_ascii=True) + "\n"
        if str(to_json) == STDOUT:
            sys.stdout.write(text)
        else:
            write_text(to_json, text)
    if png is not None:
        names = file_prefixes([one.name for one in found])
        count = sum(len(write_pngs(one, png, name)) for one, name in zip(found, names, strict=True))
        print(f"wrote {counted(count, 'picture')} to {png}", file=sys.stderr)
    if out is not None:
        write_text(out, page(found, model=model, checkpoint=explainer.checkpoint))
        print(f"wrote {out}", file=sys.stderr)
