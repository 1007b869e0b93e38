"""The advisories themselves: well formed, consistent, and with their evidence."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.version import Version

from tests.doctor import advisories_page
from vtool.cli.readable_trainer import ReadableTrainer
from vtool.doctor.advisories import (
    ADVISORIES_FILE,
    FROM,
    Advisories,
    Advisory,
    Releases,
    Sign,
    advisories,
)

ROOT = Path(__file__).parents[2]
CASES = ROOT / "timemachine/cases"
KNOWN = advisories().advisories


def plain() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(ADVISORIES_FILE.read_text(encoding="utf-8"))
    return document


def test_the_file_is_what_its_schema_says() -> None:
    schema = json.loads(advisories_page.SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not list(jsonschema.Draft202012Validator(schema).iter_errors(plain()))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nmae", "x"),
        ("name", "trl"),
        ("releases", {"since": "0.17", "last": "0.23.1 seen"}),
        ("upstream", ["https://example.org/1"]),
        ("signs", {"trl": [{"setting": "packing", "equals": True}]}),
        ("title", "x" * 101),
    ],
)
def test_the_schema_refuses_what_the_program_refuses(key: str, value: object) -> None:
    document = plain()
    document["advisories"][0][key] = value
    schema = json.loads(advisories_page.SCHEMA.read_text(encoding="utf-8"))
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(document))
    with pytest.raises(ValueError, match="validation error"):
        Advisories.model_validate(document)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"package": "tlr"}, "no package tlr"),
        ({"rule": "no-such-rule"}, "no rule no-such-rule"),
        ({"case": None, "seen": None}, "nothing says how it was run"),
        ({"releases": {"since": "2.0 read", "last": "1.0 read"}}, "from the oldest"),
        ({"releases": {"since": "1.0 read", "last": "2.0 read", "fixed": "2.0 read"}}, "without"),
        ({"name": KNOWN[1].name}, "there twice"),
        ({"releases": None}, "releases or commits"),
        ({"signs": {"trl": [{"setting": "a", "above": 1, "given": True}]}}, "one test"),
    ],
)
def test_what_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    document = plain()
    assert KNOWN[0].case, "the first one was run"
    document["advisories"][0] |= change
    with pytest.raises(ValueError, match=message):
        Advisories.model_validate(document)


def test_the_trainers_whose_files_are_read_are_those_of_validate_config() -> None:
    assert tuple(trainer.value for trainer in ReadableTrainer) == FROM


def test_there_are_as_many_as_were_promised() -> None:
    assert len(KNOWN) >= 45
    # those that the time machine begins with
    assert {
        "verl-5881",
        "verl-5775",
        "verl-5909",
        "verl-5909-mm-token-type-ids",
        "verl-5942",
        "vllm-42244",
    } <= {one.name for one in KNOWN}


@pytest.mark.parametrize("one", KNOWN, ids=lambda one: one.name)
def test_each_says_where_it_was_seen(one: Advisory) -> None:
    if one.seen is not None:
        assert (ROOT / one.seen).is_file()
    if one.case is not None and (CASES.parent / "results.json").is_file():
        results = json.loads((CASES.parent / "results.json").read_text(encoding="utf-8"))
        seen = {result["case"]: result["outcome"] for result in results["results"]}
        assert seen.get(one.case, "seen") == "seen", "then it has not verified anything"
    if one.case is not None and CASES.is_dir():
        assert (CASES / f"{one.case}.yaml").is_file(), "a case was renamed: its advisory names it"
        case = yaml.safe_load((CASES / f"{one.case}.yaml").read_text(encoding="utf-8"))
        for side, state in (("unsafe", "affected"), ("clean", "clean")):
            for wheel in case["wheels"].get(side, ()):
                package, _, version = wheel.partition("==")
                if package == one.package and one.releases is not None:
                    assert one.releases.state(Version(version)) == state, wheel


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("0.9", "unknown"),
        ("1.0", "clean"),
        ("1.0.5", "unknown"),
        ("1.1", "affected"),
        ("1.2.post1", "affected"),
        ("1.3", "affected"),
        ("1.3.1", "unknown"),
        ("1.4", "clean"),
        ("2.0", "clean"),
    ],
)
def test_a_release_has_it_between_the_edges_that_were_seen(version: str, state: str) -> None:
    edges = {"since": "1.1 read", "last": "1.3 read", "fixed": "1.4 read"}
    releases = Releases.model_validate(edges | {"before": "1.0 read"})
    expected = "clean" if version == "0.9" else state
    assert releases.state(Version(version)) == expected
    if version in ("0.9", "1.0", "1.0.5"):
        assert Releases.model_validate(edges).state(Version(version)) == "unknown"


def test_nothing_is_said_of_releases_newer_than_an_open_bug() -> None:
    releases = Releases.model_validate({"since": "1.1 read", "last": "1.3 read"})
    assert releases.state(Version("1.3")) == "affected"
    assert releases.state(Version("1.4")) == "unknown"


@pytest.mark.parametrize(
    ("sign", "settings", "holds"),
    [
        ({"setting": "n", "above": 1}, {"n": 4}, True),
        ({"setting": "n", "above": 1}, {"n": "4"}, True),
        ({"setting": "n", "above": 1}, {"n": 1}, False),
        ({"setting": "n", "above": 1}, {}, None),
        ({"setting": "n", "above": 1}, {"n": "auto"}, None),
        ({"setting": "n", "above": 1}, {"n": True}, None),
        ({"setting": "n", "above": 1, "default": 1}, {}, False),
        ({"setting": "p", "any_of": [True]}, {"p": True}, True),
        ({"setting": "p", "any_of": [True]}, {"p": 1}, False),
        ({"setting": "p", "any_of": [False], "default": False}, {}, True),
        ({"setting": "p", "given": True}, {"p": "x"}, True),
        ({"setting": "p", "given": True}, {"p": None}, False),
        ({"setting": "p", "given": True}, {"p": {}}, False),
        ({"setting": "p", "given": False}, {}, True),
        ({"setting": "m", "matches": "(?i)llava"}, {"m": "llava-hf/LLaVA"}, True),
        ({"setting": "m", "matches": "(?i)llava"}, {"m": "/models/mine"}, None),
        ({"unseen": "rows"}, {"rows": 1}, None),
    ],
)
def test_a_sign_holds_does_not_or_is_not_known(
    sign: dict[str, Any], settings: dict[str, Any], holds: bool | None
) -> None:
    assert Sign.model_validate(sign).holds(settings) is holds
