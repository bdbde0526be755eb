"""What is wrong or odd with single files: broken, turned, of another size or kind than the rest."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vitrail.data.checks.examine import Examined, common_depth
from vitrail.data.checks.perceptual_hash import is_flat
from vitrail.findings import Example, Finding
from vitrail.images.decode import ENDINGS, ImageFacts, kind_of
from vitrail.text import counted, listing

ODD_SHAPE = 2.5  # times as wide, or as tall, as the usual image of the set
TINY_SIDE, TINY_SHARE = 32, 1 / 3  # pixels, and share of the usual shorter side: tiny is below both
HUGE = 40_000_000  # pixels from which decoding takes a noticeable part of a second
MANY_EXAMPLES = 1000  # of what is merely odd; broken files are all listed


def check_files(examined: Sequence[Examined]) -> list[Finding]:
    """All findings about single files, the gravest kinds first."""
    readable = [image for image in examined if image.problem is None and image.facts is not None]
    findings = [
        _broken(examined),
        _mixed_channels(readable),
        _blank(readable),
        _tiny(readable),
        _odd_shape(readable),
        _mixed_depths(readable),
        _mixed_shares(readable),
        _mixed_kinds(readable),
        _huge(readable),
        _wrong_endings(readable),
        _turned(readable),
        _animated(readable),
    ]
    return [finding for finding in findings if finding is not None]


def _broken(examined: Sequence[Examined]) -> Finding | None:
    broken = [(image.path, image.problem) for image in examined if image.problem is not None]
    kinds = Counter(problem.kind for _, problem in broken)
    title = f"{counted(len(broken), 'file')} cannot be read ({', '.join(f'{n:,} {kind}' for kind, n in kinds.items())})"
    advice = "replace or remove them; training leaves them out"
    examples = [Example((path,), problem.why) for path, problem in broken]
    return _finding("broken", "error", title, advice, examples, limit=None)


def _mixed_channels(examined: Sequence[Examined]) -> Finding | None:
    """Grey, colour and transparent ones become each other; seven channels become nothing else."""
    kinds = {image.path: kind_of(facts) for image, facts in _with_facts(examined)}
    kinds = {path: kind if kind.startswith("of ") else "of 1 or 3 channels" for path, kind in kinds.items()}
    counts = Counter(kinds.values())
    if len(counts) < 2:
        return None
    usual = counts.most_common(1)[0][0]
    odd = [Example((path,), kind) for path, kind in kinds.items() if kind != usual]
    title = f"images have different numbers of channels: {', '.join(f'{n:,} {kind}' for kind, n in counts.items())}"
    return _finding("mixed-channels", "error", title, "keep one number of channels: a model takes one", odd)


def _blank(examined: Sequence[Examined]) -> Finding | None:
    blank = [image for image in examined if image.small is not None and is_flat(image.small)]
    title = f"{counted(len(blank), 'image is', 'images are')} of one colour all over"
    return _finding("blank", "warning", title, "remove what shows nothing", [Example((image.path,)) for image in blank])


def _tiny(examined: Sequence[Examined]) -> Finding | None:
    sides = {image.path: min(facts.width, facts.height) for image, facts in _with_facts(examined)}
    usual = statistics.median(sides.values()) if sides else 0
    tiny = [image for image in examined if sides[image.path] < min(TINY_SIDE, usual * TINY_SHARE)]
    title = f"{counted(len(tiny), 'image is', 'images are')} tiny beside the usual {usual:,.0f} pixels"
    advice = "replace thumbnails by the images themselves: enlarged, they show little"
    return _finding("tiny", "warning", title, advice, _with_sizes(tiny))


def _odd_shape(examined: Sequence[Examined]) -> Finding | None:
    shapes = {image.path: facts.width / facts.height for image, facts in _with_facts(examined)}
    usual = statistics.median(shapes.values()) if shapes else 1
    odd = [image for image in examined if not 1 / ODD_SHAPE <= shapes[image.path] / usual <= ODD_SHAPE]
    title = f"{counted(len(odd), 'image is', 'images are')} much wider or taller than the rest"
    advice = "look whether the middle shows what matters, or use the resize rule pad, which cuts nothing off"
    return _finding("odd-shape", "warning", title, advice, _with_sizes(odd))


def _mixed_shares(examined: Sequence[Examined]) -> Finding | None:
    """White is 1 in a file of real numbers from 0 to 1, and 255 or more in one with a single value of 1.01."""
    shares = [image for image in examined if image.share]
    others = [image for image in examined if image.share is False]
    if not shares or not others:
        return None
    title = (
        f"of the images of real numbers {len(shares):,} lie between 0 and 1, where 1 is white, and {len(others):,} do "
        "not, where 1 is nearly black"
    )
    odd = [Example((image.path,)) for image in min(shares, others, key=len)]
    return _finding("mixed-real-ranges", "error", title, "bring all to one range, such as 0 to 1", odd)


def _mixed_depths(examined: Sequence[Examined]) -> Finding | None:
    depths = Counter(image.depth for image in examined if image.depth is not None)
    if len(depths) < 2:
        return None
    usual = depths.most_common(1)[0][0]
    odd = [image for image in examined if image.depth not in (None, usual)]
    title = f"images of more than 8 bits fill different ranges: {listing([f'{d} bits' for d in sorted(depths)], 5)}"
    together = common_depth(examined)
    read_as = "each by its own range" if together is None else f"all as {together} bits"
    advice = f"training reads {read_as}: mend those that are not as the rest, or what they show is darker or brighter"
    # some that stay below the usual depth may be dark pictures; some above it make all others darker
    severity = "warning" if max(depths, key=lambda depth: depth or 0) != usual else "note"
    return _finding(
        "mixed-depths", severity, title, advice, [Example((image.path,), f"{image.depth} bits") for image in odd]
    )


def _mixed_kinds(examined: Sequence[Examined]) -> Finding | None:
    kinds = Counter(kind_of(facts) for _, facts in _with_facts(examined))
    if len(kinds) < 2:
        return None
    usual = kinds.most_common(1)[0][0]
    odd = [Example((image.path,), kind_of(facts)) for image, facts in _with_facts(examined) if kind_of(facts) != usual]
    title = f"images of several kinds: {', '.join(f'{number:,} {kind}' for kind, number in kinds.most_common())}"
    advice = (
        "nothing to do, if new images will be as mixed: all become what the model takes, transparency becomes white"
    )
    return _finding("mixed-kinds", "note", title, advice, odd)


def _huge(examined: Sequence[Examined]) -> Finding | None:
    huge = [image for image, facts in _with_facts(examined) if facts.width * facts.height > HUGE]
    title = f"{counted(len(huge), 'image has', 'images have')} more than {HUGE // 1_000_000} million pixels"
    return _finding("huge", "note", title, "make them smaller once, and training starts faster", _with_sizes(huge))


def _wrong_endings(examined: Sequence[Examined]) -> Finding | None:
    lying = [
        Example((image.path,), f"is {facts.format}")
        for image, facts in _with_facts(examined)
        if ENDINGS.get(_suffix(image.path), facts.format) != facts.format
    ]
    title = f"{counted(len(lying), 'file is', 'files are')} of another type than the name says"
    return _finding("wrong-ending", "note", title, "nothing to do here: the content decides; others may stumble", lying)


def _turned(examined: Sequence[Examined]) -> Finding | None:
    turned = [
        Example((image.path,), f"orientation {facts.orientation}")
        for image, facts in _with_facts(examined)
        if facts.orientation != 1
    ]
    title = f"{counted(len(turned), 'photo is', 'photos are')} stored turned or mirrored (EXIF orientation)"
    return _finding("turned", "note", title, "nothing to do: they are put upright whenever they are read", turned)


def _animated(examined: Sequence[Examined]) -> Finding | None:
    moving = [
        Example((image.path,), counted(facts.frames, "frame"))
        for image, facts in _with_facts(examined)
        if facts.frames > 1 and facts.format in ("GIF", "PNG", "WEBP", "AVIF", "TIFF")
    ]
    title = f"{counted(len(moving), 'file has', 'files have')} several frames or pages"
    return _finding("several-frames", "note", title, "the first is used, except for models of many channels", moving)


# ---- parts


def _finding(
    kind: str, severity: str, title: str, advice: str, examples: list[Example], limit: int | None = MANY_EXAMPLES
) -> Finding | None:
    return Finding(kind, severity, title, advice, len(examples), tuple(examples[:limit])) if examples else None


def _with_facts(examined: Sequence[Examined]) -> list[tuple[Examined, ImageFacts]]:
    return [(image, image.facts) for image in examined if image.facts is not None]


def _with_sizes(examined: Sequence[Examined]) -> list[Example]:
    return [Example((image.path,), f"{facts.width:,} x {facts.height:,}") for image, facts in _with_facts(examined)]


def _suffix(path: Path) -> str:
    return path.suffix.lower()
