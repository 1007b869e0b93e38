"""Audits of earlier starts, in the user's cache folder: unchanged rows are not audited again.

An entry's name is the digest of all that decides an audit: the rows files' content, the processor,
the settings, vtool's own code and the releases it calls. Rows with image or video files are also
checked against the marks that the file system gave these. What is wrong with an entry (another
machine's, cut off) makes it useless, and no error. A row with a finding is never kept.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from vtool.config.schema import Data
from vtool.config.schema.formats.entry import MIXTURE_SETTINGS
from vtool.contents import read_small_json
from vtool.data.digest import stamp
from vtool.data.inspect_rows import inspect_rows
from vtool.data.loader import EncodedRows
from vtool.data.row_audits import ROW, STAMP, RowAudits
from vtool.data.workers import audit_workers
from vtool.diagnostics.progress import working
from vtool.models.processor import Processor
from vtool.template_renderer import today
from vtool.user_cache import user_cache

WORTH = 2.0
"""Seconds of an audit from which on it is kept."""
FEWEST_ROWS = 256
"""Rows of a split from which on it has an entry."""
MOST_ENTRIES = 16
HOUR = 3600.0
_MAKING = ".making-"
_OTHER_SETTINGS = frozenset(
    (
        "workers",
        "global_batch_size",
        "micro_batch_size",
        "micro_batch_tokens",
        "packing",
        "max_dropped_rows",
        "max_overlap_rows",
        "drop_model_inputs",
        "audit_cache",
    )
)
"""Settings of `data` that decide nothing about a row; all others do."""
_RELEASES = ("numpy", "pillow", "torch", "transformers", "tokenizers", "jinja2", "av", "pyarrow")
_OWN_CODE = ("data", "families", "models")


@dataclass(frozen=True, slots=True)
class AuditCache:
    """The entry of one split."""

    folder: Path
    head: Mapping[str, Any]
    """The settings, releases and code that the audits depend on, and the files of the rows."""
    renew: bool = False
    """If what is there is not read, and written anew."""

    @classmethod
    def of(cls, rows: EncodedRows) -> "AuditCache":
        """Return the entry of a split's rows, be it there or not."""
        head = {
            "rows": rows.rows.describe(),
            "beside": os.getcwd(),  # paths may be relative to it
            "processor": _digest_of_processor(rows.processor),
            "settings": _deciding(rows.settings),
            "releases": {name: _release(name) for name in _RELEASES},
            "code": _digest_of_code(),
        }
        text = json.dumps(head, sort_keys=True, default=str)
        renew = rows.settings.audit_cache == "renew"
        return cls(audit_cache_folder() / xxhash.xxh3_128(text.encode()).hexdigest(), head, renew)

    def read(self, indices: Sequence[int]) -> RowAudits:
        """Return the audits of those rows that are as they were; none where nothing can be read."""
        if self.renew:
            return RowAudits(np.zeros(0, ROW))
        try:
            written = read_small_json(self.folder / "head.json")
            table = _read_array(self.folder / "rows.npy", written["rows_xxh3"], ROW)
            stamps = _read_array(self.folder / "stamps.npy", written["stamps_xxh3"], STAMP)
            paths = written["paths"]
            if not len(paths) == len(stamps) == int(table["files"].sum()):
                raise ValueError(f"{self.folder} is damaged")
            os.utime(self.folder / "head.json")
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return RowAudits(np.zeros(0, ROW))
        asked = np.isin(table["index"], np.asarray(indices, np.int64))
        counts = table["files"].astype(np.int64)
        owner = np.repeat(np.arange(len(table)), counts)
        same = np.ones(len(paths), bool)
        for place in np.flatnonzero(asked[owner]).tolist():
            found = stamp(paths[place])
            same[place] = found.changed != 0 and tuple(stamps[place]) == tuple(
                getattr(found, name) for name in STAMP.names or ()
            )
        valid = asked & table["usable"]
        valid[owner[~same]] = False
        kept = valid[owner]
        return RowAudits(
            table[valid],
            {},
            [paths[place] for place in np.flatnonzero(kept).tolist()],
            stamps[kept],
            int(valid.sum()),
        )

    def write(self, audits: RowAudits, seconds: float) -> None:
        """Keep the audits of usable rows, in place of those before; where it cannot, nothing is.

        Args:
            seconds: that they took; few are not worth it.
        """
        if seconds < WORTH:
            return
        owner = np.repeat(audits.table["usable"], audits.table["files"].astype(np.int64))
        table, stamps = audits.usable, audits.stamps[owner]
        paths = [audits.paths[place] for place in np.flatnonzero(owner).tolist()]
        with suppress(OSError, ValueError):  # ValueError: a path that is not UTF-8
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self.folder.parent))
            try:
                head = {
                    "of": dict(self.head),
                    "written": time.strftime("%Y-%m-%d %H:%M"),
                    "rows_xxh3": _write_array(making / "rows.npy", table),
                    "stamps_xxh3": _write_array(making / "stamps.npy", stamps),
                    "paths": paths,
                }
                (making / "head.json").write_text(json.dumps(head, default=str), "utf-8")
                shutil.rmtree(self.folder, ignore_errors=True)
                making.rename(self.folder)
            finally:
                shutil.rmtree(making, ignore_errors=True)
            _remove_oldest(self.folder.parent)


def audit_split(
    rows: EncodedRows, indices: Sequence[int], cache: AuditCache | None, cores: int = 1
) -> RowAudits:
    """Audit rows of a split; those that have not changed since an earlier audit are taken from it.

    Args:
        cache: None audits all of them.
        cores: those that it may use, where `data.workers` is `auto`.
    """
    with working(f"comparing {len(indices):,} rows with their last audit"):
        known = cache.read(indices) if cache else RowAudits(np.zeros(0, ROW))
    asked = np.asarray(indices, np.int64)
    rest = asked[~np.isin(asked, known.table["index"])].tolist()
    workers = audit_workers(rows.settings, len(rest), cores)
    with working("auditing", counts="rows"):
        return RowAudits.joined([known, inspect_rows(rows, rest, workers)])


def usual_cache(rows: EncodedRows) -> AuditCache | None:
    """Return the entry of a split, or None where it is not worth one, or not asked for."""
    if rows.settings.audit_cache == "off" or len(rows.rows) < FEWEST_ROWS:
        return None
    if not hasattr(rows.processor.tokenizer, "backend_tokenizer"):
        return None  # one in Python, of which nothing says what decides
    return AuditCache.of(rows)


def audit_cache_folder() -> Path:
    """Return where audits are kept: below the user's cache folder. Deleting it is always safe."""
    return user_cache("audits")


def _remove_oldest(folder: Path) -> None:
    """Remove the entries that were not used for the longest time, beyond so many."""
    entries = sorted(
        folder.glob("[!.]*/head.json"), key=lambda head: head.stat().st_mtime, reverse=True
    )
    for head in entries[MOST_ENTRIES:]:
        shutil.rmtree(head.parent, ignore_errors=True)
    for left in folder.glob(f"{_MAKING}*"):  # by a process that was killed
        if time.time() - left.stat().st_mtime > HOUR:
            shutil.rmtree(left, ignore_errors=True)


def _write_array(file: Path, array: NDArray[np.void]) -> str:
    np.save(file, array, allow_pickle=False)
    return xxhash.xxh3_128(np.ascontiguousarray(array).tobytes()).hexdigest()


def _read_array(file: Path, digest: str, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    array: NDArray[np.void] = np.load(file, allow_pickle=False)
    if array.dtype != dtype or xxhash.xxh3_128(array.tobytes()).hexdigest() != digest:
        raise ValueError(f"{file} is damaged")
    return array


def _deciding(settings: Data) -> dict[str, Any]:
    kept = settings.model_dump(mode="json", exclude=set(_OTHER_SETTINGS))
    # how much of a source is taken, and what is held back of it, decides nothing about a row
    for split in settings.splits:
        for entry in kept[split]:
            for name in MIXTURE_SETTINGS:
                del entry[name]
    kept["split"] = settings.split.group
    return kept


def _digest_of_processor(processor: Processor) -> str:
    """Return the digest of a processor's tokenizer, template, sizes and token ids."""
    tokenizer, video = processor.tokenizer, processor.video
    parts = [
        tokenizer.backend_tokenizer.to_str(),
        tokenizer.chat_template,
        tokenizer.special_tokens_map,
        processor.image_processor.to_dict(),
        video.frames.to_dict(),
        repr(replace(video, family=None, frames=None)),  # type: ignore[arg-type]
        video.family.facts.name,
        # rows of such a template are others tomorrow
        today().isoformat() if "strftime_now" in str(tokenizer.chat_template) else None,
        asdict(processor.ids),
        asdict(processor.pictures),
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return xxhash.xxh3_128(text.encode("utf-8", "surrogatepass")).hexdigest()


def _release(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def _digest_of_code() -> str:
    """Return the digest of the modules of vtool that decide an audit."""
    digest = xxhash.xxh3_128()
    package = Path(__file__).parents[1]
    for folder in _OWN_CODE:
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(str(file.relative_to(package)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
