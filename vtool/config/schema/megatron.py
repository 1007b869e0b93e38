"""Settings `engine` of kind `megatron`: megatron-core, its parallel sizes, and its own DDP."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vtool.config.schema.base import ReadBack, Settings

_BY_DDP = ReadBack("vtool.engines.megatron.observe_megatron:observe_megatron_ddp")


class Parallel(Settings):
    """The spread of a model over the processes of a run.

    The processes that are left over are data parallel.
    """

    arrival: ClassVar = ReadBack("vtool.engines.megatron.observe_megatron:observe_process_groups")
    tensor: int = Field(default=1, ge=1)
    """Processes over which each matrix of the language model is spread.

    It divides the heads, and the key and value heads.
    """
    pipeline: int = Field(default=1, ge=1)
    """Stages that a row goes through one after the other, each with as many layers.

    It divides the layers; the tower is on the first.
    """
    context: int = Field(default=1, ge=1)
    """Processes over which the tokens of a row are spread, in attention too.

    More than 1 needs Transformer Engine, and so CUDA.
    """
    sequence: bool = False
    """Spread the tokens over the tensor parallel processes where matrices are whole: less memory
    for activations.
    """

    @property
    def sharing(self) -> int:
        """Processes that compute the same rows."""
        return self.tensor * self.pipeline * self.context


class WrapConfig(Settings):
    """The wrapping of a model, by the names of verl's `McoreModuleWrapperConfig`."""

    arrival: ClassVar = _BY_DDP
    wrap_with_ddp: bool = True
    """Wrap it with megatron-core's DDP, from whose buffers its optimizers take the gradients."""
    use_distributed_optimizer: bool = False
    """Each data parallel process keeps its share of the optimizer's state, and gradients are
    reduce-scattered.
    """
    share_embeddings_and_output_weights: bool | None = None
    """Use one matrix for the embedding and the head.

    Default: what the model's own config says; anything else is an error.
    """
    is_value_model: bool = False
    """A head with one output: not trained here."""
    use_layer_wise_distributed_optimizer: bool = False
    """Share the optimizer's state out by layers: not built here."""
    use_megatron_fsdp: bool = False
    """Megatron FSDP in the place of its DDP: not built here."""


class DdpConfig(Settings):
    """Fields of megatron-core 0.16's `DistributedDataParallelConfig`.

    What is left out follows from the other settings.
    """

    arrival: ClassVar = _BY_DDP
    grad_reduce_in_fp32: bool | None = None
    """Reduce gradients in float32. Default: yes."""
    overlap_grad_reduce: bool | None = None
    """Reduce the language model's gradients during the backward pass.

    The vision tower's are reduced after it.
    """
    overlap_param_gather: bool | None = None
    """Gather the language model's weights during the forward pass."""
    align_param_gather: bool | None = None
    """All pipeline stages gather weights at the same time."""
    use_distributed_optimizer: bool | None = None
    """Reduce-scatter gradients.

    Default, and only value: that of `wrap_config.use_distributed_optimizer`.
    """
    num_distributed_optimizer_instances: int | None = Field(default=None, ge=1)
    """Groups of data parallel processes that each share the optimizer's state out among themselves.
    """
    check_for_nan_in_grad: bool | None = None
    """Stop at a gradient that is not a number, before it is reduced."""
    check_for_large_grads: bool | None = None
    """Stop at an unexpectedly large gradient, before it is reduced."""
    bucket_size: int | None = Field(default=None, ge=1)
    """Parameters that are reduced together."""
    pad_buckets_for_high_nccl_busbw: bool | None = None
    """Pad buckets to a multiple of 2¹⁶, for NCCL's sake."""
    reduce_scatter_with_fp32_accumulation: bool | None = None
    """Send gradients in their own dtype, and add them up in float32."""
    average_in_collective: bool | None = None
    """The reduction divides by the data parallel processes itself."""
    fp8_param_gather: bool | None = None
    """Gather weights in 8 bits."""
    reuse_grad_buf_for_mxfp8_param_ag: bool | None = None
    """Gather 8-bit weights through the gradients' buffer."""
    use_megatron_fsdp: bool | None = None
    """Megatron FSDP; the DDP of this engine ignores it."""
    use_custom_fsdp: bool | None = None
    """The old name of `use_megatron_fsdp`."""
    data_parallel_sharding_strategy: str | None = None
    """Read by Megatron FSDP only."""
    outer_dp_sharding_strategy: str | None = None
    """Read by Megatron FSDP only."""
    gradient_reduce_div_fusion: bool | None = None
    """Read by Megatron FSDP only."""
    suggested_communication_unit_size: int | None = Field(default=None, ge=1)
    """Read by Megatron FSDP only."""
    preserve_fp32_weights: bool | None = None
    """Read by Megatron FSDP only."""
    keep_fp8_transpose_cache: bool | None = None
    """Read by Megatron FSDP only."""
    nccl_ub: bool | None = None
    """Buffers in memory that NCCL knows."""
    fsdp_double_buffer: bool | None = None
    """Read by Megatron FSDP only."""
    disable_symmetric_registration: bool | None = None
    """With `nccl_ub`: register buffers the older way."""
    fsdp_manual_registration: bool | None = None
    """Read by Megatron FSDP only."""
    delay_wgrad_compute: bool | None = None
    """Compute the gradients of weights after those of activations; Transformer Engine only."""


class TransformerConfig(Settings):
    """Fields of megatron-core's `TransformerConfig` that change how, not what, is computed.

    Each needs kernels for CUDA.
    """

    arrival: ClassVar = ReadBack("vtool.engines.megatron.observe_megatron:observe_language")
    masked_softmax_fusion: bool = False
    """Mask and softmax in one kernel."""
    bias_activation_fusion: bool = False
    """Bias and activation in one kernel."""
    bias_dropout_fusion: bool = False
    """Bias, dropout and residual in one kernel."""
    gradient_accumulation_fusion: bool = False
    """Add a weight's gradient to its buffer in the kernel that computes it; needs apex."""
    apply_rope_fusion: bool = False
    """Rotary positions in one kernel."""


class Megatron(Settings):
    """Megatron-core: its tensor, sequence, pipeline and data parallelism, DDP and optimizers."""

    arrival: ClassVar = ReadBack("vtool.engines.megatron.observe_megatron:observe_bridge")
    kind: Annotated[Literal["megatron"], ReadBack("vtool.engines.contract:Engine.observe")]
    """The engine that trains."""
    parallel: Parallel = Parallel()
    bridge: Literal["native", "mbridge"] = "native"
    """The builder and wrapper of the language model: vtool itself, or mbridge's `get_model`.

    mbridge's is the one that verl uses. It needs Transformer Engine.
    """
    wrap_config: WrapConfig = WrapConfig()
    ddp_config: DdpConfig = DdpConfig()
    transformer_config: TransformerConfig = TransformerConfig()
