import pytest
from taming.data.labels import folder_labels

from taming.data.files import natural_key
from taming.errors import UserError


def test_top_folders_are_classes_in_natural_order() -> None:
    names = ["10/a.png", "9/b.png", "9/deeper/c.png"]
    assert folder_labels(names, "auto", "x") == (["9", "10"], [1, 0, 0])


def test_folders_that_all_share_do_not_count() -> None:
    names = ["photos/cat/1.png", "photos/dog/1.png"]
    assert folder_labels(names, "auto", "x") == (["cat", "dog"], [0, 1])


@pytest.mark.parametrize(
    "names", [["1.png", "2.png"], ["a/1.png", "2.png"], ["a/1.png", "a/2.png"]]
)
def test_auto_finds_no_classes(names: list[str]) -> None:
    assert folder_labels(names, "auto", "x") == ([], [None, None])


def test_what_keeps_auto_from_classes_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        folder_labels(["1.png", "2.png"], "auto", "x")
        assert not caplog.messages  # no folders, no classes
        folder_labels(["cat/1.png", "dog/2.png", "3.png"], "auto", "x")
    assert "x: no classes, for 1 of 3 images lie in no class folder, such as 3.png" in caplog.text


def test_folders_insists() -> None:
    assert folder_labels(["a/1.png", "a/2.png"], "folders", "x") == (["a"], [0, 0])
    with pytest.raises(UserError, match=r"x: .*1 are not, such as 2\.png"):
        folder_labels(["a/1.png", "2.png"], "folders", "x")


def test_a_split_is_not_taken_for_classes() -> None:
    with pytest.raises(UserError, match=r"train, val look like a split.*val_path"):
        folder_labels(["train/cat/1.png", "val/cat/2.png"], "auto", "x")


def test_validation_uses_the_training_classes() -> None:
    known = ["cat", "dog", "emu"]
    assert folder_labels(["dog/1.png"], "auto", "x", known) == (known, [1])
    assert folder_labels(["v/dog/1.png", "v/emu/2.png"], "auto", "x", known) == (known, [1, 2])
    assert folder_labels(["dog/1.png"], "auto", "x", []) == ([], [None])
    with pytest.raises(UserError, match="x: fox is not a class of the training data"):
        folder_labels(["dog/1.png", "fox/1.png"], "auto", "x", known)
    with pytest.raises(UserError, match="x: fox is not a class"):
        folder_labels(["fox/1.png"], "auto", "x", known)
    with pytest.raises(UserError, match="no folder is not a class"):
        folder_labels(["1.png"], "auto", "x", known)


def test_natural_order() -> None:
    assert sorted(["b10", "b9", "a", "10", "b09"], key=natural_key) == [
        "10",
        "a",
        "b09",
        "b9",
        "b10",
    ]
