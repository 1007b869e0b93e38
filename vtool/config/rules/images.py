"""Rules about the sizes of images and videos, and about the inputs that they become."""

from collections.abc import Iterator
from pathlib import Path

from vtool.config.origins import Origins
from vtool.config.rules.rule import settings_rule
from vtool.config.schema import Run
from vtool.diagnostics import Diagnostic, Rule
from vtool.families import family_facts
from vtool.families.facts import PatchSizes
from vtool.families.images import patches_of_processor


def _patches(run: Run) -> PatchSizes:
    """Return how the model's folder cuts images, or else its family."""
    own = patches_of_processor(Path(run.model.path)) if run.model.path else None
    return own or family_facts(run.model.family).patches


def _own_sizes(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Yield a finding for each bound of images of a family whose processor has its own sizes."""
    for name in ("min_pixels", "max_pixels"):
        if getattr(run.data.image, name) is not None:
            where = f"data.image.{name}"
            yield Diagnostic(
                "pixel-bounds",
                f"{where} is set, and the processor of {run.model.family} has sizes of its own",
                f"set {where}=null; the sizes are in the folder's processor_config.json",
                where,
                origins.near(where),
            )


def _smallest_video(run: Run, patches: PatchSizes) -> int:
    """Return the pixels of a video of one token: of all its frames, or of one, as bounds count."""
    total = family_facts(run.model.family).video.bounds_are_total
    return patches.pixels_per_token * (patches.temporal_patch_size if total else 1)


@settings_rule(
    Rule(
        name="pixel-bounds",
        code="VT206",
        summary=(
            "data.image.min_pixels is above data.image.max_pixels, or that is smaller than one"
            " image token; or so those of data.video."
        ),
        why=(
            "No image size satisfies both; an image is never smaller than one token, so that the"
            " bound would be passed over in silence."
        ),
        bad="data.image.min_pixels=3136 data.image.max_pixels=784",
        good="data.image.min_pixels=784 data.image.max_pixels=3136",
        fix=(
            "Swap them, or leave one out. A token is 28 × 28 pixels in Qwen2-VL, Qwen2.5-VL and"
            " GLM-4V, 32 × 32 in Qwen3-VL and Qwen3.5."
        ),
    ),
)
def pixel_bounds(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that some size of whole image tokens is within min_pixels and max_pixels."""
    if family_facts(run.model.family).is_learnt:
        yield from _own_sizes(run, origins)
        return
    patches = _patches(run)
    side, token = patches.patch_size * patches.merge_size, patches.pixels_per_token
    total = family_facts(run.model.family).video.bounds_are_total
    for kind, bounds, smallest, of, so in (
        ("image", run.data.image, token, "an image token", "every image would be larger"),
        (
            "video",
            run.data.video,
            _smallest_video(run, patches),
            "a video token" if total else "a frame of one video token",
            "every video would be larger",
        ),
    ):
        low, high = bounds.min_pixels, bounds.max_pixels
        if high is not None and high < smallest:
            frames = f"{patches.temporal_patch_size} frames of " if smallest > token else ""
            name = f"data.{kind}.max_pixels"
            yield Diagnostic(
                "pixel-bounds",
                (
                    f"{name} is {high}, but {of} of {run.model.family} is"
                    f" {frames}{side} × {side} = {smallest} pixels, {patches.merge_size} ×"
                    f" {patches.merge_size} patches of {patches.patch_size}: {so}"
                ),
                f"set {name}={smallest}, or more",
                name,
                origins.near(name),
                f"at least {smallest}",
                str(high),
            )
        if low is not None and high is not None and low > high:
            name = f"data.{kind}.min_pixels"
            yield Diagnostic(
                "pixel-bounds",
                f"{name} is {low}, above data.{kind}.max_pixels, which is {high}",
                "swap them, or leave one out",
                name,
                origins.near(name),
                f"at most {high}",
                str(low),
            )


@settings_rule(
    Rule(
        name="image-longer-than-row",
        code="VT219",
        summary=(
            "With the bounds of data.image or data.video, an image or a video has as many tokens as"
            " a whole row may have."
        ),
        why=(
            "There would be no room for a question and an answer: rows with such images or videos"
            " are refused, dropped, or lose their end."
        ),
        bad="data.max_length=64 data.image.min_pixels=802816 data.image.max_pixels=1003520",
        good="data.max_length=2048 data.image.min_pixels=802816 data.image.max_pixels=1003520",
        fix="Lower data.image.max_pixels or data.video.max_pixels, or raise data.max_length.",
    ),
)
def image_longer_than_row(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that an image and a video fit into a row: the smallest must, the largest should."""
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
                yield Diagnostic(
                    "image-longer-than-row",
                    (
                        f"data.max_length is {longest}, but with data.{kind}.{name}={pixels}"
                        f" {which} {tokens} tokens"
                    ),
                    (
                        f"set data.{kind}.{name} below {longest * of_a_token[kind]}, or raise"
                        " data.max_length"
                    ),
                    f"data.{kind}.{name}",
                    origins.near(f"data.{kind}.{name}"),
                    severity=severity,  # type: ignore[arg-type]
                )
                break


@settings_rule(
    Rule(
        name="half-an-image",
        code="VT212",
        summary=(
            "data.drop_model_inputs names one of pixel_values and image_grid_thw, or of"
            " pixel_values_videos and video_grid_thw, and not the other."
        ),
        why=(
            "The model cannot use pixels without their grid: it raises in the first step. A grid"
            " without pixels gives places to nothing."
        ),
        bad="data.drop_model_inputs=[pixel_values]",
        good="data.drop_model_inputs=[pixel_values,image_grid_thw]",
        fix="Name both, to train without images, or neither.",
    ),
)
def half_an_image(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that data.drop_model_inputs names both the pixels and their grid, or neither."""
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
            yield Diagnostic(
                "half-an-image",
                message,
                (
                    f"to train without {kind}, write {parameter}=[{wanted}]; otherwise leave"
                    f" {named[0]} out"
                ),
                parameter,
                origins.near(parameter),
            )


@settings_rule(
    Rule(
        name="token-types-left-out",
        code="VT216",
        summary=(
            "data.drop_model_inputs names mm_token_type_ids, while images are handed to the model."
        ),
        why=(
            "It distinguishes the tokens of images from text, and M-RoPE counts these otherwise."
            " Without it most models of transformers raise at the first image. Qwen2.5-VL (a"
            " warning) counts on as in text, the loss falls, and whoever uses the trained model"
            " gives it others (LightX2V#1416)."
        ),
        bad="model.family=qwen3_vl data.drop_model_inputs=[mm_token_type_ids]",
        good="data.drop_model_inputs=[]",
        fix=(
            "Leave it out of data.drop_model_inputs; or name pixel_values and image_grid_thw too,"
            " to train without images."
        ),
    ),
)
def token_types_left_out(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that the model gets mm_token_type_ids as long as it gets images."""
    parameter, dropped, family = (
        "data.drop_model_inputs",
        run.data.drop_model_inputs,
        run.model.family,
    )
    if "mm_token_type_ids" not in dropped or "image_grid_thw" in dropped:
        return
    silent = family_facts(family).text_positions_without_token_types
    counts = (
        "transformers silently gives images and videos the positions of text; whoever uses"
        " the trained model gives it others"
    )
    raises = (
        "transformers refuses a row with an image or a video (packed, it is silently given the"
        " positions of text)"
    )
    message = (
        f"{parameter} names mm_token_type_ids, without which {family} has no M-RoPE:"
        f" {counts if silent else raises}"
    )
    both = [name for name in ("pixel_values", "image_grid_thw") if name not in dropped]
    yield Diagnostic(
        "token-types-left-out",
        message,
        f"leave it out; to train without images, write {parameter}=[{','.join([*dropped, *both])}]",
        parameter,
        origins.near(parameter),
        severity="warning" if silent else "error",
    )


@settings_rule(
    Rule(
        name="sixteen-bit-range",
        code="VT245",
        summary=(
            "data.image.sixteen_bit=scale has no range of values that become black and white, or an"
            " empty one."
        ),
        why="Such a file does not say which values are black and white, and a guess is wrong.",
        bad="data.image.sixteen_bit=scale",
        good="data.image.sixteen_bit=scale data.image.sixteen_bit_range=[0,4095]",
        fix=(
            "Write the values of the device or the export that wrote the files: [0, 4095] for 12"
            " bits, [0, 65535] for 16, [0.0, 1.0] for floating point."
        ),
    ),
)
def sixteen_bit_range(run: Run, origins: Origins) -> Iterator[Diagnostic]:
    """Check that 16-bit pictures are scaled from a range that is given, and is not empty."""
    image, name = run.data.image, "data.image.sixteen_bit_range"
    if image.sixteen_bit == "scale" and image.sixteen_bit_range is None:
        yield Diagnostic(
            "sixteen-bit-range",
            "data.image.sixteen_bit is scale, and nothing says which values are black and white",
            parameter="data.image.sixteen_bit",
            origin=origins.near("data.image.sixteen_bit"),
        )
    if image.sixteen_bit_range is not None:
        low, high = image.sixteen_bit_range
        if not low < high:
            yield Diagnostic(
                "sixteen-bit-range",
                f"{name} is [{low:g}, {high:g}]: the first is not below the second",
                "write the value that becomes black, then the one that becomes white",
                name,
                origins.near(name),
            )
