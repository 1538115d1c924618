from taming.data import held_out_split

NAMES = [
    f"{label}/{i}.png" for label, count in (("a", 60), ("b", 30), ("c", 10)) for i in range(count)
]
LABELS = [0] * 60 + [1] * 30 + [2] * 10


def test_it_is_exact_disjoint_and_stratified() -> None:
    train, val = held_out_split(NAMES, LABELS, 0.2)
    assert sorted(train + val) == list(range(100))
    assert [sum(LABELS[i] == label for i in val) for label in (0, 1, 2)] == [12, 6, 2]
    assert (train, val) == held_out_split(NAMES, LABELS, 0.2)


def test_it_depends_on_names_not_on_positions() -> None:
    _, val = held_out_split(NAMES, LABELS, 0.2)
    _, reversed_val = held_out_split(NAMES[::-1], LABELS[::-1], 0.2)
    assert {NAMES[i] for i in val} == {NAMES[::-1][i] for i in reversed_val}


def test_added_images_move_few_others() -> None:
    names = [f"{i}.png" for i in range(1100)]
    before = {names[i] for i in held_out_split(names[:1000], [None] * 1000, 0.1)[1]}
    after = {names[i] for i in held_out_split(names, [None] * 1100, 0.1)[1]}
    assert (len(before), len(after)) == (100, 110)
    assert len(before - after) < 20


def test_the_last_image_of_a_class_stays_in_training() -> None:
    labels = [0, 1, 2, 3, 4, 4, 4, 4]
    train, val = held_out_split([str(i) for i in range(8)], labels, 0.5)
    assert {labels[i] for i in train} == {0, 1, 2, 3, 4}
    assert {labels[i] for i in val} == {4}


def test_one_item_at_least_is_held_out() -> None:
    train, val = held_out_split(NAMES[:20], [None] * 20, 0.01)
    assert (len(train), len(val), len({*train, *val})) == (19, 1, 20)


def test_all_items_are_on_both_sides_if_none_can_be_held_out() -> None:
    assert held_out_split(["a"], [None], 0.3) == ([0], [0])
    assert held_out_split(["a", "b"], [0, 1], 0.5) == ([0, 1], [0, 1])
