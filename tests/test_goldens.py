"""`make goldens` has nothing to renew."""

from tests.goldens import ROOT, generated


def test_every_generated_file_is_as_its_code_has_it() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "renew them, and look at the difference: make goldens"
