"""The weights of `train.from`, in the small runs that prove and observe a recipe."""

from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic
from vtool.training.weights import find_weights
from vtool.verification.not_provable import NotProvable


def with_config_of_begun(run: Run) -> Run:
    """Return a run whose `model.path` has the config that it begins with, if any folder has.

    Raises:
        Findings: what stands against `train.from`, as at the start of the run.
    """
    begun = find_weights(run)
    if begun is None or run.model.path is not None:
        return run
    return _of_folder(run, str(begun.config))


def with_weights_of_begun(run: Run) -> Run:
    """Return a run whose `model.path` has the weights that it begins with.

    Raises:
        Findings: what stands against `train.from`.
        NotProvable: where these are not a whole model in a folder of its own.
    """
    begun = find_weights(run)
    if begun is None:
        return run
    if begun.adapted or begun.kind == "checkpoint":
        what = "an adapter" if begun.adapted else "a checkpoint"
        merge = " --merge" if begun.adapted else ""
        message = (
            f"--full-size takes weights from a model's folder, and train.from={run.train.source} is"
            f" {what}: write one by vtool export RUN{merge}, or leave --full-size out"
        )
        help = "name the folder of an export in train.from, or prove without --full-size"
        raise NotProvable(Diagnostic("unfit-weights", message, help, "train.from"))
    return _of_folder(run, str(begun.folder))


def _of_folder(run: Run, folder: str) -> Run:
    update = {"path": folder, "init": "pretrained", "size": None}
    return run.model_copy(update={"model": run.model.model_copy(update=update)})
