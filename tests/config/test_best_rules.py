import pytest

from vtool.config.load import examine

EARLY = "evaluation.early_stopping.patience=2"


@pytest.mark.parametrize("asked", [EARLY, "checkpoint.keep_best.metric=validation_nll"])
def test_what_nothing_decides_is_refused(asked: str) -> None:
    def rules(*more: str) -> list[str]:
        return [found.rule for found in examine("digits", [asked, *more]).findings]

    assert rules("evaluation.every_steps=null") == ["best-without-validation"]
    assert rules("evaluation.every_steps=5", "data.validation=[]")[-1] == "best-without-validation"
    assert rules("evaluation.every_steps=5") == []
    held = ("data.validation=[]", "data.split={validation:0.1,group:image}")
    assert "best-without-validation" not in rules("evaluation.every_steps=5", *held)


def test_a_score_that_no_evaluation_computes_is_refused_with_those_it_does() -> None:
    def refusal(metric: str) -> str:
        (found,) = examine(
            "digits", [f"checkpoint.keep_best.metric={metric}", "evaluation.every_steps=5"]
        ).findings
        assert found.rule == "metric-not-computed"
        return f"{found.message}; {found.help}"

    assert "must not choose" in refusal("test_nll")
    assert "did you mean `validation_exact_match`?" in refusal("validation_exact_mach")
    assert "validation_token_accuracy" in refusal("bleu")
