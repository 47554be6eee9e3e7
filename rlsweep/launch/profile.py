"""What each key of a cluster profile may hold: every value is checked where it is stated, before anything is written.

What goes on a `#SBATCH` line is one printable word: no value can end the line, begin a comment or add an option.
"""

import re
import shlex
from collections.abc import Callable
from typing import Any, Literal, NoReturn

from rlsweep.launch.scheduler import RANKS
from rlsweep.recipe.fields import check
from rlsweep.recipe.nodes import Node

Check = Callable[[Node, str], Any]
"""The checked value of a node that stands at a path. Raises RecipeError."""

DAY = 24 * 60
"""Minutes."""
LONGEST = 366 * DAY
"""A longer time limit, in minutes, is a slip."""
NOTICE_S = (10, 65_535)
"""Less is too short to save anything; more is not what `sbatch --signal` takes."""

_WORD = re.compile(r"""[^\s'"`\\$#;]+""")
_TYPE = re.compile(r"[A-Za-z0-9_.+-]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CLOCK = re.compile(r"(?:(?P<days>\d{1,4})-)?(?P<hours>\d{1,4}):(?P<minutes>\d\d):(?P<seconds>\d\d)")
_TIME = f"minutes or a text d-hh:mm:ss or hh:mm:ss, more than 0 and at most {LONGEST // DAY} days"
_SIZES = re.compile(r"-[nN].*|--nt.*|--nodes(=.*)?")
"""Arguments of srun that say how many tasks or nodes there are; srun takes --ntasks cut short, too."""
_SECRET = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY)(_|$)|(^|_)(API|ACCESS|PRIVATE|SECRET)_KEY(_|$)|_KEY$"
)
_SECRET_PLACE = re.compile(r"_(PATH|FILE|DIR)$")
_LOGIN = re.compile(r"://[^/@\s]+:[^/@\s]+@")
_CREDENTIAL = re.compile(
    r"\b(gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abps]-|AKIA)(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{12,}"
)
"""What tokens of GitHub, GitLab, Hugging Face, OpenAI, Anthropic, Slack and AWS begin with, and go on like."""
_ASSIGNED = re.compile(r"""\b([A-Za-z_][A-Za-z0-9_]*)=(?!["']?[$`])["']?\S""")
_EXPANDED = re.compile(r"\$[A-Za-z_{(]|`|^~")
_CONTROL = re.compile(r".*;|[|&<>]+.*")
_EXPORT_IT = "a profile is a file that others read: export it in the shell that submits, sbatch hands it on to the job"


def clock(minutes: int) -> str:
    """A time as Slurm writes it: d-hh:mm:ss."""
    days, rest = divmod(minutes, DAY)
    return f"{days}-{rest // 60:02}:{rest % 60:02}:00"


def _value(hint: Any) -> Check:
    return lambda node, path: check(node, path, hint)


def _at_least(least: float, hint: Any, words: str) -> Check:
    def checked(node: Node, path: str) -> Any:
        value = check(node, path, hint)
        if isinstance(value, int | float) and value < least:
            _refuse(node, path, f"it must be {words}")
        return value

    return checked


def _word(node: Node, path: str) -> str | None:
    value = check(node, path, str | None)
    assert value is None or isinstance(value, str)
    if value is not None and not (_WORD.fullmatch(value) and value.isprintable()):
        _refuse(node, path, "it must be one word, without spaces, quotes, $, #, ; or backslashes")
    return value


def _type(node: Node, path: str) -> str | None:
    value = check(node, path, str | None)
    assert value is None or isinstance(value, str)
    if value is not None and not _TYPE.fullmatch(value):
        _refuse(node, path, "it must be the name alone, as in h100: letters, digits and _ . + - (no count, no colon)")
    return value


def _time(node: Node, path: str) -> int:
    """Whole minutes, rounded up: Slurm counts no seconds either."""
    value = node.value
    if isinstance(value, str) and (match := _CLOCK.fullmatch(value)):
        days, hours, minutes, seconds = (int(each or 0) for each in match.groups())
        if minutes >= 60 or seconds >= 60 or (match["days"] is not None and hours >= 24):
            _refuse(node, path, f"minutes and seconds end at 59, hours after days at 23; it must be {_TIME}")
        value = days * DAY + hours * 60 + minutes + (seconds > 0)
    elif isinstance(value, str) and re.fullmatch(r"\d+:\d\d", value):
        _refuse(
            node, path, f"hours and minutes, or minutes and seconds (as Slurm reads it)? Write {value}:00 for hours"
        )
    elif isinstance(value, str) and re.fullmatch(r"\d+-\d+(:\d\d)?", value):
        days_text, _, rest = value.partition("-")
        whole = ":".join([*(f"{int(each):02}" for each in rest.split(":")), "00", "00"][:3])
        _refuse(node, path, f"write it whole: {days_text}-{whole}")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LONGEST:
        _refuse(node, path, f"it must be {_TIME}")
    return value


def _notice(node: Node, path: str) -> int:
    value = check(node, path, int)
    assert isinstance(value, int)
    if not NOTICE_S[0] <= value <= NOTICE_S[1]:
        _refuse(node, path, "it must be a whole number of seconds from {} to {}".format(*NOTICE_S))
    return value


def _interpreter(node: Node, path: str) -> str | None:
    value = check(node, path, str | None)
    if value is None:
        return None
    assert isinstance(value, str)
    try:
        words = shlex.split(value)
    except ValueError as error:
        _refuse(node, path, f"not shell words: {str(error).lower()}")
    if (
        not words
        or not value.isprintable()
        or any(_EXPANDED.search(word) or _CONTROL.fullmatch(word) for word in words)
    ):
        _refuse(
            node,
            path,
            "it must be a path, or shell words that start python (a path with spaces in quotes of its own); "
            "variables and ~ are not expanded, and no shell reads ; or |",
        )
    return value


def _list(node: Node, path: str, item: Check) -> tuple[str, ...]:
    """Nothing at all is an empty list: a key all of whose lines are comments."""
    if node.value is None:
        return ()
    if not isinstance(node.value, list):
        _refuse(node, path, "it must be a list of texts, one a line after a dash, as in [...] on one line")
    return tuple(item(each, f"{path}.{number}") for number, each in enumerate(node.value))


def _setup(node: Node, path: str) -> tuple[str, ...]:
    return _list(node, path, _shell_line)


def _shell_line(node: Node, path: str) -> str:
    line = _text(node, path, "one line of shell")
    if not line.strip():
        _refuse(node, path, "it must be one line of shell, not an empty one")
    if line.lstrip().startswith("#SBATCH"):
        _refuse(node, path, "options of sbatch are keys of the profile, not lines of setup")
    for match in _ASSIGNED.finditer(line):
        if _looks_secret(match[1]):
            raise node.place.error(path, f"{match[1]} looks like a credential; {_EXPORT_IT}")
    if found := _CREDENTIAL.search(line):
        raise node.place.error(path, f"it holds a credential ({found[1]}...); {_EXPORT_IT}")
    return line


def _srun(node: Node, path: str) -> tuple[str, ...]:
    found = _list(node, path, lambda each, at: _text(each, at, "an argument of srun, as in --container-image=..."))
    if found and not found[0].startswith("-"):
        _refuse(node, path, f"{found[0]!r} is no option of srun; options begin with a dash")
    wrong = next((each for each in found if _SIZES.fullmatch(each)), None)
    if wrong is not None:
        _refuse(
            node,
            path,
            f"{wrong} says how many tasks or nodes there are, which follows from the run: one task a node",
        )
    return found


def check_variable(node: Node, path: str) -> str:
    """Value of the environment variable named by the path's end."""
    name = path.removeprefix("environment.")
    if not _NAME.fullmatch(name):
        raise node.place.error(path, f"{name!r} can't name a variable; valid: letters, digits and _, no digit first")
    if RANKS.fullmatch(name):
        raise node.place.error(path, f"{name} is set for each process of a run by rlsweep; leave it out")
    if name.startswith("SBATCH_"):
        raise node.place.error(path, f"{name}: options of sbatch are keys of the profile, and no variable reaches it")
    value = _text(node, path, "a text; an empty one is ''")
    if _looks_secret(name):
        raise node.place.error(path, f"{name} looks like a credential; {_EXPORT_IT}")
    if found := _CREDENTIAL.search(value):
        raise node.place.error(path, f"{name} holds a credential ({found[1]}...); {_EXPORT_IT}")
    if _LOGIN.search(value):
        raise node.place.error(path, f"{name} holds a password (user:password@); {_EXPORT_IT}")
    if _EXPANDED.search(value):
        _refuse(node, path, f"variables and ~ are not expanded here; a line of setup can: export {name}=...")
    return value


def _text(node: Node, path: str, words: str) -> str:
    """A text or a bare number or word as it stands: a variable or an argument is text, whatever it looks like."""
    value = node.value if isinstance(node.value, str) else node.plain if node.value is not None else None
    if value is None:
        _refuse(node, path, f"it must be {words}")
    if not value.isprintable():
        _refuse(node, path, f"it must be {words}, without line ends and control characters")
    return value


def _looks_secret(name: str) -> bool:
    return bool(_SECRET.search(name.upper())) and not _SECRET_PLACE.search(name.upper())


def _refuse(node: Node, path: str, why: str) -> NoReturn:
    raise node.place.error(path, f"{node} is not valid; {why}")


CHECKS: dict[str, Check] = {
    "executor": _value(Literal["local", "slurm"]),
    "partition": _word,
    "account": _word,
    "qos": _word,
    "constraint": _word,
    "exclude": _word,
    "gpus.style": _value(Literal["gpus_per_node", "gres", "gpus"]),
    "gpus.per_node": _at_least(1, int | None, "1 or more, or null"),
    "gpus.type": _type,
    "cpus_per_node": _at_least(1, int | None, "1 or more, or null"),
    "memory_gb": _at_least(0, float | None, "0 (all of the node) or more, or null"),
    "exclusive": _value(bool),
    "time": _time,
    "notice_s": _notice,
    "setup": _setup,
    "environment": lambda node, path: {},
    "interpreter": _interpreter,
    "srun": _srun,
    "limits.parallel": _at_least(1, int | None, "1 or more, or null"),
    "limits.array": _at_least(1, int | None, "1 or more, or null"),
    "limits.retries": _at_least(0, int, "0 or more"),
}
"""Every key of a profile, in the order in which it is shown."""
