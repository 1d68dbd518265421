"""How far a long piece of work is: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from readers.errors import printable

if TYPE_CHECKING:
    from tqdm import tqdm
    from typing_extensions import Self

_LINE_SECONDS = 10.0  # often enough to see life, seldom enough not to fill a log


class _Bar:
    """What bars have in common: `with` takes them away at the end."""

    def __init__(self, what: str, quiet: bool) -> None:
        self._what = what
        self._quiet = quiet
        self._bar: tqdm[None] | None = None
        self._on_terminal = sys.stderr.isatty()
        self._start_clock()

    def _start_clock(self) -> None:
        self._started = self._last_line = time.monotonic()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class ProgressBar(_Bar):
    """Counts samples and bytes; call it with how many are done, and the bytes since.

    The first call begins the work, and so does one whose count is smaller than the one before.
    """

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        super().__init__(what, quiet)
        self._num_done = sys.maxsize

    def __call__(self, num_done: int, num_bytes: int, num_total: int) -> None:
        if self._quiet:
            return
        if num_done < self._num_done:  # the work begins: what was before does not count
            self.close()
            self._first, self._num_bytes = num_done, 0
            self._start_clock()
        self._num_done = num_done
        self._num_bytes += num_bytes
        elapsed = max(time.monotonic() - self._started, 1e-9)
        speed = f"{self._num_bytes / 1e6 / elapsed:.0f} MB/s"
        if self._on_terminal:
            if self._bar is None:
                from tqdm import tqdm  # costs an import that a log does without

                self._bar = tqdm(
                    desc=self._what,
                    total=num_total,
                    initial=num_done,
                    unit=" samples",
                    dynamic_ncols=True,
                )
            self._bar.set_postfix_str(speed, refresh=False)
            self._bar.update(num_done - self._bar.n)
        elif time.monotonic() - self._last_line >= _LINE_SECONDS:
            self._last_line = time.monotonic()
            rate = (num_done - self._first) / elapsed
            left = (num_total - num_done) / rate if rate > 0 else float("inf")
            print(
                f"{self._what}: {num_done} of {num_total} samples, {rate:.0f} samples/s, {speed}, "
                f"{left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )


class ScanningBar(_Bar):
    """Shows how much of an archive is unpacked or listed: a packer.sources.Scanning."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__("", quiet)

    def __call__(self, what: str, num_bytes: int, num_total: int) -> None:
        if self._quiet:
            return
        if what != self._what:
            self.close()
            self._what = what
            self._start_clock()
        if self._on_terminal:
            self._draw(num_bytes, num_total)
        elif time.monotonic() - self._last_line >= _LINE_SECONDS:
            self._last_line = time.monotonic()
            speed = num_bytes / (self._last_line - self._started)
            left = (num_total - num_bytes) / speed if speed else float("inf")
            print(
                f"{printable(what)}: {num_bytes / 1e6:.0f} of {num_total / 1e6:.0f} MB, "
                f"{speed / 1e6:.0f} MB/s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def _draw(self, num_bytes: int, num_total: int) -> None:
        if self._bar is None and num_bytes < num_total:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=printable(self._what),
                total=num_total,
                unit="B",
                unit_scale=True,
                dynamic_ncols=True,
                leave=False,
            )
        if self._bar is not None:
            self._bar.update(num_bytes - self._bar.n)
        if num_bytes >= num_total:
            self.close()  # the next bar takes its line
