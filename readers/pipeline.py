"""Threads that work on the next few jobs of a sequence; the finished jobs come out in order."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

_GONE_SECONDS = 1
_REST_SECONDS = 10  # then a part is stuck, and a fork that may hang is better than one that must


class Job(Protocol):
    """Work in `num_parts` parts that do not depend on each other, each large enough to be worth
    handing over."""

    @property
    def num_parts(self) -> int: ...
    def do(self, part: int) -> None: ...


J = TypeVar("J", bound=Job)


@dataclass
class _Slot(Generic[J]):
    """A job on its way: how many parts are taken, how many are not finished, what failed."""

    job: J | None
    num_parts: int
    num_left: int
    num_taken: int = 0
    errors: list[tuple[int, BaseException]] = field(default_factory=list)


class Pipeline(Generic[J]):
    """`with Pipeline(begin, numbers, …) as jobs`: the jobs begin(n) for n in `numbers`, in order,
    done by threads that run while the block does.

    At most `ahead` jobs beyond the one asked for are finished or being worked on. What goes wrong
    in begin() or in a part is raised where the job would have come out: the first part's error.
    """

    def __init__(
        self, begin: Callable[[int], J], numbers: range, *, num_threads: int, ahead: int
    ) -> None:
        self._begin = begin
        self._numbers = numbers
        self._ahead = ahead
        self._slots: deque[_Slot[J]] = deque()
        self._beginning = self._stopped = self._resting = False
        self._num_working = 0  # threads that are not waiting
        # Two conditions of one lock: who waits for a finished job is not woken for a begun one.
        self._lock = threading.RLock()
        self._to_do = threading.Condition(self._lock)
        self._finished = threading.Condition(self._lock)
        self._process = os.getpid()
        self._threads = [
            threading.Thread(target=self._work, name=f"loader-{i}", daemon=True)
            for i in range(num_threads)
        ]

    def __enter__(self) -> Iterator[J]:
        jobs = (self._next() for _ in self._numbers)  # all of them: the threads cut the range down
        _running.add(self)
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # Ctrl-C, or the system allows no more of them
            self.stop()
            raise
        return jobs

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the threads; each finishes the part that it has taken."""
        if self._process != os.getpid():
            return  # no threads here
        with self._lock:
            self._stopped = True
            self._to_do.notify_all()
        if threading.current_thread() in self._threads:
            return  # it collects garbage, maybe with the lock held that the others wait for
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join()
                _wait_until_gone(thread)
        _running.discard(self)

    def _next(self) -> J:
        if self._process != os.getpid():
            raise RuntimeError("the threads of this iterator were lost in a fork: call iter() anew")
        with self._lock:
            self._finished.wait_for(lambda: self._slots and self._slots[0].num_left == 0)
            slot = self._slots.popleft()
            self._to_do.notify()
        if slot.job is None or slot.errors:
            raise min(slot.errors, key=lambda error: error[0])[1]
        return slot.job

    def rest(self) -> None:
        """Let the threads finish what they have taken, and take no more until go_on()."""
        if threading.current_thread() not in self._threads:
            with self._lock:
                self._resting = True
                self._finished.wait_for(lambda: self._num_working == 0, _REST_SECONDS)

    def go_on(self) -> None:
        """The end of rest()."""
        with self._lock:
            self._resting = False
            self._to_do.notify_all()

    # What the threads do

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            slot, part = taken
            assert slot.job is not None
            try:
                slot.job.do(part)
            except BaseException as error:
                slot.errors.append((part, error))
            with self._lock:
                self._num_working -= 1
                slot.num_left -= 1
                if slot.num_left == 0 or self._resting:
                    self._finished.notify_all()
            del slot, taken  # a thread that waits must not keep a job's memory

    def _take(self) -> tuple[_Slot[J], int] | None:
        """The next part of the oldest job that has one left; None when it is time to stop."""
        with self._lock:
            while not self._stopped:
                slot = next((slot for slot in self._slots if slot.num_taken < slot.num_parts), None)
                if self._resting:
                    self._wait_for_work()
                elif slot is not None:
                    slot.num_taken += 1
                    self._num_working += 1
                    return slot, slot.num_taken - 1
                elif self._numbers and not self._beginning and len(self._slots) <= self._ahead:
                    self._begin_job()
                else:
                    self._wait_for_work()
            return None

    def _wait_for_work(self) -> None:
        # Not for ever: this thread may collect its own iterator as garbage within wait(), and
        # stop() then calls it before it listens.
        self._to_do.wait(_GONE_SECONDS)

    def _begin_job(self) -> None:
        """Begin one more job, letting go of the lock meanwhile."""
        number, self._numbers = self._numbers[0], self._numbers[1:]
        self._beginning = True
        self._num_working += 1
        self._lock.release()
        try:
            job = self._begin(number)
            slot = _Slot(job, job.num_parts, job.num_parts)
        except BaseException as error:
            slot = _Slot(None, 0, 0, errors=[(0, error)])
        finally:
            self._lock.acquire()
        self._num_working -= 1
        self._beginning = False
        self._slots.append(slot)
        self._to_do.notify_all()
        if slot.num_left == 0 or self._resting:
            self._finished.notify_all()


def _wait_until_gone(thread: threading.Thread) -> None:
    # join() returns when Python is done with a thread. Before it is gone it still runs OpenCV's
    # destructors, and a fork at that moment would copy the lock they hold.
    deadline = time.monotonic() + _GONE_SECONDS
    while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < deadline:
        time.sleep(0.0001)


_running: weakref.WeakSet[Pipeline[Any]] = weakref.WeakSet()


def _rest_before_fork() -> None:
    # A fork copies the locks inside OpenCV and the C library as they are at that moment, and one
    # that a thread holds is never released in the child.
    for pipeline in list(_running):
        pipeline.rest()


def _go_on_after_fork() -> None:
    for pipeline in list(_running):
        pipeline.go_on()


def _stop_at_exit() -> None:
    # Python ends threads that outlive it in the middle of C++ code, which aborts the process.
    for pipeline in list(_running):
        pipeline.stop()


os.register_at_fork(
    before=_rest_before_fork, after_in_parent=_go_on_after_fork, after_in_child=_running.clear
)
atexit.register(_stop_at_exit)
