"""Templates and files of pages."""

from pathlib import Path

import pytest

from vtool.report.files import load_template


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of compiled templates, of a user who has none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/vtool/templates"


def _page(folder: Path, text: str) -> str:
    (folder / "page.j2").write_text(text)
    load_template.cache_clear()  # as another process
    return load_template("page.j2", folder).render(name="<a>")


def test_a_compiled_template_is_kept_and_follows_its_source(compiled: Path, tmp_path: Path) -> None:
    assert _page(tmp_path, "one {{ name }}") == "one &lt;a&gt;"
    (kept,) = compiled.rglob("*.cache")
    assert not kept.parent.stat().st_mode & 0o077
    assert _page(tmp_path, "one {{ name }}") == "one &lt;a&gt;"
    assert _page(tmp_path, "two {{ name }}") == "two &lt;a&gt;"


@pytest.mark.parametrize("keep", [0, 5, 40, -3])
def test_a_damaged_compiled_template_is_compiled_again(
    compiled: Path, tmp_path: Path, keep: int
) -> None:
    _page(tmp_path, "one {{ name }}")
    (kept,) = compiled.rglob("*.cache")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:keep])
    assert _page(tmp_path, "one {{ name }}") == "one &lt;a&gt;"
    assert kept.read_bytes() == whole


def test_a_folder_that_others_may_write_into_is_not_read(compiled: Path, tmp_path: Path) -> None:
    """A compiled template is code; this one says something else than its source does."""
    _page(tmp_path, "one {{ name }}")
    (kept,) = compiled.rglob("*.cache")
    whole = kept.read_bytes()
    assert whole.count(b"one ") == 1
    kept.write_bytes(whole.replace(b"one ", b"two "))
    assert _page(tmp_path, "one {{ name }}") == "two &lt;a&gt;"  # what is kept is what is run
    kept.parent.chmod(0o777)
    assert _page(tmp_path, "one {{ name }}") == "one &lt;a&gt;"


def test_a_page_is_written_where_nothing_can_be_kept(compiled: Path, tmp_path: Path) -> None:
    compiled.parent.parent.mkdir(parents=True)
    compiled.parent.write_text("no folder")
    assert _page(tmp_path, "one {{ name }}") == "one &lt;a&gt;"
