"""The page, made from the JSON of `vtool verify --html FILE --format json` alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vtool.report.files import load_template
from vtool.report.replaceable import write_page
from vtool.report.results import checks_of, findings_of
from vtool.report.words import in_words, percent
from vtool.version import __version__
from vtool.words import plural

_GROUPS = {
    "first": ("The first rows", ""),
    "longest": ("The longest rows", ""),
    "shortest": ("The shortest rows", ""),
    "repeated": ("Rows that are there before", "No row is there twice, in text and pictures."),
    "unusable": ("Rows that cannot be used", "Every row can be used."),
}
"""The titles of groups of rows, and the text where a group has no rows."""
_SPLITS = ("train", "validation", "test")
_LINE, _TAB = "\u2424", "\u2409"
"""The signs that stand for a new line and a tab in a document of results."""


def write_rows(document: Mapping[str, Any], output: Path) -> Path:
    """Write the page to `output`, and return `output`.

    Args:
        document: what `vtool.diagnostics.render.as_json` gives, and `--format json` prints.

    Raises:
        OSError: the page cannot be written.
    """
    return write_page(render_rows_page(document), output)


def render_rows_page(document: Mapping[str, Any]) -> str:
    """Return the page. The same document gives the same bytes."""
    here = Path(__file__).parent
    parts = [_part(result, at) for at, result in enumerate(document["results"], 1)]
    folders = (here, here.parent / "watch", here.parent / "load_check", here.parent)
    return load_template("rows.html.j2", *folders).render(
        version=__version__,
        made_by=document["tool"],
        title=parts[0]["title"],
        summary=document["summary"],
        parts=parts,
        absent=[
            f"data.{split}" for split in _SPLITS if not any(split == one["split"] for one in parts)
        ],
    )


def _part(result: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return the page's section for one result: of a split, or of a recipe's proofs."""
    look: Mapping[str, Any] | None = result.get("details", {}).get("look")
    split = look["split"] if look else None
    return {
        "id": f"part-{place}",
        "title": result["subject"].removesuffix(f": data.{split}"),
        "split": split,
        "name": f"data.{split}" if split else "Proofs of the recipe",
        "verdict": result["verdict"],
        "findings": findings_of(result),
        "checks": checks_of(result),
        "look": look,
        "tokenizer": result.get("details", {}).get("tokenizer", {}).get("is"),
        "headline": _headline(look) if look else [],
        "charts": _charts(look) if look else [],
        "budgets": look["budgets"] if look else None,
        "groups": [_group(group) for group in look["groups"]] if look else [],
        "unlooked": list(_not_shown(look)) if look else [],
    }


def _headline(look: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the numbers that are looked for first, each with its name and a note."""
    lengths, unusable = look["lengths"], look["rows"] - look["usable"]
    why = ", ".join(f"{count:,} {rule}" for rule, count in look["unusable"].items())
    found = [
        ("rows", f"{look['rows']:,}", ""),
        ("rows that cannot be used", f"{unusable:,}", why),
        ("tokens", f"{lengths['sum']:,}", ""),
    ]
    if lengths["sum"]:
        share = lengths["supervised"] / lengths["sum"]
        found.append(("of them supervised", percent(share), f"{lengths['supervised']:,}"))
        found.append(
            (
                "tokens a row, median",
                in_words(lengths["median"]),
                _from_to(lengths),
            )
        )
    for kind in ("images", "videos"):
        if count := look[kind]["sum"]:
            found.append((kind, f"{count:,}", ""))
    if boxes := look.get("boxes"):
        note = boxes["unit"] or "their unit is not told"
        note += f", rescaled from {boxes['from']}" if boxes["from"] else ""
        found.append(("boxes and points", f"{boxes['count']:,}", note))
    return found


def _charts(look: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield _chart("Tokens a row", "", look["lengths"], "row")
    yield _chart("Images a row", "", look["images"], "row", none="No row has an image.")
    if look["videos"]["sum"]:
        yield _chart("Videos a row", "", look["videos"], "row")
    yield _pictures(look["pictures"])


def _pictures(pictures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of images: each of them where they are few, else their pixels."""
    none = "No image's size was read." if pictures["rows"] else "No row has an image."
    common = [(f"{width} × {height}", count) for width, height, count in pictures["common"]]
    if pictures["sizes"] > len(common):
        most = ", ".join(f"{size}: {count:,}" for size, count in common)
        note = f"{plural(pictures['sizes'], 'size')}; the most frequent: {most}"
        return _chart("Pixels of an image", note, pictures, "image", none=none)
    return _bars("Sizes of images", "", common, "image", none, "")


def _chart(
    title: str, note: str, spread: Mapping[str, Any], noun: str, none: str = "No row can be used."
) -> dict[str, Any]:
    """Return the bars of a histogram; `none` without any value above 0."""
    if not spread["sum"]:
        return _bars(title, note, [], noun, none, "")
    median = "" if spread["least"] == spread["most"] else f", median {in_words(spread['median'])}"
    bars = [(_edges(bar["low"], bar["high"]), bar["count"]) for bar in spread["bars"]]
    return _bars(title, note, bars, noun, none, f"{_from_to(spread)}{median}")


def _from_to(spread: Mapping[str, Any]) -> str:
    low, high = (in_words(spread[name]) for name in ("least", "most"))
    return low if low == high else f"{low} to {high}"


def _bars(
    title: str, note: str, bars: list[tuple[str, int]], noun: str, none: str, facts: str
) -> dict[str, Any]:
    """Return labelled bars, each with its share of the longest."""
    largest = max((count for _, count in bars), default=0)
    return {
        "title": title,
        "note": note,
        "none": none,
        "facts": facts,
        "bars": [
            {
                "label": label,
                "count": count,
                "share": round(100 * count / largest, 2),
                "said": plural(count, noun),
            }
            for label, count in bars
        ],
    }


def _edges(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} – {high:,}"


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    title, none = _GROUPS[group["kind"]]
    counted = group["kind"] in ("repeated", "unusable") and group["of"]
    return {
        "title": title,
        "count": f"{len(group['rows'])} of {group['of']:,}" if counted else "",
        "none": none or "No row can be used.",
        "rows": [_row(row) for row in group["rows"]],
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    pieces = [
        piece | {"text": _lines(piece["text"]), "rest": _lines(piece["rest"])}
        for piece in row.get("pieces", ())
    ]
    facts = []
    if "tokens" in row:
        facts = [plural(row["tokens"], "token"), f"{row['supervised']:,} supervised"]
        facts += [plural(row["images"], "image")] if row["images"] else []
        facts += [plural(row["videos"], "video")] if row["videos"] else []
        facts += ["truncated"] if row["truncated"] else []
    return {
        **dict.fromkeys(("same_as", "problem", "rule", "gap", "thumbnails", "more_images")),
        **row,
        "pieces": pieces,
        "texts": [(role, _lines(text)) for role, text in row.get("texts", ())],
        "facts": ", ".join(facts),
    }


def _lines(text: str) -> str:
    """Show a new line and a tab by a sign, and act on them."""
    return text.replace(_LINE, "⏎\n").replace(_TAB, "→\t")


def _not_shown(look: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on the rows and sizes that the page does not show or was made without."""
    pictures, budgets = look["pictures"], look["budgets"]
    if pictures["rows_looked_at"] < pictures["rows"]:
        yield (
            f"Sizes of images were read in {pictures['rows_looked_at']:,} of"
            f" {pictures['rows']:,} rows with images, evenly spread; the audit opened all of them,"
            " and keeps no sizes."
        )
    if pictures["unread"]:
        yield f"Sizes that could not be read now: {pictures['unread']:,}."
    if budgets is not None and budgets["steps"] < budgets["of"]:
        yield (
            f"Token budgets: the first {budgets['steps']:,} of {budgets['of']:,} steps of an epoch"
            " were packed."
            if budgets["steps"]
            else "Token budgets: a step has too many rows to pack here."
        )
    shown = sum(len(group["rows"]) for group in look["groups"])
    if shown < look["rows"]:
        yield f"Of {plural(look['rows'], 'row')}, at most {shown:,} are shown; all were audited."
    if look["videos"]["sum"]:
        yield "Videos are not on this page, nor their sizes and lengths."
