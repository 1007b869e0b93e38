"""Write docs/load-check.md from the JSON of whole sweeps.

    vtool load-check --all vllm --python EXE --format json > new.json
    python -m benchmarks.load_check_page "vLLM 0.20.1=old.json" "SGLang 0.5.23=sglang.json"

What a later file of the same version says of a name takes the place of what an earlier one says.
Run it where the sweeps ran: the text of each line that keeps a tensor is read from the file that
the finding names.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vtool.diagnostics.rules_loading import VLLM_CLASS_RULES

PAGE = Path(__file__).parent.parent / "docs" / "load-check.md"
REASONS = (
    ("names of its checkpoint were not found", r"names were found for"),
    ("it takes more memory or time than the limits give", r"^it took (more|longer)"),
    (
        "a library is not installed, or is of another version",
        r"ModuleNotFoundError|ImportError|failed to be inspected|No module named|timm",
    ),
    (
        "it does not run on a CPU",
        (
            r"on CPU|is not supported|not support|NotImplementedError|no valid"
            r" sparse|kernel|requires the V2|dummy base"
        ),
    ),
    ("its config, or its processor, is on the hub only", r"."),
)
"""The kinds of reasons why there is no verdict; the first pattern that is found counts."""
MOST_REASONS = 3
Result = Mapping[str, Any]


def main(arguments: Sequence[str]) -> None:
    """Write the page from NAME VERSION=FILE…, the files of a version one after the other."""
    sweeps: dict[str, dict[str, Result]] = {}
    for version, _, file in (argument.partition("=") for argument in arguments):
        sweeps.setdefault(version, {}).update(_read(Path(file)))
    PAGE.write_text("\n".join(_page(sweeps)) + "\n")


def _read(file: Path) -> dict[str, Result]:
    return {
        result["subject"].partition(":")[2]: result
        for result in json.loads(file.read_text())["results"]
    }


def _page(sweeps: Mapping[str, Mapping[str, Result]]) -> Iterator[str]:
    yield from HEAD.format(date=datetime.now(UTC).date(), versions=", ".join(sweeps)).splitlines()
    yield ""
    yield from _counts(sweeps)
    yield from ["", "## Two ranks, fp8, and what is made of loaded weights", ""]
    yield from _further(sweeps)
    for version, results in sweeps.items():
        yield from ["", f"## Unsafe in {version}", ""]
        yield from _unsafe(results)
    for version, results in sweeps.items():
        yield from ["", f"## Without a verdict in {version}", ""]
        yield from _not_run(results)
    yield from ["", "## Every name", "", "“–”: that version has no such name.", ""]
    yield from _table(
        ["name", *sweeps],
        [
            [f"`{name}`", *(_verdict(sweep, name) for sweep in sweeps.values())]
            for name in _names(sweeps)
        ],
    )


def _further(sweeps: Mapping[str, Mapping[str, Result]]) -> Iterator[str]:
    """Return the results of the checks beyond one process and bfloat16.

    How many classes passed, failed, or could not be asked, and why not.
    """
    rows = []
    for version, results in sweeps.items():
        judged = [result for result in results.values() if result["verdict"] in ("clean", "unsafe")]
        for rule in VLLM_CLASS_RULES:
            states = Counter(result["checks"].get(rule) for result in judged)
            why = Counter(
                _short(result["details"][rule]["reason"])
                for result in judged
                if result["checks"].get(rule) == "not-run"
            )
            told = "; ".join(
                f"{count}: {reason}" for reason, count in why.most_common(MOST_REASONS)
            )
            if states["passed"] + states["failed"] + states["not-run"]:
                rows.append(
                    [
                        version,
                        f"`{rule}`",
                        states["passed"],
                        states["failed"],
                        states["not-run"],
                        told,
                    ]
                )
    yield from _table(
        ["version", "check", "passed", "failed", "not run", "the most frequent reasons"], rows
    )


def _short(reason: str) -> str:
    """Return a reason without names, numbers and places, so that similar ones count as one."""
    reason = re.sub(r"`[^`]*`", "…", re.sub(r"\[[\d, ]+\]|\(\w+\.py:\d+\)", "", reason))
    return " ".join(re.sub(r"\d+", "N", reason).split())[:90].replace("|", "\\|").strip(" ,")


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"


def _names(sweeps: Mapping[str, Mapping[str, Result]]) -> list[str]:
    return sorted({name for results in sweeps.values() for name in results}, key=str.casefold)


def _verdict(results: Mapping[str, Result], name: str) -> str:
    if name not in results:
        return "–"
    verdict = str(results[name]["verdict"])
    return f"**{verdict}**" if verdict == "unsafe" else verdict


def _counts(sweeps: Mapping[str, Mapping[str, Result]]) -> Iterator[str]:
    words = ("clean", "unsafe", "failed", "not-run")
    rows = []
    for version, results in sweeps.items():
        counts = Counter(result["verdict"] for result in results.values())
        replaced = sum(
            bool(result.get("details", {}).get("subject", {}).get("parts_replaced"))
            for result in results.values()
        )
        rows.append(
            [
                version,
                len(results),
                *(counts[word] for word in words),
                len(results) - counts["not-run"],
                replaced,
            ]
        )
    yield from _table(["version", "names", *words, "judged", "of them with parts replaced"], rows)


def _unsafe(results: Mapping[str, Result]) -> Iterator[str]:
    """Return the unsafe classes by the line that keeps the tensors.

    Its text, and the names that reach it with the smallest safe number of slots of each.
    """
    lines: dict[tuple[str, str, int], dict[str, str]] = defaultdict(dict)
    texts: dict[tuple[str, str, int], str] = {}
    for name, result in results.items():
        for finding in result["findings"]:
            if finding["severity"] == "error":
                origin = finding.get("origin", {})
                key = (finding["rule"], _relative(origin.get("file", "")), origin.get("line", 0))
                lines[key][name] = _slots(result) if finding["rule"] == "stale-reference" else ""
                texts[key] = _text(origin)
    rows = [
        [
            rule,
            f"{file}:{line}",
            f"`{texts[rule, file, line]}`",
            ", ".join(f"`{name}`{slots}" for name, slots in sorted(names.items())),
        ]
        for (rule, file, line), names in sorted(lines.items())
    ]
    yield from _table(["rule", "line", "its text", "names (slots that are enough / tensors)"], rows)


def _slots(result: Result) -> str:
    detail = result["details"]["stale-reference"]
    return f" ({detail.get('smallest_safe_slots', 'none')}/{detail['measured']['tensors']})"


def _relative(file: str) -> str:
    return file[max(file.rfind(f"/{package}/") for package in ("vllm", "sglang")) + 1 :]


def _text(origin: Mapping[str, Any]) -> str:
    lines = (
        Path(origin["file"]).read_text().splitlines()
        if Path(origin.get("file", "")).is_file()
        else []
    )
    return lines[origin["line"] - 1].strip().replace("|", "\\|") if lines else ""


def _not_run(results: Mapping[str, Result]) -> Iterator[str]:
    groups: dict[str, list[tuple[str, str]]] = {words: [] for words, _ in REASONS}
    for name, result in results.items():
        if result["verdict"] == "not-run":
            reason = _reason(result)
            groups[next(words for words, pattern in REASONS if re.search(pattern, reason))].append(
                (name, reason)
            )
    for words, members in groups.items():
        if members:
            yield from [f"**{len(members)}: {words}**", ""]
            yield from _table(
                ["name", "reason"], [[f"`{name}`", reason] for name, reason in sorted(members)]
            )
            yield ""


def _reason(result: Result) -> str:
    reasons = [
        detail["reason"] for detail in result.get("details", {}).values() if "reason" in detail
    ]
    found = reasons[0] if reasons else result["findings"][0]["message"]
    found = re.sub(r"/\S*?/(?:site|site-packages)/|/tmp/\S+/", "", str(found))
    found = re.sub(
        r"\d+ validation errors? for \w+ Value error, |\[type=.*?(?=\(\w+\.py|$)", "", found
    )
    return " ".join(found[:200].split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


HEAD = """# load-check: {versions}

Swept on {date}, on a CPU with other work on it, by `vtool load-check --all vllm` and `--all
sglang`, with a ring of one buffer. This page is generated; to make it again:

```
vtool load-check --all vllm --python EXE --format json > FILE  # for each version; --all sglang
python -m benchmarks.load_check_page "NAME VERSION=FILE" …
```

## What a verdict means

- **unsafe**: loaded by a loader that uses its buffer again, the class ends with other bytes in its
  parameters than it ends with when every tensor stays valid; or another rule has found an error. Of
  each class at least one of that version's own ways of loading hands it tensors that do not stay:
  `model.load_weights` called directly, and `reload_weights` with an iterator, as weight
  synchronisation does. vLLM's loaders of safetensors and of Run:ai own what they hand over, and are
  safe; `details.reachable_via` and `protected_by` of each class say what was seen when these ways
  were driven. SGLang's Run:ai loader marks what does not stay, so that classes can copy it: those
  named here do not look at the mark. The slots are those of the smallest ring of buffers with which
  the class loads rightly. Where they are one more than the tensors, all of them have to stay valid,
  and still do when the class asks for one more.
- **clean**: no error in any check that was run. Warnings and notes are in the JSON.
- **not-run**: no verdict, for the one reason given. It has not passed.

A class is made at tiny size, with the checkpoint of transformers' class of its name where there is
one, else of a related class, else under names that the class was found to take (then nothing is
said of parameters that nothing is loaded into, nor of tensors that are not read). Parts that do not
run on a CPU (attention backends, kernels of experts, activations that a build lacks) are replaced;
the class's own `load_weights` never is. `details.subject` of each result says what was loaded, and
what was replaced.

## What is not judged

- Other quantized formats than the one of `quantised-load`: fp8 with a scale for each row, as
  compressed-tensors writes it. A folder of another format is judged as it is, where its class can
  be made on a CPU.
- Pipeline and expert parallelism. Of two ranks of tensor parallelism the rule `shard-mismatch`
  compares what both hold together with what one rank holds alone, as a set of values: which rank
  has which part, and in what order, is not looked at.
- Places: a weight that always goes into a wrong parameter of the same shape makes no difference
  between two loads.
- Code that only a real checkpoint reaches: adapters, scales, other formats, layers of kinds that
  two layers do not have.

## Counts
"""

if __name__ == "__main__":
    main(sys.argv[1:])
