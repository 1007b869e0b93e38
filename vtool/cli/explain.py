"""The command `vtool explain [RULE | CODE | SETTING | RECIPE | ADVISORY]`."""

import re
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import typer

from vtool.cli import complete

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vtool.config.settings import Setting
    from vtool.diagnostics import Rule


def explain(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete.topic,
            metavar="RULE|CODE|SETTING|RECIPE|ADVISORY",
            help="What to explain. Default: list rules and recipes.",
        ),
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Print every rule, as a page in Markdown.")
    ] = False,
) -> None:
    """Explain a rule, a setting, a recipe or a known bug; without an argument, list them."""
    if all:
        from vtool.diagnostics.markdown import as_markdown

        typer.echo(as_markdown(), nl=False)
        return
    if not topics:
        _print_list()
    for number, topic in enumerate(topics or ()):
        if number:
            typer.echo()
        _print_topic(topic)


def _print_topic(topic: str) -> None:
    from vtool.config.resources import find_recipe
    from vtool.config.shipped import recipe_names
    from vtool.diagnostics import RULES

    by_code = {rule.code: rule for rule in RULES.values()}
    if rule := RULES.get(topic.lower()) or by_code.get(topic.upper()):
        _print_rule(rule)
    elif topic in recipe_names() or topic.endswith((".yaml", ".yml")):
        from vtool.cli.common import exit_on_findings

        with exit_on_findings("explain", topic):
            _print_recipe(topic, find_recipe(topic).path)
    elif not _print_advisory(topic):
        _print_settings(topic)


def _print_advisory(topic: str) -> bool:
    """Print a known silent bug, such as trl-4201 or trl#4201; return whether there is one."""
    import re

    if not re.fullmatch(r"[a-z]+[-#]\d+[-\w]*", topic):
        return False
    from vtool.doctor.advisories import advisories
    from vtool.doctor.silent_bugs import describe_advisory

    name, known = topic.replace("#", "-"), advisories().by_name
    if name in known:
        typer.echo(describe_advisory(known[name]))
    elif name.partition("-")[0] in {one.partition("-")[0] for one in known}:
        from vtool.diagnostics.near_miss import did_you_mean, near

        help = did_you_mean(near(name, known)) or "`vtool doctor` lists what concerns you"
        typer.echo(f"there is no advisory `{name}`\nhelp: {help}", err=True)
        raise typer.Exit(2)
    return name in known


def _print_list() -> None:
    from vtool.config.settings import all_settings
    from vtool.config.shipped import recipe_names, shipped_folder
    from vtool.diagnostics import RULES

    typer.echo("Rules:")
    for rule in sorted(RULES.values(), key=lambda rule: rule.code):
        typer.echo(f"  {rule.name:<30} {rule.code}  {rule.summary}")
    typer.echo("\nGroups of settings:")
    for setting in all_settings():
        if setting.groups and "." not in setting.name:
            first = " ".join(setting.doc.split()).partition(". ")[0].rstrip(".")
            typer.echo(f"  {setting.name:<30} {first}")
    typer.echo("\nRecipes:")
    for name in recipe_names():
        typer.echo(f"  {name:<30} {_purpose(shipped_folder('recipes') / f'{name}.yaml')}")
    typer.echo(
        "\nMore: vtool explain NAME, with a rule, a recipe, a setting such as optim.lr, or a group"
        " of settings such as data, or another trainer's word such as num_train_epochs."
    )


def _print_rule(rule: "Rule") -> None:
    rows = (("why", rule.why), ("bad", rule.bad), ("good", rule.good), ("fix", rule.fix))
    typer.echo(f"{rule.name} ({rule.code}, {rule.severity})\n{rule.summary}\n")
    for head, text in rows:
        typer.echo(f"  {head + ':':<5} {text}")
    for file in _files_of(rule):
        typer.echo(f"  file: {file}")


def _files_of(rule: "Rule") -> list[str]:
    """Return the files with a check of a rule; else those that name the rule, besides its text."""
    from vtool.config.rules import SETTINGS_RULES
    from vtool.verification.proofs import PROOFS
    from vtool.watch.conclusions import CHECKS

    checks = [
        *((each.rule, each.check) for each in SETTINGS_RULES),
        *((each.rule, each.compute) for each in PROOFS),
        *((each.rule, each.conclude) for each in CHECKS),
    ]
    names = dict.fromkeys(check.__module__ for its, check in checks if its == rule)
    return [f"{name.replace('.', '/')}.py" for name in names] or _files_naming(rule.name)


def _files_naming(rule: str) -> list[str]:
    from pathlib import Path

    package = Path(__file__).parents[1]
    files = sorted(file for file in package.rglob("*.py") if f'"{rule}"' in file.read_text())
    return [
        f"vtool/{file.relative_to(package).as_posix()}"
        for file in files
        if not file.match("diagnostics/rules_*.py")
    ]


def _print_recipe(topic: str, path: "Path") -> None:
    """Print a recipe's comment, what it lacks, and its settings."""
    from vtool.config.load import effective_yaml, examine, yaml_with_gaps

    typer.echo("\n".join(_first_comment(path)))
    examined = examine(topic)
    if examined.loaded:
        typer.echo(f"\n{effective_yaml(examined.loaded)}", nl=False)
        return
    typer.echo("\nTo be run, it needs:")
    for finding in examined.findings:
        typer.echo(f"  {finding.help or finding.message}")
    if settings := yaml_with_gaps(topic, examined.findings):
        typer.echo(f"\nIts settings, and ??? where one must be given:\n{settings}", nl=False)


def _print_settings(topic: str) -> None:
    from vtool.config.foreign.words import WORDS, counterpart_of
    from vtool.config.schema import RECIPE_KINDS
    from vtool.config.settings import all_settings, choices
    from vtool.config.shipped import recipe_names
    from vtool.diagnostics import RULES
    from vtool.diagnostics.near_miss import (
        containing,
        did_you_mean,
        ending,
        likely_words,
        overlapping,
        same_words,
    )

    name = ".".join(part for part in topic.split(".") if not part.isdigit())
    kind, _, inside = name.partition(".")
    name = inside if kind in RECIPE_KINDS and inside else name
    settings = [setting for schema in RECIPE_KINDS.values() for setting in all_settings(schema)]
    if found := [setting for setting in settings if setting.name == name]:
        _print_setting(found)
        _print_groups(found[0], [each for each in settings if each.name.startswith(f"{name}.")])
        return
    word = topic.lstrip("-").partition("=")[0].replace("-", "_")
    if said := counterpart_of(word):
        typer.echo(said)
        if word in WORDS and (ours := WORDS[word].ours):
            typer.echo()
            _print_setting([each for each in settings if each.name == ours])
        return
    taking = [each for each in settings if not each.groups]
    if found := [each for each in taking if word in choices(each.field.annotation)]:
        typer.echo(f"{word}: a value of\n")
        for name in dict.fromkeys(setting.name for setting in found):
            _print_setting([each for each in found if each.name == name])
        return
    names = [setting.name for setting in settings]
    words = [each for setting in settings for each in choices(setting.field.annotation)]
    likely = (
        [*ending(topic, names), *containing(topic, names)]
        or likely_words(topic, [*RULES, *recipe_names(), *names, *WORDS, *words])
        or same_words(topic, names)
        or overlapping(topic, names)
        or [setting.name for setting in settings if set(word.split("_")) <= _words_of(setting.doc)]
    )
    from vtool.diagnostics.printable import printable

    nearest = list(dict.fromkeys(likely))[:3]
    help = did_you_mean(nearest) or "`vtool explain` lists rules and recipes"
    if word in _OF_REWARDS:
        help = "it is a word of training by rewards (GRPO, PPO); vtool trains by SFT alone"
    typer.echo(f"there is no rule, setting or recipe `{printable(topic)}`\nhelp: {help}", err=True)
    raise typer.Exit(2)


_OF_REWARDS = (
    *(
        "num_generations",
        "reward_funcs",
        "reward_weights",
        "reward_model",
        "kl_coef",
        "epsilon_high",
    ),
    *("num_iterations", "max_completion_length", "scale_rewards", "rollout", "adv_estimator"),
)
"""Words by which people look for what vtool does not do."""


def _words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _print_groups(setting: "Setting", inside: "Sequence[Setting]") -> None:
    """Print the settings of each kind of a group, after those that all kinds have."""
    kinds = setting.groups
    own = [each for each in inside if each.name.rpartition(".")[0] == setting.name]
    has = [{each.leaf for each in own if each.owner is kind} for kind in kinds]
    shared = set.intersection(*has) if len(kinds) > 1 else set()
    if shared:
        typer.echo("\nIn all of them:\n")
        for leaf in dict.fromkeys(each.leaf for each in own if each.leaf in shared):
            _print_setting([each for each in own if each.leaf == leaf], "  ")
    for kind in kinds:
        rest = [each for each in own if each.owner is kind and each.leaf not in shared]
        if not shared:
            typer.echo("")
        elif rest:
            typer.echo(f"\n{_tag_of(kind)}: {_first_line(kind)}\n")
        for each in rest:
            _print_setting([each], "  ")


def _tag_of(kind: type) -> str:
    """Return the word that tells a kind of group apart, as `format: messages`."""
    from vtool.config.settings import choices

    fields = kind.model_fields.items()  # type: ignore[attr-defined]
    tags = [(n, found[0]) for n, field in fields if len(found := choices(field.annotation)) == 1]
    return f"{tags[0][0]}: {tags[0][1]}" if tags else kind.__name__


def _first_line(kind: type) -> str:
    return " ".join((kind.__doc__ or "").strip().partition("\n\n")[0].split())


def _print_setting(found: "Sequence[Setting]", indent: str = "") -> None:
    """Print the type, the default and the description of a setting.

    It is given once for each kind of its group that has it.
    """
    from vtool.config.settings import choices

    takes = " or ".join(dict.fromkeys(setting.takes for setting in found))
    facts = "; ".join(part for part in (takes, _default(found[0])) if part)
    typer.echo(f"{indent}{found[0].name}: {facts}")
    for text in dict.fromkeys(setting.doc for setting in found if setting.doc):
        typer.echo(f"{indent}  {' '.join(text.split())}")
    words = [choices(setting.field.annotation) for setting in found]
    if len(found) > 1 and all(len(each) == 1 for each in words):  # it tells kinds of groups apart
        for (word,), setting in zip(words, found, strict=True):
            typer.echo(f"{indent}  `{word}`: {_first_line(setting.owner)}")


def _default(setting: "Setting") -> str:
    import json

    from vtool.config.schema import Settings
    from vtool.config.settings import all_settings

    if setting.required:
        return "it must be given"
    if setting.field.is_required() or isinstance(setting.field.default, Settings):
        return ""
    default = setting.field.default
    shown = f"default: {default if isinstance(default, str) else json.dumps(default)}"
    above = setting.name.rpartition(".")[0]
    off = (one for one in all_settings() if one.name == above and one.field.default is None)
    return f"{shown} in a recipe that has `{above}`" if any(off) else shown


def _purpose(path: "Path") -> str:
    """Return the first sentence of a recipe's first comment."""
    lines = takewhile(lambda line: not line.startswith(" "), _first_comment(path))
    return re.split(r"(?<=\.) (?=[A-Z`])", " ".join(lines))[0]


def _first_comment(path: "Path") -> list[str]:
    """Return the lines of a recipe's first comment: commands and figures in it are indented."""
    from vtool.config.limits import MOST_BYTES
    from vtool.contents import open_regular

    text = b""
    with suppress(OSError), open_regular(path) as file:  # what else it is, its settings say
        text = file.read(MOST_BYTES)
    comment = takewhile(
        lambda line: line.startswith("#"), text.decode(errors="replace").splitlines()
    )
    lines = [
        line.removeprefix("#").removeprefix(" ").rstrip()
        for line in comment
        if not line.startswith("# yaml-language-server:")
    ]
    return lines or ["(it does not say what it is for)"]
