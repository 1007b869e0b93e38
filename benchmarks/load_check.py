"""Benchmark: checking a dozen classes of vLLM, as a multiple of importing vLLM once.

Needs `make vllm-env`.
"""

import time

from vtool.diagnostics.rules_loading import CLASS_RULES
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
REQUEST = {
    "host": "vllm",
    "subjects": DOZEN,
    "match": "*",
    "checks": CLASS_RULES,
    "slots": 1,
    "jobs": 2,
    "seconds": 120,
    "memory": 2**31,
    "sources": ["owned", "reusable_buffer", "bucketed", "shuffled"],
    "checkpoint": None,
}


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
        if event["event"] == "ready":
            imported, started = event["seconds"], time.monotonic()
        elif event["event"] == "subject":
            judged += event["status"] == "judged"
            peak = max(peak, event["peak"])
    ratio = (time.monotonic() - started) / imported
    return (
        f"load-check of {judged} of {len(DOZEN)} classes of vLLM: {ratio:.2f} × the import of vLLM,"
        f" at most {peak / 2**30:.2f} GiB a child"
    )


if __name__ == "__main__":
    main()
