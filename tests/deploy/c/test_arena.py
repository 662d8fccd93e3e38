"""The arena: nothing that lives at the same time overlaps, and little is wasted."""

from hypothesis import given
from hypothesis import strategies as st

from pdecnn.deploy.c.arena import Buffer, lower_bound, plan

SPANS = st.tuples(st.integers(1, 300), st.integers(0, 12), st.integers(0, 6))


@given(st.lists(SPANS.map(lambda q: Buffer(q[0], q[1], q[1] + q[2])), max_size=14))
def test_buffers_that_live_together_do_not_overlap(buffers):
    places, total = plan(buffers)
    assert len(places) == len(buffers)
    for i, (a, start) in enumerate(zip(buffers, places, strict=True)):
        assert 0 <= start <= total - a.size
        for b, other in zip(buffers[:i], places[:i], strict=True):
            together = a.first <= b.last and b.first <= a.last
            assert not together or start + a.size <= other or other + b.size <= start
    assert lower_bound(buffers) <= total <= 1.6 * lower_bound(buffers)


def test_a_chain_needs_its_two_largest_neighbours():
    sizes = [100, 400, 200, 60]
    assert plan([Buffer(n, i, i + 1) for i, n in enumerate(sizes)])[1] == 600
