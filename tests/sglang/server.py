"""SGLang in processes of its own: the stock server behind HTTP, and scripts of an engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
from engine import DEFAULTS, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Server arguments of a small engine on a CPU: those of the harness that fit a whole server.
ARGUMENTS: Mapping[str, Any] = {
    name: value
    for name, value in DEFAULTS.items()
    if name
    not in ("skip_tokenizer_init", "disable_overlap_schedule", "schedule_policy", "log_level")
} | {"max_running_requests": 4}
READY_S = 300  # it takes 30 alone on a small machine


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Write server arguments as on a command line."""
    words = []
    for name, value in arguments.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return words


def write_plugin(directory: Path, name: str, code: str) -> None:
    """Write a plugin of SGLang's, as if installed: ``code`` defines ``activate()``."""
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {name}:activate\n")
    (directory / f"{name}.py").write_text(code)


class Process:
    """A Python process of the tests, with its children in a group of their own.

    Parameters
    ----------
    arguments
        Of ``python``.
    log
        Where all of them print to.
    path
        A directory to import from first, also in the children.
    environment
        On top of this process's.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        *,
        path: Path | None = None,
        **environment: str,
    ) -> None:
        cpus = f"0-{(os.cpu_count() or 1) - 1}"
        full = {**os.environ, "SGLANG_CPU_OMP_THREADS_BIND": f"{cpus}|{cpus}", **environment}
        if path is not None:
            full["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), full.get("PYTHONPATH")]))
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-u", *arguments],
                env=full,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """What was printed so far."""
        return self._log.read_text(errors="replace")

    def lines(self, text: str) -> list[str]:
        """The lines printed so far that have ``text`` in them."""
        return [line for line in self.log.splitlines() if text in line]

    def wait(self, timeout_s: float = READY_S) -> int:
        """Wait for the end; return the exit status.

        Raises
        ------
        subprocess.TimeoutExpired
            It has not ended.
        """
        return self.process.wait(timeout_s)

    def interrupt(self, timeout_s: float = 30) -> int:
        """Press Ctrl-C, wait for the end, return the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.wait(timeout_s)

    def members(self) -> list[int]:
        """Processes of the group that are there."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[2]) == self.process.pid and fields[0] != "Z":
                    found.append(int(entry.name))
        return found

    def gone(self, timeout_s: float = 10) -> bool:
        """Whether all of the group end within a time."""
        deadline = time.monotonic() + timeout_s
        while members := self.members():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return not members

    def kill(self) -> None:
        """End all that is left."""
        for pid in self.members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(10)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()


class Server(Process):
    """``python -m sglang.launch_server``.

    Parameters
    ----------
    model
        Directory of the model.
    log, path, environment
        As of ``Process``.
    arguments
        Server arguments on top of ``ARGUMENTS``.
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        arguments: Mapping[str, Any] | None = None,
        *,
        path: Path | None = None,
        **environment: str,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        given = {"model_path": model, "port": port, **ARGUMENTS, **(arguments or {})}
        words = ["-m", "sglang.launch_server", *flags(given)]
        super().__init__(words, log, path=path, **environment)

    def wait_ready(self) -> None:
        """Wait until the server has answered its own first request.

        Raises
        ------
        RuntimeError
            With the end of the log, if it ends or takes too long.
        """
        deadline = time.monotonic() + READY_S
        while "The server is fired up" not in self.log:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server: {self.log[-4000:]}")
            time.sleep(0.1)

    def post(self, path: str, body: Mapping[str, Any], **options: Any) -> requests.Response:
        """Send a body as JSON, return the answer whatever its status is."""
        return requests.post(self.url + path, json=body, **{"timeout": 60, **options})

    def get(self, path: str, **options: Any) -> requests.Response:
        """Ask for a page, return the answer whatever its status is."""
        return requests.get(self.url + path, **{"timeout": 60, **options})

    def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """All that ``/metrics`` has of topas: values by sample name and sorted labels."""
        from prometheus_client.parser import text_string_to_metric_families

        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(self.get("/metrics").text):
            for sample in family.samples:
                if sample.name.startswith("topas:"):
                    labels = tuple(sorted(sample.labels.items()))
                    found.setdefault(sample.name, {})[labels] = sample.value
        return found
