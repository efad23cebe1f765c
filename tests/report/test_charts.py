"""The pictures of the page."""

from __future__ import annotations

from report.reports import failing, memory, passing

from attncheck.report import charts


def test_strips_are_drawn_of_what_did_not_hold() -> None:
    drawn = charts.strips(failing())
    assert drawn is not None
    (row,) = drawn.rows
    assert row.cuts == (12,)
    assert drawn.end == 24
    assert [cell.heat for cell in row.cells[:13]] == [0.0] * 12 + [1.0]
    assert 0.9 < row.cells[13].heat < 1.0
    assert charts.strips(passing()) is None


def test_the_curve_is_logarithmic_and_marks_chunks() -> None:
    drawn = charts.curve(failing())
    assert drawn is not None
    points = [tuple(map(float, point.split(","))) for point in drawn.points.split()]
    assert len(points) == 24
    assert points[0][1] > drawn.budget_y > points[12][1]
    assert drawn.cuts == (points[12][0],)


def test_bars_share_a_scale_within_a_unit() -> None:
    (sizes,) = charts.bars(memory())
    assert [(bar.name, bar.share, bar.pale) for bar in sizes.rows] == [
        ("cache bytes", 0.5, False),
        ("MHA", 1.0, True),
        ("MQA", 0.25, True),
    ]


def test_layers_rise_on_a_logarithmic_scale() -> None:
    drawn = charts.layers(failing())
    assert drawn is not None
    assert drawn.rows[1].share == 1.0
    assert 0.5 < drawn.rows[0].share < 1.0
