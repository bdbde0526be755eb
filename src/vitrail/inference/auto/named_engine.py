"""An engine that somebody names is taken, and compared with torch once: a line says how fast and how right it is."""

from __future__ import annotations

from vitrail.inference.auto.candidates import REFERENCE, Candidate
from vitrail.inference.auto.choice_record import Choice, read_choice, write_choice
from vitrail.inference.auto.choose import more_pictures, named_key
from vitrail.inference.auto.measure_engines import GAIN, choose, reference_backend
from vitrail.inference.backends.backend import Pictures
from vitrail.inference.backends.graph_cache import fingerprint
from vitrail.inference.engine import Engine
from vitrail.terminal import print_error


def check_engine(engine: Engine, pictures: Pictures) -> None:
    """Where there are pictures to compare on. int8 was judged when it was made; on a GPU there is nothing to choose."""
    named = Candidate(engine.backend.name, engine.backend.precision)
    if named == REFERENCE or named.precision == "int8" or engine.backend.device.type != "cpu":
        return
    key = named_key(engine, fingerprint(engine.network), named)
    choice = read_choice(key)
    images = more_pictures(choice, pictures)
    if images is not None:
        backends = {REFERENCE: reference_backend(engine), named: engine.backend}
        choice = choose(engine, backends, images, gain=0.0)  # slow answers may be wrong, too
        write_choice(key, choice)
    engine.choice = choice
    if choice is not None and choice.candidate != named:  # a warning is worth repeating
        engine.remark(_words(choice, named))
    elif choice is not None and images is not None:
        print_error(_words(choice, named))


def _words(choice: Choice, named: Candidate) -> str:
    if choice.candidate != named:
        return f"{named} does not give the answers of torch in float32: {choice.refused[str(named)]}"
    slow = "" if choice.speedup >= GAIN else f"{named} is not faster here than torch in float32: "
    return slow + choice.in_words()
