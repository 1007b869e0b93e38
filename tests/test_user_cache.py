"""The user's cache folder."""

from pathlib import Path

import pytest

from vtool.user_cache import user_cache


def test_it_is_below_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache("arrow") == tmp_path / ".cache/vtool/arrow"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert user_cache("arrow") == tmp_path / "other/vtool/arrow"


def test_a_user_without_a_home_has_a_folder_that_nothing_can_be_kept_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container may run under a number that no user has."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    folder = user_cache("arrow")
    assert not folder.exists()
    with pytest.raises(OSError, match="Not a directory"):
        folder.mkdir(parents=True, exist_ok=True)
