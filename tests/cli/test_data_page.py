"""The samples of docs/data.md are read as that page says, and train the demo's model."""

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

import vtool
from tests.commands import vtool as run
from tests.rows import picture, write_rows
from vtool.data.formats import LAYOUTS

PAGE = Path(__file__).parents[2] / "docs/data.md"
SAMPLES = {
    str(found[1]): json.loads(found[2])
    for found in re.finditer(
        r"^\*\*`(\w+)`\*\*:(?:.+\n)+\n    (\{.*\})$", PAGE.read_text(), re.MULTILINE
    )
}
SHORT = ("train={steps: 2, epochs: null}", "optim.warmup_steps=1", "data.global_batch_size=2")
NAMES = [layout.format for layout in LAYOUTS]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    picture(Path("cat.png"))


def source_of(layout: str) -> str:
    """Write the page's sample of a layout, and return its source."""
    sample = SAMPLES[layout]
    if layout == "llama_factory":
        (name, entry), *_ = sample.items()
        Path(entry["file_name"]).write_text(
            json.dumps([SAMPLES["llava"] | {"images": ["cat.png"]}])
        )
        rows = json.loads(Path(entry["file_name"]).read_text())
        del rows[0]["image"]
        Path(entry["file_name"]).write_text(json.dumps(rows))
        Path("dataset_info.json").write_text(json.dumps(sample))
        return f"{{format: llama_factory, path: dataset_info.json, dataset: {name}}}"
    write_rows(Path("rows.jsonl"), [sample])
    if layout == "cauldron":
        return "{format: cauldron, path: rows.jsonl, texts: rows}"
    return "{format: auto, path: rows.jsonl}"


def test_every_layout_has_a_sample() -> None:
    assert sorted(SAMPLES) == sorted(NAMES)


@pytest.mark.parametrize("layout", NAMES)
def test_each_sample_is_a_row_to_train_on(layout: str) -> None:
    source = source_of(layout)
    rows = "cats.json" if layout == "llama_factory" else "rows.jsonl"
    ledger = vtool.audit(rows, f"data.train=[{source}]")
    assert (len(ledger.kept), ledger.images) == (1, 0 if layout == "alpaca" else 1)
    assert ledger.findings == ()


def sharegpt() -> str:
    return source_of("llava")


def disk() -> str:
    datasets = pytest.importorskip("datasets")
    image = {"bytes": Path("cat.png").read_bytes(), "path": None}
    rows = datasets.Dataset.from_list([SAMPLES["messages"] | {"images": [image]}] * 2)
    rows.save_to_disk("disk")
    return "{format: auto, path: disk}"


def tar() -> str:
    with tarfile.open("rows.tar", "w") as file:
        row: dict[str, Any] = {"messages": SAMPLES["messages"]["messages"]}
        for name, data in (
            ("0.png", Path("cat.png").read_bytes()),
            ("0.json", json.dumps(row).encode()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return "{format: auto, path: rows.tar}"


@pytest.mark.full
@pytest.mark.parametrize(
    "make", [sharegpt, *(pytest.param(make, marks=pytest.mark.full) for make in (disk, tar))]
)
def test_a_newcomers_file_trains_the_demos_model_with_one_setting(
    tmp_path: Path, make: Any
) -> None:
    out = run(tmp_path, "train", "sft", "rows", f"data.train=[{make()}]", *SHORT)
    kind = "LLaVA or ShareGPT conversations" if make is sharegpt else "messages"
    assert re.search(rf"data\.train: [12] rows? of {kind}\n", out)
    result = json.loads((tmp_path / "runs/rows/result.json").read_text())
    assert result["status"] == "finished"
