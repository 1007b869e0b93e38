"""The settings of a trainer, read from the files of its package, of which nothing is imported.

`scripts/record_trainers.py` reads wheels with it; a trainer that is installed in a release that
the tables lack is read from its folder.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    listed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By setting whose annotation is text: a file, and what in it lists the values.

    That is a class with a text for each, a mapping, a function, or a function that is called with
    each name.
    """
    told: Mapping[str, str] = field(default_factory=dict)
    """By setting: what it takes, where the code says so in no list."""


_TRANSFORMERS, _THERE = "transformers:", "transformers"
_TRAINER = (
    *("transformers/trainer_utils.py", "transformers/training_args.py"),
    "transformers/training_args_seq2seq.py",
)
_TRACKERS = ("transformers/integrations/integration_utils.py", "INTEGRATION_TO_CALLBACK")
_NO_TRACKER = "=all|=none"
_SFT = "verl/utils/dataset/multiturn_sft_dataset.py"
_VERL_OPTIMIZER = "verl/workers/config/optimizer.py"
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
        listed={"report_to": _TRACKERS},
        told={"report_to": _NO_TRACKER},
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
        listed={
            "report_to": _TRACKERS,
            "template": ("llamafactory/data/template.py", "register_template"),
        },
        told={"report_to": _NO_TRACKER},
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
        listed={
            "report_to": _TRACKERS,
            "template": ("swift/template/constant.py", "TemplateType"),
            "model_type": ("swift/model/constant.py", "ModelType"),
            "tuner_type": ("swift/arguments/base_args/base_args.py", "get_supported_tuners"),
        },
        told={"report_to": _NO_TRACKER, "tuner_type": "=ia3|=lora_llm|=dummy"},
    ),
    "axolotl": Where(
        ("axolotl",),
        ("axolotl/utils/schemas/*.py",),
        ("AxolotlInputConfig",),
        plugins="axolotl/integrations/*/args.py",
        listed={"optimizer": ("axolotl/utils/schemas/enums.py", "CustomSupportedOptimizers")},
        told={
            "adapter": "=lora|=qlora|=llama-adapter",
            "learning_rate": "float",
            "lr_scheduler": "=one_cycle|=rex",
            "bf16": "bool|=auto|=full",
        },
    ),
    "verl": Where(
        ("verl",),
        ("verl/workers/config/*.py", "verl/trainer/config/*.py", "verl/utils/profiler/*.py"),
        (),
        composed=("sft_trainer.yaml", "sft_trainer_engine.yaml"),
        listed={"trainer.logger": ("verl/utils/tracking.py", "supported_backend")},
        told={
            "trainer.logger": "=tracking",
            "trainer.save_freq": "int|=after_each_epoch",
            "trainer.test_freq": "int|=after_each_epoch",
            "trainer.total_training_steps": "int",
            "trainer.resume_mode": "=auto|=disable|=resume_path",
            "data.truncation": "=error|=left|=right",
            "data.pad_mode": "=right|=no_padding",
        },
    ),
}


@dataclass(slots=True)
class _Class:
    bases: list[str]
    fields: Fields = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    """Values of names in its body: the members of an enumeration."""
    annotations: dict[str, ast.expr] = field(default_factory=dict)
    among: dict[str, str] = field(default_factory=dict)
    """By field: the values that its metadata, or an assertion about it, allows."""
    of_transformers: bool = False


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
    takes: Mapping[str, str] = field(default_factory=dict)
    """By setting that does not take any text: `float`, `int|=auto`; `=` is before a word."""


def read_package(trainer: str, roots: Sequence[Path]) -> ReadFields:
    """Return the settings of the release that lies in folders of unpacked wheels."""
    where = PACKAGES[trainer]
    classes: dict[str, _Class] = {}
    for path in _files(where.files, roots):
        _index(path, classes)
    if where.composed:
        (folder,) = _files(("verl/trainer/config",), roots)
        read = _composed(folder, where.composed, classes)
        return replace(read, takes=dict(read.takes) | _listed(where, roots))
    fields: Fields = {}
    takes: dict[str, str] = {}
    for name in where.classes:
        fields |= _all_fields(name, classes)
        takes |= _narrowed(_all_takes(name, classes), takes)
    takes = {name: kind for name, kind in (takes | _listed(where, roots)).items() if kind}
    plugins = {}
    for path in _files((where.plugins,), roots) if where.plugins else ():
        own: dict[str, _Class] = {}
        _index(path, own)
        taken = [one for one in own if one.endswith("Args") or one == "SwanLabConfig"]
        names = {name for one in taken for name in _all_fields(one, own)} - fields.keys()
        plugins[path.parent.name] = tuple(sorted(names))
    return ReadFields(fields, plugins, takes=takes)


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
        found.of_transformers = of_transformers
        _add_constants(found, node)
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                _add_field(found, line.target.id, line, classes)
        classes[prefix + node.name] = found


def _add_constants(of: _Class, node: ast.ClassDef) -> None:
    """Add the values of names in a class, and what it asserts of its fields."""
    for line in ast.walk(node):
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            of.constants[line.targets[0].id] = _plain(line.value, {}, {})
        if isinstance(line, ast.Assert) and isinstance(line.test, ast.Compare):
            left, allowed = line.test.left, _plain(line.test.comparators[0], {}, {})
            if isinstance(left, ast.Attribute) and isinstance(allowed, list):
                of.among[left.attr] = _words(allowed)


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
    of.annotations |= dict.fromkeys(names, line.annotation)
    if isinstance(line.value, ast.Call):
        described = next((one.value for one in line.value.keywords if one.arg == "metadata"), None)
        pairs = (
            zip(described.keys, described.values, strict=True)
            if isinstance(described, ast.Dict)
            else ()
        )
        allowed = next(
            (_plain(v, {}, {}) for k, v in pairs if _plain(k, {}, {}) == "choices"), None
        )
        if isinstance(allowed, list):
            of.among |= dict.fromkeys(names, _words(allowed))


def _words(values: Iterable[object]) -> str:
    return "|".join(f"={one}" for one in values if one is not None)


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


def _all_takes(name: str, classes: Mapping[str, _Class]) -> dict[str, str]:
    """Return the types of the fields of a class, and of the classes that it extends."""
    if (found := classes.get(name)) is None:
        return {}
    takes: dict[str, str] = {}
    for base in reversed(found.bases):
        takes |= _narrowed(_all_takes(base, classes), takes)
    own = {name: _kind(one, found, classes) for name, one in found.annotations.items()}
    return takes | _narrowed(own, takes) | found.among


def _narrowed(takes: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return types with the words that transformers checks, where the type is any text now."""
    words = {name: kind for name, kind in before.items() if kind.startswith("=")}
    return {name: kind or words.get(name, "") for name, kind in takes.items()}


def _kind(annotation: ast.expr | None, of: _Class, classes: Mapping[str, _Class]) -> str:
    """Return the type or the words that an annotation has; nothing where it may be any text.

    transformers makes a member of an enumeration of text, and refuses any other.
    """
    parts = list(_parts(annotation))
    kinds: list[str] = []
    for part in parts:
        name = part.id if isinstance(part, ast.Name) else ""
        enum = classes.get(f"{_TRANSFORMERS}{name}") or classes.get(name)
        if isinstance(part, ast.Subscript):  # Literal
            values = _plain(part.slice, {}, {})
            kinds.append(_words(values if isinstance(values, list) else [values]))
        elif name in ("int", "float", "bool"):
            kinds.append(name)
        elif enum and any(base.endswith("Enum") for base in enum.bases):
            kinds.append(_words(one for one in enum.constants.values() if isinstance(one, str)))
            if of.of_transformers:
                return kinds[-1]
        else:
            kinds.append("")
    return "|".join(kinds) if all(kinds) else ""


def _parts(annotation: ast.expr | None) -> Iterator[ast.expr]:
    """Yield the members of a union, without None; `Annotated` is what it annotates."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp):
        yield from _parts(annotation.left)
        yield from _parts(annotation.right)
    elif isinstance(annotation, ast.Subscript):
        inside, kind = annotation.slice, ast.unparse(annotation.value).rpartition(".")[2]
        several = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        if kind in ("Optional", "Union", "Annotated"):
            for one in several[:1] if kind == "Annotated" else several:
                yield from _parts(one)
        else:
            yield annotation if kind == "Literal" else ast.Constant(...)
    elif annotation is not None and not (
        isinstance(annotation, ast.Constant) and annotation.value is None
    ):
        yield annotation


def _listed(where: Where, roots: Sequence[Path]) -> dict[str, str]:
    """Return the words of settings for which a file lists them, or nothing does."""
    takes: defaultdict[str, list[str]] = defaultdict(list)
    for setting, (pattern, name) in where.listed.items():
        for path in _files((pattern,), roots):
            words = dict.fromkeys(_words_of(ast.parse(path.read_text("utf-8")), name))
            takes[setting] += [_words(words)] if words else []
    for setting, kind in where.told.items():
        if takes[setting] or setting not in where.listed:
            takes[setting].append(kind)
    return {setting: "|".join(kinds) for setting, kinds in takes.items()}


def _words_of(tree: ast.Module, name: str) -> Iterator[str]:
    """Yield the words that a class, a mapping, a list, a function or calls of one have."""
    values: list[ast.expr | None]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for base in node.bases:
                yield from _words_of(tree, ast.unparse(base))
            values = [line.value for line in node.body if isinstance(line, ast.Assign)]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            values = [*node.value.keys] if isinstance(node.value, ast.Dict) else []
            values += node.value.elts if isinstance(node.value, ast.List) else []
        elif isinstance(node, ast.FunctionDef) and node.name == name:
            values = [
                one for line in ast.walk(node) if isinstance(line, ast.Set) for one in line.elts
            ]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == name:
            values = [one.value for one in node.keywords if one.arg == "name"]
        else:
            continue
        for value in values:
            if isinstance(word := _plain(value, {}, {}), str):
                yield word


def _composed(folder: Path, names: Sequence[str], classes: Mapping[str, _Class]) -> ReadFields:
    """Return every setting of files that Hydra composes, with each choice of each group."""
    fields: Fields = {}
    among: defaultdict[str, dict[str, str]] = defaultdict(dict)
    open_: set[str] = set()
    chosen: dict[str, Fields] = {}

    def add(values: Mapping[str, Any], above: str, fields: Fields, choice: str = "") -> None:
        target = str(values.get("_target_", "")).rpartition(".")[2]
        for key, kind in _all_takes(target, classes).items():
            among[f"{above}{key}"][choice] = kind
        for key, value in {**dict.fromkeys(_all_fields(target, classes)), **values}.items():
            name = f"{above}{key}"
            if isinstance(value, Mapping) and value:
                add(value, f"{name}.", fields, choice)
            elif key not in ("defaults", "_target_"):
                fields[name] = None if value == {} else value
                kind = type(value).__name__
                if not target and kind in ("bool", "int", "float"):
                    among[name][choice] = kind
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
                    add(_yaml(choice), f"{at or group}.", own, f"{group}={choice.stem}")
                    fields |= own
        add(values, "", fields)
    several = {name.partition("=")[0] for name in chosen}
    several = {
        group for group in several if sum(name.startswith(f"{group}=") for name in chosen) > 1
    }
    choices = {name: own for name, own in chosen.items() if name.partition("=")[0] in several}
    takes: dict[str, str] = {}
    for name in among.keys() & fields.keys():
        kinds = among[name]
        alike = set(kinds.values()) if len({*kinds.values()}) == 1 else set()
        takes |= (
            dict.fromkeys((name,), next(iter(alike)))
            if alike
            else {
                f"{choice}:{name}" if choice in choices else name: kind
                for choice, kind in kinds.items()
            }
        )
    takes = {name: kind for name, kind in sorted(takes.items()) if kind}
    return ReadFields(fields, open=tuple(sorted(open_)), choices=choices, takes=takes)


def _yaml(path: Path) -> Mapping[str, Any]:
    """Return the values of a file of Hydra's; `1e-5` is a number in it."""
    return yaml.load(path.read_text("utf-8"), get_yaml_loader()) or {}  # a SafeLoader
