"""Rules VT0xx and VT1xx: reading a recipe, and its settings one by one.

`bad` and `good` of VT1xx are what is typed after `vtool validate-config digits`; the tests type
them.
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
            "Fix the line. Settings are `key: value`, indented with spaces, and each key is there"
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
    Rule(
        name="not-looked-at",
        code="VT008",
        summary=(
            "With --untrusted, a setting depends on an environment variable or another resolver, or"
            " on a file outside of the recipe's folder, and is not checked."
        ),
        why=(
            "Messages name values and files. A stranger's recipe, as in a pull request, could so"
            " bring secrets of the machine into them."
        ),
        bad="vtool validate-config --untrusted digits 'run.dir=${oc.env:HOME}/run'",
        good="vtool validate-config --untrusted digits run.dir=runs/mine",
        fix="Nothing need be done. Without --untrusted it is checked, where the recipe is trusted.",
        severity="note",
    ),
    Rule(
        name="recipe-of-another-trainer",
        code="VT009",
        summary="A recipe is one of LLaMA-Factory, ms-swift, TRL, verl or axolotl.",
        why="Each of its settings would be unknown, and a finding for each says less than this.",
        bad="vtool validate-config ./lora_sft.yaml, which begins with `stage: sft`",
        good="vtool validate-config ./recipes/digits.yaml",
        fix="Read it with --from, or let --convert print it as a recipe of vtool.",
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
        fix=("Give a value of the type that the message names."),
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

_COMPOSED = (
    Rule(
        name="own-value-loses",
        code="VT253",
        summary="A value of a recipe is overridden by a file that the recipe itself extends.",
        why=(
            "In a defaults list, what comes later wins. A file that is named behind `_self_`"
            " overrides the recipe's own values, which are read and have no effect."
        ),
        bad="{defaults: [_self_, digits], optim: {lr: 0.5}}",
        good="{defaults: [digits, _self_], optim: {lr: 0.5}}",
        fix="Put `_self_` at the end of the defaults list, or take the key out.",
    ),
)

RULES = (*_CANNOT_READ, *_SCHEMA, *_COMPOSED)
