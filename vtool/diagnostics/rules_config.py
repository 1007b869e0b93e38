"""Rules VT0xx, VT1xx and VT2xx: reading a recipe, its schema, and settings that contradict each
other.

`bad` and `good` of VT1xx and VT2xx are what is typed after `vtool validate-config digits`; the
tests type them.
"""

from vtool.diagnostics.rule import Rule

_CANNOT_READ = (
    Rule(
        name="unknown-recipe",
        code="VT001",
        summary="There is no recipe of this name, and no such file.",
        why="Falling back to another recipe would train something else.",
        bad="vtool validate-config digts",
        good="vtool validate-config digits",
        fix=(
            "Give the name of a shipped recipe (`vtool explain` lists them), or the path of a YAML"
            " file."
        ),
    ),
    Rule(
        name="bad-yaml",
        code="VT002",
        summary="A recipe is not YAML, has a key twice, or is not a mapping of settings.",
        why="Of a key that is there twice, most YAML readers take the last one and say nothing.",
        bad="train: {steps: 500, steps: 100}",
        good="train: {steps: 500}",
        fix=(
            "Mend the line. Settings are `key: value`, indented with spaces, and each key is there"
            " once."
        ),
    ),
    Rule(
        name="bad-override",
        code="VT003",
        summary="An argument after the recipe is not KEY=VALUE.",
        why="Half an argument that is guessed at is a setting that nobody asked for.",
        bad="train.steps",
        good="train.steps=500",
        fix=(
            "Write KEY=VALUE. Quote a value with special characters, for vtool and for the shell:"
            " \"run.dir='runs/a,b'\"."
        ),
    ),
    Rule(
        name="unreadable-file",
        code="VT004",
        summary="A recipe's file is there but cannot be read as text.",
        why="There is nothing to check.",
        bad="vtool validate-config ./recipes, which is a folder",
        good="vtool validate-config ./recipes/digits.yaml",
        fix="Give a YAML file in UTF-8 that you may read.",
    ),
    Rule(
        name="unknown-group-choice",
        code="VT005",
        summary="A group of settings has no file of this name in configs/.",
        why="Without the file, the recipe has none of its settings.",
        bad="optim=adam",
        good="optim=adamw",
        fix=(
            "Name one of the files of the group, without .yaml; to set one value of it, write"
            " GROUP.KEY=VALUE."
        ),
    ),
    Rule(
        name="broken-reference",
        code="VT006",
        summary="A value refers, as ${key}, to something that is not there, or to itself.",
        why="The value cannot be known.",
        bad="'run.name=${optim.nmae}'",
        good="'run.name=${optim.name}'",
        fix=(
            "Refer to a setting of the recipe by its full dotted name, or to an environment"
            " variable that is set: ${oc.env:NAME}."
        ),
    ),
    Rule(
        name="bad-defaults-list",
        code="VT007",
        summary=(
            "The defaults list of a recipe, which names what the recipe is composed of, cannot be"
            " followed."
        ),
        why="What is left out of a composition leaves no trace in its result.",
        bad="defaults: {optim: adamw}",
        good="defaults: [/optim: adamw, _self_]",
        fix=(
            "Write a list: the name of a recipe to extend, `/GROUP: FILE` for a file of configs/,"
            " `_self_` for the recipe's own settings."
        ),
    ),
)

_SCHEMA = (
    Rule(
        name="unknown-key",
        code="VT101",
        summary="There is no setting of this name.",
        why=(
            "A misspelt setting that is taken silently leaves its default in force. `+key=value`"
            " does not get past this either."
        ),
        bad="optim.learning_rate=1e-3",
        good="optim.lr=1e-3",
        fix=(
            "Use the suggested name. `vtool explain SETTING` shows what a setting, or a whole"
            " group, takes."
        ),
    ),
    Rule(
        name="missing-key",
        code="VT102",
        summary="A setting that has no default is not given.",
        why="Any value that is guessed would be wrong for someone.",
        bad="optim.lr=???",
        good="optim.lr=1e-3",
        fix="Set it in the recipe, or as KEY=VALUE.",
    ),
    Rule(
        name="unknown-choice",
        code="VT103",
        summary="A setting takes one of a few words, and this is none of them.",
        why="A word that is not understood cannot be obeyed.",
        bad="model.attention=flash",
        good="model.attention=sdpa",
        fix="Use one of the words that the message lists.",
    ),
    Rule(
        name="wrong-type",
        code="VT104",
        summary="A value is not of the setting's type.",
        why=(
            "Nothing is converted: `yes` as a number, or 0.5 steps, would be taken for something"
            " else."
        ),
        bad="train.steps=many",
        good="train.steps=500",
        fix=(
            "Give a value of the type that the message names. A text that looks like a number needs"
            " quotes: \"run.name='7'\"."
        ),
    ),
    Rule(
        name="out-of-range",
        code="VT105",
        summary="A value has the right type but is not among those that make sense.",
        why="A negative learning rate or a batch of 0 rows trains nothing, or worse.",
        bad="optim.lr=-1e-3",
        good="optim.lr=1e-3",
        fix="Give a value within the bounds that the message names.",
    ),
)

_CROSS_FIELD = (
    Rule(
        name="steps-or-epochs",
        code="VT201",
        summary="Of train.steps and train.epochs, both are given, or neither.",
        why="With both, one would be ignored; with neither, there is no end and no schedule.",
        bad="train.epochs=3",
        good="train.steps=null train.epochs=3",
        fix="Set one, and set the other to null.",
    ),
    Rule(
        name="conflicting-model-source",
        code="VT202",
        summary=(
            "model.init, model.path and model.size do not say one thing about where the weights"
            " come from."
        ),
        why=(
            "A run that means to fine-tune and starts from random weights looks like one that"
            " learns badly."
        ),
        bad="model.init=pretrained",
        good="model.init=random",
        fix="`pretrained` needs model.path, and `random` needs model.size instead of it.",
    ),
    Rule(
        name="micro-batch-larger-than-share",
        code="VT203",
        summary="data.micro_batch_size is more than the rows of a step that one process gets.",
        why=(
            "The forward pass never has that many rows: memory and speed are not those of the"
            " setting."
        ),
        bad="data.global_batch_size=32 data.micro_batch_size=64",
        good="data.global_batch_size=64 data.micro_batch_size=64",
        fix=(
            "Lower data.micro_batch_size to data.global_batch_size divided by the processes, or"
            " raise data.global_batch_size."
        ),
    ),
    Rule(
        name="warmup-too-long",
        code="VT204",
        summary="optim.warmup_steps leaves no step to train at the learning rate that is set.",
        why=(
            "The run ends before optim.lr is reached, and looks like one with a learning rate too"
            " low."
        ),
        bad="train.steps=40 optim.warmup_steps=50",
        good="train.steps=40 optim.warmup_steps=4",
        fix="Lower optim.warmup_steps below train.steps, or train longer.",
    ),
    Rule(
        name="max-length-missing",
        code="VT205",
        summary=(
            "data.on_overlong says what to do with rows that are too long, but data.max_length does"
            " not say what too long is."
        ),
        why="No row would ever be dropped or truncated.",
        bad="data.on_overlong=truncate",
        good="data.on_overlong=truncate data.max_length=256",
        fix="Set data.max_length, or leave data.on_overlong out.",
    ),
    Rule(
        name="pixel-bounds",
        code="VT206",
        summary=(
            "data.image.min_pixels is above data.image.max_pixels, or that is smaller than one"
            " image token; or so those of data.video."
        ),
        why=(
            "No image size satisfies both; an image is never smaller than one token, so that the"
            " bound would be passed over in silence."
        ),
        bad="data.image.min_pixels=3136 data.image.max_pixels=784",
        good="data.image.min_pixels=784 data.image.max_pixels=3136",
        fix=(
            "Swap them, or leave one out. A token is 28 × 28 pixels in Qwen2-VL, Qwen2.5-VL and"
            " GLM-4V, 32 × 32 in Qwen3-VL and Qwen3.5."
        ),
    ),
    Rule(
        name="path-not-found",
        code="VT207",
        summary="A file or folder that a setting names is not there.",
        why="The run would stop once it gets there, after the model is loaded.",
        bad="'data.train=[{format: messages, path: rows/trian.jsonl}]'",
        good="'data.train=[{format: messages, path: rows/train.jsonl}]'",
        fix="Check the spelling. A relative path starts at the folder that vtool is run in.",
    ),
    Rule(
        name="launch-conflict",
        code="VT208",
        summary=(
            "launch.nproc is not the number of processes that an outer torchrun started, or what"
            " started several is not torchrun."
        ),
        why=(
            "One of the two would be ignored, and with it the speed that was asked for: each"
            " process would train the whole run by itself."
        ),
        bad="torchrun --nproc-per-node 4 -m vtool train sft digits launch.nproc=2",
        good="torchrun --nproc-per-node 4 -m vtool train sft digits",
        fix=(
            "Leave launch.nproc out under torchrun, or let vtool start the processes: vtool train"
            " sft digits launch.nproc=4. Under mpirun, or an operator that sets RANK and"
            " WORLD_SIZE, start one torchrun on each machine."
        ),
    ),
    Rule(
        name="not-a-model-folder",
        code="VT209",
        summary=(
            "model.path is no folder of a model of model.family, or of one without a vision part."
        ),
        why="The wrong architecture loads with weights missing, or not at all.",
        bad="model.path=rows",
        good="model.path=models/qwen",
        fix=(
            "Give a folder with a config.json whose model_type is model.family: one that"
            " save_pretrained or `vtool export` wrote."
        ),
    ),
    Rule(
        name="evaluation-without-data",
        code="VT210",
        summary="evaluation.every_steps is set, but data.validation is empty.",
        why="There would be no validation loss, though it was asked for.",
        bad="evaluation.every_steps=100 data.validation=[]",
        good="evaluation.every_steps=null data.validation=[]",
        fix="Give data.validation, or set evaluation.every_steps to null.",
    ),
    Rule(
        name="ignored-setting",
        code="VT211",
        summary="A setting is given that has no effect beside the others.",
        why="Whoever reads the recipe believes that it is in force.",
        bad="model.path=models/qwen model.size=tiny",
        good="model.path=models/qwen model.size=null",
        fix="Leave it out, or set it to null.",
        severity="note",
    ),
    Rule(
        name="image-longer-than-row",
        code="VT219",
        summary=(
            "With the bounds of data.image or data.video, an image or a video has as many tokens as"
            " a whole row may have."
        ),
        why=(
            "There would be no room for a question and an answer: rows with such images or videos"
            " are refused, dropped, or lose their end."
        ),
        bad="data.max_length=64 data.image.min_pixels=802816 data.image.max_pixels=1003520",
        good="data.max_length=2048 data.image.min_pixels=802816 data.image.max_pixels=1003520",
        fix="Lower data.image.max_pixels or data.video.max_pixels, or raise data.max_length.",
    ),
    Rule(
        name="half-an-image",
        code="VT212",
        summary=(
            "data.drop_model_inputs names one of pixel_values and image_grid_thw, or of"
            " pixel_values_videos and video_grid_thw, and not the other."
        ),
        why=(
            "The model cannot use pixels without their grid: it raises in the first step. A grid"
            " without pixels gives places to nothing."
        ),
        bad="data.drop_model_inputs=[pixel_values]",
        good="data.drop_model_inputs=[pixel_values,image_grid_thw]",
        fix="Name both, to train without images, or neither.",
    ),
    Rule(
        name="token-types-left-out",
        code="VT216",
        summary=(
            "data.drop_model_inputs names mm_token_type_ids, while images are handed to the model."
        ),
        why=(
            "It tells the tokens of images from text, and M-RoPE counts these otherwise. Without it"
            " most models of transformers raise at the first image. Qwen2.5-VL (a warning) counts"
            " on as in text, the loss falls, and whoever uses the trained model gives it others"
            " (LightX2V#1416)."
        ),
        bad="model.family=qwen3_vl data.drop_model_inputs=[mm_token_type_ids]",
        good="data.drop_model_inputs=[]",
        fix=(
            "Leave it out of data.drop_model_inputs; or name pixel_values and image_grid_thw too,"
            " to train without images."
        ),
    ),
    Rule(
        name="nothing-to-train",
        code="VT213",
        summary="model.freeze names every part of the model.",
        why="The run would cost its time, and change nothing.",
        bad="'model.freeze={vision: true, projector: true, language: true}'",
        good="'model.freeze={vision: true, projector: true}'",
        fix="Leave out the part that is to learn.",
    ),
    Rule(
        name="lora-target",
        code="VT214",
        summary=(
            "A name in lora.targets or lora.exclude is the end of no linear layer's name, or no"
            " layer is left that gets an adapter."
        ),
        why=(
            "The layers that were meant would be left as they are, and the run would look like one"
            " that learns badly."
        ),
        bad="'lora={targets: [query_proj]}'",
        good="'lora={targets: [q_proj, v_proj]}'",
        fix=(
            "Name the ends of linear layers' names: q_proj, k_proj, v_proj, o_proj, gate_proj,"
            " up_proj, down_proj; in the tower attn.qkv and attn.proj; in the projector"
            " merger.mlp.0 and merger.mlp.2. The head and the embedding get no adapter."
        ),
    ),
    Rule(
        name="patch-mismatch",
        code="VT215",
        summary=(
            "The image processor in model.path cuts images into other patches than the model's"
            " vision tower takes."
        ),
        why=(
            "Where the numbers happen to divide, pixels end up in other places and nothing fails;"
            " else the first step does, or an image has another number of tokens than of features."
        ),
        bad="model.path=models/mixed",
        good="model.path=models/qwen",
        fix=(
            "Take preprocessor_config.json and config.json from one folder. patch_size, merge_size"
            " and temporal_patch_size are those of vision_config: patch_size, spatial_merge_size,"
            " temporal_patch_size."
        ),
    ),
    Rule(
        name="packing-budget",
        code="VT218",
        summary=(
            "data.packing and data.micro_batch_tokens do not go together, or a row is longer than"
            " they allow."
        ),
        why=(
            "Rows that are packed are cut into forward passes by their tokens; a row that fits into"
            " none could not be trained on."
        ),
        bad="data.packing=token_budget",
        good="data.packing=token_budget data.micro_batch_tokens=2048",
        fix="Give both, or neither; the budget is at least the longest row's tokens.",
    ),
    Rule(
        name="megatron-ddp-conflict",
        code="VT220",
        summary=(
            "A value of engine.wrap_config or engine.ddp_config contradicts another one, or would"
            " have no effect beside it."
        ),
        why=(
            "Megatron-core ignores some of these without a word; with a distributed optimizer in"
            " its DDP and a plain one behind it, the weights of the ranks drift apart and no error"
            " is raised (verl#5775)."
        ),
        bad="engine=megatron engine.ddp_config.use_distributed_optimizer=true",
        good="engine=megatron engine.wrap_config.use_distributed_optimizer=true",
        fix="Say it in one place. What follows from another setting is filled in.",
    ),
    Rule(
        name="parallel-sizes",
        code="VT221",
        summary=(
            "engine.parallel.tensor, pipeline and context do not divide the processes of the run,"
            " or the model's heads or layers."
        ),
        why="Each process must get an equal share; what is left over would belong to none.",
        bad="engine=megatron engine.parallel.tensor=3 launch.nproc=2",
        good="engine=megatron engine.parallel.tensor=2 launch.nproc=2",
        fix=(
            "Choose sizes whose product divides the processes: tensor divides heads and key and"
            " value heads, pipeline the layers."
        ),
    ),
    Rule(
        name="not-built-on-engine",
        code="VT222",
        summary="A setting asks for what the engine does not do, or not on this device.",
        why="It would be ignored, or fail in the first step.",
        bad="engine=megatron model.dtype=float64",
        good="engine=megatron model.dtype=float32",
        fix="Leave the setting out, or use another engine or device.",
    ),
    Rule(
        name="setting-without-reader",
        code="VT230",
        summary=(
            "A setting of another trainer's recipe is read by no line of that trainer, or has been"
            " taken away."
        ),
        why=(
            "Whoever reads the recipe believes that it is in force: verl's trainer.seed, or its"
            " freeze_vision_tower."
        ),
        bad="trainer: {seed: 1}",
        good="trainer: {test_freq: 100}",
        fix="Leave it out there; the finding says what takes its place.",
        severity="warning",
    ),
    Rule(
        name="setting-dropped",
        code="VT231",
        summary=(
            "A setting of another trainer's recipe is lost on its way to the object that would act"
            " on it."
        ),
        why=(
            "Before verl#5775 a plain optimizer met a DDP that shares gradients out; ranks drift"
            " apart by 9 % in five steps, and the first loss is the same."
        ),
        bad="engine: {use_distributed_optimizer: false}",
        good=(
            "engine: {use_distributed_optimizer: false, override_ddp_config:"
            " {use_distributed_optimizer: false}}"
        ),
        fix="Write it where it arrives, too.",
        severity="warning",
    ),
    Rule(
        name="no-counterpart",
        code="VT232",
        summary="A setting of another trainer's recipe has no counterpart here.",
        why="Nothing can be said of it: neither that it is right, nor that it is wrong.",
        bad="trainer: {logger: [wandb]}",
        good="trainer: {save_freq: 100}",
        fix="Look it up in that trainer's documentation.",
        severity="note",
    ),
    Rule(
        name="numa-unbound",
        code="VT223",
        summary="device.numa is set where nothing binds a process to the cores near its device.",
        why=(
            "It would be ignored: torchrun binds the processes that it starts itself, torch_npu"
            " each of its own by CPU_AFFINITY_CONF."
        ),
        bad="device.kind=cpu device.numa=node launch.nproc=2",
        good="device.kind=cuda device.numa=node launch.nproc=2",
        fix=(
            "Leave it out on a CPU and with one process; under a torchrun of your own, give it"
            " --numa-binding."
        ),
    ),
    Rule(
        name="not-in-megatron-core",
        code="VT224",
        summary="A field of engine.ddp_config is not one of the megatron-core that is installed.",
        why=(
            "It would fail when the model is wrapped; by a bridge that looks with hasattr, it would"
            " be left out without a word."
        ),
        bad=(
            "engine=megatron engine.ddp_config.preserve_fp32_weights=true, beside megatron-core"
            " 0.17"
        ),
        good="engine=megatron, beside megatron-core 0.16.1",
        fix=(
            "Leave the field out, or install the release that vtool is tested with: pip install"
            " 'vtool[megatron]'."
        ),
    ),
    Rule(
        name="needs-transformer-engine",
        code="VT225",
        summary=(
            "engine.parallel.context above 1, or engine.bridge=mbridge, without Transformer Engine,"
            " and so also on a CPU."
        ),
        why=(
            "Attention over several processes, and all of mbridge's layers, are Transformer"
            " Engine's: nothing else can take their place."
        ),
        bad="engine=megatron engine.parallel.context=2 device.kind=cpu",
        good="engine=megatron engine.parallel.context=2 device.kind=cuda",
        fix=(
            "Set engine.parallel.context=1 and engine.bridge=native, or run on CUDA with"
            " Transformer Engine installed."
        ),
    ),
    Rule(
        name="not-a-model-class",
        code="VT226",
        summary="model.modeling names no class that stands in a Python file.",
        why=(
            "Transformers' own class in its place would train, and nobody would see that the file"
            " had not been used."
        ),
        bad="model.modeling=models/my_model.py:MyModle",
        good="model.modeling=models/my_model.py:MyModel",
        fix=(
            "Name the file and, behind a colon, a class that is written in it:"
            " model.modeling=FILE.py:CLASS."
        ),
    ),
    Rule(
        name="nothing-profiled",
        code="VT240",
        summary=(
            "The profiler's settings record nothing: an interval without a tool, a tool without an"
            " interval, or no rank."
        ),
        why=(
            "Elsewhere such a run trains to its end, and whoever opens its folder finds no profile."
        ),
        bad="profiler.profile_interval=[5,7]",
        good="profiler.profile_interval=[5,7] profiler.tool=torch",
        fix="Give both profiler.tool and profiler.profile_interval, or neither.",
    ),
    Rule(
        name="profile-interval",
        code="VT241",
        summary="The steps that are to be recorded are not steps that the run will take.",
        why=(
            "A profiler that is started too late, or never stopped, writes no file, and most say"
            " nothing: verl compares steps with ==."
        ),
        bad="profiler=torch profiler.profile_interval=[5,3]",
        good="profiler=torch profiler.profile_interval=[3,5]",
        fix=(
            "Name the first and the last step, counted from 1, with room for profiler.warmup before"
            " them, up to the run's last step."
        ),
    ),
    Rule(
        name="profiler-ranks",
        code="VT242",
        summary="profiler.ranks names a rank twice, or one that the run does not have.",
        why="A rank that is not there records nothing, and nobody misses its file.",
        bad="profiler=torch profiler.ranks=[0,8] launch.nproc=2 data.micro_batch_size=16",
        good="profiler=torch profiler.ranks=[0,1] launch.nproc=2 data.micro_batch_size=16",
        fix="Name ranks from 0 to one less than there are, or leave it out for all.",
    ),
    Rule(
        name="profiler-device",
        code="VT243",
        summary=(
            "The profiler's tool does not record the kind of device that the run is on, or is not"
            " there."
        ),
        why=(
            "torch's profiler only warns where its activities are not there, and Nsight Systems'"
            " range does nothing without nsys."
        ),
        bad="profiler=npu device.kind=cpu",
        good="profiler=torch device.kind=cpu",
        fix=(
            "torch is for CPU and CUDA, npu for Ascend NPUs, nsys for CUDA under `nsys profile`,"
            " memory for CUDA."
        ),
    ),
    Rule(
        name="npu-profiler-level",
        code="VT244",
        summary="The NPU profiler is asked for counters that its level does not collect.",
        why="torch_npu resets them with a line in its log.",
        bad="profiler=npu profiler.npu.level=level0 profiler.npu.aic_metrics=PipeUtilization",
        good="profiler=npu profiler.npu.level=level1 profiler.npu.aic_metrics=PipeUtilization",
        fix="Set profiler.npu.level=level1 or level2, or leave profiler.npu.aic_metrics out.",
    ),
)

RULES = (*_CANNOT_READ, *_SCHEMA, *_CROSS_FIELD)
