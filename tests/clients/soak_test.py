"""The short form of soak.py."""

import soak


def test_fifty_streams_for_ten_seconds():
    assert soak.soak(50, 10, 1) == []
