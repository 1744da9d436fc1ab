"""Which rows have to be computed."""

from covey.update.dropping import contributing


def test_rows_with_an_advantage_or_another_term(sample):
    rows = [sample(2, 0.0), sample(2, 1.0), sample(2, -1.0, in_loss=False)]
    assert contributing(rows, [0.1, 0.1, 0.0], every_row_is_needed=False) == [1]
    assert contributing(rows, [0.1, 0.1, 0.0], every_row_is_needed=True) == [0, 1]


def test_one_row_always_stays(sample):
    rows = [sample(5, 0.0), sample(2, 0.0), sample(3, 0.0)]
    assert contributing(rows, [0.1] * 3, every_row_is_needed=False) == [1]
    assert contributing([sample(3, 1.0, in_loss=False)], [0.0], every_row_is_needed=True) == [0]
    assert contributing([], [], every_row_is_needed=False) == []
