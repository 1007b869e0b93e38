"""A chat: what typed lines mean, and the prompts that its turns make."""

import io
import os
import pty
import select
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.commands import run_vtool
from tests.rows import film, mixed_rows, picture, write_rows
from tests.runs import encoded, messages, request
from vtool.data.encode import Prompt, encode_question
from vtool.data.messages_layout import parse_row
from vtool.diagnostics import Findings
from vtool.evaluation.asker import Asker, PromptReader
from vtool.evaluation.chat import Conversation, Typed, answer, understand
from vtool.evaluation.subject import open_model
from vtool.families import FAMILIES


@pytest.fixture(scope="module")
def run(made: tuple[Path, Path]) -> Path:
    """A run with random weights, whose answers do not end."""
    return made[0]


@pytest.fixture(scope="module")
def asker(run: Path) -> Asker:
    return PromptReader.of(open_model(str(run))).load()


def test_a_line_is_a_question_a_path_or_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "my cat.png")
    (tmp_path / "notes").write_text("text")
    expected = {
        " What is it? ": Typed("ask", "What is it?"),
        "my cat.png": Typed("image", "my cat.png"),
        "'my cat.png'": Typed("image", "my cat.png"),
        r"my\ cat.png": Typed("image", "my cat.png"),
        "notes": Typed("image", "notes"),
        "/image notes": Typed("image", "notes"),
        "nothing.JPG": Typed("image", "nothing.JPG"),
        f"{tmp_path}/none.mp4": Typed("video", f"{tmp_path}/none.mp4"),
        "Is it my cat.png": Typed("ask", "Is it my cat.png"),
        "it's": Typed("ask", "it's"),
        "/reset": Typed("reset"),
        "/quit": Typed("quit"),
        "/exit": Typed("quit"),
        "/help": Typed("help"),
        "\n": Typed("nothing"),
    }
    assert {line: understand(line) for line in expected} == expected
    for line in (
        "'my cat.png' what is it",
        r"what is in my\ cat.png?",
        f"(see '{tmp_path}/my cat.png')",
        f"'{tmp_path}/my cat.png' and?",
    ):
        assert understand(line).action == "unknown"
        assert "/image" in understand(line).text
    assert understand("/image").text == "/image takes the path of a file: /image PATH"
    assert understand("/quiet").text == "there is no command /quiet: /help"


def test_the_last_prompt_of_a_chat_is_that_of_a_row_with_its_turns(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rows file would have such turns, which the code of training reads and renders."""
    one, two = (str(picture(tmp_path / f"{seed}.png", seed=seed)) for seed in (1, 2))
    clip = str(film(tmp_path / "a.mp4", 10))
    asked: list[Prompt] = []
    real = Asker.answer

    def watched(self: Asker, prompts: list[Prompt], *given: Any) -> Any:
        asked.extend(prompts)
        return real(self, prompts, *given)

    monkeypatch.setattr(Asker, "answer", watched)
    chat = Conversation("Be brief.").showing("image", one, asker.reader)
    chat, _ = answer(chat, "What is it?", asker, 3, str, bool)
    chat, _ = answer(chat, "And now?", asker, 3, str, bool)
    chat = chat.showing("image", two, asker.reader).showing("video", clip, asker.reader)
    chat, _ = answer(chat, "Is <image> <video>?", asker, 3, str, bool)
    row = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "<image>What is it?"},
            {"role": "assistant", "content": chat.answers[0]},
            {"role": "user", "content": "And now?"},
            {"role": "assistant", "content": chat.answers[1]},
            {"role": "user", "content": "Is <image> <video>?"},
        ],
        "images": [one, two],
        "videos": [clip],
    }
    wanted = encode_question(parse_row(row, "row", Path()), asker.reader.processor)
    assert torch.equal(asked[-1].input_ids, wanted.input_ids)
    shown = asked[-1].visuals.inputs
    assert shown.keys() == wanted.visuals.inputs.keys()
    assert all(torch.equal(shown[name], one) for name, one in wanted.visuals.inputs.items())


def test_an_answer_comes_piece_by_piece_and_can_be_stopped(asker: Asker) -> None:
    pieces: list[str] = []
    chat, whole = answer(Conversation(), "Hi?", asker, 40, pieces.append, bool)
    assert (whole.tokens, whole.stopped) == (40, True)
    assert "".join(pieces).strip() == whole.text
    asked: list[int] = []
    _, cut = answer(
        Conversation(), "Hi?", asker, 40, str, lambda: asked.append(0) or len(asked) == 5
    )
    assert (cut.tokens, cut.stopped) == (5, True)
    assert whole.text.startswith(cut.text)
    assert chat.answers == (whole.text,)


def test_a_chat_longer_than_the_models_is_reported(asker: Asker) -> None:
    with pytest.raises(Findings) as caught:
        answer(Conversation(), "long " * 2000, asker, 8, str, bool)
    (finding,) = caught.value.diagnostics
    assert (finding.rule, finding.help) == ("beyond-context", "/reset starts a new chat")
    text = "a " * 1000
    tokens = len(asker.reader.prompt(Conversation().asking(text).row()).input_ids)
    assert asker.reader.positions == 2048
    while tokens < 2030:
        text += "a "
        tokens = len(asker.reader.prompt(Conversation().asking(text).row()).input_ids)
    _, cut = answer(Conversation(), text, asker, 512, str, bool)
    assert cut.tokens == 2048 - tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_every_familys_template_takes_turns_with_images(family: str, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 2))
    _, processor = encoded(request("rows", messages(rows), f"model.family={family}"))
    chat = Conversation("Be brief.")
    for turn in (1, 2):
        path = str(picture(tmp_path / f"own-{turn}.png", seed=turn))
        asked = replace(chat, shown=(("image", path),)).asking(f"Question {turn}?")
        prompt = encode_question(asked.row(), processor)
        assert "image_grid_thw" in prompt.visuals.inputs
        assert len(prompt.visuals.inputs["image_grid_thw"]) == turn
        chat = replace(asked, answers=(*asked.answers, f"Answer {turn}."))
    text = processor.tokenizer.decode(prompt.input_ids)
    places = [text.index(part) for part in ("Be brief.", "Question 1?", "Answer 1.", "Question 2?")]
    assert places == sorted(places)


@pytest.mark.full
def test_lines_of_a_pipe_are_turns(
    trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = trained[0] / "runs/digits/samples"
    (tmp_path / "notes.txt").write_text("no image")
    lines = [
        "/image notes.txt",
        str(samples / "00000.png"),
        "Which digit is shown?",
        "[bold]/quit[/bold]",
        "/help",
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    done = run_vtool(tmp_path, "chat", trained[0] / "runs/digits")
    assert done.status == 1
    (finding,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert finding.startswith("error[broken-image VT604]: ")
    assert "notes.txt cannot be decoded" in finding
    assert len(done.stdout.splitlines()) == 2
    image = samples / "00000.png"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{image}\nWhich digit is shown?\n/quit\nHi?"))
    done = run_vtool(tmp_path, "chat", trained[0] / "runs/digits")
    assert done.status == 0
    asked = ("--question", "Which digit is shown?")
    predicted = run_vtool(tmp_path, "predict", trained[0] / "runs/digits", image, *asked)
    assert done.stdout == predicted.stdout


@pytest.mark.full
def test_ctrl_c_at_a_terminal_stops_the_answer_and_not_the_chat(run: Path, asker: Asker) -> None:
    """Beside `test_an_answer_comes_piece_by_piece_and_can_be_stopped`: with a real terminal."""
    question = next(each for each in ("hello", "Hi there", "What?") if writes_lines(each, asker))
    child, terminal = pty.fork()
    if child == 0:
        command = [sys.executable, "-m", "vtool", "chat", str(run), "--max-new-tokens", "2000"]
        os.execv(sys.executable, command)
    printed = ""

    def wait_for(text: str) -> None:
        nonlocal printed
        while text not in printed:
            ready, _, _ = select.select([terminal], [], [], 60)
            assert ready, f"there is no {text!r} in {printed!r}"
            printed += os.read(terminal, 4096).decode(errors="replace")
        printed = printed.partition(text)[2]

    wait_for("> ")
    time.sleep(1)  # a signal between a prompt and readline's wait for keys is seen at the next key
    os.write(terminal, b"\x03")
    wait_for("ends the chat)")
    wait_for("> ")
    os.write(terminal, f"{question}\n".encode())
    wait_for(f"{question}\r\n")
    wait_for("\n")  # of the answer
    os.write(terminal, b"\x03")
    wait_for("(stopped after ")
    wait_for("> ")
    os.write(terminal, b"\x04")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)


def writes_lines(question: str, asker: Asker) -> bool:
    """If the model writes a line before its answer's end, for which one can wait."""
    pieces: list[str] = []
    _, made = answer(Conversation(), question, asker, 100, pieces.append, bool)
    return made.stopped and any("\n" in piece for piece in pieces[:20])
