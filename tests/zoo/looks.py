"""The checks that the zoo runs: vtool's own, on runs as small as they can be."""

import io
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.engines.ranks import run_ranks
from tests.loading import models
from tests.rows import chat, mixed_rows, picture, write_rows
from tests.runs import messages, request, session
from tests.zoo.defect import injected
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks
from vtool.training.session import RunRequest

if TYPE_CHECKING:
    from vtool.verification.proofs.proof import ProofResult

SMALL = (
    "data.global_batch_size=4",
    "data.micro_batch_size=2",
    "optim.warmup_steps=1",
    "device={kind: cpu, threads: 1}",
)
TURNS = [
    {"role": "user", "content": "What is in <image> and <image>?"},
    {"role": "assistant", "content": "<think>two pictures</think>a cat"},
    {"role": "user", "content": "And elsewhere?"},
    {"role": "assistant", "content": "a small dog"},
]


def rows(folder: Path) -> Path:
    """Ten chats with one image, two and none, of one turn and two."""
    names = [picture(folder / f"two-{number}.png", 56, 56, number).name for number in range(2)]
    more = [{"messages": TURNS, "images": names}, chat("2 + 2?", "four")]
    return write_rows(
        folder / "rows.jsonl", [chat("yes", "yes"), *mixed_rows(folder, 7, text_only=(1, 3)), *more]
    )


def made(folder: Path, *more: str) -> RunRequest:
    """A run on these rows, of three steps."""
    image = "data.image={min_pixels: 784, max_pixels: 3136}"
    return request(
        "rows",
        messages(rows(folder)),
        *SMALL,
        image,
        "train={steps: 3, epochs: null}",
        f"run.dir={folder / 'run'}",
        *more,
    )


def findings_of(work: Callable[[], Sequence[Diagnostic]]) -> tuple[Diagnostic, ...]:
    """Return the findings of some work, raised or returned; its output goes nowhere."""
    with redirect_stdout(io.StringIO()):
        try:
            return tuple(work())
        except Findings as findings:
            return findings.diagnostics


@dataclass(frozen=True, slots=True)
class Arrival:
    """The settings of a run, held against its live objects, as before every first step
    (`vtool.training.observe_run`).
    """

    overrides: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.training.observe_run import check_arrival

        def work() -> tuple[Diagnostic, ...]:
            opened, _ = session(asked)
            check_arrival(opened, asked.origins)
            return ()

        asked = made(folder, *self.overrides)
        return findings_of(work)


@dataclass(frozen=True, slots=True)
class Audit:
    """The rows of a run, as `vtool verify` audits them (`vtool.verification.rows`).

    `expected`: rules that report these rows whatever the code does, or that only count what others
        have found.
    """

    overrides: tuple[str, ...] = ()
    expected: tuple[str, ...] = ("too-many-dropped-rows",)

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.verification.rows import audit_rows

        asked = made(folder, *self.overrides)
        found = findings_of(
            lambda: [finding for audit in audit_rows(asked.run) for finding in audit.findings]
        )
        return tuple(finding for finding in found if finding.rule not in self.expected)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The audit of a recipe that holds rows back, of two files with the same rows."""

    split: str
    expected: tuple[str, ...] = ("duplicate-rows", "lengths-not-validated", "reference-too-long")

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.verification.rows import audit_rows

        names = ("rows.jsonl", "again.jsonl")
        shutil.copy(rows(folder), folder / names[1])
        sources = [f"{{format: messages, path: '{folder / name}'}}" for name in names]
        asked = made(folder, f"data.train=[{', '.join(sources)}]", f"data.split={self.split}")
        found = findings_of(
            lambda: [finding for audit in audit_rows(asked.run) for finding in audit.findings]
        )
        return tuple(finding for finding in found if finding.rule not in self.expected)


@dataclass(frozen=True, slots=True)
class Train:
    """A whole run, from its start to its result (`vtool.training.sft.train`).

    `again`: it is started once more, as after a stop behind its first checkpoint. `expected`: as
        of an audit.
    """

    overrides: tuple[str, ...] = ()
    again: bool = False
    expected: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.training.checkpoint import checkpoints
        from vtool.training.sft import train

        asked = made(folder, *self.overrides)
        found = findings_of(lambda: train(asked, Ranks()).findings)
        if self.again and not found:
            (asked.run.folder / "result.json").unlink()
            for later in checkpoints(asked.run.folder / "checkpoints")[1:]:
                shutil.rmtree(later)
            found = findings_of(lambda: train(asked, Ranks()).findings)
        return tuple(finding for finding in found if finding.rule not in self.expected)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A training on two ranks, which both have the defect; the findings are rank 0's."""

    overrides: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        return on_ranks(2, _train, made(folder, *self.overrides))


def _train(ranks: Ranks, asked: RunRequest) -> tuple[Diagnostic, ...]:
    from vtool.training.sft import train

    return findings_of(lambda: train(asked, ranks).findings)


def prove(folder: Path, run: Run, rules: Sequence[str], ranks: Ranks) -> "list[ProofResult]":
    """Make proofs of a run in a folder of this rank's own."""
    from vtool.verification.context import build_proof_context
    from vtool.verification.prove import run_proofs

    own = folder / f"proofs-{ranks.rank}"
    own.mkdir()
    return run_proofs(build_proof_context(run, own, ranks), rules)


@dataclass(frozen=True, slots=True)
class Proved:
    """One proof of `vtool verify RECIPE`, on one process or on ranks, which have the defect too."""

    rule: str
    overrides: tuple[str, ...] = ()
    world: int = 1

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        run = made(folder, *self.overrides).run
        asked = (folder, run, self.rule)
        if self.world == 1:
            return _prove_one(Ranks(), *asked)
        return on_ranks(self.world, _prove_one, *asked)


def _prove_one(ranks: Ranks, folder: Path, run: Run, rule: str) -> tuple[Diagnostic, ...]:
    (proof,) = prove(folder, run, [rule], ranks)
    assert ranks.rank or proof.state != "not-run", proof.reason
    return (proof.finding,) if proof.finding else ()


@dataclass(frozen=True, slots=True)
class EveryProof:
    """All proofs of a run that one process makes, and the one of `rule`."""

    rule: str
    overrides: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.verification.proofs import FAST

        run = made(folder, *self.overrides).run
        proofs = prove(folder, run, list(dict.fromkeys((*FAST, self.rule))), Ranks())
        return tuple(proof.finding for proof in proofs if proof.finding)


@dataclass(frozen=True, slots=True)
class Family:
    """All proofs of a model family that one process makes, and the arrival of its settings."""

    family: str

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.verification.proofs import FAST

        named = f"model={self.family}_tiny"
        proofs = prove(folder, made(folder, named).run, FAST, Ranks())
        return (*Arrival((named,))(folder), *(proof.finding for proof in proofs if proof.finding))


@dataclass(frozen=True, slots=True)
class Weights:
    """A class that is given weights (`vtool.loading.check_load_weights`):

    one that copies each tensor into its place.
    """

    check: str

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.loading import check_load_weights

        return findings_of(
            lambda: (
                check_load_weights(models.Good, models.checkpoint(), checks=[self.check]).findings
            )
        )


@dataclass(frozen=True, slots=True)
class Exported:
    """The folder that a run has exported:

    its files (`vtool.loading.checkpoint`), and then what `predict` loads of it.
    """

    overrides: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        import torch

        from vtool.loading.checkpoint.audit import audit_folder
        from vtool.models.build import load_model
        from vtool.training.sft import train

        asked = made(folder, *self.overrides)

        def work() -> tuple[Diagnostic, ...]:
            train(asked, Ranks())
            if found := audit_folder(asked.run.folder / "export").findings:
                return found
            load_model(asked.run.folder / "export", asked.run.model.family, torch.float32, "sdpa")
            return ()

        return findings_of(work)


def on_ranks(world: int, work: Callable[..., Any], *asked: Any) -> tuple[Diagnostic, ...]:
    """Return the findings of rank 0 by `work(ranks, *asked)`, a function of a module.

    A rank is not forked from this process, whose libraries have threads; it puts the defect that
    is injected here into its own code.
    """
    found: list[tuple[Diagnostic, ...]] = run_ranks(_inject, world, injected(), work, asked)
    return found[0]


def _inject(ranks: Ranks, defect: str | None, work: Callable[..., Any], asked: Any) -> Any:
    from tests.zoo.zoo import DEFECTS

    with next((one.inject() for one in DEFECTS if one.name == defect), nullcontext()):
        return work(ranks, *asked)


def instead_of(**given: Any) -> Callable[[Any], Any]:
    """Return a defect that calls the real function with these arguments replaced."""
    return lambda real: lambda *args, **more: real(*args, **(more | given))
