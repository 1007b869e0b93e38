"""A regular expression by which peft names the layers that get an adapter, as settings of ours.

peft compares it with whole names of modules, by `re.fullmatch`. It overrides what a trainer
freezes: ms-swift's `freeze_vit` is read for `all-linear` alone.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from vtool.config.foreign.theirs import LEFT_OPEN, ForeignFile
from vtool.diagnostics import Diagnostic
from vtool.families import FAMILIES
from vtool.families.facts import FamilyFacts
from vtool.families.linear_layers import ends_in, is_inside
from vtool.model_folder import ModelFolder

_MOST = 256
"""Numbers of layers that are tried where the model's depth is not known."""
_WITHOUT_ADAPTER = ("lm_head", "model.language_model.embed_tokens", "model.visual.patch_embed.proj")
"""Modules that peft adapts where they are named, and vtool does not."""
_IN_LANGUAGE = ("model.language_model.embed_tokens", "model.lm_head")


def put_targets(theirs: ForeignFile, pattern: str, word: str, saved: Collection[str] = ()) -> None:
    """Set `lora.targets` and `model.freeze` so that the same layers get an adapter as there.

    Where that is not possible, `lora.targets` is left open, and a finding says why.

    Args:
        word: the setting of theirs that has the pattern.
        saved: modules that are trained whole, of parts that must not be frozen.
    """
    model = theirs.values.get("model", {})
    family = FAMILIES.get(model.get("family", ""))
    shown = f"{word} is the regular expression `{pattern}`"
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        help = "write it as Python's `re` reads it"
        message = f"{word}: `{pattern}` is no regular expression ({error}): peft refuses it"
        theirs.found.append(theirs.find("refused-there", word, message, help))
        theirs.put("lora.targets", LEFT_OPEN, word)
        return
    depths = _depths(model.get("path"))
    plans = [
        _Plan(one, compiled, depths if one is family else {}, saved)
        for one in ([family] if family else FAMILIES.values())
    ]
    name = re.fullmatch(r"[\w.]+", pattern)
    if (family or name) and not any(one.numbers for one in plans):
        example = next(iter(FAMILIES.values())).linear_layers["language"][0]
        help = f"compare it with whole names, such as {_numbered(example, 0)}"
        if name:
            help = f"write {word}: '.*\\.{pattern}', or a list of two names, whose ends count"
        message = f"{shown}, which is the whole name of no linear layer"
        message += f"{f' of {family.name}' if family else ''}: peft refuses it"
        theirs.found.append(theirs.find("refused-there", word, message, help))
        theirs.put("lora.targets", [pattern] if name else LEFT_OPEN, word)
        return
    targets, frozen = plans[0].targets, plans[0].frozen
    if targets is None or any((one.targets, one.frozen) != (targets, frozen) for one in plans):
        why = "no ends of names say the same" if family else "the model's family is not known here"
        theirs.put("lora.targets", LEFT_OPEN, word)
        message = (
            f"{shown}, and {why}: without lora.targets the recipe that it becomes puts adapters on"
            " other layers, all that are linear"
        )
        help = "set lora.targets, ends of names of layers, and model.freeze in that recipe"
        theirs.found.append(_warn(theirs, word, message, help))
        return
    for part in frozen:
        theirs.put(f"model.freeze.{part}", True, word)
    for part in {*plans[0].numbers} & {*model.get("freeze", {})}:
        theirs.put(f"model.freeze.{part}", False, word)
    theirs.put("lora.targets", targets, word)
    if others := [name for name in _WITHOUT_ADAPTER if compiled.fullmatch(name)]:
        message = f"{shown}, which matches {', '.join(others)} as well: no adapter is put there"
        help = "lora.modules_to_save trains embed_tokens and lm_head whole"
        theirs.found.append(_warn(theirs, word, f"{message} here", help))


class _Plan:
    """Ends of names, and parts to freeze, for one family; `targets` is None where there are none.

    `numbers` has, by component, the names that match, each with the numbers of its layers, and
    `whole` the names of which all layers match.
    """

    def __init__(
        self,
        family: FamilyFacts,
        pattern: re.Pattern[str],
        depths: Mapping[str, int],
        saved: Collection[str],
    ) -> None:
        self.numbers: dict[str, dict[str, list[int]]] = {}
        self.whole: set[str] = set()
        layers = family.linear_layers
        self.unknown: set[str] = set()
        for part, names in layers.items():
            for name in names:
                depth = depths.get(part, _MOST) if "N" in name.split(".") else 1
                found = [at for at in range(depth) if pattern.fullmatch(_numbered(name, at))]
                if found:
                    self.numbers.setdefault(part, {})[name] = found
                    self.whole |= {name} if len(found) == depth else set()
                    self.unknown |= {name} if part not in depths else set()
        kept = {part for part, names in layers.items() if any(_inside(one, names) for one in saved)}
        kept |= {"language"} if any(_inside(one, _IN_LANGUAGE) for one in saved) else set()
        self.frozen = tuple(part for part in layers if part not in {*self.numbers, *kept})
        trained = [name for part in layers if part not in self.frozen for name in layers[part]]
        ends = list(dict.fromkeys(self._ends(trained)))
        self.targets = None if None in ends else ends or None

    def _ends(self, trained: list[str]) -> Iterator[str | None]:
        """Yield ends that name what matches and nothing else; None where there is no such end."""
        for name, numbers in chain.from_iterable(one.items() for one in self.numbers.values()):
            parts = name.split(".")
            tails = (parts[-count:] for count in range(1, len(parts) + 1))
            ends = [".".join(one) for one in tails if "N" not in one and not one[0].isdecimal()]
            end = next((end for end in ends if self.whole.issuperset(_ending(trained, end))), None)
            if end is not None or "N" not in parts or name in self.unknown:
                yield end
                continue
            at = parts.index("N")
            for number in numbers:
                yield ".".join((parts[at - 1], str(number), *parts[at + 1 :]))


def _ending(names: Iterable[str], end: str) -> Iterator[str]:
    return (name for name in names if ends_in(name, end))


def _numbered(name: str, number: int) -> str:
    return ".".join(str(number) if part == "N" else part for part in name.split("."))


def _inside(module: str, names: Iterable[str]) -> bool:
    return any(ends_in(name, module) or is_inside(name, (module,)) for name in names)


def _depths(path: Any) -> dict[str, int]:
    """Return the layers of each component, as far as the model's folder says."""
    config = ModelFolder(Path(str(path)).expanduser()).config if path else None
    if not config:
        return {}
    vision = config.get("vision_config")
    vision = vision if isinstance(vision, Mapping) else {}
    language = config.get("text_config")
    language = language if isinstance(language, Mapping) else config
    stack = vision.get("deepstack_visual_indexes")
    found = {
        "vision": vision.get("depth"),
        "language": language.get("num_hidden_layers"),
        "projector": len(stack) if isinstance(stack, list) else None,
    }
    return {part: depth for part, depth in found.items() if isinstance(depth, int) and depth > 0}


def _warn(theirs: ForeignFile, word: str, message: str, help: str) -> Diagnostic:
    return replace(theirs.find("no-counterpart", word, message, help), severity="warning")
