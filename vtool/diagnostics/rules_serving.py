"""Rules about serving a model by vLLM (`vtool serve`)."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="vllm-not-found",
        code="VT840",
        summary="No interpreter with vLLM was found, or the one that is named has none.",
        why="Nothing can be served.",
        bad="vtool serve runs/digits, where there is no vLLM",
        good="make vllm-env, and then vtool serve runs/digits",
        fix=(
            "Build an environment with vLLM (make vllm-env), or name the Python of one:"
            " VTOOL_VLLM_PYTHON=…/bin/python, or --python."
        ),
    ),
    Rule(
        name="port-taken",
        code="VT841",
        summary="Another process listens on the address that is to be served, or it is not ours.",
        why="Requests would go to that other server, and its answers be taken for the model's.",
        bad="vtool serve runs/digits, twice",
        good="vtool serve runs/other --port 8001",
        fix="End the other server, or choose another port: --port N.",
    ),
    Rule(
        name="served-without-key",
        code="VT844",
        summary="A server that other machines reach would answer everybody.",
        why="Who reaches the address uses the model, and reads what it was trained on.",
        bad="vtool serve runs/digits --host 0.0.0.0",
        good="VLLM_API_KEY=… vtool serve runs/digits --host 0.0.0.0",
        fix=(
            "Set VLLM_API_KEY, or add -- --api-key KEY; where the network is yours alone, say so:"
            " --without-key."
        ),
    ),
    Rule(
        name="not-servable",
        code="VT842",
        summary="vLLM cannot serve this model as it was trained.",
        why="It would stop at the first request, or leave out what was trained.",
        bad="on a CPU, a model with heads of 16 features",
        good="on a CPU, a model with heads of 32 features",
        fix="Do what the message says; docs/serving.md has vLLM's limits.",
    ),
    Rule(
        name="server-failed",
        code="VT843",
        summary="vLLM's server ended by itself.",
        why="Nothing is served.",
        bad="a folder with half of its weights",
        good="a folder that vtool load-check finds nothing in",
        fix="The message has vLLM's own first error; the whole log: --verbose.",
    ),
)
