"""The rows that a model is asked: a file or a folder of them, or a recipe's test split."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from vtool.config.load import load_run
from vtool.config.rows_recipe import names_rows
from vtool.config.schema import Run
from vtool.data.audit import Ledger, build_ledger, set_digests
from vtool.data.audit_cache import audit_split, usual_cache
from vtool.data.chats import ChatReader
from vtool.data.detect import detected
from vtool.data.ledgers import build_ledgers, with_held_back
from vtool.data.loader import EncodedRows
from vtool.data.row_audits import RowAudits
from vtool.data.sources import Rows
from vtool.data.turns import prepare_rows
from vtool.devices import own_cores
from vtool.diagnostics import Diagnostic, Findings
from vtool.diagnostics.near_miss import did_you_mean, near
from vtool.engines.ranks import Ranks, SharedFindings
from vtool.models.processor import Processor

_SPLIT = "test"


@dataclass(frozen=True, slots=True)
class Questions:
    """Rows that can be asked."""

    rows: EncodedRows
    ledger: Ledger

    def identity(self) -> dict[str, Any]:
        """Return the files, kept rows and digest of images that identify these rows."""
        return {
            "files": list(self.ledger.sources),
            "kept": len(self.ledger.kept),
            "images_xxh3": self.ledger.images_digest,
        }

    def values(self, key: str, rows: Sequence[int]) -> dict[int, str]:
        """Return, by row, the value at a key that the row's own record has."""
        found = {}
        for index in rows:
            reader, within = self.rows.rows.find(index)
            found[index] = str(cast(ChatReader, reader).record(within)[key])
        return found


def load_settings(subject: str, given: Sequence[str]) -> Run:
    """Compose the settings of rows: of a file or a folder, or of a recipe with a test split.

    Raises:
        Findings: as `load_run`; `no-rows`, of a recipe without a test split.
    """
    if names_rows(subject):
        return detected(load_run(subject, given).run)
    run = load_run(subject, given).run
    if not run.data.has(_SPLIT):
        message = f"{subject} has no test split: neither data.test nor data.split.test"
        help = "name a file of rows instead, or give it one: 'data.test=[{format: auto, path: …}]'"
        raise Findings(Diagnostic("no-rows", message, help, parameter="data.test"), fatal=True)
    return run


def open_questions(
    subject: str, run: Run, processor: Processor, ranks: Ranks, group: str | None = None
) -> Questions:
    """Open and audit the rows, each rank its share.

    Args:
        subject: a file or a folder of rows, which its recipe has as its training rows, or a recipe.
        run: as `load_settings` returns it.
        processor: of the model that is asked.
        ranks: of this command.
        group: a key of every row.

    Raises:
        Findings: what stands against the rows; `missing-group`.
    """
    data, is_file = run.data, names_rows(subject)
    held_back = not is_file and _SPLIT in data.split.shares
    entries = data.train if is_file or held_back else data.test
    rows = Rows(entries, allow_urls=data.allow_urls, group=data.split.group if held_back else group)
    if group is not None:
        _check_group(rows, group)
    prepare_rows(rows, processor, data)
    encoded = EncodedRows(rows, processor, data)
    audits = _audit(encoded, ranks, own_cores(run, ranks.local_world))
    set_digests(encoded, audits)
    if held_back:
        made = build_ledgers(data, with_held_back(data, {"train": encoded}), {"train": audits})
        ledger, findings = made[_SPLIT].ledger, made[_SPLIT].findings
    else:
        ledger, findings = build_ledger(encoded, audits, _SPLIT)
    if findings:
        raise SharedFindings([_of(one, subject) if is_file else one for one in findings])
    return Questions(encoded, ledger)


def _of(finding: Diagnostic, subject: str) -> Diagnostic:
    """Return a finding on a split that names the file whose rows these are."""
    return replace(finding, message=finding.message.replace(f"data.{_SPLIT}", subject))


def _audit(rows: EncodedRows, ranks: Ranks, cores: int) -> RowAudits:
    began = time.monotonic()
    cache = usual_cache(rows)
    own = rows.rows.taken()[ranks.rank :: ranks.world]
    audits = RowAudits.joined(ranks.all_gather_objects(audit_split(rows, own, cache, cores)))
    if cache and ranks.rank == 0:
        cache.write(audits, time.monotonic() - began)
    return audits


def _check_group(rows: Rows, key: str) -> None:
    """Refuse a key that the first row of a source has not, before all rows are looked at.

    Raises:
        Findings: `missing-group`, fatal.
    """
    for reader in rows.readers:
        record: Mapping[str, Any] = getattr(reader, "record", lambda _: {})(0)
        if key not in record:
            message = f'--by {key}: {reader.name(0)} has no "{key}"'
            there = ", ".join(record) or "none: its format has no keys of rows"
            help = did_you_mean(near(key, record)) or f"its keys are {there}"
            raise Findings(Diagnostic("missing-group", message, help), fatal=True)
