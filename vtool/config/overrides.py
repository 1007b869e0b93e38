"""`KEY=VALUE`: read with Hydra's grammar, and told apart: `optim=adamw` picks a file of a group, the others set values."""

from collections.abc import Sequence

from hydra._internal.config_repository import IConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from vtool.config.origins import COMMAND_LINE
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near

_QUOTE = "quote a value with special characters, for vtool and for the shell: \"run.dir='runs/a,b'\""


def parse_overrides(texts: Sequence[str]) -> list[Override]:
    """Every argument as an override that may set any key: whether there is one is for the schema to say, which knows what was meant."""
    parser = OverridesParser.create()
    overrides, findings = [], []
    for text in texts:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            findings.append(_bad_override(text, _unparsable(text, error), "write KEY=VALUE" if "=" not in text else _QUOTE))
            continue
        key = override.key_or_group
        if override.is_sweep_override():
            message = f"`{text}` gives several values, and a run has one"
            findings.append(_bad_override(text, message, f"a list is {key}=[a,b]; a text with a comma needs quotes: \"{key}='a,b'\""))
        elif override.is_delete():
            findings.append(
                _bad_override(
                    text, f"`{text}` removes a setting, which cannot be done here", f"set it to null, or a list to []: {key}=null"
                )
            )
        elif override.package is not None or not key:
            findings.append(_bad_override(text, f"`{text}` does not name a setting", "write KEY=VALUE"))
        else:
            override.type = OverrideType.FORCE_ADD
            overrides.append(override)
    if findings:
        raise Findings(findings, fatal=True)
    return overrides


def _unparsable(text: str, error: HydraException) -> str:
    if "=" not in text:
        return f"`{text}` is not KEY=VALUE"
    return f"`{text}` cannot be read: {first_line(error)}"


def choose_groups(overrides: Sequence[Override], repository: IConfigRepository, recipe: str) -> None:
    """Tell `optim=adamw`, which picks a file of a group, from `optim={lr: 1}`, which sets values, and see that the files are there."""
    choices = [each for each in overrides if repository.group_exists(each.key_or_group) and not isinstance(each.value(), dict)]
    if not choices:
        return
    findings = []
    for override in choices:
        group, choice = override.key_or_group, override.value()
        if not isinstance(choice, str) or not repository.config_exists(f"{group}/{choice}"):
            options = repository.get_group_options(group)
            help = did_you_mean([f"{group}={option}" for option in near(str(choice), options)]) or f"there are: {', '.join(options)}"
            message = f"`{group}` picks a file of configs/{group}, and there is none for `{override.input_line}`"
            findings.append(Diagnostic("unknown-group-choice", message, help, group, COMMAND_LINE))
    if findings:
        raise Findings(findings, fatal=True)
    listed = create_defaults_list(repository, recipe, [], prepend_hydra=False, skip_missing=True)
    for override in choices:
        override.type = OverrideType.CHANGE if override.key_or_group in listed.overrides.known_choices else OverrideType.ADD


def _bad_override(text: str, message: str, help: str) -> Diagnostic:
    return Diagnostic("bad-override", message, help, origin=COMMAND_LINE)


def first_line(error: BaseException) -> str:
    """The first line of an exception's text: Hydra's and OmegaConf's go on with its search path, or with what was around."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
