"""Rules VT6xx: the rows."""

from vtool.diagnostics.rule import Rule

_IMAGE_PART = '{"type": "image", "image": "cat.png"}'

RULES = (
    Rule(
        name="broken-row",
        code="VT601",
        summary=(
            "A row cannot be read: its line is not a JSON object, its file is cut off or not what"
            " its name says, or it raises an error that vtool has no rule for."
        ),
        why="A loader that skips it trains on fewer rows than the file has, and says nothing.",
        bad='{"messages": [{"role": "user", "content": "Hi"',
        good=(
            '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content":'
            ' "Hello"}]}'
        ),
        fix=(
            "Fix or remove the line. It is often the last one of a file whose writing was cut off:"
            " copy that again."
        ),
        stage="row",
    ),
    Rule(
        name="malformed-messages",
        code="VT602",
        summary=(
            "A row is not a list of messages, each with a role and with content of a kind that is"
            " understood."
        ),
        why="What is not understood cannot be trained on, and must not be guessed.",
        bad='{"messages": [{"role": "human", "content": "Hi"}]}',
        good=(
            '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content":'
            ' "Hello"}]}'
        ),
        fix=(
            "Use the roles system, user, assistant and tool, and text, or a list of parts of type"
            ' "text", "image", "image_url", "video" or "video_url".'
        ),
        stage="row",
    ),
    Rule(
        name="missing-image",
        code="VT603",
        summary="An image that a row names is not there.",
        why="Some trainers replace the row by another one, or train it without its image.",
        bad=_IMAGE_PART.replace("cat", "cta"),
        good=_IMAGE_PART,
        fix=(
            "Paths are relative to the folder of the rows file. Addresses on the web are fetched"
            " from the hosts of data.allow_urls alone: name theirs, or save the image first."
        ),
        stage="row",
    ),
    Rule(
        name="broken-image",
        code="VT604",
        summary="An image file cannot be decoded to its last pixel.",
        why=(
            "A truncated image is filled up with grey by some decoders, and the row teaches the"
            " model something untrue."
        ),
        bad="a cat.jpg whose download was cut off",
        good="the whole cat.jpg",
        fix="Fetch the image again, or remove the row.",
        stage="row",
    ),
    Rule(
        name="outside-of-root",
        code="VT659",
        summary="An image or video that a row names is outside of data.root.",
        why="A stranger's rows can name any file of this machine, and the model learns what it is.",
        bad='data.root=data, and a row with `"images": ["../secret.png"]` or a link to it',
        good='`"images": ["cat.png"]`, in data or a folder in it',
        fix="Put the file there, or name a folder that has all of them: data.root=FOLDER.",
        stage="row",
    ),
    Rule(
        name="missing-video",
        code="VT640",
        summary="A video that a row names, or a frame of it, is not there.",
        why="Some trainers replace the row by another one, or train it without its video.",
        bad='{"type": "video", "video": "cilp.mp4"}',
        good='{"type": "video", "video": "clip.mp4"}',
        fix=(
            "Paths are relative to the folder of the rows file. Addresses on the web are not"
            " fetched: save the video first. Of a folder of frames, list the frames."
        ),
        stage="row",
    ),
    Rule(
        name="video-not-trained",
        code="VT683",
        summary="A row has a video, and the model's family is trained on images alone.",
        why="Videos of a type whose processor is learnt from its folder are not proved here.",
        bad="a video in a row for a Gemma 3",
        good="frames of it, as images",
        fix="Write some of its frames as images, or remove the row.",
        stage="row",
    ),
    Rule(
        name="broken-video",
        code="VT641",
        summary=(
            "A video cannot be decoded to its last frame, has no frames, or frames of several"
            " sizes, or it is a picture."
        ),
        why=(
            "A decoder that stops where a file is cut off shows fewer frames, at other times, and"
            " says nothing."
        ),
        bad="a clip.mp4 whose download was cut off",
        good="the whole clip.mp4",
        fix="Fetch or encode the video again, bring its frames to one size, or remove the row.",
        stage="row",
    ),
    Rule(
        name="too-many-frames",
        code="VT642",
        summary="A list of frames is longer than a video may be.",
        why=(
            "Frames that are listed are all shown. Leaving some of them out would change what the"
            " row says, and when."
        ),
        bad="a list of 900 frames, with data.video.max_frames=768",
        good="data.video.max_frames=900",
        fix="Raise data.video.max_frames, or list fewer frames, and write the row's fps.",
        stage="row",
    ),
    Rule(
        name="video-decoder-missing",
        code="VT643",
        summary="A row has a video file, and PyAV, which decodes it, is not installed.",
        why="The rows with videos could not be read.",
        bad="pip install vtool",
        good="pip install 'vtool[video]'",
        fix="Install the extra, or give each video as a list of its frames: that needs no decoder.",
        stage="row",
    ),
    Rule(
        name="wide-image-values",
        code="VT644",
        summary="An image is greyscale of 16 or 32 bits, or in floating point.",
        why=(
            "Decoders and servers cut its values to 0 to 255, so that most of it turns white. Which"
            " values are black and white the file does not say: a 16-bit file often holds 12 bits."
        ),
        bad="an X-ray in a 16-bit PNG",
        good="data.image.sixteen_bit=scale data.image.sixteen_bit_range=[0,4095]",
        fix=(
            "Save it with 8 bits, as a server has to be given it too; or say which values are black"
            " and white: data.image.sixteen_bit=scale data.image.sixteen_bit_range=[LOW,HIGH]."
        ),
        stage="row",
    ),
    Rule(
        name="too-many-pixels",
        code="VT645",
        summary="An image has more pixels than data.image.max_decoded_pixels.",
        why=(
            "A file of a few bytes can ask for all memory of a machine. What is not decoded cannot"
            " be trained on."
        ),
        bad="a PNG of 1 kB that says it has 60,000 × 60,000 pixels",
        good="a photo of 8,000 × 6,000 pixels",
        fix=(
            "Shrink the image, or remove the row. Pillow decodes at most 178,956,970 pixels; up to"
            " there, data.image.max_decoded_pixels can be raised."
        ),
        stage="row",
    ),
    Rule(
        name="picture-converted",
        code="VT646",
        summary="Pictures lose something, or are turned, where they become upright and RGB.",
        why=(
            "It is what most tools do, and nobody says so: a drawing on a transparent background"
            " may be shown to the model on black."
        ),
        bad="a logo in black on transparent pixels, which are black below",
        good="the logo on white, without transparency",
        fix=(
            "Nothing, if it is meant. Else save the pictures as they are to be seen: upright, in"
            " RGB, without transparency, one frame each."
        ),
        severity="note",
        stage="row",
    ),
    Rule(
        name="too-much-text",
        code="VT647",
        summary="A row has more text than data.max_text_bytes.",
        why="Such a row is mostly a mistake, and its tokens take minutes and much memory.",
        bad="a row into which a whole book collection was written by mistake",
        good="data.max_text_bytes=50000000, where such rows are meant",
        fix="Cut the row's text, or raise data.max_text_bytes.",
        stage="row",
    ),
    Rule(
        name="template-too-costly",
        code="VT648",
        summary="A chat template takes too long, or too much memory, for a row.",
        why=(
            "A template is a program that comes with a model's folder. One of a few bytes can run"
            " for years."
        ),
        bad="a template with a loop of 100,000 in a loop of 100,000",
        good="a template that goes through the messages once",
        fix=(
            "Look into chat_template.jinja of the model's folder, and replace it with that of the"
            " model's authors. The row is named in case it is what is large."
        ),
        stage="row",
    ),
    Rule(
        name="placeholder-mismatch",
        code="VT605",
        summary="A row has more or fewer placeholders for images or videos than it has of these.",
        why="The model would see an image at the wrong place, or none at all.",
        bad=(
            '{"messages": [{"role": "user", "content": "<image><image>Same?"}, …], "images":'
            ' ["a.png"]}'
        ),
        good=(
            '{"messages": [{"role": "user", "content": "<image><image>Same?"}, …], "images":'
            ' ["a.png", "b.png"]}'
        ),
        fix=(
            "Write one <image> tag for each entry of images and one <video> tag for each of videos,"
            " in the same order; or use typed parts, and no lists."
        ),
        stage="row",
    ),
    Rule(
        name="image-token-mismatch",
        code="VT606",
        summary=(
            "The image or video tokens of a row are not as many as the features that its images or"
            " videos give."
        ),
        why="Features land on the wrong tokens, or the model raises in the middle of a run.",
        bad="9 image tokens for an image of grid 1 × 4 × 4 with a merge of 2 (4 features)",
        good="4 image tokens",
        fix=(
            "The chat template must put exactly one image token where an image goes, and one video"
            " token where a video goes, in their order. Check the template and the token ids in"
            " config.json."
        ),
        stage="row",
    ),
    Rule(
        name="image-in-answer",
        code="VT618",
        summary="A turn of the assistant has an image or a video.",
        why="Its tokens would be learnt as if the model could write images.",
        bad='{"role": "assistant", "content": "Here it is: <image>"}',
        good=(
            '{"role": "user", "content": "<image>Is it this one?"}, {"role": "assistant",'
            ' "content": "Yes."}'
        ),
        fix="Show images and videos in turns of the user or of a tool.",
        stage="row",
    ),
    Rule(
        name="ignored-by-template",
        code="VT617",
        summary=(
            "A row has tools, tool calls or reasoning of which the chat template writes nothing."
        ),
        why="The model never sees them, and the answers that rest on them come out of nowhere.",
        bad=(
            '{"role": "assistant", "reasoning_content": "It has whiskers.", "content": "A cat."},'
            " and a template without reasoning_content"
        ),
        good='{"role": "assistant", "content": "<think>It has whiskers.</think>A cat."}',
        fix="Use a chat template that writes them, write them as text, or leave them out.",
        stage="row",
    ),
    Rule(
        name="no-assistant-turn",
        code="VT607",
        summary=(
            "A row has no assistant turn, or an empty one, so there is nothing to learn from it."
        ),
        why="It adds nothing to the loss; a batch of such rows divides by zero.",
        bad='{"messages": [{"role": "user", "content": "Hi"}]}',
        good=(
            '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content":'
            ' "Hello"}]}'
        ),
        fix="Add the answer, or remove the row.",
        stage="row",
    ),
    Rule(
        name="end-token-unsupervised",
        code="VT610",
        summary="The token that ends an assistant turn is not among the labels.",
        why="A model that never learns to stop answers on and on.",
        bad="labels cover `7`",
        good="labels cover `7<|im_end|>`",
        fix=(
            "The chat template must close each assistant turn with the tokenizer's end token. Check"
            " chat_template.jinja and eos_token."
        ),
        stage="row",
    ),
    Rule(
        name="unstable-template",
        code="VT611",
        summary=(
            "The chat template renders the beginning of a chat differently once more turns follow."
        ),
        why=(
            "The place of the labels is unknown, and the prompt of training is not the prompt of"
            " inference."
        ),
        bad="a template that removes the reasoning of earlier turns",
        good="a template that renders every turn the same, wherever it stands",
        fix=(
            "data.turns=each makes of each answer a sample in which it is the last turn, as at"
            " inference; data.chat_template names a template for training that keeps earlier turns"
            " as they were."
        ),
        stage="row",
    ),
    Rule(
        name="control-token-in-text",
        code="VT612",
        summary="The text of a message contains one of the tokenizer's control tokens.",
        why=("The tokenizer takes it for a real one: `<|im_end|>` in a text ends the turn there."),
        bad='{"role": "user", "content": "What does <|im_end|> mean?"}',
        good='{"role": "user", "content": "What does im_end mean?"}',
        fix="Write it differently, or remove the row.",
        stage="row",
    ),
    Rule(
        name="labels-differ-from-answers",
        code="VT616",
        summary="The labels of a row, decoded, are not its assistant turns.",
        why=(
            "The model is trained on something that nobody wrote: a shifted mask, a lost token, the"
            " user's words."
        ),
        bad="labels that decode to `s shown?` for the answer `7`",
        good="labels that decode to `7<|im_end|>`",
        fix=(
            "Check the tokenizer: it must give back the text that it was given. If it does, this is"
            " a bug of vtool: please report it."
        ),
        stage="row",
    ),
    Rule(
        name="overlong-row",
        code="VT608",
        summary="A row has more tokens than data.max_length.",
        why="Cutting it off silently trains on half an answer, or on none.",
        bad="data.max_length=1024 with a row of 1500 tokens",
        good="data.max_length=2048",
        fix=(
            "Raise data.max_length, shrink images with data.image.max_pixels or videos with"
            " data.video, or say what to do: data.on_overlong=drop with data.max_dropped_rows=N, or"
            " data.on_overlong=truncate."
        ),
        stage="row",
    ),
    Rule(
        name="answer-cut-off",
        code="VT609",
        summary=(
            "Truncation leaves nothing of a row's answers, or cuts through an image or a video."
        ),
        why=(
            "A row whose answer is cut off trains on nothing: loss 0, gradient 0, and no exception."
        ),
        bad="data.max_length=64 data.on_overlong=truncate with a prompt of 80 tokens",
        good="data.max_length=256 data.on_overlong=truncate",
        fix=(
            "Raise data.max_length until a part of each answer fits, or drop such rows:"
            " data.on_overlong=drop, data.max_dropped_rows=N."
        ),
        stage="row",
    ),
    Rule(
        name="too-many-dropped-rows",
        code="VT613",
        summary="More rows would be left out than data.max_dropped_rows allows.",
        why="Rows that vanish change what the model learns, and nobody notices.",
        bad=(
            "3 rows longer than data.max_length, with data.on_overlong=drop and"
            " data.max_dropped_rows=0"
        ),
        good="data.max_dropped_rows=3",
        fix="Fix the rows, or allow that many: data.max_dropped_rows=N.",
        stage="split",
    ),
    Rule(
        name="no-rows",
        code="VT614",
        summary="A split of the data has no rows.",
        why="An evaluation on nothing gives NaN, and a training on nothing gives nothing.",
        bad="data.train=[{format: messages, path: empty.jsonl}]",
        good="data.train=[{format: messages, path: train.jsonl}]",
        fix="Give a file with rows, or leave the split out.",
        stage="split",
    ),
    Rule(
        name="reference-too-long",
        code="VT619",
        summary="Answers to be evaluated are longer than evaluation.generate.max_new_tokens.",
        why=(
            "The model is stopped before it can have written them, so that the exact match is lower"
            " than what it can do."
        ),
        bad="evaluation.generate.max_new_tokens=4 with an answer of 9 tokens",
        good="evaluation.generate.max_new_tokens=9",
        fix="Raise evaluation.generate.max_new_tokens to the longest answer.",
        severity="warning",
        stage="references",
    ),
    Rule(
        name="unknown-row",
        code="VT620",
        summary="A row is asked for that no file has.",
        why="Nothing could be shown of it.",
        bad="vtool verify my.jsonl --row 900, where my.jsonl has 100 lines",
        good="vtool verify my.jsonl --row 90",
        fix=(
            "Give a row's name as findings write it, such as my.jsonl:90 or 'my.json row 90', or"
            " its number alone: of its line, or in an array its own. Blank lines are no rows."
        ),
    ),
    Rule(
        name="row-changed",
        code="VT629",
        summary="A row that is trained on is not the one that was audited at the start.",
        why=(
            "Its text, or an image or video file of it, was written again during the run:"
            " what is learnt would not be what was checked, and a resumed run would learn something"
            " else."
        ),
        bad="an image that another job writes again during the run",
        good="files that stay as they are until the run has ended",
        fix=(
            "Put the file back and resume from the last checkpoint with the same command; or start"
            " another run on the rows as they are now."
        ),
    ),
    Rule(
        name="source-changed",
        code="VT661",
        summary="A file of rows has grown or changed while a run was trained on it.",
        why=(
            "The run has trained on the rows that were there when it began, each compared with its"
            " audit. To resume it from its checkpoint is refused (`data-changed`), and a new run"
            " has other rows."
        ),
        bad="another job that appends to train.jsonl during the run",
        good="a copy of train.jsonl that nobody writes to",
        fix=(
            "Train on a copy, or start another run on the rows as they are now; to resume this"
            " one, put the file back."
        ),
        severity="warning",
    ),
    Rule(
        name="data-worker-failed",
        code="VT662",
        summary="A data worker, a process that reads and encodes rows, ended by itself.",
        why=(
            "The batches that it was making are lost, so that the run cannot continue as planned. A"
            " worker ends so where the system's memory is used up (Linux then kills a process), or"
            " where a library that decodes an image or a video crashes."
        ),
        bad="a worker killed by the system while it decoded a video of 2 GB",
        good="as many workers as there is memory for, and files that are whole",
        fix=(
            "Read `dmesg` for `Out of memory`: then set data.workers lower. Else open the image or"
            " video of the row that is named; `data.workers=0` shows the crash itself. The same"
            " command resumes from the last checkpoint."
        ),
    ),
    Rule(
        name="ledger-mismatch",
        code="VT615",
        summary=(
            "The rows that were trained on and those that were dropped do not add up to the rows"
            " there are."
        ),
        why="Some rows were skipped or seen twice: the run is not what the recipe says.",
        bad="1257 rows, 1 epoch, 1250 trained",
        good="1257 rows, 1 epoch, 1257 trained",
        fix="This is a bug of vtool: please report it with the run's config.yaml and data.json.",
    ),
)
