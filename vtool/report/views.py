"""The texts and tables of the page about one run, without HTML."""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vtool.diagnostics import RULES
from vtool.intervals import wilson_interval
from vtool.report.proofs import read_proofs
from vtool.report.run_files import RunFiles, number_in
from vtool.report.sources import source_sums
from vtool.report.words import duration, in_words, percent
from vtool.words import plural

_MOST_DROPPED = 100


@dataclass(frozen=True, slots=True)
class Stat:
    """One headline number. `value` is None where it was not measured."""

    label: str
    value: str | None
    note: str = ""
    interval: tuple[float, float] | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line of the checks."""

    state: str
    rule: str
    code: str
    summary: str


@dataclass(frozen=True, slots=True)
class SplitLine:
    """One split's line of the data ledger."""

    name: str
    counts: tuple[tuple[str, str], ...]
    sum: str
    adds_up: bool | None
    files: tuple[Mapping[str, Any], ...]
    dropped: tuple[Mapping[str, Any], ...]
    dropped_by_rule: tuple[tuple[str, int], ...]
    dropped_not_shown: int


def status(run: RunFiles) -> str:
    """Return `finished`, `running`, `stopped`, or `unfinished` where that is not known."""
    if run.result is None:
        return {True: "running", False: "stopped", None: "unfinished"}[run.running]
    return str(run.result.get("status", "unfinished"))


def subtitle(run: RunFiles) -> str:
    """Return the model in a few words."""
    keys = ("model.family", "model.size", "model.path", "model.dtype", "engine.kind")
    return " · ".join(
        value for key in keys if (value := run.setting(key)) not in (None, "", "null", "~")
    )


def headline(run: RunFiles) -> list[Stat]:
    """Return the numbers of the header.

    Every run has the same labels in the same order, so that runs can be compared side by side.
    """
    result = run.result or {}
    last = run.steps[-1] if run.steps else None
    evaluated = [row for row in run.evaluations if row.exact_match is not None]
    steps = number_in(result, "steps") if run.result else (last.step if last else None)
    epochs = number_in(result, "epochs") if run.result else (last.epoch if last else None)
    seconds = number_in(result, "train_seconds") if run.result else (last.seconds if last else None)
    ledger = result.get("ledger")
    distinct = (
        number_in(ledger, "distinct")
        if isinstance(ledger, dict)
        else (last.distinct_samples if last else None)
    )
    train = run.data.get("train")
    kept = number_in(train, "kept") if isinstance(train, dict) else None
    planned = run.setting("train.steps")
    nll, memory = number_in(result, "test_nll"), number_in(result, "peak_memory_mib")
    return [
        _test_exact_match(run),
        Stat(
            "Test NLL",
            _known(in_words, nll),
            "nats per supervised token" if nll is not None else _why_untested(run),
        ),
        Stat(
            "Validation exact match",
            percent(evaluated[-1].exact_match) if evaluated else None,
            f"at step {evaluated[-1].step:,}" if evaluated else "no evaluation so far",
        ),
        Stat(
            "Steps",
            _known(in_words, steps),
            f"of {int(planned):,}" if planned and planned.isdecimal() else "",
        ),
        Stat("Epochs", _known(in_words, epochs)),
        Stat("Training time", _known(duration, seconds)),
        Stat(
            "Distinct rows seen",
            _known(in_words, distinct),
            f"of {in_words(kept)}" if kept is not None else "",
        ),
        Stat("Parameters", _known(in_words, number_in(result, "parameters"))),
        Stat("Peak memory", None if memory is None else f"{in_words(round(memory))} MiB"),
    ]


def _known(words: Any, value: float | None) -> str | None:
    return None if value is None else words(value)


def _test_exact_match(run: RunFiles) -> Stat:
    result = run.result or {}
    share, rows = number_in(result, "test_exact_match"), number_in(result, "test_samples")
    if share is None:
        return Stat("Test exact match", None, _why_untested(run))
    if rows is None or not 1 <= rows < math.inf or not 0 <= share <= 1:
        return Stat(
            "Test exact match",
            percent(share),
            "the number of test rows is not known, so there is no interval",
        )
    right = round(share * rows)
    low, high = wilson_interval(right, int(rows))
    note = (
        f"{right:,} of {plural(int(rows), 'row')}; 95 % interval {100 * low:.1f} to"
        f" {100 * high:.1f} %"
    )
    return Stat("Test exact match", f"{100 * share:.1f} %", note, (low, high), share)


def _why_untested(run: RunFiles) -> str:
    if run.result is None:
        return "the run has no result yet"
    return (
        "there are no test rows"
        if run.data and "test" not in run.data
        else "result.json does not have it"
    )


def checks(run: RunFiles) -> list[CheckLine]:
    """Return the checks of the run, failures first.

    A check that is not known to have run is never among the passed.
    """
    found = (run.result or {}).get("checks")
    order = {"failed": 0, "not-run": 1, "passed": 2}
    rows = []
    for rule, reported in found.items() if isinstance(found, dict) else ():
        texts = (RULES[rule].code, RULES[rule].summary) if rule in RULES else ("", "")
        state = reported if isinstance(reported, str) and reported in order else "not-run"
        rows.append(CheckLine(state, rule, *texts))
    return sorted(rows, key=lambda check: order[check.state])


def check_counts(states: Iterable[str]) -> str:
    """Return `12 passed, 1 failed, 2 not run`, without the counts that are 0."""
    counts = Counter(states)
    return ", ".join(
        f"{counts[state]} {state.replace('-', ' ')}"
        for state in ("passed", "failed", "not-run")
        if counts[state]
    )


def all_states(run: RunFiles) -> list[str]:
    """Return how each check ended, the proofs before the run too: what a header counts."""
    proofs = read_proofs(run.folder) or {"rows": ()}
    return [check.state for check in checks(run)] + [proof["state"] for proof in proofs["rows"]]


def splits(run: RunFiles) -> list[SplitLine]:
    """Return the data ledger: every row is kept, or dropped for a stated reason."""
    return [
        _split(name, content) for name, content in run.data.items() if isinstance(content, dict)
    ]


def _split(name: str, content: Mapping[str, Any]) -> SplitLine:
    dropped = _records(content.get("dropped"))
    rows, kept, videos = (number_in(content, key) for key in ("rows", "kept", "videos"))
    counts = {
        "Rows": rows,
        "Kept": kept,
        "Dropped": len(dropped),
        "Truncated": number_in(content, "truncated"),
        "Longest, tokens": number_in(content, "longest"),
        "All tokens": number_in(content, "tokens"),
        "Supervised": number_in(content, "supervised_tokens"),
        "Images": number_in(content, "images"),
        **({"Videos": videos} if videos else {}),
    }
    return SplitLine(
        name,
        tuple((label, in_words(count)) for label, count in counts.items()),
        f"{in_words(kept)} kept + {len(dropped):,} dropped of {in_words(rows)} rows",
        None if rows is None or kept is None else rows == kept + len(dropped),
        _records(content.get("files")),
        dropped[:_MOST_DROPPED],
        tuple(Counter(str(row.get("rule", "no reason given")) for row in dropped).most_common()),
        max(0, len(dropped) - _MOST_DROPPED),
    )


def _records(value: Any) -> tuple[Mapping[str, Any], ...]:
    return (
        tuple(item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()
    )


def training_ledger(run: RunFiles) -> tuple[str, bool] | None:
    """Return the sum of the rows that training saw, in words, and whether it adds up."""
    ledger = (run.result or {}).get("ledger")
    if not isinstance(ledger, dict):
        return None
    seen, trained, dropped, samples = (
        number_in(ledger, key) for key in ("seen", "trained", "dropped", "samples")
    )
    if seen is None or trained is None or dropped is None:
        return None
    words = (
        f"{in_words(trained)} trained on + {in_words(dropped)} dropped of {in_words(seen)} rows"
        " seen"
    )
    if samples is not None:
        words += (
            f"; {in_words(samples)} samples over {in_words(number_in(ledger, 'epochs'))} epochs"
        )
    return words, seen == trained + dropped


def history(run: RunFiles) -> list[str]:
    """Return in sentences what a run began with, and how its end was chosen."""
    result, sentences = run.result or {}, []
    if (source := run.setting("train.from")) not in (None, "", "null", "~"):
        sentences.append(f"It began with the weights of {source}.")
    extended = result.get("extended")
    for each in extended if isinstance(extended, list) else ():
        if isinstance(each, dict):
            planned, steps, rate = (
                number_in(each, key) for key in ("planned_steps", "steps", "rate")
            )
            after = in_words(number_in(each, "after_step"))
            sentences.append(
                f"After step {after} its end was moved from step {in_words(planned)} to"
                f" {in_words(steps)}; the learning rate then was {in_words(rate)}."
            )
    early, best = result.get("stopped_early"), result.get("best")
    if isinstance(early, dict):
        after, of = (in_words(number_in(early, key)) for key in ("after_step", "of_steps"))
        sentences.append(
            f"It stopped early after step {after} of {of}: its validation score got no better."
        )
    if isinstance(best, dict):
        step, value = (in_words(number_in(best, key)) for key in ("step", "value"))
        what = "is exported, and what the test rows score" if best.get("exported") else "is lost"
        sentences.append(f"Step {step}, the best by {best.get('metric')} ({value}), {what}.")
    return sentences


def notices(run: RunFiles) -> list[str]:
    """Return notes on records of the run that are missing or do not fit together."""
    found = list(run.notices)
    positions = [step.step for step in run.steps]
    again = sum(after <= before for before, after in pairwise(positions))
    missing = sum(after > before + 1 for before, after in pairwise(positions))
    if again:
        found.append(
            f"metrics.jsonl: the step number does not rise in {plural(again, 'place')}; steps are"
            " there twice."
        )
    if missing:
        found.append(f"metrics.jsonl: steps are missing in {plural(missing, 'place')}.")
    share, rows = (
        number_in(run.result or {}, "test_exact_match"),
        number_in(run.result or {}, "test_samples"),
    )
    if run.predictions and share is not None and rows is not None:
        right = sum(prediction.correct for prediction in run.predictions)
        reported = share * rows
        reported = round(reported) if math.isfinite(reported) else reported
        if (right, len(run.predictions)) != (reported, rows):
            found.append(
                f"predictions.jsonl has {right:,} right of {len(run.predictions):,} rows, "
                f"but result.json says {reported:,} of {in_words(rows)}."
            )
    found += [
        f"data.json: {split.name} does not add up: {split.sum}."
        for split in splits(run)
        if split.adds_up is False
    ]
    found += source_sums(run)
    ledger = training_ledger(run)
    if ledger and not ledger[1]:
        found.append(f"result.json: the rows do not add up: {ledger[0]}.")
    failed = [check.rule for check in checks(run) if check.state == "failed"]
    if failed:
        found.append(f"{plural(len(failed), 'check')} failed: {', '.join(failed)}.")
    return found


def commands(run: RunFiles) -> list[tuple[str, str]]:
    """Return the commands to type next, each with what it does."""
    folder = shlex.quote(str(run.folder))
    config, trained = shlex.quote(str(run.folder / "config.yaml")), bool(run.checkpoints)
    lines = {
        "Follow it while it runs": (run.result is None, f"vtool report {folder} --follow"),
        "Resume from the newest checkpoint": (
            status(run) != "finished",
            f"vtool train sft {config}",
        ),
        "Ask the trained model": (trained, f"vtool predict {folder} --image FILE"),
        "Score it on rows of your own": (trained, f"vtool evaluate {folder} ROWS"),
        "Write it as a Hugging Face folder": (trained, f"vtool export {folder}"),
        "Compare it with another run": (True, f"vtool report {folder} OTHER-RUN"),
    }
    return [(what, command) for what, (applies, command) in lines.items() if applies]
