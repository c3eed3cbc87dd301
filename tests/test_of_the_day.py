"""Drawn programs that are tried today, and in time all of them."""

from of_the_day import of_the_day


def chosen(count, day):
    return [case.values[0] for case in of_the_day(range(20), count, day) if not case.marks]


def test_each_day_tries_as_many():
    assert chosen(6, 0) == [0, 1, 2, 3, 4, 5]
    assert chosen(6, 1) == [6, 7, 8, 9, 10, 11]
    assert chosen(6, 3) == [0, 1, 2, 3, 18, 19]


def test_in_time_all_are_tried():
    for count, days in ((1, 20), (3, 7), (8, 3), (20, 1)):
        assert {seed for day in range(739_000, 739_000 + days) for seed in chosen(count, day)} == set(range(20))
