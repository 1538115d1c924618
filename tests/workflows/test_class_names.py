from taming.workflows.class_names import class_difference, listed


def test_the_first_ten_are_listed() -> None:
    assert listed(["cat", 1]) == "cat, 1"
    assert listed(range(10)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert listed(range(11)).endswith("8, 9, …")


def test_the_first_class_that_differs_is_named() -> None:
    twelve = [f"c{number}" for number in range(12)]
    assert class_difference("the images'", twelve, "the model's", tuple(twelve)) is None
    found = class_difference("the images'", [*twelve[:11], "owl"], "the model's", twelve)
    assert found == "the images' class 11 is 'owl', and the model's 'c11'"
    found = class_difference("the images'", twelve[:11], "the model's", twelve)
    assert found == "the images' classes are 11, and the model's 12"
