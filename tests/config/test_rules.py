"""Every rule VT0xx to VT2xx finds its own bad example, and lets its good one pass:

the examples are those of `vtool explain`.
"""

import json
import os
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from vtool.config import rules
from vtool.config.load import RECIPE_RULES, examine
from vtool.config.rules import SETTINGS_RULES
from vtool.config.rules.rule import SettingsRule
from vtool.diagnostics import RULES, Diagnostic, Findings, Rule

# Examples that are the text of a recipe; the others are what is typed, a command or its arguments.
TEXTS = ("bad-yaml", "bad-defaults-list", "own-value-loses")
# Found by what is installed with it.
ELSEWHERE = ("not-in-megatron-core",)
TYPED = [RULES[name] for name in RECIPE_RULES if name not in (*TEXTS, *ELSEWHERE)]


# Nine aliases of nine, nine deep, of which any reader that follows them makes 387 million values.
BOMB = "a0: &a0 [1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files that the examples name: rows, models and a recipe."""
    monkeypatch.chdir(tmp_path)
    for folder in ("rows", "recipes"):
        Path(folder).mkdir(parents=True)
    Path("rows/train.jsonl").touch()
    for name, patch in (("qwen", 14), ("mixed", 16), ("twice", 14)):
        Path(f"models/{name}").mkdir(parents=True)
        Path(f"models/{name}/config.json").write_text(
            json.dumps({"model_type": "qwen2_5_vl", "vision_config": {"patch_size": patch}})
        )
        Path(f"models/{name}/preprocessor_config.json").write_text(
            json.dumps({"patch_size": 14, "merge_size": 2})
        )
    Path("models/experts").mkdir()
    asked = {"output_router_logits": True, "router_aux_loss_coef": 0.001}
    config = {"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 14}} | asked
    Path("models/experts/config.json").write_text(json.dumps(config))
    one, index = "model.safetensors", {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    for name in (one, *index["weight_map"].values()):
        Path(f"models/twice/{name}").touch()
    Path(f"models/twice/{one}.index.json").write_text(json.dumps(index))
    Path("models/my_model.py").write_text("class MyModel: ...\n")
    Path("recipes/digits.yaml").write_text("defaults: [digits]\n")
    Path("lora_sft.yaml").write_text("stage: sft\ntemplate: qwen2_vl\nfinetuning_type: lora\n")


def findings(*arguments: str) -> tuple[Diagnostic, ...]:
    recipe, *overrides = (each for each in arguments if each != "--untrusted")
    try:
        return examine(recipe, overrides, trusted="--untrusted" not in arguments).findings
    except Findings as unread:
        return unread.diagnostics


def arguments(example: str) -> list[str]:
    words = shlex.split(example.partition(", which")[0])
    return words[2:] if words[0] == "vtool" else ["digits", *words]


@pytest.mark.parametrize("rule", TYPED, ids=lambda rule: rule.name)
def test_the_bad_example_is_found_and_the_good_one_passes(rule: Rule) -> None:
    found = findings(*arguments(rule.bad))
    assert rule.name in [finding.rule for finding in found]
    assert {finding.severity for finding in found if finding.rule == rule.name} == {rule.severity}
    good = findings(*arguments(rule.good))
    assert rule.name not in [finding.rule for finding in good]
    assert "error" not in [finding.severity for finding in good]


@pytest.mark.parametrize("name", TEXTS)
def test_the_bad_text_is_found_and_the_good_one_passes(name: str) -> None:
    for text, expected in ((RULES[name].bad, True), (RULES[name].good, False)):
        Path("mine.yaml").write_text(f"{text}\n")
        assert (name in [finding.rule for finding in findings("mine.yaml")]) is expected


def test_every_rule_of_settings_that_a_file_has_is_listed_once() -> None:
    folder = Path(str(rules.__file__)).parent
    modules = [
        import_module(f"vtool.config.rules.{file.stem}") for file in folder.glob("[a-z]*.py")
    ]
    values = [each for module in modules for each in vars(module).values()]
    found = [each for each in values if isinstance(each, SettingsRule)]
    missing = [
        each.rule.name for each in found if not any(each is listed for listed in SETTINGS_RULES)
    ]
    assert missing == [], "name them in SETTINGS_RULES of vtool/config/rules/__init__.py"
    assert len(found) == len(SETTINGS_RULES), "a rule is listed twice"


def test_a_recipe_is_checked_against_every_rule_about_recipes_but_those_about_processes() -> None:
    of_other_trainers = {"setting-without-reader", "setting-dropped", "no-counterpart"}
    of_other_trainers |= {"silent-trap", "refused-there", "not-on-this-machine"}
    about_recipes = {rule.name for rule in RULES.values() if rule.code < "VT3"}
    assert set(RECIPE_RULES) == about_recipes - {"launch-conflict", *of_other_trainers}
    assert [RULES[name].code for name in RECIPE_RULES] == sorted(
        RULES[name].code for name in RECIPE_RULES
    )


def only(*overrides: str) -> Diagnostic:
    (finding,) = findings("digits", *overrides)
    return finding


class TestYaml:
    """YAML that other readers let pass, or refuse without a place."""

    @pytest.mark.parametrize(
        ("text", "place", "words"),
        [
            ("a: 1\nb: {c: 1, c: 2}\n", "2:11", "`c` twice; the first is in line 2"),
            ("a: [1\nb: 2\n", "1:4", "not closed"),
            ("a: 1\n\tb: 2\n", "2:1", "a tab"),
            ("- a\n", "1:1", "not a mapping"),
            ("", None, "no settings"),
            ("a: 1\n---\nb: 1\n", "2:1", "single document"),
            ("a: &x [*x]\n", None, "contains itself"),
            ("a: !!python/none x\n", "1:4", "no setting takes"),
            ("[a]: 1\n", "1:1", "not a word"),
            ("a: *nothing\n", "1:4", "undefined alias"),
            ('a: "b\n', "1:4", "quotation mark"),
            ("a: 1\0\n", None, "control characters"),
            ("# nothing else\n", None, "no settings"),
            ("[" * 5000, "1:31", "more than 30 groups or lists"),
            (BOMB, "5:5", "more than 4000 values"),
        ],
    )
    def test_is_refused_at_its_place(self, text: str, place: str | None, words: str) -> None:
        Path("mine.yaml").write_text(text)
        (finding,) = findings("mine.yaml")
        assert finding.rule == "bad-yaml"
        assert words in finding.message
        assert str(finding.origin) == (f"mine.yaml:{place}" if place else "mine.yaml")

    def test_every_key_that_is_there_twice_is_reported(self) -> None:
        Path("mine.yaml").write_text("a: 1\nb: {c: 1, c: 2}\na: 2\n")
        assert [str(finding.origin) for finding in findings("mine.yaml")] == [
            "mine.yaml:2:11",
            "mine.yaml:3:1",
        ]

    def test_of_a_file_that_is_extended_is_refused_there(self) -> None:
        Path("base.yaml").write_text("a: 1\na: 2\n")
        Path("mine.yaml").write_text("defaults: [base]\n")
        assert [str(finding.origin) for finding in findings("mine.yaml")] == ["base.yaml:2:1"]

    def test_in_another_encoding_is_refused(self) -> None:
        Path("mine.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
        (finding,) = findings("mine.yaml")
        assert (finding.rule, str(finding.origin)) == ("unreadable-file", "mine.yaml:2")


class TestDefaultsList:
    """The defaults list, of which a recipe is composed."""

    @pytest.mark.parametrize(
        ("text", "rule", "place", "help"),
        [
            ("defaults: [digts]\n", "unknown-recipe", "1:12", "did you mean `digits`?"),
            (
                "defaults:\n  - digits\n  - override /optim: adam\n",
                "unknown-group-choice",
                "3:22",
                "did you mean `adamw`?",
            ),
            (
                "defaults:\n  - /optm: adamw\n",
                "unknown-group-choice",
                "2:12",
                "did you mean `/optim`?",
            ),
            ("defaults:\n  - digits\n  - /optim: adamw\n", "bad-defaults-list", "1:1", None),
            ("defaults: [other]\n", "bad-defaults-list", None, None),
        ],
    )
    def test_is_refused_at_its_place(
        self, text: str, rule: str, place: str | None, help: str | None
    ) -> None:
        Path("other.yaml").write_text("defaults: [mine]\n")
        Path("mine.yaml").write_text(text)
        (finding,) = findings("mine.yaml")
        assert (finding.rule, finding.help) == (rule, help)
        assert place is None or str(finding.origin) == f"mine.yaml:{place}"

    def test_that_goes_in_a_circle_is_refused(self) -> None:
        Path("mine.yaml").write_text("defaults: [one]\n")
        Path("one.yaml").write_text("defaults: [two]\n")
        Path("two.yaml").write_text("defaults: [one]\n")
        assert [finding.rule for finding in findings("mine.yaml")] == ["bad-defaults-list"]


class TestRecipeNames:
    """Names of which there is no recipe."""

    def test_a_file_without_its_ending_is_suggested(self) -> None:
        Path("mine.yaml").write_text("defaults: [digits]\n")
        (finding,) = findings("mine")
        assert finding.help == "did you mean `mine.yaml`?"

    @pytest.mark.parametrize("recipe", ["", "nothing/like/it.yaml", "x" * 5000, "a\0b"])
    def test_anything_else_is_answered_with_what_there_is(self, recipe: str) -> None:
        (finding,) = findings(recipe)
        assert finding.rule in ("unknown-recipe", "unreadable-file")


class TestTraining:
    """The length of training."""

    def test_neither_steps_nor_epochs(self) -> None:
        assert only("train.steps=null").rule == "steps-or-epochs"

    def test_warm_up_may_end_one_step_before_the_last(self) -> None:
        assert findings("digits", "train.steps=51", "optim.warmup_steps=50") == ()
        assert only("train.steps=50", "optim.warmup_steps=50").rule == "warmup-too-long"
        assert findings("digits", "train.epochs=1", "optim.warmup_steps=50") == ()


class TestBatches:
    """Rows of a step, of a process, of a forward pass."""

    def test_above_the_step_is_an_error_above_the_share_a_note(self) -> None:
        assert only("data.micro_batch_size=33").severity == "error"
        note = only("launch.nproc=2")
        assert (note.severity, note.expected, note.seen) == ("note", "at most 16", "32")
        assert findings("digits", "launch.nproc=3", "data.micro_batch_size=11") == ()


class TestEvaluatedRows:
    """Rows that a model is evaluated on are not those that it has been trained on."""

    @pytest.mark.parametrize("path", ["rows/train.jsonl", "rows/../rows/train.jsonl", "link.jsonl"])
    def test_a_file_is_the_same_by_any_path(self, path: str) -> None:
        Path("link.jsonl").symlink_to("rows/train.jsonl")
        train = "data.train=[{format: digits, split: train}, {format: messages, path: %s}]"
        found = only(train % "rows/train.jsonl", f"data.test=[{{format: messages, path: {path}}}]")
        assert (found.rule, found.severity) == ("evaluated-on-trained-rows", "warning")
        assert found.parameter == "data.test.0"
        assert found.message == (
            f"data.test.0 has the rows of data.train.1: format: messages, path: {path}"
        )

    def test_every_entry_is_compared(self) -> None:
        Path("rows/other.jsonl").touch()
        other = "{format: messages, path: rows/other.jsonl}"
        rows = f"[{other}, {{format: digits, split: train}}]"  # the recipe trains on it, shifted
        found = findings("digits", f"data.validation={rows}", f"data.test={rows}")
        assert [one.parameter for one in found] == ["data.validation.1", "data.test.1"]
        assert findings("digits", f"data.test=[{other}]") == ()


class TestDroppedInputs:
    """Pixels and their grid."""

    @pytest.mark.parametrize("name", ["pixel_values", "image_grid_thw"])
    def test_one_without_the_other_is_refused_with_what_to_write(self, name: str) -> None:
        finding = only(f"data.drop_model_inputs=[attention_mask,{name}]")
        assert finding.rule == "half-an-image"
        other = {"pixel_values": "image_grid_thw", "image_grid_thw": "pixel_values"}[name]
        assert f"data.drop_model_inputs=[attention_mask,{name},{other}]" in (finding.help or "")

    def test_both_or_neither_is_right(self) -> None:
        assert findings("digits", "data.drop_model_inputs=[image_grid_thw,pixel_values]") == ()
        assert findings("digits", "data.drop_model_inputs=[attention_mask]") == ()

    def test_what_happens_without_token_types_is_reported_of_each_family(self) -> None:
        left_out = "data.drop_model_inputs=[mm_token_type_ids]"
        silent = only(left_out)
        assert (silent.rule, silent.severity) == ("token-types-left-out", "warning")
        assert "positions of text" in silent.message
        raised = only("model.family=qwen2_vl", left_out)
        assert (raised.rule, raised.severity) == ("token-types-left-out", "error")
        assert "refuses a row" in raised.message
        assert "data.drop_model_inputs=[mm_token_type_ids,pixel_values,image_grid_thw]" in (
            raised.help or ""
        )
        assert (
            findings(
                "digits", "data.drop_model_inputs=[mm_token_type_ids,pixel_values,image_grid_thw]"
            )
            == ()
        )


class TestModel:
    """The sources of weights."""

    def test_nothing_says_what_to_train(self) -> None:
        assert only("model.size=null").rule == "conflicting-model-source"

    def test_random_weights_and_a_folder_of_weights(self) -> None:
        assert (
            only("model.init=random", "model.path=models/qwen").rule == "conflicting-model-source"
        )

    def test_a_folder_of_another_family(self) -> None:
        Path("models/qwen/config.json").write_text(json.dumps({"model_type": "internlm_x"}))
        finding = only("model.path=models/qwen", "model.size=null")
        assert (finding.rule, finding.expected, finding.seen) == (
            "not-a-model-folder",
            "qwen2_5_vl",
            "internlm_x",
        )

    @pytest.mark.parametrize("text", ["{", "[]", "{}", "\xff", '{"model_type": [["x"]]}'])
    def test_a_config_that_says_nothing(self, text: str) -> None:
        Path("models/qwen/config.json").write_text(text, encoding="latin-1")
        assert only("model.path=models/qwen", "model.size=null").rule == "not-a-model-folder"

    def test_the_folder_of_a_run_has_the_model_inside(self) -> None:
        Path("runs/digits").mkdir(parents=True)
        Path("models/qwen").rename("runs/digits/export")
        assert (
            only("model.path=runs/digits", "model.size=null").help
            == "there is one in runs/digits/export"
        )


class TestPaths:
    """Files and folders."""

    def test_what_has_a_name_like_it_is_suggested(self) -> None:
        assert (
            only("data.test=[{format: messages, path: rows/trian.jsonl}]").help
            == "did you mean `rows/train.jsonl`?"
        )
        assert (
            only("model.path=models/qwn", "model.size=null").help == "did you mean `models/qwen`?"
        )
        assert only("checkpoint.resume=nevr").help == "did you mean `never`?"

    def test_a_folder_of_rows_has_a_file_of_rows(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("")
        given = f"data.test=[{{format: messages, path: '{tmp_path}'}}]"
        assert "is a folder without a file of rows (.json, .jsonl," in only(given).message
        (tmp_path / "rows.jsonl").write_text("")
        assert findings("digits", given) == ()


class TestReferences:
    """References from one value to another."""

    @pytest.mark.parametrize(
        ("text", "places"),
        [
            ("run:\n  name: ${run.dir}\n  dir: ${run.name}\n", ["3:9", "4:8"]),
            ("optim:\n  lr: ${optim.lr}\n", ["3:7"]),
        ],
    )
    def test_that_goes_in_a_circle_is_refused_at_its_place(
        self, text: str, places: list[str]
    ) -> None:
        Path("mine.yaml").write_text(f"defaults: [digits]\n{text}")
        found = findings("mine.yaml")
        assert {finding.rule for finding in found} == {"broken-reference"}
        assert {str(finding.origin).removeprefix("mine.yaml:") for finding in found} <= set(places)
        assert "refers to itself" in found[0].message


def test_what_cannot_be_read_ends_with_2_and_names_its_place() -> None:
    from typer.testing import CliRunner

    from vtool.cli.app import app

    Path("bytes.yaml").write_bytes(b"a: caf\xe9\n")
    Path("bomb.yaml").write_text(BOMB)
    Path("group.yaml").write_text("defaults:\n  - digits\n  - /nothing: here\n")
    for given, code, place in (
        (["bytes.yaml"], "VT004", "bytes.yaml:1"),
        (["bomb.yaml"], "VT002", "bomb.yaml:5:5"),
        (["group.yaml"], "VT005", "group.yaml:3:15"),
        (["recipes"], "VT004", ""),
        (["digits", "train.steps"], "VT003", "command line"),
        (["nothing.yaml"], "VT001", ""),
    ):
        done = CliRunner().invoke(app, ["validate-config", *given, "--format", "concise"])
        assert done.exit_code == 2, given
        assert f"({code})" in done.stdout
        assert done.stdout.startswith(place)


def test_settings_of_an_evaluation_that_is_not_there_are_noted() -> None:
    found = findings(
        "digits",
        "data.test=[]",
        "data.validation=[]",
        "evaluation.every_steps=null",
        "evaluation.batch_size=4",
    )
    assert [(finding.rule, finding.severity, finding.parameter) for finding in found] == [
        ("ignored-setting", "note", "evaluation.batch_size"),
        ("ignored-setting", "note", "evaluation.generate.max_new_tokens"),
    ]


PACKED = ("data.packing=token_budget", "data.micro_batch_tokens=256")


def test_the_end_of_a_fall_is_noted_only_where_it_is_written_and_nothing_falls() -> None:
    found = only("optim.schedule=constant", "optim.min_lr_ratio=0.1")
    assert (found.rule, found.parameter) == ("ignored-setting", "optim.min_lr_ratio")
    assert findings("digits", "optim.schedule=constant") == ()
    assert findings("digits", "optim.schedule=linear", "optim.min_lr_ratio=0.1") == ()


def test_packing_notes_a_number_of_rows_that_is_written_with_it_not_one_of_the_recipe_below() -> (
    None
):
    """The command of docs/packing.md:

    who gives it cannot leave out what stands in the shipped recipe.
    """
    assert findings("digits", *PACKED) == ()
    (note,) = findings("digits", *PACKED, "data.micro_batch_size=4")
    reported = (note.rule, note.severity, str(note.origin), note.remedy)
    assert reported == ("ignored-setting", "note", "command line", "leave it out")
    rows = "global_batch_size: 32, micro_batch_size: 4"
    Path("mine.yaml").write_text(
        f"kind: sft\ndefaults: [digits]\ndata: {{{rows}, packing: token_budget, micro_batch_tokens:"
        " 256}\n"
    )
    (note,) = findings("mine.yaml")
    assert note.rule == "ignored-setting"
    assert str(note.origin).startswith("mine.yaml:3:")
    Path("mine.yaml").write_text(
        "kind: sft\ndefaults: [digits]\ndata: {packing: token_budget, micro_batch_tokens: 256}\n"
    )
    assert findings("mine.yaml") == ()


def test_of_packed_rows_it_is_not_reported_how_many_a_forward_pass_has() -> None:
    assert findings("digits", *PACKED, "launch.nproc=2", "data.global_batch_size=16") == ()


def test_packing_for_a_model_with_windows_is_refused_where_attention_has_none() -> None:
    config = json.loads(Path("models/qwen/config.json").read_text())
    text = {
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
        "num_hidden_layers": 2,
    }
    Path("models/qwen/config.json").write_text(json.dumps(config | {"text_config": text}))
    of_a_folder = ("model.path=models/qwen", "model.size=null", *PACKED)
    for given in ("engine=megatron", "device.kind=npu"):
        (finding,) = findings("digits", *of_a_folder, given)
        reported = (finding.rule, finding.severity, finding.parameter)
        assert reported == ("not-built-on-engine", "error", "data.packing")
        assert (
            "1 of the model's 2 layers see the last 24 tokens only (sliding_window)"
            in finding.message
        )
        assert findings("digits", *of_a_folder, given, "data.micro_batch_tokens=23") == ()
    for engine in ("ddp", "fsdp2"):
        assert findings("digits", *of_a_folder, f"engine={engine}") == ()
    assert findings("digits", *of_a_folder[:2]) == ()


@pytest.mark.parametrize(
    "override",
    ["model.path=closed/m", "checkpoint.resume=closed/r", "model.modeling=closed/m.py:A"],
)
def test_a_path_that_must_not_be_looked_at_is_reported(
    override: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def stat(path: Any, **how: Any) -> Any:
        if "closed" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **how)

    monkeypatch.setattr(os, "stat", stat)
    found = [one for one in examine("digits", [override]).findings if one.rule == "path-not-found"]
    assert len(found) == 1
    assert "closed" in found[0].message
    assert "Permission denied" in found[0].message
