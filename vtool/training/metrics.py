"""The lines of metrics.jsonl: JSON objects in full precision, written by rank 0."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vtool.diagnostics import Diagnostic, Findings
from vtool.training.own_folder import open_own


def append(path: Path, metrics: Mapping[str, Any]) -> None:
    """Append a line, whole and at once.

    A reader that follows the file sees it now; a crash cuts off the last line at most.

    Raises:
        Findings: `run-folder-unwritable`, as on a full disk.
    """
    try:
        with open(path, "a", opener=open_own) as file:
            file.write(json.dumps(metrics) + "\n")
    except OSError as error:
        raise Findings(
            Diagnostic("run-folder-unwritable", f"{path}: {error.strerror}", parameter="run.dir")
        ) from error
