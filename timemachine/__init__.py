"""The time machine: releases that were silently wrong, and those that fixed it, under vtool.

A case is a file in `cases/`: which wheels, which script, which command of vtool, which rule. Both
sides are run over the torch of this environment; docs/time-machine.md is made from their output.
"""
