"""The file that a name without a file was meant for: names that differ by form alone."""

import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from vtool.diagnostics.near_miss import did_you_mean, near, one_of

_MOST_COMPARED = 200
"""Names of a folder that are compared letter by letter: there may be a row for each of millions."""
_MOST_NAMED = 3
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad]")
_EXTENSION = re.compile(r"\.([A-Za-z]\w{0,9}|7z|3gp)?$")
_QUERY = re.compile(
    r"(\.(?:png|jpe?g|gif|webp|bmp|tiff?|mp4|avi|mov|mkv|webm))[?#].*", re.IGNORECASE
)
"""An address's query or fragment: behind an extension, for a name itself may have a # too."""


def _without_blanks(name: str) -> str:
    return " ".join(_INVISIBLE.sub("", name).split())


def _one_form(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _without_query(name: str) -> str:
    return _QUERY.sub(r"\1", name)


def _without_suffix(name: str) -> str:
    """Return a name without its extension; what follows the dot of a version is none."""
    return _EXTENSION.sub("", name) or name


_FORMS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("its percent-encoding (%20 for a blank)", unquote),
    ("what follows ? or #", _without_query),
    ("its Unicode form", _one_form),
    ("blanks, or other characters that are not seen", _without_blanks),
    ("upper and lower case", str.casefold),
)
"""Differences of names that look alike or mean the same, and what takes each away."""
_SUFFIX = ("the extension", _without_suffix)


def quoted_name(name: str) -> str:
    """Return a name so that its blanks, and what is not seen of it, are seen."""
    plain = name.isascii() and name.isprintable() and not re.search(r"[\s%\\\"']", name)
    return name if plain else f'"{_seen(name)}"'


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def _seen(name: str) -> str:
    """Return a name with codes in the place of characters that are not seen by themselves.

    So are parts of letters that another form has as one, and blanks that follow each other.
    """
    composed = unicodedata.is_normalized("NFC", name)
    shown = "".join(
        char
        if char.isprintable()
        and not unicodedata.combining(char)
        and (composed or (unicodedata.is_normalized("NFC", f"a{char}a") and not _is_jamo(char)))
        else f"\\u{ord(char):04x}"
        for char in name
    )
    return re.sub("  +", lambda blanks: "\\u0020" * len(blanks[0]), shown)


def _is_jamo(char: str) -> bool:
    """Return whether a character is a part of a syllable of Hangul."""
    return "\u1100" <= char <= "\u11ff"


@dataclass(frozen=True, slots=True)
class NearFiles:
    """Files that are there, and one of which was probably meant."""

    paths: Sequence[str]
    """The paths as they are to be written: relative where the given one is."""
    differences: Sequence[str] = ()
    """In what the one path differs from the given one; none where it is merely similar."""

    @property
    def there(self) -> str:
        """Return the files that are there, as a message has them in brackets."""
        found = one_of(map(_seen, self.paths))
        differences = " and ".join(self.differences)
        return f"there is {found}" + (f", which differs in {differences}" if differences else "")

    @property
    def question(self) -> str:
        """Return the question whether one of them was meant, as help has it."""
        return str(did_you_mean([*map(_seen, self.paths)]))


def near_file(given: str, folder: Path | str = ".", *, folders: bool = False) -> NearFiles | None:
    """Return the file that was probably meant by a name that is not there; None: none is near.

    Args:
        given: the path as it is written: `\\` or percent signs may be in it.
        folder: what it is relative to.
        folders: it may be a folder, too.
    """
    try:
        return _near_file(given, Path(folder), folders)
    except (OSError, ValueError):
        return None


def _near_file(given: str, folder: Path, folders: bool) -> NearFiles | None:
    text = given.removeprefix("file://")
    if os.path.lexists(folder / text):  # also a link to what is not there
        return None
    if (bare := re.sub("^(file:|localhost(?=/))", "", text)) != text:
        text = bare
        if (folder / text).is_file():
            return NearFiles((text,), ("the address before it",))
    slashes = text.replace("\\", "/")
    found = next(_by_form(text, folder, folders), None)
    if found is None and slashes != text:
        found = next(_by_form(slashes, folder, folders, "/ for \\"), None)
    return found or _similar(Path(slashes), folder, folders)


def _by_form(text: str, folder: Path, folders: bool, *differences: str) -> Iterator[NearFiles]:
    """Yield files whose names differ by form, or that are in another folder; the likeliest first.

    Args:
        differences: of this spelling from the given one.
    """
    root = "/" if text.startswith("/") else ""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    for names, more in _walk(Path(root) if root else folder, parts, folders):
        yield _near(os.path.join(root, *names), [*differences, *more])
    moved = "the folder before it"
    # a folder of another machine, or one too many or too few, before the rest of the path
    for begin in range(len(parts)):
        for names, more in _walk(folder, parts[begin:], folders):
            yield _near(os.path.join(*names), [*differences, moved, *more])
    for inside in _names(str(folder))[:_MOST_COMPARED]:
        if parts and (folder / inside / parts[-1]).is_file():
            yield _near(os.path.join(inside, parts[-1]), [*differences, moved])
    for begin in range(len(parts)):
        for names, more in _walk(folder / "..", parts[begin:], folders):
            yield _near(os.path.join("..", *names), [*differences, moved, *more])


def _similar(asked: Path, folder: Path, folders: bool) -> NearFiles | None:
    """Return the files of a folder whose names are similar, letter by letter."""
    names = _names(str((folder / asked).parent)) if asked.name else []
    if len(names) > _MOST_COMPARED:
        return None
    if not folders:  # of numbered files, the next one is another picture
        names = [name for name in names if _digits(name) == _digits(asked.name)]
    # the extension is the same of all, and says nothing
    stems = near(_without_suffix(asked.name), map(_without_suffix, names))
    similar = [str(asked.with_name(one)) for one in names if _without_suffix(one) in stems]
    return NearFiles(similar[:_MOST_NAMED]) if similar else None


def _near(path: str, differences: Sequence[str]) -> NearFiles:
    return NearFiles((path,), tuple(dict.fromkeys(differences)))


def _walk(
    folder: Path, parts: Sequence[str], folders: bool
) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the names of a path below a folder that `parts` are near to, and the differences."""
    if not parts:
        return
    first, rest = parts[0], parts[1:]
    for name in _alike(folder, first, last=not rest):
        there = folder / name
        if rest:
            for found, differences in _walk(there, rest, folders):
                yield [name, *found], [*_differences(first, name), *differences]
        elif there.is_file() or (folders and there.is_dir()):
            yield [name], _differences(first, name)


def _alike(folder: Path, name: str, *, last: bool) -> list[str]:
    if name == "..":
        return [name]
    if os.path.lexists(folder / name):
        return [name]
    by_name, by_stem = _folded(str(folder), _changed(folder))
    found = by_name.get(_fold(name), ())
    return list(found or (by_stem.get(_without_suffix(_fold(name)), ()) if last else ()))


def _changed(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _fold(name: str) -> str:
    for _, form in _FORMS:
        name = form(name)
    return name


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


@lru_cache(maxsize=16)
def _folded(folder: str, changed: int) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the names of a folder by their common form, with and without extension.

    Args:
        changed: when the folder was changed: names of before are not those of now.
    """
    by_name: dict[str, list[str]] = {}
    by_stem: dict[str, list[str]] = {}
    for name in _names(folder):
        folded = _fold(name)
        by_name.setdefault(folded, []).append(name)
        by_stem.setdefault(_without_suffix(folded), []).append(name)
    return by_name, by_stem


def _differences(name: str, other: str) -> list[str]:
    """Return how two names differ: each form without which they would still."""
    forms = list(_FORMS)
    if _fold(name) != _fold(other):
        forms.append(_SUFFIX)
    return [
        words
        for words, left_out in forms
        if _with(forms, name, left_out) != _with(forms, other, left_out)
    ]


def _with(forms: Sequence[tuple[str, Callable[[str], str]]], name: str, left_out: object) -> str:
    for _, form in forms:
        if form is not left_out:
            name = form(name)
    return name
