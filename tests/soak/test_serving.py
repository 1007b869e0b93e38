"""Exports of `vtool train`, opened by transformers and served by vLLM:

the same prompt, the same answers, the same probabilities.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from vtool.config.schema import Run
from vtool.data.collate import collate_prompts
from vtool.data.encode import Prompt, encode_prompt, encode_question
from vtool.data.loader import EncodedRows, MicroBatch
from vtool.data.loss import summed_nll
from vtool.data.row import Row
from vtool.data.sources import Rows
from vtool.families import FAMILIES
from vtool.models.build import build_model
from vtool.models.generate import answer_greedily
from vtool.models.processor import Processor, load_processor
from vtool.training.checkpoint import newest, open_checkpoint
from vtool.training.export_run import open_run
from vtool.training.run_folder import RunFolder

pytestmark = pytest.mark.soak

STEPS, SCANS, MAX_TOKENS = 200, 50, 4
UNMOVED = "data.train=[{format: digits, split: train}]"
"""The scans without their moved copies: 200 steps see each of them five times, and not once."""
# Recipe, and settings of two ranks: tensor and sequence parallelism, as the recipe has it, and
# pipeline stages; and the other families.
TRAINED = {
    "digits": ("digits",),
    "digits_fsdp2": ("digits_fsdp2", "--nproc", "2"),
    "digits_megatron": ("digits_megatron", "--nproc", "2"),
    "digits_megatron, stages": (
        "digits_megatron",
        "--nproc",
        "2",
        "engine.parallel={tensor: 1, pipeline: 2, sequence: false}",
    ),
    **{
        f"digits, {family}": ("digits", f"model.family={family}")
        for family in FAMILIES
        if family != "qwen2_5_vl"
    },
}
# One grey level of 255, in units of the least of the image processor's standard deviations.
LEVEL = 1 / 255 / 0.2613


@dataclass(frozen=True)
class Trained:
    folder: RunFolder
    run: Run
    processor: Processor
    """The run's own, not the exported one."""
    test: Rows


@dataclass(frozen=True)
class Asked:
    """One request, and what vtool and the exported model make of it."""

    row: Row
    files: tuple[str, ...]
    prompt: Prompt
    ids: list[int]
    logprobs: np.ndarray
    """[tokens of the answer, vocabulary]"""


@pytest.fixture(scope="module", params=TRAINED)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("serving") / "run"
    settings = [f"run.dir={folder}", f"train.steps={STEPS}", "optim.warmup_steps=20", UNMOVED]
    subprocess.run(
        [sys.executable, "-m", "vtool", "train", "sft", *TRAINED[request.param], *settings],
        check=True,
        cwd=folder.parent,
    )
    opened, run = open_run(folder)
    return Trained(
        opened,
        run,
        load_processor(opened.processor, run.model.family, run.data.image),
        Rows(run.data.test),
    )


@pytest.fixture(scope="module")
def exported(trained: Trained) -> Any:
    return AutoModelForImageTextToText.from_pretrained(
        trained.folder.export, local_files_only=True
    ).eval()


@pytest.fixture(scope="module")
def asked(trained: Trained, exported: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Asked]:
    """The first scans of the test split, then chats of other shapes:

    no image, an image at the end, two of other sizes, several turns.
    """
    folder = tmp_path_factory.mktemp("images")
    rows = [trained.test.row(index) for index in range(SCANS)]
    scans = [Row(row.id, row.messages[:-1], row.images) for row in rows]
    image, text = {"type": "image"}, {"type": "text", "text": "Which digit is shown?"}
    tall = Image.fromarray(np.random.RandomState(0).randint(0, 256, (200, 90, 3), dtype=np.uint8))
    two: list[dict[str, Any]] = [
        {"role": "system", "content": "See."},
        {"role": "user", "content": [image, text, image]},
    ]
    chats = [
        Row("no image", [{"role": "user", "content": "Which?"}], []),
        Row("image at the end", [{"role": "user", "content": [text, image]}], scans[0].images),
        Row("two images", two, [tall, *scans[1].images]),
        Row("turns", [*rows[2].messages, {"role": "user", "content": "And now?"}], scans[2].images),
    ]
    return [
        ask(row, trained.processor, exported, folder / f"{number}")
        for number, row in enumerate(scans + chats)
    ]


def ask(row: Row, processor: Processor, model: Any, files: Path) -> Asked:
    paths = tuple(f"{files}-{place}.png" for place in range(len(row.images)))
    for path, image in zip(paths, row.images, strict=True):
        image.save(path)
    prompt = encode_question(row, processor)
    inputs = collate_prompts([prompt], processor)
    with torch.no_grad():
        made = model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=MAX_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
    logprobs = torch.stack(made.logits, 1)[0].double().log_softmax(-1).numpy()
    return Asked(row, paths, prompt, made.sequences[0, len(prompt.input_ids) :].tolist(), logprobs)


def test_transformers_opens_the_export_with_the_weights_of_the_last_step(
    trained: Trained, exported: Any, asked: list[Asked]
) -> None:
    last, _ = newest(trained.folder.checkpoints)
    assert last is not None
    snapshot = open_checkpoint(last)
    assert snapshot.step == STEPS
    model = build_model(
        trained.run.model, trained.processor, trained.folder.processor, 0, weights=False
    ).eval()
    model.load_state_dict(snapshot.model, strict=False)
    tensors = exported.state_dict()
    assert tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())
    inputs = collate_prompts([one.prompt for one in asked[:SCANS]], trained.processor)
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, exported(**inputs).logits)


def test_the_export_gives_the_answers_and_the_likelihood_that_the_run_reported(
    trained: Trained, exported: Any
) -> None:
    predictions = [json.loads(line) for line in trained.folder.predictions.read_text().splitlines()]
    result = json.loads(trained.folder.result.read_text())
    rows = EncodedRows(trained.test, trained.processor, trained.run.data)
    everyone = range(len(trained.test))
    prompts = [encode_prompt(trained.test, index, trained.processor) for index in everyone]
    with torch.no_grad():
        answers = answer_greedily(
            exported, trained.processor, collate_prompts(prompts, trained.processor), MAX_TOKENS
        )
        batch = rows[MicroBatch(tuple(everyone))]
        nll = summed_nll(exported, batch).item() / batch.supervised
    assert answers == [prediction["answer"] for prediction in predictions]
    assert result["test_exact_match"] > 0.8
    assert nll == pytest.approx(result["test_nll"], rel=1e-5)


def test_the_exported_tokenizer_and_image_processor_make_what_the_run_trained_on(
    trained: Trained, asked: list[Asked]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained.folder.export, local_files_only=True)
    image_processor = AutoImageProcessor.from_pretrained(
        trained.folder.export, local_files_only=True, backend="pil"
    )
    for one in asked:
        text = tokenizer.apply_chat_template(
            one.row.messages, tokenize=False, add_generation_prompt=True
        )
        if "pixel_values" in one.prompt.visuals.inputs:
            made = image_processor(
                images=[Image.open(file) for file in one.files], return_tensors="pt"
            )
            assert torch.equal(made["pixel_values"], one.prompt.visuals.inputs["pixel_values"])
            for grid in made["image_grid_thw"]:
                text = text.replace(
                    "<|image_pad|>",
                    "<image>" * (int(grid.prod()) // image_processor.merge_size**2),
                    1,
                )
        text = text.replace("<image>", "<|image_pad|>")
        assert tokenizer(text, add_special_tokens=False).input_ids == one.prompt.input_ids.tolist()


@pytest.fixture(scope="module", params=["pil", "torchvision"])
def served(
    request: pytest.FixtureRequest,
    trained: Trained,
    asked: list[Asked],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """Return the package with which the server resizes images;

    its answers; and those to each scan's question with the next scan's image.
    """
    interpreter = os.environ.get("VTOOL_VLLM_PYTHON")
    if request.param == "torchvision" and (trained.run.engine.kind, trained.run.model.family) != (
        "ddp",
        "qwen2_5_vl",
    ):
        pytest.skip(
            "not run: how images are resized is none of the engine's or the family's, and is asked"
            " of one run"
        )
    if trained.run.model.family == "qwen3_5":
        pytest.skip(
            "not run: vLLM's linear attention on a CPU takes bfloat16 alone, and no heads of 32"
            " features, which the tiny size has"
        )
    if not interpreter:
        pytest.skip(
            "not run: VTOOL_VLLM_PYTHON is not set to the interpreter of an environment with vLLM"
            " (`make vllm-env` makes one)"
        )
    folder = tmp_path_factory.mktemp(request.param)
    requests = [{"messages": one.row.messages, "images": one.files} for one in asked]
    control = [
        {**requests[number], "images": requests[(number + 1) % SCANS]["images"]}
        for number in range(SCANS)
    ]
    (folder / "requests.json").write_text(
        json.dumps({"max_tokens": MAX_TOKENS, "requests": requests + control})
    )
    script = Path(__file__).with_name("serve_with_vllm.py")
    command = [
        interpreter,
        str(script),
        str(trained.folder.export),
        str(folder / "requests.json"),
        str(folder / "answers.json"),
    ]
    command += ["--pil"] if request.param == "pil" else []
    ran = subprocess.run(command, check=False, text=True, capture_output=True, timeout=900)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-6000:]
    answers = json.loads((folder / "answers.json").read_text())
    return request.param, answers[: len(asked)], answers[len(asked) :]


def test_vllm_gives_the_model_the_prompt_that_vtool_trains_on(
    served: Any, asked: list[Asked]
) -> None:
    _, answers, _ = served
    for one, answer in zip(asked, answers, strict=True):
        assert answer["prompt_ids"] == answer["processor_ids"] == one.prompt.input_ids.tolist(), (
            one.row.id
        )


def test_vllm_resizes_images_as_vtool_does_but_for_rounding(
    served: Any, asked: list[Asked]
) -> None:
    resized, answers, _ = served
    furthest = max(
        float(
            (torch.tensor(answer["pixel_values"]) - one.prompt.visuals.inputs["pixel_values"])
            .abs()
            .max()
        )
        for one, answer in zip(asked, answers, strict=True)
        if "pixel_values" in one.prompt.visuals.inputs
    )
    print(f"pixels, {resized}: at most {furthest / LEVEL:.2f} grey levels apart")
    assert furthest == 0 if resized == "pil" else furthest < 2.1 * LEVEL


def test_vllm_answers_as_transformers_does(served: Any, asked: list[Asked]) -> None:
    resized, answers, control = served
    same = [answer["ids"] == one.ids for one, answer in zip(asked, answers, strict=True)]
    fooled = sum(
        answer["ids"] == one.ids for one, answer in zip(asked[:SCANS], control, strict=True)
    )
    pairs = [
        (one, answer) for one, answer, equal in zip(asked, answers, same, strict=True) if equal
    ]
    distances = [np.abs(np.array(answer["logprobs"]) - one.logprobs) for one, answer in pairs]
    chosen = max(
        distance[place, token]
        for distance, (one, _) in zip(distances, pairs, strict=True)
        for place, token in enumerate(one.ids)
    )
    whole = max(float(distance.max()) for distance in distances)
    print(
        f"answers, {resized}: {sum(same)} of {len(same)} the same; with the next image {fooled} of"
        f" {SCANS}"
    )
    print(
        f"log-probabilities, {resized}: {chosen:.1e} apart for the chosen tokens, {whole:.1e} over"
        " the vocabulary"
    )
    assert fooled < SCANS / 4
    assert (
        sum(
            answer["ids"] == asked[(number + 1) % SCANS].ids
            for number, answer in enumerate(control)
        )
        >= SCANS - 1
    )
    if resized == "pil":
        assert all(same)
        assert whole <= 1e-4
    # the grey levels that torchvision rounds in another direction move probabilities, and could
    # turn a near tie
    else:
        assert sum(same) >= len(same) - 1
        assert chosen <= 0.02
