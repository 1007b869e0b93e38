"""The conclusions from facts, in the order in which they are printed: pure, without torch."""

from vtool.watch.conclusions import (
    alone,
    arrived,
    judged,
    layers,
    learnt,
    ledger,
    roles,
    settings,
    signs,
    weights,
)
from vtool.watch.conclusions.check import Check
from vtool.watch.conclusions.folder import NOT_FACTS, NOTHING_READ

CHECKS: tuple[Check, ...] = (
    *learnt.CHECKS,
    *weights.CHECKS,
    *signs.CHECKS,
    *judged.CHECKS,
    *roles.CHECKS,
    *arrived.CHECKS,
    *layers.CHECKS,
    *settings.CHECKS,
    *alone.CHECKS,
    *ledger.CHECKS,
)
RULES = (*(check.rule for check in CHECKS), NOT_FACTS, NOTHING_READ)

__all__ = ["CHECKS", "NOTHING_READ", "NOT_FACTS", "RULES", "Check"]
