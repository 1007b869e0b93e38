"""Proof that an exported model, opened again, computes what the trained one does."""

from pathlib import Path
from typing import TYPE_CHECKING

from vtool.diagnostics import Rule
from vtool.verification.proofs.proof import (
    SHIPPED_PASS,
    Difference,
    Proof,
    ProofContext,
    ProofResult,
    check_differences,
    failed,
    list_first,
)

if TYPE_CHECKING:
    from torch import Tensor

    from vtool.training.session import Session

RULE = Rule(
    name="export-differs",
    code="VT721",
    summary="What is exported and opened again computes something else than the trained model.",
    holds="What is exported and opened again computes what the trained model does.",
    why=(
        "A merge that adds nothing, a scale that is lost or a tensor under another name is loaded"
        " without an error (verl#7285: `merged` is the base; verl#4553, ms-swift#6862)."
    ),
    bad="a merged model whose weights are the base's",
    good="a merged model that computes what base and adapter do",
    fix=SHIPPED_PASS + "report it with this line.",
)


def compute(context: ProofContext) -> ProofResult:
    """Compare the logits of a trained model with those of its export, opened by transformers.

    With adapters: of the merged export, and of base and adapter, opened by peft.
    """
    import torch

    from vtool.models.adapters import add_saved_adapter
    from vtool.models.build import load_model
    from vtool.verification import reference, rounding, steps

    # On every rank: where it cannot be computed, no rank may wait for another one.
    allowed = context.reference.tolerances
    session, progress = context.open()
    written = "the adapter merged, and by itself" if session.run.lora else "the export"
    what = (
        f"logits of {written}, opened by transformers, against the trained"
        f" model's{steps.on_engine(session)}"
    )
    steps.take_step(session, progress)
    batches = [context.batch(session, [row]) for row in range(len(context.rows))]

    def logits(model: torch.nn.Module) -> "dict[str, Tensor]":
        return {
            reference.row_name(row): model(**batch.inputs, use_cache=False).logits[0]
            for row, batch in enumerate(batches)
        }

    with session.engine.evaluating(), torch.no_grad(), session.engine.autocast():
        trained = logits(session.engine.module)
    exports = _gather_exports(session)

    def compare_exports() -> list[Difference] | str:
        folders = _write_exports(context, *exports)
        if isinstance(folders, str):
            return folders
        found: list[Difference] = []
        chosen = context.run.model
        for name, folder in folders.items():
            model = load_model(
                folder, chosen.family, torch.float32, chosen.attention, chosen.modeling
            ).eval()
            if name == "adapter":
                add_saved_adapter(model, context.folder / "adapter")
            with torch.no_grad():
                found += rounding.tensor_distances(logits(model), trained, allowed, name)
        return found

    found = context.ranks.on_rank_zero(compare_exports)
    if isinstance(found, str):
        return failed(RULE, what, found)
    return check_differences(RULE, what, found, "what is opened again computes something else")


def _gather_exports(session: "Session") -> "tuple[dict[str, Tensor], ...]":
    """Return weights with adapters merged, weights without them, and the adapters, on the CPU.

    Rank 0 has them, and every rank calls it.
    """
    from vtool.engines.contract import to_rank_zero

    engine = session.engine
    merged, base = (
        {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in engine.iter_hf_weights(kind, to_rank_zero)
        }
        if kind == "merged" or session.run.lora
        else {}
        for kind in ("merged", "none")
    )
    return merged, base, dict(engine.model_state(to_rank_zero)) if session.run.lora else {}


def _write_exports(
    context: ProofContext,
    merged: "dict[str, Tensor]",
    base: "dict[str, Tensor]",
    adapter: "dict[str, Tensor]",
) -> dict[str, Path] | str:
    """Write the folders that are to be opened, by name; or return what is wrong before that."""
    from vtool.export.huggingface import export_adapter, write_export
    from vtool.models.adapters import adapter_names

    lora, processor = context.run.lora, context.processor

    def write(weights: "dict[str, Tensor]", folder: str) -> Path:
        family = context.run.model.family
        return Path(write_export(context.bare, weights, processor, family, context.folder / folder))

    if lora is None:
        return {"exported": write(merged, "merged")}
    unmerged = [
        name
        for name in merged
        if adapter_names(name)[0] in adapter and merged[name].equal(base[name])
    ]
    if unmerged:
        return f"merged, {list_first(unmerged)} is what it was before training"
    folders = {"merged": write(merged, "merged"), "adapter": write(base, "base")}
    export_adapter(lora, adapter, folders["adapter"], processor, context.folder / "adapter")
    return folders


PROOF = Proof(
    rule=RULE,
    compute=compute,
    section="Steps",
    method=(
        "What is trained, written and opened again by transformers computes what the live model"
        " does. With adapters: merged and by itself (through peft), and merged is not what it was"
        " before."
    ),
    catches="`merged` that is the base (verl#7285), a lost scale (ms-swift#6862).",
    upstream="verl#7285",
    fast=False,
    on_ranks=True,
)
