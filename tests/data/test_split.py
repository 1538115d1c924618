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


def test_a_group_is_never_split_and_classes_get_their_shares() -> None:
    names = [f"{i}.png" for i in range(300)]
    labels = [0] * 200 + [1] * 100
    groups = [f"g{i // 2}" if i < 200 else f"g{i // 5}" for i in range(300)]  # of 2, of 5
    train, val = held_out_split(names, labels, 0.1, groups)
    assert not {groups[i] for i in train} & {groups[i] for i in val}
    assert [sum(labels[i] == label for i in val) for label in (0, 1)] == [20, 10]
    assert (train, val) == held_out_split(names, labels, 0.1, groups)
    backwards = held_out_split(names[::-1], labels[::-1], 0.1, groups[::-1])[1]
    assert {names[i] for i in val} == {names[::-1][i] for i in backwards}


def test_groups_of_one_item_change_nothing() -> None:
    assert held_out_split(NAMES, LABELS, 0.2, NAMES) == held_out_split(NAMES, LABELS, 0.2)


def test_groups_larger_than_the_share_of_their_class() -> None:
    names = [str(i) for i in range(1000)]
    labels = [i // 100 for i in range(1000)]
    groups = [str(i // 25) for i in range(1000)]  # four to a class, each with a fourth of it
    train, val = held_out_split(names, labels, 0.1, groups)  # each class' share is ten
    assert len(val) == 100 and {labels[i] for i in train} == set(range(10))
    train, val = held_out_split(
        names[:300], [None] * 300, 0.01, [str(i // 100) for i in range(300)]
    )
    assert (len(train), len(val)) == (200, 100)  # three images would be enough
    assert held_out_split(names[:9], [None] * 9, 0.3, ["x"] * 9) == (list(range(9)),) * 2
