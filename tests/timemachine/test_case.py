"""Cases: each file is one, and what is wrong with a file is reported, all at once."""

import re
from pathlib import Path

import pytest
import yaml

from timemachine.case import CASES, read_case, read_cases

GOOD = yaml.safe_load((CASES / "transformers-34191.yaml").read_text("utf-8"))


def written(folder: Path, name: str = "transformers-34191", **changed: object) -> Path:
    file = folder / f"{name}.yaml"
    given = {key: value for key, value in (GOOD | changed).items() if value is not None}
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    return file


def test_every_file_is_a_case_and_every_script_is_used() -> None:
    cases = read_cases()
    used = {case.script for case in cases if case.script}
    texts = [(CASES / name).read_text("utf-8") for name in used]
    imported = {
        f"{name}.py" for text in texts for name in re.findall(r"^(?:from|import) (\w+)", text, re.M)
    }
    assert {file.name for file in CASES.glob("*.py")} <= used | imported
    assert len(cases) == len(list(CASES.glob("*.yaml")))


def test_a_clean_side_has_other_wheels_than_the_unsafe_one() -> None:
    pairs = [case for case in read_cases() if not case.is_open]
    assert [case.name for case in pairs if case.wheels.clean == case.wheels.unsafe] == []


def test_a_case_without_a_clean_release_is_open(tmp_path: Path) -> None:
    case = read_case(written(tmp_path, wheels={"unsafe": ["transformers==4.45.2"]}))
    assert case.is_open
    assert case.sides == ("unsafe",)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rule": "no-such-rule"}, "no rule no-such-rule"),
        ({"number": 1}, "transformers-1[-word]"),
        ({"script": "none.py"}, "no none.py"),
        ({"command": "rm -r /"}, "one of vtool"),
        ({"wheels": {"unsafe": ["transformers>=4"]}}, "wheels.unsafe"),
        ({"defect": None}, "defect: Field required"),
        ({"color": "red"}, "color: Extra"),
        ({"command": "vtool watch -- {pyton} {script}"}, "{pyton}"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_case(written(tmp_path, **changed))


@pytest.mark.parametrize("text", ["a: [", "- 1", "\ufeff\x00"])
def test_a_file_that_is_no_mapping_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "x-1.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"x-1\.yaml"):
        read_case(tmp_path / "x-1.yaml")


def test_cases_are_chosen_by_the_beginning_of_their_names() -> None:
    assert {case.project for case in read_cases(["transformers-3"])} == {"transformers"}
    with pytest.raises(ValueError, match="there is no case nowhere"):
        read_cases(["nowhere"])
