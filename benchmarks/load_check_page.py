"""Writes docs/load-check-results.md from the JSON of whole sweeps.

    vtool load-check --all vllm --python EXE --format json > new.json
    python -m benchmarks.load_check_page "vLLM 0.20.1=old.json" "vLLM 0.32.0=new.json"

A later file of the same version replaces the names that an earlier one has too. Run it where the
sweeps ran: the text of each line that keeps a tensor is read from the file that the finding names.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vtool.diagnostics.rules_loading import CLASS_RULES, FRAMEWORK_CLASS_RULES

PAGE = Path(__file__).parent.parent / "docs" / "load-check-results.md"
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
"""Groups of reasons for no verdict; the first one whose pattern is found."""
MOST_REASONS = 3
OUTPUTS = ("logits", "hidden states", "image features")
"""Outputs of a class that are compared, in the words of `details.subject.oracle`."""
Result = Mapping[str, Any]


def main(arguments: Sequence[str]) -> None:
    """Write the page from arguments VERSION=FILE, of which a version may have several."""
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
    yield from ["", "## What the verdicts of judged classes rest on", ""]
    yield from _oracles(sweeps)
    yield from ["", "## Every check", "", "Of judged classes; “not run” is no pass.", ""]
    yield from _checks(sweeps)
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


def _judged(results: Mapping[str, Result]) -> list[Result]:
    return [result for result in results.values() if result["verdict"] in ("clean", "unsafe")]


def _oracles(sweeps: Mapping[str, Mapping[str, Result]]) -> Iterator[str]:
    """Yield a table of what the classes were compared with."""
    rows = []
    for version, results in sweeps.items():
        said = [str(result["details"]["subject"]["oracle"]) for result in _judged(results)]
        names = [oracle for oracle in said if not oracle.startswith("loading only")]
        rows.append(
            [
                version,
                len(said),
                len(names),
                len(said) - len(names),
                *(sum(f"its {output}" in oracle for oracle in said) for output in OUTPUTS),
            ]
        )
    heads = ["known names", "names found by trying", *OUTPUTS]
    yield from _table(["version", "judged", *heads], rows)


def _checks(sweeps: Mapping[str, Mapping[str, Result]]) -> Iterator[str]:
    """Yield a table of all checks: how many classes passed, failed, or did not run them."""
    rows = []
    for version, results in sweeps.items():
        judged = _judged(results)
        for rule in (*CLASS_RULES, *FRAMEWORK_CLASS_RULES):
            states = Counter(result["checks"].get(rule) for result in judged)
            why = Counter(
                _short(result["details"][rule]["reason"])
                for result in judged
                if result["checks"].get(rule) == "not-run"
            )
            reasons = "; ".join(
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
                        reasons,
                    ]
                )
    yield from _table(
        ["version", "check", "passed", "failed", "not run", "the most frequent reasons"], rows
    )


def _short(reason: str) -> str:
    """Return a reason without names, numbers and places, to count those of a kind together."""
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
    """Yield a table by the line that keeps the tensors.

    It has the line's text, and the names that reach it, each with its smallest safe ring.
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


HEAD = """# Results of load-check: {versions}

Swept on {date}, on a CPU with other work on it, by `vtool load-check --all vllm` and `--all
sglang`, with a ring of one buffer. [The guide](load-check.md) says what a verdict means, and what
is not judged. This page is generated; to make it again:

    vtool load-check --all vllm --python EXE --format json > FILE  # for each version; --all sglang
    python -m benchmarks.load_check_page "NAME VERSION=FILE" …

## Counts
"""

if __name__ == "__main__":
    main(sys.argv[1:])
