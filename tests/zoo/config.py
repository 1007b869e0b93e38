"""Settings that are lost on their way to the object that should have them."""

from dataclasses import replace
from typing import Any

from tests.zoo.defect import Defect
from tests.zoo.looks import Arrival, instead_of
from vtool.config import schema

RULE = "setting-not-arrived"
FSDP2 = Arrival(("engine=fsdp2", "model.dtype=bfloat16", "engine.reshard_after_forward=false"))
RESHARDS = Arrival(("engine=fsdp2",))
MEGATRON = Arrival(("engine=megatron",))
OPTIM = Arrival(
    (
        "optim.betas=[0.9, 0.95]",
        "optim.eps=1e-6",
        "optim.weight_decay=0.1",
        "train={steps: 12, epochs: null}",
        "run.seed=7",
    )
)
SHARD = "vtool.engines.fsdp2:fully_shard"


def without_betas(real: Any) -> Any:
    class AdamW(real):  # type: ignore[misc]
        def __init__(self, params: Any, betas: Any = None, **more: Any) -> None:
            super().__init__(params, **more)

    return AdamW


def distributed_by_default(real: Any) -> Any:
    """The bridge's own default is true, and what it is handed to update it with lacks the one
    field.
    """
    return lambda wrap, ddp: {**real(wrap, ddp), "use_distributed_optimizer": True}


def distributed(real: Any) -> Any:
    return lambda *args, **more: replace(real(*args, **more), use_distributed_optimizer=True)


def plain_engine(real: Any) -> Any:
    return lambda run, model, ranks, _weights: real(
        run.model_copy(update={"engine": schema.Ddp(kind="ddp")}), model, ranks
    )


def default_engine(real: Any) -> Any:
    return lambda run, model, ranks, _weights: real(
        run.model_copy(update={"engine": schema.Fsdp2(kind="fsdp2")}), model, ranks
    )


def only_the_mesh(real: Any) -> Any:
    return lambda part, **given: real(
        part, **{name: given[name] for name in ("mesh", "reshard_after_forward")}
    )


def one_for_true(real: Any) -> Any:
    return lambda part, **given: real(
        part, **{**given, "reshard_after_forward": given["reshard_after_forward"] and 1}
    )


def nothing(_: Any) -> Any:
    return lambda *_given, **_more: None


def everything_decays(_: Any) -> Any:
    return lambda self, part, dimensions: (1.0, self.weight_decay)


def one_rate(real: Any) -> Any:
    return lambda self, part, dimensions: (1.0, real(self, part, dimensions)[1])


def twice_as_fast(real: Any) -> Any:
    return lambda self, step: real(self, min(2 * step, self.total_steps))


def tower_means_all_of_it(real: Any) -> Any:
    """The projector is a child of the tower, and is frozen with it."""
    return lambda freeze: [
        part for part in real(freeze) if part != "projector" or not freeze.vision
    ]


DEFECTS = (
    Defect(
        "betas-dropped",
        "verl#4214",
        "The optimizer is built without the betas that are asked for.",
        RULE,
        OPTIM,
        "torch.optim:AdamW",
        without_betas,
        mentions="optim.betas",
    ),
    Defect(
        "seed-unread",
        "transformers#31255",
        "A seed is in the recipe, and the order of the rows comes from another one.",
        RULE,
        OPTIM,
        "vtool.training.session:Plan",
        lambda real: lambda rows, size, _seed, parts: real(rows, size, 0, parts),
        mentions="run.seed",
    ),
    Defect(
        "everything-decays",
        "Fast-LLM#545",
        "Weight decay is applied to biases and norms too.",
        RULE,
        OPTIM,
        "vtool.config.schema.training:Optim.treatment",
        everything_decays,
        mentions="optim.weight_decay",
    ),
    Defect(
        "schedule-per-process",
        "transformers#24088",
        "The schedule is stepped once for each process: warm-up and decay are too fast.",
        RULE,
        Arrival(("optim.warmup_steps=4", "train={steps: 12, epochs: null}")),
        "vtool.training.session:Session.rate",
        twice_as_fast,
        mentions="optim.warmup_steps",
    ),
    Defect(
        "one-rate-for-all",
        "LLaVA-NeXT#492",
        "The parts of the model were to learn at rates of their own, and learn at one.",
        RULE,
        Arrival(("optim.groups={vision: {lr: 1e-5}}",)),
        "vtool.config.schema.training:Optim.treatment",
        one_rate,
        mentions="optim.groups.vision.lr",
    ),
    Defect(
        "freeze-without-consumer",
        "LLaMA-Factory#10139",
        "model.freeze is in the recipe, and no line reads it.",
        RULE,
        Arrival(("model.freeze.vision=true",)),
        "vtool.training.model_and_engine:freeze_components",
        nothing,
        mentions="model.freeze.vision",
    ),
    Defect(
        "projector-frozen-too",
        "LLaMA-Factory#6754",
        "The tower is frozen with all that is inside it, and the projector is.",
        RULE,
        Arrival(("model.freeze.vision=true",)),
        "vtool.models.adapters:trained_components",
        tower_means_all_of_it,
        mentions="model.freeze.projector",
    ),
    Defect(
        "pixels-ignored",
        "transformers#41955",
        "max_pixels is taken and not heeded: images have their own size, and far more tokens.",
        RULE,
        Arrival(),
        "vtool.models.processor:with_sizes",
        lambda _: lambda processor, image, known: processor,
        mentions="data.image.max_pixels",
    ),
    Defect(
        "distributed-by-default",
        "verl#5775",
        "The bridge's default for the DDP wins over the setting; the optimizer follows the"
        " setting.",
        RULE,
        MEGATRON,
        "vtool.engines.megatron.ddp_config:live_fields",
        distributed_by_default,
        mentions="engine.wrap_config.use_distributed_optimizer",
    ),
    Defect(
        "distributed-in-the-code",
        "verl#4392",
        "The distributed optimizer is written into the code.",
        RULE,
        MEGATRON,
        "vtool.engines.megatron.engine:live_ddp_config",
        distributed,
        mentions="engine.wrap_config.use_distributed_optimizer",
    ),
    Defect(
        "fsdp-not-applied",
        "verl#5854",
        "The model is not sharded at all: another engine trains it.",
        RULE,
        RESHARDS,
        "vtool.training.session:build_engine",
        plain_engine,
        mentions="engine.kind",
    ),
    Defect(
        "sharding-in-the-code",
        "dinov3#323",
        "Whether weights are freed after the forward pass is written into the code.",
        RULE,
        FSDP2,
        SHARD,
        instead_of(reshard_after_forward=True),
        mentions="engine.reshard_after_forward",
    ),
    Defect(
        "one-for-true",
        "pytorch#149750",
        "reshard_after_forward=1 is a world of one rank, and not true.",
        RULE,
        RESHARDS,
        SHARD,
        one_for_true,
        mentions="engine.reshard_after_forward",
    ),
    Defect(
        "one-setting-forwarded",
        "ms-swift#7962",
        "Of FSDP's settings one is handed on: the compute dtype is not.",
        RULE,
        FSDP2,
        SHARD,
        only_the_mesh,
        mentions="model.dtype",
    ),
    Defect(
        "guard-that-skips",
        "NeMo-RL#3494",
        "A hasattr guard looks for a method by another name, and does nothing.",
        RULE,
        Arrival(("model.gradient_checkpointing=true",)),
        "vtool.models.build:enable_checkpointing",
        nothing,
        mentions="model.gradient_checkpointing",
    ),
    Defect(
        "defaults-for-a-lost-file",
        "accelerate#1115",
        "The engine's settings are in a file that is not found: it gets its defaults.",
        RULE,
        FSDP2,
        "vtool.training.session:build_engine",
        default_engine,
        mentions="engine.reshard_after_forward",
    ),
    Defect(
        "exclude-unread",
        "accelerate#3698",
        "What is to be left out is read, and never handed on.",
        RULE,
        Arrival(("lora={rank: 2, exclude: [q_proj]}",)),
        "vtool.models.adapters:select_layers",
        lambda _: lambda names, *_: list(names),
        mentions="lora.exclude",
    ),
    Defect(
        "attention-of-its-own",
        "xtuner#654",
        "The builder chooses the attention by itself.",
        RULE,
        Arrival(("model.attention=eager",)),
        "transformers:AutoModelForImageTextToText.from_config",
        instead_of(attn_implementation="sdpa"),
        mentions="model.attention",
    ),
)
