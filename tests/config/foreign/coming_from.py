"""The tables of docs/coming-from.md, made from the words and from the trainers' own settings."""

import json
import re
from pathlib import Path

from vtool.config.foreign.known_words import TABLES
from vtool.config.foreign.more_words import AXOLOTL_WORDS, PEFT_WORDS, VERL_WORDS
from vtool.config.foreign.trainers import TRAINERS
from vtool.config.foreign.words import WORDS

_OTHERS = {"peft": PEFT_WORDS, "verl": VERL_WORDS, "axolotl": AXOLOTL_WORDS}
PAGE = Path(__file__).parents[3] / "docs/coming-from.md"


def renew(page: str) -> str:
    """Return the page with its tables made anew."""
    for name, table in (("releases", _releases()), ("words", _words())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        page, found = re.subn(
            f"{begin}.*?{end}", lambda _, text=f"{begin}\n{table}\n{end}": text, page, flags=re.S
        )
        assert found == 1, f"docs/coming-from.md has no part `{name}`"
    return page


def _releases() -> str:
    lines = [
        "| `--from` | releases | transformers with the newest | settings |",
        "|---|---|---|---|",
    ]
    for path in sorted(TABLES.glob("*.json")):
        table = json.loads(path.read_text("utf-8"))
        releases = ", ".join(table["releases"])
        beside = list(table["releases"].values())[-1] or "–"
        lines.append(f"| `{path.stem}` | {releases} | {beside} | {len(table['fields'])} |")
    return "\n".join(lines) + "\n"


def _words() -> str:
    lines = ["| there | of | here | |", "|---|---|---|---|"]
    for name, word in WORDS.items():
        of = [trainer.title for trainer in TRAINERS.values() if name in trainer.fields]
        of = ["all"] if len(of) == len(TRAINERS) else of
        of += [title for title, words in _OTHERS.items() if name in words]
        whose = ", ".join(of) or "earlier releases"
        ours = f"`{word.ours}`" if word.ours else "–"
        lines.append(f"| `{name}` | {whose} | {ours} | {word.how} |")
    return "\n".join(lines) + "\n"
