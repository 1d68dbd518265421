"""Which samples make up which batch: all of them once, whatever the ranks, and known ahead."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from readers.order import BLOCK_ROWS, WINDOW_BLOCKS, Order, balanced_weights

SHUFFLES = st.sampled_from([True, False, "blocks"])


def epoch_of(order: Order, epoch: int = 0) -> list[np.ndarray]:
    return [order.batch(epoch, number).samples for number in range(len(order))]


@given(st.integers(1, 200), st.integers(1, 20), SHUFFLES, st.integers(0, 3), st.integers(0, 9))
def test_an_epoch_is_a_permutation(num, batch_size, shuffle, epoch, seed):
    order = Order(num, batch_size, seed=seed, shuffle=shuffle, drop_last=False)
    batches = epoch_of(order, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(num))
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert 1 <= len(batches[-1]) <= batch_size


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 5), SHUFFLES)
def test_ranks_share_an_epoch_with_little_padding(num, batch_size, world_size, shuffle):
    ranks = [
        Order(num, batch_size, shuffle=shuffle, drop_last=False, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    sizes = [[len(batch) for batch in epoch_of(order)] for order in ranks]
    assert sizes == [sizes[0]] * world_size and 0 not in sizes[0]
    samples = np.concatenate([np.concatenate(epoch_of(order)) for order in ranks])
    assert set(samples.tolist()) == set(range(num))
    assert len(samples) - num < world_size
    # What pads is the beginning of the epoch.
    counts = np.bincount(samples, minlength=num)
    start = Order(num, num, shuffle=shuffle, drop_last=False).batch(0, 0).samples
    doubled = np.flatnonzero(counts > 1)
    assert set(doubled.tolist()) <= set(start[: world_size - 1].tolist())


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 5), SHUFFLES)
def test_drop_last_gives_whole_batches_and_no_sample_twice(num, batch_size, world_size, shuffle):
    options = {"shuffle": shuffle, "world_size": world_size}
    if num < batch_size * world_size:
        with pytest.raises(ValueError, match="no batch"):
            Order(num, batch_size, **options)
        return
    ranks = [Order(num, batch_size, rank=rank, **options) for rank in range(world_size)]
    batches = [batch for order in ranks for batch in epoch_of(order)]
    assert {len(batch) for batch in batches} == {batch_size}
    assert {len(order) for order in ranks} == {num // (batch_size * world_size)}
    samples = np.concatenate(batches).tolist()
    assert len(set(samples)) == len(samples) > num - batch_size * world_size


@given(st.integers(1, 60), st.integers(1, 4))
def test_two_ranks_take_together_what_one_takes_with_twice_the_batch(num, batch_size):
    whole = Order(num, 2 * batch_size, drop_last=False)
    halves = [Order(num, batch_size, drop_last=False, rank=rank, world_size=2) for rank in range(2)]
    for number in range(len(whole)):
        joined = np.concatenate([half.batch(5, number).samples for half in halves])
        expected = whole.batch(5, number).samples
        assert joined[: len(expected)].tolist() == expected.tolist()


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {
        (seed, epoch): tuple(np.concatenate(epoch_of(Order(50, 5, seed=seed), epoch)).tolist())
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4


@given(st.integers(1, 100), st.integers(1, 10), st.integers(0, 5), st.data())
def test_a_batch_is_known_without_the_ones_before(num, batch_size, epoch, data):
    order = Order(num, batch_size, drop_last=False)
    number = data.draw(st.integers(0, len(order) - 1))
    fresh = Order(num, batch_size, drop_last=False).batch(epoch, number)
    assert fresh.samples.tolist() == epoch_of(order, epoch)[number].tolist()
    assert order.at(epoch, int(fresh.places[0])).samples.tolist() == fresh.samples[:1].tolist()


def test_an_epochs_order_begins_anew_behind_its_end():
    order = Order(5, 2)
    first = order.batch(3, 0).samples
    assert [int(order.at(3, 5 + i).samples[0]) for i in range(2)] == first.tolist()


def test_blocks_are_a_permutation_that_stays_local():
    num = BLOCK_ROWS * WINDOW_BLOCKS * 2 + 777
    samples = Order(num, num, shuffle="blocks", seed=4).batch(1, 0).samples
    assert np.array_equal(np.sort(samples), np.arange(num))
    for start in range(0, num, BLOCK_ROWS * WINDOW_BLOCKS):
        window = samples[start : start + BLOCK_ROWS * WINDOW_BLOCKS]
        # A window's edge may fall into a block, because the last block of the pack is short.
        assert len(np.unique(window // BLOCK_ROWS)) <= WINDOW_BLOCKS + 1
        # Within the window it is a full shuffle: neighbours come from any two of its blocks.
        same = np.mean(np.diff(window // BLOCK_ROWS) == 0)
        assert same < 0.2 or len(window) < 2 * BLOCK_ROWS
    other = Order(num, num, shuffle="blocks", seed=4).batch(2, 0).samples
    assert not np.array_equal(samples, other)


def test_a_subset_is_all_there_is():
    subset = [7, 3, 11, 90]
    order = Order(100, 2, subset=subset)
    assert sorted(np.concatenate(epoch_of(order)).tolist()) == sorted(subset)
    in_order = Order(100, 2, subset=subset, shuffle=False)
    assert np.concatenate(epoch_of(in_order)).tolist() == subset


@pytest.mark.parametrize("subset", [[3, 100], [-1], [0.5], np.ones(100, bool)])
def test_a_subset_that_is_none_is_refused(subset):
    with pytest.raises(ValueError, match="subset"):
        Order(100, 1, subset=subset)


def test_weights_are_frequencies():
    weights = np.array([0, 1, 2, 5, 0])
    order = Order(5, 5, weights=weights)
    drawn = np.concatenate([order.batch(epoch, 0).samples for epoch in range(4000)])
    frequencies = np.bincount(drawn, minlength=5) / len(drawn)
    assert frequencies == pytest.approx(weights / 8, abs=0.01)  # three standard deviations
    assert frequencies[0] == frequencies[4] == 0


def test_weights_belong_to_the_subset_and_a_sample_drawn_twice_has_two_draws():
    order = Order(100, 50, subset=[10, 20], weights=[0, 1], drop_last=False)
    picked = order.batch(0, 0)
    assert picked.samples.tolist() == [20, 20]
    assert len(set(picked.draws.tolist())) == 2


def test_ranks_draw_different_parts_of_one_weighted_epoch():
    whole = Order(40, 40, weights=np.arange(40)).batch(2, 0)
    parts = [
        Order(40, 20, weights=np.arange(40), rank=r, world_size=2).batch(2, 0) for r in range(2)
    ]
    assert np.concatenate([part.samples for part in parts]).tolist() == whole.samples.tolist()
    assert np.concatenate([part.draws for part in parts]).tolist() == whole.draws.tolist()


@pytest.mark.parametrize("weights", [[1, 2], [-1, 1, 1], [0, 0, 0], [1, np.nan, 1]])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        Order(3, 1, weights=weights)


def test_balanced_weights_draw_each_class_equally_and_nothing_unlabelled():
    labels = np.array([0] * 90 + [1] * 9 + [3] + [-1] * 50)
    weights = balanced_weights(labels)
    assert [weights[labels == label].sum() for label in (0, 1, 3)] == pytest.approx([1, 1, 1])
    assert not weights[labels == -1].any()
    order = Order(len(labels), len(labels), weights=weights)
    drawn = labels[np.concatenate([order.batch(epoch, 0).samples for epoch in range(100)])]
    assert np.bincount(drawn + 1, minlength=5) / len(drawn) == pytest.approx(
        [0, 1 / 3, 1 / 3, 0, 1 / 3], abs=0.02
    )


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"rank": 2, "world_size": 2}, {"rank": -1}, {"world_size": 0}]
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match="batch_size"):
        Order(**{"num_samples": 10, "batch_size": 2, **options})


@pytest.mark.parametrize("drop_last", [True, False])
def test_no_samples_are_no_batch(drop_last):
    with pytest.raises(ValueError, match="no batch"):
        Order(0, 4, drop_last=drop_last)
