"""The rows of the table. Each yields outcomes: the last one counts, and earlier ones are kept
where it does not get so far.
"""

import gc
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from benchmarks.first_hour.made import (
    PUBLISHED,
    device_here,
    distance,
    gradients_of,
    is_real,
    open_session,
    run_of,
    write_pictures,
)
from benchmarks.first_hour.outcome import Outcome, judged
from tests.training.waits import waits as count_waits
from vtool.data import head_nll
from vtool.data.loader import load_steps
from vtool.devices import attention_without_cudnn
from vtool.devices.profiling import forget_peak_memory, peak_memory, synchronize
from vtool.planning.micro_batch import build_batch, shape_of
from vtool.planning.plan import ERROR, GIB
from vtool.planning.step import _NO_HOOK, _Counting, measure_step
from vtool.profiling.peak import matmul_peak
from vtool.training.session import Progress
from vtool.training.step import micro_batch_nll, train_step
from vtool.training.stop import StopRequest

# The place for attention by lengths: the module that has `attend_by_lengths`, and `Form`. Until it
# is there, its row is not run.
BY_LENGTHS, SPANS = "vtool.models.by_lengths", "vtool.models.spans"


def device(size: str | None) -> Iterator[Outcome]:
    """The device, and what its matrix products reach."""
    here = device_here()
    dtype = torch.float32 if here.type == "cpu" else torch.bfloat16
    peak = matmul_peak(here, dtype)
    said = f"matrix products reach {peak / 1e12:.3g} TFLOP/s in {str(dtype).removeprefix('torch.')}"
    if here.type == "cpu":
        yield Outcome("not run", f"there is no GPU: all rows are of a CPU; {said}", {"peak": peak})
        return
    of = torch.get_device_module(here).get_device_properties(here)
    yield judged(
        True, f"{of.name}, {of.total_memory / GIB:.1f} GiB; {said}", peak=peak, name=of.name
    )


def attention(size: str | None) -> Iterator[Outcome]:
    """Attention by lengths against its emulation, and this against spans of their own."""
    try:
        of, spans_of = importlib.import_module(BY_LENGTHS), importlib.import_module(SPANS).Spans.of
    except ImportError as error:
        yield Outcome("not run", f"attention by lengths is not there: {error}")
        return
    here = device_here()
    lengths = [700, 1, 1300, 47] if is_real(size, here) else [7, 1, 13, 4]
    torch.manual_seed(0)
    wide = [torch.randn(sum(lengths), heads, 64, dtype=torch.float64) for heads in (4, 2, 2)]
    numbers: dict[str, dict[str, float]] = {}
    for name, form in {"causal": of.Form(), "both ways": of.Form(causal=False)}.items():

        def whole(q: Tensor, k: Tensor, v: Tensor, form: Any = form) -> Tensor:
            spans = spans_of(lengths).map(lambda ends: ends.to(q.device))
            found: Tensor = of.attend_by_lengths(q, k, v, spans, form, "varlen")
            return found

        def alone(q: Tensor, k: Tensor, v: Tensor, form: Any = form) -> Tensor:
            outs = []
            for three in zip(*(torch.split(one, lengths) for one in (q, k, v)), strict=True):
                own = [one.transpose(0, 1)[None] for one in three]
                out = scaled_dot_product_attention(*own, is_causal=form.causal, enable_gqa=True)
                outs.append(out[0].transpose(0, 1))
            return torch.cat(outs)

        exact = _with_gradients(alone, wide)
        own = numbers[name] = {"emulated": _apart(_with_gradients(whole, wide), exact)}
        if here.type != "cpu":
            narrow = [one.bfloat16() for one in wide]
            there = [one.to(here) for one in narrow]
            own["device"] = _apart(_with_gradients(whole, there), exact)
            own["rounded"] = _apart(_with_gradients(whole, narrow), exact)
    said = [
        f"{name}: emulated {each['emulated']:.1e} off spans of their own in float64"
        + (
            f", {each['device']:.1e} on the device in bfloat16, {each['rounded']:.1e} emulated so"
            if "device" in each
            else ""
        )
        for name, each in numbers.items()
    ]
    yield judged(
        all(
            each["emulated"] <= 1e-12 and each.get("device", 0.0) <= 2 * each.get("rounded", 0.0)
            for each in numbers.values()
        ),
        "; ".join(said),
        **numbers,
    )


def _with_gradients(compute: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    """Return the result of a computation, and the gradients of its inputs."""
    own = [one.detach().requires_grad_() for one in given]
    out = compute(*own)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), own)]


def _apart(one: list[Tensor], other: list[Tensor]) -> float:
    """Return the largest ‖a − b‖ / ‖b‖ of pairs of tensors."""
    pairs = [(a.cpu().double(), b.cpu().double()) for a, b in zip(one, other, strict=True)]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def loss(size: str | None) -> Iterator[Outcome]:
    """The head's loss in chunks against that of all logits, both against float32 or float64."""
    here, real = device_here(), is_real(size, device_here())
    positions, hidden, vocabulary = (4096, 3584, 152_064) if real else (320, 64, 8003)
    dtype, wider = (
        (torch.bfloat16, torch.float32) if here.type != "cpu" else (torch.float32, torch.float64)
    )
    if not real:
        head_nll._BLOCK_BYTES = 128 * 4 * vocabulary  # several blocks of two chunks of 64 rows
        head_nll._CHUNK_BYTES = 0
    torch.manual_seed(0)
    given = [
        torch.randn(1, positions, hidden, device=here).to(dtype),
        (torch.randn(vocabulary, hidden, device=here) / hidden**0.5).to(dtype),
    ]
    targets = torch.randint(vocabulary, (1, positions), device=here)

    def whole(states: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
        wide = torch.promote_types(states.dtype, torch.float32)
        logits = (states @ weight.T).to(wide)
        return cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")

    def of(compute: Callable[..., Tensor], to: torch.dtype) -> tuple[list[Tensor], float, int]:
        own = [one.to(to).requires_grad_() for one in given]
        for _ in range(2):  # the first one warms up
            forget_peak_memory(here)
            before = torch.cuda.memory_allocated() if here.type == "cuda" else 0
            synchronize(here)
            began = time.perf_counter()
            nll = compute(*own, targets)
            found = torch.autograd.grad(nll * (1 / positions), own)
            synchronize(here)
            seconds = time.perf_counter() - began
            most = peak_memory(here)[0] - before if here.type == "cuda" else 0
        return [nll.detach(), *found], seconds, most

    exact, _, _ = of(whole, wider)
    plain, plain_seconds, plain_peak = of(whole, dtype)
    fused, seconds, peak = of(head_nll.summed_nll_of_hidden, dtype)
    errors = [
        [
            float(((a.to(b.dtype) - b).norm() / b.norm()).item())
            for a, b in zip(one, exact, strict=True)
        ]
        for one in (fused, plain)
    ]
    floor = 1e-6
    passed = all(own <= 1.5 * other + floor for own, other in zip(*errors, strict=True))
    more = f"; {seconds / plain_seconds:.2f} of the time" if real else ""
    more += f", {peak / plain_peak:.2f} of the memory" if plain_peak else ""
    yield judged(
        passed,
        f"off by {errors[0][0]:.1e} (loss) and {max(errors[0][1:]):.1e} (gradients), all logits"
        f" {errors[1][0]:.1e} and {max(errors[1][1:]):.1e}{more}",
        **{"errors": errors[0], "errors_whole": errors[1], "seconds": seconds, "bytes": peak},
        **{"seconds_whole": plain_seconds, "bytes_whole": plain_peak},
    )


def plan(size: str | None) -> Iterator[Outcome]:
    """The plan's peak of a step against what a step allocates; on a CPU, its live tensors."""
    real = is_real(size, device_here())
    numbers: dict[str, Any] = {}
    said: list[str] = []
    for way, settings in _PLANNED.items():
        more = ["data.max_length=4096", f"data.image.max_pixels={1280 * 28 * 28}"] if real else []
        if real and way == "all kept":
            more = ["data.max_length=512", f"data.image.max_pixels={320 * 28 * 28}"]
        more += ["lora.base_dtype=bfloat16"] if real and way == "LoRA" else []
        planned, taken = _planned_and_taken(size, [*settings, *more])
        off = planned / taken - 1
        numbers[way] = {"planned": planned, "taken": taken, "off": off}
        said.append(f"{way}: {planned / 2**20:,.0f} MiB, taken {taken / 2**20:,.0f}, {off:+.1%}")
        yield Outcome("not run", "; ".join(said), numbers)
    worst = max(abs(each["off"]) for each in numbers.values())
    yield judged(worst <= ERROR, f"planned: {'; '.join(said)}", **numbers)


_PLANNED = {
    "recomputed": ("model.gradient_checkpointing=full",),
    "all kept": (),
    "LoRA": ("lora={rank: 16, alpha: 32}",),
    "varlen": ("model.gradient_checkpointing=full", "model.attention=varlen"),
}


def _planned_and_taken(size: str | None, settings: Sequence[str]) -> tuple[int, int]:
    """Return the bytes of a step at its peak: those that are planned, and those that it takes."""
    here, real = device_here(), is_real(size, device_here())
    common = ["data.max_length=96", "data.global_batch_size=2", "train.steps=1"]
    common += [f"data.image.max_pixels={16 * 28 * 28}"]
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(
            write_pictures(Path(folder), 4, 1, 28 * 28 * 4, 8),
            here,
            *common,
            *settings,
        )
        session = open_session(run, torch.device("cpu") if not real else here, real=real)
        module, engine = session.engine.module, session.engine
        shape = shape_of(run, 1)
        batch = build_batch(module, session.family, shape).to(session.ranks.device)
        said = measure_step(run, _on_meta(run, session), 1, shape)
        nll = micro_batch_nll(session, dummy=True)

        def step() -> None:
            engine.forward_backward([batch], nll, batch.supervised, every_parameter=True)

        if session.ranks.device.type == "cpu":
            tracker = MemTracker()
            tracker.track_external(module, engine.optimizer)
            with tracker:
                # its hooks are refused by parameters that get no gradient
                for parameter in module.parameters():
                    if not parameter.requires_grad:
                        tracker._param_to_grad_hook_handles[parameter] = (_NO_HOOK, _NO_HOOK)
                for _ in range(2):
                    tracker.reset_mod_stats()
                    step()
            kinds = tracker.get_tracker_snapshot("peak").values()
            taken = sum(each["Total"] for each in kinds) + said.memory["optimizer"]
        else:
            for _ in range(2):
                forget_peak_memory(here)
                step()
                step()  # finds the gradients of another
                engine.optimizer_step(1e-5)
            taken = peak_memory(here)[0]
    gc.collect()
    if here.type == "cuda":
        torch.cuda.empty_cache()
    return said.peak, taken


def _on_meta(run: Any, session: Any) -> Any:
    from vtool.models.build import build_on_meta

    folder = session.folder.processor
    return build_on_meta(run.model, session.processor, folder, 0, config=folder)


def waits(size: str | None) -> Iterator[Outcome]:
    """The places of a step in which Python waits for the device: those of vtool, at most one."""
    here = device_here()
    with tempfile.TemporaryDirectory() as folder:
        rows = write_pictures(Path(folder), 16, 4, 28 * 28 * 9, 12)
        found: dict[str, Any] = {}
        for packed in ("none", "token_budget"):
            budget = ["data.micro_batch_tokens=256"] if packed != "none" else []
            run = run_of(rows, here, *_STEPS, "train.steps=2", f"data.packing={packed}", *budget)
            session = open_session(run, here, real=False)
            progress = Progress.of(len(session.rows["train"].rows))
            steps = load_steps(
                session.rows["train"], range(1, 3), session.micro_batches, 0, device=here
            )
            for number, batches in enumerate(steps, 1):
                with count_waits(here, [progress.visits]) as places:
                    train_step(session, progress, number, batches, StopRequest())
            found[packed] = dict(places)
    own, all_of = (
        max(
            sum(count for place, count in places.items() if "vtool/" in place or every)
            for places in found.values()
        )
        for every in (False, True)
    )
    yield judged(own <= 1, f"{own} in vtool, {all_of} with transformers' own, a step", **found)


_STEPS = ("data.global_batch_size=8", "data.micro_batch_size=4")


def recompute(size: str | None) -> Iterator[Outcome]:
    """The gradients with all, some and none of the blocks computed again: equal to the bit."""
    here, found = device_here(), {}
    with tempfile.TemporaryDirectory() as folder, _repeatable():
        rows = write_pictures(Path(folder), 8, 4, 28 * 28 * 9, 12)
        for blocks in ("none", "again", "full", "2"):
            setting = f"model.gradient_checkpointing={'none' if blocks == 'again' else blocks}"
            run = run_of(rows, here, *_STEPS, "train.steps=1", setting)
            session = open_session(run, here, real=False)
            batches = next(load_steps(session.rows["train"], range(1, 2), session.micro_batches, 0))
            found[blocks] = gradients_of(session, batches, 64)
    apart = {name: distance(one, found["none"]) for name, one in found.items()}
    if apart["again"]:
        yield Outcome(
            "not run",
            f"two steps without are not equal to the bit here: {apart['again']:.1e}; with all"
            f" {apart['full']:.1e}",
            apart,
        )
        return
    yield judged(
        not any(apart.values()),
        f"{len(found['none'])} gradients: all again {apart['full']:.1e}, two {apart['2']:.1e}",
        **apart,
    )


@contextmanager
def _repeatable() -> Iterator[None]:
    """Ask torch for kernels that give one result each time, where it has some."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def engines(size: str | None) -> Iterator[Outcome]:
    """The gradients of two ranks of each engine against one process of ddp; tiny, in float32."""
    from benchmarks.first_hour.two_ranks import two_ranks

    here = device_here()
    names = ["ddp", "fsdp2"]
    if here.type == "cuda" and torch.cuda.device_count() < 2:
        yield Outcome("not run", "there is one GPU, and NCCL wants one for each of two ranks")
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = write_pictures(Path(folder), 8, 4, 28 * 28 * 9, 12)
        alone = two_ranks(rows, here.type, "ddp", 1)
        apart = {name: distance(two_ranks(rows, here.type, name, 2), alone) for name in names}
    most = 5e-6 if here.type == "cpu" else 1e-4
    said = ", ".join(f"{name} × 2 {off:.1e}" for name, off in apart.items())
    yield judged(all(off <= most for off in apart.values()), f"gradients off by {said}", **apart)


def speed(size: str | None) -> Iterator[Outcome]:
    """Tokens a second and MFU of the real loop with JPEG files, padded and packed."""
    here, real = device_here(), is_real(size, device_here())
    steps = 6 if real else 3
    numbers: dict[str, Any] = {}
    said: list[str] = []
    peak = matmul_peak(here, torch.float32 if here.type == "cpu" else torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        rows = write_pictures(
            Path(folder), *((72, 24, 1280 * 960, 150) if real else (24, 4, 28 * 28 * 9, 12))
        )
        common = [f"data.global_batch_size={12 if real else 8}", f"train.steps={steps}"]
        common += [f"model.gradient_checkpointing={'full' if real else 'none'}"]
        common += [f"data.workers={'auto' if real else 0}"]
        ways = {
            "padded": [f"data.micro_batch_size={3 if real else 4}"],
            "packed": [
                "data.packing=token_budget",
                f"data.micro_batch_tokens={6144 if real else 512}",
            ],
        }
        ways["packed, varlen"] = [*ways["packed"], "model.attention=varlen"]
        for way, settings in ways.items():
            run = run_of(rows, here, *common, *settings)
            # no counter knows the FLOPs of attention by lengths: its rows are those of "packed"
            known = numbers["packed"]["flops_per_token"] if "varlen" in way else None
            with attention_without_cudnn(here):
                one = _timed(run, here, real=real, peak=peak, flops_per_token=known)
            numbers[way] = one
            said.append(
                f"{way} {one['tokens_per_second']:,.0f} tokens/s,"
                f" {one['flops_per_second'] / 1e12:.3g} TFLOP/s, MFU {one['mfu']:.1%}, waits for"
                f" data {one['data_share']:.0%}"
            )
            yield Outcome("not run", "; ".join(said), numbers)
            gc.collect()
            if here.type == "cuda":
                torch.cuda.empty_cache()
    losses = [one["loss"] for one in numbers.values()]
    off = max(losses) / min(losses) - 1
    model = PUBLISHED if real else "a tiny model"
    yield judged(
        off <= (1e-5 if here.type == "cpu" else 5e-3),
        f"{model}, {'; '.join(said)}; first losses apart {off:.1e}",
        **numbers,
    )


def _timed(
    run: Any, here: torch.device, *, real: bool, peak: float, flops_per_token: float | None
) -> dict[str, float]:
    """Return the rates that the second half of a run's steps reach."""
    session = open_session(run, here, real=real)
    progress = Progress.of(len(session.rows["train"].rows))
    total = session.total_steps
    spare = max(0, len(os.sched_getaffinity(0)) - 1)
    loaded = load_steps(
        session.rows["train"],
        range(1, total + 1),
        session.micro_batches,
        run.data.workers or 0,
        device=here,
        spare_cores=spare,
    )
    first, lines, per_token = 0.0, [], flops_per_token or 0.0
    for number in range(1, total + 1):
        began = time.perf_counter()
        batches = next(loaded)
        waited = time.perf_counter() - began
        if number == 1 and not per_token:  # what counts: forward, and twice that for backward
            per_token = 3 * _flops_of(session, batches) / sum(one.tokens for one in batches)
            began = time.perf_counter()
        metrics, _ = train_step(session, progress, number, batches, StopRequest(), waited=waited)
        synchronize(here)
        lines.append((metrics, time.perf_counter() - began, waited))
        print(f"step {number}: {lines[-1][1]:.2f} s for {metrics['tokens']:,} tokens", flush=True)
        first = first or metrics["loss"]
    last = list(islice(lines, total // 2, None))
    seconds = sum(each for _, each, _ in last)
    rate = sum(one["tokens"] for one, _, _ in last) / seconds
    return {
        **{"tokens_per_second": rate, "flops_per_token": per_token},
        **{"flops_per_second": rate * per_token, "mfu": rate * per_token / peak, "loss": first},
        "data_share": sum(each for _, _, each in last) / seconds,
        "bytes": peak_memory(here)[0],
    }


@torch.no_grad()
def _flops_of(session: Any, batches: Any) -> int:
    """Return the FLOPs of the forward passes of a step; causal attention is counted whole."""
    from vtool.data.packing import with_positions

    engine, counting = session.engine, _Counting(1)
    nll = micro_batch_nll(session, dummy=True)
    for batch in batches:
        there = with_positions(batch, engine.module).to(session.ranks.device)
        with engine.autocast(), counting:
            nll(engine.module, there)
    return counting.flops


ROWS: dict[str, Callable[[str | None], Iterator[Outcome]]] = {
    row.__name__: row for row in (device, attention, loss, plan, waits, recompute, engines, speed)
}


def machine() -> str:
    """Return the versions that were measured."""
    import transformers

    import vtool

    versions = {"vtool": vtool, "torch": torch, "transformers": transformers}
    return ", ".join(f"{name} {package.__version__}" for name, package in versions.items())
