import pytest

from rlsweep.curves.axis import default_axis


@pytest.mark.parametrize(
    ("kinds", "axis"),
    [
        (["cuda", "cuda"], "device_hours"),
        (["cpu", "cpu"], "flops"),
        (["cuda", "cpu"], "flops"),  # what a mixed set shares
        (["cuda", None], "device_hours"),  # a run that waits decides nothing
        ([None, "cpu"], "flops"),
        ([None], "flops"),
        ([], "flops"),
    ],
)
def test_device_hours_only_where_all_have_them(kinds: list[str | None], axis: str) -> None:
    assert default_axis(kinds) == default_axis(reversed(kinds)) == axis
