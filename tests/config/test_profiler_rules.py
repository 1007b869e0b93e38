"""Every setting of a profiler that elsewhere silently records nothing is refused."""

import pytest

from vtool.config.load import examine
from vtool.diagnostics import Diagnostic

TORCH = ("profiler=torch",)


def findings(*overrides: str) -> tuple[Diagnostic, ...]:
    return examine("digits", ["data.micro_batch_size=16", *overrides]).findings


def rules(*overrides: str) -> list[str]:
    return [finding.rule for finding in findings(*overrides)]


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("[0,5]", "profile-interval"),
        ("[-1,5]", "profile-interval"),
        ("[-2,-2]", "profile-interval"),
        ("[5,3]", "profile-interval"),
        ("[5,-1]", "profile-interval"),
        ("[1,3]", "profile-interval"),  # no room for the warm-up
        ("[601,601]", "profile-interval"),
        ("[599,601]", "profile-interval"),
        ("[-1,-1]", "nothing-profiled"),
        ("[5,7.5]", "wrong-type"),
        ("[5,true]", "wrong-type"),
        ("[5]", "out-of-range"),
        ("5", "wrong-type"),
    ],
)
def test_an_interval_that_the_run_cannot_keep(given: str, rule: str) -> None:
    assert rules(*TORCH, f"profiler.profile_interval={given}") == [rule]


@pytest.mark.parametrize("given", ["[2,2]", "[2,600]", "[600,600]"])
def test_an_interval_that_it_can(given: str) -> None:
    assert findings(*TORCH, f"profiler.profile_interval={given}") == ()
    assert findings(*TORCH, "profiler.profile_interval=[1,1]", "profiler.warmup=0") == ()


@pytest.mark.parametrize("given", ["[0,5]", "[5,3]", "[1,3]", "[599,601]"])
def test_what_the_finding_says_to_write_is_right(given: str) -> None:
    (finding,) = findings(*TORCH, f"profiler.profile_interval={given}")
    assert finding.help is not None
    assert (
        findings(*TORCH, f"profiler.profile_interval={given}", finding.help.partition(", or")[0])
        == ()
    )


@pytest.mark.parametrize("given", ["1.5", "true", "-1"])
def test_a_warm_up_that_is_no_number_of_steps(given: str) -> None:
    assert rules(*TORCH, f"profiler.warmup={given}") == [
        "out-of-range" if given == "-1" else "wrong-type"
    ]


def test_an_interval_without_a_tool_and_a_tool_without_an_interval() -> None:
    assert rules("profiler.profile_interval=[5,7]") == ["nothing-profiled"]
    assert rules("profiler.tool=torch") == ["nothing-profiled"]
    assert rules(*TORCH, "profiler.ranks=[]") == ["nothing-profiled"]
    assert findings("profiler=none") == findings()


def test_a_tool_that_there_is_not() -> None:
    (finding,) = findings("profiler.tool=torhc", "profiler.profile_interval=[5,7]")
    assert (finding.rule, finding.help) == ("unknown-choice", "did you mean `torch`?")


@pytest.mark.parametrize("ranks", ["[2]", "[0,0]", "[0,1,2]", "[-1]"])
def test_ranks_that_the_run_does_not_have(ranks: str) -> None:
    found = rules(*TORCH, f"profiler.ranks={ranks}", "launch.nproc=2")
    assert found == (["out-of-range"] if ranks == "[-1]" else ["profiler-ranks"])


@pytest.mark.parametrize(
    ("tool", "fits"),
    [("torch", ("cpu", "cuda")), ("npu", ("npu",)), ("nsys", ("cuda",)), ("memory", ("cuda",))],
)
def test_a_tool_is_for_some_devices(tool: str, fits: tuple[str, ...]) -> None:
    for kind in ("cpu", "cuda", "npu"):
        assert rules(f"profiler={tool}", f"device.kind={kind}") == (
            [] if kind in fits else ["profiler-device"]
        )
    assert rules(f"profiler={tool}") == [], "auto is asked when the device has been chosen"


@pytest.mark.parametrize("level", ["1", "level3", "Level1"])
def test_npu_levels_are_words(level: str) -> None:
    assert len(found := rules("profiler=npu", f"profiler.npu.level={level}")) == 1
    assert found[0] == "unknown-choice"


def test_npu_counters_take_a_level_that_collects_them() -> None:
    counters = "profiler.npu.aic_metrics=PipeUtilization"
    assert rules("profiler=npu", counters) == []
    for level in ("level_none", "level0"):
        assert rules("profiler=npu", counters, f"profiler.npu.level={level}") == [
            "npu-profiler-level"
        ]
    assert rules("profiler=npu", "profiler.npu.aic_metrics=PipeUtilisation") == ["unknown-choice"]


def test_settings_of_another_tool_are_noted() -> None:
    found = findings(
        "profiler=nsys",
        "profiler.warmup=2",
        "profiler.record.stacks=true",
        "profiler.npu.analysis=false",
        "profiler.max_trace_mb=5",
    )
    assert [(one.rule, one.parameter) for one in found] == [
        ("ignored-setting", f"profiler.{name}")
        for name in ("warmup", "max_trace_mb", "record.stacks", "npu.analysis")
    ]
    assert findings("profiler=nsys", "profiler.profile_interval=[1,2]") == (), (
        "nsys has no warm-up that would need room"
    )
