"""Annotations of GitHub."""

import re
from pathlib import Path

import pytest

from vtool.diagnostics import Diagnostic, Origin
from vtool.diagnostics.github import annotation
from vtool.diagnostics.printable import printable


def parsed(line: str) -> tuple[str, dict[str, str], str]:
    """Split, then unescape a line, as GitHub's runner does (ActionCommand.TryParseV2)."""
    assert "\n" not in line
    assert "\r" not in line
    match = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
    assert match
    properties = dict(pair.split("=", 1) for pair in match[2].split(","))
    for escaped, text in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        properties = {name: value.replace(escaped, text) for name, value in properties.items()}
    message = match[3].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
    return match[1], properties, message


def test_an_error_has_its_place_and_title() -> None:
    line = annotation(
        Diagnostic(
            "unknown-key",
            "there is no `optim.lrr`",
            "did you mean `optim.lr`?",
            origin=Origin("mine.yaml", 2, 3),
        )
    )
    assert (
        line == "::error file=mine.yaml,line=2,col=3,title=unknown-key (VT101)::there is no"
        " `optim.lrr`%0Ahelp: did you mean `optim.lr`?"
    )


def test_what_would_end_a_command_is_escaped() -> None:
    message = "100 %\r\n::error::injected %0A, a:b"
    finding = Diagnostic("no-config", message, origin=Origin("a,b:c%\n::d.yaml", 1))
    level, properties, text = parsed(annotation(finding))
    assert (level, text) == ("warning", printable(message))
    assert properties == {"file": "a,b:c%\\n::d.yaml", "line": "1", "title": "no-config (VT421)"}


def test_what_is_not_in_a_file_has_no_place() -> None:
    level, properties, _ = parsed(
        annotation(Diagnostic("ignored-setting", "x", origin=Origin("command line")))
    )
    assert (level, set(properties)) == ("notice", {"title"})


def test_a_file_below_the_working_folder_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        parsed(
            annotation(Diagnostic("bad-header", "x", origin=Origin(f"{tmp_path}/m/a.safetensors")))
        )[1]["file"]
        == "m/a.safetensors"
    )
    assert (
        parsed(annotation(Diagnostic("bad-header", "x", origin=Origin("/elsewhere/a"))))[1]["file"]
        == "/elsewhere/a"
    )
