"""Rules VT649 to VT655, VT663, VT665: the layouts of rows, their files, vocabulary and prompts."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="layout-not-certain",
        code="VT649",
        summary="The layout of rows cannot be detected from them, or is not the same in all files.",
        why=(
            "A guess would read other turns, pictures or answers than are meant, in every row, and"
            " say nothing."
        ),
        bad='a file with {"messages": …} in one row and {"conversations": …} in the next',
        good="{format: llava, path: rows.json}, a file with one layout",
        fix="Name the format, and write rows of another layout to a file of their own.",
    ),
    Rule(
        name="unread-key",
        code="VT650",
        summary="A row has a key that nothing reads, and that may be for the model.",
        why=(
            "Other loaders silently leave it out: what it says is never learnt. It is one note for"
            " all such keys of a split, each with the number of its rows."
        ),
        bad='{"instruction": "…", "output": "…", "rationale": "because it rains"}',
        good="{format: alpaca, path: rows.json, ignore: [rationale]}",
        fix="Put what is to be learnt into the answer, or name the key in the source's `ignore`.",
        stage="row",
    ),
    Rule(
        name="unpaired-member",
        code="VT651",
        summary="A member of a tar has no row, no place in its row, or is there twice.",
        why="A picture with the wrong row, or with none, is shown with another one's answer.",
        bad="0001.jpg and 0002.json, one after the other",
        good="0001.jpg, 0001.json, 0002.jpg, 0002.json",
        fix=(
            "Write the tar again with the members of each row together: one KEY.json, and the"
            " pictures that it shows."
        ),
        stage="row",
    ),
    Rule(
        name="merged-by-arrow",
        code="VT652",
        summary="A row of Arrow or Parquet has tool arguments in which a key may be another row's.",
        why=(
            "Arrow keeps one list of keys for all rows, and fills those that a row lacks with null:"
            ' {"n": 1} comes back as {"city": null, "n": 1}.'
        ),
        bad='a column tool_calls with {"city": "Bonn"} in one row and {"n": 1} in another',
        good='a column tool_calls that is JSON as text: "[{\\"function\\": …}]"',
        fix="Keep tools and tool_calls as JSON text in that column, or write JSON lines.",
        stage="row",
    ),
    Rule(
        name="rows-not-written",
        code="VT654",
        summary="The file that converted rows go to is there already, or cannot be written.",
        why="What is there may be somebody's only copy.",
        bad="vtool convert rows.json rows.jsonl, where rows.jsonl is there",
        good="vtool convert rows.json rows-2.jsonl",
        fix="Name a file that is not there, in a folder that is.",
    ),
    Rule(
        name="missing-group",
        code="VT655",
        summary="A row does not have the key by which rows are grouped and held back.",
        why="Which side of data.split it belongs to would be a guess.",
        bad='data.split.group=patient with a row of {"messages": […]}',
        good='{"patient": "p-12", "messages": […]}',
        fix=(
            "Give every row the key, or leave data.split.group out: the first picture then decides."
        ),
        stage="row",
    ),
    Rule(
        name="not-for-training",
        code="VT653",
        summary="A row is for another task than learning the answers of a chat.",
        why=(
            "Of a pair of answers to compare, or a question with a reward, something could be"
            " learnt as if it were an answer. It is another task."
        ),
        bad='{"prompt": "…", "chosen": "…", "rejected": "…"}',
        good='{"messages": [{"role": "user", …}, {"role": "assistant", …}]}',
        fix="Write rows with the answers that are to be learnt, or use a trainer for that task.",
        stage="row",
    ),
    Rule(
        name="token-without-embedding",
        code="VT663",
        summary="Rows have token ids that the model's embedding does not have.",
        why=(
            "The first step that meets one ends in an IndexError, or, on a GPU, in a failed"
            " assertion of a kernel. Where the tokenizer is another model's, all other tokens are"
            " wrong too."
        ),
        bad="tokens added to the tokenizer of model.path, and its weights as they were",
        good="the tokenizer of the weights; or weights with a row for each token that was added",
        fix=(
            "Take the tokenizer that the weights were trained with. Where tokens were added to it,"
            " give the model rows for them (resize_token_embeddings), and save both."
        ),
        stage="row",
    ),
    Rule(
        name="tokenizer-fails",
        code="VT698",
        summary="The tokenizer of a model's folder raises at a row's text.",
        why="A pattern of tokenizer.json may take for ever at some texts, and is given up.",
        bad='"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, …}',
        good="tokenizer.json as the model's authors have published it",
        fix="Replace tokenizer.json by the published one. The row is named: its text may be odd.",
        stage="row",
    ),
    Rule(
        name="prompt-differs",
        code="VT665",
        summary=(
            "The chat template writes an answer's turn otherwise than the prompt that it gives for"
            " that answer at inference."
        ),
        why=(
            "What is learnt would follow another prompt than a server's: an empty thought in the"
            " one, and the answer's own thought in the other (LLaMA-Factory#9392, trl#6361)."
        ),
        bad="data.template_arguments={enable_thinking: false}, and rows with thoughts",
        good="data.template_arguments={enable_thinking: false}, and rows without thoughts",
        fix="Give the template the arguments that inference has: data.template_arguments.",
        stage="row",
    ),
)
