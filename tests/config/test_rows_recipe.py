"""Rows in the place of a recipe, files in that of sources; a model's family by its folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from vtool.config.adapter_rate import chosen_rate
from vtool.config.load import examine, load_run
from vtool.config.schema.formats.auto import AutoSource
from vtool.diagnostics import Diagnostic, Findings

ROW = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(name: str) -> str:
    file = Path(name)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(ROW))
    return name


def model(name: str, family: str) -> str:
    """Return the setting of a folder with the config.json of a family."""
    Path(name).mkdir()
    config: dict[str, Any] = {"model_type": family, "vision_config": {"patch_size": 16}}
    Path(name, "config.json").write_text(json.dumps({**config, "hidden_size": 128}))
    return f"model.path={name}"


def refused(subject: str, *overrides: str) -> tuple[Diagnostic, bool]:
    with pytest.raises(Findings) as caught:
        load_run(subject, overrides)
    (finding,) = caught.value.diagnostics
    return finding, caught.value.fatal


@pytest.mark.parametrize(
    ("subject", "run"),
    [
        ("good.json", "good"),
        ("rows/good.jsonl", "good"),
        ("a=b,c.jsonl", "a=b,c"),
        ("my rows's.jsonl", "my rows's"),
    ],
)
def test_a_file_of_rows_is_trained_on_as_a_recipe_is(subject: str, run: str) -> None:
    loaded = load_run(rows(subject), ["train.epochs=1"]).run
    assert loaded.data.train == (AutoSource(format="auto", path=subject),)
    assert (loaded.run.name, loaded.model.starts_from, loaded.train.epochs) == (run, "random", 1)


def test_a_folder_of_rows_is_too() -> None:
    rows("shards/a.jsonl")
    loaded = load_run("shards").run
    assert loaded.data.train == (AutoSource(format="auto", path="shards"),)
    assert loaded.run.name == "shards"


def test_with_a_model_it_is_fine_tuned_at_a_rate_for_trained_weights() -> None:
    loaded = load_run(rows("good.json"), [model("mine", "qwen3_vl")])
    run = loaded.run
    assert (run.model.starts_from, run.model.size, run.model.family) == (
        "pretrained",
        None,
        "qwen3_vl",
    )
    assert (run.optim.lr, run.model.dtype) == (1e-5, "bfloat16")
    assert [one.rule for one in loaded.notes] == []


@pytest.mark.parametrize("written", ["{0}", "[{0}]", "[{{format: auto, path: {0}}}]"])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_file_in_the_place_of_a_list_of_sources_has_its_layout_detected(
    split: str, written: str
) -> None:
    rows("good.json")
    given = f"data.{split}={written.format('good.json')}"
    found = load_run("digits", [given]).run.data.splits[split]
    assert found == (AutoSource(format="auto", path="good.json"),)


def test_files_and_sources_may_stand_in_one_list() -> None:
    given = f"data.train=[{rows('a.json')}, {{format: messages, path: {rows('b.jsonl')}}}]"
    found = load_run("rows", [given]).run.data.train
    assert [(each.format, each.files()["path"]) for each in found] == [
        ("auto", "a.json"),
        ("messages", "b.jsonl"),
    ]


def test_a_path_in_a_recipe_is_relative_to_it_where_it_begins_with_a_dot(tmp_path: Path) -> None:
    rows("mine/good.json")
    Path("mine/recipe.yaml").write_text("defaults: [rows, _self_]\ndata: {train: ./good.json}\n")
    assert load_run("mine/recipe.yaml").run.data.train[0].files()["path"] == "mine/good.json"


def test_a_file_that_is_not_there_is_named_without_the_setting_it_became() -> None:
    rows("good.json")
    finding, fatal = refused("goood.json")
    assert (finding.rule, finding.parameter, fatal) == ("path-not-found", None, True)
    assert finding.message.startswith("goood.json is not there")
    assert finding.help == "did you mean `good.json`?"


def test_two_files_of_rows_are_answered_with_a_list() -> None:
    finding, fatal = refused(rows("a.json"), rows("b.jsonl"))
    assert (finding.rule, fatal) == ("bad-override", True)
    assert finding.message == "`a.json`, `b.jsonl` are 2 files of rows: a command takes one"
    assert str(finding.help).endswith("vtool train sft rows 'data.train=[a.json,b.jsonl]'")
    finding, _ = refused("a.json", "b.jsonl", "model.path=mine")
    assert str(finding.help).endswith("vtool train sft finetune 'data.train=[a.json,b.jsonl]'")


def test_rows_that_a_setting_would_take_the_place_of_are_not_dropped_silently() -> None:
    finding, fatal = refused(rows("a.json"), f"data.train={rows('b.json')}")
    assert (finding.rule, fatal) == ("bad-override", True)
    assert finding.message == "`a.json` and `data.train=b.json` both say what is trained on"
    finding, _ = refused("a.json", "data.train.0.path=b.json")
    assert finding.message.endswith("both say what is trained on")


def test_the_format_of_the_rows_may_be_named_beside_them() -> None:
    given = f"data.train=[{{format: messages, path: {rows('a.json')}}}]"
    assert [each.format for each in load_run("a.json", [given]).run.data.train] == ["messages"]


def test_the_folder_of_an_adapter_names_its_base() -> None:
    Path("it").mkdir()
    Path("it/adapter_config.json").write_text('{"base_model_name_or_path": "models/qwen"}')
    finding, _ = refused("it")
    assert finding.message == "`it` is the folder of an adapter for models/qwen, and no recipe"
    assert "model.path=models/qwen train.from=it" in str(finding.help)


def test_a_folder_with_a_broken_config_is_not_taken_for_rows() -> None:
    Path("it").mkdir()
    Path("it/config.json").write_text('{"model_type": "qw')
    assert "a config.json that is no model's, or cannot be read" in refused("it")[0].message


def test_a_recipe_of_llama_factory_is_known_by_two_settings() -> None:
    Path("lf.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-VL\nfinetuning_type: full\n")
    assert refused("lf.yaml")[0].rule == "recipe-of-another-trainer"


def test_a_file_of_rows_behind_a_recipe_is_answered_with_the_setting() -> None:
    finding, fatal = refused("digits", rows("my rows.json"))
    assert (finding.rule, fatal) == ("bad-override", True)
    assert "is not KEY=VALUE, but a file of rows, beside a recipe" in finding.message
    assert str(finding.help).endswith("""digits "data.train=['my rows.json']\"""")


@pytest.mark.parametrize(
    ("files", "message", "help"),
    [
        ([], "`it` is a folder without files of rows", "rows: a file or the folder of some"),
        (
            ["a.png"],
            "`it` is a folder without files of rows",
            "a file or the folder of some",
        ),
        (
            ["config.json", "tokenizer.json"],
            "`it` is a model's folder, and no recipe",
            "vtool train sft ROWS model.path=it fine-tunes it, vtool verify ROWS model.path=it",
        ),
        (
            ["config.yaml", "data.json"],
            "`it` is the folder of a run",
            "its recipe is it/config.yaml",
        ),
    ],
)
def test_a_folder_that_has_no_rows_is_named_as_what_it_is(
    files: list[str], message: str, help: str
) -> None:
    Path("it").mkdir()
    for file in files:
        Path("it", file).write_text('{"model_type": "qwen2_vl"}')
    finding, fatal = refused("it")
    assert (finding.rule, fatal) == ("unreadable-file", True)
    assert finding.message.startswith(message)
    assert help in str(finding.help)


@pytest.mark.parametrize(("name", "run"), [("train.py", "python"), ("train.sh", "bash")])
def test_a_script_is_answered_with_the_watch(name: str, run: str) -> None:
    Path(name).write_text("print(1)")
    finding, fatal = refused(name)
    assert (finding.message, fatal) == (f"`{name}` is a script, and no recipe", True)
    assert str(finding.help).startswith(f"vtool watch -- {run} {name} ")


@pytest.mark.parametrize(
    ("text", "trainer"),
    [
        ("llamafactory-cli train lf.yaml", "llamafactory"),
        ("swift sft --model Qwen/Qwen2.5-VL-7B-Instruct", "ms-swift"),
    ],
)
def test_a_script_that_starts_a_trainer_is_answered_with_what_reads_it(
    text: str, trainer: str
) -> None:
    Path("train.sh").write_text(f"set -e\n{text}\n")
    finding, _ = refused("train.sh")
    assert f"vtool validate-config --from {trainer} train.sh" in str(finding.help)


def test_the_folder_of_a_model_that_is_not_trained_says_what_is_done_for_it() -> None:
    model("gemma", "gemma3")
    finding, _ = refused("gemma")
    assert finding.message == "`gemma` is a model's folder, and no recipe"
    assert str(finding.help).startswith("it is a model of type gemma3: vtool trains no other")


def test_an_empty_recipe_and_one_that_extends_no_other_are_told_to_begin_with_one() -> None:
    Path("empty.yaml").touch()
    finding, fatal = refused("empty.yaml")
    assert (finding.rule, fatal) == ("bad-yaml", True)
    assert str(finding.help).startswith("begin the recipe with `defaults: [finetune, _self_]`")
    Path("mine.yaml").write_text("optim: {name: sgd, lr: 1.0e-4}\n")
    first, second = examine("mine.yaml").findings
    assert first.message == "mine.yaml has no `defaults:`, and lacks `kind`, `data` and `train`"
    assert first.help == finding.help
    assert second.help == "only `adamw` is built: leave `optim.name` out"
    Path("mine.yaml").write_text(f"data: {{train: {rows('good.json')}}}\ntrain: {{epochs: 1}}\n")
    examined = examine("mine.yaml")
    (only,) = examined.findings
    lacking = "`kind`, `optim` and `data.global_batch_size`"
    assert only.message == f"mine.yaml has no `defaults:`, and lacks {lacking}"
    assert examined.checks["missing-key"] == "failed"
    assert examined.checks["conflicting-model-source"] == "not-run"


def test_a_recipe_from_scratch_is_told_once_to_begin_with_another() -> None:
    text = f"data: {{train: {rows('good.json')}}}\noptim: {{lr: 1.0e-5}}\ntrain: {{epochs: 1}}\n"
    Path("mine.yaml").write_text(text)
    (only,) = examine("mine.yaml").findings
    assert only.message == (
        "mine.yaml has no `defaults:`, and lacks `kind` and `data.global_batch_size`"
    )
    assert str(only.help).startswith("begin the recipe with `defaults: [finetune, _self_]`")


def test_the_family_is_that_of_the_folder_unless_a_recipe_of_ones_own_says_it() -> None:
    given = [model("mine", "qwen3_vl"), "optim.lr=1e-5"]
    loaded = load_run("rows", [f"data.train={rows('good.json')}", *given])
    assert loaded.run.model.family == loaded.plain["model"]["family"] == "qwen3_vl"
    origin = loaded.origins.of("model.family")
    assert origin is not None
    assert origin.file == "mine/config.json"
    finding, _ = refused("good.json", *given, "model.family=qwen2_5_vl")
    assert finding.rule == "not-a-model-folder"
    assert finding.help == "set model.family=qwen3_vl, or give another folder"


def test_another_family_is_answered_with_what_vtool_does_for_it() -> None:
    finding, _ = refused(rows("good.json"), model("gemma", "gemma3"))
    assert finding.message.startswith("gemma is a model of type gemma3")
    assert "`vtool watch -- python train.py`" in str(finding.help)
    assert "vtool/families" not in str(finding.help)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], ["rate-of-random-weights"]),
        (["optim.lr=1e-3"], []),
        (["lora={rank: 8}"], []),
    ],
)
def test_a_rate_for_random_weights_is_not_left_with_a_trained_model(
    given: list[str], found: list[str]
) -> None:
    given = [f"data.train={rows('good.json')}", model("mine", "qwen2_5_vl"), *given]
    assert [one.rule for one in examine("rows", given).findings] == found


@pytest.mark.parametrize(
    ("given", "says", "help"),
    [
        (["a.json", "b.json"], "`a.json` and `b.json` are not there;", "several files are a list"),
        (["good.json", "b.json"], "`b.json` is not there;", "several files are a list"),
        (["rows", "b.json"], "`b.json` is not there;", "several files are a list"),
        (
            ["data.train=good.json", "optim.lr=1e-3"],
            "`data.train=good.json` is a setting, and stands in the place of the recipe",
            "name a recipe before it, as in: vtool train sft rows data.train=good.json; or the rows"
            " alone: good.json",
        ),
        (
            ["optim.lr=1e-3", "model.path=mine"],
            "`optim.lr=1e-3` is a setting",
            "name a recipe before it, as in: vtool train sft finetune optim.lr=1e-3",
        ),
        (["rows", "optim.lr"], "`optim.lr` is not KEY=VALUE", "write optim.lr=1e-5"),
        (["rows", "lora.rank"], "`lora.rank` is not KEY=VALUE", "write lora.rank=16"),
        (["rows", "device.kind"], "`device.kind` is not KEY=VALUE", "write device.kind=auto"),
        (["rows", "nothing"], "`nothing` is not KEY=VALUE", "write KEY=VALUE"),
    ],
)
def test_what_stands_in_the_place_of_something_else_is_said(
    given: list[str], says: str, help: str
) -> None:
    rows("good.json")
    finding, fatal = refused(*given)
    assert (finding.rule, fatal) == ("bad-override", True)
    assert finding.message.startswith(says)
    assert help in str(finding.help)


def test_a_file_with_a_comma_in_its_name_is_no_list() -> None:
    finding, _ = refused("rows", f"data.train={rows('c,d/my,rows.jsonl')}")
    assert finding.help == (
        "a text with a comma or brackets needs quotes: \"data.train='c,d/my,rows.jsonl'\""
    )
    finding, _ = refused("rows", "data.train=a.jsonl,b.jsonl")
    assert str(finding.help).startswith("a list is data.train=[a.jsonl,b.jsonl]; ")


def test_recipes_are_suggested_by_their_names_and_not_their_extension() -> None:
    for name in ("rec.yaml", "empty.yaml", "words.yml"):
        Path(name).touch()
    assert "did you mean" not in str(refused("nope.yaml")[0].help)
    assert refused("recs.yaml")[0].help == "did you mean `rec.yaml`?"
    assert refused("word.yaml")[0].help == "did you mean `words.yml`?"


def test_a_number_is_answered_with_one() -> None:
    given = [f"data.train={rows('good.json')}"]
    assert refused("rows", *given, "optim.lr=fast")[0].help == "write optim.lr=1e-5"
    assert refused("rows", *given, "data.workers=many")[0].help is None


@pytest.mark.parametrize(
    ("recipe", "given", "rate"),
    [
        ("finetune", [], 1e-5),
        ("finetune", ["lora.rank=8"], 1e-4),
        ("rows", ["lora.rank=8"], 1e-4),
        ("qwen2_5_vl_7b_fsdp2", ["lora.rank=8"], 1e-4),
        ("qwen2_5_vl_7b_lora", ["optim.lr=3e-5"], 3e-5),
        ("finetune", ["lora.rank=8", "optim.lr=1e-5"], 1e-5),
        ("digits_lora", ["lora.rank=8"], 1e-3),  # random weights
    ],
)
def test_adapters_have_their_own_rate_where_nobody_set_one(
    recipe: str, given: list[str], rate: float
) -> None:
    of_rows = [f"data.train={rows('good.json')}", model("mine", "qwen2_5_vl")]
    loaded = load_run(recipe, [*(() if recipe == "digits_lora" else of_rows), *given])
    assert loaded.run.optim.lr == loaded.plain["optim"]["lr"] == rate
    said = chosen_rate(loaded.origins)
    assert (said is not None) == (rate == 1e-4)
    assert said is None or said.startswith("optim.lr is 0.0001, for adapters (lora)")


def test_the_rate_of_ones_own_recipe_is_left_to_its_adapters() -> None:
    of_rows = [f"data.train={rows('good.json')}", model("mine", "qwen2_5_vl")]
    mine = "defaults: [finetune, _self_]\nlora: {rank: 8}\n"
    for own, rate in (("", 1e-4), ("optim: {lr: 2.0e-5}\n", 2e-5)):
        Path("mine.yaml").write_text(mine + own)
        assert load_run("mine.yaml", of_rows).run.optim.lr == rate


LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_traget: all
dataset: mllm_demo
template: qwen2_vl
cutoff_len: 2048
output_dir: saves/lora
"""
VERL = """
data: {train_files: train.parquet, train_batch_size: 32, max_length: 1024}
model: {partial_pretrain: Qwen/Qwen2.5-VL-3B-Instruct}
optim: {lr: 1.0e-5}
trainer: {total_epochs: 3}
"""
AXOLOTL = """
base_model: HuggingFaceTB/SmolVLM-500M-Instruct
datasets: [{path: llava-instruct, type: chat_template}]
adapter: lora
sequence_len: 8192
micro_batch_size: 1
"""


@pytest.mark.parametrize(
    ("name", "text", "title", "help"),
    [
        ("lf.yaml", LLAMA_FACTORY, "LLaMA-Factory", "validate-config --from llamafactory lf.yaml"),
        ("verl.yaml", VERL, "verl", "validate-config --from verl verl.yaml checks it; with"),
        ("axo.yml", AXOLOTL, "axolotl", "validate-config --from axolotl axo.yml"),
    ],
)
def test_a_recipe_of_another_trainer_is_named_once_a_typo_in_it_too(
    name: str, text: str, title: str, help: str
) -> None:
    Path(name).write_text(text)
    finding, fatal = refused(name, "train.steps=3")
    assert (finding.rule, fatal) == ("recipe-of-another-trainer", True)
    assert finding.message == f"`{name}` is a recipe of {title}, and not of vtool"
    assert help in str(finding.help)


def test_a_recipe_of_another_trainer_in_json_is_taken_for_no_row() -> None:
    Path("lf.json").write_text(json.dumps(yaml.safe_load(LLAMA_FACTORY)))
    assert refused("lf.json")[0].rule == "recipe-of-another-trainer"


def test_a_recipe_that_has_a_few_words_of_another_trainer_is_still_one_of_ours() -> None:
    Path("mine.yaml").write_text("defaults: [digits, _self_]\nlearning_rate: 1\nlora_rank: 8\n")
    assert {one.rule for one in examine("mine.yaml").findings} == {"unknown-key"}


@pytest.mark.parametrize(
    "given",
    [
        "data.train={format: messages, path: good.json}",
        "data.train.0={format: messages, path: good.json}",
        "data.train=[{format: messages, path: good.json}]",
    ],
)
def test_one_source_is_a_list_of_one(given: str) -> None:
    rows("good.json")
    (entry,) = load_run("rows", [given]).run.data.train
    assert (entry.format, entry.model_dump()["path"]) == ("messages", "good.json")


def test_a_source_without_a_format_is_detected() -> None:
    rows("good.json")
    assert load_run("rows", ["data.train.0.path=good.json"]).run.data.train == (
        AutoSource(format="auto", path="good.json"),
    )


@pytest.mark.parametrize("name", ["absent.json", "folder.json"])
def test_rows_that_are_not_there_are_fatal_for_every_command(name: str) -> None:
    Path("folder.json").mkdir()
    with pytest.raises(Findings) as caught:
        examine(name)
    assert caught.value.fatal
    assert refused(name)[1]


def test_a_folder_with_rows_further_down_says_where() -> None:
    Path("set/part").mkdir(parents=True)
    rows("set/part/a.json")
    finding, _ = refused("set")
    assert finding.help == "rows are in set/part: give one of these"


def test_a_list_in_yaml_is_told_what_rows_are() -> None:
    Path("rows.yaml").write_text("- messages:\n  - {role: user, content: hi}\n")
    finding, _ = refused("rows.yaml")
    assert "JSON lines, Parquet" in str(finding.help)


def test_comments_in_json_do_not_hide_whose_recipe_it_is() -> None:
    Path("lf.json").write_text(
        '{\n // the model\n "model_name_or_path": "a/b", // here\n "stage": "sft",'
        ' "finetuning_type": "lora"}'
    )
    assert refused("lf.json")[0].rule == "recipe-of-another-trainer"


def test_a_model_of_the_hub_of_another_make_is_told_which_are_trained() -> None:
    rows("good.json")
    gemma, _ = refused("good.json", "model.path=google/gemma-3-4b-it")
    qwen, _ = refused("good.json", "model.path=Qwen/Qwen2.5-VL-3B-Instruct")
    assert "vtool watch" in str(gemma.help)
    assert "vtool watch" not in str(qwen.help)


def test_an_optimizer_that_is_not_built_is_not_suggested() -> None:
    rows("good.json")
    finding, _ = refused("good.json", "optim=sgd")
    assert finding.help == "`optim.name` takes `adamw`"


def test_the_folder_of_a_run_is_no_file() -> None:
    finding, _ = refused(rows("good.json"), "run.dir=good.json")
    assert (finding.rule, finding.parameter) == ("path-not-found", "run.dir")
    assert "is a file, not a folder" in finding.message


def test_a_text_that_begins_as_json_is_rows() -> None:
    assert load_run(rows("good.txt"), []).run.data.train[0].model_dump()["path"] == "good.txt"


def test_a_file_beside_is_no_model_folder() -> None:
    rows("good.json")
    Path("a.py").touch()
    finding, _ = refused("good.json", "model.path=a")
    assert finding.help != "did you mean `a.py`?"
