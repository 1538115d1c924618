from itertools import islice

from taming.data import EndlessBatches


def first(num_batches: int, **settings: int) -> list[list[tuple[int, int]]]:
    return list(
        islice(
            EndlessBatches(**{"num_items": 10, "batch_size": 4, "seed": 0, **settings}), num_batches
        )
    )


def test_each_pass_holds_every_item_once_and_differs() -> None:
    stream = [pair for batch in first(10) for pair in batch]
    assert [draw for _, draw in stream] == list(range(40))
    passes = [[index for index, _ in stream[i : i + 10]] for i in range(0, 40, 10)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4


def test_restarting_gives_the_same_tail() -> None:
    assert first(5, start_batch=7) == first(12)[7:]


def test_seed_decides_the_order() -> None:
    assert first(3) == first(3)
    assert first(3) != first(3, seed=1)


def test_ranks_share_out_the_stream_of_one() -> None:
    ranks = [first(6, batch_size=2, rank=rank, world_size=2) for rank in (0, 1)]
    joined = [a + b for a, b in zip(*ranks, strict=True)]
    assert joined == first(6)  # two ranks of 2 see what one rank of 4 sees
    draws = [{draw for batch in rank for _, draw in batch} for rank in ranks]
    assert not draws[0] & draws[1]


def test_batches_larger_than_the_data() -> None:
    (batch,) = first(1, num_items=3, batch_size=8)
    assert len(batch) == 8
    assert sorted(index for index, _ in batch[:6]) == [0, 0, 1, 1, 2, 2]
