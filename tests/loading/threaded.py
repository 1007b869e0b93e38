"""Classes that load by threads, each in another way, for `vtool load-check python:…`.

All keep tensors of a loader that uses its buffer again, and which of them go wrong is a race.
"""

import asyncio
import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import Tensor, nn

from tests.loading.models import Weights

ROWS = 12


def checkpoint() -> dict[str, Tensor]:
    """A vector for each parameter, all of other values."""
    return {f"layers.{row}.weight": torch.full((4,), row + 1.0) for row in range(ROWS)}


class Slow(nn.Module):
    """Copies a tensor after a while that is another one each time."""

    def __init__(self) -> None:
        super().__init__()
        for row in range(ROWS):
            self.add_module(f"row{row}", nn.Linear(4, 1, bias=False))

    def put(self, name: str, tensor: Tensor) -> None:
        time.sleep(random.SystemRandom().random() / 2000)
        row = name.split(".")[1]
        with torch.no_grad():
            self.get_parameter(f"row{row}.weight").copy_(tensor[None])


class ByPool(Slow):
    """Hands each tensor to a pool of threads, as SGLang's DeepSeek does."""

    def load_weights(self, weights: Weights) -> None:
        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(self.put, *pair) for pair in weights]
            for one in as_completed(done):
                one.result()


class ByThreads(Slow):
    """Starts a thread for each tensor, and waits for all of them at the end."""

    def load_weights(self, weights: Weights) -> None:
        threads = []
        for pair in weights:
            threads.append(threading.Thread(target=self.put, args=pair))
            threads[-1].start()
        for thread in threads:
            thread.join()


class ByWorkers(Slow):
    """Has workers that take tensors from a queue."""

    def load_weights(self, weights: Weights) -> None:
        waiting: queue.Queue[tuple[str, Tensor] | None] = queue.Queue(4)

        def work() -> None:
            while (pair := waiting.get()) is not None:
                self.put(*pair)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for pair in weights:
            waiting.put(pair)
        for _ in workers:
            waiting.put(None)
        for worker in workers:
            worker.join()


class ByAsyncio(Slow):
    """Has a task for each tensor, which an event loop gives to its threads."""

    def load_weights(self, weights: Weights) -> None:
        asyncio.run(self._load(weights))

    async def _load(self, weights: Weights) -> None:
        tasks = []
        for pair in weights:
            tasks.append(asyncio.ensure_future(asyncio.to_thread(self.put, *pair)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
