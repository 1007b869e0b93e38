"""The special tokens of a model: their text in a tokenizer, and their ids."""

from dataclasses import dataclass

CONTENT_TOKENS = frozenset(
    f"<|{what}_{side}|>" for what in ("object_ref", "box", "quad") for side in ("start", "end")
)
"""Special tokens of Qwen's models that a text itself has: around what is seen, and where it is."""


@dataclass(frozen=True, slots=True)
class TokenNames:
    """The text of the special tokens around and in place of images and videos.

    A tokenizer that vtool trains uses the family's own: a server's processor looks them up.
    """

    image: str = "<|image_pad|>"
    video: str = "<|video_pad|>"
    vision_start: str = "<|vision_start|>"
    vision_end: str = "<|vision_end|>"
    video_start: str = "<|vision_start|>"
    video_end: str = "<|vision_end|>"


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The ids of the special tokens. `end` closes a turn; `pad` fills up rows, never a label."""

    image: int
    video: int
    vision_start: int
    vision_end: int
    end: int
    pad: int
    video_start: int | None = None
    """Set where a family has other tokens around a video than around an image."""
    video_end: int | None = None
