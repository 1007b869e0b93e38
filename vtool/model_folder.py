"""A model's folder as transformers writes it: the one place that opens its small files.

Torch-free. Whatever a file is, reading it ends: each has a most of bytes, and none is a device.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vtool.contents import Content, of_few_parts, small_file, stand_in
from vtool.words import first_line

MODEL_CONFIG = "config.json"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST_SETTINGS_FILE = 16 * 2**20
"""Bytes of a settings file that is read: a hundred times what large ones have."""
LARGEST_INDEX = 100_000_000
"""Bytes of an index that is read: as many as safetensors takes for a header."""
_IMAGES, _BOTH = "preprocessor_config.json", "processor_config.json"
PROCESSOR_FILES = (_IMAGES, _BOTH)
"""Files that have the image processor's settings, in the order in which they are looked into."""
VIDEO_SETTINGS_FILE = "video_preprocessor_config.json"
GENERATION, TOKENIZER = "generation_config.json", "tokenizer.json"
TOKENIZER_CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
TEMPLATE_JSON = "chat_template.json"
JSON_OF_MODEL = (
    *(GENERATION, _IMAGES, _BOTH, VIDEO_SETTINGS_FILE, TOKENIZER, TOKENIZER_CONFIG, "vocab.json"),
    *("special_tokens_map.json", "added_tokens.json", TEMPLATE_JSON),
)
"""Files of JSON beside a model's config.json and the index of its weights."""
_OF_MODEL = (
    *(MODEL_CONFIG, *JSON_OF_MODEL, "merges.txt", "tokenizer.model", TEMPLATE),
    *("adapter_config.json", "adapter_model.safetensors", WHOLE, INDEX),
)
"""Files of a model's folder, or an adapter's, that its readers open."""
_MOST = dict.fromkeys(
    (MODEL_CONFIG, _IMAGES, _BOTH, VIDEO_SETTINGS_FILE), LARGEST_SETTINGS_FILE
) | {INDEX: LARGEST_INDEX}
"""The most bytes of a file, where they are fewer than those of a tokenizer."""


@dataclass(frozen=True)
class ModelFolder:
    """The files of a model's folder, each read when it is first asked for."""

    path: Path

    def has(self, *names: str) -> bool:
        """Return whether one of these files is there."""
        return any((self.path / name).exists() for name in names)

    def content(self, name: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            ValueError: it is larger than any such file, and is not read.
            OSError: it cannot be read.
        """
        return of_few_parts(small_file(self.path / name, _MOST.get(name)))

    def read(self, name: str) -> Any:
        """Return the value of a JSON file.

        Raises:
            ValueError, RecursionError: as `content`; it is not JSON.
            OSError: it cannot be read.
        """
        return json.loads(self.content(name).decode())

    def settings(self, name: str) -> dict[str, Any] | None:
        """Return the object of a JSON file; None where there is none that can be read."""
        try:
            found = self.read(name)
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def unreadable(self, *names: str) -> str | None:
        """Return which of these files, where it is there, has no JSON object, and why not."""
        for name in filter(self.has, names):
            try:
                found = self.read(name)
            except (OSError, ValueError, RecursionError) as error:
                return f"{name} cannot be read: {first_line(error)}"
            if not isinstance(found, dict):
                return f"{name} has no object of settings"
        return None

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The config.json; empty where there is none that can be read."""
        return self.settings(MODEL_CONFIG) or {}

    @property
    def model_type(self) -> str | None:
        """The type of the model that config.json names."""
        found = self.config.get("model_type")
        return found if isinstance(found, str) else None

    @property
    def image_processor(self) -> Mapping[str, Any] | None:
        """The settings of the image processor; None where there are none that can be read."""
        return next(iter(self.image_settings.values()), None)

    @cached_property
    def image_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """The settings of the image processor by file, those that transformers takes first."""
        return self._objects((_BOTH, "image_processor"), (_IMAGES, None))

    @property
    def video_processor(self) -> Mapping[str, Any]:
        """The settings for videos, or those for images where it has none for videos."""
        # transformers looks for these in preprocessor_config.json first
        images = reversed([*self.image_settings.values()])
        return next(iter((*self.video_settings.values(), *images)), {})

    @cached_property
    def video_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """The settings for videos alone by file, those that transformers takes first."""
        return self._objects((_BOTH, "video_processor"), (VIDEO_SETTINGS_FILE, None))

    def _objects(self, *places: tuple[str, str | None]) -> dict[str, Mapping[str, Any]]:
        found = ((name, self.settings(name), key) for name, key in places)
        objects = ((name, own.get(key) if own and key else own) for name, own, key in found)
        return {name: own for name, own in objects if isinstance(own, dict)}

    @cached_property
    def templates(self) -> Mapping[str, str]:
        """The default chat templates that files have, by the file's name, the used one first."""
        found: dict[str, str] = {}
        for name in (TEMPLATE, TEMPLATE_JSON, TOKENIZER_CONFIG):
            try:
                text: Any = self.content(name).decode()
                if name != TEMPLATE:
                    text = json.loads(text).get("chat_template")
                if isinstance(text, list):
                    named = {one["name"]: one["template"] for one in text}
                    text = named.get("default")
            except (OSError, ValueError, AttributeError, RecursionError, KeyError, TypeError):
                continue
            if isinstance(text, str):
                found[name] = text.rstrip("\n")
        return found

    @cached_property
    def shards(self) -> tuple[str, ...]:
        """The files that the index of the weights names, sorted.

        Raises:
            ValueError: the index is none.
            OSError: it cannot be read.
        """
        try:
            return (*sorted({str(one) for one in self.read(INDEX)["weight_map"].values()}),)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(str(error)) from error

    @property
    def named_shards(self) -> tuple[str, ...]:
        """The files that the index names; none where there is none that can be read."""
        try:
            return self.shards
        except (OSError, ValueError):
            return ()

    @property
    def refused(self) -> str | None:
        """The first small file that is there and is not read, and the reason; None where none is.

        Libraries read whatever has the name: a pipe without an end, or JSON without.
        """
        for name in (MODEL_CONFIG, *JSON_OF_MODEL, "merges.txt", TEMPLATE):
            try:
                self.content(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                return f"{name} cannot be read: {error.strerror}"
        return None

    @property
    def stand_ins(self) -> dict[str, Content]:
        """The files that are in the place of others, by their names.

        Files that no reader of such a folder opens may be anything: a clone with Git
        LFS may leave them as they are.
        """
        names = (*_OF_MODEL, *self.named_shards)
        return {name: one for name in names if (one := stand_in(self.path / name))}

    def stand_in(self) -> tuple[str, str | None] | None:
        """Return the problem with files that stand in for others, and the remedy; None for none."""
        if not (found := self.stand_ins):
            return None
        name, first = next(iter(found.items()))
        more = f", and {len(found) - 1} more of its files are no better" if len(found) > 1 else ""
        return f"has a {name} that {first.what}{more}", first.remedy
