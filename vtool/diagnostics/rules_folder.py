"""Rules VT413 to VT423, VT425 to VT427, VT439 and VT440, about a checkpoint folder."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="truncated-file",
        code="VT413",
        summary="A weight file ends before its last tensor does.",
        why=(
            "A download or a copy was cut off; loaders that map the file crash late, or read zeros"
            " where the disk was full."
        ),
        bad="a model.safetensors whose header promises 4096 bytes, of which 100 are there",
        good="a file as long as its header says",
        fix="Copy or download the file again, and compare its size with the source's.",
    ),
    Rule(
        name="bad-header",
        code="VT414",
        summary="The header of a safetensors file is damaged or contradicts itself.",
        why=(
            "Overlapping offsets give two tensors the same bytes, and of a name that is there twice"
            " readers take the last one."
        ),
        bad='{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        good='{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        fix=(
            "Write the file again with the safetensors library, or fetch it again; a Git LFS"
            " pointer needs `git lfs pull`."
        ),
    ),
    Rule(
        name="index-mismatch",
        code="VT415",
        summary=(
            "The index and the headers of the shards do not name the same tensors in the same"
            " files."
        ),
        why=(
            "A loader that trusts the index skips what it does not name; one that reads every shard"
            " does not. They load different models."
        ),
        bad=(
            "an index that has lm_head.weight in model-00001-of-00002.safetensors, while it is in"
            " model-00002-of-00002.safetensors"
        ),
        good="an index as save_pretrained wrote it, with the shards of the same save",
        fix=(
            "Take index and shards from the same save; `save_pretrained` into an empty folder"
            " writes them again."
        ),
    ),
    Rule(
        name="missing-shard",
        code="VT416",
        summary="A shard that the index or the other shards' names promise is not there.",
        why="Its tensors stay as they were initialized: some loaders only log that.",
        bad="model-00001-of-00002.safetensors alone",
        good="model-00001-of-00002.safetensors and model-00002-of-00002.safetensors",
        fix="Fetch the missing file.",
    ),
    Rule(
        name="duplicate-tensor",
        code="VT417",
        summary="A tensor is in more than one weight file, with different values.",
        why="A loader that reads every file takes whichever comes last, often the stale one.",
        bad="model.safetensors of last week next to the shards of today",
        good="the files of one save alone",
        fix="Move the files that do not belong to this model out of the folder.",
    ),
    Rule(
        name="nonfinite-value",
        code="VT418",
        summary="A tensor holds NaN or infinity.",
        why="One such weight makes every answer garbage, and no loader looks.",
        bad="lm_head.weight with a NaN after a diverged run",
        good="finite values in every tensor",
        fix=(
            "Go back to an earlier checkpoint; if this one was converted, look for overflow in the"
            " cast (float16 ends at 65504)."
        ),
    ),
    Rule(
        name="unsafe-format",
        code="VT419",
        summary=(
            "The weights are a pickle, which can run any code when it is loaded. It was not opened."
        ),
        why=(
            "Whoever loads it runs what its author has put there; and its tensors cannot be"
            " checked without that."
        ),
        bad="pytorch_model.bin",
        good="model.safetensors",
        fix=(
            "Ask for safetensors, or convert it where nothing can be lost: torch.load(…,"
            " weights_only=True), then save_pretrained."
        ),
    ),
    Rule(
        name="no-weights",
        code="VT420",
        summary="There are no weights to check at this place.",
        why="Nothing was checked, which must not read as if nothing was wrong.",
        bad="vtool load-check ./runs",
        good="vtool load-check ./runs/digits/export",
        fix="Name a folder with *.safetensors in it, or one such file.",
    ),
    Rule(
        name="no-config",
        code="VT421",
        summary=(
            "A folder with weights has no config.json, or (an error) one that cannot be read, or a"
            " tokenizer or another small file that is a Git LFS pointer or the like."
        ),
        why="No loader can know which class the weights are for.",
        bad="a folder with model.safetensors alone",
        good="config.json next to model.safetensors",
        fix="Copy config.json from where the weights came from.",
        severity="warning",
    ),
    Rule(
        name="outside-link",
        code="VT422",
        summary="A file of the folder is a link to somewhere else.",
        why=(
            "The folder is not whole: copied or packed it loses the file, and what it links to can"
            " change unseen."
        ),
        bad="model.safetensors -> /mnt/other/model.safetensors",
        good="the file itself, or the snapshots and blobs of a Hugging Face cache",
        fix="Put the file itself into the folder: cp --dereference.",
        severity="warning",
    ),
    Rule(
        name="unreadable-weights",
        code="VT423",
        summary="A weight file cannot be read.",
        why="What cannot be read has not been checked.",
        bad="a model.safetensors that belongs to another user",
        good="a file that you may read",
        fix="Check the file's permissions and the disk.",
    ),
    Rule(
        name="adapter-mismatch",
        code="VT425",
        summary=(
            "A LoRA adapter does not fit its adapter_config.json or the class of its base, or lacks"
            " one of a module's two matrices."
        ),
        why=(
            "Names of another wrapper and modules that are no target are left out, and a missing"
            " lora_B stays zero: the base answers, and no loader says so."
        ),
        bad="model.layers.0.…lora_A for a base that has model.language_model.layers",
        good="names that peft finds in the base's class, of the rank r in adapter_config.json",
        fix="Take tensors and adapter_config.json from the same save, and name the base it is for.",
    ),
    Rule(
        name="missing-scale",
        code="VT426",
        summary=(
            "A quantized weight has no scale, or no weight is quantized where config.json says so."
        ),
        why=(
            "Without its scale the weight is another number, and some loaders take 1; plain weights"
            " that are taken for quantized ones are cast, and scaled by whatever is in the memory."
        ),
        bad="q_proj.weight in float8 without q_proj.weight_scale",
        good="q_proj.weight and q_proj.weight_scale",
        fix="Write the checkpoint again with the tool that quantized it.",
    ),
    Rule(
        name="all-zero-weight",
        code="VT427",
        summary=(
            "A head, an embedding or most matrices are all zero, or (a warning) every lora_B of an"
            " adapter, or one matrix and not the others of its name."
        ),
        why=(
            "Every token is then as likely as any other, and the loss is finite; names and shapes"
            " are right (DeepSpeed#6791)."
        ),
        bad="lm_head.weight that was gathered on a rank that did not have it",
        good="a head with values",
        fix="Go back to an earlier checkpoint, or tie the head if that is what is meant.",
    ),
    Rule(
        name="pixels-destroyed",
        code="VT697",
        summary="A folder's image processor makes values of pixels that the model cannot read.",
        why=(
            "With image_std 0, a rescale_factor of 0 or 1 or a mean of NaN every image is not"
            " finite, one color, or far from what the model has seen; text is still learnt, and the"
            " loss falls."
        ),
        bad='"image_std": [0, 0, 0] in preprocessor_config.json',
        good="preprocessor_config.json as the model is published with",
        fix="Take preprocessor_config.json from the published model.",
    ),
    Rule(
        name="tied-head-differs",
        code="VT439",
        summary="A config says that the head is the embedding, and the folder has another head.",
        why=(
            "vLLM and others compute with the embedding then, and transformers with the head, or"
            " the other way round: the answers differ, and nothing is raised (unsloth#9331)."
        ),
        bad="tie_word_embeddings: true in text_config, beside a lm_head.weight that was trained",
        good="tie_word_embeddings: false, in text_config too",
        fix="Set tie_word_embeddings to false, in text_config too; or leave the head out.",
    ),
    Rule(
        name="weights-not-of-class",
        code="VT441",
        summary="A folder has other weights than the class that its config names, by transformers.",
        why=(
            "A weight that is not there is left random with no more than a log line; one that"
            " nothing reads, as under a misspelt name, is left out."
        ),
        bad="model.layers.0.mlp.dwn_proj.weight, where the class has down_proj",
        good="a folder as save_pretrained wrote it",
        fix="Copy the folder again, or save it again with the class that config.json names.",
    ),
    Rule(
        name="zero-embedding-row",
        code="VT440",
        summary="Rows of the embedding that the tokenizer has tokens for are zero.",
        why=(
            "A norm divides a row of zeros by √eps: where it is trained, its gradient is a thousand"
            " times any other, and takes nearly all of what clipping leaves (Automodel#3136)."
        ),
        bad="a chat template's <|im_start|>, whose row was never trained",
        good="rows with values, but for padding and ids that no text has",
        fix=(
            "Give the rows values before training, such as the mean of all others, or use no text"
            " that has these tokens."
        ),
        severity="warning",
    ),
)
