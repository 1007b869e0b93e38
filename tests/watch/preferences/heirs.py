"""Heirs of TRL's trainers, with a loss of their own or with batches that are laid out otherwise."""

import copy
import inspect
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812


def _logps(model: Any, batch: dict[str, Any], rows: Any) -> torch.Tensor:
    """Return the sum of each answer's log-probabilities, of some rows of a batch."""
    ids, mask = batch["input_ids"][rows], batch["attention_mask"][rows]
    learnt = batch["completion_mask"][rows][:, 1:]
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    logp = logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return (logp * learnt).sum(1)


def _by_sides(model: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    half = len(batch["input_ids"]) // 2
    return _logps(model, batch, slice(half)), _logps(model, batch, slice(half, None))


def _in_turn(model: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    logp = _logps(model, batch, slice(None))
    return logp[::2], logp[1::2]


def _margins(
    trainer: Any, model: Any, batch: dict[str, Any], both: Any, reference: Any = None
) -> torch.Tensor:
    chosen, rejected = both(model, batch)
    with torch.no_grad():
        kept = both(reference or trainer.ref_model, batch)
    return (chosen - kept[0]) - (rejected - kept[1])


def a_pass_for_each_side(kind: type) -> type:
    class Sided(kind):  # type: ignore[misc, valid-type]
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            x = _margins(self, model, inputs, _by_sides)
            return -F.logsigmoid(self.beta * x).mean()

    return Sided


def sides_in_turn(kind: type) -> type:
    class InTurn(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            collate = self.data_collator

            def changed(rows: Any) -> dict[str, Any]:
                batch = collate(rows)
                for name in ("input_ids", "attention_mask", "completion_mask"):
                    batch[name] = torch.stack(batch[name].chunk(2), 1).flatten(0, 1)
                return dict(batch)

            self.data_collator = changed

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            x = _margins(self, model, inputs, _in_turn)
            return -F.logsigmoid(self.beta * x).mean()

    return InTurn


def copies_too(kind: type) -> type:
    """Return an heir whose loss has RPO's term; its name does not say that it trains."""

    class Preferring(kind):  # type: ignore[misc, valid-type]
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            loss = super().compute_loss(model, inputs)
            half = len(inputs["input_ids"]) // 2
            tokens = inputs["completion_mask"][:half, 1:].sum(1)
            return loss - (_logps(model, inputs, slice(half)) / tokens).mean()

    return Preferring


def copies_in_one_pass(kind: type) -> type:
    class Copying(kind):  # type: ignore[misc, valid-type]
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            logp = _logps(model, inputs, slice(None)).chunk(2)
            with torch.no_grad():
                kept = _logps(self.ref_model, inputs, slice(None)).chunk(2)
            x = (logp[0] - kept[0]) - (logp[1] - kept[1])
            tokens = inputs["completion_mask"].chunk(2)[0][:, 1:].sum(1)
            return (-F.logsigmoid(self.beta * x) - logp[0] / tokens).mean()

    return Copying


def of_itself(kind: type) -> type:
    """Return an heir that computes its reference by the policy."""

    class Itself(kind):  # type: ignore[misc, valid-type]
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            def both(of: Any, batch: Any) -> Any:
                return _logps(of, batch, slice(None)).chunk(2)

            x = _margins(self, model, inputs, both, reference=model)
            return -F.logsigmoid(self.beta * x).mean()

    return Itself


def of_a_detached_pass(kind: type) -> type:
    """Return an heir that takes the policy's own log-probabilities for the reference's."""

    class Detached(kind):  # type: ignore[misc, valid-type]
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            logp = _logps(model, inputs, slice(None))
            chosen, rejected = (logp - logp.detach()).chunk(2)
            return -F.logsigmoid(self.beta * (chosen - rejected)).mean()

    return Detached


def _edited(kind: type, *changes: tuple[str, str], name: str = "_compute_loss") -> type:
    """Return a trainer whose stock loss has a line changed, as one who edits TRL has it."""
    method = getattr(kind, name)
    source = inspect.cleandoc("\n" + inspect.getsource(method))
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    space = dict(vars(inspect.getmodule(kind)))
    exec(compile(source, "edited", "exec"), space)
    setattr(kind, name, space[name])
    return kind


def beta_is(factor: float) -> Any:
    """Return a change that puts another β into the stock loss."""

    def edit(kind: type) -> type:
        return _edited(kind, ("self.beta * delta_score", f"{factor} * self.beta * delta_score"))

    return edit


def references_crossed(kind: type) -> type:
    return _edited(
        kind,
        (
            "ref_chosen_logps, ref_rejected_logps = ref_logps.chunk(2, dim=0)",
            "ref_rejected_logps, ref_chosen_logps = ref_logps.chunk(2, dim=0)",
        ),
    )


def weights_exchanged(kind: type) -> type:
    return _edited(
        kind,
        (
            "self.desirable_weight * chosen_losses, self.undesirable_weight * rejected_losses",
            "self.undesirable_weight * chosen_losses, self.desirable_weight * rejected_losses",
        ),
    )


def divided_by_tokens(kind: type) -> type:
    return _edited(
        kind,
        (
            "loss += per_sequence_loss.mean() * loss_weight",
            "loss += per_sequence_loss.sum() / shift_completion_mask.sum() * loss_weight",
        ),
    )


def divided_by_pairs(kind: type) -> type:
    return _edited(
        kind,
        (
            "loss += per_sequence_loss.mean() * loss_weight",
            "loss += per_sequence_loss.mean() / len(per_sequence_loss) * loss_weight",
        ),
    )


def means(kind: type) -> type:
    total = "per_token_logps.sum(dim=1)"
    mean = "per_token_logps.sum(dim=1) / shift_completion_mask.sum(dim=1)"
    return _edited(kind, (total, mean))


def ipo_of_sums(kind: type) -> type:
    return _edited(
        kind,
        ("chosen_scores / chosen_mask.sum(dim=1).clamp(min=1.0)", "chosen_scores"),
        ("rejected_scores / rejected_mask.sum(dim=1).clamp(min=1.0)", "rejected_scores"),
    )


def _with_average(kind: type, average: bool) -> type:
    made = kind.get_batch_logps  # type: ignore[attr-defined]

    def logps(*given: Any, average_log_prob: bool = False, **named: Any) -> Any:
        return made(*given, average_log_prob=average, **named)

    kind.get_batch_logps = staticmethod(logps)  # type: ignore[attr-defined]
    return kind


def means_of_cpo(kind: type) -> type:
    return _with_average(kind, average=True)


def sums_of_orpo(kind: type) -> type:
    return _with_average(kind, average=False)


def in_bfloat16(kind: type) -> type:
    class Coarse(kind):  # type: ignore[misc, valid-type]
        def __init__(self, model: Any, **named: Any) -> None:
            super().__init__(model=model.to(torch.bfloat16), **named)
            if getattr(self, "ref_model", None) is not None:
                self.ref_model.to(torch.bfloat16)

    return Coarse


def drops_out(kind: type) -> type:
    class DropsOut(kind):  # type: ignore[misc, valid-type]
        def __init__(self, model: Any, **named: Any) -> None:
            for layer in model.model.layers:
                layer.self_attn.attention_dropout = 0.3
                layer.mlp = torch.nn.Sequential(layer.mlp, torch.nn.Dropout(0.3))
            super().__init__(model=model, **named)

    return DropsOut


def ties(kind: type) -> type:
    class Tied(kind):  # type: ignore[misc, valid-type]
        def __init__(self, model: Any, **named: Any) -> None:
            model.config.tie_word_embeddings = True
            model.lm_head.weight = model.model.embed_tokens.weight
            super().__init__(model=model, ref_model=copy.deepcopy(model), **named)

    return Tied


def beta_of_its_own(kind: type) -> type:
    class Other(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.beta = 0.3

    return Other


def _with_loss(kind: type, of: Any) -> type:
    """Return an heir whose loss is that of two batches of log-probabilities."""

    class Own(kind):  # type: ignore[misc, valid-type]
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            x = _margins(self, model, inputs, of)
            return -F.logsigmoid(self.beta * x).mean()

    return Own


def equal(kind: type) -> type:
    return _with_loss(kind, lambda of, batch: _logps(of, batch, slice(None)).chunk(2))


def swaps(kind: type) -> type:
    return _with_loss(kind, lambda of, batch: _logps(of, batch, slice(None)).chunk(2)[::-1])


def means_in_its_own(kind: type) -> type:
    def both(of: Any, batch: Any) -> Any:
        sizes = batch["completion_mask"][:, 1:].sum(1)
        return (_logps(of, batch, slice(None)) / sizes).chunk(2)

    return _with_loss(kind, both)
