import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsweep.errors import RecipeError
from rlsweep.recipe.nodes import Place, parse_value
from rlsweep.recipe.text import scalar_text
from rlsweep.sweep.split import split

PLACE = Place("--vary x")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        (" a , b ", ["a", "b"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ('"a,b","c,d"', ['"a,b"', '"c,d"']),
        (r'"a\",b",c', [r'"a\",b"', "c"]),
        ("'it''s, so',c", ["'it''s, so'", "c"]),
        ("{type: cispo, eps_max: 4},dapo", ["{type: cispo, eps_max: 4}", "dapo"]),
        ("{phrase: 'a}, b', end: b},none", ["{phrase: 'a}, b', end: b}", "none"]),
        ("[1, [2, 3]],4", ["[1, [2, 3]]", "4"]),
        ("don't,stop", ["don't", "stop"]),
        ("a[1,b", ["a[1", "b"]),
        ('a"b,c', ['a"b', "c"]),
        ("''", ["''"]),
    ],
)
def test_commas_separate_outside_quotes_and_brackets(text: str, values: list[str]) -> None:
    assert split(text, PLACE) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,,b", "an empty value"),
        ("a,", "an empty value"),
        (",", "an empty value"),
        ("", "an empty value"),
        ("'a,b", "no closing '"),
        ('"a\\"', 'no closing "'),
        ("{a: 1", "no '}'"),
        ("[a}", "'}' closes nothing"),
    ],
)
def test_what_cant_be_split(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        split(text, PLACE, "x")
    assert message in str(caught.value)
    assert str(caught.value).startswith("--vary x: x: ")


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False), st.text()
)


@settings(deadline=None)
@given(st.lists(scalars, min_size=1, max_size=5))
def test_values_written_out_and_joined_come_back(values: list[str | int | float | bool | None]) -> None:
    parts = split(",".join(scalar_text(value) for value in values), PLACE)
    assert [parse_value(part, PLACE).value for part in parts] == values


@settings(deadline=None)
@given(st.text(alphabet="a,'\"[]{} \\", max_size=12))
def test_any_text_is_split_or_refused_with_nothing_lost(text: str) -> None:
    try:
        parts = split(text, PLACE)
    except RecipeError:
        return
    assert "".join(parts).replace(" ", "").replace(",", "") == text.replace(" ", "").replace(",", "")
    assert all(part == part.strip() and part for part in parts)
