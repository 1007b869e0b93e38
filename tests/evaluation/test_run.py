"""Evaluations of a tiny model: the same answers however they are obtained, and scores of them."""

import errno
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.commands import run_vtool
from tests.rows import write_rows
from tests.runs import read_lines
from vtool.data.chat import IGNORED
from vtool.data.collate import collate
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.evaluation.asking import Asking, ask_rows, prompt_of
from vtool.evaluation.rows import load_settings, open_questions
from vtool.evaluation.run import Evaluated, EvaluationRequest, evaluate_model
from vtool.evaluation.store import Store
from vtool.evaluation.subject import open_model
from vtool.models.answers import Sampling
from vtool.models.base_files import file_digests


@pytest.fixture
def evaluate(made: tuple[Path, Path], tmp_path: Path) -> Callable[..., Evaluated]:
    def evaluated(**changes: Any) -> Evaluated:
        asked = EvaluationRequest(
            str(made[0]), str(made[1]), max_new_tokens=6, folder=tmp_path / "to", batch_size=4
        )
        done = evaluate_model(replace(asked, **changes), lambda _: None)
        assert done is not None
        return done

    return evaluated


def answers_of(done: Evaluated) -> list[tuple[str, str]]:
    return [(one.row, one.answer) for one in done.answers]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_and_nll_do_not_depend_on_the_batch(
    evaluate: Callable[..., Evaluated], tmp_path: Path, temperature: float
) -> None:
    one, many = (
        evaluate(folder=tmp_path / str(size), batch_size=size, temperature=temperature, seed=3)
        for size in (1, 5)
    )
    assert answers_of(one) == answers_of(many)
    for a, b in zip(one.answers, many.answers, strict=True):
        assert a.nll == pytest.approx(b.nll, rel=1e-5)
        assert a.confidence == pytest.approx(b.confidence, rel=1e-4)


@pytest.mark.full
def test_drawn_answers_follow_the_seed(evaluate: Callable[..., Evaluated], tmp_path: Path) -> None:
    first, again, other = (
        answers_of(evaluate(folder=tmp_path / name, temperature=2.0, seed=seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


def test_nll_and_confidence_are_those_of_one_plain_forward_pass(
    made: tuple[Path, Path], evaluate: Callable[..., Evaluated]
) -> None:
    done = evaluate()
    subject = open_model(str(made[0]))
    settings = load_settings(str(made[1]), ())
    questions = open_questions(str(made[1]), settings, subject.processor(settings.data), Ranks())
    model = subject.load()
    for one in done.answers:
        batch = collate([questions.rows.sample(one.index)], questions.rows.processor)
        labels = questions.rows.sample(one.index).labels
        with torch.no_grad():
            logs = model(**batch.inputs).logits.double().log_softmax(-1)
        at = (labels != IGNORED).nonzero().flatten()
        wanted = -logs[0, at - 1, labels[at]].sum().item()
        assert one.nll == pytest.approx(wanted, rel=1e-4)
        assert one.supervised == len(at)


def test_a_right_answers_nll_is_taken_from_its_generation(made: tuple[Path, Path]) -> None:
    """The reference of each row becomes the model's own answer: then no second pass is made."""
    subject = open_model(str(made[0]))
    settings = load_settings(str(made[1]), ())
    rows = open_questions(str(made[1]), settings, subject.processor(settings.data), Ranks()).rows
    model = subject.load()
    index = next(i for i in range(len(rows.rows)) if len(rows.sample(i).turns) == 1)
    sample = rows.sample(index)
    prompt = prompt_of(rows, sample)
    with torch.no_grad():
        token = int(
            model(**collate([sample], rows.processor).inputs)
            .logits[0]
            .argmax(-1)[len(prompt.input_ids) - 1]
        )
    ids = torch.cat([prompt.input_ids, torch.tensor([token])])
    labels = torch.full_like(ids, IGNORED)
    labels[-1] = token
    rows.cache[index] = replace(sample, input_ids=ids, labels=labels)
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    asking = Asking(max_new_tokens=1, batch_size=1)
    ((one,),) = ask_rows(model, rows, [index], asking)
    assert len(passes) == 1
    with torch.no_grad():
        logits = model(**collate([rows.cache[index]], rows.processor).inputs).logits.double()
    wanted = -logits.log_softmax(-1)[0, len(prompt.input_ids) - 1, token].item()
    assert one.nll == pytest.approx(wanted, rel=1e-4)
    assert one.confidence == pytest.approx(math.exp(-wanted), rel=1e-4)


def test_the_prompt_of_a_sample_is_the_rows_own(made: tuple[Path, Path]) -> None:
    subject = open_model(str(made[0]))
    settings = load_settings(str(made[1]), ())
    rows = open_questions(str(made[1]), settings, subject.processor(settings.data), Ranks()).rows
    for index in range(len(rows.rows)):
        cut, own = prompt_of(rows, rows.sample(index)), rows.prompt(index)
        assert cut.input_ids.tolist() == own.input_ids.tolist()
        assert cut.reference == own.reference
        tensors = own.visuals.inputs
        assert cut.visuals.inputs.keys() == tensors.keys()
        assert all(torch.equal(cut.visuals.inputs[name], tensors[name]) for name in tensors)


def test_what_was_answered_before_a_kill_is_not_asked_again(
    evaluate: Callable[..., Evaluated], tmp_path: Path
) -> None:
    whole = evaluate()
    file = tmp_path / "to" / "predictions.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2]) + lines[2][:40])  # as a kill -9 leaves it
    again = evaluate()
    assert again.asked == len(whole.answers) - 2
    assert answers_of(again) == answers_of(whole)
    # the rest is asked in other batches, whose sums have another order
    for one, other in zip(again.answers, whole.answers, strict=True):
        assert one.nll == pytest.approx(other.nll, rel=1e-5)
    written = file.read_text()
    assert evaluate().asked == 0
    assert file.read_text() == written


def test_a_folder_is_held_by_one_process(made: tuple[Path, Path], tmp_path: Path) -> None:
    holder = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    (tmp_path / "to").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", holder, tmp_path / "to" / ".lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(Findings, match="another process is evaluating"):
            evaluate_model(
                EvaluationRequest(str(made[0]), str(made[1]), folder=tmp_path / "to"), print
            )


def test_other_rows_of_the_same_files_are_refused(
    made: tuple[Path, Path], evaluate: Callable[..., Evaluated], tmp_path: Path
) -> None:
    """A model under another path, and an equal file, count as the same."""
    evaluate()
    moved = shutil.copytree(made[0], tmp_path / "moved")
    rows = shutil.copytree(made[1].parent, tmp_path / "rows") / made[1].name
    assert evaluate(model=str(moved), rows=str(rows)).asked == 0
    with pytest.raises(Findings, match=r"rows\.asked: 6 then, 2 now"):
        evaluate(limit=2)
    config = moved / "export" / "config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(Findings, match=r"model\.digest: .*; model\.folder: "):
        evaluate(model=str(moved))


def test_a_folder_that_cannot_be_written_is_said(
    evaluate: Callable[..., Evaluated], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Findings, match="Not a directory") as raised:
        evaluate(folder=tmp_path / "file" / "to")
    assert raised.value.fatal


def test_rows_that_the_run_was_trained_on_are_reported(
    made: tuple[Path, Path], evaluate: Callable[..., Evaluated]
) -> None:
    digest = hashlib.sha256(made[1].read_bytes()).hexdigest()
    data = made[0] / "data.json"
    before = data.read_text() if data.exists() else None
    data.write_text(json.dumps({"train": {"files": [{"path": "elsewhere", "sha256": digest}]}}))
    try:
        assert "was trained on rows of" in evaluate().scored.notes[0]
    finally:
        data.unlink() if before is None else data.write_text(before)


def test_rows_of_which_only_the_last_answer_is_scored_are_counted(
    made: tuple[Path, Path], evaluate: Callable[..., Evaluated], tmp_path: Path
) -> None:
    rows = read_lines(made[1])
    for row in rows[:2]:
        messages = row["messages"]
        row["messages"] = [*messages, {"role": "user", "content": "Sure?"}, messages[-1]]
    several = made[1].with_name("several.jsonl")
    write_rows(several, rows)
    done = evaluate(rows=str(several))
    notes = [one for one in done.scored.notes if "answers" in one]
    assert notes == [
        f"2 of {len(rows)} rows have several answers: the last of each is scored;"
        " data.turns=each asks for every one"
    ]
    each = evaluate(rows=str(several), given=("data.turns=each",), folder=tmp_path / "each")
    assert len(each.answers) == len(rows) + 2
    assert not any("answers" in one for one in each.scored.notes)


def test_a_model_that_computes_nothing_has_no_nll(
    made: tuple[Path, Path], evaluate: Callable[..., Evaluated], tmp_path: Path
) -> None:
    broken = shutil.copytree(made[0], tmp_path / "broken")
    file = broken / "export" / "model.safetensors"
    weights = load_file(file)
    (norm,) = (name for name in weights if name.endswith("model.norm.weight"))
    weights[norm].fill_(torch.nan)
    save_file(weights, file, {"format": "pt"})
    done = evaluate(model=str(broken))
    assert "nonfinite-loss" in [one.rule for one in done.scored.findings]
    assert "nll" not in [score.metric for score in done.scored.scores]
    assert "NaN" not in done.store.predictions.read_text()


def test_answers_got_in_another_way_are_refused(evaluate: Callable[..., Evaluated]) -> None:
    evaluate()
    with pytest.raises(Findings, match="max_new_tokens: 6 then, 7 now"):
        evaluate(max_new_tokens=7)
    with pytest.raises(Findings, match="sampling: null then"):
        evaluate(temperature=1.0)


def test_a_folder_with_other_files_is_left_alone(
    evaluate: Callable[..., Evaluated], tmp_path: Path
) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "mine.txt").write_text("mine")
    with pytest.raises(Findings, match="no evaluation"):
        evaluate()


def test_a_metric_that_raises_names_the_row_and_has_no_score(
    evaluate: Callable[..., Evaluated], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def odd(answer, reference):\n    return 1 / 0\n\ndef none(a, r):\n    pass\n")
    done = evaluate(metrics=(f"{file}:odd", f"{file}:none", "f1"))
    found = [one for one in done.scored.findings if one.rule == "metric-failed"]
    assert [done.answers[0].row in one.message for one in found] == [True, True]
    assert "ZeroDivisionError: division by zero (mine.py:2)" in found[0].message
    assert "returns None" in found[1].message
    assert [score.metric for score in done.scored.scores] == ["exact", "f1", "nll"]


@pytest.mark.parametrize(
    ("asked", "name", "help"),
    [
        ({"choices": ("nobody says this", "nor this")}, "accuracy", "--choices"),
        ({"metrics": ("json",)}, "json", "leave out --metric json"),
    ],
)
def test_references_that_a_metric_cannot_score_are_a_finding_and_it_has_no_score(
    evaluate: Callable[..., Evaluated], asked: dict[str, Any], name: str, help: str
) -> None:
    done = evaluate(**asked)
    (found,) = [one for one in done.scored.findings if one.severity == "error"]
    assert (found.rule, found.help is not None and help in found.help) == (
        "reference-not-scorable",
        True,
    )
    assert f"{name} has no score" in found.message
    assert name not in [score.metric for score in done.scored.scores]


def test_answers_that_are_no_choice_are_counted_where_some_reference_is_one(
    evaluate: Callable[..., Evaluated],
) -> None:
    some = evaluate(metrics=("exact",)).answers[0].reference
    done = evaluate(choices=(some, "nobody says this"))
    assert any("answers are none of the 2" in note for note in done.scored.notes)


def test_rows_are_scored_by_a_key_of_theirs(
    made: tuple[Path, Path], evaluate: Callable[..., Evaluated], tmp_path: Path
) -> None:
    records = [json.loads(line) for line in made[1].read_text().splitlines()]
    for place, record in enumerate(records):
        record["kind"] = "even" if place % 2 == 0 else "odd"
    rows = write_rows(made[1].with_name("grouped.jsonl"), records)
    done = evaluate(rows=str(rows), by="kind")
    groups = done.scored.groups["kind"]
    assert {name: scores[0].rows for name, scores in groups.items()} == {"even": 3, "odd": 3}
    with pytest.raises(Findings, match='has no "kin"'):
        evaluate(rows=str(rows), by="kin", folder=tmp_path / "b")


def test_an_adapter_whose_base_has_moved_says_where_it_looked(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    gone = tmp_path / "gone"
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(gone)})
    )
    with pytest.raises(Findings, match=str(gone)) as raised:
        open_model(str(tmp_path / "adapter"))
    assert raised.value.fatal
    assert "--base FOLDER" in (raised.value.diagnostics[0].help or "")


def test_an_adapter_is_not_put_over_other_weights_than_its_run_began_with(tmp_path: Path) -> None:
    base, adapter = tmp_path / "run/base", tmp_path / "run/export"
    for folder in (base, adapter):
        folder.mkdir(parents=True)
    (base / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    (base / "model.safetensors").write_bytes(b"weights")
    named = {"base_model_name_or_path": str(base)}
    (adapter / "adapter_config.json").write_text(json.dumps(named))
    (tmp_path / "run/base.json").write_text(json.dumps(file_digests(base)))
    with pytest.raises(Findings, match="there is no adapter_model"):  # the base is what it was
        open_model(str(adapter))
    (base / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(Findings, match=r"base-changed.*began with: model\.safetensors") as raised:
        open_model(str(adapter))
    assert raised.value.fatal


def test_nothing_is_computed_with_an_adapter_that_does_not_land(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    """Names of the text model alone: peft leaves all tensors out, and the base would answer."""
    adapter, base = tmp_path / "adapter", made[0] / "export"
    adapter.mkdir()
    module = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
    weights = load_file(base / "model.safetensors")
    size = weights["model.layers.0.self_attn.q_proj.weight"].shape[0]
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": [module[17:]]}
    named = {"base_model_name_or_path": str(base.resolve())}
    (adapter / "adapter_config.json").write_text(json.dumps(config | named))
    tensors = {f"{module}.lora_A.weight": torch.ones(2, size)}
    tensors[f"{module}.lora_B.weight"] = torch.zeros(size, 2)
    save_file(tensors, adapter / "adapter_model.safetensors")
    assert "adds nothing yet" in open_model(str(adapter)).in_words()
    text = {name.replace("language_model.", ""): one for name, one in tensors.items()}
    save_file(text, adapter / "adapter_model.safetensors")
    for command in (("evaluate", adapter, made[1]), ("predict", adapter, "x"), ("chat", adapter)):
        done = run_vtool(tmp_path, *command)
        assert (done.status, "adapter-mismatch" in done.output) == (2, True), done.output
    assert not (tmp_path / "evaluations").exists()


def test_a_run_is_found_by_its_name(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    shutil.copytree(made[0], tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)
    assert open_model("mine").export.folder == Path("runs/mine/export")
    assert open_model("mine").digest() == open_model(str(made[0])).digest()


def test_a_recipe_without_test_rows_is_refused() -> None:
    with pytest.raises(Findings, match="no test split"):
        load_settings("rows", ["data.train=[{format: digits, split: train}]"])


def test_sampling_is_of_the_softmax() -> None:
    """Gumbel noise on logits draws from their softmax: frequencies of 4000 rows, to 4 σ."""
    from vtool.models.answers import _Recorder

    logits, rows = torch.tensor([0.0, 1.0, 2.5]), range(4000)
    recorder = _Recorder.of(rows, Sampling(0.7, 5))
    drawn = recorder(torch.zeros(1), logits.repeat(len(rows), 1)).argmax(-1)
    wanted = (logits / 0.7).softmax(0)
    shares = torch.bincount(drawn, minlength=3) / len(rows)
    sigma = (wanted * (1 - wanted) / len(rows)).sqrt()
    assert ((shares - wanted).abs() < 4 * sigma).all()
    logs = logits.double().log_softmax(0)[drawn]
    assert torch.allclose(recorder.taken[0].double(), logs, atol=1e-6)


def test_all_pictures_of_the_worst_are_kept(
    made: tuple[Path, Path], evaluate: Callable[..., Evaluated]
) -> None:
    done = evaluate()
    lines = [json.loads(line) for line in done.store.predictions.read_text().splitlines()]
    shown = [line for line in lines if "pictures" in line]
    assert len(shown) == sum(bool(row["images"]) for row in read_lines(made[1]))
    assert all((done.store.path / name).is_file() for line in shown for name in line["pictures"])
    assert max(len(line["pictures"]) for line in shown) > 1


def test_a_lock_that_cannot_be_closed_hides_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, failed = os.close, []

    def full(descriptor: int) -> None:
        close(descriptor)
        failed.append(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    held = Store(tmp_path / "to").held(Ranks())
    held.__enter__()
    with monkeypatch.context() as patch, suppress(ArithmeticError):
        patch.setattr("vtool.evaluation.store.os.close", full)
        held.__exit__(ArithmeticError, ArithmeticError(), None)
    assert len(failed) == 1
