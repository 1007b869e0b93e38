"""The one function that makes megatron-core's DDP config, whatever builds the model (verl#5775)."""

from typing import Any

from vtool.config.megatron_ddp import live_fields, problems
from vtool.config.schema.megatron import DdpConfig, WrapConfig
from vtool.diagnostics import Diagnostic
from vtool.engines.ranks import SharedFindings


def live_ddp_config(wrap: WrapConfig, ddp: DdpConfig, *, dtype: str, cpu: bool) -> Any:
    """Build megatron-core's `DistributedDataParallelConfig` of the settings.

    Raises:
        Findings: `megatron-ddp-conflict`, for each value that cannot take effect.
    """
    from megatron.core.distributed import DistributedDataParallelConfig

    if found := problems(wrap, ddp, dtype=dtype, cpu=cpu):
        raise SharedFindings(
            [
                Diagnostic("megatron-ddp-conflict", one.message, one.help, one.setting)
                for one in found
            ]
        )
    return DistributedDataParallelConfig(**live_fields(wrap, ddp))
