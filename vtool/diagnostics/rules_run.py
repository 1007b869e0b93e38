"""Rules VT5xx, VT7xx and VT8xx: the machine, the numbers and the run's folder."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="device-missing",
        code="VT501",
        summary="The device that the recipe asks for is not there.",
        why="Falling back to the CPU silently makes a run a hundred times slower.",
        bad="device.kind=cuda on a machine without a GPU",
        good="device.kind=auto",
        fix="Use device.kind=auto or cpu, or install a torch build for this device.",
    ),
    Rule(
        name="model-does-not-load",
        code="VT502",
        summary="A model folder is there, but cannot be loaded whole.",
        why="A weight that is missing is left random by the loader with no more than a log line.",
        bad="a model.safetensors without visual.patch_embed.proj.weight",
        good="a folder as save_pretrained wrote it",
        fix="Copy the folder again, and compare it with its source.",
    ),
    Rule(
        name="template-argument-missing",
        code="VT669",
        summary="The chat template writes an argument that nothing gives.",
        why="Jinja writes nothing there: prompts are learnt that no server with the argument has.",
        bad="{{ assistant_name }} in a template, and no data.template_arguments",
        good="data.template_arguments={assistant_name: Ada}",
        fix="Give the argument, or take it out of the template.",
    ),
    Rule(
        name="template-argument-unread",
        code="VT666",
        summary="An argument of data.template_arguments is none that the chat template reads.",
        why="It changes nothing, and the run is taken for another one.",
        bad="data.template_arguments={enable_thinkin: false}",
        good="data.template_arguments={enable_thinking: false}",
        fix="Write the name as the template has it, or leave the argument out.",
    ),
    Rule(
        name="extra-not-installed",
        code="VT503",
        summary="The recipe asks for something that needs a package which is not installed.",
        why="Another engine in its place would not be what was asked for.",
        bad="engine=megatron without megatron-core",
        good="pip install 'vtool[megatron]'",
        fix="Install the extra that the message names.",
    ),
    Rule(
        name="ranks-differ",
        code="VT504",
        summary="The ranks have not built the same model.",
        why=(
            "Each loads its own; where each keeps a share of it, the weights of two folders are"
            " mixed, and no error is raised."
        ),
        bad="model.path=/local/model, where one machine has another revision of it than the others",
        good="model.path=/shared/model, one folder that all machines see",
        fix=(
            "Copy the folder of rank 0's machine to the others. Where model.init=random: begin on"
            " machines of one kind, or from a folder."
        ),
    ),
    Rule(
        name="model-class-does-not-fit",
        code="VT517",
        summary=(
            "The class of model.modeling cannot take the place of transformers' class of the"
            " family, or its file cannot be imported."
        ),
        why=(
            "A tower elsewhere is neither frozen nor fed, and weights of other names are in no"
            " folder that anything else can open."
        ),
        bad="a class whose tower is `self.vision`, where the family has `self.model.visual`",
        good="a class derived from transformers' own that overrides a forward pass",
        fix=(
            "Keep the names and shapes of the family's weights, and what its tower and its forward"
            " pass give back."
        ),
    ),
    Rule(
        name="nonfinite-loss",
        code="VT701",
        summary="The loss of a step, or of rows that are evaluated, is infinite or not a number.",
        why="One such step makes every weight NaN, and everything after it is lost.",
        bad="optim.lr=100",
        good="optim.lr=2e-4",
        fix=(
            "Lower optim.lr or raise optim.warmup_steps; look at the rows that the message names."
            " The weights before the step are in the last checkpoint."
        ),
    ),
    Rule(
        name="nonfinite-gradient",
        code="VT702",
        summary="The gradient of a step is infinite or not a number, though its loss is finite.",
        why="Clipping by an infinite norm turns every gradient into NaN or 0.",
        bad="optim.lr=100",
        good="optim.lr=2e-4",
        fix=(
            "Lower optim.lr, or compute in model.dtype=float32. The weights before the step are in"
            " the last checkpoint."
        ),
    ),
    Rule(
        name="no-supervised-tokens",
        code="VT703",
        summary="A step has no supervised token on any rank.",
        why="Its loss is 0/0; trainers that hide this train on nothing.",
        bad="a global batch of rows whose answers are all cut off",
        good="rows with an answer each",
        fix="Run `vtool verify` on the rows: it shows the supervised tokens of each.",
    ),
    Rule(
        name="micro-batch-without-image",
        code="VT704",
        summary=(
            "model.dummy_visual is never, and in a step with images on several ranks a micro-batch"
            " has none."
        ),
        why=(
            "The tower would run on some ranks and not on others: they would wait for each other's"
            " gradients or weights for ever."
        ),
        bad="model.dummy_visual=never",
        good="model.dummy_visual=auto",
        fix=(
            "Set model.dummy_visual=auto: where an image is anywhere in a step, the tower runs"
            " everywhere, for gradients of exactly 0."
        ),
    ),
    Rule(
        name="run-folder-unwritable",
        code="VT801",
        summary="The run's folder cannot be written to.",
        why="A run that cannot be saved is a run for nothing.",
        bad="run.dir=/runs on a read-only disk",
        good="run.dir=runs/digits",
        fix="Choose another run.dir, or free space there.",
    ),
    Rule(
        name="run-folder-taken",
        code="VT802",
        summary=(
            "The run's folder holds a run already: one with other settings, or one that must not be"
            " continued."
        ),
        why="Continuing it would mix two runs, and starting again would overwrite one.",
        bad="vtool train sft digits optim.lr=1e-3, in the folder of a run with optim.lr=2e-3",
        good="vtool train sft digits optim.lr=1e-3 run.name=digits-1e-3",
        fix=(
            "Give the new run a name of its own, run.name=NAME, and with it train.from=FOLDER to"
            " begin with that run's weights. checkpoint.resume=extend continues a run to a later"
            " end. Or put the settings back as they were."
        ),
    ),
    Rule(
        name="corrupt-checkpoint",
        code="VT803",
        summary=(
            "A checkpoint's files are not those that were written: truncated, changed or missing."
        ),
        why="Weights of a damaged file load without an error, and the run resumes from noise.",
        bad="a model.safetensors with other bytes than its manifest says",
        good="a checkpoint whose digests agree",
        fix=(
            "Let the run continue from an older checkpoint (checkpoint.resume=auto does), and check"
            " the disk."
        ),
    ),
    Rule(
        name="checkpoint-not-saved",
        code="VT804",
        summary="A checkpoint could not be written.",
        why="Further training would be lost with the next crash.",
        bad="a full disk",
        good="room for one checkpoint more than checkpoint.keep_last",
        fix=(
            "Free space, then start the same command again: it resumes from the last whole"
            " checkpoint."
        ),
    ),
    Rule(
        name="data-changed",
        code="VT805",
        summary="The rows are not those that the run began with.",
        why=(
            "The steps before and after would be of two data sets, and no sample order would be"
            " true."
        ),
        bad="a train.jsonl with a line more than at the start of the run",
        good="the same train.jsonl",
        fix=(
            "Put the file back; or train these rows in a run of their own: run.name=NAME, with"
            " train.from=FOLDER to begin with that run's weights."
        ),
    ),
    Rule(
        name="run-in-use",
        code="VT806",
        summary="Another process is training in the run's folder.",
        why="Two runs would overwrite each other's checkpoints.",
        bad="the same command in two terminals",
        good="run.name=NAME for the second one",
        fix="Wait for the other process, stop it, or give this run a name of its own.",
    ),
    Rule(
        name="not-a-run",
        code="VT807",
        summary="A folder is not that of a run, or not of one that has come far enough.",
        why="There is nothing there to continue, show or ask.",
        bad="vtool predict runs --image cat.png",
        good="vtool predict runs/digits --image cat.png",
        fix="Give the folder that `vtool train` printed.",
    ),
    Rule(
        name="no-checkpoint",
        code="VT808",
        summary="A run's folder has no whole checkpoint to resume from.",
        why="Starting from the beginning would overwrite what the run has written.",
        bad="checkpoint.resume=runs/digits before its first checkpoint",
        good="checkpoint.resume=auto",
        fix=(
            "Start it again under another run.name, or name a checkpoint folder:"
            " checkpoint.resume=FOLDER."
        ),
    ),
    Rule(
        name="loss-spike",
        code="VT728",
        summary="The loss of a step is far above that of the steps before it.",
        why=(
            "Rows that are damaged, or learnt wrongly, show so; and what a spike has done to the"
            " weights, the steps after it have to repair."
        ),
        bad="a row whose answer is a page of random characters",
        good="a loss that differs from step to step no more than batches do",
        fix=(
            "Look at the rows that the message names: vtool verify RECIPE. Where they are right,"
            " lower optim.lr, or clip: optim.clip_norm=1."
        ),
        severity="note",
        holds="No loss was far above those of the steps before it.",
    ),
    Rule(
        name="constant-answer",
        code="VT729",
        summary="The trained model gives every row the same answer, and the rows expect several.",
        why=(
            "It has learnt what answers are like, and nothing of the questions or the images: its"
            " loss falls all the same."
        ),
        bad="optim.lr=1e-7, or images that do not arrive",
        good="answers that differ as the references do",
        fix=(
            "Train for longer or at another optim.lr; and see what the model is given: vtool verify"
            " RECIPE shows it."
        ),
        severity="warning",
        holds="Rows are not all answered alike.",
    ),
    Rule(
        name="rank-failed",
        code="VT809",
        summary="A rank ended with an error, and the others were stopped.",
        why="The other ranks would wait for it for ever.",
        bad="kill -9 of one rank",
        good="all ranks alive",
        fix=(
            "Read what the rank printed above this line, then start the same command again: it"
            " resumes from the last checkpoint."
        ),
    ),
    Rule(
        name="base-changed",
        code="VT810",
        summary=(
            "The weights that a run's adapters are for, or their config.json, are not those that it"
            " began with, or are not there."
        ),
        why=(
            "An adapter is a difference: added to other weights it gives another model, and no"
            " error."
        ),
        bad="other bytes in model.path's model.safetensors than at the start of a run with lora",
        good="the same folder",
        fix="Put the folder back as it was, or start another run: run.name=NAME.",
    ),
    Rule(
        name="base-rounded",
        code="VT523",
        summary=(
            "lora.base_dtype is bfloat16, and the weights beneath the adapters are not; or it is"
            " nf4, and they are in a dtype that bitsandbytes does not quantize."
        ),
        why=(
            "Rounded weights are another model than the one that the adapter is exported for: what"
            " it learns would be added to weights that it has never seen."
        ),
        bad="lora.base_dtype=bfloat16 over a model.path whose safetensors are float32",
        good="lora.base_dtype=bfloat16 over one whose safetensors are bfloat16",
        fix="Set lora.base_dtype=float32, or save the folder in bfloat16 and train over that.",
    ),
    Rule(
        name="quantized-base",
        code="VT524",
        summary="An adapter was trained on a base in NF4, which is not what the base's folder has.",
        why=(
            "The adapter has learnt what NF4's rounding took away, too: on top of the weights"
            " before that, or merged into them, it gives a model that nobody has trained, and no"
            " error."
        ),
        bad="peft's merge of RUN/export into model.path's weights, after lora.base_dtype=nf4",
        good="vtool export RUN --merge, which merges into the base in NF4, unpacked",
        fix=(
            "Take RUN/merged, or open the base as base_quantization.json says: those are the"
            " arguments of transformers' BitsAndBytesConfig."
        ),
        severity="note",
    ),
    Rule(
        name="nothing-to-merge",
        code="VT811",
        summary="vtool export --merge was given a run that has no adapter.",
        why=(
            "Its export is whole already; a second one under another name would be taken for"
            " something else."
        ),
        bad="vtool export runs/digits --merge",
        good="vtool export runs/digits_lora --merge",
        fix="Leave --merge out.",
    ),
    Rule(
        name="modeling-changed",
        code="VT812",
        summary="The file of model.modeling is not the one that a run began with, or is not there.",
        why=(
            "The steps before and after would be of two models, or an answer be that of a model"
            " which was never trained."
        ),
        bad="an edit of my_model.py between a run's stop and its next start",
        good="the same my_model.py",
        fix="Put the file back as it was, or start another run: run.name=NAME.",
    ),
    Rule(
        name="run-folder-not-empty",
        code="VT813",
        summary="The run's folder has files in it, and no run has begun it.",
        why=(
            "A run writes processor/, export/, data.json and more, and clears some of them first:"
            " what somebody else has there would be lost."
        ),
        bad="run.dir=. in a folder with a processor/ of your own",
        good="run.dir=runs/digits",
        fix=(
            "Name a new folder, or an empty one: run.dir=FOLDER. Logs and other files of yours go"
            " next to it. A run of an older vtool is resumed where its config.yaml and data.json"
            " are whole."
        ),
    ),
    Rule(
        name="processor-changed",
        code="VT814",
        summary="The files in a run's processor/ are not those that the run began with.",
        why=(
            "They are the model's config, the token ids, the chat template and the pixels' mean: a"
            " run would continue as another model on other inputs, without an error."
        ),
        bad="hidden_act changed in runs/digits/processor/config.json before the run is resumed",
        good="the same files",
        fix="Put the files back as they were, or start another run: run.name=NAME.",
    ),
    Rule(
        name="metrics-damaged",
        code="VT815",
        summary="metrics.jsonl lacks lines of steps that a run has taken, or has damaged ones.",
        why="Curves and sums over such a file look whole, and are not.",
        bad="a line of metrics.jsonl deleted before the run is resumed",
        good="a line for each step",
        fix=(
            "The run continues: its weights do not depend on that file. Put a copy of it back if"
            " there is one, and check the disk."
        ),
        severity="warning",
    ),
    Rule(
        name="checkpoint-not-synced",
        code="VT816",
        summary="A checkpoint is written, but the disk has not confirmed its folder's new name.",
        why="After a loss of power it might not be there; the one before it would be.",
        bad="an error of the disk while a folder is flushed",
        good="a disk that flushes folders",
        fix="The run continues. Check the disk.",
        severity="warning",
    ),
    Rule(
        name="checkpoint-not-removed",
        code="VT826",
        summary="A checkpoint that is not kept any more cannot be removed.",
        why="The disk fills up, and a later checkpoint may not be written.",
        bad="a folder of checkpoints that another user owns, or that the system protects",
        good="a folder that belongs to the run",
        fix="The run continues. Remove the folder that the message names.",
        severity="warning",
    ),
    Rule(
        name="unfit-weights",
        code="VT817",
        summary="train.from names no weights, or weights that are not of the run's model.",
        why=(
            "Weights of another family or shape do not load; an adapter at another scale, or on"
            " other weights, computes something else."
        ),
        bad="train.from=runs/glm, a run of glm4v, with model.family=qwen2_5_vl",
        good="train.from=runs/digits, a run of the same recipe",
        fix="Name a run, checkpoint or export of the same family, sizes and adapters.",
    ),
    Rule(
        name="profile-missing",
        code="VT820",
        summary="A file that the profiler promised is missing, empty, or not what it should be.",
        why="The user who paid for the run looks at its profile when it is over.",
        bad="a full disk while the trace is written",
        good="room for profiler.max_trace_mb on each machine that records",
        fix=(
            "Put right what the message names, and record other steps: the run's weights are not"
            " touched by it."
        ),
    ),
    Rule(
        name="profiler-failed",
        code="VT821",
        summary="The profiler raised an error. The training has continued without it.",
        why=(
            "A profiler that ends a run costs more than it shows, and one that fails silently shows"
            " nothing."
        ),
        bad="profiler=torch with another tool that holds the device's counters",
        good="one profiler at a time",
        fix="Read the error; record fewer things (profiler.record), or other steps.",
    ),
    Rule(
        name="profile-cut-short",
        code="VT822",
        summary=(
            "The run ended inside the interval: what had been recorded until then is written, the"
            " rest is not there."
        ),
        why="A file with fewer steps than were asked for should say so.",
        bad="Ctrl-C in step 6 of profiler.profile_interval=[5,7]",
        good="a run that gets past its interval",
        fix="Use what is there, or record later steps: profiler.profile_interval.",
        severity="warning",
    ),
    Rule(
        name="trace-capped",
        code="VT823",
        summary=(
            "A trace was larger than profiler.max_trace_mb, and its shortest operations have been"
            " left out."
        ),
        why="Sums over what is left are too small, and gaps in it are not idle time.",
        bad="profiler=torch profiler.profile_interval=[5,500]",
        good="profiler=torch profiler.profile_interval=[5,7]",
        fix=(
            "Record fewer steps, or raise profiler.max_trace_mb. The table of operations and the"
            " step's split are whole in any case."
        ),
        severity="warning",
    ),
    Rule(
        name="profile-behind",
        code="VT824",
        summary=(
            "A run resumes from a step past the beginning of the steps that are to be recorded."
        ),
        why="They are over: nothing would be recorded.",
        bad="profiler.profile_interval=[5,7], added to a run that resumes after step 100",
        good="profiler.profile_interval=[105,107]",
        fix="Name steps that are still to come.",
    ),
    Rule(
        name="tracker-failed",
        code="VT825",
        summary="A tracker failed, and gets nothing more of this run.",
        why="A run is worth more than its curves elsewhere; they are in metrics.jsonl in any case.",
        bad="tracking=[{kind: tensorboard}] on a disk that is full",
        good="tracking=[{kind: tensorboard}] with space left",
        fix="Read the error. What it has missed is in metrics.jsonl.",
        severity="warning",
    ),
)
