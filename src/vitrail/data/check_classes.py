"""What is wrong or odd with the classes as a whole: too few images, unequal numbers, a give-away that is no content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence

from vitrail.data.check_files import kind_of
from vitrail.data.collection import Collection, obstacles
from vitrail.data.examine import Examined
from vitrail.data.findings import Example, Finding
from vitrail.data.images import ImageFacts
from vitrail.data.names import counted, listing

FEW = 10  # images of a class below which neither learning nor measuring it means much
UNEQUAL = 10  # times as many images in the largest class as in the smallest
GIVEN_AWAY = 0.5  # share of the mistakes of guessing that knowing the file type would avoid
SHOWN_IN = 0.05  # share of the images that must differ in it, so that a few oddities are no give-away


def check_classes(
    collection: Collection, seen: Sequence[Examined], automatic: bool, known: Container[str] = ()
) -> list[Finding]:
    """`collection` with every item in a part, by the user or `automatic`; `seen` in the order of its items.
    `known`: kinds of findings that were made already."""
    there = {*(finding.kind for finding in collection.findings)}
    found: list[Finding | None] = [
        finding for finding in obstacles(collection) if finding.kind not in known and finding.kind not in there
    ]
    if collection.task not in ("regress", "segment"):
        counts = collection.class_counts("train")
        if automatic:  # what chance puts aside of a small class is nobody's fault
            counts = [a + b for a, b in zip(counts, collection.class_counts("val"), strict=True)]
        found += [_few(collection, counts), _unequal(collection, counts), _not_measured(collection)]
    if collection.task == "detect":
        found.append(_not_learnt(collection))
    if collection.task == "classify" and len(collection.labels) > 1:
        found.append(_given_away(collection, seen))
    return [finding for finding in found if finding is not None]


def _few(collection: Collection, counts: list[int]) -> Finding | None:
    few = [number for number, count in enumerate(counts) if 0 < count < FEW]
    if not few:
        return None
    names = listing([f"{collection.labels[number]} ({counts[number]})" for number in few], 5)
    title = (
        f"{counted(len(few), 'class has', 'classes have')} fewer than {FEW} {_many(collection)} to learn from: {names}"
    )
    return Finding(
        "few-images", "warning", title, f"add {_many(collection)}, or join it with a class like it", len(few)
    )


def _unequal(collection: Collection, counts: list[int]) -> Finding | None:
    present = [number for number, count in enumerate(counts) if count]
    if len(present) < 2:
        return None
    large, small = max(present, key=counts.__getitem__), min(present, key=counts.__getitem__)
    ratio = counts[large] / counts[small]
    if ratio < UNEQUAL:
        return None
    names = f"{collection.labels[large]} {counts[large]:,}, {collection.labels[small]} {counts[small]:,}"
    title = f"the largest class has {ratio:,.0f} times as many {_many(collection)} as the smallest ({names})"
    advice = "balance the classes in training, and judge by balanced accuracy: always saying the largest scores well"
    if collection.task == "detect":
        advice = "judge by the mean over classes, and add images that show the small one"
    return Finding("unequal-classes", "warning", title, advice, len(present))


def _not_measured(collection: Collection) -> Finding | None:
    val, train = collection.class_counts("val"), collection.class_counts("train")
    absent = [name for name, held, learnt in zip(collection.labels, val, train, strict=True) if learnt and not held]
    if not absent or not any(val):
        return None
    what = "box" if collection.task == "detect" else "image"
    title = f"{counted(len(absent), 'class has', 'classes have')} no validation {what}: {listing(absent, 5)}"
    advice = "add images of it to val: what is not measured may be wrong unnoticed"
    return Finding("class-not-in-val", "warning", title, advice, len(absent))


def _not_learnt(collection: Collection) -> Finding | None:
    """Boxes elsewhere of what train has none of: the others can be learnt all the same."""
    counts, train = collection.class_counts(), collection.class_counts("train")
    absent = [name for name, all_, learnt in zip(collection.labels, counts, train, strict=True) if all_ and not learnt]
    if not absent:
        return None
    title = f"{counted(len(absent), 'class has', 'classes have')} no training box: {listing(absent, 5)}"
    advice = "add some to train: it cannot be learnt, and counts as missed where it is measured"
    return Finding("class-not-in-train", "warning", title, advice, len(absent))


def _many(collection: Collection) -> str:
    return "boxes" if collection.task == "detect" else "images"


def _given_away(collection: Collection, seen: Sequence[Examined]) -> Finding | None:
    """A class of PNG files beside one of JPEG files can be told by traces of compression, which nobody means."""
    asked: tuple[tuple[str, Callable[[ImageFacts], str]], ...] = (
        ("file type", lambda facts: facts.format),
        ("kind (grey, colour)", kind_of),
        ("size", lambda facts: f"{facts.width} x {facts.height}"),
    )
    pairs = [
        (one.facts, item.target)
        for one, item in zip(seen, collection.items, strict=True)
        if one.facts is not None and isinstance(item.target, int)
    ]
    for what, ask in asked:
        told = _told_by([(ask(facts), target) for facts, target in pairs])
        if told is not None:
            title = f"the {what} of a file tells its class in {100 * told:.0f} of 100 cases"
            advice = "make it the same for all classes, or the model may learn that instead of what the images show"
            return Finding("given-away", "warning", title, advice, len(pairs), _by_class(collection, seen, ask))
    return None


def _told_by(pairs: list[tuple[str, int]]) -> float | None:
    """How often the class is right that most images with the same answer have; None where that is no give-away."""
    answers = Counter(answer for answer, _ in pairs)
    common = {answer for answer, count in answers.items() if count >= SHOWN_IN * len(pairs)}
    if len(common) < 2:
        return None
    best = Counter[int](target for _, target in pairs).most_common(1)[0][1]
    by_answer: dict[str, Counter[int]] = {}
    for answer, target in pairs:
        if answer in common:  # what is rare may be told apart by chance
            by_answer.setdefault(answer, Counter())[target] += 1
    right = sum(counts.most_common(1)[0][1] for counts in by_answer.values())
    avoided = (right - best) / max(1, len(pairs) - best)
    return right / len(pairs) if avoided >= GIVEN_AWAY else None


def _by_class(
    collection: Collection, seen: Sequence[Examined], ask: Callable[[ImageFacts], str]
) -> tuple[Example, ...]:
    """For each class its usual answer, with one file that has it."""
    answers: dict[int, Counter[str]] = {}
    for one, item in zip(seen, collection.items, strict=True):
        if one.facts is not None and isinstance(item.target, int):
            answers.setdefault(item.target, Counter())[ask(one.facts)] += 1
    examples = []
    for number, counts in sorted(answers.items()):
        answer, count = counts.most_common(1)[0]
        file = next(
            one.path
            for one, item in zip(seen, collection.items, strict=True)
            if item.target == number and one.facts is not None and ask(one.facts) == answer
        )
        note = f"{collection.labels[number]}: {answer} in {count:,} of {sum(counts.values()):,}"
        examples.append(Example((file,), note))
    return tuple(examples)
