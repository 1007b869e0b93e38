"""The switches of libraries: they fetch nothing, draw no bars, and wait idly."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def prepare_libraries() -> list[str]:
    """Set what libraries read of the environment, where the user has not; return what was set.

    They fetch nothing at run time (a download is a process of its own, vtool/hub/download.py), and
    their progress bars would break up the output. OpenMP's threads wait by spinning unless set not
    to: with one other busy process, training was then 17 times slower.
    """
    wanted = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    if "HF_HUB_OFFLINE" not in os.environ:
        wanted |= {"HF_HUB_OFFLINE": "1", "VTOOL_SET_OFFLINE": "1"}
    added = [name for name in wanted if name not in os.environ]
    os.environ |= {name: wanted[name] for name in added}
    return added


@contextmanager
def libraries_prepared() -> Iterator[None]:
    """Set what `prepare_libraries` sets for a while, and put everything back.

    huggingface_hub and transformers read the variables once, when they are imported: that is done
    before, and their own switches are set. OpenMP, too, reads its variable once: where torch was
    not imported yet, its threads keep waiting idly.
    """
    waits = "OMP_WAIT_POLICY" in os.environ
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch  # noqa: F401  (with the variable)

    if not waits:
        del os.environ["OMP_WAIT_POLICY"]
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    from vtool.diagnostics import Findings

    offline, bars = constants.HF_HUB_OFFLINE, logging.is_progress_bar_enabled()
    put_hub_back = disable_progress_bars if are_progress_bars_disabled() else enable_progress_bars
    added = prepare_libraries()
    silent = "HF_HUB_DISABLE_PROGRESS_BARS" in added
    if "HF_HUB_OFFLINE" in added:
        constants.HF_HUB_OFFLINE = True
    if silent:
        logging.disable_progress_bar()
    try:
        yield
    except Findings as error:
        if type(error) is Findings:
            raise
        # of every rank alike: whoever has called a function need not know that
        raise Findings(error.diagnostics, fatal=error.fatal) from error.__cause__
    finally:
        for name in added:
            os.environ.pop(name, None)
        constants.HF_HUB_OFFLINE = offline
        if silent:
            if bars:
                logging.enable_progress_bar()
            put_hub_back()
