"""The facts of a watched run (docs/watch-facts.md is their format); `reading.py` reads them."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtool.watch.turns import Turns

FLOAT32_ROUNDING = 2.0**-24
"""One rounding in float32."""
_SAME = 1e-3
"""A ratio of weights that nobody would ask for on purpose: dense terms leave a part of it in the
weight of a token, and a tenth in their median."""
_DATA_PARALLEL = ("dp", "ddp", "fsdp", "data", "shard", "replicate")
_LOOKS = {
    "learnt": ("before_step", "solve", "_enter", "_leave", "read"),
    "arrived": ("arrived", "after_step", "left"),
    "alone": ("alone",),
    "placed": ("placed",),
    "causal": ("causal",),
    "ledger": ("ledger",),
}

Fact = Mapping[str, Any]


def listed(fact: Fact, name: str) -> Any:
    """Return a field that is null only in facts that are damaged: no list, and no number, of it.

    Raises:
        TypeError: it is null, which would look as if it were empty.
    """
    value = fact[name]
    if value is None:
        raise TypeError(f"{name} is null")
    return value


@dataclass(frozen=True, slots=True)
class LearntRow:
    """The learnt tokens of one row of a micro-batch."""

    tokens: int
    solved: int
    total: float
    low: float
    high: float
    positive: int
    negative: int

    @property
    def middle(self) -> float:
        """The mean weight."""
        return self.total / self.solved if self.solved else 0.0


@dataclass(frozen=True, slots=True)
class Tokens:
    """The learnt tokens of a row, one by one."""

    row: int
    position: tuple[int, ...]
    target: tuple[int, ...]
    next: tuple[int, ...] | None
    weight: tuple[float, ...]
    resolved: tuple[float, ...]

    def is_of(self, ids: Sequence[int]) -> bool:
        """Return whether these are tokens of a row with these ids."""
        if self.next is None:
            return False
        following = zip(self.position, self.next, strict=True)
        return all(
            ids[at + 1] == token for at, token in following if at + 1 < len(ids) and token >= 0
        )


@dataclass(frozen=True, slots=True)
class OfTarget:
    """The measured weights of one id in a micro-batch."""

    count: int
    weight: float
    """Their median."""
    single: float
    """The relative error that may be left in one of them."""
    apart: float
    """The greatest relative distance of one of them from the median."""

    @property
    def tolerance(self) -> float:
        """The relative error of the median."""
        return self.single / math.sqrt(self.count)


@dataclass(frozen=True, slots=True)
class MicroPass:
    """One forward and backward pass of a step that was read."""

    step: int
    rank: int
    index: int
    supervised: int
    fact: Fact

    def __str__(self) -> str:
        return f"step {self.step + 1}, micro-batch {self.index + 1}, rank {self.rank}"

    @property
    def unit(self) -> float:
        """One rounding of the coarsest arithmetic that was used."""
        return float(self.fact["u"])

    @property
    def is_coarse(self) -> bool:
        """True if something was computed more coarsely than in float32."""
        return self.unit > 4 * FLOAT32_ROUNDING

    @property
    def solved(self) -> int:
        """Supervised tokens whose weight was computed from the gradient."""
        return int(self.fact["solved"])

    @property
    def is_read(self) -> bool:
        """Return whether nearly every token lies on the line of a loss that is understood."""
        return self.solved > 0 and int(self.fact["read"]) >= 0.9 * self.solved

    @property
    def misfit(self) -> float:
        """The median relative distance of tokens from a loss that is understood."""
        return _middle(self.fact["misfit"])

    @property
    def measured(self) -> int:
        """Count the tokens that are uncertain enough for their weight to be compared."""
        return int(self.fact["measured"])

    @property
    def quantiles(self) -> Sequence[float]:
        """The least, median, 99th percentile and greatest weight of tokens that are measured."""
        if not self.measured:
            return (0.0,) * 4
        found = self.fact["measured_weight"]
        return [0.0 if value is None else float(value) for value in found]

    @property
    def low(self) -> float:
        """The least weight of the tokens that are measured."""
        return self.quantiles[0]

    @property
    def weight(self) -> float:
        """The median weight of the tokens that are measured."""
        return self.quantiles[1]

    @property
    def high(self) -> float:
        """The greatest weight of the tokens that are measured."""
        return self.quantiles[3]

    @property
    def single(self) -> float:
        """The relative error that may be left in the weight of a measured token, at most."""
        return float(listed(self.fact, "tolerance")[3]) if self.measured else math.inf

    @property
    def tolerance(self) -> float:
        """The relative error of the median of them all."""
        usual = _middle(self.fact["tolerance"])
        # a loss may weigh tokens by so little that they count as even: their median moves with it
        size = max(abs(self.weight), 1e-300)
        scattered = 0.0 if self.is_uneven else 1.5 * (self.high - self.low) / size
        found = (usual + scattered) / math.sqrt(max(1, self.measured)) + 4 * self.unit
        if not self.has_terms:
            return found
        return max(found, _SAME * max(0.1, 1 / math.sqrt(max(1, self.measured))))

    @property
    def is_uneven(self) -> bool:
        """Return whether measured tokens of this micro-batch have different weights."""
        if not self.measured or self.low <= 0:
            return False
        return int(self.fact["uneven"]) > 0

    @property
    def share_of_uneven(self) -> float:
        """The share of measured tokens whose weight is another one than the median."""
        return int(self.fact["uneven"]) / max(1, self.measured)

    @property
    def by_target(self) -> dict[str, OfTarget]:
        """Return the weights of the ids that are learnt most often."""
        found = self.fact["by_target"]
        return {
            token: OfTarget(int(count), float(weight), float(single), float(apart))
            for token, (count, weight, single, apart) in found.items()
        }

    @property
    def is_steady(self) -> bool | None:
        """Return whether one id has one weight; None where no id is learnt twice."""
        often = [one for one in self.by_target.values() if one.count > 1]
        return all(one.apart <= max(one.single, _SAME) for one in often) if often else None

    @property
    def total(self) -> float | None:
        """The sum of all weights, or None where too few tokens say what it is."""
        if not self.is_uneven and self.measured and self.low > 0:
            return self.weight * self.supervised
        if self.solved == self.supervised and self.measured >= 0.9 * self.solved:
            return float(self.fact["sum"])
        return None

    @property
    def has_terms(self) -> bool:
        """Return whether most tokens are read only with dense terms besides cross entropy."""
        return int(self.fact["odd"]) * 2 > self.solved

    @property
    def terms(self) -> dict[str, float]:
        """Return the loss's terms other than cross entropy, as parts of a token's weight."""
        if not self.has_terms:
            return {}
        names = {"smooth": "label smoothing", "z": "a z-loss", "entropy": "an entropy term"}
        sign = {"smooth": -1}  # it is taken from the target
        parts = {names[n]: sign.get(n, 1) * _middle(self.fact[n]) for n in names}
        least = 1e-2 if self.is_coarse else 1e-5
        # rounding moves a little of one term into the others, with either sign
        known = [abs(part) for part in parts.values() if math.isfinite(part)]
        least = max(least, 3e-3 * max(known, default=0.0))
        return {name: part for name, part in parts.items() if abs(part) > least}

    @property
    def not_next(self) -> int | None:
        """Tokens whose target is not the next input id; None where ids were not seen."""
        found = self.fact["not_next"]
        return None if found is None else int(found)

    @property
    def of_next_row(self) -> int:
        """Tokens whose target is the first id of the batch's next row."""
        return int(self.fact["of_next_row"])

    @property
    def left_out(self) -> int | None:
        """Tokens learnt where the batch's mask has no token; None where it says nothing of that."""
        found = self.fact["left_out"]
        return None if found is None else int(found)

    @property
    def shifted(self) -> dict[int, int]:
        """By distance, the tokens of `not_next` whose target is the id so far ahead."""
        return {int(name): int(n) for name, n in (self.fact["is_plus"] or {}).items()}

    @property
    def ends(self) -> tuple[int, int] | None:
        """End tokens among the inputs and among the targets; None where ids were not seen."""
        found = self.fact["ends"]
        return (int(found["in_inputs"]), int(found["learnt"])) if found else None

    @property
    def ends_behind(self) -> int | None:
        """End tokens right after what is learnt, that are not; None where some were left out."""
        found = (self.fact["ends"] or {"behind": None})["behind"]
        return None if found is None or self.solved < self.supervised else int(found)

    def positions(self, behind: int = 0) -> int:
        """Count the positions of all rows, without the last `behind` of each."""
        shape = [int(size) for size in self.fact["shape"]]
        return shape[0] * (shape[1] - behind) if len(shape) == 2 else 0

    def learnt_of(self, tokens: Mapping[int, str]) -> dict[int, int]:
        """Count how often each of these tokens was learnt."""
        found = self.fact["specials"]
        learnt = {int(token): int(counts["learnt"]) for token, counts in found.items()}
        return {token: n for token, n in learnt.items() if token in tokens and n}

    def given_of(self, tokens: frozenset[int]) -> int:
        """Count how often these tokens were given to the model as text, by its mask."""
        found = self.fact["specials"]
        return sum(
            int(counts["in_inputs"]) for token, counts in found.items() if int(token) in tokens
        )

    @property
    def rows(self) -> tuple[LearntRow, ...]:
        """The learnt tokens of each of the first 64 rows."""
        return tuple(
            LearntRow(
                int(row["n"]),
                int(row["solved"]),
                float(row["sum"]),
                float(row["least"]),
                float(row["greatest"]),
                int(row["positive"]),
                int(row["negative"]),
            )
            for row in self.fact["per_row"]
        )

    @property
    def learning_rows(self) -> tuple[LearntRow, ...]:
        """Rows that have learnt tokens."""
        return tuple(row for row in self.rows if row.tokens)

    @property
    def tokens(self) -> tuple[Tokens, ...]:
        """The learnt tokens of the first rows, one by one."""
        return tuple(
            Tokens(
                int(one["row"]),
                tuple(one["position"]),
                tuple(one["target"]),
                tuple(one["next"]) if one["next"] is not None else None,
                tuple(value or 0.0 for value in one["weight"]),
                tuple(value or 0.0 for value in one["resolved"]),
            )
            for one in self.fact["per_token"]
        )


def _middle(quantiles: Sequence[float | None] | None) -> float:
    """Return a median; infinity where there is none to be had."""
    return float(quantiles[1]) if quantiles and quantiles[1] is not None else math.inf


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one watched model, from all processes."""

    number: int
    lines: Mapping[str, tuple[Fact, ...]]
    """By their kind."""
    processes: tuple[Fact, ...]
    turns: Turns | None = None
    """The marks that the chat template puts around answers, where the tokenizer is known."""
    no_turns: str | None = None
    """The reason why the marks are not known."""
    tokenizer: Any = None
    """A `tokenizers.Tokenizer`, where the folder is known."""

    def of(self, kind: str) -> tuple[Fact, ...]:
        """Return the facts of one kind, such as `micro` or `stepped`; none where it has none."""
        return self.lines.get(kind, ())

    @property
    def model(self) -> Fact:
        """Return the facts about the model, from the first process that has them."""
        return next(iter(self.of("model")), {})

    @property
    def name(self) -> str:
        """The model's class, or `no model`."""
        return str(self.model.get("class") or "no model")

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have found a model, in order."""
        return tuple(sorted({int(line["rank"]) for line in self.of("model")}))

    @property
    def world(self) -> int:
        """Count the ranks that have rows of their own."""
        return max((int(one["world"]) for one in self.processes), default=1)

    @property
    def not_data_parallel(self) -> str | None:
        """The dimension of the mesh along which ranks share their rows, if there is one."""
        mesh: Mapping[str, int] = self.model["mesh"] or {}
        for name, size in mesh.items():
            # a mesh without names is that of FSDP2 by itself
            named = name not in ("", "None", "0", "dim_0")
            if named and int(size) > 1 and not any(one in name.lower() for one in _DATA_PARALLEL):
                return f"{name}={size}"
        return None

    @property
    def owns_nothing(self) -> bool:
        """Return whether the optimizer has no parameter of the model's on any rank."""
        models = self.of("model")
        counts = [(int(m["n_in_no_group"]), int(m["trainable"])) for m in models]
        return bool(counts) and all(lost == trained > 0 for lost, trained in counts)

    @property
    def weights_move(self) -> bool | None:
        """Return whether weights changed between two looks; None where that was not seen."""
        digests: dict[int, set[str]] = {}
        looks: Counter[int] = Counter()
        for one in self.of("drift"):
            digests.setdefault(int(one["rank"]), set()).add(str(one["digest"]))
            looks[int(one["rank"])] += 1
        if any(len(each) > 1 for each in digests.values()):
            return True
        in_pieces = any(one.get("sharded") for one in self.of("drift"))
        return None if in_pieces or max(looks.values(), default=0) < 2 else False

    @property
    def no_gradients(self) -> str | None:
        """Return why gradients are not to be seen where the optimizer steps, or None."""
        trained = int(self.model["trainable"])
        arrived = self.of("arrived")
        if trained and arrived and all(int(a["n_no_gradient"]) == trained for a in arrived):
            why = "no parameter has its gradient when the optimizer steps"
            kept_by = next((one["kept_by"] for one in arrived if one["kept_by"]), None)
            return f"{why}: {kept_by} keeps them apart" if kept_by else why
        return None

    @property
    def micros(self) -> tuple[MicroPass, ...]:
        """All forward and backward passes that were read, in order."""
        return tuple(
            MicroPass(
                int(fact["step"]),
                int(fact["rank"]),
                int(fact["index"]),
                int(fact["supervised"]),
                fact,
            )
            for fact in self.of("micro")
            if not fact["why"]
        )

    @property
    def is_judged(self) -> bool:
        """Return whether weights have both signs: of a preference, or of a policy's advantage."""
        return any(
            sum(row.negative for row in micro.rows) > 0 or (micro.measured > 0 and micro.low < 0)
            for micro in self.micros
            if micro.is_read
        )

    @property
    def judged(self) -> str:
        """The signs of weights in words, where some are negative."""
        measured = [micro for micro in self.micros if micro.is_read and micro.measured]
        down = all(micro.high < 0 for micro in measured)
        return "weights are negative" if measured and down else "weights have both signs"

    @property
    def placeholders(self) -> dict[int, str]:
        """Tokens that stand for images and the like, by id."""
        return {
            int(token): str(kind)
            for kind, tokens in self.model["specials"].items()
            if kind in ("image", "video", "audio")
            for token in tokens
        }

    @property
    def asks(self) -> str:
        """The setting by which the trainer is to learn answers alone; empty where none is known."""
        return next((str(one["asks"]) for one in self.of("rows") if one.get("asks")), "")

    @property
    def pads(self) -> frozenset[int]:
        """Padding tokens that are not end tokens as well."""
        return self.padding - self.ends

    @property
    def padding(self) -> frozenset[int]:
        """Padding tokens, also those that end a turn."""
        return frozenset(map(int, self.model["specials"].get("pad") or ()))

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a turn or a text."""
        return frozenset(map(int, self.model["ends"]))

    def ids_of(self, micro: MicroPass, tokens: Tokens) -> tuple[int, ...] | None:
        """Return the ids of a row, if they were kept and are those of its learnt tokens."""
        for one in self.of("inputs"):
            place = int(one["step"]), int(one["rank"]), int(one["micro"])
            rows = one.get("inputs")
            if rows and place == (micro.step, micro.rank, micro.index) and tokens.row < len(rows):
                ids = tuple(map(int, rows[tokens.row]))
                return ids if tokens.is_of(ids) else None
        return None

    def errors_of(self, look: str) -> list[str]:
        """Return why a look has not been completed: errors of the watch, and what it skipped."""
        mine = _LOOKS[look]
        others = [name for key, names in _LOOKS.items() if key != look for name in names]
        failed = [
            f"an error of the watch: {fact.get('where')}: {fact.get('error')}"
            for fact in self.of("error")
            if fact.get("off") or fact.get("where") in mine or fact.get("where") not in others
        ]
        return failed

    def skipped(self, what: str) -> str | None:
        """Return why something could not be looked at."""
        for fact in self.of("skipped"):
            if fact.get("what") == what:
                return str(fact.get("why"))
        return None

    def by_step(self, kind: str) -> Iterator[tuple[int, tuple[Fact, ...]]]:
        """Yield facts of a kind by their steps."""
        steps = sorted({int(fact["step"]) for fact in self.of(kind)})
        for step in steps:
            yield step, tuple(fact for fact in self.of(kind) if int(fact["step"]) == step)

    def is_read_to(self, steps: int) -> bool:
        """Return whether every rank has written all of its watched steps."""
        over = dict.fromkeys(self.ranks, -1)
        for one in self.of("stepped"):
            over[int(one["rank"])] = max(over.get(int(one["rank"]), -1), int(one["step"]))
        return bool(over) and min(over.values()) >= steps - 1
