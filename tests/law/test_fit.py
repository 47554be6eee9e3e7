import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsweep.law.curve import Curve
from rlsweep.law.fit import Fit, fit
from rlsweep.law.flags import declines, dips
from rlsweep.law.noise import SEED_SD_CEILING, WANDER
from rlsweep.law.sigmoid import pass_rate

DATA = Path(__file__).parent.parent / "data"
TRUTH = {"A": 0.7, "B": 1.8, "C_mid": 0.25, "R0": 0.2}


def simulate(
    rng: np.random.Generator, seed: int = 0, n: int = 20, seed_sd: float = 1.0, sd: float = 0.006, **law: float
) -> Curve:
    """A curve to compute 1 with sampling noise, wander of sd .005 and offsets of its own in A and log C_mid."""
    truth = {**TRUTH, **law}
    truth["A"] += seed_sd * 0.01 * rng.normal()
    truth["C_mid"] *= np.exp(seed_sd * 0.08 * rng.normal())
    compute = np.linspace(0, 1, n + 1)
    wander, state = np.zeros(n + 1), 0.005 * rng.normal()
    for i in range(1, n + 1):
        wander[i] = state
        state = 0.7 * state + 0.005 * np.sqrt(1 - 0.49) * rng.normal()
    rates = pass_rate(compute, **truth) + wander + sd * rng.normal(size=n + 1)
    return Curve("base", seed, "flops", compute, np.clip(rates, 0, 1), np.full(n + 1, sd**2))


def scalerl(split: str) -> Curve:
    with (DATA / "scalerl_8b_dense.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    rates = np.array([float(row["pass_rate"]) for row in rows])
    hours = np.array([float(row["gpu_hours"]) for row in rows])
    return Curve("scalerl", None, "device_hours", hours, rates, rates * (1 - rates) / 16_000)


def cut(curve: Curve, points: int) -> Curve:
    return replace(
        curve, compute=curve.compute[:points], pass_rate=curve.pass_rate[:points], variance=curve.variance[:points]
    )


def width(result: Fit) -> float:
    return result.A.high - result.A.low


@pytest.mark.parametrize(("seeds", "count"), [(1, 60), (2, 25)])
def test_ninety_percent_intervals_cover_about_ninety_percent(seeds: int, count: int) -> None:
    rng = np.random.default_rng(0)
    covered = {"A": 0, "B": 0, "C_mid": 0, "R0": 0}
    for _ in range(count):
        # the share of the gain seen runs from .5 to .98
        truth = {"A": rng.uniform(0.5, 0.9), "B": rng.uniform(1, 2.5), "C_mid": rng.uniform(0.15, 0.9), "R0": 0.2}
        result = fit([simulate(rng, seed, **truth) for seed in range(seeds)], draws=400)
        for name, value in truth.items():
            quantity = getattr(result, name)
            covered[name] += quantity.low <= value <= quantity.high
    for name, hits in covered.items():
        assert 0.8 * count <= hits, name


def test_a_nearly_finished_curve_is_identified_near_the_truth() -> None:
    rng = np.random.default_rng(1)
    result = fit([simulate(rng, seed, C_mid=0.15) for seed in range(3)])
    assert result.verdict == "identified" and result.more_compute == 1
    assert result.A.estimate == pytest.approx(0.7, abs=0.02)
    assert result.B.estimate == pytest.approx(1.8, abs=0.2) and result.C_mid.low < 0.15 < result.C_mid.high
    assert result.phi == pytest.approx(1 / (1 + 0.15**1.8), abs=0.03)
    assert (result.points, result.seeds, result.window, result.unit) == (63, 3, (0.0, 1.0), "flops")
    assert result.draws.shape == (2000, 4)
    assert not [flag for flag in result.flags if "Lack" in flag or "drops" in flag]


def test_the_verdict_follows_the_share_of_the_gain_seen() -> None:
    fits = [fit(simulate(np.random.default_rng(2), C_mid=c, n=40)) for c in (0.1, 0.4, 2.0)]
    assert [f.verdict for f in fits] == ["identified", "weak", "not identified"]
    assert width(fits[0]) <= 0.06 < width(fits[1]) <= 0.2 < width(fits[2])
    assert fits[1].more_compute is not None and 1 < fits[1].more_compute < 8
    assert "C_mid lies outside the observed compute." in fits[2].flags


def test_scalerl_fit_predicts_its_extension() -> None:
    result = fit(scalerl("fit"))
    assert result.A.estimate is not None and 0.625 <= result.A.estimate <= 0.65
    assert result.verdict == "identified" and result.A.low < 0.645 < result.A.high
    assert result.B.low < 1.70 < result.B.high and result.C_mid.low < 10909 < result.C_mid.high
    extension = scalerl("extended")
    _, low, high = result.predict(extension.compute)
    noise = 1.645 * np.sqrt(extension.variance)
    assert ((extension.pass_rate >= low - noise) & (extension.pass_rate <= high + noise)).all()
    assert np.mean((extension.pass_rate >= low) & (extension.pass_rate <= high)) >= 0.9


def test_a_short_window_is_not_identified() -> None:
    six = fit(cut(scalerl("fit"), 6))
    assert six.verdict == "not identified" and width(six) > 0.3
    assert any(flag.startswith("Few points: 6") for flag in six.flags)
    ten = fit(cut(scalerl("fit"), 10))
    assert ten.verdict == "not identified" and ten.A.high > 0.9
    assert ten.more_compute is not None and 1.5 < ten.more_compute < 8


def test_units_of_compute_do_not_matter() -> None:
    curves = [simulate(np.random.default_rng(3 + seed), seed) for seed in range(2)]
    one = fit(curves)
    for unit in (3e23, 1 / 3600):
        other = fit([replace(curve, compute=curve.compute * unit) for curve in curves])
        for name in ("A", "B", "R0"):
            a, b = getattr(one, name), getattr(other, name)
            assert (a.low, a.estimate, a.high) == pytest.approx((b.low, b.estimate, b.high), rel=1e-9)
        assert other.draws[:, 2] == pytest.approx(one.draws[:, 2] * unit, rel=1e-9)
        assert other.phi == pytest.approx(one.phi, rel=1e-9) and other.verdict == one.verdict


def test_order_of_seeds_does_not_matter_and_a_seed_makes_it_repeatable() -> None:
    curves = [simulate(np.random.default_rng(4 + seed), seed) for seed in range(3)]
    one, other = fit(curves, seed=7), fit(curves[::-1], seed=7)
    assert (one.draws == other.draws).all()
    assert not (one.draws == fit(curves, seed=8).draws).all()


def test_two_seeds_are_narrower_than_one_but_not_below_the_spread_of_seeds() -> None:
    curve = simulate(np.random.default_rng(5), n=400, sd=0.002, C_mid=0.05, seed_sd=0.0)
    floor = 2 * 1.645 * 0.01
    one = fit(curve)
    two = fit([curve, replace(curve, seed=1)])
    assert 0.95 * floor < width(one) < 1.5 * floor
    assert 0.95 * floor / np.sqrt(2) < width(two) < width(one)
    spread = np.log(two.C_mid.high / two.C_mid.low)
    assert spread > 0.95 * 2 * 1.645 * 0.08 / np.sqrt(2)


# two seeds of one recipe on the embedded task: they agree, and both level off faster than the law can
AGREE = (
    "178 249 298 363 471 526 566 612 649 678 698 710 730 732 739 746 741 748 751 759 752",
    "183 233 298 372 444 508 573 597 659 678 699 701 721 733 731 737 741 748 753 756 752",
)
_X = np.linspace(0, 1, 21)
SHAPES = {
    "levels off": np.mean([np.array(row.split(), dtype=float) / 1000 for row in AGREE], axis=0),
    "slow drift": pass_rate(_X, 0.72, 3.0, 0.15, 0.18) + 0.05 * _X,
    "two phases": 0.18 + 0.3 * pass_rate(_X, 1, 3, 0.1, 0) + 0.25 * pass_rate(_X, 1, 6, 0.5, 0),
    "two steps": 0.2 + 0.15 * (_X > 0.2) + 0.3 * np.clip(_X - 0.7, 0, 0.2) / 0.2,
}


def of_shape(rates: np.ndarray, seed: int, sd: float = 0.006, points: int = 21) -> Curve:
    noisy = rates + sd * np.random.default_rng(seed).normal(size=21)
    curve = Curve("base", seed, "flops", _X, np.clip(noisy, 0, 1), np.full(21, sd**2))
    return cut(curve, points)


def differ(result: Fit) -> bool:
    return any(flag.startswith("The seeds differ") for flag in result.flags)


def assert_no_worse(pooled: Fit, alone: list[Fit]) -> None:
    """Seeds that agree: not said to differ, a narrower interval, and no lower end below what they have reached."""
    order = ["identified", "weak", "not identified"]
    assert not differ(pooled)
    assert width(pooled) <= 1.02 * max(width(one) for one in alone)
    assert width(pooled) < np.mean([width(one) for one in alone])
    assert order.index(pooled.verdict) <= max(order.index(one.verdict) for one in alone)
    assert pooled.A.low > min(one.A.low for one in alone) - 0.01


def test_real_seeds_that_agree_are_not_said_to_differ() -> None:
    rates = [np.array(row.split(), dtype=float) / 1000 for row in AGREE]
    curves = [Curve("dapo", s, "flops", _X * 9e11, y, np.full(21, 0.0065**2)) for s, y in enumerate(rates)]
    pooled = fit(curves)
    assert_no_worse(pooled, [fit(curve) for curve in curves])
    assert pooled.A.low > 0.75


@pytest.mark.parametrize("shape", SHAPES)
def test_misfit_common_to_the_seeds_is_not_taken_for_their_spread(shape: str) -> None:
    curves = [of_shape(SHAPES[shape], seed) for seed in range(2)]
    assert_no_worse(fit(curves), [fit(curve) for curve in curves])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("points", [0, 3, 6, 11])
def test_a_seed_that_lags_behind_does_not_turn_misfit_into_spread(shape: str, points: int) -> None:
    ahead, behind = of_shape(SHAPES[shape], 0), of_shape(SHAPES[shape], 1, points=points)
    pooled, alone = fit([ahead, behind]), fit(ahead)
    assert not differ(pooled)
    assert width(pooled) < 1.4 * width(alone) and pooled.A.low > alone.A.low - 0.03


DIFFERENCES = {
    "A by sd .05": [{"A": 0.65}, {"A": 0.75}],
    "A by sd .05, three seeds": [{"A": 0.65}, {"A": 0.7}, {"A": 0.75}],
    "C_mid by 2": [{"C_mid": 0.08}, {"C_mid": 0.16}],
}


@pytest.mark.parametrize("laws", DIFFERENCES.values(), ids=DIFFERENCES)
def test_seeds_that_differ_widen_the_interval_and_are_said_to(laws: list[dict[str, float]]) -> None:
    rng = np.random.default_rng(6)
    same = fit([simulate(rng, seed, C_mid=0.11, seed_sd=0.5) for seed in range(len(laws))])
    apart = fit([simulate(rng, seed, seed_sd=0.5, **{"C_mid": 0.11, **law}) for seed, law in enumerate(laws)])
    assert width(apart) > 2 * width(same)
    assert differ(apart) and not differ(same)


@pytest.mark.parametrize("shape", ["levels off", "slow drift"])
def test_seeds_that_differ_are_said_to_under_a_common_misfit(shape: str) -> None:
    start = SHAPES[shape][0]
    curves = [of_shape(start + size * (SHAPES[shape] - start), s) for s, size in enumerate((0.92, 1.08))]
    assert differ(fit(curves))


@pytest.mark.parametrize("shape", [None, *SHAPES])
def test_a_ceiling_is_not_put_below_what_was_reached(shape: str | None) -> None:
    """Of a curve that doesn't fall, up to its noise and the usual spread between seeds."""
    rng = np.random.default_rng(15)
    for number in range(6):
        if shape is None:
            A, C_mid = rng.uniform(0.4, 0.95), np.exp(rng.uniform(np.log(0.03), np.log(2)))
            curve = simulate(rng, n=int(rng.choice([10, 20, 40])), A=A, C_mid=C_mid)
            noise = np.hypot(0.006, 0.005)
        else:
            noise = (0.003, 0.006, 0.015)[number % 3]
            curve = of_shape(SHAPES[shape], number, noise)
        result = fit(curve, draws=500)
        assert not result.declines
        assert result.A.low > curve.pass_rate[-3:].mean() - 3 * np.hypot(noise, SEED_SD_CEILING)


@pytest.mark.parametrize(("end", "word"), [(0.0, "collapses"), (0.1, "collapses"), (0.55, "declines")])
def test_a_fall_at_the_end_is_flagged_and_identifies_nothing(end: float, word: str) -> None:
    curve = simulate(np.random.default_rng(7), n=40, C_mid=0.1)
    rates = np.array(curve.pass_rate)
    rates[30:] = np.linspace(rates[29], end, 11)
    good = simulate(np.random.default_rng(8), n=40, C_mid=0.1, seed=1)
    for result in (fit(replace(curve, pass_rate=rates)), fit([good, replace(curve, pass_rate=rates)])):
        assert result.verdict == "not identified" and result.declines and result.more_compute is None
        found = [flag for flag in result.flags if flag.startswith(f"Seed 0 {word}")]
        assert len(found) == 1 and "not to be believed" in found[0]


def test_a_dip_on_the_way_identifies_nothing_either() -> None:
    """Down by .25 and back, slowly: no single step is a drop, and the end is where it would have been."""
    curve = simulate(np.random.default_rng(7), n=40, C_mid=0.1, seed_sd=0.0)
    rates = curve.pass_rate - 0.25 * np.exp(-(((np.arange(41) - 20) / 4) ** 2))
    whole, dipped = fit(curve), fit(replace(curve, pass_rate=rates))
    assert whole.verdict == "identified" and dipped.verdict == "not identified" and not dipped.declines
    found = [flag for flag in dipped.flags if flag.startswith("Seed 0 dips: the pass rate falls from 0.6")]
    assert len(found) == 1 and found[0].endswith(
        "on the way; the law only rises, so a fit through this is not to be believed."
    )


def wandering(rng: np.random.Generator, n: int, rho: float, tau: float, fallen: range = range(0)) -> Curve:
    """A curve of the noise model from .2 to .8, in 512 prompts times 4; `fallen` evaluations lie .3 lower."""
    compute, wander = np.linspace(0, 1, n), np.zeros(n)
    wander[1:] = tau * rng.normal(size=n - 1)
    for i in range(2, n):
        wander[i] = rho * wander[i - 1] + np.sqrt(1 - rho**2) * wander[i]
    truth = np.clip(pass_rate(compute, 0.8, 1.5, 0.1, 0.2) + wander, 0, 1)
    truth[list(fallen)] -= 0.3
    variance = truth * (1 - truth) / 2048
    return Curve("w", 0, "flops", compute, np.clip(truth + np.sqrt(variance) * rng.normal(size=n), 0, 1), variance)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("rho", [0.5, 0.85])
@pytest.mark.parametrize("n", [50, 200])
def test_wander_is_no_fall_and_a_fall_is_none_of_wander(n: int, rho: float, known: bool) -> None:
    """At the most wander of the noise model; a fall lasts a tenth of the run, or to its end."""
    rng = np.random.default_rng(12)

    def flagged(fallen: range) -> int:
        curves = [wandering(rng, n, rho, max(WANDER), fallen) for _ in range(100)]
        if not known:
            curves = [replace(curve, variance=np.full(n, np.nan)) for curve in curves]
        return sum(bool(declines(curve) or dips(curve)) for curve in curves)

    assert flagged(range(0)) <= 4
    for fallen in (range(n // 3, n // 3 + n // 10), range(7 * n // 10, 7 * n // 10 + 5), range(2 * n // 3, n)):
        assert flagged(fallen) >= 97


@pytest.mark.parametrize("n", [50, 200])
def test_where_there_is_no_wander_a_small_fall_shows(n: int) -> None:
    rng = np.random.default_rng(13)
    curves = [wandering(rng, n, 0.5, 0.0) for _ in range(100)]
    lower = 0.1 * (np.arange(n) >= 0.8 * n)
    assert sum(bool(declines(replace(curve, pass_rate=curve.pass_rate - lower))) for curve in curves) >= 95


@pytest.mark.parametrize(
    ("rates", "word"),
    [
        ([0.5, 0.2], "collapses"),
        ([0.2, 0.5, 0.1], "collapses"),
        ([0.2, 0.5, 0.6, 0.46], "declines"),
        ([0.2, 0.5, 0.6, 0.55], None),  # within 6 sd of .02
        ([0.2, 0.1, 0.5], None),
        ([0.5], None),
    ],
)
def test_so_few_points_collapse_too(rates: list[float], word: str | None) -> None:
    n = len(rates)
    result = fit(Curve("v", 0, "flops", np.arange(float(n)), np.array(rates), np.full(n, 0.02**2)), draws=200)
    found = [flag.split(":")[0] for flag in result.flags if "not to be believed" in flag]
    assert found == ([f"Seed 0 {word}"] if word else []) and result.declines == bool(word)


def test_a_real_collapse_is_flagged() -> None:
    # rasbt/reasoning-from-scratch, 7_5_plus_kl, MATH-500 of Qwen3 0.6B: up within 50 steps, then nothing
    rates = np.array([0.16, 0.41, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    result = fit(Curve("kl", None, "tokens", np.arange(11.0), rates, np.full(11, 0.02**2)))
    assert result.verdict == "not identified" and any("collapses" in flag for flag in result.flags)
    assert any("drops by 0.41" in flag for flag in result.flags)


def test_no_gain_and_small_gain_and_one_seed_are_said() -> None:
    rng = np.random.default_rng(9)
    flat = fit(simulate(rng, A=0.2, R0=0.2, seed_sd=0.0))
    assert flat.verdict == "not identified" and any(flag.startswith("No gain") for flag in flat.flags)
    small = fit(simulate(rng, A=0.25, R0=0.2, C_mid=0.1, seed_sd=0.0, sd=0.008))
    assert small.verdict == "not identified" and any(flag.startswith("Small gain") for flag in small.flags)
    assert any(flag.startswith("One seed") for flag in small.flags)


def test_no_false_alarm_on_learners() -> None:
    words = ("collapse", "decline", "dips", "drops", "No gain", "Lack of fit")
    for number in range(15):
        result = fit(simulate(np.random.default_rng(100 + number), n=30, sd=0.012), draws=200)
        assert not [flag for flag in result.flags if any(word in flag for word in words)], number


def test_a_curve_that_is_no_sigmoid_lacks_fit() -> None:
    compute = np.linspace(0, 1, 61)
    rates = 0.2 + 0.15 * (compute > 0.2) + 0.3 * np.clip(compute - 0.7, 0, 0.2) / 0.2
    rates += 0.002 * np.random.default_rng(0).normal(size=61)
    result = fit(Curve("steps", 0, "flops", compute, rates, np.full(61, 0.002**2)))
    assert any(flag.startswith("Lack of fit") for flag in result.flags)


def test_a_ceiling_near_one_is_said() -> None:
    result = fit(simulate(np.random.default_rng(10), A=0.99, C_mid=0.3, seed_sd=0.0))
    assert "The interval of A reaches 1, the most a pass rate can be." in result.flags


def test_unknown_variance_gives_nearly_the_same() -> None:
    curve = simulate(np.random.default_rng(11), n=40, C_mid=0.15)
    known, unknown = fit(curve), fit(replace(curve, variance=np.full(41, np.nan)))
    assert unknown.A.estimate == pytest.approx(known.A.estimate, abs=0.01)
    assert 0.7 < width(unknown) / width(known) < 1.5


def test_predictions_are_quantiles_of_the_law_and_start_at_R0() -> None:
    result = fit(simulate(np.random.default_rng(12)))
    middle, low, high = result.predict([0.0, 0.5, 1e9])
    assert (middle[0], low[0], high[0]) == (result.R0.estimate, result.R0.low, result.R0.high)
    assert (low <= middle).all() and (middle <= high).all() and (np.diff(middle) > 0).all()
    assert middle[2] == pytest.approx(result.A.estimate, abs=1e-3)


def test_refuses_what_is_no_curve() -> None:
    with pytest.raises(ValueError, match="at least one"):
        fit([])
    with pytest.raises(ValueError, match="Curve"):
        fit([1.0])
    curve = simulate(np.random.default_rng(13))
    with pytest.raises(ValueError, match="device_hours, flops"):
        fit([curve, replace(curve, unit="device_hours")])


@st.composite
def any_curve(draw: st.DrawFn) -> Curve:
    """Few points, constant, falling, duplicates, only step 0, jumps, certain or unknown variances, any unit."""
    n = draw(st.sampled_from([0, 1, 2, 3, 4, 9, 14]))
    rate = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1))
    rates = draw(st.one_of(st.lists(rate, min_size=n, max_size=n), rate.map(lambda x: [x] * n)))
    computes = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 2.0, 7.5, 1e3]), min_size=n, max_size=n))
    variance = st.sampled_from([float("nan"), 0.0, 1e-30, 1e-5, 0.25])
    variances = draw(st.one_of(st.lists(variance, min_size=n, max_size=n), variance.map(lambda x: [x] * n)))
    unit = draw(st.sampled_from([1e-12, 1.0, 1e24]))
    return Curve("x", None, "flops", np.sort(computes) * unit, np.array(rates), np.array(variances))


@settings(max_examples=25, deadline=None)
@given(st.lists(any_curve(), min_size=1, max_size=3))
def test_any_curve_gives_finite_ordered_numbers(curves: list[Curve]) -> None:
    result = fit(curves, draws=100)
    for quantity in (result.A, result.B, result.C_mid, result.R0):
        assert quantity.estimate is not None
        assert np.isfinite([quantity.low, quantity.estimate, quantity.high]).all()
        assert quantity.low <= quantity.estimate <= quantity.high
    A, B, C_mid, R0 = result.draws.T
    assert ((R0 >= 0) & (R0 <= A) & (A <= 1) & (B > 0) & (C_mid > 0)).all()
    assert np.isfinite(result.predict([0.0, 1.0, 1e30])).all() and 0 <= result.phi <= 1
    if max(len(curve.compute) for curve in curves) < 10:
        assert result.verdict == "not identified"


def test_two_thousand_points() -> None:
    result = fit(simulate(np.random.default_rng(14), n=2000, C_mid=0.1), draws=300)
    assert result.verdict == "identified" and result.A.low < 0.7 < result.A.high
