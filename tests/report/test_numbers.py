import pytest

from rlsweep.report.numbers import compute, listed, number, one_line, plural, rate, tick, times


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8434, ".843"), (1.0, "1.000"), (0.9996, "1.000"), (0.0, ".000"), (-0.012, "-.012"), (-0.0001, ".000")],
)
def test_rate(value: float, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.25e11, "1.25e11"),
        (1.3e11, "1.30e11"),
        (99_960, "1.00e5"),
        (1234.5, "1234"),
        (999.6, "1000"),
        (1.346, "1.35"),
        (0.9996, "1.00"),
        (0.0345, "0.0345"),
        (0.00012, "1.20e-4"),
        (0, "0"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_ticks_drop_idle_zeros_but_never_those_of_a_whole_number() -> None:
    assert [tick(value) for value in (1e11, 1.5e12, 0.3, 20, 100, 1000)] == [
        "1e11",
        "1.5e12",
        "0.3",
        "20",
        "100",
        "1000",
    ]


def test_words() -> None:
    assert compute(1.25e11, "flops") == "1.25e11 FLOPs"
    assert (times(0.8123), times(14.26)) == ("0.81", "14.3")
    assert (plural(1, "seed"), plural(2, "seed")) == ("1 seed", "2 seeds")
    assert (listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])) == ("a", "a and b", "a, b and c")
    assert one_line("a\n\tb\x1b[31m  c") == "a b [31m c"
