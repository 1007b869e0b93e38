"""The conclusions from facts, in the order in which they are printed: pure, without torch."""

from vtool.watch.conclusions import (
    again,
    ahead,
    alone,
    arrived,
    borders,
    cut,
    doubled,
    drift,
    dropout,
    embeddings,
    frozen,
    idle,
    judged,
    layers,
    learnt,
    ledger,
    preference,
    preference_reference,
    preference_sides,
    roles,
    scale,
    settings,
    signs,
    silent,
    twice,
    weights,
)
from vtool.watch.conclusions.check import WatchCheck
from vtool.watch.conclusions.folder import NOT_FACTS, NOTHING_READ

CHECKS: tuple[WatchCheck, ...] = (
    *learnt.CHECKS,
    *weights.CHECKS,
    *scale.CHECKS,
    *signs.CHECKS,
    *judged.CHECKS,
    *preference.CHECKS,
    *preference_sides.CHECKS,
    *preference_reference.CHECKS,
    *roles.CHECKS,
    *doubled.CHECKS,
    *silent.CHECKS,
    *arrived.CHECKS,
    *frozen.CHECKS,
    *twice.CHECKS,
    *idle.CHECKS,
    *drift.CHECKS,
    *layers.CHECKS,
    *cut.CHECKS,
    *embeddings.CHECKS,
    *dropout.CHECKS,
    *settings.CHECKS,
    *alone.CHECKS,
    *ahead.CHECKS,
    *borders.CHECKS,
    *ledger.CHECKS,
    *again.CHECKS,
)
RULES = (*(check.rule for check in CHECKS), NOT_FACTS, NOTHING_READ)

__all__ = ["CHECKS", "NOTHING_READ", "NOT_FACTS", "RULES", "WatchCheck"]
