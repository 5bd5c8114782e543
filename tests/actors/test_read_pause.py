"""Reasons to pause reading."""

from actors.node.read_pause import ReadPause


def test_names_of_reasons() -> None:
    assert ReadPause.names(0) == []
    assert ReadPause.names(ReadPause.LOG | ReadPause.TURN) == ["log", "turn"]
    everything = ReadPause.names(-1)
    assert len(everything) == 10
    assert all(name.isidentifier() and not name.startswith("_") for name in everything)
