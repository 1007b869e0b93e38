"""The values that a run's live objects have for its settings, and their check before step 1.

Whoever owns an object reads it: engines (`Engine.observe`), models,
`optimizer.observe_parameter_groups`, `schedule.observe_schedule`. None of them is given a setting.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist

from vtool.config.expected import expected_settings
from vtool.config.origins import Origins
from vtool.config.readback import Observed, compare_readback, observe_values
from vtool.config.schema.formats import ENTRY_SETTINGS
from vtool.models.observe_model import observe_class, observe_config, observe_frozen
from vtool.training import optimizer, schedule
from vtool.training.agreement import share_findings
from vtool.training.session import Session


def check_arrival(session: Session, origins: Origins | None) -> None:
    """Compare every rank's live objects with the settings.

    Takes milliseconds: nothing is built, and nothing computed.

    Raises:
        SharedFindings: `setting-not-arrived`, `device-not-used`; each once, with the first rank
            that has it.
    """
    differences = compare_readback(expected_settings(session.run), observe_run(session), origins)
    share_findings(session.ranks, differences)


def observe_run(session: Session) -> list[Observed]:
    """Return the values of the settings that this rank's live objects have."""
    component = session.family.component
    engine = list(session.engine.observe(component))
    unreached = session.family.unreached(session.engine.module)
    reached = (one for one in session.engine.named_parameters() if one[0] not in unreached)
    peak = schedule.highest(session.rate, session.total_steps)
    return [
        *_process(session),
        *_devices(
            session,
            offloaded=any(each.name == "engine.cpu_offload" and each.value for each in engine),
        ),
        *observe_config(session.engine.module.config),
        *observe_class(session.engine.module),
        *engine,
        *observe_frozen(reached, component),
        *optimizer.observe_parameter_groups(session.engine.optimizer_groups(), peak, component),
        *schedule.observe_schedule(session.rate, session.total_steps),
        *_rows(session),
    ]


def _process(session: Session) -> Iterator[Observed]:
    ranks = session.ranks
    processes = dist.get_world_size() if dist.is_initialized() else 1
    # On one machine the processes are those of the group; on several, each has its share of them.
    yield Observed(
        "launch.nproc",
        processes if ranks.world == ranks.local_world else ranks.local_world,
        "the process group",
    )
    yield Observed("device.threads", torch.get_num_threads(), "torch")
    yield Observed("run.dir", str(session.folder.path), "the run's folder")
    yield Observed("run.seed", session.plan.seed, "the order of the rows")
    loop, total, epoch = "the training loop", session.total_steps, session.plan.steps_per_epoch
    yield Observed("train.steps", total, loop)
    yield Observed("train.epochs", total / epoch, loop, (epoch,))


def _devices(session: Session, *, offloaded: bool) -> Iterator[Observed]:
    kinds = (
        [session.ranks.device.type]
        if offloaded
        else [parameter.device.type for _, parameter in session.engine.named_parameters()]
    )
    for kind in dict.fromkeys(kinds):
        yield Observed(
            "device.kind",
            kind,
            "what this rank computes on" if offloaded else "the model's weights",
        )


def _rows(session: Session) -> Iterator[Observed]:
    for split, rows in session.rows.items():
        for number, source in enumerate(rows.rows.describe()):
            for name in (name for name in source if name in ENTRY_SETTINGS):
                yield Observed(
                    f"data.{split}.{name}", source[name], f"the rows of data.{split}", (number,)
                )
    processor = session.rows["train"].processor
    learnt, size = session.family.facts.is_learnt, processor.image_processor.size
    images = {"data.image.backend": processor.backend}
    if not learnt:  # a rule refuses bounds for others
        frames = session.family.facts.frames_per_image
        images |= {
            "data.image.min_pixels": size["shortest_edge"] // frames,
            "data.image.max_pixels": size["longest_edge"] // frames,
        }
    yield from observe_values(images, "the image processor")
    pictures = {
        "data.image.max_decoded_pixels": processor.pictures.most_pixels,
        "data.image.sixteen_bit": "refuse" if processor.pictures.range is None else "scale",
        "data.image.sixteen_bit_range": processor.pictures.range,
    }
    yield from observe_values(pictures, "what reads pictures")
    video = None if learnt else processor.video
    videos = (
        {}
        if video is None
        else {
            "data.video.fps": video.fps,
            "data.video.max_frames": video.most_frames(video.fps),
            "data.video.min_pixels": video.min_pixels,
            "data.video.max_pixels": video.max_pixels,
        }
    )
    yield from observe_values(videos, "the video processor")
    yield Observed("data.global_batch_size", session.plan.global_batch_size, "the plan of the rows")
    batches = session.micro_batches(1)
    yield Observed(
        "data.packing", "token_budget" if batches[0].packed else "none", "the first step"
    )
    if all(batch.counts and not batch.packed for batch in batches):
        total = sum(len(batch.rows) for batch in batches)
        yield Observed("data.micro_batch_size", len(batches[0].rows), "the first step", (total,))
