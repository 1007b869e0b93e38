"""A tokenizer whose tokens are words: w2, w3, … and the marks of a chat."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = ["<unk>", "<eos>", *(f"w{number}" for number in range(2, 509))]
WORDS += ["<user>", "<assistant>", "<pad>"]
CHAT = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' <eos> ' "
    "}}{% endfor %}{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def words(ids):
    return " ".join(WORDS[number] for number in ids)


def tokenizer(pad="<pad>"):
    own = Tokenizer(models.WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    made = PreTrainedTokenizerFast(
        tokenizer_object=own, unk_token="<unk>", eos_token="<eos>", pad_token=pad
    )
    made.chat_template = CHAT
    return made
