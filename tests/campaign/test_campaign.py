"""The campaign's own parts, and an hour of it, always of the same seed."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaign import commands, ends, faults, files, fuzz, mutate, page, seeds, soak, targets
from tests.campaign.state import ROOT, State, Tally
from vtool.diagnostics import Diagnostic

_PARTS = "kills,faults,fuzz,commands,ends"


def campaign(state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tests.campaign", "--state", str(state), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=7000, check=False
    )


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_an_hour_of_the_campaign_finds_nothing(tmp_path: Path) -> None:
    done = campaign(tmp_path / "state", "--minutes", "60", "--seed", "18", "--parts", _PARTS)
    assert done.returncode == 0, done.stdout + done.stderr
    tallies = State.read(tmp_path / "state", 18).tallies
    assert tallies["kills"].counts["kills"]
    assert tallies["faults"].counts["faults"] or tallies["faults"].counts["skipped: no cc"]
    assert tallies["fuzz"].counts["inputs"] > 20_000
    assert tallies["commands"].counts["commands"] > 100
    assert tallies["ends"].counts["kills"] > 10


def test_a_campaign_resumes_where_it_was_and_not_under_another_seed(tmp_path: Path) -> None:
    state = State.read(tmp_path, 1)
    state.tally("kills").next = 7
    state.tally("kills").problem("other bytes", "run 3")
    state.tally("kills").problem("other bytes", "run 4")
    state.write()
    again = State.read(tmp_path, 1).tally("kills")
    assert (again.next, again.problems) == (7, ["other bytes: run 3"])
    assert again.counts["problem: other bytes"] == 2
    with pytest.raises(SystemExit, match="seed 1"):
        State.read(tmp_path, 2)
    assert "| kills | 0 kills" not in page.table(state)  # no time was spent


def test_a_campaign_resumes_from_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "reliability.json"
    monkeypatch.setattr("tests.campaign.state.KEPT", kept)
    shown = State.read(tmp_path / "here", 1)
    shown.tally("fuzz").next = 9
    shown.write(kept)
    assert State.read(tmp_path / "elsewhere", 1).tally("fuzz").next == 9
    assert State.read(tmp_path / "elsewhere", 2).tally("fuzz").next == 0


def test_an_input_follows_from_the_seed_and_its_number() -> None:
    def made(seed: int) -> bytes:
        draw = Tally(seed, "fuzz").draw(5)
        return mutate.as_json(draw, mutate.change(draw, {"a": [1, {"b": 2}], "c": "text"}))

    assert made(1) == made(1)
    assert len({made(seed) for seed in range(20)}) > 10


_SLOW = ("recipe", "overrides", "a long tail", "tokenizer.json", "preprocessor_config.json")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the inputs, which sets the user's cache too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", "")
        folder = tmp_path_factory.mktemp("inputs") / "place"
        fuzz.prepare(folder)
        yield folder


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_each_target_takes_inputs_and_refuses_some(name: str, place: Path) -> None:
    target = fuzz.TARGETS[name]
    count = 12 if name in _SLOW else 60
    answers = {target.judge(random.Random(number), place).answer for number in range(count)}
    assert "refused" in answers or name == "metrics"  # a line that cannot be read is left out
    assert answers <= {"refused", "clean"}


def test_a_changed_byte_of_an_answer_is_refused_where_the_format_has_a_checksum(
    place: Path,
) -> None:
    for name in ("Parquet", "picture"):
        spans = [seed for seed in files.SEEDS[name] if seed in seeds.SPANS]
        assert len(spans) == 1
        first, behind = seeds.SPANS[spans[0]]
        target = fuzz.TARGETS[name]
        file = place / target.file
        for at in (first, (first + behind) // 2, behind - 1):
            content = bytearray(spans[0])
            content[at] ^= 1
            file.write_bytes(content)
            assert target.ask(file) == (True, None)
            assert target.refusal(file) == "a byte of an answer is another one"


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (commands.End(0, 1.0, 2**20, "{}", ""), ["ends with 0, and an oracle says cut off"]),
        (commands.End(1, 1.0, 2**20, "{}", ""), []),
        (commands.End(1, 1.0, 2**20, "[] x", ""), ["its json is none"]),
        (commands.End(-9, 1.0, 2**20, "{}", ""), ["ends with -9"]),
        (commands.End(1, 21.0, 2**20, "{}", ""), ["more than 20 seconds"]),
        (commands.End(1, 1.0, 2**20, "{}", "", in_time=False), ["more than 20 seconds"]),
        (commands.End(2, 1.0, 2**31 + 1, "{}", ""), ["more than 2 GiB"]),
        (
            commands.End(2, 1.0, 2**20, "{}", "Traceback (most recent call last)\nKeyError: 1\n"),
            ["a traceback of KeyError"],
        ),
    ],
)
def test_the_end_of_a_command_is_judged(end: commands.End, expected: list[str]) -> None:
    assert commands.problems(end, "json", "cut off: 3 bytes") == expected


def test_a_process_that_a_command_leaves_is_found(tmp_path: Path) -> None:
    left = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    try:
        assert ends._processes_in(tmp_path) == {left.pid: "sleep 60 "}
    finally:
        left.kill()
        left.wait()
    assert ends._processes_in(tmp_path) == {}


def test_what_a_killed_command_leaves_is_found(tmp_path: Path) -> None:
    for name in (".out.jsonl.7.part", ".making-1", ".writing-settings.json", "out.jsonl", "parts"):
        (tmp_path / name).touch()
    left = sorted(name.rpartition("/")[2] for name in ends._left(tmp_path))
    assert left == [".making-", ".part", ".writing-"]


def test_a_reader_that_calls_everything_clean_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vtool.loading.checkpoint import headers

    def clean(file: Path) -> tuple[None, list[Diagnostic]]:
        return None, []

    monkeypatch.setattr(headers, "read_header", clean)
    targets.prepare(tmp_path)
    judge = targets.TARGETS["header"].judge
    problems = [judge(random.Random(number), tmp_path).problem for number in range(20)]
    assert any("its reader says" in problem for problem in problems if problem)


def test_an_input_that_crashes_its_reader_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(file: Path) -> targets.Answer:
        raise KeyError("steps")

    targets.prepare(tmp_path)
    header = replace(targets.TARGETS["header"], ask=crash)
    monkeypatch.setattr(fuzz, "TARGETS", {"header": header})
    monkeypatch.setattr(fuzz, "WEIGHTED", ["header"])
    name, verdict = fuzz.try_input(Tally(0, "fuzz"), 0, tmp_path)
    assert (name, verdict.answer) == ("header", "crash")
    assert "KeyError at test_campaign.py" in str(verdict.problem)


def test_memory_that_grows_is_found_and_memory_that_stays_is_not() -> None:
    def judged(growth: float, unshared: float = 0.0) -> list[str]:
        """Judge a run with 1.2 GB, of which 0.2 GB are its own at first."""
        samples = []
        for step in range(1, 400):
            grown = 2e8 * growth * step / 400
            own = 2e8 * (1 + unshared * step / 400) + grown
            samples.append(soak.Sample(step, int(1.2e9 + grown), int(own), 20, 9))
        tally = Tally(0, "soak")
        soak._judge(tally, samples, 400)
        return tally.problems

    assert judged(0.0) == []
    assert judged(0.0, unshared=0.5) == []  # written to pages that it had of its parent
    assert [text.partition(":")[0] for text in judged(0.05)] == ["memory grow"]


def test_the_shim_fails_the_operation_that_it_is_asked_to_fail(tmp_path: Path) -> None:
    shim = faults.build_shim(tmp_path)
    if shim is None:
        pytest.skip("no cc")
    code = f"""
import ctypes, json, os
os.mkdir("run")
shim = ctypes.CDLL(None)
shim.fault_arm.argtypes = [ctypes.c_char_p, *[ctypes.c_long] * 2, *[ctypes.c_int] * 2]
outcomes = []
for operation in range(1, 8):
    shim.fault_arm({str(tmp_path / "run")!r}.encode(), operation, operation, 28, -1)
    try:
        with open("run/a", "wb", buffering=0) as file:
            file.write(b"text")
            os.fsync(file.fileno())
        os.rename("run/a", "run/b")
        os.mkdir("run/c")
        outcomes.append("nothing failed")
    except OSError as error:
        outcomes.append(error.strerror)
    if os.path.isdir("run/c"):
        os.rmdir("run/c")
open("elsewhere", "w").close()
print(json.dumps(outcomes))
"""
    environment = {**os.environ, "LD_PRELOAD": str(shim)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    # open, write, fsync, close, rename, mkdir; and there is no seventh
    assert json.loads(done.stdout) == ["No space left on device"] * 6 + ["nothing failed"]


def test_a_problem_that_is_kept_names_no_path_of_the_machine() -> None:
    tally = Tally(0, "kills")
    tally.problem("a traceback", f'File "{sys.prefix}/lib/a.py" and "{ROOT}/vtool/b.py"')
    assert tally.problems == ['a traceback: File "lib/a.py" and "vtool/b.py"']
