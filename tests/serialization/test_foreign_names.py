"""Names of a file are printed in a line, whatever they are."""

from taming.serialization.foreign_names import shown, shown_names


def test_ordinary_names_stay_as_they_are() -> None:
    assert shown("state_dict") == "state_dict"
    assert shown("Größe 2") == "Größe 2"
    assert shown("n" * 80) == "n" * 80


def test_long_names_are_cut_and_control_characters_written_out() -> None:
    assert shown("n" * 10**6) == "n" * 79 + "…"
    assert shown("abcdef", at_most=4) == "abc…"
    assert shown("\x1b[31mred\n") == r"'\x1b[31mred\n'"
    escapes = shown("\x1b" * 1000)
    assert escapes.isprintable() and len(escapes) == 80
    assert shown("\u202egpj.exe").isprintable()  # right-to-left override


def test_of_what_is_no_string_the_type_is_shown() -> None:
    value: tuple[object, ...] = ()
    for _ in range(60):
        value = (value, value)  # `repr` would write 2^60 brackets
    assert shown(value) == "<tuple>"
    assert shown(10**5000) == "<int>"  # `str` refuses so many digits


def test_the_first_names_and_how_many_more() -> None:
    assert shown_names([]) == ""
    assert shown_names(["a", 2]) == "a, <int>"
    assert shown_names(list("abcde"), at_most=3) == "a, b, c and 2 more"
