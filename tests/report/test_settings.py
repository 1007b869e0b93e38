import pytest
import yaml

from vtool.config.load import effective_yaml, load_run
from vtool.report.settings import Setting, read_settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optim:\n  lr: 2.0e-3  # a.yaml:1:2\n", [Setting("optim.lr", "2.0e-3", "a.yaml:1:2")]),
        ("name: 'a # b'  # command line\n", [Setting("name", "a # b", "command line")]),
        ("dir: null  # default\n", [Setting("dir", "null", "default")]),
        ("dir:  # default\nname: x\n", [Setting("dir", "", "default"), Setting("name", "x", "")]),
        ("empty: ''  # default\n", [Setting("empty", '""', "default")]),
        ("betas: [0.9, 0.98]  # a.yaml:3:1\n", [Setting("betas", "[0.9, 0.98]", "a.yaml:3:1")]),
        (
            "betas:\n- 0.9  # a.yaml:3:1\n- 0.98  # a.yaml:3:1\n",
            [Setting("betas", "[0.9, 0.98]", "a.yaml:3:1")],
        ),
        (
            "image: {min: 1, max: 2}  # a.yaml:4:1\n",
            [Setting("image", "{min: 1, max: 2}", "a.yaml:4:1")],
        ),
        ("test: []  # default\n", [Setting("test", "[]", "default")]),
        (
            "train:\n- format: digits  # a.yaml:5:1\n  split: train  # b.yaml:6:1\n",
            [
                Setting("train.0.format", "digits", "a.yaml:5:1"),
                Setting("train.0.split", "train", "b.yaml:6:1"),
            ],
        ),
        (
            "note: |  # a.yaml:7:1\n  one\n  two # no comment\n",
            [Setting("note", "one\ntwo # no comment\n", "a.yaml:7:1")],
        ),
        ("", []),
        ("- a\n", []),
    ],
)
def test_leaves_carry_their_value_as_written_and_their_origin(
    text: str, expected: list[Setting]
) -> None:
    assert list(read_settings(text)) == expected


def test_what_is_no_yaml_raises() -> None:
    with pytest.raises(yaml.YAMLError):
        read_settings("a: [1,\nb: {")


def test_every_setting_that_a_run_writes_is_read_with_its_origin() -> None:
    loaded = load_run("digits", ["optim.lr=1e-4", "run.name='a # b'"])
    settings = {setting.key: setting for setting in read_settings(effective_yaml(loaded))}
    assert settings["optim.lr"] == Setting("optim.lr", "0.0001", "command line")
    assert settings["run.name"] == Setting("run.name", "a # b", "command line")
    assert settings["data.test.0.split"].origin.startswith("recipes/digits.yaml:")
    assert settings["device.kind"].origin == "default"
    assert all(setting.origin for setting in settings.values())
