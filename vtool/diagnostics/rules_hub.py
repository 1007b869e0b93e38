"""Rules about models that are named as a hub names them."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="hub-model-absent",
        code="VT850",
        summary="A model of this name is neither a folder here nor in the hub's cache.",
        why="Nothing can be read of it. Checking a recipe downloads nothing.",
        bad="vtool validate-config rows.yaml model.path=Qwen/Qwen2.5-VL-3B-Instruct",
        good="hf download Qwen/Qwen2.5-VL-3B-Instruct, and then the same",
        fix="Download it with the command that the finding has; train does so by itself, online.",
    ),
    Rule(
        name="hub-name-unknown",
        code="VT851",
        summary="The hub has no model of this name, or no such revision of it.",
        why="There is nothing to download.",
        bad="model.path=Qwen/Qwen2.5-VL-3B-Instrct",
        good="model.path=Qwen/Qwen2.5-VL-3B-Instruct",
        fix="Correct the name or the revision; for a private model, log in first: hf auth login.",
    ),
    Rule(
        name="hub-gated",
        code="VT852",
        summary="The model's owner gives it only to those who have asked for it.",
        why="The hub refuses its files.",
        bad="model.path=ORGANIZATION/GATED-MODEL, without access",
        good="the same, after the model's page has granted it",
        fix="Ask for access on the model's page, then log in: hf auth login.",
    ),
    Rule(
        name="hub-incomplete",
        code="VT853",
        summary="A download of this model is not complete: files are missing.",
        why="Half of the weights would be loaded, or none.",
        bad="a snapshot whose index names three shards, of which one is there",
        good="a snapshot with every shard that its index names",
        fix="Download the rest with the command that the finding has: it continues where it was.",
    ),
    Rule(
        name="hub-push-failed",
        code="VT854",
        summary="The hub did not take the export.",
        why="It is on this machine alone.",
        bad="vtool export runs/digits --push me/digits, without a token that may write",
        good="hf auth login, and then the same",
        fix="Do what the message says; the export is written, and the same command sends it again.",
    ),
)
