"""Rules about lengths, sizes and batches of rows."""

from collections.abc import Iterator
from pathlib import Path

from vtool.config.origins import COMMAND_LINE, Origins
from vtool.config.schema import Megatron, Run
from vtool.diagnostics import Diagnostic
from vtool.families import FAMILIES
from vtool.families.facts import PatchSizes
from vtool.families.images import patches_of_processor
from vtool.families.windows import packing_conflict, window_of_folder


def micro_batch_larger_than_share(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """A micro-batch fits into what one process gets of a step.

    Above the whole step it is a mistake on any number of processes. Above the share of one, it only
    says that the recipe was
    written for fewer: the results are the same. Where rows are packed, neither is said of what is
    not used.
    """
    if run.data.packing != "none":
        return
    # processes that compute the same rows
    sharing = run.engine.parallel.sharing if isinstance(run.engine, Megatron) else 1
    micro, rows, processes = (
        run.data.micro_batch_size,
        run.data.global_batch_size,
        max(1, (run.launch.nproc or 1) // sharing),
    )
    share = -(-rows // processes)
    name, origin = "data.micro_batch_size", origins.near("data.micro_batch_size")
    if micro > rows:
        message = (
            f"data.micro_batch_size is {micro}, but a step has only {rows} rows"
            " (data.global_batch_size)"
        )
        help = f"set data.micro_batch_size={share}, or raise data.global_batch_size"
        yield Diagnostic(
            "micro-batch-larger-than-share",
            message,
            help,
            name,
            origin,
            f"at most {share}",
            str(micro),
        )
    elif micro > share:
        message = (
            f"data.micro_batch_size is {micro}, but each of {processes} processes gets {share} of a"
            f" step's {rows} rows"
        )
        help = f"nothing need be done; data.micro_batch_size={share} says what happens"
        yield Diagnostic(
            "micro-batch-larger-than-share",
            message,
            help,
            name,
            origin,
            f"at most {share}",
            str(micro),
            severity="note",
        )


def max_length_missing(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """What happens to rows that are too long is only said where there is such a thing."""
    todo = run.data.on_overlong
    if todo != "error" and run.data.max_length is None:
        message = f"data.on_overlong is {todo}, but data.max_length does not say what too long is"
        yield Diagnostic(
            "max-length-missing",
            message,
            "set data.max_length, in tokens",
            "data.max_length",
            origins.near("data.on_overlong"),
        )


def pixel_bounds(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """There is a size that both bounds allow, and one of whole image tokens that is not above the
    upper one.
    """
    patches = _patches(run)
    side = patches.patch_size * patches.merge_size
    total = FAMILIES[run.model.family].video.bounds_are_total
    kinds = (
        (
            "image",
            run.data.image,
            patches.pixels_per_token,
            "an image token",
            "every image would be larger",
        ),
        (
            "video",
            run.data.video,
            _smallest_video(run, patches),
            "a video token" if total else "a frame of one video token",
            "every video would be larger",
        ),
    )
    for kind, bounds, smallest, of, so in kinds:
        low, high = bounds.min_pixels, bounds.max_pixels
        if high is not None and high < smallest:
            frames = (
                f"{patches.temporal_patch_size} frames of "
                if smallest > patches.pixels_per_token
                else ""
            )
            message = (
                f"data.{kind}.max_pixels is {high}, but {of} of {run.model.family} is"
                f" {frames}{side} × {side} = {smallest} pixels, {patches.merge_size} × {patches.merge_size}"
                f" patches of {patches.patch_size}: {so}"
            )
            name = f"data.{kind}.max_pixels"
            yield Diagnostic(
                "pixel-bounds",
                message,
                f"set {name}={smallest}, or more",
                name,
                origins.near(name),
                f"at least {smallest}",
                str(high),
            )
        if low is not None and high is not None and low > high:
            message = (
                f"data.{kind}.min_pixels is {low}, above data.{kind}.max_pixels, which is {high}"
            )
            name = f"data.{kind}.min_pixels"
            yield Diagnostic(
                "pixel-bounds",
                message,
                "swap them, or leave one out",
                name,
                origins.near(name),
                f"at most {high}",
                str(low),
            )


def _patches(run: Run) -> PatchSizes:
    """Return how the model's folder cuts images, or how its family does."""
    own = patches_of_processor(Path(run.model.path)) if run.model.path else None
    return own or FAMILIES[run.model.family].patches


def _smallest_video(run: Run, patches: PatchSizes) -> int:
    """Return the pixels of a video of one token: of all its frames, or of one, as bounds count."""
    total = FAMILIES[run.model.family].video.bounds_are_total
    return patches.pixels_per_token * (patches.temporal_patch_size if total else 1)


def image_tokens(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """An image and a video fit into a row: the smallest must, and the largest had better."""
    longest = run.data.max_length
    if longest is None:
        return
    patches = _patches(run)
    of_a_token = {
        "image": patches.pixels_per_token,
        "video": _smallest_video(run, patches),
    }
    for kind, bounds, a in (
        ("image", run.data.image, "an image"),
        ("video", run.data.video, "a video"),
    ):
        for name, severity in (("min_pixels", "error"), ("max_pixels", "warning")):
            pixels = getattr(bounds, name)
            if pixels is not None and (tokens := pixels // of_a_token[kind]) >= longest:
                which = (
                    f"every {kind} has at least" if severity == "error" else f"{a} can have up to"
                )
                message = (
                    f"data.max_length is {longest}, but with data.{kind}.{name}={pixels} {which}"
                    f" {tokens} tokens"
                )
                help = (
                    f"set data.{kind}.{name} below {longest * of_a_token[kind]}, or raise"
                    " data.max_length"
                )
                place = origins.near(f"data.{kind}.{name}")
                yield Diagnostic(
                    "image-longer-than-row",
                    message,
                    help,
                    f"data.{kind}.{name}",
                    place,
                    severity=severity,  # type: ignore[arg-type]
                )
                break


def half_an_image(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Pixels and their grid go together."""
    for kind, pair in (
        ("images", ("pixel_values", "image_grid_thw")),
        ("videos", ("pixel_values_videos", "video_grid_thw")),
    ):
        named = [name for name in pair if name in run.data.drop_model_inputs]
        if len(named) == 1:
            (other,) = set(pair) - set(named)
            parameter = "data.drop_model_inputs"
            message = (
                f"{parameter} names {named[0]}, and not {other}: the model needs both or neither"
            )
            wanted = ",".join([*run.data.drop_model_inputs, other])
            help = (
                f"to train without {kind}, write {parameter}=[{wanted}]; otherwise leave"
                f" {named[0]} out"
            )
            yield Diagnostic("half-an-image", message, help, parameter, origins.near(parameter))


def token_types_left_out(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """What tells an image's tokens from text is handed to the model as long as images are."""
    parameter, dropped, family = (
        "data.drop_model_inputs",
        run.data.drop_model_inputs,
        run.model.family,
    )
    if "mm_token_type_ids" not in dropped or "image_grid_thw" in dropped:
        return
    silent = FAMILIES[family].text_positions_without_token_types
    counts = (
        "transformers gives images and videos the positions of text, without a word; whoever uses"
        " the trained model gives it others"
    )
    raises = (
        "transformers refuses a row with an image or a video (packed, it is given the positions of"
        " text, without a word)"
    )
    message = (
        f"{parameter} names mm_token_type_ids, without which {family} has no M-RoPE:"
        f" {counts if silent else raises}"
    )
    both = [name for name in ("pixel_values", "image_grid_thw") if name not in dropped]
    help = (
        f"leave it out; to train without images, write {parameter}=[{','.join([*dropped, *both])}]"
    )
    origin = origins.near(parameter)
    yield Diagnostic(
        "token-types-left-out",
        message,
        help,
        parameter,
        origin,
        severity="warning" if silent else "error",
    )


def packing_budget(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Tokens are counted where rows are packed, and there alone; the longest row fits."""
    packing, budget, longest = run.data.packing, run.data.micro_batch_tokens, run.data.max_length
    name = "data.micro_batch_tokens"
    if packing == "token_budget" and budget is None:
        message = "data.packing is token_budget, but data.micro_batch_tokens does not say how many"
        yield Diagnostic(
            "packing-budget",
            message,
            "set data.micro_batch_tokens",
            name,
            origins.near("data.packing"),
        )
    elif packing == "none" and budget is not None:
        message = f"{name} is {budget}, but data.packing is none: rows are counted, not tokens"
        yield Diagnostic(
            "packing-budget", message, "set data.packing=token_budget", name, origins.near(name)
        )
    elif budget is not None and longest is not None and longest > budget:
        message = (
            f"data.max_length is {longest}, but a forward pass has {budget} tokens ({name}): a row"
            " of that length has no room"
        )
        yield Diagnostic(
            "packing-budget",
            message,
            f"set {name}={longest}, or a smaller data.max_length",
            name,
            origins.near(name),
        )


def packing_not_built(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Attention by document is built on torch's own, and on the masks that megatron-core's own
    layers heed.
    """
    if (
        run.data.packing != "none"
        and isinstance(run.engine, Megatron)
        and run.device.kind in ("cuda", "npu")
    ):
        message = (
            "data.packing is token_budget, and engine=megatron packs rows on a CPU alone:"
            " Transformer Engine wants another form"
        )
        help = "set engine=fsdp2, or data.packing=none"
        yield Diagnostic(
            "not-built-on-engine", message, help, "data.packing", origins.near("data.packing")
        )
    if run.data.packing != "none" and FAMILIES[run.model.family].recurrent:
        message = (
            "data.packing is token_budget, but the convolutions and states of"
            f" {run.model.family} go on from one document into the next"
        )
        yield Diagnostic(
            "not-built-on-engine",
            message,
            "set data.packing=none",
            "data.packing",
            origins.near("data.packing"),
        )
    if run.data.packing != "none" and run.model.attention != "sdpa":
        message = (
            f"data.packing is {run.data.packing}, but model.attention={run.model.attention} has no"
            " attention by document"
        )
        yield Diagnostic(
            "not-built-on-engine",
            message,
            "set model.attention=sdpa",
            "model.attention",
            origins.near("model.attention"),
        )
    if run.data.packing != "none" and run.model.path is not None:
        window = window_of_folder(Path(run.model.path), run.model.family)
        if found := packing_conflict(window, run.data.micro_batch_tokens):
            yield Diagnostic(
                "not-built-on-engine", *found, "data.packing", origins.near("data.packing")
            )


def rows_beside_tokens(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """What somebody has written beside packing, which leaves it aside.

    Not what stands in the recipe that packing is switched on for: it is there for runs without, and
    cannot be left out from here.
    """
    origin, packing = origins.of("data.micro_batch_size"), origins.of("data.packing")
    if (
        run.data.packing != "none"
        and origin
        and (origin == COMMAND_LINE or (packing and origin.file == packing.file))
    ):
        message = (
            "data.micro_batch_size is set, but with data.packing=token_budget a forward pass is as"
            " large as data.micro_batch_tokens says"
        )
        yield Diagnostic(
            "ignored-setting", message, "leave it out", "data.micro_batch_size", origin
        )
