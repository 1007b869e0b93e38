"""Mistakes in TRL's trainers of preferences, each made in one that is about to train."""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback


@dataclass(frozen=True)
class Setting:
    """A trainer that is about to train."""

    trainer: Any

    def times(self, factor: Callable[[], float]) -> None:
        """Multiply its loss."""
        compute = self.trainer.compute_loss

        def compute_loss(*given: Any, **named: Any) -> Any:
            loss = compute(*given, **named)
            return loss * factor()

        self.trainer.compute_loss = compute_loss

    def collated(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change each batch."""
        collate = self.trainer.data_collator

        def changed(rows: Any) -> dict[str, Any]:
            batch: dict[str, Any] = collate(rows)
            change(batch)
            return batch

        self.trainer.data_collator = changed

    def log_probs(self, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        """Change the log-probabilities that the models give, by where there are labels."""
        for model in (self.trainer.model, self.trainer.ref_model):
            if model is not None:
                self._changed(model, change)

    @staticmethod
    def _changed(model: Any, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        forward = model.forward

        def changed(*given: Any, **named: Any) -> Any:
            output = forward(*given, **named)
            learnt = named["labels"][:, 1:] != -100
            output["log_probs"] = change(output.log_probs, learnt)
            return output

        model.forward = changed

    def after_steps(self, act: Callable[[], None]) -> None:
        """Do something after each step."""

        class Acts(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *given: Any, **named: Any) -> None:
                with torch.no_grad():
                    act()

        self.trainer.add_callback(Acts())


def evaluate(setting: Setting) -> None:
    """Evaluate after each step: this is no mistake."""
    trainer = setting.trainer
    trainer.eval_dataset = trainer.train_dataset.select(range(4))
    setting.after_steps(lambda: trainer.evaluate() and None)


def not_divided(setting: Setting) -> None:
    setting.times(lambda: setting.trainer.args.gradient_accumulation_steps)


def divided_twice(setting: Setting) -> None:
    setting.times(lambda: 1 / setting.trainer.args.gradient_accumulation_steps)


def times_ranks(setting: Setting) -> None:
    setting.times(lambda: setting.trainer.accelerator.num_processes)


def another_beta(setting: Setting) -> None:
    setting.trainer.beta *= 5


def sum_over_pairs(setting: Setting) -> None:
    setting.times(lambda: setting.trainer.args.per_device_train_batch_size)


def swapped(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        for name in ("input_ids", "attention_mask", "completion_mask"):
            chosen, rejected = batch[name].chunk(2)
            batch[name] = torch.cat([rejected, chosen])

    setting.collated(change)


def sometimes_swapped(setting: Setting) -> None:
    seen: list[int] = []

    def change(batch: dict[str, Any]) -> None:
        seen.append(1)
        if len(seen) % 3 == 0:
            for name in ("input_ids", "attention_mask", "completion_mask"):
                chosen, rejected = batch[name].chunk(2)
                batch[name] = torch.cat([rejected, chosen])

    setting.collated(change)


def sometimes_prompts(setting: Setting) -> None:
    seen: list[int] = []

    def change(batch: dict[str, Any]) -> None:
        seen.append(1)
        if len(seen) % 4 == 0:
            batch["completion_mask"] = batch["attention_mask"].clone()

    setting.collated(change)


def beta_in_the_loss(setting: Setting) -> None:
    setting.log_probs(lambda logp, learnt: 1.4 * logp)


def reference_of_others(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        batch["ref_chosen_logps"] = batch["ref_chosen_logps"].roll(1)

    setting.collated(change)


def norms_trained(setting: Setting) -> None:
    for name, p in setting.trainer.model.named_parameters():
        p.requires_grad_(p.requires_grad or "norm" in name)


def all_images_crossed(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        chosen, rejected = batch["pixel_values"].chunk(2)
        batch["pixel_values"] = torch.cat([chosen.roll(1, 0), rejected.roll(1, 0)])

    setting.collated(change)


def negated(setting: Setting) -> None:
    setting.log_probs(lambda logp, learnt: -logp)


def both_up(setting: Setting) -> None:
    def change(logp: torch.Tensor, learnt: torch.Tensor) -> torch.Tensor:
        chosen, rejected = logp.chunk(2)
        return torch.cat([chosen, -rejected])

    setting.log_probs(change)


def one_side_twice(setting: Setting) -> None:
    def change(logp: torch.Tensor, learnt: torch.Tensor) -> torch.Tensor:
        chosen, rejected = logp.chunk(2)
        return torch.cat([chosen, 2 * rejected])

    setting.log_probs(change)


def means(setting: Setting) -> None:
    setting.log_probs(lambda logp, learnt: logp / learnt.sum(1, keepdim=True).clamp_min(1))


def prompts(setting: Setting) -> None:
    setting.collated(lambda batch: batch.update(completion_mask=batch["attention_mask"].clone()))


def some_prompts(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        batch["completion_mask"][::2] = batch["attention_mask"][::2]

    setting.collated(change)


def prompts_of_chosen(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        half = len(batch["input_ids"]) // 2
        batch["completion_mask"][:half] = batch["attention_mask"][:half]

    setting.collated(change)


def labels_of_prompts(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        for side in ("chosen", "rejected"):
            shown = batch[f"{side}_attention_mask"] == 1
            batch[f"{side}_labels"] = batch[f"{side}_input_ids"].where(shown, -100)

    setting.collated(change)


def columns_swapped(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        for name in [n for n in batch if n.startswith("chosen")]:
            other = name.replace("chosen", "rejected")
            batch[name], batch[other] = batch[other], batch[name]

    setting.collated(change)


def padding(setting: Setting) -> None:
    setting.collated(
        lambda batch: batch.update(completion_mask=(batch["completion_mask"].cumsum(1) > 0).long())
    )


def chosen_twice(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        for name in ("input_ids", "attention_mask", "completion_mask"):
            batch[name] = batch[name].chunk(2)[0].repeat(2, 1)

    setting.collated(change)


def images_crossed(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        chosen, rejected = batch["pixel_values"].chunk(2)
        batch["pixel_values"] = torch.cat([chosen, rejected.roll(1, 0)])

    setting.collated(change)


def images_repeated(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        images = batch["pixel_values"].chunk(2)[0]
        batch["pixel_values"] = images.repeat_interleave(2, 0)

    setting.collated(change)


def one_image(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        batch["pixel_values"] = batch["pixel_values"][:1].expand_as(batch["pixel_values"]).clone()

    setting.collated(change)


def other_images(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        chosen, rejected = batch["pixel_values"].chunk(2)
        batch["pixel_values"] = torch.cat([chosen, torch.zeros_like(rejected)])

    setting.collated(change)


def labels_swapped(setting: Setting) -> None:
    def change(batch: dict[str, Any]) -> None:
        label = batch["label"]
        batch["label"] = ~label if isinstance(label, torch.Tensor) else [not one for one in label]

    setting.collated(change)


def simpo_of_sums(setting: Setting) -> None:
    trainer = setting.trainer
    kept = type(trainer).get_batch_logps

    def sums(*given: Any, average_log_prob: bool = False, **named: Any) -> Any:
        return kept(*given, average_log_prob=False, **named)

    trainer.get_batch_logps = sums


def itself(setting: Setting) -> None:
    setting.trainer.ref_model = setting.trainer.model


def shares(setting: Setting) -> None:
    trainer = setting.trainer
    trainer.ref_model.model.layers[0] = trainer.model.model.layers[0]


def _blend(setting: Setting, share: float) -> None:
    trainer = setting.trainer
    own = zip(trainer.ref_model.parameters(), trainer.model.parameters(), strict=True)
    for theirs, ours in own:
        theirs.lerp_(ours, share)


def copied_anew(setting: Setting) -> None:
    def act() -> None:
        setting.trainer.ref_model.load_state_dict(setting.trainer.model.state_dict())

    setting.after_steps(act)


def trained(setting: Setting) -> None:
    trainer = setting.trainer
    trainer.create_optimizer()
    trainer.ref_model.requires_grad_(True)
    trainer.optimizer.add_param_group({"params": list(trainer.ref_model.parameters())})
    setting.after_steps(lambda: _blend(setting, 0.5))


def drifts(setting: Setting) -> None:
    setting.after_steps(lambda: _blend(setting, 0.3))


def own_logps(setting: Setting) -> None:
    trainer = setting.trainer
    trainer.ref_model.forward = trainer.model.__call__


def adapters_on(setting: Setting) -> None:
    module: Any = sys.modules[type(setting.trainer).__module__]
    module.use_adapter = lambda *given, **named: contextlib.nullcontext()
