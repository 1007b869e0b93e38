"""Releases: which is installed, which are tested, and what is known of those that are broken."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

from vtool.cli.common import begin_with_training
from vtool.config.environment.packages import check_releases, require_training
from vtool.config.load import examine
from vtool.diagnostics import Findings
from vtool.releases import (
    BROKEN,
    TESTED,
    enable_checkpointing,
    features_by_image,
    find_installed,
    installed_version,
    is_development,
    pass_features,
    release,
    reset_features,
    why_untested,
)

ROOT = Path(__file__).parents[1]


def package(site: Path, name: str, version: str) -> None:
    (site / f"{name}-{version}.dist-info").mkdir(parents=True)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that is the only one on the path, as far as releases are looked up."""
    monkeypatch.setattr("vtool.releases.sys.path", [str(tmp_path)])
    return tmp_path


def found(*overrides: str) -> dict[str, str]:
    findings = examine("digits", overrides).findings
    return {one.rule: one.message for one in findings}


def test_the_version_is_that_of_the_folder_in_site_packages() -> None:
    import pydantic
    import torch

    assert installed_version("torch") == torch.__version__
    assert installed_version("pydantic") == pydantic.VERSION
    assert installed_version("no-such-package") is None


def test_the_first_folder_on_the_path_wins_and_the_others_are_reported(tmp_path: Path) -> None:
    package(tmp_path / "a", "torch", "2.13.0+cpu")
    package(tmp_path / "b", "torch", "2.12.0")
    path = [str(tmp_path / each) for each in ("absent", "a", "b")]
    assert [one.version for one in find_installed(["torch"], path)] == ["2.13.0+cpu", "2.12.0"]
    assert installed_version("torch", path) == "2.13.0+cpu"


@pytest.mark.parametrize(
    ("version", "development"),
    [
        ("5.23.0", False),
        ("2.13.0+cpu", False),
        ("2.12.0.post3", False),
        ("5.24.0.dev0", True),
        ("2.14.0a0+git1234", True),
        ("5.24.0rc1", True),
    ],
)
def test_a_branch_is_no_release(version: str, development: bool) -> None:
    assert is_development(version) is development


def test_what_is_inside_and_what_outside() -> None:
    tested = TESTED["transformers"]
    assert (
        why_untested("transformers", tested.oldest)
        is why_untested("transformers", tested.newest)
        is None
    )
    major, minor, patch = release(tested.newest)
    assert why_untested("transformers", f"{major}.{minor}.{patch + 7}") is None
    assert "newer" in str(why_untested("transformers", f"{major}.{minor + 1}.0"))
    assert "older" in str(why_untested("transformers", "5.5.3"))
    assert "no release" in str(why_untested("transformers", "5.10.0.dev0"))


def test_a_release_outside_the_range_is_one_warning_that_names_range_and_last(only: Path) -> None:
    package(only, "transformers", "5.99.0")
    package(only, "torch", "2.13.0")
    examined = examine("digits")
    (finding,) = examined.findings
    assert (finding.rule, finding.severity) == ("release-untested", "warning")
    assert TESTED["transformers"].oldest in finding.message
    assert TESTED["transformers"].newest in finding.message
    assert examined.loaded is not None  # it stops nothing


def test_commands_without_a_recipe_say_it_too(
    only: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package(only, "transformers", "5.99.0")
    monkeypatch.setattr("vtool.config.environment.packages.find_spec", lambda name: object())
    begin_with_training("vtool predict")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning[release-untested VT518]: transformers 5.99.0 is newer")


def test_a_family_is_refused_by_name_where_a_release_is_known_to_compute_it_wrong(
    only: Path,
) -> None:
    package(only, "transformers", "5.5.3")
    assert "qwen2_5_vl" in found()["release-broken"]
    assert "transformers#45325" in found()["release-broken"]
    assert set(found("model.family=qwen3_vl")) == {"release-untested"}


def test_below_the_image_processors_no_family_is_left(only: Path) -> None:
    package(only, "transformers", "5.4.0")
    assert "torchvision" in found("model.family=qwen3_vl")["release-broken"]


def test_adapters_bring_peft_into_it(only: Path) -> None:
    package(only, "transformers", TESTED["transformers"].newest)
    package(only, "peft", "0.10.0")
    assert found() == {}
    assert "peft 0.10.0" in found("lora={rank: 2}")["release-untested"]


def test_without_transformers_nothing_is_known(only: Path) -> None:
    examined = examine("digits")
    assert {examined.checks[rule] for rule in ("release-untested", "release-broken")} == {"not-run"}
    assert "not installed here" in examined.reasons["release-broken"]


def test_what_is_installed_here_is_among_the_tested() -> None:
    run = examine("digits_lora")
    assert run.loaded is not None
    assert check_releases(run.loaded.run, run.loaded.origins).findings == ()


def test_a_missing_extra_is_reported_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"torch", "tokenizers"}
    monkeypatch.setattr(
        "vtool.config.environment.packages.find_spec",
        lambda name: None if name in absent else object(),
    )
    with pytest.raises(Findings) as raised:
        require_training("vtool train")
    (finding,) = raised.value.diagnostics
    assert finding.message.startswith("vtool train needs the extra `train`: torch, tokenizers are")
    assert finding.help == "pip install 'vtool[train]'"


def test_models_that_name_it_by_either_name_recompute_their_activations() -> None:
    class Newer:
        def activation_checkpointing_enable(self, given: object) -> None:
            self.given = given

        def gradient_checkpointing_enable(self, given: object) -> None:
            raise AssertionError("the older name")

    class Older:
        def gradient_checkpointing_enable(self, given: object) -> None:
            self.given = given

    for model in (Newer(), Older()):
        enable_checkpointing(model)
        assert model.given == {"use_reentrant": False}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = {
    one.name: one.specifier
    for one in map(
        Requirement, (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["train"])
    )
}


class TestOneRange:
    """The tested, the required and the installed releases are one range."""

    def test_the_oldest_of_a_range_is_the_oldest_tested(self) -> None:
        for name, tested in TESTED.items():
            (oldest,) = (one.version for one in ASKED[name] if one.operator == ">=")
            assert release(oldest) == release(tested.oldest), name

    def test_the_newest_tested_are_those_of_the_constraints(self) -> None:
        pinned = dict(
            re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
        )
        assert {name: pinned[name] for name in TESTED} == {
            name: tested.newest for name, tested in TESTED.items()
        }

    def test_no_broken_release_is_asked_for(self) -> None:
        assert not ASKED["transformers"].contains("5.5.3")
        assert all(release(one.below) <= release(TESTED["transformers"].oldest) for one in BROKEN)

    def test_the_oldest_environment_has_the_oldest_of_every_range(self) -> None:
        text = (ROOT / "tests/installed/oldest.txt").read_text()
        pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.M))
        for name, specifier in ASKED.items():
            (oldest,) = (one.version for one in specifier if one.operator == ">=")
            if name != "torch":
                assert release(pinned[name]) == release(oldest), name


class Given:
    """An output of the tower."""

    def __init__(self, level: Any) -> None:
        self.pooler_output = (torch.zeros(2, 3), torch.zeros(4, 3))
        self.deepstack_features = [level]


def test_features_are_handed_to_releases_that_take_them_and_to_those_that_do_not() -> None:
    class Newer:
        def forward(self, input_ids: Any, mm_encoder_outputs: Any = None) -> None: ...

    class Older:
        def forward(self, input_ids: Any, **more: Any) -> None: ...

    given = {"input_ids": 1, "pixel_values": 2, "pixel_values_videos": 3}
    outputs = {"image": "of images", "video": "of videos"}
    newer, older = Newer(), Older()
    assert pass_features(newer, given, outputs, torch.cat) == {
        "input_ids": 1,
        "mm_encoder_outputs": outputs,
    }
    assert pass_features(older, given, outputs, torch.cat) == given
    asked: Any = older
    assert asked.get_image_features("pixels", return_dict=True) == "of images"
    assert asked.get_video_features() == "of videos"
    reset_features(older)
    assert not vars(older)


def test_levels_of_deepstack_are_distinguished_by_image_in_every_release() -> None:
    whole = torch.arange(18.0).view(6, 3)
    parts = (whole[:2], whole[2:])
    for level in (whole, parts):  # before transformers 5.18, and since
        (found,) = features_by_image(Given(level))
        assert all(map(torch.equal, found, parts))
