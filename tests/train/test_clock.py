"""The clocks, with a hand-turned wall clock: every second is booked once, and attempts add up."""

import pytest

from rlsweep.train.clock import Clock


class Wall:
    """A monotonic clock that moves when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture()
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    turned = Wall()
    monkeypatch.setattr("rlsweep.train.clock.time", turned)
    return turned


def test_every_second_is_booked_once(wall: Wall) -> None:
    clock = Clock(devices=8, parameters=10, started=90.0)
    wall.now += 26  # start-up: 36 s since the process began
    clock.switch("training")
    wall.now += 72
    with clock.spending("evaluation"):
        wall.now += 18
    with pytest.raises(OSError), clock.spending("saving"):
        wall.now += 9
        raise OSError
    wall.now += 36
    found = clock.metrics()
    assert found["clock/startup_hours"] == pytest.approx(8 * 36 / 3600)
    assert found["clock/device_hours"] == pytest.approx(8 * (72 + 36) / 3600)
    assert found["clock/evaluation_hours"] == pytest.approx(8 * 18 / 3600)
    assert found["clock/saving_hours"] == pytest.approx(8 * 9 / 3600)
    assert clock.metrics() == found


def test_work_is_counted_by_the_stated_formula(wall: Wall) -> None:
    clock = Clock(devices=1, parameters=1000, started=100.0)
    clock.generated(samples=2, prompt_tokens=16, response_tokens=14)
    clock.trained(tokens=15)
    found = clock.metrics()
    assert found["clock/samples"] == 2 and found["clock/tokens"] == 14
    assert found["clock/flops"] == 2 * 1000 * 30 + 6 * 1000 * 15


def test_attempts_add_up(wall: Wall) -> None:
    first = Clock(devices=1, parameters=1, started=100.0)
    wall.now += 10
    first.switch("training")
    wall.now += 100
    first.generated(5, 1, 1)
    saved = first.state_dict()
    wall.now += 1000  # lost: nobody was at work, or what was done came after the checkpoint
    second = Clock(devices=1, parameters=1, started=wall.now)
    wall.now += 7
    second.load_state_dict(saved)
    second.switch("training")
    wall.now += 50
    second.generated(3, 1, 1)
    found = second.metrics()
    assert found["clock/device_hours"] == pytest.approx(150 / 3600)
    assert found["clock/startup_hours"] == pytest.approx(17 / 3600)
    assert found["clock/samples"] == 8


def test_hours_spent_on_other_devices_stay_what_they_were(wall: Wall) -> None:
    first = Clock(devices=80, parameters=1, started=100.0)
    first.switch("training")
    wall.now += 3600
    second = Clock(devices=16, parameters=1, started=wall.now)
    second.load_state_dict(first.state_dict())
    second.switch("training")
    wall.now += 3600
    assert second.metrics()["clock/device_hours"] == pytest.approx(96)
