from pathlib import Path

from rlsweep.store.metrics import METRICS, to_markdown


def test_every_metric_says_its_unit_and_what_it_means() -> None:
    assert all(metric.unit and metric.meaning and not metric.meaning.endswith(".") for metric in METRICS.values())
    assert all(name.count("/") == 1 and name == name.lower() for name in METRICS)


def test_the_documented_schema_is_current() -> None:
    documented = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert documented.read_text() == to_markdown(), "run `make docs`"
