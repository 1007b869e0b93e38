"""The other files that are fuzzed: containers of rows, pictures, videos, and a model's folder.

Their seeds are whole files, made by `prepare`; a mutator damages their bytes, or the JSON of one.
Oracles are Pillow, pyarrow, tarfile, `json` and `tokenizers`; and an answer of a format with
checksums in which a byte was changed, which must be refused.
"""

import copy
import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
from PIL import Image as Pictures
from pyarrow import parquet

from tests.campaign import mutate, seeds
from tests.campaign.targets import Answer, Target, _ask_folder, _refusal_of_config
from tests.rows import chat, film
from vtool.config.load import load_run
from vtool.config.schema import Image, Model
from vtool.data.encode import encode_row
from vtool.data.formats.messages import Messages
from vtool.data.media import load_picture, picture_errors
from vtool.data.row import Row, RowVideo
from vtool.data.video import open_clip
from vtool.diagnostics import Findings
from vtool.models.build import model_config
from vtool.models.pictures import PictureReader
from vtool.models.processor import Processor, load_processor, new_processor

TAIL = 40 * 2**30
"""Bytes without content that a file may have behind its own."""
BOMB = 4000
"""Bytes that the largest Parquet file has more than, whose rows are a gigabyte."""
_MOST_READ = 20
SEEDS: dict[str, list[bytes]] = {}
"""Whole files by the name of their target."""


def _damaged(name: str) -> Callable[[random.Random, Any], bytes]:
    """Return the maker of a damaged file of a target: anywhere, or in the answer alone."""

    def make(draw: random.Random, tree: Any) -> bytes:
        content = draw.choice(SEEDS[name])
        if content in seeds.SPANS and draw.random() < 0.3:
            made = bytearray(content)
            made[draw.randrange(*seeds.SPANS[content])] ^= 1 << draw.randrange(8)
            return bytes(made)
        if draw.random() < 0.1:
            return content[: draw.randrange(len(content))]
        if draw.random() < 0.1:  # a number that means another size
            at = draw.randrange(max(1, len(content) - 8))
            width = draw.choice((2, 4, 8))
            number = draw.choice((0, 1, 2**15, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1)) % 256**width
            order = draw.choice(("little", "big"))
            return content[:at] + number.to_bytes(width, order) + content[at + width :]
        return mutate.damage(draw, content)

    return make


def _changed_answer(file: Path, name: str) -> str | None:
    """Return a reason where the answer alone has other bytes than the whole file had."""
    content = file.read_bytes()
    for seed in SEEDS[name]:
        first, behind = seeds.SPANS.get(seed, (0, 0))
        around = (content[:first], content[behind:]) == (seed[:first], seed[behind:])
        if around and len(content) == len(seed) and content != seed:
            return "a byte of an answer is another one"
    return None


def _reason(read: Callable[[], object]) -> str | None:
    """Return why a reader raises; None where it does not."""
    try:
        read()
    except MemoryError:  # of what may be whole
        return None
    except Exception as error:
        return f"{type(error).__name__} {error}"[:200]
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return "PanicException"
    return None


def _ask_container(file: Path) -> Answer:
    try:
        rows = Messages(str(file))
        for index in range(min(len(rows), _MOST_READ)):
            row = rows.row(index)
            json.dumps([row.messages, row.tools], ensure_ascii=False).encode()
    except Findings:
        return True, None
    return False, None


def _refusal_of_parquet(file: Path) -> str | None:
    def read() -> None:
        opened = parquet.ParquetFile(file, page_checksum_verification=True)
        for group in range(opened.num_row_groups):
            if opened.metadata.row_group(group).num_rows <= _MOST_READ:  # else a bomb
                opened.read_row_group(group, use_threads=False).validate(full=True)

    return _changed_answer(file, "Parquet") or _reason(read)


def _refusal_of_arrow(file: Path) -> str | None:
    def read() -> None:
        content = file.read_bytes()
        opened = arrow.ipc.open_file if content[:6] == b"ARROW1" else arrow.ipc.open_stream
        opened(arrow.py_buffer(content)).read_all().validate(full=True)

    return _reason(read)


def _refusal_of_array(file: Path) -> str | None:
    text = file.read_bytes()

    def as_array() -> None:
        if not all(isinstance(row, dict) for row in json.loads(text.decode("utf-8-sig"))):
            raise ValueError("a row is no object")

    def as_lines() -> None:
        for line in text.split(b"\n"):
            if line.strip() and not isinstance(json.loads(line.decode("utf-8-sig")), dict):
                raise ValueError("a line is no object")

    reason = _reason(as_array)
    return reason if reason and _reason(as_lines) else None


def _refusal_of_tar(file: Path) -> str | None:
    content = file.read_bytes()

    def read() -> None:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as opened:
            for member in opened:
                found = opened.extractfile(member)
                data = found.read() if found else b""
                if len(data) != member.size:
                    raise ValueError("a member is cut off")
                if member.name.endswith(".json"):
                    json.loads(data.decode("utf-8-sig"))
            if content[opened.offset : opened.offset + 512].strip(b"\0") or not any(content[:512]):
                raise ValueError("no header where one belongs")

    return _reason(read)


def _ask_picture(file: Path) -> Answer:
    """Measure a picture, as an audit does, and read it, as training does."""
    row, reader = Row("row", [], ()), PictureReader(2**24)
    try:
        with picture_errors(row, str(file), "broken-image", "a picture", reader):
            size, _ = reader.measure(str(file))
    except Findings:
        return True, None
    try:
        read, _ = load_picture(row, str(file), "broken-image", "a picture", reader)
    except Findings as found:
        return False, f"measured, and not decoded: {found.diagnostics[0].rule}"
    return False, None if read.size == size else "measured with another size"


def _refusal_of_picture(file: Path) -> str | None:
    def read() -> None:
        with Pictures.open(file) as opened:
            opened.convert("RGB")

    return _changed_answer(file, "picture") or _reason(read)


def _ask_video(file: Path) -> Answer:
    try:
        open_clip(Row("row", [], ()), RowVideo(str(file), None), _processor().video)
    except Findings:
        return True, None
    return False, None


_recipe = cache(lambda: load_run("digits").run)


@cache
def _processor() -> Processor:
    """Return the processor of a tiny model, with a tokenizer that is trained here."""
    return new_processor(Model(family="qwen2_5_vl", size="tiny"), Image(), ["What is this? yes"])


def _row(place: Path) -> Row:
    question = [{"type": "image"}, {"type": "text", "text": "What is this? " + "a" * 40 + "!"}]
    return Row("row", chat(question, "yes")["messages"], (str(place / "a.png"),))


def _ask_model(file: Path) -> Answer:
    """Load a folder's processor, and encode a row by it; a lower bound may need much memory."""
    try:
        processor = load_processor(file.parent, "qwen2_5_vl")
        least = dict(processor.image_processor.size).get("shortest_edge")
        if isinstance(least, int | float) and least > 2**22:
            return False, None
        sample = encode_row(_row(file.parent.parent), 0, processor, _recipe().data)
    except Findings:
        return True, None
    pixels = sample.visuals.inputs["pixel_values"]
    if pixels is None or not pixels.isfinite().all():
        return False, "pixels that are not finite"
    return False, None if float(pixels.std()) > 1e-3 else "pixels that are all the same"


def _refusal_of_tokenizer(file: Path) -> str | None:
    from tokenizers import Tokenizer

    return _reason(lambda: Tokenizer.from_file(str(file)))


def _ask_template(file: Path) -> Answer:
    tokenizer = copy.copy(_processor().tokenizer)
    tokenizer.chat_template = file.read_text("utf-8", "replace")
    try:
        encode_row(_row(file.parent), 0, replace(_processor(), tokenizer=tokenizer), _recipe().data)
    except Findings:
        return True, None
    return False, None


def _refusal_of_template(file: Path) -> str | None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from vtool.template_child import _Generation

    extensions = [_Generation, "jinja2.ext.loopcontrols"]
    text = file.read_text("utf-8", "replace")
    return _reason(lambda: ImmutableSandboxedEnvironment(extensions=extensions).parse(text))


def _as_template(draw: random.Random, tree: Any) -> bytes:
    text = _processor().tokenizer.chat_template
    for _ in range(draw.choice((1, 1, 2))):
        act = draw.randrange(4)
        if act == 0 and draw.random() < 0.02:
            text = draw.choice(_COSTLY) + text
        elif act == 1:
            at = draw.choice([place for place, one in enumerate(text) if one == "{"])
            text = text[:at] + draw.choice(_PIECES) + text[at:]
        else:
            text = mutate.damage(draw, text.encode()).decode("utf-8", "replace")
    return str(text).encode("utf-8", "replace")


_COSTLY = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(l=['x']) %}{% for i in range(40) %}{% set n.l = n.l + n.l %}{% endfor %}",
    "{% set n = namespace(l=[1]) %}{% for i in range(26) %}{% set n.l = [n.l, n.l] %}{% endfor %}"
    "{{ n.l == n.l|list }}{{ n.l|tojson }}",
    "{{ ('x' * 999999)|replace('x', 'x' * 99999) }}",
    "{{ '%999999999d'|format(1) }}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ range(99999)|map('string')|join|length ** 99999999 }}",
)
_PIECES = (
    *("{{ messages }}", "{{ 1/0 }}", "{{ x.y.z }}", "{{ ''.__class__ }}", "{% break %}", "{# "),
    *(
        "{{ messages[0].content[0]|tojson }}",
        "{% set x = namespace(a=1) %}",
        "{{ raise_exception }}",
    ),
    *("{{ raise_exception('no') }}", "{% generation %}", "{% if false %}", "{{ messages|sort }}"),
    *("{{ [1]|random }}", "{{ cycler }}", "{% include 'a' %}", "{% import 'os' as o %}", "\x00"),
    *(
        "{{ strftime_now('%s') }}",
        "{{ strftime_now(1) }}",
        "{{ dict(a=1)['b'] }}",
        "{{ [] | first }}",
    ),
    *("{{ lipsum(999) }}", "{{ messages|map(attribute='x')|list }}", "{% raw %}", "{{ self }}"),
)


def _tailed(draw: random.Random, tree: Any) -> bytes:
    """Return a whole file's bytes; `_ask_tailed` puts the tail behind it."""
    # a video is looked through for 15 seconds: tests/data/test_video.py has that
    return draw.choice([seed for name in SEEDS if name != "video" for seed in SEEDS[name]])


def _ask_tailed(file: Path) -> Answer:
    """Ask the reader of a file that goes on for 40 GiB behind its content."""
    content = file.read_bytes()
    (name,) = [name for name, whole in SEEDS.items() if content in whole]
    named = file.with_name(Path(TARGETS[name].file).name)
    file.rename(named)
    try:
        os.truncate(named, TAIL)
        return TARGETS[name].ask(named)
    finally:
        named.unlink()
        file.write_bytes(content)


def prepare(place: Path) -> None:
    """Write what is in the folder of the inputs, which has `a.png`: seeds, and a model's files."""
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    rows = [chat("What is this?", f"It is number {number}.") for number in range(6)]
    rows[3] = chat("What is this?", seeds.ANSWER)
    pictures = seeds.pictures_files()
    at = pictures[0].find(b"IDAT") + 4
    seeds.SPANS[pictures[0]] = (at, at + 2000)
    film(place / "seed.mp4", 6, 32, 32)
    film(place / "seed.mkv", 4, 32, 32)
    shown = [chat([{"type": "image"}, {"type": "text", "text": "?"}], "yes")] * 3
    SEEDS.update(
        {
            "Parquet": seeds.parquet_files(rows),
            "Arrow": seeds.arrow_files(rows),
            "JSON array": [json.dumps(rows, indent=width).encode() for width in (None, 1)],
            "tar": seeds.tar_files(shown, pictures[2]),
            "picture": pictures,
            "video": [(place / f"seed.{suffix}").read_bytes() for suffix in ("mp4", "mkv")],
        }
    )
    model = place / "model"
    _processor().save(model)
    settings = Model(family="qwen2_5_vl", size="tiny")
    vocabulary = len(_processor().tokenizer)
    model_config(settings, _processor(), vocabulary).save_pretrained(model)
    for file, trees in (
        ("tokenizer.json", _TOKENIZERS),
        ("tokenizer_config.json", _TOKENIZER_CONFIGS),
        ("preprocessor_config.json", _PREPROCESSORS),
        ("config.json", _CONFIGS),
    ):
        trees[:] = [json.loads((model / file).read_bytes())]
    _TOKENIZERS.extend({**_TOKENIZERS[0], **part} for part in _PARTS)
    adapter = place / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(_ADAPTER))
    from safetensors.numpy import save_file

    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    sizes = {"A": (4, 8), "B": (8, 4)}
    weights = {name.format(part): np.ones(size, np.float32) for part, size in sizes.items()}
    save_file(weights, adapter / "adapter_model.safetensors")


_TOKENIZERS: list[Any] = []
_TOKENIZER_CONFIGS: list[Any] = []
_PREPROCESSORS: list[Any] = []
_CONFIGS: list[Any] = []
_REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 16}
_SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
_PARTS: tuple[dict[str, Any], ...] = (
    {"normalizer": {"type": "Sequence", "normalizers": [_REPLACE] * 8}},
    {"pre_tokenizer": {**_SPLIT, "pattern": {"Regex": "(a|aa)+$"}}},
    {"pre_tokenizer": {**_SPLIT, "pattern": {"Regex": "(?:a*)*b"}}},
    {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "aaaa"}},
    {"normalizer": {"type": "Prepend", "prepend": "a" * 99999}},
)
_ADAPTER = {
    **{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]},
    **{"base_model_name_or_path": "base", "bias": "none", "rank_pattern": {"q_proj": 4}},
}
_NUMBERS = (float("nan"), 0, 0.0, 1, -1, 1e10, 1e-10, 1e12, 255, 2**31, float("inf"), None, [], "a")


def _of_pixels(draw: random.Random, tree: Any) -> bytes:
    """Write settings of an image processor: one of a value that destroys pixels, or damaged."""
    if draw.random() < 0.6:
        tree = copy.deepcopy(_PREPROCESSORS[0])
        key = draw.choice([*tree])
        one = draw.choice(_NUMBERS)
        old = tree[key]
        if isinstance(old, list) and draw.random() < 0.8:
            tree[key] = [one] * len(old) if draw.random() < 0.7 else [*old[1:], one]
        elif isinstance(old, dict) and old and draw.random() < 0.8:
            tree[key] = {**old, draw.choice([*old]): one}
        else:
            tree[key] = not old if isinstance(old, bool) else one
    return mutate.as_json(draw, tree) if draw.random() < 0.2 else json.dumps(tree).encode()


def _of_seeds(weight: int, name: str, file: str, ask: Any, refusal: Any) -> Target:
    return Target(weight, file, ask, refusal, ("",), _damaged(name))


def _nothing(file: Path) -> None:
    return None


TARGETS = {
    "Parquet": _of_seeds(40, "Parquet", "rows.parquet", _ask_container, _refusal_of_parquet),
    "Arrow": _of_seeds(60, "Arrow", "rows.arrow", _ask_container, _refusal_of_arrow),
    "JSON array": _of_seeds(60, "JSON array", "rows.json", _ask_container, _refusal_of_array),
    "tar": _of_seeds(60, "tar", "rows.tar", _ask_container, _refusal_of_tar),
    "picture": _of_seeds(80, "picture", "picture.png", _ask_picture, _refusal_of_picture),
    "video": _of_seeds(4, "video", "clip.mp4", _ask_video, _nothing),
    "tokenizer.json": Target(
        2, "model/tokenizer.json", _ask_model, _refusal_of_tokenizer, _TOKENIZERS
    ),
    "tokenizer_config.json": Target(
        2, "model/tokenizer_config.json", _ask_model, _refusal_of_config, _TOKENIZER_CONFIGS
    ),
    "preprocessor_config.json": Target(
        4,
        "model/preprocessor_config.json",
        _ask_model,
        _nothing,
        _PREPROCESSORS,
        _of_pixels,
    ),
    "model": Target(2, "model/config.json", _ask_model, _refusal_of_config, _CONFIGS),
    "template": Target(
        4, "template.jinja", _ask_template, _refusal_of_template, ("",), _as_template
    ),
    "adapter_config.json": Target(
        30, "adapter/adapter_config.json", _ask_folder, _refusal_of_config, (_ADAPTER,)
    ),
    "a long tail": Target(1, "tail", _ask_tailed, _nothing, ("",), _tailed, seconds=19.0),
}
