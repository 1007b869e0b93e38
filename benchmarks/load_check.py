"""Benchmark: checking a dozen classes of vLLM, as a multiple of importing vLLM once.

Needs `make vllm-env`.
"""

import time

from vtool.diagnostics.rules_loading import CLASS_RULES
from vtool.loading.probe.facts import Finished, ProbeRequest, Ready
from vtool.loading.worker import VLLM_PYTHON, probe_events

DOZEN = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "MixtralForCausalLM",
    "Gemma2ForCausalLM",
    "GPT2LMHeadModel",
    "BertModel",
    "DeepseekV2ForCausalLM",
    "Mamba2ForCausalLM",
    "Qwen2VLForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "ColPaliForRetrieval",
)
REQUEST = ProbeRequest(
    host="vllm",
    subjects=DOZEN,
    checks=CLASS_RULES,
    sources=("owned", "reusable_buffer", "bucketed", "shuffled"),
    jobs=2,
    seconds=120,
)


def main() -> None:
    """Print the ratio."""
    if not VLLM_PYTHON.exists():
        print("load-check of vLLM: not run, for there is no .vllm-venv (make vllm-env)")
        return
    print(measured(str(VLLM_PYTHON)))


def measured(python: str) -> str:
    """Return the line to print: a ratio within one run, since seconds are the machine's."""
    imported, started, judged, peak = 0.0, 0.0, 0, 0
    for event in probe_events(python, REQUEST):
        if isinstance(event, Ready):
            imported, started = event.seconds, time.monotonic()
        elif isinstance(event, Finished):
            judged += event.facts.status == "judged"
            peak = max(peak, event.peak)
    ratio = (time.monotonic() - started) / imported
    return (
        f"load-check of {judged} of {len(DOZEN)} classes of vLLM: {ratio:.2f} × the import of vLLM,"
        f" at most {peak / 2**30:.2f} GiB a child"
    )


if __name__ == "__main__":
    main()
