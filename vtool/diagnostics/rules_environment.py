"""Rules VT5xx of installed packages and variables: `vtool doctor`, and recipes for an NPU."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="version-mismatch",
        code="VT505",
        summary="An installed package has a version that another one does not go with.",
        why=(
            "torch_npu is built against one release of torch, and the parts of CANN against each"
            " other; vtool is tested with the versions that its metadata asks for."
        ),
        bad="torch 2.12.0 with torch_npu 2.13.0",
        good="torch 2.13.0 with torch_npu 2.13.0",
        fix="Install the version that the message names.",
    ),
    Rule(
        name="torch-does-not-import",
        code="VT506",
        summary="`import torch` fails, crashes or does not come back.",
        why=(
            "Nothing that trains works; the traceback often names another package than the one that"
            " is wrong."
        ),
        bad="torch_npu without CANN: `import torch` loads it by itself, and raises",
        good="CANN's set_env.sh sourced before, or torch_npu uninstalled",
        fix=(
            "Read the last line that the import printed. TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps"
            " torch from loading torch_npu."
        ),
    ),
    Rule(
        name="cann-not-found",
        code="VT507",
        summary="torch_npu is installed, and the CANN toolkit that it needs is not found.",
        why="`import torch` itself then raises, since torch loads torch_npu by itself.",
        bad="pip install torch_npu, and nothing else",
        good="source /usr/local/Ascend/ascend-toolkit/set_env.sh",
        fix=(
            "Install CANN and source its set_env.sh, or uninstall torch_npu."
            " TORCH_DEVICE_BACKEND_AUTOLOAD=0 lets torch be imported."
        ),
    ),
    Rule(
        name="two-accelerators",
        code="VT508",
        summary="torch_npu is installed with a torch that is built for another accelerator.",
        why=(
            "torch_npu raises `Two accelerators cannot be used at the same time` where the other"
            " one's driver is found."
        ),
        bad="torch 2.13.0 for CUDA with torch_npu 2.13.0",
        good="torch 2.13.0+cpu with torch_npu 2.13.0",
        fix=(
            "Install a CPU build of the same torch. On x86, the build that pip takes by default is"
            " one for CUDA."
        ),
    ),
    Rule(
        name="package-missing",
        code="VT509",
        summary="A package that vtool depends on is not installed.",
        why="The command that needs it ends in a traceback.",
        bad="pip uninstall peft",
        good="pip install vtool",
        fix="Run the command in the message.",
    ),
    Rule(
        name="device-list-cut-off",
        code="VT510",
        summary=(
            "ASCEND_RT_VISIBLE_DEVICES is not ids in ascending order with commas between them, or"
            " names one that is not there."
        ),
        why=(
            "CANN reads it up to the first character or id that it does not like, and says nothing:"
            " with `1, 2,3` one NPU is left."
        ),
        bad="ASCEND_RT_VISIBLE_DEVICES='1, 2,3'",
        good="ASCEND_RT_VISIBLE_DEVICES=1,2,3",
        fix="Write ids and commas, ascending, without spaces: 0,1,2.",
    ),
    Rule(
        name="environment-value",
        code="VT511",
        summary="A variable that Ascend's software reads has a value that it does not take.",
        why=("Some raise in the first operation, others are silently replaced by their default."),
        bad="TASK_QUEUE_ENABLE=3",
        good="TASK_QUEUE_ENABLE=1",
        fix="Set one of the values that the message names, or unset the variable.",
    ),
    Rule(
        name="allocator-conflict",
        code="VT512",
        summary=(
            "PYTORCH_NPU_ALLOC_CONF enables expandable segments together with what they exclude."
        ),
        why="torch_npu raises at the first allocation.",
        bad="PYTORCH_NPU_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128",
        good="PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
        fix=(
            "Leave max_split_size_mb and garbage_collection_threshold out, or set"
            " expandable_segments:False."
        ),
    ),
    Rule(
        name="ignored-variable",
        code="VT513",
        summary=(
            "A variable is set that has no effect together with another one, or takes effect with"
            " another value than was set."
        ),
        why="The user who set it believes that it is in force.",
        bad="ASCEND_LAUNCH_BLOCKING=1 TASK_QUEUE_ENABLE=2",
        good="TASK_QUEUE_ENABLE=2",
        fix="Unset one of the two.",
        severity="warning",
    ),
    Rule(
        name="not-on-npu",
        code="VT514",
        summary="A setting asks an Ascend NPU for what it does not compute.",
        why=(
            "Operations raise one by one, or are computed on a core that is a hundred times slower."
        ),
        bad="device.kind=npu model.dtype=float64",
        good="device.kind=npu model.dtype=bfloat16",
        fix="Use bfloat16 or float32.",
    ),
    Rule(
        name="forked-workers",
        code="VT515",
        summary="Processes are forked from one that has opened an NPU.",
        why=(
            "An NPU cannot be opened again in a forked process: code of one's own that uses it in a"
            " worker raises."
        ),
        bad="device.kind=npu data.workers=4",
        good="device.kind=npu data.workers=0",
        fix="Nothing need be done unless a worker uses the NPU.",
        severity="note",
    ),
    Rule(
        name="npu-mask-convention",
        code="VT516",
        summary=(
            "A vision-language model on megatron-core and an NPU: three conventions of attention"
            " masks meet."
        ),
        why=(
            "True means attend in transformers, masked in megatron-core and npu_fusion_attention;"
            " the wrong one trains without an error."
        ),
        bad="device.kind=npu engine=megatron",
        good="device.kind=npu engine=fsdp2",
        fix="Use engine=fsdp2, where the model's own attention makes its mask.",
        severity="note",
    ),
    Rule(
        name="release-untested",
        code="VT518",
        summary="torch, transformers or peft is of a release that vtool was not tested with.",
        why=(
            "What they compute changes between releases, mostly silently: where something has"
            " changed, it shows in a proof, or in nothing."
        ),
        bad="transformers 6.0.0 with a vtool that was tested with 5.5.4 to 5.23.0",
        good="transformers 5.19.0",
        fix=(
            "Prove the recipe with what is installed, `vtool verify RECIPE`, or install a release"
            " that the message names."
        ),
        severity="warning",
    ),
    Rule(
        name="release-broken",
        code="VT519",
        summary="The transformers that is installed computes this model family wrong, or cannot.",
        why="It would train to the end, at a loss that falls, on other numbers than are served.",
        bad="model.family=qwen2_5_vl, with transformers 5.5.3",
        good="model.family=qwen2_5_vl, with transformers 5.5.4",
        fix="Install the release that the message names, or a newer one.",
    ),
    Rule(
        name="package-twice",
        code="VT520",
        summary="A package is installed twice, or its files are not those of its metadata.",
        why=(
            "pip was stopped, or two of its folders are on the path: which files are imported is"
            " chance, and the version that is reported may be the other one's."
        ),
        bad="torch 2.12.0 in the user's site-packages, and torch 2.13.0+cpu in the environment's",
        good="one torch",
        fix="Uninstall it until none is left, and install it once.",
    ),
    Rule(
        name="known-silent-bug",
        code="VT550",
        summary="A package is installed in a release with a known silent bug.",
        why=(
            "Such a run goes to its end, at a loss that falls: the gradient is four times too"
            " large, answers are not learnt to their end, or what is served was not trained."
        ),
        bad="transformers 4.47.1, gradient_accumulation_steps: 4",
        good="transformers 4.48.3",
        fix=(
            "`vtool explain NAME` says when it occurs, what comes of it, and what avoids it;"
            " docs/advisories.md has all of them."
        ),
        severity="warning",
    ),
    Rule(
        name="processor-backend-missing",
        code="VT671",
        summary="Images are to be processed by torchvision, which cannot be imported.",
        why="PIL would resize them to other pixels than those that the model was trained on.",
        bad="a model's folder that was trained with torchvision, where it is not installed",
        good="pip install torchvision, in the build that fits torch",
        fix="Install torchvision, or set data.image.backend=pil and accept other pixels.",
    ),
    Rule(
        name="template-argument-as-text",
        code="VT679",
        summary="An argument of the chat template is a text or null where a boolean is read.",
        why=(
            "A template asks whether it is false, and a text is not: thinking stays on, as it does"
            " with null."
        ),
        bad='data.template_arguments={enable_thinking: "false"}',
        good="data.template_arguments={enable_thinking: false}",
        fix="Write true or false without quotes.",
    ),
    Rule(
        name="weights-left-out",
        code="VT675",
        summary="Weights of the model's folder are neither trained nor exported.",
        why=(
            "transformers' class has no place for them, as for the layers that predict several"
            " tokens at once (MTP): a server that speculates with them does not find them in the"
            " export, or finds those of the base beside weights that have moved."
        ),
        bad="speculative decoding with the mtp.* weights of Qwen3.5, from an export",
        good="an export that is served without them",
        fix="Serve the export without speculative decoding, or with another draft model.",
        severity="note",
    ),
    Rule(
        name="release-unknown",
        code="VT551",
        summary="Which release of a package is installed is not known, or nobody has looked at it.",
        why=(
            "A fork, an editable install or a branch can have a bug, or its fix, whatever its"
            " version says; a newer release may have fixed what is open in an older one."
        ),
        bad="trl 0.24.0+ours",
        good="trl 0.24.0",
        fix="vtool says nothing about it: let `vtool watch` or `vtool load-check` look at a run.",
        severity="note",
    ),
    Rule(
        name="processor-not-understood",
        code="VT682",
        summary="A model's processor encodes images in a way that vtool has not learnt to join.",
        why=(
            "How a type's processor joins rows is found by two calls of it. Where they do not tell,"
            " a batch would be guessed."
        ),
        bad="model.path of a PaliGemma, whose prompts are read both ways",
        good="model.path of a Gemma 3",
        fix=(
            "Install the package that the message names; where tokens and features differ, copy the"
            " folder's configs again; else train elsewhere: `vtool watch` shows what is taught."
        ),
    ),
)
