"""Every family trains, is saved, and resumes from an ordinary Hugging Face folder."""

from pathlib import Path

import pytest
import torch

from tests.each_family import EACH_FAMILY
from tests.rows import mixed_rows, write_rows
from tests.runs import encoded, messages, read_lines, request
from vtool.data.collate import collate
from vtool.data.plan import Plan
from vtool.engines.ranks import Ranks
from vtool.families import FAMILIES
from vtool.families.family import load_family
from vtool.training.session import RunRequest
from vtool.training.sft import train

ROWS = 8


def made_run(folder: Path, name: str, run: str, *more: str) -> RunRequest:
    """Rows with an image, with two, and with none; short and long ones in a batch."""
    torch.set_num_threads(1)  # as device.threads says, which launch sets and `train` asks
    if not (folder / "rows.jsonl").exists():
        write_rows(folder / "rows.jsonl", mixed_rows(folder, ROWS, text_only=(1, 5)))
    overrides = [
        messages(folder / "rows.jsonl"),
        *(
            f"model.family={name}",
            "data.global_batch_size=4",
            "data.micro_batch_size=4",
            "data.image={min_pixels:784,max_pixels:4096}",
        ),
        *("optim.warmup_steps=0", "optim.lr=2e-3", f"run.dir={folder / run}", "device.threads=1"),
    ]
    return request("rows", *overrides, *more)


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_it_trains_and_what_it_has_learnt_is_in_its_folder(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForImageTextToText

    made = made_run(tmp_path, name, "run", "train={steps:4,epochs:null}")
    assert train(made, Ranks()).status == "finished"
    losses = [line["loss"] for line in read_lines(tmp_path / "run/metrics.jsonl") if "loss" in line]
    assert losses[-1] < losses[0]
    exported = tmp_path / "run/export"
    model = AutoModelForImageTextToText.from_pretrained(exported, local_files_only=True).eval()
    assert isinstance(model, load_family(name).model_class())

    # What anybody would save, without a run: the model, its tokenizer, its image processor.
    folder = tmp_path / "folder"
    rows, processor = encoded(
        made_run(tmp_path, name, "again", f"model.path={exported}", "model.size=null")
    )
    model.save_pretrained(folder)
    processor.save(folder)
    ordinary = made_run(
        tmp_path,
        name,
        "from-folder",
        f"model.path={folder}",
        "model.size=null",
        "train={steps:1,epochs:null}",
    )
    assert train(ordinary, Ranks()).status == "finished"
    (first,) = [
        line for line in read_lines(tmp_path / "from-folder/metrics.jsonl") if "loss" in line
    ]

    # Its first loss is that of the trained model, row by row.
    total = tokens = 0.0
    for index in Plan(ROWS, ordinary.run.data.global_batch_size, ordinary.run.run.seed).step(1):
        sample = rows.sample(int(index))
        with torch.no_grad():
            out = model(**collate([sample], processor).inputs, labels=sample.labels[None])
        total, tokens = total + float(out.loss) * sample.supervised, tokens + sample.supervised
    assert first["loss"] == pytest.approx(total / tokens, rel=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_files_for_a_server_name_the_familys_own_classes(tmp_path: Path, name: str) -> None:
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    _, processor = encoded(made_run(tmp_path, name, "run"))
    files = load_family(name).serving_files(
        processor.image_processor.to_dict(), processor.video.as_json()
    )
    image, video = files["preprocessor_config.json"], files["video_preprocessor_config.json"]
    assert image["processor_class"] == video["processor_class"] == PROCESSOR_MAPPING_NAMES[name]
    # Where transformers lists none for a family, that of the family whose processor it shares.
    sharing = [
        other
        for other, processor in PROCESSOR_MAPPING_NAMES.items()
        if processor == image["processor_class"] and other in IMAGE_PROCESSOR_MAPPING_NAMES
    ]
    listed = IMAGE_PROCESSOR_MAPPING_NAMES[name if name in sharing else sharing[0]]
    assert image["image_processor_type"] == listed["torchvision"]
    # it cannot be imported without torchvision
    there = Path(transformers.__file__).parent.glob("models/*/video_processing_*.py")
    assert any(f"class {video['video_processor_type']}(" in file.read_text() for file in there)
    config = load_family(name).random_config("tiny", 64, processor.ids).vision_config
    assert (image["patch_size"], image["merge_size"]) == (
        config.patch_size,
        config.spatial_merge_size,
    )
