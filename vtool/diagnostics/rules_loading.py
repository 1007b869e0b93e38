"""Rules VT4xx about a class that is given weights; rules_folder.py has those about its files.

`bad` and `good` of VT401 to VT412 are a class's `load_weights(self, weights)`.
"""

from vtool.diagnostics.rule import Rule

_COPY = "for name, tensor in weights: self.parameters[name].copy_(tensor)"

RULES = (
    Rule(
        name="stale-reference",
        code="VT401",
        summary="A class uses a tensor after it has asked the loader for more.",
        why=(
            "A loader that uses its buffer again has put other bytes there: the model loads"
            " silently and answers garbage."
        ),
        bad="weights = list(weights)",
        good=_COPY,
        fix=(
            "Copy each tensor into its parameter before asking for the next one, or keep a clone:"
            " kept[name] = tensor.clone()."
        ),
    ),
    Rule(
        name="iterator-not-exhausted",
        code="VT402",
        summary="A class stops before the loader has given everything.",
        why=(
            "What was not asked for is not loaded, and a streaming loader waits for ever or never"
            " frees its buffers."
        ),
        bad="for name, tensor in itertools.islice(weights, 10): …",
        good=_COPY,
        fix="Go through the iterator until it ends; skip by name what is not needed.",
    ),
    Rule(
        name="unwritten-parameter",
        code="VT403",
        summary="No element of a parameter is written, though the checkpoint may have it.",
        why="It keeps what was in the memory: zeros, or anything.",
        bad='if name.endswith("bias"): continue',
        good=_COPY,
        fix=(
            "Map the checkpoint's name to the parameter's, and raise for a parameter that nothing"
            " was loaded into."
        ),
    ),
    Rule(
        name="partly-written-parameter",
        code="VT404",
        summary="Some elements of a parameter are written, and others are not.",
        why=(
            "Half of a fused qkv, or one expert of many, computes with whatever was in the memory,"
            " and nothing else shows it."
        ),
        bad="qkv[:2 * n].copy_(torch.cat([q, k]))",
        good="qkv.copy_(torch.cat([q, k, v]))",
        fix="Load every part of a fused weight, and count the parts.",
    ),
    Rule(
        name="unconsumed-tensor",
        code="VT405",
        summary="A tensor of the checkpoint is never read.",
        why="A weight that was trained is dropped. One renaming has dropped 97 % of a checkpoint.",
        bad="if name not in self.parameters: continue",
        good="if name not in self.parameters: raise KeyError(name)",
        fix=(
            "Map its name, or name it among those that are ignored on purpose (allow=[…] takes"
            " patterns)."
        ),
    ),
    Rule(
        name="retained-memory",
        code="VT406",
        summary="A class holds most of the checkpoint's tensors at once.",
        why=(
            "The host's memory then holds the whole checkpoint in addition to the model, and"
            " loading ends out of memory."
        ),
        bad="weights = dict(weights)",
        good=_COPY,
        fix="Load each tensor as it comes. Keep at most the parts of one fused weight.",
        severity="warning",
    ),
    Rule(
        name="order-dependent",
        code="VT407",
        summary="What is loaded depends on the order in which tensors come.",
        why="Loaders with several threads give them as they finish; shards are cut differently.",
        bad="first = next(iter(weights)); self.scale = first[1]",
        good='if name == "scale": self.scale.copy_(tensor)',
        fix="Decide by the tensor's name only, and combine parts when all of them are there.",
    ),
    Rule(
        name="chunk-dependent",
        code="VT408",
        summary="What is loaded depends on how the tensors are spread over calls of load_weights.",
        why=(
            "Weight synchronization in reinforcement learning sends them in buckets: half of a"
            " fused weight is lost at each border."
        ),
        bad="parts = {}  # of one call: q in this one, k and v in the next",
        good="self.parts  # kept until the last part has come",
        fix=(
            "Write each part into its place in the fused parameter at once, or keep parts beyond"
            " the call."
        ),
    ),
    Rule(
        name="reload-dependent",
        code="VT409",
        summary="Loading a second time does not give what loading once gives.",
        why="An updated policy is a mixture of old and new weights.",
        bad="self.weight.add_(tensor)",
        good="self.weight.copy_(tensor)",
        fix=(
            "Make load_weights a function of what it is given only, buffers included, and change"
            " nothing of that: tensor = tensor + 1, not tensor += 1."
        ),
    ),
    Rule(
        name="aliased-parameter",
        code="VT410",
        summary="A parameter is the loader's own memory, not a copy of it.",
        why="When the loader uses or frees that memory, the model changes.",
        bad="self.weight.data = tensor",
        good="self.weight.copy_(tensor)",
        fix="Copy, or clone: self.weight.data = tensor.clone().",
    ),
    Rule(
        name="lossy-cast",
        code="VT411",
        summary="A tensor loses bits on its way into a parameter.",
        why=(
            "Routers, norms and state-space parameters that were kept in float32 on purpose come"
            " out rounded."
        ),
        bad="self.bias.copy_(tensor)  # float32 into bfloat16",
        good="self.bias = nn.Parameter(torch.empty(n, dtype=torch.float32))",
        fix="Give the parameter the checkpoint's dtype, or convert the checkpoint on purpose.",
        severity="warning",
    ),
    Rule(
        name="nondeterministic",
        code="VT412",
        summary="Loading the same tensors twice, into two new objects, gives different values.",
        why=(
            "Something is left to what was in the memory, or to chance; no two servers have the"
            " same model."
        ),
        bad="self.weight = torch.empty_like(self.weight) + tensor",
        good="self.weight.copy_(tensor)",
        fix="Write every element from the checkpoint, or from a fixed rule.",
    ),
    Rule(
        name="shard-mismatch",
        code="VT430",
        summary="The shards of two ranks of tensor parallelism are not the whole weight together.",
        why=(
            "A part that no rank has loaded is computed with whatever was in the memory, and only"
            " where there is more than one rank."
        ),
        bad="param.copy_(tensor.chunk(ranks)[0])",
        good="param.copy_(tensor.chunk(ranks)[rank])",
        fix="Give each rank its own part: by the parameter's weight_loader, which knows the rank.",
    ),
    Rule(
        name="quantised-load",
        code="VT431",
        summary="Made for quantized weights, the class does not load what it loads otherwise.",
        why=(
            "A scale that is dropped, given to another weight, or kept while its buffer is used"
            " again, multiplies whole rows by something else. A zero point does so by adding."
        ),
        bad=(
            "if name not in params: continue  # q_proj.weight_scale, where the parameter is"
            " qkv_proj.weight_scale"
        ),
        good="weight_loader(params['qkv_proj.weight_scale'], tensor, 'q')",
        fix=(
            "Load scales and zero points as weights are loaded, under the names of the format, into"
            " the same place of a fused parameter; raise for a name that fits nothing."
        ),
    ),
    Rule(
        name="stale-after-processing",
        code="VT432",
        summary=(
            "What the framework makes of loaded weights depends on tensors that the loader has"
            " taken back."
        ),
        why=(
            "Parameters are right after the load; what a module has kept besides them is read when"
            " weights are packed for the kernels."
        ),
        bad="self.scales = tensor  # used in process_weights_after_loading",
        good="self.scales = tensor.clone()",
        fix="Copy what is used after the load.",
    ),
    Rule(
        name="never-loaded",
        code="VT433",
        summary="A tensor is never read, and the parameter that it belongs into never written.",
        why=(
            "The model computes with garbage, or with what an initializer has put there, while the"
            " trained weight lies in the file."
        ),
        bad="experts.gate_up_proj in the file, experts.w13_weight in the class, and no mapping",
        good="weights_mapper = {'experts.gate_up_proj': 'experts.w13_weight'}",
        fix=(
            "Map the tensor's name to the parameter's; a module that was moved or renamed needs a"
            " rule of its own."
        ),
    ),
    Rule(
        name="partly-loaded-tensor",
        code="VT435",
        summary="Some elements of a checkpoint tensor are nowhere in the loaded model.",
        why=(
            "Key heads, rows of an embedding or experts that the config does not know are cut off"
            " silently, and the rest computes something else than what was trained."
        ),
        bad="param.copy_(tensor[: len(param)])",
        good="assert param.shape == tensor.shape; param.copy_(tensor)",
        fix=(
            "Give the config the sizes that the checkpoint has; in a class, raise where a tensor is"
            " larger than its place."
        ),
    ),
    Rule(
        name="computes-differently",
        code="VT434",
        summary="The loaded class computes something else than transformers' class.",
        why=(
            "Every weight may be read, and still two of them be exchanged, or one scaled: the"
            " model loads silently, and answers something else."
        ),
        bad='stacked = [("gate_up_proj", "up_proj", 0), ("gate_up_proj", "gate_proj", 1)]',
        good='stacked = [("gate_up_proj", "gate_proj", 0), ("gate_up_proj", "up_proj", 1)]',
        fix=(
            "Compare module by module with transformers' class, from the first layer on: the first"
            " that differs has a weight in a wrong place, or another constant."
        ),
    ),
    Rule(
        name="stage-mismatch",
        code="VT436",
        summary="Two stages of a pipeline do not hold the whole model together, each layer once.",
        why=(
            "A layer that no stage loads computes with whatever was in the memory; one that both"
            " have is applied twice."
        ),
        bad="if name.startswith('model.layers.0.'): continue  # whichever stage this is",
        good="if is_pp_missing_parameter(name, self): continue",
        fix="Skip what another stage has, by the model's own missing layers, and nothing else.",
    ),
    Rule(
        name="expert-mismatch",
        code="VT437",
        summary="Where two ranks share experts out, one is on no rank, on both, or wrong.",
        why="Tokens that are sent to it get the answer of another expert, or of empty memory.",
        bad="w13.copy_(experts[: len(w13)])  # the first half, on each rank",
        good="w13.copy_(experts[rank * len(w13) : (rank + 1) * len(w13)])",
        fix="Load by the layer's expert map, which says where each expert is on this rank.",
    ),
    Rule(
        name="wrong-place",
        code="VT438",
        summary="Parameters of one shape hold each other's weights, or a square one is transposed.",
        why=(
            "Every tensor is read and every parameter written, so nothing is missing; the model"
            " computes with the wrong one of two weights, or with one the wrong way round."
        ),
        bad='mapping = {"input_layernorm": "norm2", "post_attention_layernorm": "norm1"}',
        good='mapping = {"input_layernorm": "norm1", "post_attention_layernorm": "norm2"}',
        fix="Compare the mapping of names with the module's; exchange the two that are named.",
    ),
    Rule(
        name="unknown-subject",
        code="VT490",
        summary="There is nothing of this name whose loading could be checked.",
        why="Checking something else would say nothing about it.",
        bad="vtool load-check vllm:BertModle",
        good="vtool load-check vllm:BertModel",
        fix=(
            "Name a class as FRAMEWORK:NAME, a function as python:FILE.py:NAME, a folder, or a"
            " recipe of kind load_check."
        ),
    ),
    Rule(
        name="unusable-interpreter",
        code="VT491",
        summary="The interpreter cannot import what the subject needs.",
        why="A class is checked where it is installed; nothing was checked.",
        bad="vtool load-check vllm:BertModel --python /usr/bin/python3",
        good="vtool load-check vllm:BertModel --python .vllm-venv/bin/python",
        fix=(
            "Give the interpreter of an environment that has the framework: --python EXE (`make"
            " vllm-env` builds one for vLLM)."
        ),
    ),
    Rule(
        name="load-failed",
        code="VT492",
        summary="A subject raised, hung, crashed or ran out of memory before it could be judged.",
        why="What did not load has not passed.",
        bad="def factory(): raise RuntimeError",
        good="def factory(): return Model()",
        fix=(
            "Correct what the message names. What was stopped may take longer with"
            " limits.seconds=…, and more with limits.memory_mib=…."
        ),
    ),
)
"""VT401 to VT412 and VT430 to VT438 are asked of classes; the others say why one could not be."""

FRAMEWORK_CLASS_RULES = (
    "shard-mismatch",
    "stale-after-processing",
    "quantised-load",
    "computes-differently",
    "stage-mismatch",
    "expert-mismatch",
)
"""Checks of some frameworks' classes: see `hosts` in `vtool.loading.probe.checks.ClassCheck`."""

CLASS_RULES = tuple(
    rule.name for rule in RULES if rule.code < "VT49" and rule.name not in FRAMEWORK_CLASS_RULES
)
"""The checks of a class, in order."""
