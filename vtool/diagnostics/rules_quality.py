"""Rules VT630 to VT637, VT656 to VT670: rows that are repeated, shared, odd, taught otherwise."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="rows-in-two-splits",
        code="VT630",
        summary="Rows that the model is evaluated on are rows that it is trained on.",
        why=(
            "The score is then also of what was learnt by heart. Rows are compared as they are"
            " learnt: their tokens, labels, images and videos."
        ),
        bad="a test file into which lines of the training file were copied",
        good="splits that have no row in common",
        fix=(
            "Take the rows out of one of the splits. In data.test they end the run, above"
            " data.max_overlap_rows; in data.validation they are reported."
        ),
        stage="references",
    ),
    Rule(
        name="pictures-in-two-splits",
        code="VT631",
        summary="Rows to evaluate on show pictures that are trained on, with other texts.",
        why="What the model knows of a picture from training may help it to answer.",
        bad="questions about a picture, some of them in data.train and some in data.test",
        good="all questions about a picture in one split",
        fix="Nothing, if it is meant. Else divide the rows by their pictures.",
        severity="note",
        stage="references",
    ),
    Rule(
        name="duplicate-rows",
        code="VT632",
        summary="A split has rows more than once, with the same text and pictures.",
        why="They are learnt more often than others, and an evaluation counts them so.",
        bad="a file that two exports were appended to",
        good="each row once",
        fix="Nothing, if it is meant. Else remove the repeated lines.",
        severity="note",
        stage="quality",
    ),
    Rule(
        name="several-answers",
        code="VT633",
        summary="A question about the same pictures has several answers.",
        why=(
            "Captions have many right answers. Where there is one, some of them are wrong, and the"
            " model learns to guess."
        ),
        bad="the same receipt, once with the total 12.80 and once with 21.80",
        good="one answer to a question that has one",
        fix="Look at the rows that are named; nothing is to be done where several are right.",
        severity="note",
        stage="quality",
    ),
    Rule(
        name="one-answer",
        code="VT634",
        summary="More than half of the rows have one and the same answer.",
        why="The loss falls and the accuracy is high where the model says nothing else.",
        bad="9,000 of 10,000 rows that are answered with `no`",
        good="answers in the shares that a user's questions have",
        fix="Nothing, if questions are like that. Compare the accuracy with that of this answer.",
        severity="note",
        stage="quality",
    ),
    Rule(
        name="damaged-text",
        code="VT635",
        summary="Rows have characters that were lost, or text that was encoded twice.",
        why="The model learns to write it.",
        bad="`cafÃ© crÃ¨me`, which was UTF-8 and has been read as something else",
        good="`café crème`",
        fix="Make the rows again from their source, and read it as UTF-8.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="tokens-of-other-models",
        code="VT636",
        summary="Rows have control tokens of other models' templates, which are plain text here.",
        why="Rows that a template of another model was applied to are learnt with its marks.",
        bad='{"role": "assistant", "content": "A cat.</s>"}',
        good='{"role": "assistant", "content": "A cat."}',
        fix="Remove the marks: this model's chat template writes its own.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="unusual-turns",
        code="VT637",
        summary="Rows have a system turn that is not the first, or two user turns in a row.",
        why="Often an answer is missing between them, or two chats were joined.",
        bad="a user's turn that is followed by another one of the user's",
        good="turns of the user and the assistant, one after the other",
        fix="Nothing, if it is meant. Else look at the rows that are named.",
        severity="note",
        stage="quality",
    ),
    Rule(
        name="repeated-ids",
        code="VT656",
        summary="Rows of a file have the same id.",
        why=(
            "Often two exports were joined. What goes by the id elsewhere, such as a list of rows"
            " to leave out, means several rows."
        ),
        bad='two rows with `"id": "17"` in one file',
        good="an id of its own for each row, or none",
        fix="Nothing, if it is meant: vtool goes by a row's place. Else look at the rows named.",
        severity="note",
        stage="quality",
    ),
    Rule(
        name="files-outside-folder",
        code="VT657",
        summary="Rows have images or videos outside of the folder of their rows file.",
        why=(
            "They are not there where the folder is copied to, and a stranger's rows can name any"
            " file."
        ),
        bad='rows.jsonl in data/ with `"images": ["/home/me/cat.png"]`',
        good='`"images": ["images/cat.png"]`, in data/images',
        fix="Nothing, if it is meant: data.root names the folder that all of them have to be in.",
        severity="note",
        stage="quality",
    ),
    Rule(
        name="more-than-answer-supervised",
        code="VT667",
        summary="The chat template writes into answers what neither the rows nor inference have.",
        why=(
            "An empty thought before each answer teaches a model never to think: its prompt leaves"
            " a thought open at inference (LLaMA-Factory#9092)."
        ),
        bad="Qwen3.5's template, and answers without thoughts: `\n</think>\n\nred` is learnt",
        good="data.template_arguments={enable_thinking: false}: the empty thought is prompt",
        fix=(
            "data.template_arguments={enable_thinking: false}, where the template reads it, and the"
            " same at inference; or rows with thoughts."
        ),
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="half-a-thought",
        code="VT680",
        summary="Answers have <think> without </think>, or </think> without <think>.",
        why=(
            "A generation that was cut off, or cut at the wrong place: the model learns to think"
            " without an end, and whoever splits its answers finds no answer."
        ),
        bad="<think>\nIt looks red, so the color is",
        good="<think>\nIt looks red.\n</think>\n\nred",
        fix="Leave these rows out, or write the missing mark.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="prompt-supervised",
        code="VT681",
        summary="The chat template's prompt for an answer leaves out the role that begins it.",
        why=(
            "What the prompt of inference has not is learnt: the model writes its role before each"
            " answer, and a server whose template asks as usual gives it another prompt."
        ),
        bad="a template without {% if add_generation_prompt %}: <|im_start|>assistant is learnt",
        good="{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %} at its end",
        fix="Take the published template.",
        stage="quality",
    ),
    Rule(
        name="templates-differ",
        code="VT668",
        summary="Two files of a model's folder have chat templates, and they differ.",
        why="A server or another release may take the other one: prompts are not the same.",
        bad="chat_template.jinja that was changed, beside tokenizer_config.json's as it was",
        good="one template, in chat_template.jinja",
        fix="Remove the one that is not meant.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="mark-not-token",
        code="VT673",
        summary="The chat template writes a mark that the tokenizer spells in several tokens.",
        why=(
            "The model has learnt the mark as one token: other ids are learnt in its place, and no"
            " turn begins or ends as it does at inference."
        ),
        bad="<|im_start|> in the template, and a tokenizer without it beside <|im_end|>",
        good="the tokenizer and the chat template of one model",
        fix="Take both from one model, or add the tokens to the tokenizer.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="generation-marks-differ",
        code="VT674",
        summary="A chat template's {% generation %} marks are not around what inference writes.",
        why=(
            "A trainer that learns what is between them, as TRL with assistant_only_loss, teaches a"
            " part of the prompt, or leaves the end of the answer out."
        ),
        bad="{% generation %}<think>\n{{ answer }}, where the generation prompt ends in <think>\n",
        good="marks from behind the generation prompt to the token at which inference stops",
        fix="Nothing is to be done here: vtool supervises what inference writes.",
        severity="note",
        stage="quality",
    ),
    Rule(
        name="end-not-listed",
        code="VT676",
        summary="generation_config.json does not list the token that ends the answers.",
        why=(
            "vLLM also stops at the tokenizer's eos_token; transformers' generate stops at the"
            " listed ones alone, and writes on behind every answer that was learnt."
        ),
        bad="eos_token_id: 151643 (<|endoftext|>), where answers end with <|im_end|>",
        good="eos_token_id: [151645, 151643]",
        fix="Add the token's id to eos_token_id in generation_config.json.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="processor-backend-differs",
        code="VT672",
        summary="Images are processed by PIL in training, and by torchvision in a server.",
        why="Each resizes by its own arithmetic: the model is shown other pixels when it is used.",
        bad="data.image.backend=pil, and vLLM as it starts by default",
        good="data.image.backend=torchvision, or `vtool serve`, which tells vLLM what was used",
        fix="Use one backend in both places.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="lengths-not-validated",
        code="VT658",
        summary="Rows to train on are much longer or shorter than all that are validated on.",
        why="The validation loss says nothing of them.",
        bad="training rows of up to 8,000 tokens, a fifth of them above the 500 of any other split",
        good="data.validation drawn from the same rows as data.train",
        fix="Nothing, if it is meant. Else draw the rows of data.validation at random.",
        severity="note",
        stage="references",
    ),
    Rule(
        name="missing-as-text",
        code="VT664",
        summary="Rows have a text such as None or nan where a value is missing.",
        why="What wrote the file has turned a missing value into a word, and the model learns it.",
        bad='{"instruction": "Name a month.", "input": "nan", "output": "May."}',
        good='{"instruction": "Name a month.", "input": "", "output": "May."}',
        fix=(
            "Write null, or leave the key out; in pandas,"
            " `frame.astype(object).where(frame.notna(), None)` before `to_json`."
        ),
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="near-duplicate-rows",
        code="VT660",
        summary="Rows have nearly the same answers as others, word for word.",
        why=(
            "They are learnt more often than others. In two splits, a score is also of what was"
            " learnt by heart."
        ),
        bad="one article in two versions, one of them in data.test",
        good="answers that differ in more than a few words",
        fix=(
            "Look at the rows that are named. Nothing, if it is meant; else take one of each pair"
            " out. `vtool verify --near` looks for them."
        ),
        severity="note",
        stage="quality",
    ),
    Rule(
        name="frames-without-rate",
        code="VT670",
        summary="Videos are lists of frames, and nothing says how many of them are a second.",
        why=(
            "The model is shown when each frame is, as seconds in the text or in its positions:"
            " these are then made up, and an answer about time is learnt wrongly."
        ),
        bad='{"type": "video", "video": ["0.png", "1.png"]}',
        good='{"type": "video", "video": ["0.png", "1.png"], "fps": 4}',
        fix="Write each list's `fps`, or data.video.fps where all have the same.",
        severity="note",
        stage="quality",
    ),
    Rule(
        name="processor-class-differs",
        code="VT677",
        summary="The files of a model name a processor's class that is not its family's.",
        why=(
            "vtool takes the family's class. transformers' Auto classes, and servers with them,"
            " take the named one where there is one: other pixels, or other tokens."
        ),
        bad='"image_processor_type": "CLIPImageProcessor" in the folder of a Qwen3-VL',
        good='"image_processor_type": "Qwen2VLImageProcessorFast", as it is published',
        fix="Take the file of the published folder.",
        severity="warning",
        stage="quality",
    ),
    Rule(
        name="processor-files-differ",
        code="VT678",
        summary="Two processor files of a model have other settings.",
        why=(
            "One of them counts for transformers and vtool, and an older release or another reader"
            " may take the other: images then have other sizes or values than in training."
        ),
        bad="image_mean 0.5 in processor_config.json, and 0.48 in preprocessor_config.json",
        good="one of the two files, or the same settings in both",
        fix="Remove the one that is not meant.",
        severity="warning",
        stage="quality",
    ),
)
