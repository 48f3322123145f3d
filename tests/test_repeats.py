"""Repeated pairs are found whatever the share of them that is looked at together."""

from hypothesis import given, settings
from hypothesis import strategies as st
from repeats import first_occurrences


@settings(deadline=None)
@given(st.lists(st.integers(0, 30)), st.integers(1, 20))
def test_the_first_of_each_is_kept(tmp_path_factory, numbers, at_once):
    path = tmp_path_factory.mktemp("digests") / "digests"
    # equal in one half, different in the other: both halves count
    path.write_bytes(b"".join((n % 7).to_bytes(8, "little") + (n // 7).to_bytes(8, "little") for n in numbers))
    seen = set()
    expected = [not (n in seen or seen.add(n)) for n in numbers]
    assert first_occurrences(path, at_once).tolist() == expected
