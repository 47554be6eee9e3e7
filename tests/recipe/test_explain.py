import json

import pytest
from click.testing import CliRunner

from rlsweep.cli.explain import explain as command
from rlsweep.errors import RecipeError
from rlsweep.recipe.explain import docstrings, explain
from rlsweep.recipe.fields import all_paths, sections
from rlsweep.recipe.schema import Recipe


def test_every_leaf_has_a_docstring() -> None:
    types = [Recipe, *(each for section in sections().values() for each in section.types.values())]
    bare = [f"{each.__name__}.{field}" for each in types for field, text in docstrings(each).items() if not text]
    assert bare == []


def test_every_path_is_explained() -> None:
    assert {each.path for each in explain()} == {path for path in all_paths() if path not in sections()}


def test_a_leaf_has_its_type_default_and_source() -> None:
    (found,) = explain("loss.eps_max")
    assert (found.of, found.valid, found.default, found.required) == ("cispo", "a number", 5.0, False)
    assert "importance ratio" in found.text


def test_a_name_that_types_share_is_explained_for_each() -> None:
    assert [each.of for each in explain("loss.eps_low")] == ["dapo", "gspo"]
    assert [each.default for each in explain("loss.gspo.eps_low")] == [3e-3]


def test_a_section_lists_its_types_and_their_fields() -> None:
    first, *rest = explain("loss")
    assert first.valid == "one of cispo, dapo, gspo, grpo, dr_grpo"
    assert "cispo: Truncated importance weight" in first.text
    assert len(rest) == 7
    assert [each.path for each in explain("length.none")] == ["length.type"]


def test_what_must_be_stated_says_so() -> None:
    assert [each.path for each in explain() if each.required] == ["name", "model.path", "task.dataset"]


def test_an_unknown_path_has_a_nearest() -> None:
    with pytest.raises(RecipeError, match=r"loss\.eps_mx: no such leaf or section; did you mean loss\.eps_max\?"):
        explain("loss.eps_mx")
    with pytest.raises(RecipeError, match=r"did you mean optimizer\.lr\?"):
        explain("lr")


def test_the_command_lists_one_leaf_a_line() -> None:
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == len(explain())
    assert "optimizer.lr: a number; default 5e-07" in result.output


def test_the_command_explains_a_leaf_and_speaks_json() -> None:
    assert "ScaleRL 2.2: 5e-7" in CliRunner().invoke(command, ["optimizer.lr"]).output
    rows = json.loads(CliRunner().invoke(command, ["loss.eps_low", "--json"]).output)
    assert [row["of"] for row in rows] == ["dapo", "gspo"]
