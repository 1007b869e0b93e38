"""Benchmark: `vtool evaluate` against a bare loop over transformers' `generate`.

Both are whole processes that are asked the demo's 359 test rows, written as a file of rows with
PNGs: they import what they need, load the export, read rows and images, and answer greedily, in
batches of the same size, in one thread.

    bare   nothing but transformers: opens images, makes prompts by the export's own tokenizer,
           template and image processor, calls `generate`, decodes. It takes rows as they come,
           and computes no loss and no score, writes nothing and checks nothing
    vtool  `vtool evaluate RUN rows.jsonl`: audits rows (none is remembered from another round),
           answers, computes the NLL of every reference, scores, writes predictions, images and
           the page, whose template an earlier round has compiled, as Python's modules are

The answers of both must be the same, or nothing is printed. They take turns; CPU seconds are those
of the kernel for the whole process. The ratio is the median over rounds, in brackets its quartiles.
In addition, in processes of their own: the CPU seconds once torch, transformers and vtool are
imported, which are audit, scores and page too; and the wall seconds of the loop alone, from the
first batch of rows to the last answer, which grow with the model.

    python -m benchmarks.evaluate [--run FOLDER] [--rounds N]

Without --run, the demo's recipe is trained first, for 600 steps.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

BATCH, LONGEST = 32, 64
THREADS = "device.threads=1"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
ASKED = 1.2


def bare(export: Path, rows: Path, output: Path) -> None:
    """Answer rows with transformers alone, as a script of twenty lines does."""
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

    began = time.process_time()
    model = AutoModelForImageTextToText.from_pretrained(export, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(export, padding_side="left")
    processor = AutoImageProcessor.from_pretrained(export, backend="pil")
    merged = processor.merge_size**2
    records = [json.loads(line) for line in rows.read_text().splitlines()]
    found: list[str] = []
    loop = time.monotonic()
    for start in range(0, len(records), BATCH):
        texts, images = [], []
        batch = records[start : start + BATCH]
        for record in batch:
            question = record["messages"][0]["content"].removeprefix("<image>")
            content = [{"type": "image"}, {"type": "text", "text": question}]
            chat = [{"role": "user", "content": content}]
            texts.append(
                tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            )
            images.append(Image.open(rows.parent / record["images"][0]).convert("RGB"))
        pixels = processor(images=images, return_tensors="pt")
        for place, grid in enumerate(pixels["image_grid_thw"]):
            count = int(grid.prod()) // merged
            texts[place] = texts[place].replace("<|image_pad|>", "<|image_pad|>" * count)
        inputs = tokenizer(texts, padding=True, return_tensors="pt", add_special_tokens=False)
        # what `AutoProcessor` returns besides these; it needs torchvision
        kinds = (inputs["input_ids"] == model.config.image_token_id).int()
        with torch.inference_mode():
            made = model.generate(
                **inputs,
                **pixels,
                mm_token_type_ids=kinds,
                do_sample=False,
                repetition_penalty=1.0,
                max_new_tokens=LONGEST,
            )
        new = made[:, inputs["input_ids"].shape[1] :]
        found += tokenizer.batch_decode(new, skip_special_tokens=True)
    seconds = {"imported": time.process_time() - began, "loop": time.monotonic() - loop}
    output.write_text(json.dumps({"answers": found, **seconds}))


def imported(run: Path, rows: Path, to: Path) -> None:
    """Evaluate as the command does, and write the seconds that it takes once all is imported."""
    from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

    from vtool.cli.evaluate import write_evaluation_page
    from vtool.evaluation.run import EvaluationRequest, evaluate_model

    del AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer
    began = time.process_time()
    request = EvaluationRequest(
        str(run),
        str(rows),
        (THREADS,),
        batch_size=BATCH,
        max_new_tokens=LONGEST,
        folder=to,
    )
    done = evaluate_model(request, print)
    assert done is not None, "one rank"
    write_evaluation_page(done)
    seconds = {"imported": time.process_time() - began, "loop": done.seconds}
    (to / "seconds").write_text(json.dumps(seconds))


def seconds_of(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> float:
    """Run a command, and return the CPU seconds of its process."""
    with (folder / "printed").open("w+") as printed:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=printed, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            printed.seek(0)
            raise SystemExit(f"{command} ended with {process.returncode}:\n{printed.read()}")
    return usage.ru_utime + usage.ru_stime


def write_rows(folder: Path) -> Path:
    """Write the demo's test rows as a file with PNGs, and return it."""
    from vtool.config.load import load_run
    from vtool.data.sources import Rows

    rows = Rows(load_run("digits").run.data.test)
    lines = []
    for index in range(len(rows)):
        row = rows.row(index)
        name = f"{index:05d}.png"
        row.images[0].save(folder / name)
        question = "".join(part.get("text", "") for part in row.messages[0]["content"])
        answer = row.messages[1]["content"]
        text = answer if isinstance(answer, str) else answer[0]["text"]
        messages = [
            {"role": "user", "content": f"<image>{question}"},
            {"role": "assistant", "content": text},
        ]
        lines.append(json.dumps({"messages": messages, "images": [name]}) + "\n")
    file = folder / "rows.jsonl"
    file.write_text("".join(lines))
    return file


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bare", type=Path, nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--imported", type=Path, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        return bare(*given.bare)
    if given.imported:
        return imported(*given.imported)
    with tempfile.TemporaryDirectory() as name:
        measure(given.run and given.run.absolute(), given.rounds, Path(name))


def measure(run: Path | None, rounds: int, folder: Path) -> None:
    """Measure in a folder of its own, and print."""
    here = [os.getcwd(), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, here))}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    python = [sys.executable, "-m"]
    if run is None:
        run = folder / "run"
        train = [*python, "vtool", "train", "sft", "digits", f"run.dir={run}"]
        seconds_of(train, environment, folder)
    rows = write_rows(folder)
    output, to = folder / "bare.json", folder / "to"
    evaluate = [*python, "vtool", "evaluate", str(run), str(rows), THREADS, "--batch", str(BATCH)]
    own = [*python, "benchmarks.evaluate"]
    commands = {
        "bare": [*own, "--bare", str(run / "export"), str(rows), str(output)],
        "vtool": [*evaluate, "--max-new-tokens", str(LONGEST), "--to", str(to)],
        "imported": [*own, "--imported", str(run), str(rows), str(to)],
    }
    found: list[dict[str, tuple[float, float]]] = []
    for number in range(rounds + 1):
        whole: dict[str, float] = {}
        for name in (*commands, *commands)[number % 3 : number % 3 + 3]:
            for place in (to, folder / "cache/vtool/audits"):  # nothing of another round
                shutil.rmtree(place, ignore_errors=True)
            whole[name] = seconds_of(commands[name], environment, folder)
            if name == "imported":
                parts = json.loads((to / "seconds").read_text())
            elif name == "vtool":
                lines = (to / "predictions.jsonl").read_text().splitlines()
                answers = [json.loads(line)["answer"] for line in lines]
        simple = json.loads(output.read_text())
        if answers != simple["answers"]:
            raise SystemExit("the two give other answers: nothing is compared")
        pairs = {part: (simple[part], parts[part]) for part in ("imported", "loop")}
        found.append({"whole": (whole["bare"], whole["vtool"]), **pairs})
    show(found[1:], len(answers))  # the first round reads files from the disk


def show(found: Sequence[Mapping[str, tuple[float, float]]], rows: int) -> None:
    """Print medians, and the ratios."""
    print(f"{rows} rows, all answers the same; seconds, medians of {len(found)} rounds")
    titles = {"whole": "whole process, CPU", "imported": "once imported, CPU", "loop": "loop, wall"}
    for part, title in titles.items():
        bare, vtool = (median(one[part][side] for one in found) for side in (0, 1))
        low, middle, high = quantiles([one[part][1] / one[part][0] for one in found], n=4)
        ratio = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
        print(f"  {title:18}  bare {bare:.2f}  vtool {vtool:.2f}  ratio {ratio}")
    print(f"  asked of the whole process: at most {ASKED}")


if __name__ == "__main__":
    main()
