"""The settings of a trainer, read from the files of its package, of which nothing is imported.

`scripts/record_trainers.py` reads wheels with it; a trainer that is installed in a release that
the tables lack is read from its folder.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

Fields = dict[str, Any]
"""By setting: its default; None where that is none, or not a plain value."""


@dataclass(frozen=True, slots=True)
class Where:
    """The files and the classes, or the YAML, that a trainer's settings stand in."""

    distributions: tuple[str, ...]
    """The trainer's own, and what else its settings come from."""
    files: tuple[str, ...]
    """Patterns of Python files."""
    classes: tuple[str, ...]
    """Classes that the command parses its settings into; some releases lack some."""
    plugins: str = ""
    """A pattern of files whose classes are settings of plug-ins."""
    composed: tuple[str, ...] = ()
    """YAML files that Hydra composes, from the package's folder."""


_TRANSFORMERS, _THERE = "transformers:", "transformers"
_TRAINER = ("transformers/training_args.py", "transformers/training_args_seq2seq.py")
PACKAGES: Mapping[str, Where] = {
    "trl": Where(
        ("trl", "transformers"),
        (
            "trl/trainer/sft_config.py",
            "trl/trainer/base_config.py",
            "trl/trainer/model_config.py",
            "trl/scripts/utils.py",
            *_TRAINER,
        ),
        ("ScriptArguments", "SFTConfig", "ModelConfig", "DatasetMixtureConfig"),
    ),
    "llamafactory": Where(
        ("llamafactory", "transformers"),
        (*_TRAINER, "llamafactory/extras/constants.py", "llamafactory/hparams/*.py"),
        (
            "ModelArguments",
            "DataArguments",
            "TrainingArguments",
            "FinetuningArguments",
            "GeneratingArguments",
        ),
    ),
    "ms-swift": Where(
        ("ms_swift", "transformers"),
        (
            *_TRAINER,
            "swift/trainers/arguments.py",
            "swift/ray_utils/arguments.py",
            "swift/arguments/*.py",
            "swift/arguments/*/*.py",
            "swift/llm/argument/*.py",
            "swift/llm/argument/*/*.py",
        ),
        ("SftArguments", "TrainArguments"),
    ),
    "axolotl": Where(
        ("axolotl",),
        ("axolotl/utils/schemas/*.py",),
        ("AxolotlInputConfig",),
        plugins="axolotl/integrations/*/args.py",
    ),
    "verl": Where(
        ("verl",),
        ("verl/workers/config/*.py", "verl/trainer/config/*.py", "verl/utils/profiler/*.py"),
        (),
        composed=("sft_trainer.yaml", "sft_trainer_engine.yaml"),
    ),
}


@dataclass(slots=True)
class _Class:
    bases: list[str]
    fields: Fields = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    """Values of names in its body: the members of an enumeration."""


@dataclass(frozen=True, slots=True)
class ReadFields:
    """The settings of one release."""

    fields: Fields
    plugins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By plug-in of a trainer: the settings that it alone reads."""
    open: tuple[str, ...] = ()
    """Groups that take any name."""
    choices: Mapping[str, Fields] = field(default_factory=dict)
    """By choice of Hydra's, `engine=fsdp`: what it sets, where choices differ."""


def read_package(trainer: str, roots: Sequence[Path]) -> ReadFields:
    """Return the settings of the release that lies in folders of unpacked wheels."""
    where = PACKAGES[trainer]
    classes: dict[str, _Class] = {}
    for path in _files(where.files, roots):
        _index(path, classes)
    if where.composed:
        (folder,) = _files(("verl/trainer/config",), roots)
        return _composed(folder, where.composed, classes)
    fields: Fields = {}
    for name in where.classes:
        fields |= _all_fields(name, classes)
    plugins = {}
    for path in _files((where.plugins,), roots) if where.plugins else ():
        own: dict[str, _Class] = {}
        _index(path, own)
        taken = [one for one in own if one.endswith("Args") or one == "SwanLabConfig"]
        names = {name for one in taken for name in _all_fields(one, own)} - fields.keys()
        plugins[path.parent.name] = tuple(sorted(names))
    return ReadFields(fields, plugins)


def _files(patterns: Sequence[str], roots: Sequence[Path]) -> Iterator[Path]:
    for pattern in patterns:
        for root in roots:
            yield from sorted(root.glob(pattern))


def _index(path: Path, classes: dict[str, _Class]) -> None:
    """Add the classes of a file with the fields that they declare themselves.

    transformers' are kept apart by their name, since trainers give their own the same.
    """
    tree = ast.parse(path.read_text("utf-8"))
    of_transformers = path.parent.name == "transformers"
    prefix = _TRANSFORMERS if of_transformers else ""
    means: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            theirs = _TRANSFORMERS if node.module and node.module.startswith(_THERE) else ""
            means |= {one.asname or one.name: theirs + one.name for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            target = node.targets[0]
            if isinstance(target, ast.Name) and node.value.id in means:
                means[target.id] = means[node.value.id]
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        found = _Class([prefix + base if prefix else means.get(base, base) for base in bases])
        for line in ast.walk(node):
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                found.constants[line.targets[0].id] = _plain(line.value, {}, {})
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                _add_field(found, line.target.id, line, classes)
        classes[prefix + node.name] = found


def _add_field(of: _Class, name: str, line: ast.AnnAssign, classes: Mapping[str, _Class]) -> None:
    if name.startswith("_") or "ClassVar" in ast.unparse(line.annotation):
        return
    default: ast.expr | None = line.value
    names, is_list = [name], False
    if isinstance(line.value, ast.Call):
        given = {one.arg: one.value for one in line.value.keywords if one.arg}
        if _plain(given.get("init"), {}, {}) is False:
            return
        if alias := _plain(given.get("alias"), {}, {}):
            names.append(alias)
        default = given.get("default") or next(iter(line.value.args), None)
        made = given.get("default_factory")
        if isinstance(made, ast.Lambda):
            default = made.body
        elif isinstance(made, ast.Name) and made.id == "list":
            is_list = True
    value = [] if is_list else _plain(default, of.constants, classes)
    of.fields |= dict.fromkeys(names, value)


def _plain(node: ast.expr | None, names: Mapping[str, Any], classes: Mapping[str, _Class]) -> Any:
    """Return the value of an expression that is a constant, and None of any other."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        found = classes.get(node.value.id)
        return found.constants.get(node.attr) if found else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors = [_plain(one, names, classes) for one in (node.left, node.right)]
        return factors[0] * factors[1] if all(isinstance(one, int) for one in factors) else None
    try:
        value = ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError):
        return None
    return list(value) if isinstance(value, tuple) else None if value == {} else value


def _all_fields(name: str, classes: Mapping[str, _Class]) -> Fields:
    """Return the fields of a class and of the classes that it extends."""
    if (found := classes.get(name)) is None:
        return {}
    fields: Fields = {}
    for base in reversed(found.bases):
        fields |= _all_fields(base, classes)
    return fields | found.fields


def _composed(folder: Path, names: Sequence[str], classes: Mapping[str, _Class]) -> ReadFields:
    """Return every setting of files that Hydra composes, with each choice of each group."""
    fields: Fields = {}
    open_: set[str] = set()
    chosen: dict[str, Fields] = {}

    def add(values: Mapping[str, Any], above: str, fields: Fields) -> None:
        target = str(values.get("_target_", "")).rpartition(".")[2]
        for key, value in {**dict.fromkeys(_all_fields(target, classes)), **values}.items():
            name = f"{above}{key}"
            if isinstance(value, Mapping) and value:
                add(value, f"{name}.", fields)
            elif key not in ("defaults", "_target_"):
                fields[name] = None if value == {} else value
            if value == {} or str(key).startswith("override_"):
                open_.add(name)

    for name in names:
        if not (path := folder / name).is_file():
            continue
        values = _yaml(path)
        for entry in values["defaults"]:
            if isinstance(entry, Mapping):
                group, _, at = str(next(iter(entry))).partition("@")
                for choice in sorted((folder / group).glob("*.yaml")):
                    own = chosen.setdefault(f"{group}={choice.stem}", {})
                    add(_yaml(choice), f"{at or group}.", own)
                    fields |= own
        add(values, "", fields)
    several = {name.partition("=")[0] for name in chosen}
    several = {
        group for group in several if sum(name.startswith(f"{group}=") for name in chosen) > 1
    }
    choices = {name: own for name, own in chosen.items() if name.partition("=")[0] in several}
    return ReadFields(fields, open=tuple(sorted(open_)), choices=choices)


def _yaml(path: Path) -> Mapping[str, Any]:
    """Return the values of a file of Hydra's; `1e-5` is a number in it."""
    return yaml.load(path.read_text("utf-8"), get_yaml_loader()) or {}  # a SafeLoader
