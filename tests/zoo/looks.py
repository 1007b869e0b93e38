"""What the zoo asks: vtool's own checks, on runs as small as they can be."""

import io
import os
import pickle
import shutil
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.loading import models
from tests.rows import chat, mixed_rows, picture, write_rows
from tests.runs import messages, request, session
from vtool.diagnostics import Diagnostic, Findings
from vtool.engines.ranks import Ranks
from vtool.training.session import Request

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


def made(folder: Path, *more: str) -> Request:
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
    """What is said, raised or given back; what the work prints goes nowhere."""
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
    """The rows of a run, as `vtool verify` audits them (`vtool.verify.rows`).

    `beside`: rules that speak of these rows whatever the code does, or that only count what others
        have found.
    """

    overrides: tuple[str, ...] = ()
    beside: tuple[str, ...] = ("too-many-dropped-rows",)

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.verify.rows import audit_rows

        asked = made(folder, *self.overrides)
        found = findings_of(
            lambda: [finding for audit in audit_rows(asked.run) for finding in audit.findings]
        )
        return tuple(finding for finding in found if finding.rule not in self.beside)


@dataclass(frozen=True, slots=True)
class Train:
    """A whole run, from its start to its result (`vtool.training.sft.train`).

    `again`: it is started once more, as after a stop behind its first checkpoint. `beside`: as of
        an audit.
    """

    overrides: tuple[str, ...] = ()
    again: bool = False
    beside: tuple[str, ...] = ()

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
        return tuple(finding for finding in found if finding.rule not in self.beside)


@dataclass(frozen=True, slots=True)
class Ranked:
    """The same on two ranks:

    forked, so that they run the code that is here. Of what both say, what rank 0 does.
    """

    overrides: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.training.sft import train

        asked = made(folder, *self.overrides)
        return forked(folder, 2, lambda ranks: findings_of(lambda: train(asked, ranks).findings))


@dataclass(frozen=True, slots=True)
class Proved:
    """One proof of `vtool verify RECIPE`, on one process, or on forked ranks
    (`vtool.verify.prove`).
    """

    rule: str
    overrides: tuple[str, ...] = ()
    world: int = 1

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.verify.proofs.context import build_proof_context
        from vtool.verify.prove import prove_on

        run = made(folder, *self.overrides).run

        def work(ranks: Ranks) -> tuple[Diagnostic, ...]:
            own = folder / f"proofs-{ranks.rank}"
            own.mkdir()
            (proof,) = prove_on(build_proof_context(run, own), ranks, [self.rule])
            assert ranks.rank or proof.state != "not-run", proof.reason
            return (proof.finding,) if proof.finding else ()

        return work(Ranks()) if self.world == 1 else forked(folder, self.world, work)


@dataclass(frozen=True, slots=True)
class EveryProof:
    """All that one process proves of a run, and `rule`."""

    rule: str
    overrides: tuple[str, ...] = ()

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.verify.proofs.context import build_proof_context
        from vtool.verify.prove import prove_on
        from vtool.verify.proved import ALONE

        (folder / "proofs").mkdir()
        proofs = prove_on(
            build_proof_context(made(folder, *self.overrides).run, folder / "proofs"),
            Ranks(),
            list(dict.fromkeys((*ALONE, self.rule))),
        )
        return tuple(proof.finding for proof in proofs if proof.finding)


@dataclass(frozen=True, slots=True)
class Family:
    """All that one process proves of a model family, and whether its settings arrive."""

    family: str

    def __call__(self, folder: Path) -> tuple[Diagnostic, ...]:
        from vtool.verify.proofs.context import build_proof_context
        from vtool.verify.prove import prove_on
        from vtool.verify.proved import ALONE

        named = f"model={self.family}_tiny"
        (folder / "proofs").mkdir()
        proofs = prove_on(
            build_proof_context(made(folder, named).run, folder / "proofs"), Ranks(), ALONE
        )
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


def forked(
    folder: Path, world: int, work: Callable[[Ranks], tuple[Diagnostic, ...]]
) -> tuple[Diagnostic, ...]:
    """`work` on each of several gloo ranks;

    what rank 0 gives. torch's own end, which aborts now and then after DDP, is left out.
    """
    import torch.distributed as dist

    children = []
    for rank in range(world):
        if not (child := os.fork()):
            status = 1
            try:
                if dist.is_initialized():  # of the process that this one was forked from
                    dist.destroy_process_group()
                where = f"file://{folder}/rendezvous"
                dist.init_process_group(
                    "gloo",
                    init_method=where,
                    rank=rank,
                    world_size=world,
                    timeout=timedelta(seconds=60),
                )
                (folder / f"{rank}.pkl").write_bytes(
                    pickle.dumps(work(Ranks(rank, world, rank, world)))
                )
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert statuses == [0] * world, f"ranks ended with {statuses}"
    found: tuple[Diagnostic, ...] = pickle.loads((folder / "0.pkl").read_bytes())
    return found


def instead_of(**given: Any) -> Callable[[Any], Any]:
    """Of a function: the same, told something else by these names."""
    return lambda real: lambda *args, **more: real(*args, **(more | given))
