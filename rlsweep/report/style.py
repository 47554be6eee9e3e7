"""How variants look: a colour, a marker and a glyph each, the same in every plot and table of a report."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """Colour (hex), matplotlib marker, and the same marker as a character for tables and legends."""

    colour: str
    marker: str
    glyph: str


BASE_COLOUR = "#1a1a1a"
MUTED = "#8a8f98"
"""Not identified: shown, but not as a result."""

# Okabe and Ito's palette, told apart with any colour vision; without its yellow, which a white ground swallows.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Seven markers against six colours: the pair repeats only after 42 variants.
_MARKERS = (("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("X", "✖"), ("p", "⬟"))
_TEXT_GLYPH = "\ufe0e"  # some phones would draw ✖ as a picture


def looks(names: list[str], base: str | None) -> dict[str, Look]:
    """The look of each variant: the base is black and round, the others are coloured in their order."""
    found = {}
    others = 0
    for name in names:
        if name == base:
            found[name] = Look(BASE_COLOUR, "o", "●")
            continue
        marker, glyph = _MARKERS[others % len(_MARKERS)]
        found[name] = Look(_COLOURS[others % len(_COLOURS)], marker, glyph + _TEXT_GLYPH)
        others += 1
    return found
