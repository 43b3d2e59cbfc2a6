"""What is counted is told to whoever listens, and changes nothing."""

from dcray.progress import counted, heard_by


def test_each_item_is_told_when_it_is_done():
    said = []
    with heard_by(lambda *told: said.append(told)):
        found = [(item, len(said)) for item in counted("laws", ["a", "b"])]
    assert found == [("a", 1), ("b", 2)]
    assert said == [("laws", 0, 2), ("laws", 1, 2), ("laws", 2, 2)]


def test_without_a_length_the_total_is_not_known():
    said = []
    with heard_by(lambda *told: said.append(told)):
        assert list(counted("rows", iter("xy"))) == ["x", "y"]
    assert said == [("rows", 0, None), ("rows", 1, None), ("rows", 2, None)]


def test_nobody_listens_by_default_nor_after_the_block():
    said = []
    with heard_by(lambda *told: said.append(told)):
        pass
    assert list(counted("laws", [1, 2])) == [1, 2]
    assert said == []
