"""How a section refuses a value: one error that names the field, so that the loader can add file, line and path."""


class FieldError(ValueError):
    """`field` of a section (or a path of a recipe) is not valid: `message` says what was given and what is valid.

    `others` are the fields it clashes with: the loader points at the one of them that was stated last.
    """

    def __init__(self, field: str, message: str, *others: str):
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.others = others


def require(valid: bool, field: str, given: object, expected: str, *others: str) -> None:
    """Raise FieldError unless `valid`."""
    if not valid:
        raise FieldError(field, f"{given!r} is not valid; it must be {expected}", *others)
