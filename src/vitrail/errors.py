"""The one kind of error a user is meant to read."""


class VitrailError(ValueError):
    """Something the user can mend: one sentence that names the file or the setting and says what to do."""
