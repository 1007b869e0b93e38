"""Rows, their lengths and evaluations, of TRL, LLaMA-Factory and ms-swift as settings of ours."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtool.config.foreign.llamafactory_traps import tokens_on_disk
from vtool.config.foreign.theirs import LEFT_OPEN, listed_words
from vtool.config.foreign.word import NO_COUNTERPART
from vtool.config.foreign.words import WORDS
from vtool.contents import small_file
from vtool.diagnostics.near_miss import did_you_mean, near

if TYPE_CHECKING:
    from vtool.config.foreign.hf_translation import Translation

_OVERLONG = {"delete": "drop", "raise": "error", "right": "truncate", "keep_start": "truncate"}
_PACKED = ("packing", "neat_packing", "padding_free")
_SHOWN = 10
_WEIGHTED = ("interleave_under", "first_exhausted")
"""Ways to mix that end an epoch with the source that is used up first, as here."""


def put_rows(the: "Translation") -> None:
    """Put the rows, and what is done with the longest, into our settings."""
    if the.trainer.name == "llamafactory" and (folder := tokens_on_disk(the.theirs)):
        the.notes.append(
            f"Rows that are tokens already, in {folder}, are not read: give data.train"
        )
        the.theirs.names["data.train"] = "tokenized_path"
        the.theirs.values.setdefault("data", {})["train"] = LEFT_OPEN
        the.theirs.judged |= {one for one in _PACKED if not the.theirs.given.get(one)}
        return
    for words, ours in (
        (("dataset", "dataset_name"), "data.train"),
        (("eval_dataset", "val_dataset"), "data.validation"),
    ):
        for name in words:
            names = listed_words(the.theirs.given.get(name))
            if sources := _sources(the, names, name):
                _mix(the, sources, ours)
                the.theirs.judged |= {name, "dataset_dir", "media_dir"}
                the.theirs.put(ours, sources, name)
            elif names and ours == "data.validation":
                the.theirs.put(ours, LEFT_OPEN, name)
    for name in ("val_size", "split_dataset_ratio", "test_split_size"):
        share = the.theirs.given.get(name)
        if isinstance(share, float) and 0 < share < 1:
            the.theirs.judged.add(name)
            the.theirs.put("data.split.validation", share, name)
    scores = the.value("eval_strategy") not in (None, "no", False)
    named = the.theirs.given.get("dataset_name") is not None
    if the.trainer.name == "trl" and scores and named:  # its data set has a split for it
        the.theirs.put("data.validation", LEFT_OPEN, "dataset_test_split")
    _put_lengths(the)


def _put_lengths(the: "Translation") -> None:
    longest = the.trainer.longest(the.theirs.given)
    the.theirs.judged.add(the.trainer.length_word)
    if longest:
        the.theirs.put("data.max_length", longest, the.trainer.length_word)
        names = ("truncation_strategy", "truncation_mode")
        name = next((one for one in names if one in the.trainer.fields), names[0])
        treatment = str(the.theirs.take(name) or the.trainer.overlong)
        if treatment in _OVERLONG:
            the.theirs.put("data.on_overlong", _OVERLONG[treatment], name)
        else:
            the.theirs.judged.discard(name)
    packed = [name for name in _PACKED if the.theirs.take(name)]
    most = the.theirs.given.get("packing_length") or longest
    if packed and isinstance(most, int):
        size = the.theirs.values.get("data", {}).pop("micro_batch_size", 1)
        size = size if isinstance(size, int) else 1
        the.theirs.put("data.packing", "token_budget", packed[0])
        by_length = "packing_length" in the.theirs.given
        the.theirs.judged.add("packing_length")
        name = "packing_length" if by_length else packed[0]
        the.theirs.put("data.micro_batch_tokens", size * most, name)


def _sources(the: "Translation", names: list[str], word: str) -> list[dict[str, Any]] | None:
    """Return the rows' files, where they are on this machine; None where one is not."""
    made: list[dict[str, Any]] = []
    if the.trainer.name == "llamafactory":
        folder = Path(str(the.theirs.given.get("dataset_dir") or the.value("dataset_dir")))
        table = folder / "dataset_info.json"
        if names and not table.is_file():
            the.theirs.absent[word] = (f"there is no {table} here", f"{WORDS[word].ours}=[…]")
        if not names or not table.is_file() or not _all_listed(the, names, table, word):
            return None
        images = the.theirs.given.get("media_dir")
        for name in names:
            entry = {"format": "llama_factory", "path": str(table), "dataset": name}
            made.append(entry | ({"image_folder": str(images)} if images else {}))
        return made
    for name in names:
        path, _, limit = name.partition("#")
        if not Path(path).expanduser().exists():
            why = f"{path} is no file or folder here"
            the.theirs.absent[word] = (why, f"{WORDS[word].ours}=[{{format: …, path: …}}]")
            return None
        rows: dict[str, Any] = {"format": the.trainer.layout, "path": path}
        made.append(rows | ({"limit": int(limit)} if limit.isdigit() else {}))
    return made or None


def _all_listed(the: "Translation", names: list[str], table: Path, word: str) -> bool:
    """Return whether a file of data sets has all these names; those that it lacks are findings."""
    try:
        listed = json.loads(small_file(table).decode("utf-8-sig"))
    except (OSError, ValueError):
        return True  # whoever reads the rows says it
    if not isinstance(listed, dict):
        return True
    missing = [name for name in dict.fromkeys(names) if name not in listed]
    for name in missing:
        known = ", ".join(list(listed)[:_SHOWN]) + ", …" * (len(listed) > _SHOWN)
        message = f"{word}: {table} has no data set `{name}`: LLaMA-Factory refuses it"
        help = did_you_mean(near(name, listed)) or f"it has {known or 'none'}"
        the.theirs.found.append(the.theirs.find("refused-there", word, message, help))
    return not missing


def _mix(the: "Translation", sources: list[dict[str, Any]], ours: str) -> None:
    """Add to each source how much of it is taken."""
    given = the.theirs.given
    most = given.get("max_samples")
    if isinstance(most, int) and most > 0:
        the.theirs.judged.add("max_samples")
        for source in sources:
            source["limit"] = most
    way = the.value("mix_strategy") or the.value("stopping_strategy")
    name = "interleave_probs" if "interleave_probs" in given else "interleave_prob"
    shares = listed_words(given.get(name))
    if ours == "data.train" and len(shares) == len(sources) > 1 and way in _WEIGHTED:
        try:
            weights = [float(share) for share in shares]
        except ValueError:
            return
        the.theirs.judged |= {name, "mix_strategy", "stopping_strategy"}
        for source, weight in zip(sources, weights, strict=True):
            source["weight"] = weight
    else:
        the.theirs.judged -= {"mix_strategy", "stopping_strategy"}


def put_every(the: "Translation", what: str, ours: str) -> None:
    """Take over the steps between two checkpoints, or two evaluations."""
    strategy, steps = the.value(f"{what}_strategy"), the.value(f"{what}_steps")
    if what == "eval" and the.trainer.name == "ms-swift":
        strategy = the.value("save_strategy") if strategy is None else strategy
        steps = the.value("save_steps") if steps is None else steps
    elif what == "eval" and steps is None:
        steps = the.value("logging_steps")
    if strategy == "steps" and isinstance(steps, int) and steps > 0:
        the.theirs.put(ours, steps, f"{what}_steps")
    elif strategy in ("no", False):
        the.theirs.put(ours, None, f"{what}_strategy")
    else:
        the.theirs.judged -= {f"{what}_strategy", f"{what}_steps"}


def put_evaluation(the: "Translation") -> None:
    """Put evaluations into our settings, where there are rows for them; else they stay theirs."""
    theirs = the.theirs
    if theirs.values.get("data", {}).keys() & {"validation", "split"}:
        put_every(the, "eval", "evaluation.every_steps")
        _put_best(the)
        return
    theirs.values.pop("evaluation", None)  # there is nothing to evaluate
    for ours in [name for name in theirs.names if name.startswith("evaluation.")]:
        theirs.judged.discard(theirs.names.pop(ours))
    if theirs.given.get("eval_strategy") not in (None, "no", False):
        theirs.judged -= {"eval_strategy", "eval_steps"}


def _put_best(the: "Translation") -> None:
    """Keep the best checkpoint as there, by the same score."""
    given, theirs = the.theirs.given, the.theirs
    metric = given.get("metric_for_best_model") or "loss"
    convert = WORDS["metric_for_best_model"].convert
    score = convert(metric) if convert else NO_COUNTERPART
    groups = []
    if given.get("load_best_model_at_end") is True:
        groups.append(("checkpoint.keep_best", "load_best_model_at_end"))
    if "early_stopping" in theirs.values.get("evaluation", {}):
        groups.append(("evaluation.early_stopping", "metric_for_best_model"))
    if score is NO_COUNTERPART:
        return
    for group, word in groups:
        theirs.judged |= {word, "metric_for_best_model"}
        named = "metric_for_best_model" if metric != "loss" else word
        theirs.put(f"{group}.metric", score, named)
        if isinstance(greater := given.get("greater_is_better"), bool):
            theirs.judged.add("greater_is_better")
            theirs.put(f"{group}.mode", "max" if greater else "min", "greater_is_better")
