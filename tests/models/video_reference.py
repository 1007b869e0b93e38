"""Record transformers' own results for videos. Run by an interpreter that has torchvision:
`python FILE FOLDER`.

FOLDER has `asked.json`, a list of {family, folder, text, frames, fps, indices, total, images}, and
`sampled.json`, a list of {folder, processor, total, rate, fps}. Answers go next to them. Imports
nothing of vtool.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.video_utils import VideoMetadata


def processor_of(folder: Path) -> object:
    settings = json.loads((folder / "video_preprocessor_config.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    video = getattr(transformers, settings["video_processor_type"]).from_pretrained(
        folder, local_files_only=True
    )
    # The module has a name of its own, which `from transformers import` does not find where the PIL
    # class is the only one.
    own = json.loads((folder / "preprocessor_config.json").read_text())[
        "image_processor_type"
    ].removesuffix("Pil")
    image = getattr(transformers, f"{own}Pil").from_pretrained(folder, local_files_only=True)
    return getattr(transformers, settings["processor_class"])(
        image, tokenizer, video, chat_template=tokenizer.chat_template
    )


def answer(asked: dict) -> dict[str, np.ndarray]:
    processor = processor_of(Path(asked["folder"]))
    videos, metadata = [], []
    for clip in asked["clips"]:
        frames = [np.asarray(Image.open(file).convert("RGB")) for file in clip["frames"]]
        videos.append(torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2))
        metadata.append(
            VideoMetadata(clip["total"], fps=clip["rate"], frames_indices=list(clip["indices"]))
        )
    given = (
        {"videos": videos, "video_metadata": metadata, "do_sample_frames": False} if videos else {}
    )
    images = [Image.open(file) for file in asked["images"]]
    made = processor(text=[asked["text"]], images=images or None, **given, return_tensors="pt")
    return {name: np.asarray(value) for name, value in made.items()}


def sample(asked: dict) -> list[int]:
    settings = json.loads((Path(asked["folder"]) / "video_preprocessor_config.json").read_text())
    video = getattr(transformers, settings["video_processor_type"]).from_pretrained(
        asked["folder"], local_files_only=True
    )
    metadata = VideoMetadata(
        asked["total"], fps=asked["rate"], duration=asked["total"] / asked["rate"]
    )
    # As `preprocess` calls it.
    names = ("temporal_patch_size", "min_frames", "max_frames", "num_frames", "fps")
    settings = {name: getattr(video, name, None) for name in names} | (
        {"fps": asked["fps"]} if asked["fps"] else {}
    )
    return [int(index) for index in video.sample_frames(metadata=metadata, **settings)]


def main(folder: Path) -> None:
    for number, asked in enumerate(json.loads((folder / "asked.json").read_text())):
        np.savez(folder / f"{number}.npz", **answer(asked))
    found = [sample(asked) for asked in json.loads((folder / "sampled.json").read_text())]
    (folder / "indices.json").write_text(
        json.dumps({"transformers": transformers.__version__, "indices": found})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
