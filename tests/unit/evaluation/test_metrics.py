import numpy as np
import pytest
from scipy import stats

from evaluation.metrics import Estimate, normal, summarize, wilson


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 50), (50, 50), (7, 10)])
def test_wilson_matches_scipy(successes: int, trials: int) -> None:
    estimate = wilson(successes, trials)
    expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    assert estimate.value == successes / trials
    assert estimate.low == pytest.approx(expected.low, abs=1e-12)
    assert estimate.high == pytest.approx(expected.high, abs=1e-12)


def test_wilson_holds_its_share_at_both_ends() -> None:
    for trials in range(1, 400):
        none, all_ = wilson(0, trials), wilson(trials, trials)
        assert none.low == 0.0 < none.high  # type: ignore[operator]
        assert all_.low < 1.0 == all_.high  # type: ignore[operator]


def test_normal_matches_scipy() -> None:
    values = np.random.default_rng(0).exponential(size=37).astype(np.float32)
    wide = values.astype(np.float64)
    low, high = stats.norm.interval(0.95, wide.mean(), stats.sem(wide))
    estimate = normal(values)
    assert estimate.value == pytest.approx(wide.mean(), abs=1e-15)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=1e-12)
    assert normal(np.array([0.25])) == Estimate(0.25, None, None)


def make_rows(count: list[int]) -> dict[str, np.ndarray]:
    labelled = np.array(count, np.float32)
    exact = labelled * (np.arange(len(count)) % 2)
    return {
        "count": labelled,
        "accuracy": labelled * 0.5 + exact * 0.5,
        "exact_accuracy": exact,
        "q_halt_accuracy": labelled,
        "steps": labelled * 4,
        "lm_loss": np.arange(len(count), dtype=np.float32),
        "q_halt_loss": np.ones(len(count), np.float32),
    }


def test_rows_without_labels_enter_the_losses_only() -> None:
    result = summarize(make_rows([1, 1, 0, 1]))
    assert (result.num_examples, result.count) == (4, 3)
    found = {name: estimate.value for name, estimate in result.metrics.items()}
    expected = {"accuracy": 2.5 / 3, "exact_accuracy": 2 / 3, "q_halt_accuracy": 1.0, "steps": 4.0}
    assert found == pytest.approx(expected | {"lm_loss": 6 / 4, "q_halt_loss": 1.0})
    assert ["count", *found] == list(make_rows([1]))


@pytest.mark.parametrize(("rows", "named"), [([0, 0], {"lm_loss", "q_halt_loss"}), ([], set())])
def test_a_set_without_labels_reports_no_counted_metric(rows: list[int], named: set[str]) -> None:
    result = summarize(make_rows(rows))
    assert (result.num_examples, result.count) == (len(rows), 0)
    assert set(result.metrics) == named


def test_the_interval_of_the_cell_accuracy_ends_at_one() -> None:
    rows = make_rows([1] * 4)
    rows["accuracy"] = np.array([1.0, 1.0, 1.0, 0.8])
    estimate = summarize(rows).metrics["accuracy"]
    unbounded = normal(rows["accuracy"])
    assert unbounded.high is not None
    assert unbounded.high > 1.0 == estimate.high
    assert estimate.low == unbounded.low
