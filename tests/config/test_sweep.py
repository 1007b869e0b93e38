"""`KEY=A,B`: every combination is a job, with a name that no other has."""

import time

import pytest

from vtool.config.sweep import expand_grid
from vtool.diagnostics import Findings


def test_the_last_override_changes_fastest_and_one_value_is_in_every_job() -> None:
    jobs = expand_grid(["optim.lr=0.1,0.2", "run.seed=range(1,3)", "train.steps=5"])
    assert [job.overrides for job in jobs] == [
        (f"optim.lr={lr}", f"run.seed={seed}", "train.steps=5")
        for lr in ("0.1", "0.2")
        for seed in ("1", "2")
    ]
    assert [job.suffix for job in jobs] == [
        "lr=0.1,seed=1",
        "lr=0.1,seed=2",
        "lr=0.2,seed=1",
        "lr=0.2,seed=2",
    ]


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("engine=ddp,fsdp2", ["engine=ddp", "engine=fsdp2"]),
        ("optim.lr=choice(0.1,0.2)", ["optim.lr=0.1", "optim.lr=0.2"]),
        ("++optim.lr=0.1,0.2", ["++optim.lr=0.1", "++optim.lr=0.2"]),
        (
            "optim.betas=[0.9,0.98],[0.9,0.999]",
            ["optim.betas=[0.9,0.98]", "optim.betas=[0.9,0.999]"],
        ),
        ("optim.betas=[0.9,0.98]", ["optim.betas=[0.9,0.98]"]),
        ("run.name='a,b'", ["run.name='a,b'"]),
        ("run.seed=1,1,2", ["run.seed=1", "run.seed=2"]),
        ("train.steps", ["train.steps"]),  # no override at all: said of it where it is composed
    ],
)
def test_what_is_a_list_of_values(override: str, values: list[str]) -> None:
    assert [job.overrides for job in expand_grid([override])] == [(value,) for value in values]


def test_all_sweeps_without_a_list_are_refused_at_once() -> None:
    with pytest.raises(Findings) as caught:
        expand_grid(["optim.lr=interval(0,1)", "optim=glob(*)", "run.seed=1,2"])
    assert [finding.rule for finding in caught.value.diagnostics] == ["bad-override"] * 2
    assert caught.value.fatal


def test_names_tell_jobs_apart_and_are_names_of_files() -> None:
    def suffixes(*overrides: str) -> list[str]:
        found = [job.suffix for job in expand_grid(overrides)]
        assert len(set(found)) == len(found)
        assert all("/" not in each and len(each) <= 120 and each.isascii() for each in found)
        return found

    assert (
        suffixes("optim.lr=1,2", "optim.groups.vision.lr=3,4")[0]
        == "optim.lr=1,optim.groups.vision.lr=3"
    )
    # written alike, and yet two
    assert all(each.startswith("path=a_b-") for each in suffixes("model.path=a/b,a:b"))
    assert suffixes("run.seed=1", "train.steps=2") == [""]
    long = "x" * 300
    suffixes(f"model.path={long}1,{long}2")


@pytest.mark.parametrize(
    "overrides",
    [
        ["run.seed=range(0,100000000)"],
        [f"{name}=1,2,3,4,5,6,7,8,9" for name in ("run.seed", "optim.lr", "optim.eps", "a", "b")],
    ],
)
def test_more_combinations_than_anybody_means_are_a_finding_at_once(overrides: list[str]) -> None:
    began = time.process_time()
    with pytest.raises(Findings, match="more than 1,000 combinations"):
        expand_grid(overrides)
    refused = time.process_time() - began
    began = time.process_time()
    assert len(expand_grid(["run.seed=range(0,1000)"])) == 1000
    # 59,049 combinations take 59 times as long as a thousand do
    assert refused < 30 * (time.process_time() - began)
