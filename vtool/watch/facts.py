"""The facts of a watched run (docs/watch-facts.md is their format); `reading.py` reads them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vtool.watch.micro_pass import Fact, MicroPass, Tokens
from vtool.watch.turns import Turns

_DATA_PARALLEL = ("dp", "ddp", "fsdp", "data", "shard", "replicate")
_LOOKS = {
    "learnt": ("before_step", "solve", "_enter", "_leave", "read"),
    "arrived": ("arrived", "after_step", "left"),
    "alone": ("alone",),
    "placed": ("placed",),
    "causal": ("causal",),
    "ledger": ("ledger",),
}


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
        # ZeRO's and FSDP1's pieces come and go; DTensors, which have a mesh, stay where they are
        come_and_go = any(one["sharded"] for one in self.of("drift")) and not self.model["mesh"]
        return None if come_and_go or max(looks.values(), default=0) < 2 else False

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
    def hooked(self) -> str | None:
        """Say which parameters have hooks that may change gradients before anybody sees them."""
        for one in self.of("arrived"):
            if count := int(one["hooked"]["count"]):
                names = ", ".join(one["hooked"]["names"][:3]) + (", …" if count > 3 else "")
                have = "parameter has a hook" if count == 1 else "parameters have hooks"
                return (
                    f"{count} {have} on {'its gradient' if count == 1 else 'their gradients'}"
                    f" ({names}), which may change it before it can be seen"
                )
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
