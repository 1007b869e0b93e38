"""Train a class of transformers at tiny size by its Trainer, and take the gradient's norm.

A step has eight rows of one length, in as many micro-batches; nothing is clipped, nothing is
dropped out. So the gradient is the same, however many micro-batches there are, if it is divided
as it should be.
"""

import inspect
from collections.abc import Mapping

import torch
import transformers
from torch import Tensor

from vtool.loading.probe.twin import tiny_config, twin_entry

ROWS, LENGTH = 8, 14
SIZES: Mapping[str, Mapping[str, int]] = {
    "XLNetLMHeadModel": {"d_head": 32},
    "Kosmos2ForConditionalGeneration": {"latent_query_num": 4},
}
Row = dict[str, Tensor]


def make(name: str) -> transformers.PreTrainedModel:
    """Return a tiny model of a class, with random weights and without dropout."""
    of = getattr(transformers, name)
    entry = twin_entry(name)
    entry["set"] = {**entry.get("set", {}), **SIZES.get(name, {})}
    config = tiny_config(of.config_class, entry)
    _still(config)
    if config.is_encoder_decoder:
        for each in (config, getattr(config, "decoder", None)):
            if getattr(each, "decoder_start_token_id", None) is None and each is not None:
                each.decoder_start_token_id = 3
    torch.manual_seed(0)
    return of(config).float()


def _still(config: transformers.PretrainedConfig) -> None:
    for key, value in vars(config).items():
        if isinstance(value, transformers.PretrainedConfig):
            _still(value)
        elif ("drop" in key and "path" not in key) or key == "apply_spec_augment":
            setattr(config, key, type(value)(0) if isinstance(value, float | bool) else value)


class Draw:
    """Random tokens and numbers, the same in every process."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def tokens(self, *shape: int) -> Tensor:
        """Return tokens that are no marks of any model."""
        return torch.randint(5, 90, shape, generator=self.generator)

    def floats(self, *shape: int) -> Tensor:
        """Return numbers from 0 to 1."""
        return torch.rand(shape, generator=self.generator)


def rows(model: transformers.PreTrainedModel, number: int) -> list[Row]:
    """Return rows of random tokens, and of whatever else a class is given."""
    draw = Draw()
    return [_row(model, draw) for _ in range(number)]


def _row(model: transformers.PreTrainedModel, draw: Draw) -> Row:
    config = model.config
    labels = draw.tokens(LENGTH)
    end = getattr(config.get_text_config(decoder=True), "eos_token_id", None)
    if isinstance(end, int):
        labels[-1] = end
    given = _of_something_else(model, draw, labels)
    if given:
        return given
    taken = inspect.signature(model.forward).parameters
    if config.is_encoder_decoder:
        given = {"input_ids": draw.tokens(LENGTH), "labels": labels}
    else:
        given = {"input_ids": labels, "labels": labels.clone()}
        given["labels"][:2] = -100
    if "attention_mask" in taken:
        given["attention_mask"] = torch.ones_like(given["input_ids"])
    if "bbox" in taken:
        given["bbox"] = torch.zeros(LENGTH, 4)
    if "image_embeds_position_mask" in taken and "flattened_patches" not in taken:  # Kosmos-2
        given["labels"][: config.latent_query_num] = -100
        given["image_embeds_position_mask"] = (given["labels"] == -100).long()
    required = "pixel_values" in taken and taken["pixel_values"].default is inspect.Parameter.empty
    if required or "image_embeds_position_mask" in given:
        side = config.vision_config.image_size
        given["pixel_values"] = draw.floats(3, side, side)
    return given


def _of_something_else(model: transformers.PreTrainedModel, draw: Draw, labels: Tensor) -> Row:
    """Return the row of a class that is given sound, patches or embeddings; else nothing."""
    config, name = model.config, type(model).__name__
    main = type(model).main_input_name
    if main == "flattened_patches":
        width = config.vision_config.patch_embed_hidden_size + 2
        return {"flattened_patches": draw.floats(6, width), "labels": labels}
    if name.startswith("Musicgen"):
        several = draw.tokens(LENGTH, getattr(config, "decoder", config).num_codebooks)
        if name.endswith("ForCausalLM"):
            return {"input_ids": several.T.contiguous(), "labels": several}
        mask = torch.ones(10).long()
        return {"input_ids": draw.tokens(10), "attention_mask": mask, "labels": several}
    shapes = {
        "Pop2Piano": ("input_features", 10, "d_model"),
        "SeamlessM4TTextToUnit": ("inputs_embeds", LENGTH, "hidden_size"),
        "Speech2Text": ("input_features", 40, "input_feat_per_channel"),
    }
    for begin, (key, length, field) in shapes.items():
        if name.startswith(begin):
            return {key: draw.floats(length, getattr(config, field)), "labels": labels}
    if main == "input_features" and "num_mel_bins" in vars(config):
        shape = (config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": draw.floats(*shape), "labels": labels}
    return {}


def collate(batch: list[Row]) -> Row:
    """Put rows of one length together; a row that has several lines keeps them behind another."""
    return {
        name: torch.cat([row[name] for row in batch])
        if name == "input_ids" and batch[0][name].ndim == 2
        else torch.stack([row[name] for row in batch])
        for name in batch[0]
    }


class Norm(transformers.TrainerCallback):
    """The norm of the gradient of the first step."""

    value: float | None = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):  # type: ignore[no-untyped-def]
        """Take the norm before the optimizer uses the gradient."""
        if self.value is None:
            grads = [one.grad for one in model.parameters() if one.grad is not None]
            self.value = float(torch.stack([grad.double().norm() for grad in grads]).norm())


def train(name: str, micro_batches: int) -> float | None:
    """Train two steps of eight rows each; return the norm of the gradient of the first."""
    model, norm = make(name), Norm()
    transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir="out", max_steps=2, learning_rate=1e-3, report_to=[], save_strategy="no",
            use_cpu=True, disable_tqdm=True, remove_unused_columns=False, max_grad_norm=0,
            per_device_train_batch_size=ROWS // micro_batches,
            gradient_accumulation_steps=micro_batches,
        ),
        train_dataset=rows(model, 2 * ROWS),
        data_collator=collate,
        callbacks=[norm],
    ).train()  # fmt: skip
    return norm.value
