"""Find the trackers of a recipe whose package is not installed."""

from collections.abc import Iterator
from contextlib import suppress

from vtool.config.origins import Origins
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic

RULE = "extra-not-installed"
_ALSO = {"mlflow": ("mlflow-skinny",)}
"""Other packages with the same module; mlflow-skinny writes to a server."""


def missing_trackers(run: Run, origins: Origins | None = None) -> Iterator[Diagnostic]:
    """Yield a finding for each tracker that could not be opened on this machine."""
    for number, tracker in enumerate(run.tracking):
        if not _installed(tracker.kind):
            name = f"tracking.{number}.kind"
            yield Diagnostic(
                RULE,
                f"tracking: {tracker.kind} is not installed",
                "pip install 'vtool[trackers]', or leave the tracker out: metrics.jsonl has all of"
                " its numbers",
                name,
                origins.near(name) if origins else None,
            )


def _installed(package: str) -> bool:
    """Return whether a package is installed.

    `find_spec` would take a folder wandb/, which wandb itself makes where it runs, for the package.
    """
    from importlib import metadata  # 10 ms, which recipes without a tracker need not wait for

    for name in (package, *_ALSO.get(package, ())):
        with suppress(metadata.PackageNotFoundError):
            metadata.version(name)
            return True
    return False
