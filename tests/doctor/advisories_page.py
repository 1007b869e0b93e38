"""docs/advisories.md and the JSON schema, made of vtool/doctor/advisories.yaml."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from vtool.doctor.advisories import ADVISORIES_FILE, Advisories, Advisory, advisories, schema

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/advisories.md"
SCHEMA = ADVISORIES_FILE.with_suffix(".schema.json")
_HEAD = """# Advisories: known silent bugs of released packages

What pip-audit is for security, `vtool doctor` is for training that is silently wrong: it holds this
list against what is installed, from metadata alone. Nothing of it is imported.

    vtool doctor                                  # this Python, and what this machine can run
    vtool doctor --python env/bin/python          # another one: known silent bugs alone
    vtool doctor --python env/bin/python --from llamafactory my.yaml
    vtool explain trl-4201                        # one of them in full

- **A warning**: the release that is installed has the bug, and what else it needs is there.
- **An error** (exit status 1): the recipe, or the other trainer's file, shows its condition too.
  Where the file shows that it does not hold, or that trainer does not run that code, nothing. A
  file of TRL is taken for one of `trl sft`, one of verl for one of its SFT trainer.
- **No verdict**: a fork, an editable install, a branch, a package without pip's metadata or with
  damaged metadata, a release newer or older than those that were looked at. Said in a line each,
  and never a pass.

Each edge of a range says how it is known. *ran*: we saw it, and *verified* names the run. *read*:
the code of that release was read. *reported*: upstream says so. Between an edge with the bug and
one without, a release gets no verdict. *By design*: upstream documents it, or its code says so.

This page is made of `vtool/doctor/advisories.yaml` by `make goldens`;
[CONTRIBUTING](../CONTRIBUTING.md#an-advisory) says how to add one.
"""


def page() -> str:
    known = advisories()
    return "\n".join([_HEAD, *_counts(known), *_index(known), *_sections(known)])


def schema_text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _counts(known: Advisories) -> Iterator[str]:
    ways = {"in the time machine": 0, "by another run of ours": 0, "by reading": 0, "reported": 0}
    for one in known.advisories:
        way = "in the time machine" if one.case else "by another run of ours" if one.seen else ""
        ways[way or ("reported" if one.verified.startswith("reported") else "by reading")] += 1
    still = sum(one.releases is not None and one.fixed is None for one in known.advisories)
    yield _wrap(
        f"{len(known.advisories)} advisories of {len(known.packages)} packages, {still} of them"
        f" not fixed in any release. Verified: {', '.join(f'{n} {w}' for w, n in ways.items())}."
    )
    yield ""


def _index(known: Advisories) -> Iterator[str]:
    yield "| package | advisory | has it | fixed |"
    yield "|---|---|---|---|"
    for one in known.advisories:
        since, last = (edge.partition(" ")[0] for edge in (*one.edges, "-", "-")[:2])
        state = one.state.removeprefix("fixed in ")
        yield (
            f"| {one.package} | [{one.name}](#{one.name}): {one.title.replace('|', chr(92) + '|')}"
            f" | {since if since == last else f'{since} to {last}'} | {state} |"
        )
    yield ""


def _sections(known: Advisories) -> Iterator[str]:
    for package in known.packages:
        yield f"## {package}\n"
        for one in known.advisories:
            if one.package == package:
                yield _section(one)


def _section(one: Advisory) -> str:
    beside = ", ".join(f"{name} {wanted}".strip() for name, wanted in one.beside.items())
    fields = {
        "releases": one.where,
        "beside": beside,
        "when": one.condition,
        "effect": one.effect,
        "remedy": one.remedy,
        "found by": f"`{one.rule}`" if one.rule else "",
        "verified": _link(one.verified),
        "upstream": ", ".join(f"[{_short(url)}]({url})" for url in one.upstream),
    }
    lines = [_wrap(f"- {head}: {text}", "  ") for head, text in fields.items() if text]
    title = _wrap(f"{one.title[0].upper()}{one.title[1:]}.")
    return "\n".join([f"### {one.name}", "", title, "", *lines, ""])


def _link(verified: str) -> str:
    if verified.startswith("timemachine/"):
        return f"[{verified}](../{verified})"
    if verified.startswith("docs/"):
        return f"[{verified}]({verified.removeprefix('docs/')})"
    return verified


def _short(url: str) -> str:
    _, _, _, _, repository, kind, *rest = url.split("/")
    if kind == "commits":
        return f"{repository}: history of {rest[-1]}"
    (number,) = rest
    return f"{repository}#{number}" if number.isdigit() else f"{repository}@{number[:10]}"


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
