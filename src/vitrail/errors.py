"""The one kind of error a user is meant to read."""

from vitrail.text import one_line


class VitrailError(ValueError):
    """Something the user can mend: one sentence that names the file or the setting and says what to do.

    It is one line whatever names it quotes: files from elsewhere choose those of columns, classes and tensors."""

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence))
