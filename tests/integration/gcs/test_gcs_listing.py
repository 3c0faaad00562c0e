"""Listing: pages, prefixes, delimiters, offsets, globs, versions, in both APIs."""

from __future__ import annotations

import obstore
import pytest

NAMES = ["a", "a/1", "a/2", "a/b/3", "a0", "b/x", "b/y/z", "c", "ä/1", "🙂"]


@pytest.fixture
def filled(bucket):
    """A bucket with nested names."""
    for name in NAMES:
        bucket.blob(name).upload_from_string(name)
    return bucket


def listed(bucket, **options):
    iterator = bucket.list_blobs(**options)
    names = [blob.name for blob in iterator]
    return names, sorted(iterator.prefixes)


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("options", "names", "prefixes"),
    [
        ({}, NAMES, []),
        ({"prefix": "a"}, ["a", "a/1", "a/2", "a/b/3", "a0"], []),
        ({"prefix": "a/"}, ["a/1", "a/2", "a/b/3"], []),
        ({"delimiter": "/"}, ["a", "a0", "c", "🙂"], ["a/", "b/", "ä/"]),
        ({"prefix": "a/", "delimiter": "/"}, ["a/1", "a/2"], ["a/b/"]),
        ({"prefix": "b", "delimiter": "/"}, [], ["b/"]),
        ({"start_offset": "a/2", "end_offset": "b/y/z"}, ["a/2", "a/b/3", "a0", "b/x"], []),
        ({"start_offset": "a/b", "delimiter": "/"}, ["a0", "c", "🙂"], ["a/", "b/", "ä/"]),
        ({"match_glob": "**/[1-2]"}, ["a/1", "a/2", "ä/1"], []),
        ({"match_glob": "a/*"}, ["a/1", "a/2"], []),
        ({"match_glob": "{a,c}"}, ["a", "c"], []),
        ({"match_glob": "?"}, ["a", "c", "🙂"], []),
        ({"prefix": "nothing"}, [], []),
        ({"prefix": "a/1"}, ["a/1"], []),
        ({"delimiter": "/1"}, ["a", "a/2", "a/b/3", "a0", "b/x", "b/y/z", "c", "🙂"], ["a/1", "ä/1"]),
    ],
)
def test_listings_agree_in_pages_of_any_size(filled, options, names, prefixes, page_size):
    """The same names and prefixes come in UTF-8 order, however small the pages are."""
    assert listed(filled, page_size=page_size, **options) == (names, prefixes)


def test_directory_placeholders_can_be_listed(bucket):
    """includeTrailingDelimiter shows the object `d/` beside the prefix `d/`."""
    for name in ("d/", "d/x"):
        bucket.blob(name).upload_from_string("")
    assert listed(bucket, delimiter="/") == ([], ["d/"])
    assert listed(bucket, delimiter="/", include_trailing_delimiter=True) == (["d/"], ["d/"])


def test_a_page_has_at_most_a_thousand_names(http, bucket, gcs):
    """Soft limit: clients that do not follow nextPageToken lose names, and so do tests that should."""
    store = gcs.obstore(bucket.name)
    for number in range(1005):
        obstore.put(store, f"n{number:04}", b"")
    page = http("GET", f"/storage/v1/b/{bucket.name}/o?maxResults=5000").json()
    assert len(page["items"]) == 1000
    assert "nextPageToken" in page
    assert len(list(bucket.list_blobs())) == 1005
    assert len(obstore.list(store).collect()) == 1005
    assert http("GET", f"/{bucket.name}?list-type=2").text.count("<Key>") == 1000


@pytest.mark.parametrize(
    "query", ["pageToken=nonsense", "maxResults=abc", "maxResults=-1", "matchGlob=*&delimiter=x"]
)
def test_bad_listing_parameters_are_refused(http, bucket, query):
    """400, not a guess."""
    assert http("GET", f"/storage/v1/b/{bucket.name}/o?{query}").status_code == 400


def test_obstore_lists_as_google_cloud_storage_does(filled, store):
    """Prefixes, offsets and delimiters over the XML API."""
    assert [meta["path"] for meta in obstore.list(store).collect()] == NAMES
    assert [m["path"] for m in obstore.list(store, offset="a/2").collect()] == NAMES[3:]
    result = obstore.list_with_delimiter(store, "a")
    assert [meta["path"] for meta in result["objects"]] == ["a/1", "a/2"]
    assert result["common_prefixes"] == ["a/b"]
    assert obstore.list_with_delimiter(store)["common_prefixes"] == ["a", "b", "ä"]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_both_xml_listings_page_to_the_end(http, filled, size):
    """Version 1 by marker and version 2 by token give every key and prefix once."""
    import re

    for second in (False, True):
        keys: list[str] = []
        token, more = "", True
        while more:
            query = {"max-keys": str(size), "delimiter": "/"}
            query |= {"list-type": "2"} if second else {}
            if token:
                query["continuation-token" if second else "marker"] = token
            text = http("GET", f"/{filled.name}", params=query).content.decode()
            keys += re.findall(r"<Key>(.*?)</Key>", text)
            keys += re.findall(r"<CommonPrefixes><Prefix>(.*?)</Prefix>", text)
            more = "<IsTruncated>true" in text
            found = re.search(r"<Next(?:ContinuationToken|Marker)>(.*?)</Next", text)
            token = found[1] if found else ""
        assert sorted(keys) == sorted(["a", "a0", "c", "🙂", "a/", "b/", "ä/"])


def test_special_characters_survive_xml(bucket, store, http):
    """Ampersands, angle brackets and quotes are escaped in listings, and encoding-type=url encodes."""
    for name in ("a&b", "<tag>", "q\"'", "100%"):
        bucket.blob(name).upload_from_string("1")
    listed = {meta["path"] for meta in obstore.list(store).collect()}
    assert listed == {"a&b", "<tag>", "q\"'", "100%"}
    assert "<Key>%3Ctag%3E</Key>" in http("GET", f"/{bucket.name}?encoding-type=url").text


def test_versions_page_too(bucket):
    """Generations of one name are listed oldest first, over page borders."""
    bucket.versioning_enabled = True
    bucket.patch()
    for name in ("a", "b"):
        for _ in range(3):
            bucket.blob(name).upload_from_string("x")
    found = [(b.name, b.generation) for b in bucket.list_blobs(versions=True, page_size=2)]
    assert len(found) == 6
    assert found == sorted(found)


def test_listing_sees_what_was_written_at_once(bucket, store):
    """Listings are strongly consistent."""
    for number in range(20):
        obstore.put(store, f"k{number:02}", b"")
        assert len(list(bucket.list_blobs())) == number + 1
    for number in range(20):
        obstore.delete(store, f"k{number:02}")
        assert len(obstore.list(store).collect()) == 19 - number
