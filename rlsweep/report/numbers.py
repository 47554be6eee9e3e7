"""Numbers as a person reads them: one formatter a kind, used alike by the terminal, Markdown, HTML and the plots."""

import math

UNITS = {
    "device_hours": "device-hours",
    "flops": "FLOPs",
    "samples": "samples",
    "tokens": "tokens",
    "steps": "steps",
}
"""What compute may be counted in, and what people call it."""


def rate(value: float) -> str:
    """A pass rate or a difference of two: three decimals, no leading zero (`.843`, `-.012`, `1.000`)."""
    text = f"{abs(value):.3f}"
    sign = "-" if value < 0 and float(text) > 0 else ""
    return sign + (text[1:] if text.startswith("0.") else text)


def number(value: float) -> str:
    """Three significant digits; a power of ten beyond 1e5 and below 1e-3 (`1.35`, `1230`, `1.25e11`)."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    mantissa, exponent = f"{value:.2e}".split("e")
    if not -3 <= int(exponent) < 5:
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{max(0, 2 - int(exponent))}f}"


def times(value: float) -> str:
    """A factor: two decimals, one from 10 on (`0.81`, `2.10`, `14.3`)."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def tick(value: float) -> str:
    """A round number on an axis, without the zeros that only say how exact it is (`1e11`, `0.3`, `20`)."""
    mantissa, mark, exponent = number(value).partition("e")
    return (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa) + mark + exponent


def compute(value: float, unit: str) -> str:
    """An amount of compute with its unit: `1.25e11 FLOPs`."""
    return f"{number(value)} {UNITS[unit]}"


def plural(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def one_line(text: str) -> str:
    """The text with newlines, tabs and other control characters turned into spaces: names come from people."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
