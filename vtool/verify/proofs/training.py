"""Proofs of steps that update weights:

what they change, what they leave alone, and what is kept of them. On any engine, and any ranks.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vtool.data.collate import Batch, filler
from vtool.engines.ranks import Ranks
from vtool.export.huggingface import export, export_adapter
from vtool.models.adapters import add_saved_adapter, is_adapter, pair_of
from vtool.models.build import load_model
from vtool.training import checkpoint
from vtool.training.session import Session, restore_checkpoint, snapshot
from vtool.verify.proofs.context import ProofContext
from vtool.verify.proofs.gradient import take
from vtool.verify.proofs.proof import Difference, Proof, failed, held, listed
from vtool.verify.proofs.reference import row_name
from vtool.verify.proofs.rounding import differences


def trained_set(context: ProofContext, ranks: Ranks, *, own_engine: bool = False) -> Proof:
    """`trained-set-differs`:

    after two steps the parameters that have changed are those that the recipe trains, and no
    others.
    """
    rule = "trained-set-differs"
    session, progress = context.open(ranks, own_engine=own_engine)
    what = f"which parameters two steps change{_on(session)}"
    before = weights(session)
    for step in (1, 2):
        take(session, progress, step=step)
    after = weights(session)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    declared = {name for name in before if _trained(context, name)}
    if unasked := sorted(changed - declared):
        return failed(
            rule, what, f"two steps have changed {listed(unasked)}, which the recipe does not train"
        )
    if unchanged := sorted(declared - changed):
        seen = "" if context.with_images() else "; no row has an image"
        towers = {
            name for name in unchanged if context.family.component(_plain(name)) != "language"
        }
        if seen and len(towers) == len(unchanged):
            return Proof(
                rule,
                what,
                "not-run",
                reason=f"the tower is trained, and of the rows looked at{seen[1:]}",
            )
        return failed(
            rule,
            what,
            f"two steps have not changed {listed(unchanged)}, which the recipe trains{seen}",
        )
    return Proof(rule, what, "passed", 0.0, 0.0)


def _trained(context: ProofContext, name: str) -> bool:
    """What the settings say of a name in files."""
    if context.run.lora is not None and not is_adapter(name):
        return False
    return not getattr(context.run.model.freeze, context.family.component(_plain(name)))


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.")


def weights(session: Session) -> dict[str, Tensor]:
    """All of the model, adapters by themselves; every rank asks."""
    kinds = ("none", "only") if session.run.lora is not None else ("merged",)
    return {
        name: tensor.detach().clone()
        for kind in kinds
        for name, tensor in session.engine.iter_hf_weights(kind)  # type: ignore[arg-type]
    }


def text_only(context: ProofContext, ranks: Ranks, *, own_engine: bool = False) -> Proof:
    """`text-only-differs`:

    a step without any image leaves the tower and its optimizer state as they are, to the byte.
    """
    rule = "text-only-differs"
    session, progress = context.open(ranks, own_engine=own_engine)
    what = f"the tower after a step of text alone{_on(session)}"
    if context.run.model.dummy_visual == "always":
        return Proof(
            rule,
            what,
            "not-run",
            reason=(
                "model.dummy_visual=always: the tower takes part in every step, decays, and is"
                " updated"
            ),
        )
    plain, pictures = context.without_images(), context.with_images()
    if not plain or not pictures:
        return Proof(
            rule,
            what,
            "not-run",
            reason="no row has an image" if plain else "no row could be made that has no image",
        )
    take(session, progress, _shared(context, session, pictures + plain))
    before, states = weights(session), _cloned(session.engine.optimizer_state())
    taken = take(session, progress, _shared(context, session, plain), step=2)
    after, later = weights(session), session.engine.optimizer_state()
    tower = {name for name in before if context.family.component(_plain(name)) != "language"}
    moved = sorted(name for name in tower if not torch.equal(before[name], after[name]))
    kept = {
        name: tensor
        for name, tensor in states.items()
        if context.family.component(_plain(name)) != "language"
    }
    moved += sorted(
        name
        for name, tensor in kept.items()
        if name not in later or not torch.equal(tensor, later[name])
    )
    if moved:
        return failed(rule, what, f"a step of text alone has changed {listed(moved)}")
    finite = all(bool(torch.isfinite(one).all()) for one in taken.gradients.values())
    if not finite:
        return failed(rule, what, "a step of text alone has gradients that are not finite")
    trained = {name for name in before if _trained(context, name)} - tower
    if trained and all(torch.equal(before[name], after[name]) for name in trained):
        return failed(rule, what, "a step of text alone has changed nothing of the language model")
    return Proof(rule, what, "passed", 0.0, 0.0)


def resume(context: ProofContext, ranks: Ranks, *, own_engine: bool = False) -> Proof:
    """`resume-differs`:

    two steps at once, and one, a checkpoint, and the other in a run that begins from it: the same
    to the bit.
    """
    rule = "resume-differs"
    straight, progress = context.open(ranks, own_engine=own_engine)
    what = (
        "weights and optimizer state after two steps, against a checkpoint between"
        f" them{_on(straight)}"
    )
    take(straight, progress)
    progress.step = 1
    saved = snapshot(straight, progress)
    path = ranks.on_rank_zero(lambda: checkpoint.save(context.folder / "checkpoints", saved, 1))
    first = take(straight, progress, step=2)
    wanted = _state(straight)
    again, _ = context.open(ranks, own_engine=own_engine)
    went_on = restore_checkpoint(again.engine, path)
    # Of all ranks: one that stopped here alone would leave the others waiting for it.
    planned, resumed = (
        ranks.all_gather_objects([one.rows for one in session.micro_batches(step)])
        for session, step in ((straight, 2), (again, went_on.step + 1))
    )
    if went_on.step != 1 or planned != resumed:
        return failed(
            rule,
            what,
            f"after step 1 come rows {planned} in a run that was never stopped, and {resumed} in"
            f" one that goes on from step {went_on.step}",
        )
    second = take(again, went_on, step=went_on.step + 1)
    found = [
        Difference("the loss of step 2", abs(first.loss - second.loss), 0.0),
        Difference(
            "how often each row has been trained on",
            float((progress.visits - went_on.visits).abs().max()),
            0.0,
        ),
    ]
    there = _state(again)
    for name in wanted.keys() | there.keys():
        if name not in wanted or name not in there:
            return failed(
                rule,
                what,
                f"{name} is {'not ' * (name not in there)}there after a resume, and"
                f" {'not ' * (name not in wanted)}without one",
            )
        found.append(
            Difference(name, float((wanted[name].double() - there[name].double()).abs().max()), 0.0)
        )
    return held(
        rule,
        what,
        found,
        "a run that goes on from a checkpoint is not the run that was never stopped",
    )


def _state(session: Session) -> dict[str, Tensor]:
    state = {
        f"the optimizer's {name}": tensor
        for name, tensor in session.engine.optimizer_state().items()
    }
    return _cloned({**weights(session), **state})


def exported(
    context: ProofContext, ranks: Ranks, allowed: Mapping[str, float], *, own_engine: bool = False
) -> Proof:
    """`export-differs`:

    what is trained, written and opened again by transformers (and by peft) computes the same.
    """
    rule = "export-differs"
    session, progress = context.open(ranks, own_engine=own_engine)
    lora = session.run.lora
    written = "the adapter merged, and by itself" if lora else "the export"
    what = f"logits of {written}, opened by transformers, against the trained model's{_on(session)}"
    take(session, progress)
    batches = [context.batch(session, [place]) for place in range(len(context.rows))]
    with session.engine.evaluating(), torch.no_grad(), session.engine.autocast():
        live = {
            row_name(place): session.engine.module(**batch.inputs, use_cache=False).logits[0]
            for place, batch in enumerate(batches)
        }
    merged = {
        name: tensor.detach().to("cpu", copy=True)
        for name, tensor in session.engine.iter_hf_weights("merged")
    }
    base = (
        {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in session.engine.iter_hf_weights("none")
        }
        if lora
        else {}
    )
    adapter = session.engine.model_state() if lora else {}

    def reopened() -> list[Difference] | str:
        shell = context.bare
        opened = {
            "merged" if lora else "exported": export(
                shell,
                merged,
                context.processor,
                context.run.model.family,
                context.folder / "merged",
            )
        }
        if lora:
            same = [
                name
                for name in merged
                if pair_of(name)[0] in adapter and torch.equal(merged[name], base[name])
            ]
            if same:
                return f"merged, {listed(same)} is what it was before training"
            opened["adapter"] = export(
                shell, base, context.processor, context.run.model.family, context.folder / "base"
            )
            export_adapter(
                lora, adapter, opened["adapter"], context.processor, context.folder / "adapter"
            )
        found: list[Difference] = []
        for name, folder in opened.items():
            chosen = context.run.model
            model = load_model(
                Path(folder), chosen.family, torch.float32, chosen.attention, chosen.modeling
            ).eval()
            if name == "adapter":
                add_saved_adapter(model, context.folder / "adapter")
            with torch.no_grad():
                there = {
                    row_name(place): model(**batch.inputs, use_cache=False).logits[0]
                    for place, batch in enumerate(batches)
                }
            found += differences(there, live, allowed, name)
        return found

    found = ranks.on_rank_zero(reopened)
    if isinstance(found, str):
        return failed(rule, what, found)
    return held(rule, what, found, "what is opened again computes something else")


def across_ranks(
    context: ProofContext, ranks: Ranks, wanted: Mapping[str, Tensor], allowed: Mapping[str, float]
) -> Proof:
    """`gradient-depends-on-ranks`:

    the recipe's engine, with its rows shared out, and with all images on the first rank.
    """
    rule = "gradient-depends-on-ranks"
    found: list[Difference] = []
    what = ""
    for case in ("rows shared out", "images on one rank alone"):
        session, progress = context.open(
            ranks, own_engine=True, micro_batch_size=2, packing="none", micro_batch_tokens=None
        )
        what = (
            f"gradient of a step of {len(context.rows)} rows{_on(session)}, shared out, and with"
            " text alone on all but the first"
        )
        batches = (
            None
            if case == "rows shared out"
            else _shared(context, session, context.with_images(), context.without_images())
        )
        taken = take(session, progress, batches)
        if ranks.rank == 0:
            found += differences(taken.gradients, wanted, allowed, case)
    return (
        held(rule, what, found, "the gradient of a step depends on how many ranks compute it")
        if ranks.rank == 0
        else Proof(rule, what, "not-run")
    )


def _shared(
    context: ProofContext, session: Session, first: list[int], others: list[int] | None = None
) -> list[Batch]:
    """This rank's micro-batches of rows that are given to ranks by hand: the first ones to rank 0,
    and the others to those after it.

    Where no others are named, all ranks share the first ones.
    """
    data = session.engine.data
    if others is None:
        mine = first[data.rank :: data.world]
    elif data.world == 1:
        mine = first + others
    else:
        mine = first if data.rank == 0 else others[data.rank - 1 :: data.world - 1]
    batches = [context.batch(session, mine[place : place + 2]) for place in range(0, len(mine), 2)]
    return batches or [filler(context.batch(session, (others or first)[:1]))]


def _cloned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _on(session: Session) -> str:
    world = session.ranks.world
    return "" if world == 1 else f", on {session.run.engine.kind} with {world} processes"
