"""Rules about rows, lengths and batches."""

from collections.abc import Callable, Iterator
from pathlib import Path

from vtool.config.schema import MessagesSource, Run
from vtool.diagnostics import Diagnostic, Origin

Where = Callable[[str], Origin | None]


def micro_batch_larger_than_share(run: Run, where: Where) -> Iterator[Diagnostic]:
    micro, whole = run.data.micro_batch_size, run.data.global_batch_size
    if micro > whole:
        message = f"data.micro_batch_size is {micro}, but a step has {whole} rows (data.global_batch_size)"
        help = f"set data.micro_batch_size={whole}, or raise data.global_batch_size"
        yield Diagnostic("micro-batch-larger-than-share", message, help, "data.micro_batch_size", where("data.micro_batch_size"))


def max_length_missing(run: Run, where: Where) -> Iterator[Diagnostic]:
    if run.data.on_overlong != "error" and run.data.max_length is None:
        message = f"data.on_overlong is {run.data.on_overlong}, but data.max_length does not say what too long is"
        yield Diagnostic("max-length-missing", message, "set data.max_length", "data.max_length", where("data.on_overlong"))


def pixel_bounds(run: Run, where: Where) -> Iterator[Diagnostic]:
    low, high = run.data.image.min_pixels, run.data.image.max_pixels
    if low is not None and high is not None and low > high:
        message = f"data.image.min_pixels is {low}, above data.image.max_pixels, which is {high}"
        yield Diagnostic("pixel-bounds", message, "swap them, or leave one out", "data.image.min_pixels", where("data.image.min_pixels"))


def path_not_found(run: Run, where: Where) -> Iterator[Diagnostic]:
    splits = {"train": run.data.train, "validation": run.data.validation, "test": run.data.test}
    for split, sources in splits.items():
        for number, source in enumerate(sources):
            if isinstance(source, MessagesSource) and not Path(source.path).is_file():
                name = f"data.{split}.{number}.path"
                message = f"there is no file {source.path} (looked for {Path(source.path).absolute()})"
                yield Diagnostic("path-not-found", message, None, name, where(name))


RULES = (micro_batch_larger_than_share, max_length_missing, pixel_bounds, path_not_found)
