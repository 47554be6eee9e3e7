"""Where an axis' text is cut: at commas, but not inside quotes, brackets and braces."""

from rlsweep.recipe.nodes import Place

_CLOSING = {"[": "]", "{": "}"}


def split(text: str, place: Place, path: str = "") -> list[str]:
    """Values of an axis, trimmed. A quote or bracket counts where a value, an item or a key can start, as in YAML.

    Raises RecipeError: an empty value, an open quote, an open or wrong bracket.
    """
    values: list[str] = []
    open_brackets: list[str] = []
    start = position = 0
    while position < len(text):
        before = text[start:position].rstrip()[-1:]
        symbol = text[position]
        if symbol in "\"'" and (not before or (open_brackets and before in "[{,:")):
            position = _end_of_quote(text, position, place, path)
            continue
        if symbol in _CLOSING and (not before or open_brackets):
            open_brackets.append(_CLOSING[symbol])
        elif symbol in "]}" and open_brackets:
            if open_brackets.pop() != symbol:
                raise place.error(path, f"{symbol!r} closes nothing in {text!r}; a text with brackets goes in quotes")
        elif symbol == "," and not open_brackets:
            values.append(text[start:position].strip())
            start = position + 1
        position += 1
    if open_brackets:
        raise place.error(path, f"no {open_brackets[-1]!r} in {text!r}; a text with brackets goes in quotes")
    values.append(text[start:].strip())
    if "" in values:
        raise place.error(path, f"an empty value in {text!r}; write null for nothing or '\"\"' for an empty text")
    return values


def _end_of_quote(text: str, start: int, place: Place, path: str) -> int:
    """Position after the closing quote; a backslash escapes a double quote, doubling a single one."""
    quote, position = text[start], start + 1
    while position < len(text):
        if quote == '"' and text[position] == "\\":
            position += 2
        elif text[position] != quote:
            position += 1
        elif quote == "'" and text[position + 1 : position + 2] == "'":
            position += 2
        else:
            return position + 1
    raise place.error(path, f"no closing {quote} in {text!r}")
