"""The outputs of transformers' class of a folder, and how far rounding may move them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import Parameter, signature
from math import isinf, isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import NotRun, error_text
from .facts import CheckFacts, Item

TEXT_TOKENS = 12
"""The length of the text."""
GRID = (4, 8)
"""The height and width of the image, in patches, where a class takes patches."""
UNIT = torch.finfo(torch.bfloat16).eps
ROUNDINGS = 3
"""The times that all weights are moved by a unit in the last place; the smallest effect counts.

Two classes may be as far apart. Of vLLM 0.32's classes that compute rightly, in float32, most were
1e-6 apart, where rounding moved outputs by 0.02 to 0.1; an exchange of two weights moves them by
about 1.
"""
SAME = 1 / 8
"""The part of a rounding within which two classes compute the same.

Between that and the whole of it nothing is reported: another constant, as an approximation of GELU,
or a router that chooses otherwise may be behind it.
"""
MOST_ROUNDING = 0.5
"""The part of their size by which rounding may move outputs: moved further, they show nothing."""
Outputs = Mapping[str, Tensor]
"""`logits`, where a class has them, and `hidden states`, each of shape (tokens, width).

Of an image, `image features`, of shape (rows, width).
"""
OfText = Callable[[Tensor, Outputs], Outputs]
"""Computes of the ids of a text one of the outputs that the twin has of it. Raises NotRun."""
OfImage = Callable[[Mapping[str, Tensor]], Any]
"""Computes what the language model is given of an image, in one tensor or several."""


class Twin:
    """transformers' model of a folder, in float32.

    Args:
        class_name: transformers' class.
        folder: has config.json and the weights.

    Raises:
        NotRun: transformers cannot load it, or leaves parameters unwritten.
    """

    def __init__(self, class_name: str, folder: Path) -> None:
        import transformers

        model_class: Any = getattr(transformers, class_name, None)
        if not hasattr(model_class, "from_pretrained"):
            raise NotRun(f"transformers has no {class_name}")
        model, loaded = model_class.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        if missing := loaded["missing_keys"]:
            raise NotRun(f"transformers' {class_name} finds no {min(missing)}")
        self.model: Any = model.float().eval()

    def tokens(self) -> Tensor:
        """Return the ids of a text, of shape (tokens,): none has a meaning of its own."""
        rows = self.model.get_input_embeddings().weight.shape[0]
        marked = set(_token_ids(self.model.config.to_dict()))
        plain = torch.tensor([one for one in range(rows) if one not in marked])
        generator = torch.Generator().manual_seed(0)
        return plain[torch.randint(len(plain), (TEXT_TOKENS,), generator=generator)]

    def outputs(self, tokens: Tensor) -> Outputs:
        """Compute the outputs of a text."""
        with torch.no_grad():
            made = self.model(
                input_ids=tokens[None], output_hidden_states=True, use_cache=False, return_dict=True
            )
        last = made.get("last_hidden_state")
        found = {"hidden states": made["hidden_states"][-1] if last is None else last}
        if (logits := made.get("logits")) is not None and logits.shape[:2] == (1, len(tokens)):
            found["logits"] = logits
        return {name: tensor[0].double() for name, tensor in found.items()}

    def image(self) -> Mapping[str, Tensor]:
        """Return an image's pixels, and its grid where the class takes one.

        Raises:
            NotRun: it takes no image, or more than these.
        """
        features = getattr(self.model, "get_image_features", None)
        vision = getattr(self.model.config, "vision_config", None)
        if features is None or vision is None:
            raise NotRun("transformers' class has no get_image_features")
        taken = signature(features).parameters
        needed = {name for name, one in taken.items() if one.default is Parameter.empty}
        grid = "image_grid_thw" in taken
        if more := needed - {"pixel_values", "image_grid_thw", "kwargs"}:
            raise NotRun(f"its images come with {min(more)}")
        generator = torch.Generator().manual_seed(0)
        if grid:
            depth = getattr(vision, "in_channels", 3) * getattr(vision, "temporal_patch_size", 1)
            rows = GRID[0] * GRID[1]
            pixels = torch.randn(rows, depth * vision.patch_size**2, generator=generator)
            return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, *GRID]])}
        size = getattr(vision, "image_size", None)
        if not isinstance(size, int):
            raise NotRun("its config names no size of an image")
        return {"pixel_values": torch.randn(1, 3, size, size, generator=generator)}

    def features(self, image: Mapping[str, Tensor]) -> Outputs:
        """Compute what the language model is given of an image."""
        with torch.no_grad():
            made = self.model.get_image_features(**image)
        return {"image features": joined(getattr(made, "pooler_output", made)).double()}

    def roundings(self, compute: Callable[[], Outputs], expected: Outputs) -> dict[str, float]:
        """Return the relative effect of moving each weight by a unit in bfloat16's last place.

        A router may choose another expert, whose effect is no rounding: the smallest counts.

        Args:
            compute: computes the outputs again.
            expected: the outputs of the weights as they are.
        """
        parameters = list(self.model.parameters())
        kept = [_small_copy(one.detach()) for one in parameters]
        found = dict.fromkeys(expected, float("inf"))
        for seed in range(ROUNDINGS):
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for parameter, value in zip(parameters, kept, strict=True):
                    up = torch.rand(value.shape, generator=generator) < 0.5
                    parameter.copy_(value.float() * (1 + (2.0 * up - 1) * UNIT))
            for name, moved in compute().items():
                found[name] = min(found[name], distance(moved, expected[name]))
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)
        return found


def _small_copy(tensor: Tensor) -> Tensor:
    """Return a copy in bfloat16, where that has the same values; files mostly do."""
    small = tensor.bfloat16()
    return small if torch.equal(small.float(), tensor) else tensor.clone()


def joined(made: Any) -> Tensor:
    """Return the rows of one tensor, or of several one below the other."""
    if isinstance(made, Tensor):
        return made.reshape(-1, made.shape[-1])
    return torch.cat([joined(one) for one in made])


def distance(seen: Tensor, expected: Tensor) -> float:
    """Return ‖seen − expected‖ / ‖expected‖; infinite where a number is none."""
    found = float((seen - expected).norm() / expected.norm().clamp_min(1e-30))
    return float("inf") if isnan(found) else found


def compare_class(
    twin: Twin, of_text: OfText, of_image: OfImage | None = None, guessed: bool = False
) -> CheckFacts:
    """Compare what a loaded class computes in float32 of a text, and of an image, with its twin.

    Args:
        of_image: None where the class takes no image.
        guessed: fields of the class's config were made up, and may mean something else.

    Raises:
        NotRun: there is nothing to compare.
    """
    found = _compare_text(twin, of_text)
    images = _compare_image(twin, of_image) if of_image else CheckFacts()
    found = CheckFacts((*found.items, *images.items), {**found.measured, **images.measured})
    if found.items and guessed:
        raise NotRun("it computes something else, and fields of its config were guessed")
    return found


def _compare_text(twin: Twin, of_text: OfText) -> CheckFacts:
    tokens = twin.tokens()
    expected = twin.outputs(tokens)
    own = of_text(tokens, expected)
    roundings = twin.roundings(lambda: twin.outputs(tokens), expected)
    found = compare_outputs(own, expected, roundings)
    name = found.measured["compared"]
    if not found.items or isinf(found.measured["distance"]):  # of no numbers nothing depends
        return found
    ahead = _sees_ahead(lambda text: twin.outputs(text)[name], tokens)
    if ahead != _sees_ahead(lambda text: of_text(text, expected)[name], tokens):
        raise NotRun("one of them lets tokens of a text see later ones, the other does not")
    return found


def _sees_ahead(output: Callable[[Tensor], Tensor], tokens: Tensor) -> bool:
    """Return whether the first row of an output depends on the last token, beyond rounding."""
    other = tokens.clone()
    other[-1] = tokens[0]
    return distance(output(other)[0], output(tokens)[0]) > 1e-3


def _compare_image(twin: Twin, of_image: OfImage) -> CheckFacts:
    try:
        image = twin.image()
        expected = twin.features(image)
        own = {"image features": joined(of_image(image))}
        roundings = twin.roundings(lambda: twin.features(image), expected)
        found = compare_outputs(own, expected, roundings)
    except NotRun as why:
        return CheckFacts((), {"images": f"not run: {why}"})
    except Exception as error:  # a class may take images otherwise than these
        return CheckFacts((), {"images": f"not run: {error_text(error)}"})
    return CheckFacts(found.items, {"images": dict(found.measured)})


def compare_outputs(own: Outputs, expected: Outputs, roundings: Mapping[str, float]) -> CheckFacts:
    """Compare a class's outputs with those of its twin, a tiny model of transformers' class.

    Args:
        own: what the class computes: one output.
        expected: what the twin computes.
        roundings: what `Twin.roundings` returned of it.

    Raises:
        NotRun: the twin has no such output, rounding moves it as far as anything could, or what
            they are apart is neither float32's rounding nor more than that of bfloat16.
    """
    ((name, seen),) = own.items()
    right = expected.get(name)
    if right is None:
        raise NotRun(f"its twin has no {name}")
    # a vocabulary may be padded
    width = min(seen.shape[-1], right.shape[-1]) if name == "logits" else right.shape[-1]
    if seen.shape[:-1] != right.shape[:-1] or seen.shape[-1] < width:
        raise NotRun(f"its {name} have shape {list(seen.shape)}, its twin's {list(right.shape)}")
    seen, right = seen[..., :width].double(), right[..., :width]
    rounding = roundings[name]
    if rounding > MOST_ROUNDING:
        raise NotRun(f"rounding its weights moves its {name} by {rounding:.2g} of their size")
    found = distance(seen, right)
    measured: dict[str, Any] = {"compared": name, "distance": found, "rounding": rounding}
    if found <= rounding * SAME:
        return CheckFacts((), measured)
    if found <= rounding:
        raise NotRun(
            f"its {name} are {found:.2g} from its twin's: further than float32 rounds, and no"
            f" further than moving each weight by a unit in bfloat16's last place moves them"
            f" ({rounding:.2g})"
        )
    times = float((seen * right).sum() / right.square().sum().clamp_min(1e-30))
    if times > 0 and distance(seen / times, right) <= rounding:
        measured["times"] = times
    texts = (f"{name} within {rounding:.2g}", f"{name} that are {found:.2g} away")
    return CheckFacts((Item("differs", None, (), *texts),), measured)


def _token_ids(values: Any, key: str = "") -> Iterator[int]:
    """Yield the ids that a config gives a meaning, as `eos_token_id` and `image_token_index`."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _token_ids(value, str(name))
    elif isinstance(values, Iterable) and not isinstance(values, str):
        for value in values:
            yield from _token_ids(value, key)
    elif isinstance(values, int) and "token" in key:
        yield values
