"""Proofs of a recipe with a large vocabulary: the tiny model has only the tokens of the rows."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vtool.config.load import load_run
from vtool.data.chat import IGNORED
from vtool.diagnostics import Findings
from vtool.models.build import model_config
from vtool.models.processor import new_processor
from vtool.verification.context import ProofContext, build_proof_context
from vtool.verification.prove import prove
from vtool.verification.vocabulary import choose_vocabulary

WORDS = 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, without weights."""
    made = tmp_path_factory.mktemp("model")
    run = load_run("digits", []).run
    processor = new_processor(
        run.model, run.data.image, ["Which digit is shown? 0123456789"], run.data.video
    )
    processor.tokenizer.add_tokens([f"word{number}" for number in range(WORDS)])
    processor.save(made)
    model_config(run.model, processor).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def context(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ProofContext:
    return build_proof_context(
        load_run("digits", [f"model.path={folder}", "model.size=null"]).run,
        tmp_path_factory.mktemp("proofs"),
    )


def test_the_model_has_the_tokens_of_the_rows_and_they_are_distinguished(
    context: ProofContext,
) -> None:
    processor, samples = context.encoded
    assert len(processor.tokenizer) > WORDS
    assert context.bare.config.get_text_config().vocab_size == len(context.vocabulary) < 100  # type: ignore[union-attr, operator]
    assert any(
        f"a vocabulary of {len(processor.tokenizer)} tokens" in change for change in context.changes
    )
    for here, there in zip(context.samples, samples, strict=True):
        assert torch.equal(context.vocabulary.kept[here.input_ids], there.input_ids)
        supervised = there.labels != IGNORED
        assert torch.equal(here.labels != IGNORED, supervised)
        assert torch.equal(here.labels[supervised], here.input_ids[supervised])
    for part in ("image", "video", "vision_start", "end", "pad"):
        token = getattr(context.processor.ids, part)
        assert int(context.vocabulary.kept[token]) == getattr(processor.ids, part)
        assert token in context.vocabulary.special
    assert context.bare.config.image_token_id == context.processor.ids.image  # type: ignore[union-attr]


@pytest.mark.parametrize("whole", [True, False])
def test_a_tokenizer_may_leave_ids_out(context: ProofContext, *, whole: bool) -> None:
    class Tokens:
        """A tokenizer of fewer tokens than its highest id."""

        all_special_ids = (0, 1)

        def __len__(self) -> int:
            return 9

    processor, samples = context.encoded
    chosen = choose_vocabulary(replace(processor, tokenizer=Tokens()), samples, whole=whole)
    for sample in samples:
        assert torch.equal(chosen.kept[chosen.convert_sample(sample).input_ids], sample.input_ids)


@pytest.mark.full
def test_its_proofs_pass(folder: Path) -> None:
    rules = (
        "label-masks-disagree",
        "loss-differs",
        "gradient-depends-on-split",
        "documents-see-each-other",
        "export-differs",
    )
    proved = prove(load_run("digits", [f"model.path={folder}", "model.size=null"]).run, only=rules)
    assert [(proof.rule, proof.state, proof.reason) for proof in proved.proofs] == [
        (rule, "passed", "") for rule in rules
    ]


def test_a_row_with_a_token_that_the_folders_model_does_not_have_is_found(
    folder: Path, context: ProofContext, tmp_path: Path
) -> None:
    _, samples = context.encoded
    highest = max(int(sample.input_ids.max()) for sample in samples)
    short = shutil.copytree(folder, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    run = load_run("digits", [f"model.path={short}", "model.size=null"]).run

    def proved_with(rows: int) -> None:
        config["text_config"]["vocab_size"] = rows
        (short / "config.json").write_text(json.dumps(config))
        build_proof_context(run, tmp_path)

    proved_with(highest + 1)
    with pytest.raises(Findings) as raised:
        proved_with(highest)
    (finding,) = raised.value.diagnostics
    assert finding.rule == "token-without-embedding"
    assert f"up to {highest}, " in finding.message
