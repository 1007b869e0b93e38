"""The text of tokens in a row: words and ids do not run into each other."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from vtool.diagnostics.result import Result
from vtool.watch.text import describe_results
from vtool.watch.token_texts import token_text, token_texts


def byte_level() -> Any:
    """Return a tokenizer with a token for each byte, two words, and an end mark."""
    letters = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("Ġ", "a"), ("Ġa", "b")]
    known = {**letters, "Ġa": 256, "Ġab": 257}
    made = Tokenizer(models.BPE(known, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>", special=True)])
    return made


def metaspace() -> Any:
    words = {"▁the": 0, "▁cat": 1, "s": 2, "<0xE2>": 3, "<0x82>": 4, "<0xAC>": 5, "<unk>": 6}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    replace = decoders.Replace("▁", " ")
    strip = decoders.Strip(" ", 1, 0)
    made.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    return made


def word_piece() -> Any:
    made = Tokenizer(models.WordPiece({"the": 0, "cat": 1, "##s": 2, "[UNK]": 3}))
    made.decoder = decoders.WordPiece()
    return made


def words() -> Any:
    return Tokenizer(models.WordLevel({"one": 0, "two": 1, "<unk>": 2}, unk_token="<unk>"))


def test_words_of_a_byte_level_tokenizer_keep_their_blanks() -> None:
    made = byte_level()
    ids = made.encode("ab ab a<end>", add_special_tokens=False).ids
    assert token_texts(made, ids) == ["a", "b", " ab", " a", "<end>"]


def test_a_character_of_several_tokens_is_shown_once() -> None:
    made = byte_level()
    ids = made.encode("a€ ab😀b", add_special_tokens=False).ids
    assert len(ids) == 10
    assert token_texts(made, ids) == ["a", "€", "", "", " ab", "😀", "", "", "", "b"]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_part_of_a_character_is_marked(cut: int) -> None:
    made = byte_level()
    ids = made.encode("😀", add_special_tokens=False).ids[:cut]
    assert token_texts(made, [257, *ids, 256]) == [" ab", *[f"⟨{one}⟩" for one in ids], " a"]


@pytest.mark.parametrize("made", [byte_level(), metaspace(), words(), word_piece()])
def test_ids_that_a_tokenizer_does_not_have_are_marked(made: Any) -> None:
    texts = token_texts(made, [1, 151646, 151647, 0])
    assert texts[1:3] == ["⟨151646⟩", "⟨151647⟩"]
    assert texts[0]
    assert texts[3]
    assert token_text(made, 151646) == "⟨151646⟩"


def test_words_of_other_tokenizers_are_apart() -> None:
    assert token_texts(metaspace(), [0, 1, 2, 3, 4, 5, 1]) == [
        "the",
        " cat",
        "s",
        "€",
        "",
        "",
        " cat",
    ]
    assert token_texts(word_piece(), [0, 1, 2, 0]) == ["the", " cat", "s", " the"]
    assert token_texts(words(), [0, 1, 1]) == ["one", " two", " two"]


def test_without_a_tokenizer_ids_are_apart() -> None:
    assert token_texts(None, [5, 6]) == ["5 ", "6 "]
    assert token_texts(None, []) == []


def test_repeats_are_counted_apart_from_what_follows() -> None:
    row = [*["⟨7⟩"] * 5, "b", *[" c"] * 4, "d", *["5 "] * 4, "6 ", *[""] * 5, "e"]
    shown: dict[str, Any] = {"model": {}, "number": 0, "ranks": 1, "tokens": 2, "steps": 1}
    shown |= {"micro_batches": 1, "damaged": 0, "unended": 0}
    shown["rows"] = [{"tokens": [{"text": text, "weight": None} for text in row]}]
    *_, line = describe_results([Result("run", "clean", {}, (), {"watch": shown})])
    assert line.strip() == "⟨7⟩ x 5 b c x 4 d5 x 4 6 e"
