"""Writes the names of ImageNet's classes, as the package ships them: `python docs/write_imagenet_names.py`.

They come from timm's tables; timm is a test dependency. A name is the synset's first word; where several synsets have
it, its second word or the beginning of its definition stands behind in brackets.
"""

from __future__ import annotations

import gzip
import importlib.util
import re
from collections import Counter
from pathlib import Path

PLACE = Path(__file__).parents[1] / "src" / "vitrail" / "weights"
LICENCE = """\
# Names of the classes of {which}, in the order of the outputs of published models.
# From timm 1.0.30 (Apache License 2.0), whose words and definitions are those of WordNet 3.0, copyright Princeton
# University, under the WordNet licence: permission to use, copy, modify and distribute for any purpose without fee.
"""
SMALL_WORDS = re.split(" ", "a an and as at before by for from in into is of on or that the to used which with")
BY_HAND = {  # of ImageNet-1k
    "n02012849": "crane (bird)",
    "n03126707": "crane (machine)",
    "n03710637": "maillot (tights)",
    "n03710721": "maillot (tank suit)",
}


def main() -> None:
    spec = importlib.util.find_spec("timm")
    assert spec is not None and spec.origin is not None
    tables = Path(spec.origin).parent / "data" / "_info"
    words = table(tables / "imagenet_synset_to_lemma.txt")
    meaning = table(tables / "imagenet_synset_to_definition.txt")
    small, middle, large, largest = (
        (tables / f"imagenet{which}_synsets.txt").read_text().split() for which in ("", "12k", "22k", "21k_goog")
    )
    names = [BY_HAND.get(synset, words[synset].split(", ")[0]) for synset in small]
    assert len(set(names)) == len(names) == 1000
    text = LICENCE.format(which="ImageNet-1k") + "\n".join(names) + "\n"
    (PLACE / "imagenet_1k.txt").write_text(text, encoding="utf-8")

    names = distinct(largest, words, meaning)
    in_middle, in_large = set(middle), set(large)
    # the three sets are in one order, that of the synsets; a mark says which of them a name is in
    assert middle == [s for s in largest if s in in_middle] and large == [s for s in largest if s in in_large]
    marks = ["12k" if s in in_middle else "22k" if s in in_large else "21k" for s in largest]
    which = "ImageNet-21k: 12k are 11,821 classes, with 22k 21,841, with 21k 21,843"
    lines = [f"{mark}\t{name}" for mark, name in zip(marks, names, strict=True)]
    text = LICENCE.format(which=which) + "\n".join(lines) + "\n"
    (PLACE / "imagenet_21k.txt.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def table(path: Path) -> dict[str, str]:
    """Synset -> text."""
    return dict(line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines())


def distinct(synsets: list[str], words: dict[str, str], meaning: dict[str, str]) -> list[str]:
    """One name a synset, no two alike."""
    several = {s: words[s].split(", ") for s in synsets}
    first = Counter(names[0] for names in several.values())
    both = Counter(tuple(names[:2]) for names in several.values())
    result: list[str] = []
    seen: set[str] = set()
    for synset, names in several.items():
        name = names[0]
        if first[name] > 1:
            second = names[1] if len(names) > 1 and both[tuple(names[:2])] == 1 else short(meaning[synset])
            name = f"{name} ({second})"
        while name in seen:
            name = f"{names[0]} ({synset})"
        seen.add(name)
        result.append(name)
    return result


def short(definition: str) -> str:
    """The beginning of a definition, eight words at most."""
    clause = re.split(r"[;(]|, ", re.sub(r"^\([^)]*\) *", "", definition))[0].strip() or definition
    shown = clause.split()[:8]
    while shown[-1] in SMALL_WORDS and len(shown) > 1:
        shown.pop()
    return " ".join(shown)


if __name__ == "__main__":
    main()
