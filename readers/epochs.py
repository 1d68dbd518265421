"""Where a loader is in its epochs: chosen, saved between two batches, and gone on from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from .errors import DspackError
from .order import Order
from .pack import Pack

B = TypeVar("B")


class Epochs:
    """What the loaders have in common: `epoch`, and how far they are in it."""

    def __init__(self, pack: Pack, order: Order) -> None:
        self.pack = pack
        self.order = order
        self.epoch = 0
        self._first_batch = self._batches_given = 0
        self._given_up = False  # batches of `epoch` were given, and it was not told where to go on

    def __len__(self) -> int:
        """Batches in an epoch, the same in every epoch and on every rank."""
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iter() gives: from its start, or, if a loaded state lies in it,
        from there."""
        if epoch != self.epoch:
            self.epoch, self._first_batch = epoch, 0
        self._batches_given, self._given_up = self._first_batch, False

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: call it between two batches. The same on every rank."""
        return {"epoch": self.epoch, "batches": self._batches_given, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next iter() gives the batches of the epoch that were to come.

        Raises DspackError for the state of a loader whose batches are of other samples, and for
        what is no state.
        """
        identity = self._identity()
        if missing := sorted({"epoch", "batches", *identity} - set(state)):
            raise DspackError(f"no loader's state: it lacks {missing[0]}", path=self.pack.path)
        for name, mine in identity.items():
            if state[name] != mine:
                raise DspackError(
                    f"the saved state has {name} {state[name]!r}, this loader {mine!r}",
                    path=self.pack.path,
                )
        self.epoch = state["epoch"]
        self._first_batch = self._batches_given = state["batches"]
        self._given_up = False

    def _identity(self) -> dict[str, Any]:
        """What decides which batches there are."""
        return {
            "content_digest": self.pack.content_digest,
            "split": self.pack.split,
            "selection": self.order.selection,
            "seed": self.order.seed,
            "num_samples": self.order.num_samples,
            "batch_size": self.order.batch_size,
            "world_size": self.order.world_size,
            "shuffle": self.order.shuffle,
            "drop_last": self.order.drop_last,
        }

    def _begin(self) -> tuple[int, range]:
        """The epoch that an iter() gives, and its batches that are to come. One that was given up
        is not given again: who stops after so many steps wants to see other samples next time."""
        if self._given_up:
            self.epoch += 1
            self._given_up = False
        first, self._first_batch = self._first_batch, 0
        self._batches_given = first
        return self.epoch, range(first, len(self))

    def _counted(self, batches: Iterator[B]) -> Iterator[B]:
        """`batches`, with the position kept up; it keeps none of them."""
        for batch in batches:
            self._batches_given += 1
            self._given_up = True
            yield batch
            del batch  # or its memory could not be used again until the next one is there

    def _end(self, epoch: int) -> None:
        """An epoch was given to its end: the next one follows."""
        self.epoch, self._batches_given, self._given_up = epoch + 1, 0, False
