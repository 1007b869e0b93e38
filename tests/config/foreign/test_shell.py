"""Commands of shell scripts, read without running them: what bash itself passes."""

import subprocess
from pathlib import Path

import pytest

from vtool.config.foreign.shell import UNKNOWN, read_commands

SCRIPTS = {
    "defaults and quotes": """\
set -x
BACKEND=${BACKEND:-fsdp}
NAME="a b"
torchrun --nproc=2 -m it x=$BACKEND name="$NAME" list='["a","b"]' y=${UNSET:-"1 2"} \\
    z=${BACKEND}-${NAME%b} # a comment
""",
    "text with line ends, and quotes in quotes": """\
SIZE=2
ARGS="\\
    a.b=${SIZE} \\
    betas="[0.9,0.95]" \\
    c=d"
torchrun ${ARGS} "$ARGS" last
""",
    "words of no letters": """\
EMPTY=''
torchrun '' "" x='' y"" "$@" $EMPTY end
""",
    "lists": """\
X=5
DATA=(
    a=1   # said
    b="${X} 6"
)
DATA+=(c=7)
MORE=()
torchrun "${DATA[@]}" "${MORE[@]}" ${DATA[@]} end
""",
    "branches": """\
mode=${mode:-one}
if [ "$mode" = "two" ]; then
    A=2
elif [[ "$mode" == "one" ]]; then
    A=1
    torchrun inside
else
    A=0
fi
case "${mode}" in
    two) B=2 ;;
    one|three)
        B=1
        ;;
    *) B=0 ;;
esac
torchrun a=$A b=${B}
""",
    "what follows, and documents": """\
cat > /dev/null <<EOF2
torchrun not this
EOF2
cd . && torchrun one; torchrun two > log.txt 2>&1
echo done
""",
}


def _of_bash(script: str, folder: Path) -> list[list[str]]:
    stub = folder / "torchrun"
    stub.write_text("#!/bin/bash\n" + r'printf "%s\x1f" "$@" >>calls; printf "\x1e" >>calls')
    stub.chmod(0o755)
    (folder / "run.sh").write_text(script)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": "/home/someone"}
    subprocess.run(["bash", "run.sh"], cwd=folder, env=environment, check=True, capture_output=True)
    calls = (folder / "calls").read_text().split("\x1e")
    return [call.split("\x1f")[:-1] for call in calls if call]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_has_the_words_that_bash_passes(name: str, tmp_path: Path) -> None:
    script = SCRIPTS[name]
    read = [[word.text for word in words] for words in read_commands(script)]
    read = [words[1:] for words in read if words[0] == "torchrun"]
    real = _of_bash(script, tmp_path)
    assert len(read) == len(real) > 0
    for mine, theirs in zip(read, real, strict=True):
        assert len(mine) == len(theirs)
        for word, whole in zip(mine, theirs, strict=True):
            assert word == whole or (UNKNOWN in word and whole.startswith(word.split(UNKNOWN)[0]))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("A=$(date)\nrun x=$A", f"x={UNKNOWN}"),
        ("run x=$1", f"x={UNKNOWN}"),
        ("run x=$NOT_SET", f"x={UNKNOWN}"),
        ("if [ -d here ]; then A=1; else A=2; fi\nrun x=$A", f"x={UNKNOWN}"),
        ("A=0\n[ -d here ] && A=1\nrun x=$A", f"x={UNKNOWN}"),
        ("for A in 1 2; do echo; done\nrun x=$A", f"x={UNKNOWN}"),
        ("run x=$HOME/data", "x=~/data"),
        ("A=1\nif [ -d here ]; then A=1; fi\nrun x=$A", "x=1"),
    ],
)
def test_what_nobody_can_know_is_said_to_be_unknown(script: str, expected: str) -> None:
    commands = [[word.text for word in words] for words in read_commands(script)]
    assert ["run", expected] in commands


def test_a_word_has_the_place_where_it_was_written() -> None:
    script = 'LIST=(\n  a=1\n)\nrun "${LIST[@]}" b=2\n'
    (words,) = [words for words in read_commands(script) if words[0].text == "run"]
    assert [script[word.offset : word.offset + 3] for word in words[1:]] == ["a=1", "b=2"]


@pytest.mark.parametrize("text", ["", "\\", '"', "'", "${", "$(", "`", "a=(", "case", "<<X", "))"])
def test_a_script_that_is_cut_short_ends(text: str) -> None:
    assert isinstance(list(read_commands(f"run a\n{text}")), list)
