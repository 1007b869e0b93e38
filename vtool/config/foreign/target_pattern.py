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
    if family and not plans[0].numbers:
        end = pattern.rpartition(".")[2]
        theirs.found.append(
            theirs.find(
                "refused-there",
                word,
                f"{shown}, which is the whole name of no linear layer of {family.name}: peft"
                " refuses it, or adapts other modules",
                f"write {word}: '.*\\.{end}', or a list of two names and more, whose ends count"
                if re.fullmatch(r"[\w.]+", pattern)
                else "compare it with a whole name, such as"
                f" {family.linear_layers['language'][0].replace('.N.', '.0.')}",
            )
        )
        theirs.put("lora.targets", LEFT_OPEN, word)
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

    `numbers` has, by component, the names that match, each with the numbers of its layers: None
    for all of them.
    """

    def __init__(
        self,
        family: FamilyFacts,
        pattern: re.Pattern[str],
        depths: Mapping[str, int],
        saved: Collection[str],
    ) -> None:
        self.numbers: dict[str, dict[str, list[int] | None]] = {}
        layers = family.linear_layers
        partly_unknown = False
        for part, names in layers.items():
            for name in names:
                depth = depths.get(part, _MOST)
                found = [at for at in range(depth) if pattern.fullmatch(_numbered(name, at))]
                if not found:
                    continue
                partly_unknown |= len(found) < depth and part not in depths
                whole = len(found) == depth or "N" not in name.split(".")
                self.numbers.setdefault(part, {})[name] = None if whole else found
        kept = {part for part, names in layers.items() if any(_inside(one, names) for one in saved)}
        kept |= {"language"} if any(_inside(one, _IN_LANGUAGE) for one in saved) else set()
        self.frozen = tuple(part for part in layers if part not in {*self.numbers, *kept})
        trained = [name for part in layers if part not in self.frozen for name in layers[part]]
        ends = [] if partly_unknown else [*self._ends(trained)]
        self.targets = None if not ends or None in ends else list(dict.fromkeys(ends))

    def _ends(self, trained: list[str]) -> Iterator[str | None]:
        """Yield ends that name what matches and nothing else; None where there is no such end."""
        matched = dict(chain.from_iterable(names.items() for names in self.numbers.values()))
        whole = {name for name, numbers in matched.items() if numbers is None}
        for name, numbers in matched.items():
            parts = name.split(".")
            if numbers is not None:
                at = parts.index("N")
                for number in numbers:
                    yield ".".join((parts[at - 1], str(number), *parts[at + 1 :]))
                continue
            tails = (parts[-count:] for count in range(1, len(parts) + 1))
            ends = [".".join(one) for one in tails if "N" not in one and not one[0].isdecimal()]
            yield next((end for end in ends if whole.issuperset(_ending(trained, end))), None)


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
