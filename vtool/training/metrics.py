"""metrics.jsonl: one object a line, full precision, written by rank 0 as it goes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Findings


def append(path: Path, metrics: Mapping[str, Any]) -> None:
    """Add a line, whole and at once: whoever follows the file sees it now, and a crash leaves no
    more than its last line cut off.

    Raises:
        Findings: `run-folder-unwritable`, as on a full disk.
    """
    try:
        with path.open("a") as file:
            file.write(json.dumps(metrics) + "\n")
    except OSError as error:
        raise Findings(
            Diagnostic("run-folder-unwritable", f"{path}: {error.strerror}", parameter="run.dir")
        ) from error
