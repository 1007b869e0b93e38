"""The text of answers."""

from vtool.config.load import load_run
from vtool.models.generate import shown_answer
from vtool.models.processor import new_processor


def test_an_answer_keeps_the_tokens_around_its_boxes_and_no_other_special_one() -> None:
    run = load_run("digits").run
    tokenizer = new_processor(run.model, run.data.image, ["a cat (1,2)"], run.data.video).tokenizer
    around = ["<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"]
    said = "".join((around[0], "a cat", around[1], around[2], "(1,2),(1,2)", around[3]))
    ids = tokenizer(f"a {said}<|im_end|>", add_special_tokens=False).input_ids
    assert shown_answer(tokenizer, ids) == f"a {said}", "they are text to this tokenizer"
    tokenizer.add_special_tokens({"additional_special_tokens": [*around, "<|quad_end|>"]})
    ids = tokenizer(f"a {said}<|im_end|>", add_special_tokens=False).input_ids
    assert set(tokenizer.convert_tokens_to_ids(around)) <= set(ids)
    assert shown_answer(tokenizer, ids) == f"a {said}"
    assert around[2] not in tokenizer.decode(ids, skip_special_tokens=True)
