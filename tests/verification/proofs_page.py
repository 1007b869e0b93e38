"""The section of docs/verify.md on proofs: `make goldens` writes it."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import fill

from vtool.verification.proofs import PROOFS
from vtool.verification.proofs.proof import Proof

PAGE = Path(__file__).parents[2] / "docs/verify.md"
BEGIN = "<!-- The proofs: made by `make goldens`. -->\n"
END = "<!-- End of the proofs. -->\n"
SECTIONS = ("What goes in", "The forward pass", "The gradient", "Steps")


def renew(page: str) -> str:
    """Return docs/verify.md with the section of proofs as the registry has it."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{''.join(_sections())}{END}{tail}"


def _sections() -> Iterator[str]:
    ordered = sorted(PROOFS, key=lambda proof: SECTIONS.index(proof.section))
    for section, proofs in groupby(ordered, key=lambda proof: proof.section):
        yield "\n".join([f"\n### {section}", *map(_entry, proofs), ""])
    yield "\n"


def _entry(proof: Proof) -> str:
    text = (
        f"- **`{proof.name}`** {proof.rule.code}, {_where(proof)}. {proof.method}"
        f" Would have caught: {proof.catches}"
    )
    return fill(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _where(proof: Proof) -> str:
    if not proof.on_ranks:
        return "one process"
    return "two processes; one with `--fast`" if proof.fast else "two processes; not with `--fast`"
