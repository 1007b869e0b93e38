"""The commands as functions: for notebooks, scripts and tests (docs/python.md).

Nothing heavy is imported before a function needs it, so that `import vtool` stays light.
"""

import json
import pickle
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtool.contents import read_small_json, small_file

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import nn
    from transformers import PreTrainedModel

    from vtool.config.load import Loaded
    from vtool.data.audit import Ledger
    from vtool.diagnostics import Diagnostic, Findings
    from vtool.diagnostics.result import Result
    from vtool.verification.proofs.report import ProofReport

    Picture = str | PathLike[str] | Image


def load(recipe: str | PathLike[str], *overrides: str, **wrong: object) -> "Loaded":
    """Compose and check a recipe, as `vtool validate-config` does.

    Args:
        recipe: the name of a shipped recipe, or the path of a YAML file, or of rows.
        overrides: settings that take the place of the recipe's, such as `"train.steps=30"`.

    Returns:
        The recipe: `.run` has every setting, `.notes` what the checks report besides errors.

    Raises:
        vtool.Findings: everything that stands against running it, at once.
        TypeError: overrides are given as a list, or as named arguments.
    """
    from vtool.config.load import load_run

    if wrong or not all(isinstance(each, str) for each in overrides):
        raise TypeError('overrides are texts: vtool.load("digits", "train.steps=30")')
    if not isinstance(recipe, str | PathLike):
        raise TypeError(f"a recipe is a name or a path, not {type(recipe).__name__}")
    return load_run(str(recipe), overrides)


@dataclass(frozen=True, slots=True)
class _SavedFindings:
    """A file in which a rank leaves its findings for the process that has started it."""

    file: Path

    def __call__(self, findings: "Findings") -> None:
        self.file.write_bytes(pickle.dumps(findings.diagnostics))

    def read(self) -> "tuple[Diagnostic, ...]":
        if not self.file.exists():
            return ()
        found: tuple[Diagnostic, ...] = pickle.loads(self.file.read_bytes())
        return found


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A run that has ended, read from its folder."""

    folder: Path
    status: str
    """`finished`, `already finished`, or `stopped` by a signal."""
    steps: int
    """Optimizer steps that it has taken in all."""
    findings: "tuple[Diagnostic, ...]" = ()
    """Problems outside of the training: of the profiler, of trackers, of evaluations."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`: one for each step, and one for each validation."""
        lines = small_file(self.folder / "metrics.jsonl").decode().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def result(self) -> dict[str, Any]:
        """`result.json` of a finished run: steps, seconds, the ledger's counts, versions.

        Raises:
            vtool.Findings: `not-a-run`, where the run has not finished.
        """
        file = self.folder / "result.json"
        if not file.exists():
            from vtool.diagnostics import Diagnostic, Findings

            message = f"{self.folder} has no result.json: its run has not finished"
            help = "train it again: it resumes from its last checkpoint"
            raise Findings(Diagnostic("not-a-run", message, help))
        found: dict[str, Any] = read_small_json(file)
        return found

    @property
    def test(self) -> dict[str, Any]:
        """Scores on the test split: `exact_match`, `token_accuracy`, `nll` (a token), `samples`.

        Where there are several sources, `sources` has these of each. Empty without a test split.

        Raises:
            vtool.Findings: `not-a-run`, where the run has not finished.
        """
        scores = self.result.items()
        return {name.removeprefix("test_"): one for name, one in scores if name.startswith("test_")}

    def model(self) -> "PreTrainedModel":
        """Load the trained model from the run's export, in float32 and in evaluation mode.

        Returns:
            An instance of transformers' class, or of the one that `model.modeling` names; of a run
            with adapters, the base with the adapters in it.

        Raises:
            vtool.Findings: `not-a-run`, where the run has not finished and so has no export.
        """
        from vtool.libraries import libraries_prepared

        with libraries_prepared():
            from vtool.evaluation.exported import load_exported

            return load_exported(self.folder)

    def predict(
        self,
        image: "Picture | Sequence[Picture]" = (),
        question: str | None = None,
        *,
        max_new_tokens: int = 64,
    ) -> str:
        """Answer a question greedily.

        Args:
            image: a file, or a picture of PIL's; or several, in the order in which they are shown.
            question: what to ask; the question of the run's first test row where it is left out.
            max_new_tokens: the longest answer, in tokens.
        """
        from vtool.libraries import libraries_prepared

        pictures = image if isinstance(image, Sequence) and not isinstance(image, str) else [image]
        with libraries_prepared(), ExitStack() as stack:
            from vtool.evaluation.predict import predict_answer

            files = [_file(picture, stack) for picture in pictures]
            return predict_answer(self.folder, files, question, None, max_new_tokens).text


def _loaded(run: "Loaded | str | PathLike[str]") -> "Loaded":
    """Return a loaded recipe; one by its name or path is loaded."""
    from vtool.config.load import Loaded

    if isinstance(run, str | PathLike):
        return load(run)
    if not isinstance(run, Loaded):
        raise TypeError(
            f"a recipe's name or path, or what vtool.load returns, and not {type(run).__name__}"
        )
    return run


def train(run: "Loaded | str | PathLike[str]", *, preflight: bool = True) -> TrainingResult:
    """Train a run, or resume it from its newest checkpoint, as `vtool train sft` does.

    With `launch.nproc` above 1 the ranks are processes of their own, which import the script that
    calls this: call it under `if __name__ == "__main__":`. Under a launcher of your own, every
    rank calls this, and has the result. Nothing is fetched from a hub, and no progress bars
    are drawn. Torch's number of threads, the environment and the libraries' switches are what they
    were before, afterwards.

    Args:
        run: what `vtool.load` returns; or a recipe's name or path, to run it as it is.
        preflight: prove the recipe first on a tiny model, and train nothing where a proof fails.

    Raises:
        vtool.Findings: what stopped the run, or stands in its way.
        KeyboardInterrupt: after a Ctrl-C before the first step.
    """
    from vtool.config.environment.packages import require_training

    require_training("vtool.train")
    from vtool.config.load import effective_yaml
    from vtool.diagnostics import Findings
    from vtool.libraries import libraries_prepared
    from vtool.report import write_report
    from vtool.scratch import scratch_folder

    run = _loaded(run)
    with libraries_prepared(), scratch_folder() as folder:
        from vtool.launchers import check_launch, is_first
        from vtool.training.launch import launch
        from vtool.training.session import RunRequest
        from vtool.training.start import check_folder
        from vtool.verification.preflight import preflight_record

        check_launch(run.run.launch.nproc)
        check_folder(run.run, run.plain)
        proofs = preflight_record(run.run, enabled=preflight)
        request = RunRequest(run.run, run.plain, effective_yaml(run), run.origins, proofs)
        saved = _SavedFindings(folder / "findings")
        try:
            outcome = launch(request, saved)
        except SystemExit as ended:  # a rank of several has failed, and mostly left its findings
            raise Findings(saved.read() or _without_findings(ended.code)) from None
        if is_first():
            write_report([outcome.folder], outcome.folder / "report.html")
    return TrainingResult(outcome.folder, outcome.status, outcome.step, outcome.findings)


def verify(
    run: "Loaded | str | PathLike[str]",
    *,
    only: Sequence[str] = (),
    fast: bool = False,
    full_size: bool = False,
) -> "ProofReport":
    """Prove a recipe's numbers on a tiny model, as `vtool verify RECIPE` does (docs/verify.md).

    Args:
        run: what `vtool.load` returns; or a recipe's name or path, to run it as it is.
        only: proofs by their rule's name or code; all of them where it is empty.
        fast: what one process proves in seconds.
        full_size: prove on the recipe's own model and weights.

    Returns:
        The proofs: `.proofs` has a state for each, `passed`, `failed` or `not-run`, what was
        measured, and the finding of one that failed.

    Raises:
        vtool.Findings: what keeps the recipe from being built, or that there is nothing to prove
            anything on.
    """
    from vtool.config.environment.packages import require_training

    require_training("vtool.verify")
    from vtool.libraries import libraries_prepared

    run = _loaded(run)
    with libraries_prepared():
        from vtool.verification.proofs import proof_names
        from vtool.verification.prove import prove

        return prove(run.run, only=proof_names(only), fast=fast, full_size=full_size)


def compare(asked: Mapping[str, Any], objects: Mapping[str, Any]) -> "list[Diagnostic]":
    """Compare settings with the live objects of any trainer (docs/live.md).

    Args:
        asked: values by vtool's names of settings, such as `{"optim.betas": (0.9, 0.95)}`.
        objects: models and optimizers, bare or wrapped, by names of your own.

    Returns:
        A finding for each value that is another one in an object, and for each setting that no
        object shows. Empty where every setting has arrived.

    Raises:
        vtool.Findings: for a name that is no setting's, a value that a setting does not take, and
            an object that is neither a model nor an optimizer.
    """
    from vtool.config.environment.packages import require_training

    require_training("vtool.compare")
    from vtool.verification.compare import compare_objects

    return compare_objects(asked, objects)


def compare_models(
    trained: "nn.Module", exported: "nn.Module", *batches: Mapping[str, Any]
) -> "list[Diagnostic]":
    """Compare what a trained model and its export compute, whatever trained or exported it.

    Args:
        trained: the live model, also with adapters in it.
        exported: what was merged, written and opened again, or sent to a server and loaded there.
        batches: what both are called with, such as `{"input_ids": ids}`.

    Returns:
        `export-differs`, where logits are further apart than rounding takes them. Empty otherwise.

    Raises:
        vtool.Findings: without a batch, for models that are not in float32, and for one that
            returns no logits.
    """
    from vtool.config.environment.packages import require_training

    require_training("vtool.compare_models")
    from vtool.verification.compare_models import compare_logits

    return compare_logits(trained, exported, batches)


@dataclass(frozen=True, slots=True)
class LoadCheckReport:
    """The results of a check of weight loading."""

    results: "tuple[Result, ...]"
    """One for each subject: its verdict, checks, findings and details."""

    @property
    def findings(self) -> "tuple[Diagnostic, ...]":
        """The findings of all subjects."""
        return tuple(finding for result in self.results for finding in result.findings)

    @property
    def clean(self) -> bool:
        """True if every subject was judged, and none is unsafe."""
        return all(result.verdict == "clean" for result in self.results)


def load_check(
    *subjects: str | PathLike[str],
    settings: Sequence[str] = (),
    python: str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    digest: bool = False,
) -> LoadCheckReport:
    """Check that every weight lands, as `vtool load-check` does (docs/load-check.md).

    Args:
        subjects: folders, `.safetensors` files, `vllm:NAME`, `transformers:NAME`, `sglang:NAME`,
            `python:FILE.py:factory`, or a recipe.
        settings: such as `"slots=2"`, as on the command line.
        python: the interpreter that has the framework.
        checkpoint: a folder whose tensors are loaded into `python:` subjects.
        digest: also digest every weight file of a folder (xxh3-128).

    Returns:
        The report. What a subject does wrong is in it, and not raised.

    Raises:
        vtool.Findings: what is no subject, or a setting that nothing here would use.
    """
    from vtool.loading.check import check_subjects
    from vtool.loading.requested import in_named_order, load_check_settings

    chosen, typed = load_check_settings([str(each) for each in subjects], settings, python=python)
    folder = None if checkpoint is None else Path(checkpoint)
    found = check_subjects(chosen, folder, digest=digest, typed=typed)
    return LoadCheckReport(in_named_order((each.result for each in found), chosen, typed))


def audit(rows: str | PathLike[str], *overrides: str) -> "Ledger":
    """Audit a file of rows without training, as `vtool verify ROWS-FILE` does.

    Args:
        rows: a file or a folder of chats, in any layout that can be detected from its first rows.
        overrides: settings, such as `"data.max_length=2048"` or `"model.path=…"`.

    Returns:
        The ledger: which rows can be trained on, which not and why, and `.findings`, also those of
        rows that `data.split` holds back.

    Raises:
        vtool.Findings: the file or the model's folder cannot be read at all.
    """
    from vtool.config.environment.packages import require_training

    require_training("vtool.audit")
    from vtool.config.load import load_run
    from vtool.libraries import libraries_prepared

    run = load_run(str(rows), overrides).run
    with libraries_prepared():
        from vtool.data.detect import detected
        from vtool.verification.rows import audit_rows

        audits = audit_rows(detected(run))
    findings = tuple(finding for audit in audits for finding in audit.findings)
    return replace(audits[0].ledger, findings=findings)


def _without_findings(status: object) -> "Diagnostic":
    """Return the finding for ranks that have ended without one of their own.

    Args:
        status: the exit status, above 128 after a signal that came before the first step.
    """
    from vtool.diagnostics import Diagnostic

    if isinstance(status, int) and status > 128:
        name = signal.Signals(status - 128).name
        help = "train again: it resumes from the last checkpoint if there is one"
        return Diagnostic("rank-failed", f"stopped by {name} before the first step", help)
    help = (
        "read what the rank printed above; where that is about starting a process, call vtool.train"
        ' under `if __name__ == "__main__":`, since each rank imports the script that started it'
    )
    return Diagnostic("rank-failed", f"a rank ended with exit status {status}", help)


def _file(picture: "Picture", stack: ExitStack) -> str:
    """Return a picture's file; one in memory is written without loss, for as long as needed."""
    if isinstance(picture, str | PathLike):
        return str(picture)
    file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "picture.png"
    picture.save(file)
    return str(file)
