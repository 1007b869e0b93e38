"""The option `--from TRAINER`, however the trainer's name is written."""

from enum import StrEnum

import typer

from vtool.cli.complete import safely


class ReadableTrainer(StrEnum):
    """A trainer whose recipes can be read."""

    VERL = "verl"
    TRL = "trl"
    LLAMA_FACTORY = "llamafactory"
    MS_SWIFT = "ms-swift"
    AXOLOTL = "axolotl"


READABLE = "|".join(ReadableTrainer)
"""The names, as help shows them."""
_ALSO = {"llamafactorycli": ReadableTrainer.LLAMA_FACTORY, "swift": ReadableTrainer.MS_SWIFT}


def readable_trainer(given: str) -> ReadableTrainer:
    """Return the trainer of a name: `LLaMA-Factory`, `llama_factory` and `swift` are known, too.

    Raises:
        typer.BadParameter: for a name of none, with the names that there are.
    """
    from vtool.diagnostics.near_miss import did_you_mean, near

    plain = _plain(given)
    names = {_plain(trainer): trainer for trainer in ReadableTrainer} | _ALSO
    if plain in names:
        return names[plain]
    meant = [names[one] for one in near(plain, names)]
    known = f"recipes of {', '.join(ReadableTrainer)} can be read"
    help = did_you_mean(list(dict.fromkeys(meant))[:1])
    raise typer.BadParameter(f"{given!r}: {known}{f'; {help}' if help else ''}")


@safely
def trainers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a trainer."""
    return [name for name in ReadableTrainer if name.startswith(incomplete)]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
