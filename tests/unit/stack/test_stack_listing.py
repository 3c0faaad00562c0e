"""Order, pages and field masks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_resume_provider.testing.batch import fieldmask
from airflow_resume_provider.testing.batch.api_errors import ApiError
from airflow_resume_provider.testing.batch.listing import order_of, page, page_size_of
from airflow_resume_provider.testing.batch.messages import Job, ListJobsResponse

REQUEST = ("jobs", "parent", "filter", "order")


def jobs(count: int) -> list[object]:
    """Jobs named 000, 001 …"""
    return [Job(name=f"{number:03}") for number in range(count)]


@given(st.integers(0, 40), st.integers(1, 15))
def test_the_pages_make_up_the_list(count: int, size: int) -> None:
    """Every item once, in order, no page too long, no empty last page."""
    items, token, seen = jobs(count), "", []
    while True:
        chosen, token = page(items, size, token, REQUEST)
        assert len(chosen) <= size
        seen += chosen
        if not token:
            break
        assert chosen
    assert seen == items


@given(st.integers(2, 20), st.data())
def test_a_deletion_between_pages_repeats_and_skips_nothing_else(count: int, data: st.DataObject) -> None:
    """Whatever is deleted after the first page, the others come exactly once."""
    items = jobs(count)
    size = data.draw(st.integers(1, count - 1))
    _, token = page(items, size, "", REQUEST)
    gone = data.draw(st.sampled_from(items))
    rest = [item for item in items if item is not gone]
    second, _ = page(rest, count, token, REQUEST)
    expected = [item for item in items[size:] if item is not gone]
    assert [item.name for item in second] == [item.name for item in expected]  # type: ignore[attr-defined]


@pytest.mark.parametrize("order_by", ["name", "name desc", "create_time", "create_time desc"])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_deleting_each_page_before_the_next_skips_nothing(order_by: str, size: int) -> None:
    """A cleaner that lists, deletes and lists on meets every job exactly once, in each order."""
    order = order_of(order_by)
    left, token, seen = jobs(10), "", []
    while True:
        chosen, token = page(left, size, token, REQUEST, order)
        seen += [item.name for item in chosen]
        left = [item for item in left if item not in chosen]
        if not token:
            break
    assert seen == sorted((f"{n:03}" for n in range(10)), reverse=order_by.endswith("desc"))


@pytest.mark.parametrize("token", ["x", "////", "bnVsbA", "WzEsMiwzXQ", "é"])
def test_a_foreign_page_token_is_refused(token: str) -> None:
    """Also one that was given out for another request."""
    with pytest.raises(ApiError, match="page_token"):
        page(jobs(3), 1, token, REQUEST)


def test_a_page_token_belongs_to_its_request() -> None:
    """With another filter it is an invalid argument, not another list."""
    _, token = page(jobs(3), 1, "", REQUEST)
    with pytest.raises(ApiError, match="page_token"):
        page(jobs(3), 1, token, ("jobs", "parent", "other", "order"))


def test_page_sizes_are_bounded() -> None:
    """0 means the default, more than the limit means the limit, negative is refused."""
    assert [page_size_of(size, 100) for size in (0, 7, 100, 5000)] == [100, 7, 100, 100]
    with pytest.raises(ApiError, match="page_size"):
        page_size_of(-1, 100)


@pytest.mark.parametrize(
    "text", ["name", "name desc", "create_time", "create_time desc", "", "createTime  desc"]
)
def test_documented_orders_are_supported(text: str) -> None:
    """And nothing else."""
    key, descending = order_of(text)
    assert descending is text.endswith("desc")
    key(Job())


@pytest.mark.parametrize("text", ["uid", "name up", "name,create_time", "desc"])
def test_other_orders_are_refused(text: str) -> None:
    """An unknown order is an invalid argument."""
    with pytest.raises(ApiError, match="order_by"):
        order_of(text)


def masked(mask: str) -> dict[str, object]:
    """A response with one job, through a mask."""
    from airflow_resume_provider.testing.batch.messages import to_dict

    job = Job(name="n", uid="u", labels={"a": "b"})
    job.status.state = 3
    job.status.run_duration.seconds = 5
    response = ListJobsResponse(jobs=[job], next_page_token="t")
    return to_dict(fieldmask.apply(response, fieldmask.parse(mask, ListJobsResponse)))


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("jobs.name", {"jobs": [{"name": "n"}]}),
        ("jobs.name,nextPageToken", {"jobs": [{"name": "n"}], "nextPageToken": "t"}),
        ("jobs(name,status/state)", {"jobs": [{"name": "n", "status": {"state": "RUNNING"}}]}),
        ("jobs/labels", {"jobs": [{"labels": {"a": "b"}}]}),
        ("next_page_token", {"nextPageToken": "t"}),
        ("jobs(status(state))", {"jobs": [{"status": {"state": "RUNNING"}}]}),
    ],
)
def test_a_field_mask_keeps_what_it_names(mask: str, expected: dict[str, object]) -> None:
    """In every spelling that Google's APIs take."""
    assert masked(mask) == expected


@pytest.mark.parametrize("mask", ["", "*"])
def test_no_mask_keeps_everything(mask: str) -> None:
    """As if it had not been given."""
    assert set(masked(mask)) == {"jobs", "nextPageToken"}


@pytest.mark.parametrize("mask", ["nothing", "jobs.nothing", "jobs(name", "jobs)name", "jobs.name.more"])
def test_a_field_mask_on_nothing_is_refused(mask: str) -> None:
    """A path that does not exist is an invalid argument."""
    with pytest.raises(ApiError, match="field mask"):
        masked(mask)
