"""Hooks into torch's optimizers: a model is found by the optimizer that trains it."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
import weakref
from typing import Any

import torch
from torch import nn

from .facts import FactWriter
from .model import find_models, is_recorded, largest_owner
from .settings import WatchSettings, from_environment
from .watch import Watch

_SECONDS = 30.0
"""Time for all searches of a process: each goes through every object, in a part of a second."""


class Process:
    """Everything known in this process: the optimizers, and the models they train."""

    def __init__(self, settings: WatchSettings) -> None:
        self.settings = settings
        self.writer = FactWriter(settings)
        self.pid = os.getpid()
        self.watches: list[Watch] = []
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.searched = 0.0
        self.found = 0
        self.longest = 0
        """Steps of the model that made most, of those that are gone."""
        self.steps = 0
        self.blind = False
        self.inside: set[int] = set()
        """Optimizers (by `id`) in a step whose closure has yet to make its passes."""
        self.within: list[int] = []
        """Optimizers (by `id`) whose step is being made: some make another's within theirs."""
        self._ended = False

    def made(self, optimizer: Any) -> None:
        """Look for the model of an optimizer that was just made."""
        self.know(optimizer)
        own = _parameters(optimizer)
        known = [w for w in self.watches if own & _of_model(w)]
        for watch in known:
            self._lead(watch, optimizer, own)
        if own and not known:
            self.search(optimizer, own)

    def _lead(self, watch: Watch, optimizer: Any, own: set[int]) -> None:
        """Have a watch follow the optimizer of its backbone, where a tower has one of its own."""
        before = [o for o in self.optimizers if id(o) == watch.driver]
        base = _ids(watch.found.base)
        if watch.step == 0 and own & base and not any(_parameters(o) & base for o in before):
            watch.driver = id(optimizer)

    def know(self, optimizer: Any) -> None:
        """Remember an optimizer for as long as it lives."""
        if optimizer not in self.optimizers:
            self.optimizers.add(optimizer)
            gone = weakref.finalize(optimizer, _guarded(self.gone), id(optimizer))
            gone.atexit = False

    def search(self, optimizer: Any, own: set[int]) -> None:
        """Find models that own some parameters, and watch them."""
        if self.searched >= _SECONDS:
            return
        begin = time.perf_counter()
        for found in find_models(own):
            if any(found.head is w.found.head for w in self.watches):
                continue
            watch = Watch(found, optimizer, self.settings, self.writer, self.found)
            self.found += 1
            watch.seconds = time.perf_counter() - begin
            self.watches.append(watch)
        self.searched += time.perf_counter() - begin

    def gone(self, optimizer_id: int) -> None:
        """Release models whose optimizer is gone: nothing of ours keeps a model alive."""
        for watch in [w for w in self.watches if w.driver == optimizer_id]:
            mine = _of_model(watch)
            heirs = [o for o in self.optimizers if id(o) != optimizer_id and _parameters(o) & mine]
            if heirs:
                watch.driver = id(heirs[0])
            else:
                self.watches.remove(watch)
                self.longest = max(self.longest, watch.step)
                watch.end()

    def owners(self, optimizer: Any) -> list[Watch]:
        """Return the watches whose steps an optimizer makes."""
        driven = [w for w in self.watches if w.driver == id(optimizer)]
        if driven or not self.watches:
            return driven
        alive = {id(each) for each in self.optimizers}
        own = _parameters(optimizer)
        for watch in self.watches:  # its optimizer was made again, or is wrapped by this one
            first = watch.step == 0 and not watch.stepping  # nor within a step of its driver's
            if (watch.driver not in alive or first) and own & _of_model(watch):
                watch.driver = id(optimizer)
                driven.append(watch)
        return driven

    def owned(self) -> set[int]:
        """Return the parameters (by `id`) that any optimizer owns."""
        return {p for each in self.optimizers for p in _parameters(each)}

    def before_step(self, optimizer: Any) -> None:
        """Look at a step that is about to be made."""
        if os.getpid() != self.pid:
            return
        self.steps += 1
        if id(optimizer) in self.within:  # its last step was broken off
            del self.within[self.within.index(id(optimizer)) :]
        watches = self.owners(optimizer)
        self._other(optimizer)
        self.within.append(id(optimizer))
        if not watches and not self.watches and self.steps == 1:
            self.know(optimizer)
            self.search(optimizer, _parameters(optimizer))
            watches = self.owners(optimizer)
        if not watches:
            self._say_blind(optimizer)
            return
        for watch in watches:
            watch.stepping = True
            watch.before_step(optimizer, self.owned)

    def after_step(self, optimizer: Any) -> None:
        """Look at a step that was made."""
        if os.getpid() != self.pid:
            return
        if id(optimizer) in self.within:
            del self.within[self.within.index(id(optimizer)) :]
        for watch in self.owners(optimizer):
            watch.stepping = False
            watch.after_step(optimizer)

    def _other(self, optimizer: Any) -> None:
        """Report a step of another optimizer to the watches whose parameters it shares."""
        others = [w for w in self.watches if w.driver != id(optimizer) and w.capture.looking]
        if self.within or not others:
            return
        own = [p for group in optimizer.param_groups for p in group["params"]]
        with_gradient = {id(p) for p in own if p.grad is not None}
        for watch in others:
            leader = next((o for o in self.optimizers if id(o) == watch.driver), None)
            both = with_gradient & _parameters(leader) if leader is not None else set()
            if both:
                watch.other_step(type(optimizer).__name__, len(both))

    def missed_step(self, optimizer: Any) -> None:
        """Leave out a step whose closure was never called: its passes were made before it."""
        for watch in self.owners(optimizer):
            watch.leave_out("the optimizer did not call the closure that it was given")

    def say_recorded(self, optimizer: Any) -> None:
        """Report a step that was recorded in a CUDA graph: nothing is seen of its replays."""
        for watch in self.owners(optimizer):
            watch.skip("learnt", "steps are recorded in a CUDA graph; what it replays is not seen")

    def record(self, callables: Any) -> None:
        """Release models that are about to be recorded in CUDA graphs, which allow no hooks."""
        given = callables if isinstance(callables, (tuple, list)) else (callables,)
        inside = {id(m) for each in given if isinstance(each, nn.Module) for m in each.modules()}
        for watch in self.watches:
            if inside & watch.capture.listens_to():
                watch.capture.close()
                watch.skip("learnt", "the model is recorded in CUDA graphs, which allow no hooks")

    def _say_blind(self, optimizer: Any) -> None:
        if self.blind or self.found:
            return
        self.blind = True
        name, trained = type(optimizer).__name__, largest_owner(_parameters(optimizer))
        what = f"{trained}, which has no" if trained else "no model with a"
        self.writer.write(
            "blind",
            why=f"{name} trains {what} language head that the watch can find: it asks for"
            " get_output_embeddings(), which transformers' models have, or Megatron-core's GPT",
        )

    def end(self) -> None:
        """Write that the process has ended."""
        if self._ended or os.getpid() != self.pid:
            return
        self._ended = True
        for watch in self.watches:
            watch.end()
        if not self.writer.open:
            return
        steps = max((w.step for w in self.watches), default=0)
        steps = max(steps, self.longest) if self.found else self.steps
        off = bool(self.watches) and all(w.off for w in self.watches)
        reason = "off" if off else "stopped" if _stopped(self.settings) else "exit"
        self.writer.write("ended", step=steps, steps=steps, rows=self.writer.rows, reason=reason)


def _stopped(settings: WatchSettings) -> bool:
    return bool(settings.stop) and os.path.exists(str(settings.stop))


def _parameters(optimizer: Any) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _of_model(watch: Watch) -> set[int]:
    return _ids(watch.found.model)


def _ids(module: Any) -> set[int]:
    """Return a module's parameters by `id`, and what an optimizer updates in their place."""
    found = {id(p) for p in module.parameters()}
    copies = (getattr(p, "main_param", None) for p in module.parameters())
    return found | {id(copy) for copy in copies if copy is not None}


class _State:
    """Holds this process's part: one that is forked off starts without."""

    process: Process | None = None
    installed = False


def current() -> Process | None:
    """Return this process's part, a new one where the process was forked off."""
    if _State.process is not None and _State.process.pid != os.getpid():
        for watch in _State.process.watches:
            watch.capture.close()
        _State.process = None
    if _State.process is None:
        settings = from_environment()
        if settings is not None:
            _State.process = Process(settings)
            atexit.register(_guarded(_State.process.end))
    return _State.process


def _guarded(call: Any) -> Any:
    @functools.wraps(call)
    def run(*args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:
            try:
                if _State.process is not None:
                    where = getattr(call, "__name__", "?")
                    text = f"{type(error).__name__}: {error}"[:300]
                    _State.process.writer.write("error", where=where, error=text, off=False)
            except Exception as second:
                sys.stderr.write(f"vtool watch: {second!r}\n")
            return None

    return run


def _paused() -> bool:
    return bool(os.environ.get("VTOOL_WATCH_PAUSED"))


@_guarded
def _made(optimizer: Any) -> None:
    process = None if _paused() else current()
    if process is not None:
        process.made(optimizer)


@_guarded
def _before(optimizer: Any, args: Any, kwargs: Any) -> Any:
    """Look at a step; where a closure makes its passes (as in Lightning), after these."""
    if torch.compiler.is_compiling():  # a compiled step: what is here would be compiled with it
        return None
    process = _State.process
    if process is None or _paused():
        return None
    if is_recorded():
        process.say_recorded(optimizer)
        return None
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        process.before_step(optimizer)
        return None
    process.inside.add(id(optimizer))

    @functools.wraps(closure)
    def run(*given: Any, **named: Any) -> Any:
        result = closure(*given, **named)
        _look_inside(optimizer)
        return result

    if "closure" in kwargs:
        return args, {**kwargs, "closure": run}
    return (args[0], run, *args[2:]), kwargs


@_guarded
def _look_inside(optimizer: Any) -> None:
    process = _State.process
    if process is not None and id(optimizer) in process.inside:
        process.inside.discard(id(optimizer))
        process.before_step(optimizer)


@_guarded
def _after(optimizer: Any, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    process = _State.process
    if process is None or _paused() or is_recorded():
        return
    if id(optimizer) in process.inside:
        process.inside.discard(id(optimizer))
        process.missed_step(optimizer)
    process.after_step(optimizer)


@_guarded
def _record(callables: Any) -> None:
    if _State.process is not None:
        _State.process.record(callables)


def _before_graphs() -> None:
    """Release a model before CUDA graphs are made of it."""
    cuda: Any = torch.cuda
    graphed = getattr(cuda, "make_graphed_callables", None)
    if graphed is None:
        return

    @functools.wraps(graphed)
    def recorded(callables: Any, *args: Any, **kwargs: Any) -> Any:
        _record(callables)
        return graphed(callables, *args, **kwargs)

    cuda.make_graphed_callables = recorded


def install(module: Any) -> None:
    """Hook into `torch.optim.optimizer`, once in a process."""
    if _State.installed:
        return
    _State.installed = True
    init = module.Optimizer.__init__

    @functools.wraps(init)
    def patched(self: Any, params: Any, defaults: Any) -> None:
        init(self, params, defaults)
        _made(self)

    module.Optimizer.__init__ = patched
    _before_graphs()
    module.register_optimizer_step_pre_hook(_before)
    module.register_optimizer_step_post_hook(_after)
