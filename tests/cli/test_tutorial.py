"""Every command of docs/tutorial.md, copied from the page, prints what the page says."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vtool.vllm_python import vllm_python

PAGE = (Path(__file__).parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(sh|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRESS = re.compile(r"^(vtool [\w-]+: starting|.*, \d+ s(, about \d+ s left)?)\n", re.MULTILINE)


def steps(serving: bool) -> Iterator[tuple[str, str]]:
    """Yield each block of commands, with the output that follows it, or ""."""
    for (kind, text), (following, output) in zip(BLOCKS, [*BLOCKS[1:], ("sh", "")], strict=True):
        if kind == "sh" and (serving or "vtool serve" not in text):
            yield text, output if following == "text" else ""


def first_difference(expected: str, output: str) -> str | None:
    """Return the first expected line that was not printed in its place.

    A line of `…` stands for any lines, `…` in a line for any characters.
    """
    lines = expected.splitlines()
    for count in range(1, len(lines) + 1):
        pattern = "".join(map(_line_pattern, lines[:count]))
        if not re.match(pattern if count < len(lines) else rf"{pattern}\Z", output):
            return lines[count - 1]
    return None


def _line_pattern(line: str) -> str:
    return r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r" *\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `vtool` and `python` are this interpreter's."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, arguments in {"vtool": "-m vtool", "python": ""}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    source = str(Path(__file__).parents[2])
    return os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": source}


def follow(folder: Path, environment: dict[str, str], serving: bool) -> list[str]:
    """Run the page's commands in a folder, one by one, and return what differs from the page."""
    wrong = []
    folder.mkdir()
    for commands, expected in steps(serving):
        done = subprocess.run(
            ["bash", "-c", commands],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        output = PROGRESS.sub("", done.stdout)
        missing = first_difference(expected, output) if expected else None
        if missing is not None:
            wrong.append(f"$ {commands}has no line {missing!r}, but:\n{output}")
        elif done.returncode != ("error[" in expected):
            wrong.append(f"$ {commands}ended with {done.returncode}:\n{output}")
    return wrong


def test_each_of_the_eight_tasks_has_commands() -> None:
    sections = re.split(r"^## \d\. ", PAGE, flags=re.MULTILINE)[1:]
    assert len(sections) == 8
    assert all("```sh\n" in section for section in sections)


def test_a_line_that_was_not_printed_is_named() -> None:
    printed = "one 1.5 s\ntwo\nthree\n"
    assert first_difference("one … s\n…\nthree\n", printed) is None
    assert first_difference("one … s\nthree\n", printed) == "three"
    assert first_difference("…\ntwo\n", printed) == "two"  # a line follows it


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_every_command_prints_what_the_page_says(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    serving = vllm_python() is not None
    wrong = follow(tmp_path / "week", environment, serving)
    assert not wrong, "\n".join(wrong)
    if not serving:
        pytest.skip("not run: `vtool serve`, which needs vLLM (`make vllm-env`)")
