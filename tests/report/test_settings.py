import pytest
import yaml

from vtool.config.load import effective_yaml, load_run
from vtool.report.settings import SettingLine, read_settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optim:\n  lr: 2.0e-3  # a.yaml:1:2\n", [SettingLine("optim.lr", "2.0e-3", "a.yaml:1:2")]),
        ("name: 'a # b'  # command line\n", [SettingLine("name", "a # b", "command line")]),
        ("dir: null  # default\n", [SettingLine("dir", "null", "default")]),
        (
            "dir:  # default\nname: x\n",
            [SettingLine("dir", "", "default"), SettingLine("name", "x", "")],
        ),
        ("empty: ''  # default\n", [SettingLine("empty", '""', "default")]),
        ("betas: [0.9, 0.98]  # a.yaml:3:1\n", [SettingLine("betas", "[0.9, 0.98]", "a.yaml:3:1")]),
        (
            "betas:\n- 0.9  # a.yaml:3:1\n- 0.98  # a.yaml:3:1\n",
            [SettingLine("betas", "[0.9, 0.98]", "a.yaml:3:1")],
        ),
        (
            "image: {min: 1, max: 2}  # a.yaml:4:1\n",
            [SettingLine("image", "{min: 1, max: 2}", "a.yaml:4:1")],
        ),
        ("test: []  # default\n", [SettingLine("test", "[]", "default")]),
        (
            "train:\n- format: digits  # a.yaml:5:1\n  split: train  # b.yaml:6:1\n",
            [
                SettingLine("train.0.format", "digits", "a.yaml:5:1"),
                SettingLine("train.0.split", "train", "b.yaml:6:1"),
            ],
        ),
        (
            "note: |  # a.yaml:7:1\n  one\n  two # no comment\n",
            [SettingLine("note", "one\ntwo # no comment\n", "a.yaml:7:1")],
        ),
        ("", []),
        ("- a\n", []),
    ],
)
def test_leaves_carry_their_value_as_written_and_their_origin(
    text: str, expected: list[SettingLine]
) -> None:
    assert list(read_settings(text)) == expected


def test_what_is_no_yaml_raises() -> None:
    with pytest.raises(yaml.YAMLError):
        read_settings("a: [1,\nb: {")


def test_every_setting_that_a_run_writes_is_read_with_its_origin() -> None:
    loaded = load_run("digits", ["optim.lr=1e-4", "run.name='a # b'"])
    settings = {setting.key: setting for setting in read_settings(effective_yaml(loaded))}
    assert settings["optim.lr"] == SettingLine("optim.lr", "0.0001", "command line")
    assert settings["run.name"] == SettingLine("run.name", "a # b", "command line")
    assert settings["data.test.0.split"].origin.startswith("recipes/digits.yaml:")
    assert settings["device.kind"].origin == "default"
    assert all(setting.origin for setting in settings.values())
