"""From a recipe and KEY=VALUE to a run:

what is accepted, what is refused, and what is left behind.
"""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from vtool.config.load import examine, load_run
from vtool.diagnostics import Diagnostic, Findings

# What a shipped recipe leaves to its user.


def refused(recipe: str, *overrides: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(Findings) as caught:
        load_run(recipe, overrides)
    return caught.value.diagnostics


def rules(*findings: Diagnostic) -> list[str]:
    return [finding.rule for finding in findings]


def test_a_run_is_frozen_to_its_leaves() -> None:
    run = load_run("digits").run
    with pytest.raises(ValidationError):
        run.optim.lr = 1.0
    assert isinstance(run.data.train, tuple)
    assert isinstance(run.optim.betas, tuple)


def test_any_setting_of_the_schema_can_be_set_without_a_plus() -> None:
    run = load_run(
        "digits",
        [
            "optim.eps=1e-6",
            "engine.bucket_cap_mb=5",
            "device.threads=2",
            "data.image.min_pixels=100",
        ],
    ).run
    assert (
        run.optim.eps,
        run.engine.bucket_cap_mb,
        run.device.threads,
        run.data.image.min_pixels,
    ) == (1e-6, 5, 2, 100)
    assert run.data.image.max_pixels == 1024


def test_an_integer_is_a_number_but_nothing_else_is_converted() -> None:
    assert load_run("digits", ["optim.lr=1"]).run.optim.lr == 1.0
    for override in (
        "optim.lr=true",
        "train.steps=5.0",
        "train.steps=true",
        "train.steps='5'",
        "run.name=7",
        "optim.lr='1e-3'",
    ):
        assert rules(*refused("digits", override)) == ["wrong-type"], override


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "0", "-1"])
def test_a_learning_rate_is_a_finite_number_above_0(value: str) -> None:
    assert rules(*refused("digits", f"optim.lr={value}")) == ["out-of-range"]


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "defaults: [digits, _self_]\noptim: {lrate: 1}\ntrain: {steps: many}\ndata: {test:"
        " [{format: messages}]}\n"
    )
    found = refused(
        str(recipe),
        "model.attention=flash",
        "evaluation.batch_size=0",
        "model.init=pretrained",
        "nothing=1",
    )
    assert sorted(rules(*found)) == sorted(
        [
            "unknown-key",
            "wrong-type",
            "missing-key",
            "unknown-choice",
            "out-of-range",
            "unknown-key",
            "conflicting-model-source",
        ]
    )
    assert [finding.origin.line for finding in found if finding.origin and finding.origin.line] == [
        2,
        3,
        4,
    ]


def test_a_finding_in_one_group_does_not_hide_what_contradicts_in_another() -> None:
    found = refused("digits", "optim.lr=-1", "train={steps: 9, epochs: 3}", "data.on_overlong=drop")
    assert rules(*found) == ["out-of-range", "steps-or-epochs", "max-length-missing"]


def test_what_was_not_looked_at_is_not_reported_as_passed() -> None:
    checks = examine("digits", ["optim.warmup_steps=-1"]).checks
    assert checks["out-of-range"] == "failed"
    assert checks["warmup-too-long"] == "not-run"
    assert checks["pixel-bounds"] == "passed"
    hidden = examine("digits", ["data.train=[{format: nothing, nokey: 1}]"]).checks
    assert (hidden["unknown-choice"], hidden["unknown-key"]) == ("failed", "not-run")


@pytest.mark.parametrize(
    "override",
    [
        "optim.nesterov=true",
        "+optim.nesterov=true",
        "++optim.nesterov=true",
        "'optim={nesterov: true}'",
    ],
)
def test_no_way_of_writing_it_smuggles_an_unknown_key_past_the_schema(override: str) -> None:
    (finding,) = refused("digits", override.strip("'"))
    assert (finding.rule, finding.parameter) == ("unknown-key", "optim.nesterov")


def test_hydras_own_settings_are_unknown_keys(tmp_path: Path) -> None:
    assert rules(*refused("digits", "hydra.run.dir=x")) == ["unknown-key"]
    (tmp_path / "r.yaml").write_text(
        "defaults: [digits, _self_]\nhydra: {searchpath: ['file:///nowhere']}\n"
    )
    assert rules(*refused(str(tmp_path / "r.yaml"))) == ["unknown-key"]


def test_a_file_that_is_mistyped_is_reported_with_those_next_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("week").mkdir()
    Path("week/shapes.yaml").write_text("defaults: [/digits]\n")
    for given in ("week/shape.yaml", "week/shapes.yml"):
        with pytest.raises(Findings) as raised:
            load_run(given)
        assert raised.value.diagnostics[0].help == "did you mean `week/shapes.yaml`?"


@pytest.mark.parametrize("setting", ["train.from", "checkpoint.resume"])
def test_the_name_of_a_run_is_answered_with_its_folder(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/mine").mkdir(parents=True)
    (finding,) = examine("digits", [f"{setting}=mine"]).findings
    assert (finding.rule, finding.help) == ("path-not-found", "did you mean `runs/mine`?")


def test_a_setting_that_a_recipe_leaves_open_must_be_given() -> None:
    (finding,) = refused("rows")
    assert (finding.rule, finding.parameter) == ("missing-key", "data.train")
    assert str(finding.origin).startswith("recipes/rows.yaml:")


def test_a_run_has_its_recipes_name_unless_it_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "my.first.yaml").write_text("defaults: [digits, _self_]\n")
    assert load_run(str(tmp_path / "my.first.yaml")).run.run.name == "my.first"
    assert load_run("digits", ["run.name=other"]).run.run.name == "other"


class TestOwnRecipes:
    """A YAML file anywhere, which may extend shipped recipes and the files next to it."""

    def test_extends_a_shipped_recipe(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "mine.yaml").write_text("defaults: [digits]\noptim: {lr: 0.5}\n")
        monkeypatch.chdir(tmp_path)
        run = load_run("sub/mine.yaml").run
        assert (run.optim.lr, run.data.global_batch_size, run.optim.name) == (0.5, 32, "adamw")

    def test_wins_over_what_it_extends_where_the_list_does_not_say(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text(
            "defaults:\n  - digits\ntrain: {steps: 7}\noptim: {warmup_steps: 1}\n"
        )
        assert load_run(str(tmp_path / "mine.yaml")).run.train.steps == 7

    def test_of_the_same_name_extends_the_shipped_one(self, tmp_path: Path) -> None:
        (tmp_path / "digits.yaml").write_text("defaults: [digits, _self_]\nrun: {seed: 3}\n")
        assert load_run(str(tmp_path / "digits.yaml")).run.run.seed == 3

    def test_extends_the_file_next_to_it_and_a_group_of_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "base.yaml").write_text("defaults: [digits, _self_]\nrun: {seed: 3}\n")
        (tmp_path / "optim").mkdir()
        (tmp_path / "optim" / "slow.yaml").write_text("schedule: constant\n")
        (tmp_path / "mine.yaml").write_text(
            "defaults:\n  - base\n  - override /optim: slow\n  - _self_\n"
        )
        loaded = load_run(str(tmp_path / "mine.yaml"))
        assert (loaded.run.run.seed, loaded.run.optim.schedule) == (3, "constant")
        assert "adamw.yaml" not in str(loaded.origins.of("optim.clip_norm")), "the shipped group"

    def test_may_have_any_file_name(self, tmp_path: Path) -> None:
        (tmp_path / "my recipe (v2).yml").write_text("defaults: [digits, _self_]\n")
        assert load_run(str(tmp_path / "my recipe (v2).yml")).run.run.name == "my recipe (v2)"

    def test_may_lie_next_to_folders_named_like_settings(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "run").mkdir()
        (tmp_path / "mine.yaml").write_text("defaults: [digits, _self_]\n")
        assert load_run(str(tmp_path / "mine.yaml"), ["data={workers: 1}"]).run.data.workers == 1
        assert rules(*refused(str(tmp_path / "mine.yaml"), "data=3")) == ["wrong-type"]

    def test_may_begin_with_a_byte_order_mark(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_bytes(b"\xef\xbb\xbfdefaults: [digits, _self_]\n")
        assert load_run(str(tmp_path / "mine.yaml")).run.kind == "sft"


class TestKinds:
    def test_settings_of_no_known_kind_are_not_held_against_those_of_another(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "mine.yaml").write_text(
            "kind: load_chek\nsubjects: {names: [vllm:BertModel]}\nslots: 2\n"
        )
        examined = examine(str(tmp_path / "mine.yaml"))
        (finding,) = examined.findings
        assert (finding.rule, finding.parameter, finding.help) == (
            "unknown-choice",
            "kind",
            "did you mean `load_check`?",
        )
        assert finding.origin is not None
        assert finding.origin.line == 1
        assert examined.checks["unknown-key"] == "not-run"

    def test_a_kind_that_is_no_word_is_refused(self) -> None:
        assert rules(*refused("digits", "kind=[3]")) == ["unknown-choice"]


class TestGroups:
    """`optim=adamw` picks a file; `optim={…}` and `optim.lr=…` set values."""

    def test_a_choice_replaces_that_of_the_recipe(self, tmp_path: Path) -> None:
        (tmp_path / "optim").mkdir()
        (tmp_path / "optim" / "slow.yaml").write_text("schedule: constant\n")
        (tmp_path / "mine.yaml").write_text("defaults: [digits, _self_]\n")
        assert (
            load_run(str(tmp_path / "mine.yaml"), ["optim=slow"]).run.optim.schedule == "constant"
        )

    def test_a_choice_is_added_where_the_recipe_has_none(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text(
            "kind: sft\ndata: {train: [{format: digits, split: train}], global_batch_size:"
            " 4}\ntrain: {steps: 9}\n"
        )
        run = load_run(
            str(tmp_path / "mine.yaml"), ["model=qwen2_5_vl_tiny", "optim=adamw", "optim.lr=1"]
        ).run
        assert (run.model.size, run.optim.schedule) == ("tiny", "cosine")

    def test_values_are_merged(self) -> None:
        optim = load_run("digits", ["optim={lr: 0.5, warmup_steps: 3}"]).run.optim
        assert (optim.lr, optim.warmup_steps, optim.betas) == (0.5, 3, (0.9, 0.98))

    def test_every_wrong_choice_is_reported(self) -> None:
        found = refused("digits", "optim=adam", "model=3")
        assert rules(*found) == ["unknown-group-choice"] * 2
        assert found[0].help == "did you mean `optim=adamw`?"


class TestLists:
    """Entries of lists, by their number."""

    def test_an_entry_is_set_by_its_number(self) -> None:
        assert load_run(
            "digits", ["data.train.0.split=test", "optim.betas.0=0.5"]
        ).run.optim.betas == (0.5, 0.98)

    @pytest.mark.parametrize("override", ["data.train.1.split=test", "data.train.split=test"])
    def test_an_entry_that_is_not_there_is_refused(self, override: str) -> None:
        found = refused("digits", override, "optim.lrr=1")
        assert rules(*found) == ["bad-override", "unknown-key"]
        assert "list of 1" in found[0].message

    def test_a_list_replaces_the_whole_list(self, tmp_path: Path) -> None:
        (tmp_path / "r.jsonl").touch()
        sources = load_run(
            "digits", [f"data.train=[{{format: messages, path: '{tmp_path / 'r.jsonl'}'}}]"]
        ).run.data.train
        assert [source.format for source in sources] == ["messages"]


class TestArguments:
    """Arguments that are not KEY=VALUE."""

    def test_every_bad_one_is_reported_with_how_to_write_it(self) -> None:
        bad = [
            "train.steps",
            "train.steps=1,2",
            "~train.steps",
            "=3",
            "optim@x=adamw",
            "run.dir=a(b)",
            "run.name=it's",
            "data.train[0].split=test",
        ]
        found = refused("digits", *bad)
        assert rules(*found) == ["bad-override"] * len(bad)
        assert all(
            text in finding.message and finding.help
            for text, finding in zip(bad, found, strict=True)
        )
        assert "\"run.dir='a(b)'\"" in str(found[5].help)
        assert found[7].help == "write data.train.0.split=test"

    def test_what_help_says_to_type_is_taken(self) -> None:
        assert load_run("digits", ["run.dir='a(b)'", r"run.name='it\'s'"]).run.run.name == "it's"

    def test_bytes_that_are_no_text_are_refused(self) -> None:
        assert rules(*refused("digits", "run.name='\udcff'")) == ["bad-override"]

    @pytest.mark.parametrize(
        ("text", "value"),
        [("'7'", "7"), ("a b", "a b"), ("", ""), ("ab=c", None), ("'null'", "null")],
    )
    def test_texts(self, text: str, value: str | None) -> None:
        if value == "":
            assert rules(*refused("digits", f"run.name={text}")) == ["out-of-range"]
        elif value is None:
            assert rules(*refused("digits", f"run.name={text}")) == ["bad-override"]
        else:
            assert load_run("digits", [f"run.name={text}"]).run.run.name == value


def test_references_are_followed_and_all_broken_ones_reported(tmp_path: Path) -> None:
    assert load_run("digits", ["run.name=${optim.name}"]).run.run.name == "adamw"
    (tmp_path / "r.yaml").write_text(
        "defaults: [digits, _self_]\nrun: {name: '${optim.nmae}', dir:"
        " '${oc.env:NO_SUCH_VARIABLE}'}\n"
    )
    found = refused(str(tmp_path / "r.yaml"))
    assert [
        (finding.rule, finding.parameter, str(finding.origin).rpartition("/")[2])
        for finding in found
    ] == [
        ("broken-reference", "run.name", "r.yaml:2:13"),
        ("broken-reference", "run.dir", "r.yaml:2:35"),
    ]
    assert found[0].help == "did you mean `optim.name`?"


def test_hydra_is_left_as_it_was_found() -> None:
    from hydra import version
    from hydra.core.global_hydra import GlobalHydra

    before = version.getbase()
    load_run("digits")
    assert not GlobalHydra.instance().is_initialized()
    assert version.getbase() == before


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load_run("digits")
    assert list(tmp_path.iterdir()) == []


def test_plain_settings_are_what_the_run_has() -> None:
    loaded = load_run("digits")
    assert type(loaded.run).model_validate_json(json.dumps(loaded.plain)) == loaded.run


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("defaults: [digits]\noptim: [1]\n", "optim", "mine.yaml:2:8"),
        ("defaults: [digits]\ndata:\n  train: {a: b}\n", "data.train", "mine.yaml:3:10"),
    ],
)
def test_a_group_and_a_list_in_each_others_place_are_named(
    tmp_path: Path, text: str, name: str, place: str
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    found = refused(str(tmp_path / "mine.yaml"))
    assert rules(*found)[0] == "wrong-type"
    assert found[0].parameter == name
    assert str(found[0].origin).endswith(place)


def test_a_defaults_list_with_an_entry_that_names_nothing_is_reported_in_words(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [{1: a}]\n")
    (found,) = refused(str(tmp_path / "mine.yaml"))
    assert found.message == "an entry of the defaults list is neither a name nor `/GROUP: FILE`"


def test_a_reference_to_a_setting_that_has_its_default_is_answered_with_the_default() -> None:
    (found,) = refused("digits", "optim.weight_decay=${optim.eps}")
    assert found.help is not None
    assert "the default is 1e-08" in found.help


def test_a_list_is_not_laid_over_by_a_group() -> None:
    (found,) = refused("digits", "data.train={}")
    assert (found.rule, found.help) == ("bad-override", "give the whole list: data.train=[…]")


def test_infinity_is_answered_with_finite() -> None:
    assert (
        refused("digits", "optim.lr=inf")[0].message
        == "`optim.lr` takes a finite number above 0, not Infinity"
    )


def test_a_recipe_is_printed_in_five_lines() -> None:
    assert repr(load_run("digits")).splitlines() == [
        "<digits: qwen2_5_vl, size tiny, random weights, float32",
        "  engine: ddp, processes: 1",
        "  rows: train: digits-train; validation: digits-validation; test: digits-test",
        "  steps: 600, rows a step: 32",
        "  folder: runs/digits>",
    ]


def test_a_recipe_of_many_sources_and_of_weight_loading_is_printed_short(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.jsonl").touch()
    many = ", ".join(f"{{format: messages, path: {tmp_path}/{n}.jsonl}}" for n in range(9))
    text = repr(load_run("rows", [f"data.train=[{many}]", "train={steps: null, epochs: 2}"]))
    assert "\n  rows: train: 0.jsonl, 1.jsonl, 2.jsonl …\n" in text
    assert "\n  steps: 2 epochs, rows a step: 8\n" in text
    assert len(text.splitlines()) == 5
