"""The difference between the pixels of a split's rows and the pixels that a server would make."""

from dataclasses import dataclass, field, replace

import torch

from vtool.data.audit import Ledger
from vtool.data.loader import EncodedRows
from vtool.data.video import open_clip
from vtool.data.visuals import visuals_of
from vtool.diagnostics import Diagnostic, Findings
from vtool.models.backends import why_no_torchvision
from vtool.models.processor import Processor

DIFFERS = "processor-backend-differs"
_ROWS = 8
"""Rows with images or videos that are processed twice."""


@dataclass(frozen=True, slots=True)
class BackendComparison:
    """The comparison of the two backends on some rows of a split."""

    findings: tuple[Diagnostic, ...] = ()
    why_not: str | None = None
    """The reason why nothing was compared."""
    measured: dict[str, int] = field(default_factory=dict)


def compare_backends(split: str, rows: EncodedRows, ledger: Ledger) -> BackendComparison:
    """Process the first rows that have images or videos by both backends, and compare the pixels.

    Servers, as vLLM, use torchvision, as long as nobody tells them otherwise.

    Args:
        split: for the finding.
        rows: of the split.
        ledger: of the split.
    """
    if not ledger.images and not ledger.videos:
        return BackendComparison(why_not="no usable row has an image or a video")
    if why := why_no_torchvision():
        return BackendComparison(why_not=f"{why}; servers use it: `vtool serve` tells vLLM not to")
    backend = rows.processor.backend
    if rows.processor.whole is not None:
        name = rows.processor.family.facts.name
        return BackendComparison(why_not=f"no second processor is opened for {name}")
    other = _with_backend(rows.processor, "torchvision" if backend == "pil" else "pil")
    compared, worst = 0, 0.0
    levels = True
    for index in ledger.kept:
        if compared == _ROWS:
            break
        try:
            row = rows.rows.row(int(index))
            if not (row.images or row.videos):
                continue
            clips = [
                open_clip(row, video, rows.processor.video, rows.processor.pictures)
                for video in row.videos
            ]
            pairs = zip(
                visuals_of(row, clips, rows.processor, as_bytes=True),
                visuals_of(row, clips, other, as_bytes=True),
                strict=True,
            )
            for mine, theirs in pairs:
                levels = levels and mine.pixels.dtype == theirs.pixels.dtype == torch.uint8
                far = (mine.pixels.float() - theirs.pixels.float()).abs().max()
                worst = max(worst, float(far))
        except Findings:  # its file has changed since: that is a finding of another rule
            continue
        compared += 1
    if not compared:
        return BackendComparison(why_not="no usable row has an image or a video")
    unit = "levels of 255" if levels else "in the model's own scale"
    measured = {"rows processed": compared}
    if backend != "pil" or not worst:
        return BackendComparison(measured=measured)
    message = (
        f"data.{split}: its images are processed by PIL, and a server uses torchvision: in"
        f" {compared:,} rows the largest difference of a pixel is {worst:.3g} {unit}"
    )
    help = (
        "`vtool serve` tells vLLM to use PIL for images; elsewhere pass --mm-processor-kwargs"
        " '{\"use_fast\": false}', or train with data.image.backend=torchvision"
    )
    finding = Diagnostic(DIFFERS, message, help, parameter="data.image.backend")
    return BackendComparison((finding,), measured=measured)


def _with_backend(processor: Processor, backend: str) -> Processor:
    make = processor.family.image_processor_class(backend)
    images, frames = (
        make.from_dict(one.to_dict()) for one in (processor.image_processor, processor.video.frames)
    )
    return replace(
        processor, image_processor=images, video_processor=replace(processor.video, frames=frames)
    )
