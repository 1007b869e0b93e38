"""`vtool explain [RULE | CODE | SETTING | RECIPE]`"""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vtool.diagnostics import Rule


def explain(
    topic: Annotated[
        str | None, typer.Argument(metavar="[RULE|CODE|SETTING|RECIPE]", help="What to explain. Default: list everything.")
    ] = None,
) -> None:
    """Explain a rule, a setting or a recipe; without an argument, list rules and recipes."""
    from vtool.config.resources import recipe_names, share
    from vtool.diagnostics import RULES

    if topic is None:
        typer.echo("Rules:")
        for rule in sorted(RULES.values(), key=lambda rule: rule.code):
            typer.echo(f"  {rule.name:<30} {rule.code}  {rule.summary}")
        typer.echo("\nRecipes:")
        for name in recipe_names():
            typer.echo(f"  {name:<30} {_head((share('recipes') / f'{name}.yaml').read_text())[0]}")
        typer.echo("\nSettings: vtool explain GROUP, such as data or optim.lr")
        return
    by_code = {rule.code: rule for rule in RULES.values()}
    if rule := RULES.get(topic) or by_code.get(topic.upper()):
        _rule(rule)
    elif topic in recipe_names():
        typer.echo("\n".join(_head((share("recipes") / f"{topic}.yaml").read_text())))
        typer.echo(f"\nIts settings, and where each comes from: vtool validate-config {topic} --show")
    else:
        _settings(topic)


def _rule(rule: "Rule") -> None:
    typer.echo(
        f"{rule.name} ({rule.code}), {rule.severity}\n\n{rule.summary}\n\nWhy: {rule.why}\n\nBad:  {rule.bad}\nGood: {rule.good}\n\nFix: {rule.fix}"
    )


def _settings(topic: str) -> None:
    from difflib import get_close_matches

    from vtool.config.resources import recipe_names
    from vtool.config.settings import all_settings
    from vtool.diagnostics import RULES

    settings = list(all_settings())
    found = [setting for setting in settings if setting.name == topic or setting.name.startswith((f"{topic}.", f"{topic}[]."))]
    if not found:
        near = get_close_matches(topic, [*RULES, *recipe_names(), *(setting.name for setting in settings)], 1, cutoff=0.5)
        typer.echo(
            f"there is no rule, setting or recipe `{topic}`" + (f"; did you mean `{near[0]}`?" if near else "; `vtool explain` lists them"),
            err=True,
        )
        raise typer.Exit(2)
    for setting in found:
        typer.echo(setting.name + ("" if setting.is_group else f"  ({setting.type}; default: {setting.default})"))
        if setting.description:
            typer.echo(f"    {' '.join(setting.description.split())}")


def _head(text: str) -> list[str]:
    """A recipe's first comment."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return lines or ["(no description)"]
