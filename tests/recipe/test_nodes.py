from pathlib import Path
from typing import Any

import pytest

from rlsweep.errors import RecipeError
from rlsweep.recipe.nodes import Node, Place, parse, parse_value, read_file


def plain(node: Node) -> Any:
    """The node's value without places."""
    if isinstance(node.value, dict):
        return {key: plain(each) for key, each in node.value.items()}
    if isinstance(node.value, list):
        return [plain(each) for each in node.value]
    return node.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0", 0),
        ("3e-4", 3e-4),
        ("3.0E-4", 3e-4),
        (".5", 0.5),
        ("1.", 1.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("1:30:00", "1:30:00"),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        (".inf", ".inf"),
        ("2026-01-01", "2026-01-01"),
        ('"3"', "3"),
        ("'true'", "true"),
        ('""', ""),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    node = parse(f"key: {text}", "f.yaml")
    assert plain(node) == {"key": value}
    assert type(plain(node)["key"]) is type(value)


def test_values_stand_on_the_line_of_their_key() -> None:
    root = parse("# a comment\nloss:\n  type: cispo\n  eps_max: 4\n", "f.yaml")
    assert isinstance(root.value, dict)
    loss = root.value["loss"]
    assert isinstance(loss.value, dict)
    assert str(loss.place) == "f.yaml:2"
    assert str(loss.value["eps_max"].place) == "f.yaml:4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3: a: stated twice; first on line 1"),
        ("a: 1\n\tb: 2", "f.yaml:2: not valid YAML"),
        ("a:\n\t- 1", "a tab: indent with spaces"),
        ("a: [1, 2", "f.yaml:1: not valid YAML"),
        ("a: 1\n  b: 2", "f.yaml:2: not valid YAML"),
        ("a: 0123", "f.yaml:1: 0123 starts with a zero"),
        ("a: 1e999", "f.yaml:1: 1e999 is too large"),
        ("a: 1234567890123456789012", "too long for a whole number"),
        ("base: &b {x: 1}\nloss:\n  <<: *b", "f.yaml:3: merge keys"),
        ("1: a", "f.yaml:1: a key must be a word, not a whole number (1)"),
        ("true: a", "a key must be a word, not true or false (true)"),
        ("null: a", "a key must be a word, not null"),
        ("? [a, b]\n: c", "a key must be a word, not a list"),
        ("a: !!python/object/apply:os.system ['ls']", "tags are not allowed"),
        ("a: !!str 3", "tags are not allowed"),
        ("a: 1\n---\nb: 2", "f.yaml:2: a second document"),
        ("", "f.yaml:1: the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("---\n", "the file is empty"),
        ("a: \x00", "not valid YAML: a character that it doesn't allow"),
        ("a: *nothing", "alias *nothing names nothing"),
        ("a: &a [*a]", "alias *a names nothing that stands before it"),
        ("a: &x 1\nb: [" + ", ".join(["*x"] * 17) + "]", "f.yaml:2: more than 16 aliases"),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper than 16 levels"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(text, "f.yaml")
    assert message in str(caught.value)


def test_an_anchor_bomb_is_refused() -> None:
    levels = ["a0: &a0 [x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(RecipeError, match="aliases"):
        parse("\n".join(levels), "f.yaml")


def test_a_few_aliases_are_read() -> None:
    assert plain(parse("a: &x {k: 1}\nb: *x", "f.yaml")) == {"a": {"k": 1}, "b": {"k": 1}}


def test_latin_1_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes("name: a\nlength: {phrase: 'così'}\n".encode("latin-1"))
    with pytest.raises(RecipeError, match=r"latin\.yaml:2: not UTF-8"):
        read_file(file)


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: a\r\n")
    assert plain(read_file(file)) == {"name": "a"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.yaml: no such file"):
        read_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("#", "#"),
        ("a: b", "a: b"),
        ("*", "*"),
        ("{type: cispo, eps_max: 4}", {"type": "cispo", "eps_max": 4}),
        ("'a, b'", "a, b"),
        ('"#"', "#"),
        ("null", None),
    ],
)
def test_values_as_typed_in_a_shell(text: str, value: object) -> None:
    assert plain(parse_value(text, Place("--set x"))) == value


def test_an_error_in_a_typed_value_names_the_option() -> None:
    with pytest.raises(RecipeError, match=r"^--set x: not valid YAML"):
        parse_value("{a: ", Place("--set x"))
