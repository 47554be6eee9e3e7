"""A scalar as the text from which it is read again, in a file and on the command line alike."""

import json
import re

from rlsweep.recipe.nodes import Place, Scalar, plain_scalar

_WORD = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
_ESCAPED = re.compile("[^\n -~\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def scalar_text(value: Scalar) -> str:
    """YAML for one scalar, on one line: a word stands plain, any other text in double quotes."""
    if isinstance(value, str):
        if _WORD.fullmatch(value) and plain_scalar(value, Place("")) == value:
            return value
        return _ESCAPED.sub(_escape, json.dumps(value, ensure_ascii=False))
    return "null" if value is None else repr(value).lower() if isinstance(value, bool) else repr(value)


def _escape(match: re.Match[str]) -> str:
    return f"\\U{ord(match[0]):08x}"
