"""`vtool explain`: rules, settings, recipes."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from vtool.cli.app import app
from vtool.config.load import examine
from vtool.config.settings import all_settings
from vtool.config.shipped import recipe_names
from vtool.diagnostics import RULES

ROOT = Path(__file__).parents[2]


def explain(*topic: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["explain", *topic])
    return result.exit_code, result.stdout, result.stderr


def test_without_a_topic_every_rule_and_recipe_has_a_line() -> None:
    code, out, _ = explain()
    assert code == 0
    assert all(
        f"  {rule.name} " in out and f" {rule.code}  {rule.summary}\n" in out
        for rule in RULES.values()
    )
    assert all(f"  {name} " in out for name in recipe_names())


@pytest.mark.parametrize("topic", ["unknown-key", "VT101", "vt101", "Unknown-Key"])
def test_a_rule_by_its_name_or_code(topic: str) -> None:
    code, out, _ = explain(topic)
    rule = RULES["unknown-key"]
    assert code == 0
    assert out.startswith("unknown-key (VT101, error)\n")
    assert all(text in out for text in (rule.summary, rule.why, rule.bad, rule.good, rule.fix))


@pytest.mark.parametrize(
    ("topic", "files"),
    [
        ("source-listed-twice", ["vtool/config/rules/mixtures.py"]),
        ("trained-set-differs", ["vtool/verification/proofs/trained_set_differs.py"]),
        ("special-token-doubled", ["vtool/watch/conclusions/doubled.py"]),
        ("setting-not-arrived", ["vtool/config/readback.py", "vtool/verification/live.py"]),
    ],
)
def test_a_rule_names_the_file_of_its_check_or_those_that_raise_it(
    topic: str, files: list[str]
) -> None:
    _, out, _ = explain(topic)
    assert [line.split()[1] for line in out.splitlines() if line.startswith("  file: ")] == files
    assert all((ROOT / file).is_file() for file in files)


def test_a_setting_with_its_type_default_and_purpose() -> None:
    assert explain("data.max_length") == (
        0,
        (
            "data.max_length: an integer of at least 2, or null; default: null\n  The longest row,"
            " in tokens, those of images and videos included. Default: no limit.\n"
        ),
        "",
    )
    assert explain("optim.lr")[1].startswith("optim.lr: a number above 0; it must be given\n")
    assert (
        explain("run.name")[1]
        == "run.name: text that is not empty\n  The run's name. Default: the recipe's name.\n"
    )
    assert explain("data.train.0.format")[1].startswith(
        "data.train.format: `digits` or `llava` or `messages` or `alpaca` or"
    )


@pytest.mark.parametrize("name", [setting.name for setting in all_settings()])
def test_every_setting_can_be_explained(name: str) -> None:
    assert explain(name)[0] == 0


def test_a_group_with_the_settings_in_it() -> None:
    code, out, _ = explain("evaluation")
    assert code == 0
    assert "  evaluation.batch_size: an integer of at least 1; default: 32\n" in out
    assert "  evaluation.generate: a group of settings\n" in out


def test_a_group_of_several_kinds_with_those_of_each() -> None:
    out = explain("data.train")[1]
    assert (
        out.index("In all of them:")
        < out.index("data.train.weight")
        < out.index("format: digits: scikit-learn's 1797 scans")
        < out.index("data.train.split")
        < out.index("format: llava: ")
        < out.index("data.train.image_folder")
        < out.index("format: messages: ")
    )
    assert out.count("data.train.weight:") == 1


@pytest.mark.parametrize(
    ("topic", "parts"),
    [
        (
            "data.train.format",
            ["`messages`: Chats in the layout of OpenAI", "`trl`: Rows in TRL's"],
        ),
        (
            "model.family",
            [
                "Qwen2.5-VL",
                "GLM-4.1V",
                "or another image-text-to-text type of transformers; default",
            ],
        ),
        ("load_check.sources", ["`reusable_buffer`: a ring of buffers", "`shuffled`"]),
        ("sft.optim.lr", ["optim.lr: a number above 0"]),
    ],
)
def test_a_setting_of_words_with_what_each_of_them_is(topic: str, parts: list[str]) -> None:
    code, out, _ = explain(topic)
    assert code == 0
    assert [part for part in parts if part not in out] == []


@pytest.mark.parametrize("topic", ["data.validation.weight", "data.test.repeat"])
def test_no_setting_is_explained_where_it_is_refused(topic: str) -> None:
    assert explain(topic)[0] == 2


def test_a_recipe_that_is_no_text_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(b"# for \xff\nkind: sft\n")
    done = CliRunner().invoke(app, ["explain", str(file)])
    assert done.exit_code == 2
    assert "is not text in UTF-8: byte 6 is 0xff" in done.stderr


def test_a_recipe_that_goes_on_for_gigabytes_is_a_finding(tmp_path: Path) -> None:
    with (tmp_path / "recipe.yaml").open("wb") as file:
        file.truncate(40 * 2**30)
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "recipe.yaml")])
    assert done.exit_code == 2
    assert "has more than 500000 bytes" in done.stderr


def test_a_recipe_with_what_it_is_for_and_its_settings() -> None:
    code, out, _ = explain("digits")
    assert code == 0
    assert out.startswith("Learn to read 1797 real scans")
    assert "  schedule: cosine  # configs/optim/adamw.yaml:" in out


def test_the_list_has_a_whole_sentence_of_each_recipe_however_its_comment_is_wrapped() -> None:
    _, out, _ = explain()
    listed = out.partition("\nRecipes:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(recipe_names())
    assert all(line.endswith(".") for line in listed), listed
    says = "each GPU: say where the model and the rows are."
    assert [line.endswith(says) for line in listed if "_qlora " in line] == [True] * 5


def test_a_recipes_commands_and_figures_are_below_what_it_is_for() -> None:
    _, out, _ = explain("qwen2_5_vl_7b_lora")
    lines = out.splitlines()
    command = next(line for line in lines if "vtool train sft" in line)
    assert command.startswith("  vtool train sft qwen2_5_vl_7b_lora --nproc 8 model.path=")
    assert command.endswith(" data.train=rows.jsonl")
    assert all(len(line) <= 100 for line in lines[: lines.index(command)])


def test_a_recipe_that_leaves_something_open_with_what() -> None:
    code, out, _ = explain("rows")
    assert code == 0
    assert "To be run, it needs:\n  data.train=my.jsonl, a file or a folder of rows" in out
    assert "\n  lr: 0.001  # recipes/rows.yaml:18:7\n" in out


def test_settings_that_must_be_given_are_open_and_the_rest_is_a_recipe(tmp_path: Path) -> None:
    code, out, _ = explain("finetune")
    assert code == 0
    settings = out.split("Its settings, and ??? where one must be given:\n")[1]
    assert "\n  path: ???  # recipes/finetune.yaml:9:9\n" in settings
    assert "\n  lr: 1.0e-05  # recipes/finetune.yaml:11:13\n" in settings
    values = yaml.safe_load(settings)
    assert values["data"]["train"] == values["model"]["path"] == "???"
    (tmp_path / "mine.yaml").write_text(settings)
    [*lacking] = examine(str(tmp_path / "mine.yaml")).findings
    errors = [(one.rule, one.parameter) for one in lacking if one.severity == "error"]
    assert errors == [("missing-key", "model.path"), ("missing-key", "data.train")]


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# Mine.\ndefaults: [digits]\n")
    code, out, _ = explain(str(tmp_path / "mine.yaml"))
    assert code == 0
    assert out.startswith("Mine.\n")
    assert explain(str(tmp_path / "yours.yaml"))[0] == 2


@pytest.mark.parametrize(
    ("topic", "help"),
    [
        ("unkown-key", "did you mean `unknown-key`?"),
        ("digts", "did you mean `digits`?"),
        ("lr", "did you mean `optim.lr`, `optim.groups.vision.lr` or"),
        (
            "batch_size",
            (
                "did you mean `data.global_batch_size`, `data.micro_batch_size` or"
                " `evaluation.batch_size`?"
            ),
        ),
        ("optim.learning_rate", "did you mean"),
        (
            "warmup",
            "did you mean `profiler.warmup`, `optim.warmup_steps` or `optim.warmup_ratio`?",
        ),
        ("loss_mask", "did you mean `data.turns`?"),
        ("threads", "did you mean `device.threads`?"),
        ("zzzzzz", "`vtool explain` lists rules and recipes"),
    ],
)
def test_what_is_none_of_them_is_answered_with_what_was_meant(topic: str, help: str) -> None:
    code, out, err = explain(topic)
    assert (code, out) == (2, "")
    assert f"help: {help}" in err


@pytest.mark.parametrize(
    ("topic", "start"),
    [
        ("--learning_rate", "`learning_rate` of other trainers is `optim.lr` here\n\noptim.lr: "),
        ("lora-r", "`lora_r` of other trainers is `lora.rank` here\n\nlora.rank: "),
        ("warmup_ratio=0.1", "`warmup_ratio` of other trainers is `optim.warmup_ratio` here"),
        ("tf32", "`tf32` of other trainers has no setting here: torch's own default is kept"),
        ("galore_rank", "`galore_rank` of LLaMA-Factory and ms-swift has no setting here\n"),
    ],
)
def test_a_word_of_another_trainer_as_it_stands_in_its_files(topic: str, start: str) -> None:
    code, out, _ = explain("--", topic)
    assert code == 0
    assert out.startswith(start)


def test_the_page_of_all_rules_is_what_the_command_prints() -> None:
    """Renew it: make goldens"""
    code, out, _ = explain("--all")
    assert code == 0
    assert out == (Path(__file__).parents[2] / "docs/rules.md").read_text(encoding="utf-8")
    unwrapped = " ".join(out.split())
    assert all(
        f"### {rule.code} {rule.name}\n" in out and rule.fix in unwrapped for rule in RULES.values()
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("data.on_overlong", ("`error`: ", "`drop`: ", "`truncate`: ")),
        ("lora.rank", ("8 to 64 are usual",)),
        ("optim.lr", ("1e-5 for all weights, 1e-4 for adapters",)),
        ("device.threads", ("OMP_NUM_THREADS",)),
    ],
)
def test_a_setting_says_what_helps_to_choose_it(name: str, says: tuple[str, ...]) -> None:
    assert all(each in explain(name)[1] for each in says)


def test_a_word_that_has_nothing_in_common_with_a_name_is_no_guess() -> None:
    code, _, error = explain("nonsense-rule")
    assert (code, "did you mean" in error) == (2, False)
    assert "did you mean `overlong-row`?" in explain("overlongrow")[2]
    assert "did you mean `boxes-leave-picture`?" in explain("boxes-left-picture")[2]
