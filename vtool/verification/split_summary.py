"""Collect counts and a few whole rows of a split for the page of `vtool verify --html`.

All of it is plain values, as many for a million rows as for a hundred.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtool.config.schema import Run
from vtool.data.box_conventions import IN_WORDS, UNITS
from vtool.data.box_findings import BoxSummary
from vtool.data.budgets import cheapest, fills, nearby_budgets, steps_to_pack
from vtool.data.encode import encode_row
from vtool.data.loader import EncodedRows
from vtool.data.mixture import count_sources, parts_of_epoch
from vtool.data.plan import Plan
from vtool.data.quality import repeated
from vtool.data.row import texts_of
from vtool.data.row_audits import RowAudits
from vtool.diagnostics import Diagnostic, Findings
from vtool.verification.pieces import pieces
from vtool.verification.spread import histogram
from vtool.verification.thumbnails import Thumbnails

FEW = 3
"""Rows that are shown of each kind; of those that cannot be used, of each rule."""
MOST_RULES = 8
MOST_TOKENS = 180
"""Tokens of a piece that are shown."""
MOST_PIECES = 40
MOST_CHARACTERS = 1200
"""Characters of the text of a row that has no tokens, and of a piece."""
PICTURE_ROWS = 2000
"""Rows whose pictures are opened for their sizes, which no audit keeps."""
COMMON_SIZES = 8
SIGNS = {ord("\n"): "\u2424", ord("\t"): "\u2409"}
"""Unicode's signs for a new line and a tab: a backslash and an n may also be what a text has."""


def summarize_split(
    run: Run, split: str, rows: EncodedRows, audits: RowAudits, boxes: BoxSummary
) -> dict[str, Any]:
    """Return the page's data about a split: its lengths, pictures, token budgets and rows."""
    table = audits.usable
    packed = run.data.packing != "none"
    small = Thumbnails(rows, boxes.unit or boxes.expected)
    return {
        "split": split,
        "rows": len(audits),
        "usable": len(table),
        "lengths": _spread(table["tokens"]) | {"supervised": _sum(table["supervised"])},
        "images": _spread(table["images"]),
        "videos": _spread(table["videos"]),
        "pictures": _pictures(rows, table),
        "boxes": _boxes(run, boxes),
        "budgets": _budgets(run, rows, audits) if split == "train" and packed else None,
        "groups": [
            {"kind": kind, "of": count, "rows": list(shown)}
            for kind, count, shown in _groups(rows, audits, small)
        ],
        "unusable": dict(Counter(one.rule for one in audits.findings.values()).most_common()),
    }


def _spread(values: NDArray[Any]) -> dict[str, Any]:
    if not len(values):
        return {"bars": [], "sum": 0}
    return {
        "bars": [asdict(bar) for bar in histogram(values)],
        "least": int(values.min()),
        "most": int(values.max()),
        "median": float(np.median(values)),
        "sum": _sum(values),
    }


def _sum(values: NDArray[Any]) -> int:
    return int(values.sum(dtype=np.int64))


def _pictures(rows: EncodedRows, table: NDArray[np.void]) -> dict[str, Any]:
    """Return the sizes of pictures, of at most so many rows, which are evenly spread."""
    having = table["index"][table["images"] > 0]
    asked = having[np.linspace(0, len(having) - 1, min(len(having), PICTURE_ROWS)).astype(int)]
    sizes: Counter[tuple[int, int]] = Counter()
    unread = 0
    for index in asked.tolist():
        try:
            pictures = rows.rows.row(index).images
        except Findings:  # it has changed since its audit
            unread += 1
            continue
        for picture in pictures:
            try:
                sizes[rows.processor.pictures.size(picture)] += 1
            except Exception:  # each decoder raises what its file format raises
                unread += 1
    areas = np.repeat(
        np.array([width * height for width, height in sizes], np.int64),
        np.array(list(sizes.values()), np.int64),
    )
    return _spread(areas) | {
        "rows": len(having),
        "rows_looked_at": len(asked),
        "unread": unread,
        "count": sizes.total(),
        "sizes": len(sizes),
        "common": [[*size, count] for size, count in sizes.most_common(COMMON_SIZES)],
    }


def _boxes(run: Run, boxes: BoxSummary) -> dict[str, Any] | None:
    """Return the rows' boxes, their unit in words, and what they were rescaled from."""
    if not boxes.rows:
        return None
    asked = run.data.coordinates
    rescaled = asked is not None and asked.source != asked.to
    return {
        "rows": boxes.rows,
        "count": boxes.boxes,
        "unit": IN_WORDS[boxes.unit] if boxes.unit else None,
        "from": UNITS[asked.source] if asked and rescaled else None,
    }


def _budgets(run: Run, rows: EncodedRows, audits: RowAudits) -> dict[str, Any]:
    """Return the fill of packed passes at some budgets, as the run's first steps would have it."""
    lengths, world = audits.usable["tokens"].tolist(), run.launch.nproc or 1
    batch, asked = run.data.global_batch_size, run.data.micro_batch_tokens
    assert asked is not None, "a rule demands it"
    kept = [count.kept for count in count_sources(rows.rows, audits)]
    plan = Plan(len(lengths), batch, run.run.seed, parts_of_epoch(run.data.train, kept))
    steps = steps_to_pack(plan) if lengths else 0
    found = list(fills(plan, lengths, world, nearby_budgets(lengths, asked))) if steps else []
    return {
        "asked": asked,
        "batch": batch,
        "world": world,
        "steps": steps,
        "of": plan.steps_per_epoch if lengths else 0,
        "longest": max(lengths, default=0),
        "fills": [
            {"budget": one.budget, "passes": one.passes / steps, "fill": one.fill} for one in found
        ],
        "cheapest": cheapest(found).budget if found else None,
    }


def _groups(
    rows: EncodedRows, audits: RowAudits, small: Thumbnails
) -> Iterator[tuple[str, int, Iterator[dict[str, Any]]]]:
    """Yield kinds of rows: the name of each, how many there are, and the few that are shown."""
    table = audits.usable
    by_length = np.argsort(table["tokens"], kind="stable")
    yield "first", len(table), _shown(rows, small, table["index"][:FEW].tolist())
    yield "longest", len(table), _shown(rows, small, table["index"][by_length[::-1][:FEW]].tolist())
    yield "shortest", len(table), _shown(rows, small, table["index"][by_length[:FEW]].tolist())
    again, first = repeated(table)
    yield (
        "repeated",
        len(again),
        (
            _usable(rows, small, int(table["index"][at]))
            | {"same_as": rows.rows.name(int(table["index"][before]))}
            for at, before in zip(again[:FEW].tolist(), first[:FEW].tolist(), strict=True)
        ),
    )
    by_rule: dict[str, list[int]] = {}
    for index, finding in audits.findings.items():
        by_rule.setdefault(finding.rule, []).append(index)
    few = sorted(by_rule.values(), key=len, reverse=True)[:MOST_RULES]
    unusable = chain.from_iterable(indices[:FEW] for indices in few)
    yield (
        "unusable",
        len(audits.findings),
        (_unusable(rows, small, index, audits.findings[index]) for index in unusable),
    )


def _shown(
    rows: EncodedRows, small: Thumbnails, indices: Sequence[int]
) -> Iterator[dict[str, Any]]:
    return (_usable(rows, small, index) for index in indices)


def _usable(rows: EncodedRows, small: Thumbnails, index: int) -> dict[str, Any]:
    try:
        return _tokens(rows, index) | small.of(index)
    except Findings as findings:  # it has changed since its audit
        return _unusable(rows, small, index, findings.diagnostics[0])


def _unusable(
    rows: EncodedRows, small: Thumbnails, index: int, finding: Diagnostic
) -> dict[str, Any]:
    """Return a row with as much of it as can be had: its tokens, its texts, or the reason alone."""
    problem = {"problem": finding.message, "rule": finding.rule, **small.of(index)}
    try:
        return _tokens(rows, index) | problem
    except Exception:  # what the reason says
        pass
    try:
        row = rows.rows.row(index)
        texts = [
            [str(message["role"]), _cut(" ".join(texts_of(message)))] for message in row.messages
        ]
    except Exception:  # what the reason says
        texts = []
    name = rows.rows.name(index)
    more = max(0, len(texts) - MOST_PIECES)
    return {"row": name, "texts": texts[:MOST_PIECES], "more": more, **problem}


def _cut(text: str) -> str:
    """Return the beginning of a text, with signs for what a document of results would escape."""
    cut = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …"
    return cut.translate(SIGNS)


def _tokens(rows: EncodedRows, index: int) -> dict[str, Any]:
    """Return a row's tokens as text; of one that is too long, all, and not the part that fits."""
    settings = rows.settings
    if settings.on_overlong != "truncate":
        settings = settings.model_copy(update={"max_length": None})
    row = rows.rows.row(index)
    sample = rows.cache.get(index) or encode_row(row, index, rows.processor, settings, measure=True)
    made = list(pieces(sample, rows.processor, MOST_TOKENS))
    half = MOST_PIECES // 2
    kept = made if len(made) <= MOST_PIECES else [*made[:half], *made[-half:]]
    return {
        "row": rows.rows.name(index),
        "tokens": len(sample.input_ids),
        "supervised": sample.supervised,
        "truncated": sample.truncated,
        "images": len(row.images),
        "videos": len(row.videos),
        "pieces": [
            asdict(piece) | {"text": _cut(piece.text), "rest": _cut(piece.rest)} for piece in kept
        ],
        "gap": half if len(made) > MOST_PIECES else None,
        "more": len(made) - len(kept),
    }
