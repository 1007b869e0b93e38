"""The rows that proofs compute with: healthy ones pass, whatever a recipe has, and are short."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rows import chat, film, frames, mixed_rows, picture, write_rows
from tests.runs import messages
from tests.tokenizers import qwen_like
from vtool.config.load import load_run
from vtool.diagnostics import Findings
from vtool.verification.context import ProofContext, build_proof_context
from vtool.verification.not_provable import NotProvable
from vtool.verification.proofs import label_masks_disagree
from vtool.verification.prove import prove
from vtool.verification.rows import audit_rows
from vtool.verification.select_rows import FURTHEST, LOOKED_AT, ROW_TOKENS

DECOMPOSED = unicodedata.normalize("NFD", "Crème brûlée")
EMOJI = [
    chat("q", "abc 🙂🙂🙂🙂"),
    chat("Say", "\n漢字かな交じり文"),
    chat("r", "漢字かな交じり文"),
]
TRUNCATED = ("data.on_overlong=truncate",)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def qwens(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [f"model.path={qwen_like(tmp_path_factory.mktemp('qwens'))}", "model.size=null"]


def context_of(folder: Path, rows: list[Any], *overrides: str) -> ProofContext:
    return build_proof_context(
        load_run("rows", [messages(write_rows(folder / "rows.jsonl", rows)), *overrides]).run,
        folder / "proofs",
    )


def said(context: ProofContext, name: str) -> list[str]:
    return [change for change in context.changes if change.startswith(name)]


class TestLabels:
    """A tokenizer may split a text in any way without a finding."""

    @pytest.mark.parametrize("longest", range(18, 26))
    def test_a_row_that_is_cut_inside_a_character_is_healthy(
        self, tmp_path: Path, qwens: list[str], longest: int
    ) -> None:
        context = context_of(tmp_path, EMOJI, *qwens, f"data.max_length={longest}", *TRUNCATED)
        assert any(sample.truncated for sample in context.samples)
        assert label_masks_disagree.compute(context).finding is None

    @pytest.mark.parametrize("longest", [None, 18, 19, 20, 21, 22])
    @pytest.mark.parametrize("own", [False, True])
    def test_so_is_one_of_decomposed_letters(
        self, tmp_path: Path, qwens: list[str], longest: int | None, own: bool
    ) -> None:
        rows = [
            chat("Say", f"\n{DECOMPOSED}"),
            chat("Say", DECOMPOSED),
            chat("Say", f"\n\n{DECOMPOSED}s"),
        ]
        limit = (f"data.max_length={longest}", *TRUNCATED) if longest else ()
        context = context_of(tmp_path, rows, *([] if own else qwens), *limit)
        assert label_masks_disagree.compute(context).finding is None


class TestLengths:
    """`data.max_length` is of images as the recipe makes them."""

    @pytest.mark.parametrize("todo", ["error", "drop", "truncate"])
    def test_images_that_are_larger_here_have_room(self, todo: str) -> None:
        proved = prove(
            load_run("digits", ["data.max_length=21", f"data.on_overlong={todo}"]).run,
            only=["label-masks-disagree", "rows-lost"],
        )
        assert set(proved.checks().values()) == {"passed"}
        assert any(change.startswith("data.max_length 21 → ") for change in proved.changes)

    def test_a_row_is_cut_where_the_recipe_cuts_it(self, tmp_path: Path) -> None:
        small = chat("<image>Which?", "one two three four five six") | {
            "images": [picture(tmp_path / "a.png", 28, 28).name]
        }
        bounds = "data.image={min_pixels: 784, max_pixels: 784}"
        whole = context_of(tmp_path, [small], bounds).samples[0]
        # In the recipe the image is one token, and here it is four; five more are cut off.
        longest = len(whole.input_ids) - 3 - 5
        cut = context_of(
            tmp_path, [small], bounds, f"data.max_length={longest}", *TRUNCATED
        ).samples[0]
        assert cut.truncated
        assert torch.equal(cut.input_ids, whole.input_ids[:-5])
        assert whole.supervised > cut.supervised > 0

    def test_the_tokens_of_a_row_that_is_too_long_are_those_of_the_audit(
        self, tmp_path: Path
    ) -> None:
        image = picture(tmp_path / "a.png", 84, 112).name
        rows = [
            chat(f"<image>Number {number}, and a long word: incomprehensibilities", "yes")
            | {"images": [image]}
            for number in range(2 * LOOKED_AT)
        ]
        with pytest.raises(Findings) as raised:
            context_of(tmp_path, rows, "data.max_length=20")
        file = write_rows(tmp_path / "rows.jsonl", rows)
        (audit,) = audit_rows(load_run("rows", [messages(file), "data.max_length=20"]).run)
        counted = audit.findings[0].message
        assert counted.startswith("rows.jsonl:1 has ")
        assert f"; the first: {counted}" in raised.value.diagnostics[0].message

    def test_a_row_that_is_too_long_is_so_still(self, tmp_path: Path) -> None:
        rows = [
            chat("word " * 40, "yes"),
            chat("<image>" + "word " * 40, "no") | {"images": [picture(tmp_path / "a.png").name]},
        ]
        with pytest.raises(Findings) as raised:
            context_of(tmp_path, rows, "data.max_length=20")
        assert "data.max_length is 20" in raised.value.diagnostics[0].message


class TestLongRows:
    """Proofs compute with few tokens, however long rows are."""

    def test_of_a_long_row_a_part_is_taken_that_is_still_a_row(self, tmp_path: Path) -> None:
        turns = [{"role": "system", "content": "Be kind."}]
        for number in range(40):
            turns += [
                {"role": "user", "content": f"<image>Is it {number}? " + "word " * 30},
                {"role": "assistant", "content": f"It is {number}."},
            ]
        names = [picture(tmp_path / f"{number}.png", seed=number).name for number in range(40)]
        rows = [
            {"messages": turns, "images": names},
            chat("word " * 3000, "漢字かな" * 1500),
            chat("short", "row"),
        ]
        context = context_of(tmp_path, rows)
        assert context.lengths[0] <= ROW_TOKENS
        assert sum(context.lengths) <= 5 * ROW_TOKENS
        assert [
            change
            for change in context.changes
            if "rows.jsonl:1, rows.jsonl:2" in change
            and f"longer than {ROW_TOKENS} tokens" in change
        ]
        first = context.rows[0]
        assert [message["role"] for message in first.messages] == ["system", "user", "assistant"]
        assert [str(image).rpartition("/")[2] for image in first.images] == ["39.png"]
        assert label_masks_disagree.compute(context).state == "passed"

    @pytest.mark.full
    def test_so_are_many_images_in_one_turn_and_many_frames(self, tmp_path: Path) -> None:
        names = [
            picture(tmp_path / f"{number}.png", 280, 280, seed=number).name for number in range(12)
        ]
        rows = [
            chat("<image>" * 12 + "Which?", "the last") | {"images": names},
            chat("<video>What?", "it moves") | {"videos": [frames(tmp_path, "long", 60, 280, 280)]},
            chat("<video>What?", "it moves on")
            | {"videos": [str(film(tmp_path / "film.mp4", 90, 280, 280))]},
        ]
        context = context_of(
            tmp_path, rows, "data.image.min_pixels=50176", "data.video.min_pixels=50176"
        )
        assert max(context.lengths) <= 2 * ROW_TOKENS
        assert any(row.videos for row in context.rows)
        assert any(0 < len(row.images) < 12 for row in context.rows)

    def test_a_row_that_cannot_be_shortened_is_no_reason_to_refuse_the_recipe(
        self, tmp_path: Path
    ) -> None:
        turns = [{"role": "user", "content": "?"}] + [
            {"role": "tool", "content": "word " * 40} for _ in range(60)
        ]
        with pytest.raises(NotProvable, match="however it is shortened"):
            context_of(tmp_path, [{"messages": [*turns, {"role": "assistant", "content": "yes"}]}])


class TestUnusableRows:
    """Rows that may be dropped are skipped, and the rows after them are used."""

    BROKEN = '{"messages": []}'

    def test_the_rows_behind_them_are_taken(self, tmp_path: Path) -> None:
        context = context_of(
            tmp_path,
            [self.BROKEN] * 70 + mixed_rows(tmp_path, 8, text_only=(2,)),
            "data.max_dropped_rows=70",
        )
        assert context.rows[0].id == "rows.jsonl:71"
        assert len(context.rows) > 2

    def test_where_none_is_found_in_time_nothing_is_reported_against_the_recipe(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(NotProvable, match=r"data\.max_dropped_rows=800 lets them go"):
            context_of(
                tmp_path,
                [self.BROKEN] * (FURTHEST + 1) + [chat("2 + 2?", "4")],
                "data.max_dropped_rows=800",
            )

    def test_more_than_may_be_dropped_are_a_finding(self, tmp_path: Path) -> None:
        for rows, allowed in ((100, 10), (5, 10)):
            with pytest.raises(Findings) as raised:
                context_of(tmp_path, [self.BROKEN] * rows, f"data.max_dropped_rows={allowed}")
            assert [finding.rule for finding in raised.value.diagnostics] == ["no-rows"]


@pytest.mark.parametrize(
    "setting", ["optim.groups.vision={lr: 1e-9}", "optim.eps=1.0", "optim.clip_norm=1e-9"]
)
def test_however_small_a_step_is_what_is_trained_is_seen(setting: str) -> None:
    proved = prove(load_run("digits", [setting]).run, fast=True, only=["trained-set-differs"])
    assert proved.checks() == {"trained-set-differs": "passed"}
    assert any(change.startswith(setting.partition("=")[0]) for change in proved.changes)


@pytest.mark.full
def test_healthy_rows_of_many_scripts_pass_whatever_a_recipe_does(
    tmp_path: Path, qwens: list[str]
) -> None:
    rows = [*mixed_rows(tmp_path, 3, text_only=(1,)), *EMOJI, chat("Say", f"\n{DECOMPOSED}")]
    rows[0]["messages"][1]["content"] = "漢字 🙂🙂 かな交じり文 " * 3
    given = [
        messages(write_rows(tmp_path / "rows.jsonl", rows)),
        *qwens,
        "data.max_length=40",
        *TRUNCATED,
        "optim.groups.vision.lr=1e-9",
    ]
    proved = prove(load_run("rows", given).run, fast=True)
    assert [proof.finding for proof in proved.proofs if proof.finding] == []
    assert [proof.rule for proof in proved.proofs if proof.state == "not-run"] == [
        "gradient-depends-on-ranks",
        "resume-differs",
        "export-differs",
    ]
