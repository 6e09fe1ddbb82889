"""One rule for a number, a count and a list, wherever they are read."""

import pytest

from oddlm.text import fixed, named, number_of, percent


@pytest.mark.parametrize(
    ("value", "digits", "text"),  # as JavaScript's toFixed writes them
    [
        (70.25, 1, "70.3"),
        (70.35, 1, "70.3"),  # in binary a little less than the tie
        (-70.25, 1, "-70.3"),
        (0.5, 0, "1"),
        (2.5, 0, "3"),
        (1.005, 2, "1.00"),
        (8.345, 2, "8.35"),  # in binary a little more
        (0.0, 1, "0.0"),
        (123456789.125, 2, "123456789.13"),
    ],
)
def test_ties_go_away_from_zero(value, digits, text):
    assert fixed(value, digits) == text


def test_signs_and_what_is_no_number():
    assert fixed(0.25, 1, "+") == "+0.3"
    assert fixed(-0.25, 1, "+") == "-0.3"
    assert (fixed(float("nan")), fixed(float("inf"), 1, "+"), fixed(1e300, 0)[:4]) == (
        "nan",
        "+inf",
        "1000",
    )
    assert percent(0.7025) == "70.3"


def test_one_and_many():
    assert [number_of(n, "problem") for n in (0, 1, 2)] == ["0 problems", "1 problem", "2 problems"]
    assert number_of(2, "copy", "copies") == "2 copies"
    assert (named("seed", [0]), named("seed", [0, 1])) == ("seed 0", "seeds 0, 1")
