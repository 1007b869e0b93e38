"""Runs that hold the claims about TrainCheck's errors."""

from tests.watch.runs import planted, traincheck


def test_each_error_has_a_run_or_a_reason() -> None:
    assert len(traincheck.ERRORS) == 18
    for name, one in traincheck.ERRORS.items():
        assert bool(one.planted) != bool(one.not_seen), name
        assert one.planted is None or one.planted in planted.RUNS, name
