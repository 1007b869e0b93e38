"""Defects of a training step: its loss, gradients, trained set, resume and export."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tests.zoo.data import LABEL, relabelled
from tests.zoo.defect import Defect
from tests.zoo.looks import Proved
from vtool.data.chat import IGNORED, Chat

LORA = ("lora={rank: 2, alpha: 8}",)
SPLIT, LOSS, LOST = Proved("gradient-depends-on-split"), Proved("loss-differs"), Proved("rows-lost")
TRAINED, RESUMED = Proved("trained-set-differs"), Proved("resume-differs")
MERGED, EXPORTED = Proved("export-differs", LORA), Proved("export-differs")
TWO = Proved("gradient-depends-on-ranks", ("launch.nproc=2",), world=2)
STEP = "vtool.engines.ddp:DdpEngine.forward_backward"


def mean_of_means(real: Any) -> Any:
    def forward_backward(self: Any, batches: Any, nll: Any, supervised: int, **more: Any) -> Any:
        return real(
            self,
            batches,
            lambda model, batch: nll(model, batch) / max(1, batch.supervised),
            len(batches),
            **more,
        )

    return forward_backward


def not_divided(real: Any) -> Any:
    def forward_backward(self: Any, batches: Any, nll: Any, supervised: int, **more: Any) -> Any:
        return real(
            self,
            batches,
            lambda model, batch: nll(model, batch) / max(1, batch.supervised),
            1,
            **more,
        )

    return forward_backward


def own_tokens(real: Any) -> Any:
    """Each rank divides by its own tokens, and DDP takes the mean."""

    def forward_backward(self: Any, batches: Any, nll: Any, supervised: int, **more: Any) -> Any:
        mine = max(1, sum(batch.supervised for batch in batches))
        return real(self, batches, nll, mine * self.ranks.world, **more)

    return forward_backward


def one_late(real: Any) -> Any:
    """The loss of a token is taken where it is read, and not where it is predicted."""

    def collate(samples: Any, *more: Any) -> Any:
        batch = real(samples, *more)
        return replace(
            batch, columns=(batch.columns + 1).clamp(max=batch.inputs["input_ids"].shape[1] - 1)
        )

    return collate


def counts_rows(real: Any) -> Any:
    """N is how many rows there are."""

    def collate(samples: Any, *more: Any) -> Any:
        batch = real(samples, *more)
        return replace(batch, supervised=len(samples))

    return collate


def everything_learns(real: Any) -> Any:
    """The function that prepares a model for its optimizer switches every gradient on."""
    return lambda module, *more: real(module.requires_grad_(True), *more)


def without_the_projector(real: Any) -> Any:
    return lambda named, *more: real(
        [(name, one) for name, one in named if ".merger." not in name], *more
    )


def untied(real: Any) -> Any:
    """Each weight gets memory of its own, and the head is no longer the embedding."""

    def init(self: Any, module: Any, *more: Any) -> None:
        module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight.detach().clone())
        real(self, module, *more)

    return init


def mean_of_each(real: Any) -> Any:
    def means(*given: Any) -> Any:
        scores = real(*given)
        of_batch = scores[:, 0].sum() / scores[:, 1].sum()
        return np.stack([np.full(len(scores), of_batch), np.ones(len(scores)), scores[:, 2]], 1)

    return means


def always(real: Any) -> Any:
    return lambda session, *, dummy: real(session, dummy=True)


def stays_in_evaluation_mode(_: Any) -> Any:
    @contextmanager
    def evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
        module.eval()
        yield

    return evaluation_mode


def no_moments(real: Any) -> Any:
    return lambda self, model, optimizer: real(self, model, {})


def same_order(_: Any) -> Any:
    return lambda self, step: 0


def drops_what_does_not_fit(real: Any) -> Any:
    """One row a micro-batch has room for is taken, and what would need another one is left."""
    return lambda rows, lengths, rank, world, budget: real(rows, lengths, rank, world, budget)[:1]


def is_the_base(_: Any) -> Any:
    return lambda weight, a, b, scale: weight.detach().clone()


def without_scale(real: Any) -> Any:
    return lambda weight, a, b, scale: real(weight, a, b, 1.0)


def alpha_of_zero(real: Any) -> Any:
    def write_adapter(settings: Any, tensors: Any, base: Any, folder: Any) -> None:
        real(settings, tensors, base, folder)
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_alpha": 0}))

    return write_adapter


def where_it_is_first(chat: Chat, _: Any) -> list[int]:
    """An answer is looked for in the whole chat, and found in the question."""
    labels = list(chat.labels)
    answer = list(chat.ids[chat.prompt : chat.prompt + chat.answer + 1])
    first = next(
        place
        for place in range(len(chat.ids))
        if list(chat.ids[place : place + len(answer)]) == answer
    )
    if first < chat.prompt:
        labels[chat.prompt : chat.prompt + len(answer)] = [IGNORED] * len(answer)
        labels[first : first + len(answer)] = answer
    return labels


def rounded(real: Any) -> Any:
    """The weights go through bfloat16 on their way into the file."""
    return lambda self, *asked: (
        (name, tensor.to(torch.bfloat16).to(tensor.dtype)) for name, tensor in real(self, *asked)
    )


DEFECTS = (
    Defect(
        "answer-found-in-question",
        "ArcticTraining#339",
        "An answer's place is found by its text, which is in the question too.",
        "label-masks-disagree",
        Proved("label-masks-disagree"),
        LABEL,
        relabelled(where_it_is_first),
    ),
    Defect(
        "mean-of-means",
        "transformers#37766",
        "Each micro-batch's mean counts as much as any other, however many tokens it has.",
        "gradient-depends-on-split",
        SPLIT,
        STEP,
        mean_of_means,
    ),
    Defect(
        "accumulation-not-divided",
        "LLaMA-Factory#7443",
        "The losses of micro-batches are added up and not divided by their number.",
        "gradient-depends-on-split",
        SPLIT,
        STEP,
        not_divided,
    ),
    Defect(
        "head-untied",
        "verl#7834",
        "The head is no longer the embedding, which gets one half of its gradient.",
        "gradient-depends-on-split",
        SPLIT,
        "vtool.engines.ddp:DdpEngine.__init__",
        untied,
        mentions="lm_head",
    ),
    Defect(
        "validation-mean-of-means",
        "torchtitan#4167",
        "The validation loss is the mean of its batches' means.",
        "loss-differs",
        LOSS,
        "vtool.evaluation.evaluate:_scores",
        mean_of_each,
        mentions="evaluation",
    ),
    Defect(
        "tokens-of-one-rank",
        "transformers#34242",
        "Each rank divides by its own tokens: a token counts more on a rank with fewer.",
        "gradient-depends-on-ranks",
        TWO,
        STEP,
        own_tokens,
    ),
    Defect(
        "loss-one-late",
        "verl#5362",
        "The loss is one token off what it is the loss of.",
        "loss-differs",
        LOSS,
        "vtool.data.loader:collate",
        one_late,
        mentions="the loss",
    ),
    Defect(
        "rows-counted",
        "prime-rl#102",
        "The loss is divided by the number of rows, and not by that of their supervised tokens.",
        "loss-differs",
        LOSS,
        "vtool.data.loader:collate",
        counts_rows,
    ),
    Defect(
        "frozen-part-trained",
        "sparseml#966",
        "A frozen part has gradients after all, and the optimizer looks at these.",
        "trained-set-differs",
        Proved("trained-set-differs", ("model.freeze.vision=true",)),
        "vtool.training.model_and_engine:build_optimizer",
        everything_learns,
        mentions="does not train",
    ),
    Defect(
        "part-not-in-the-optimizer",
        "mmf#104",
        "A trainable part is in no group of the optimizer.",
        "trained-set-differs",
        TRAINED,
        "vtool.training.optimizer:parameter_groups",
        without_the_projector,
        mentions="merger",
    ),
    Defect(
        "tower-decays-on-text",
        "verl#7833",
        "The dummy's gradients of 0 let AdamW move a tower that no image has come to.",
        "text-only-differs",
        Proved("text-only-differs"),
        "vtool.training.step:micro_batch_nll",
        always,
    ),
    Defect(
        "evaluation-mode-stays",
        "simpletransformers#941",
        "The model stays in evaluation mode, and trains on without dropout.",
        "evaluation-changes-training",
        Proved("evaluation-changes-training"),
        "vtool.engines.common:evaluation_mode",
        stays_in_evaluation_mode,
        mentions="training",
    ),
    Defect(
        "optimizer-not-restored",
        "OpenNMT-py#617",
        "A resumed run begins with an empty optimizer state.",
        "resume-differs",
        RESUMED,
        "vtool.engines.common:TorchEngine.load_state",
        no_moments,
    ),
    Defect(
        "epochs-alike",
        "DALLE-pytorch#230",
        "The epoch never reaches the sampler: each has the order of the first.",
        "rows-lost",
        LOST,
        "vtool.data.plan:Plan.epoch",
        same_order,
    ),
    Defect(
        "packing-drops",
        "trl#4554",
        "What does not fit into a packed row is dropped.",
        "rows-lost",
        Proved("rows-lost", ("data.packing=token_budget", "data.micro_batch_tokens=64")),
        "vtool.data.loader:pack",
        drops_what_does_not_fit,
    ),
    Defect(
        "merged-is-the-base",
        "verl#7285",
        "What is called merged is the base, to the byte.",
        "export-differs",
        MERGED,
        "vtool.models.adapters:merge_adapter",
        is_the_base,
        mentions="what it was before",
    ),
    Defect(
        "merged-without-scale",
        "FastVideo#870",
        "Adapters are merged without alpha / rank.",
        "export-differs",
        MERGED,
        "vtool.models.adapters:merge_adapter",
        without_scale,
    ),
    Defect(
        "alpha-of-zero",
        "verl#5325",
        "The adapter's config says lora_alpha 0: whoever opens it has the base.",
        "export-differs",
        MERGED,
        "vtool.export.huggingface:write_adapter",
        alpha_of_zero,
    ),
    Defect(
        "rounded-on-export",
        "vllm#50761",
        "The weights are rounded to bfloat16 on their way out.",
        "export-differs",
        EXPORTED,
        "vtool.engines.common:TorchEngine.iter_hf_weights",
        rounded,
    ),
)
