"""Runs with a modeling file of the user's own:

from the command line to a folder that anybody opens.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.engines.ranks import run_ranks
from tests.engines.test_exactness import step_gradients
from tests.rows import mixed_rows, write_rows
from tests.runs import messages, read_lines, relative_difference, request
from vtool.cli.app import app
from vtool.diagnostics import Findings
from vtool.engines.ranks import Ranks
from vtool.families.family import load_family
from vtool.training.export_run import export_run
from vtool.training.session import RunRequest
from vtool.training.sft import train

OWN = Path(__file__).parent / "my_qwen.py"
# As verl's dummy did it (verl#5881).
IN_PLACE = """
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLModel,
)


class MyModel(Qwen2_5_VLModel):
    def forward(self, input_ids=None, inputs_embeds=None, **more):
        inputs_embeds = self.get_input_embeddings()(input_ids)
        inputs_embeds += 0.0 * inputs_embeds.mean()  # here
        return super().forward(input_ids=input_ids, inputs_embeds=inputs_embeds, **more)


class MyQwen(Qwen2_5_VLForConditionalGeneration):
    def __init__(self, config):
        super().__init__(config)
        self.model = MyModel(config)
        self.post_init()
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the rows and the file, as a user has them."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    write_rows(tmp_path / "rows.jsonl", mixed_rows(tmp_path, 8))
    shutil.copy(OWN, "my_qwen.py")


def overrides(name: str, *more: str) -> list[str]:
    steps = (
        "train={steps: 2, epochs: null}",
        "optim.warmup_steps=0",
        "checkpoint.every_steps=1",
        "device={kind: cpu, threads: 1}",
    )
    rows = (
        messages(Path("rows.jsonl")),
        "data.global_batch_size=4",
        "data.micro_batch_size=2",
        "data.image={max_pixels: 4096}",
    )
    return [*rows, *steps, f"run.name={name}", *more]


def made(name: str, *more: str) -> RunRequest:
    return request("rows", *overrides(name, *more))


def stopping_after_one(made: RunRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from vtool.training import loop

    step = loop.train_step

    def stopped(session: Any, progress: Any, *given: Any, **more: Any) -> Any:
        if progress.step == 1:
            raise KeyboardInterrupt
        return step(session, progress, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(made, Ranks())


@pytest.mark.full
def test_an_in_place_write_is_named_with_its_line_and_nothing_is_trained() -> None:
    Path("my_qwen.py").write_text(IN_PLACE)
    line = next(number for number, text in enumerate(IN_PLACE.splitlines(), 1) if "# here" in text)
    given = overrides("run", "model.modeling=my_qwen.py:MyQwen")
    asked = CliRunner().invoke(app, ["verify", "rows", *given, "--fast", "--format", "json"])
    (result,) = json.loads(asked.stdout)["results"]
    assert asked.exit_code == 1
    assert [check for check, state in result["checks"].items() if state == "failed"] == [
        "embeddings-written-in-place"
    ]
    (found,) = result["findings"]
    assert (Path(found["origin"]["file"]).name, found["origin"]["line"]) == ("my_qwen.py", line)
    trained = CliRunner().invoke(app, ["train", "sft", "rows", *given])
    assert trained.exit_code == 1
    assert "embeddings-written-in-place" in trained.output
    assert f"my_qwen.py:{line}" in trained.output
    assert not Path("runs").exists()


def without_dtypes(config: bytes) -> dict[str, object]:
    found = json.loads(config)
    for part in ("text_config", "vision_config"):
        found[part].pop("dtype", None)
    return found


def test_a_class_that_computes_the_same_trains_the_same_and_exports_the_same_bytes() -> None:
    for name, more in (("plain", ()), ("mine", ("model.modeling=my_qwen.py:MyQwen",))):
        assert train(made(name, *more), Ranks()).status == "finished"
    plain, mine = (
        [
            {key: line[key] for key in ("loss", "grad_norm")}
            for line in read_lines(Path(f"runs/{name}/metrics.jsonl"))
            if "loss" in line
        ]
        for name in ("plain", "mine")
    )
    assert len(plain) == 2
    assert plain == mine
    for file in sorted(Path("runs/plain/export").iterdir()):
        own = (Path("runs/mine/export") / file.name).read_bytes()
        if file.name == "config.json":  # some releases write the dtype into its parts too
            assert without_dtypes(own) == without_dtypes(file.read_bytes())
        else:
            assert own == file.read_bytes(), file.name
    assert json.loads(Path("runs/mine/export/config.json").read_text())["architectures"] == [
        "Qwen2_5_VLForConditionalGeneration"
    ]


@pytest.mark.full
def test_a_folder_of_weights_gets_into_the_class_whole() -> None:
    """Files have other names for the weights than models do, which transformers knows of its own
    classes alone.
    """
    train(made("plain"), Ranks())
    more = ("model.path=runs/plain/export", "model.size=null")
    losses = []
    for name, own in (("again", ()), ("mine", ("model.modeling=my_qwen.py:MyQwen",))):
        train(made(name, *more, *own), Ranks())
        losses.append(
            [
                line["loss"]
                for line in read_lines(Path(f"runs/{name}/metrics.jsonl"))
                if "loss" in line
            ]
        )
    assert losses[0] == losses[1]


@pytest.mark.full
@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="whole"),
        pytest.param(("lora={rank: 2}",), marks=pytest.mark.full, id="adapters"),
    ],
)
def test_predict_asks_the_class_and_export_does_not_need_the_file(
    more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from vtool.evaluation.predict import predict_answer

    train(made("mine", "model.modeling=my_qwen.py:MyQwen", *more), Ranks())
    asked: dict[str, Any] = {"images": (), "question": "What?", "system": None, "max_new_tokens": 3}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = tmp_path / "runs/mine"
    wanted = predict_answer(run / "export", **asked)
    assert predict_answer(run, **asked) == wanted
    file = tmp_path / "my_qwen.py"
    file.write_text(file.read_text() + "# another\n")
    with pytest.raises(Findings, match="modeling-changed"):
        predict_answer(run, **asked)
    file.unlink()
    with pytest.raises(Findings, match="modeling-changed"):
        predict_answer(run, **asked)
    assert predict_answer(run / "export", **asked) == wanted
    exported, _ = export_run(run, tmp_path / "elsewhere/again", merge=bool(more))
    assert predict_answer(exported, **asked) == wanted
    if not more:
        weights = "model.safetensors"
        assert (exported / weights).read_bytes() == (run / "export" / weights).read_bytes()


@pytest.mark.full
def test_a_run_resumes_with_the_same_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("model.modeling=my_qwen.py:MyQwen",)
    train(made("whole", *own), Ranks())
    stopping_after_one(made("mine", *own), monkeypatch)
    with pytest.raises(Findings, match="run-folder-taken"):
        train(made("mine"), Ranks())
    text = Path("my_qwen.py").read_text()
    Path("my_qwen.py").write_text(text.replace("return super", "return  super"))
    with pytest.raises(Findings, match="modeling-changed"):
        train(made("mine", *own), Ranks())
    Path("my_qwen.py").write_text(text)
    assert train(made("mine", *own), Ranks()).status == "finished"
    weights = "export/model.safetensors"
    assert Path("runs/mine", weights).read_bytes() == Path("runs/whole", weights).read_bytes()


def gradients(ranks: Ranks, requests: dict[str, RunRequest]) -> Any:
    return {name: step_gradients(ranks, one)["gradients"] for name, one in requests.items()}


@pytest.mark.full
def test_two_ranks_of_fsdp_and_ddp_compute_the_gradient_of_transformers_class() -> None:
    own = f"model.modeling='{Path('my_qwen.py').resolve()}:MyQwen'"
    rows = messages(Path("rows.jsonl").resolve())
    requests = {
        f"{engine} {kind}": made(
            f"{engine}-{kind}",
            rows,
            f"engine={engine}",
            f"run.dir={Path(engine, kind).resolve()}",
            *more,
        )
        for engine in ("fsdp2", "ddp")
        for kind, more in (("own", (own,)), ("plain", ()))
    }
    first, _ = run_ranks(gradients, 2, requests)
    for engine in ("fsdp2", "ddp"):
        assert relative_difference(first[f"{engine} own"], first[f"{engine} plain"]) == 0


def files(ranks: Ranks, made: RunRequest, folder: str) -> str:
    from vtool.training.modeling import keep_class
    from vtool.training.run_folder import RunFolder
    from vtool.training.start import Start

    mine = made.run.model.model_copy(
        update={"modeling": f"{folder}/{ranks.rank}/my_qwen.py:MyQwen"}
    )
    try:
        keep_class(
            made.run.model_copy(update={"model": mine}), RunFolder(Path(folder)), Start(None), ranks
        )
    except Findings as findings:
        return findings.diagnostics[0].rule
    return "kept"


@pytest.mark.full
def test_ranks_with_other_files_are_named_by_every_rank(tmp_path: Path) -> None:
    for rank in range(2):
        Path(str(rank)).mkdir()
        shutil.copy(OWN, f"{rank}/my_qwen.py")
    assert run_ranks(files, 2, made("mine"), str(tmp_path)) == ["kept", "kept"]
    Path("1/my_qwen.py").write_text("class MyQwen: ...\n")
    assert run_ranks(files, 2, made("mine"), str(tmp_path)) == ["ranks-differ", "ranks-differ"]


@pytest.mark.parametrize(
    ("given", "rule", "words"),
    [
        ("my_qwen.py", "not-a-model-class", "takes FILE.py:CLASS, not my_qwen.py"),
        ("my_qwen:MyQwen", "not-a-model-class", "takes FILE.py:CLASS"),
        ("my_qwen.py:My Qwen", "not-a-model-class", "takes FILE.py:CLASS"),
        ("my_qwn.py:MyQwen", "path-not-found", "did you mean `my_qwen.py`?"),
        ("my_qwen.py:MyQwn", "not-a-model-class", "did you mean `MyQwen`"),
        ("my_qwen.py:Other", "not-a-model-class", "it has MyModel, MyQwen"),
        ("my_qwen.py:Qwen2_5_VLModel", "not-a-model-class", "has no class `Qwen2_5_VLModel`"),
        ("broken.py:Mine", "not-a-model-class", "is not Python"),
        ("nothing.py:Mine", "not-a-model-class", "it has no class at all"),
        ("binary.py:Mine", "not-a-model-class", "is not Python"),
    ],
)
def test_what_names_no_class_is_reported_without_running_the_file(
    given: str, rule: str, words: str
) -> None:
    Path("broken.py").write_text("\nclass Mine(:\n")
    Path("nothing.py").write_text("raise SystemExit\n")
    Path("binary.py").write_bytes(b"\xff\xfe\n")
    with pytest.raises(Findings) as raised:
        made("run", f"model.modeling='{given}'")
    (found,) = raised.value.diagnostics
    assert (found.rule, found.parameter) == (rule, "model.modeling")
    assert words in f"{found.message} {found.help}"
    if given.startswith("broken"):
        assert str(found.origin) == "broken.py:2:12"


def test_megatron_which_computes_with_layers_of_its_own_refuses_a_class() -> None:
    with pytest.raises(Findings) as raised:
        made("run", "model.modeling=my_qwen.py:MyQwen", "engine=megatron")
    (found,) = raised.value.diagnostics
    assert (found.rule, found.parameter) == ("not-built-on-engine", "model.modeling")


def test_a_class_of_another_family_does_not_fit() -> None:
    assert load_family("qwen2_vl").model_class().__name__ == "Qwen2VLForConditionalGeneration"
    with pytest.raises(Findings, match="model-class-does-not-fit"):
        train(made("run", "model.modeling=my_qwen.py:MyQwen", "model.family=qwen2_vl"), Ranks())
    assert not Path("runs/run/data.json").exists()
