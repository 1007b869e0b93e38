"""The process of vLLM's server: starting it, waiting until it answers, and its end."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import IO

from vtool.child import ends_with_us
from vtool.diagnostics import Diagnostic, Findings
from vtool.serving.command import Address, ServerCommand
from vtool.serving.vllm import vllm_environment

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KEY = "VLLM_API_KEY"
_LOOK_SECONDS = 0.5
_LAST_LINES = 2000
"""Lines of the server that are kept, to find its error in."""
_ERROR = re.compile(r"(?:^|[\s)])((?:\w+\.)*\w*(?:Error|Exception): \S.*)")
_NOT_THE_CAUSE = ("Engine core initialization failed", "EngineDeadError", "WorkerProc init")


def check_address(address: Address) -> None:
    """Refuse an address where somebody listens.

    Raises:
        Findings: `port-taken`; fatal.
    """
    try:
        family, _, _, _, found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(found)
            tried.listen(1)
    except OSError as error:
        message = f"{address.host}:{address.port}: {error.strerror or error}"
        raise Findings(Diagnostic("port-taken", message), fatal=True) from error


def check_key(host: str, more: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse an address that others reach, where no key is asked of them.

    Args:
        more: further arguments of vLLM's.

    Raises:
        Findings: `served-without-key`; fatal.
    """
    keys, host = _key_and_host(more, host)
    if any(keys) or environment.get(_KEY):  # vLLM asks nobody for an empty one
        return
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host or "0.0.0.0", None)}
    except OSError:
        return  # what `check_address` says
    if not all(ip_address(each.partition("%")[0]).is_loopback for each in found):
        message = f"{host} is reached from other machines, and nothing asks them for a key"
        raise Findings(Diagnostic("served-without-key", message, parameter="--host"), fatal=True)


def _key_and_host(more: Sequence[str], host: str) -> tuple[Sequence[str], str]:
    """Return the keys that further arguments give, and the address, the last of which is taken."""
    read = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    read.add_argument("--host", default=host)
    read.add_argument("--api-key", nargs="*", default=[])
    try:
        found, _ = read.parse_known_args([*more])
    except argparse.ArgumentError:  # vLLM refuses them too
        return (), host
    return found.api_key, found.host


@dataclass(slots=True)
class Server:
    """A server that was started."""

    process: "subprocess.Popen[str]"
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    signal: int | None = None
    """The signal that we were sent to end it."""

    def first_error(self) -> str:
        """Return the first error in its log that is a cause, or its last line."""
        found = [match[1].strip() for line in self.lines if (match := _ERROR.search(line))]
        causes = [one for one in found if not any(each in one for each in _NOT_THE_CAUSE)]
        last = [line.strip() for line in self.lines if line.strip()][-1:]
        return (causes or found or last or ["it said nothing"])[0]


@contextmanager
def running(command: ServerCommand, verbose: bool) -> Iterator[Server]:
    """Run a server while the caller waits for it; nothing of it is left afterwards.

    A signal that we are sent is passed on to it; at the second one it is killed.

    Args:
        command: that of the server.
        verbose: show its log.

    Raises:
        Findings: `vllm-not-found`; fatal.
    """
    process = subprocess.Popen(
        ends_with_us(command.words),
        env=vllm_environment(command.variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    server = Server(process)
    assert process.stdout is not None, "it is a pipe"
    reader = threading.Thread(target=_read, args=(process.stdout, server.lines, verbose))
    reader.start()

    def pass_on(number: int, frame: object) -> None:
        if server.signal is None:
            server.signal = number
            process.send_signal(number)
        else:
            _kill(process)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        _kill(process)  # what it has started, should any of it be left
        reader.join()
        process.stdout.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _read(stream: IO[str], lines: deque[str], verbose: bool) -> None:
    for line in stream:
        lines.append(line)
        if verbose:
            sys.stderr.write(line)


def _kill(process: "subprocess.Popen[str]") -> None:
    """Kill a server and all that it has started: it is the leader of its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def wait_until_it_answers(server: Server, address: Address, name: str) -> bool:
    """Wait until a server answers for a model; return false if it was ended by a signal of ours.

    Raises:
        Findings: `server-failed`, `port-taken`; fatal.
    """
    while server.process.poll() is None:
        names = served_names(address)
        if names is not None:
            if name in names:
                return True
            message = f"{address.url} serves {', '.join(names) or 'nothing'}, and not {name}"
            raise Findings(Diagnostic("port-taken", message), fatal=True)
        time.sleep(_LOOK_SECONDS)
    if server.signal is None:
        raise server_ended(server, "before it answered")
    return False


def wait_for_its_end(server: Server) -> int:
    """Wait until a server ends; return the exit status that this amounts to.

    Raises:
        Findings: `server-failed`; fatal.
    """
    server.process.wait()
    if server.signal is None:
        raise server_ended(server, "while it served")
    return 128 + server.signal


def server_ended(server: Server, when: str) -> Findings:
    """Return the finding of a server that ended by itself."""
    status = server.process.returncode
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    message = f"vLLM ended {how} {when}: {server.first_error()}"
    return Findings(Diagnostic("server-failed", message), fatal=True)


def served_names(address: Address) -> list[str] | None:
    """Return the names of the models that a server answers for; None where it does not answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{address.url}/health", timeout=5):
            pass
        with opener.open(f"{address.url}/v1/models", timeout=5) as answer:
            return [str(one["id"]) for one in json.load(answer)["data"]]
    except (OSError, ValueError, KeyError, TypeError, urllib.error.HTTPError):
        return None
