from rlsweep.store.metrics import METRICS


def test_every_metric_says_its_unit_and_what_it_means() -> None:
    assert all(metric.unit and metric.meaning and not metric.meaning.endswith(".") for metric in METRICS.values())
    assert all(name.count("/") == 1 and name == name.lower() for name in METRICS)
