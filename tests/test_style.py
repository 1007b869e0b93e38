"""Rules for every file: docstrings that say something, lengths, one spelling."""

import ast
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "vtool").rglob("*.py"))
OTHERS = sorted(
    file
    for folder in ("tests", "benchmarks", "timemachine")
    for file in (ROOT / folder).rglob("*.py")
)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
OPENERS = re.compile(
    r"(What|Whether|Those|The same|Of|As|Where|How|Which|That|Its?|They"
    r"|Something|Nothing|Why|Whose|Without|On|There|All (that|of)"
    r"|(Return|Yield|Say|Print|Take|Note) (what|whatever|so many|those|it|them|all))\b"
)
"""A docstring that begins so does not name the thing it stands at, or the value returned."""
VERB = re.compile(
    r"(?!(The|An|This|These|Each|Every|All|Some|No|One|Exactly)\b)[A-Z][a-z-]+(?<![^s]s)[ ,]"
)
"""A function's docstring begins so, unless it is a property: "The rows" and "Rows" are no verbs."""
HELP = ("vtool/cli/doctor.py", "vtool/cli/plan.py")
"""The docstrings of these commands are printed by their `--help`."""
BRITISH = re.compile(
    r"(?<![A-Za-z])(optimis|initialis|quantis(?!ed-load|ed_tensors)|normalis|serialis|colour"
    r"|behaviour|modelling)",
    re.I,
)
"""But for the published names `quantised-load`, a rule, and `quantised_tensors`, a key."""
CODE_SPAN = re.compile(r"- \w+: (`+)(?:(?!\1).)+\1")
"""A line that is one code span behind its label, such as the examples in docs/rules.md."""
PROSE = (
    *("*.md", "*.sh", "*.c", "*.j2", "*.css", "*.js", "*.toml", "*.yml", "Makefile"),
    *("constraints.txt", ".pre-commit-hooks.yaml", "vtool/*.yaml", "timemachine/*.yaml"),
    *("recipes/*.yaml", "configs/*.yaml"),
)
"""Patterns of the files, besides Python's, whose lines are counted."""
COLUMNS, LINES, MEDIAN = 100, 500, 200
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a module, its classes and functions, and those under a field."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What it has.", True),
        ("Those of the model.", True),
        ("Return what it has.", True),
        ("Take all hooks away.", True),
        ("Something that learns.", True),
        ("All that was scored.", True),
        ("Why it was not run.", True),
        ("On a CPU there is nothing to take.", True),
        ("Without the rows of others.", True),
        ("There are rows to score.", True),
        ("All rows of a file.", False),
        ("Return the rows.", False),
        ("Say whether it has rows.", False),
    ],
)
def test_a_docstring_that_opens_without_its_subject_is_reported(text: str, found: bool) -> None:
    assert bool(OPENERS.match(text)) == found


def test_a_docstring_begins_with_a_verb_or_names_the_thing() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in [*SOURCES, *OTHERS]
        for line, text in docstrings(file)
        if OPENERS.match(text.strip()) and not str(file.relative_to(ROOT)).startswith(HELP)
    ]
    assert wrong == [], f"{len(wrong)} of them:\n" + "\n".join(wrong[:40])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Check that the folder exists.", True),
        ("Pass over what was never gathered.", True),
        ("The folder is there.", False),
        ("A file, or several.", False),
        ("Rows of a file.", False),
        ("data.path is there.", False),
        ("Every process gets an equal share.", False),
    ],
)
def test_a_fact_is_no_verb(text: str, found: bool) -> None:
    assert bool(VERB.match(text)) == found


def test_a_functions_docstring_begins_with_a_verb() -> None:
    """A property is read like a field: it may name the thing that it is."""
    wrong = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {text.splitlines()[0]}"
        for file in SOURCES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("property" in ast.unparse(one) for one in node.decorator_list)
        and (text := ast.get_docstring(node)) is not None
        and not VERB.match(text)
    ]
    assert wrong == [], f"{len(wrong)} of them:\n" + "\n".join(wrong[:40])


def public_definitions(body: Sequence[ast.stmt], owner: str = "") -> Iterator[tuple[str, Defined]]:
    """Yield the definitions that an editor offers, with the class before a method's name."""
    for node in body:
        if isinstance(node, Defined) and not node.name.startswith("_"):
            yield owner + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, f"{node.name}.")


def test_a_public_definition_has_a_docstring() -> None:
    """A method may leave it to the method that it implements or overrides."""
    defined = [
        (file, name, node)
        for file in SOURCES
        for name, node in public_definitions(ast.parse(file.read_text("utf-8")).body)
    ]
    documented = {node.name for _, name, node in defined if "." in name and ast.get_docstring(node)}
    wrong = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {name}"
        for file, name, node in defined
        if ast.get_docstring(node) is None and not ("." in name and node.name in documented)
    ]
    assert wrong == [], f"{len(wrong)} of them:\n" + "\n".join(wrong[:40])


def test_the_spelling_is_the_fields() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in [*SOURCES, *OTHERS, *PAGES]
        if file != Path(__file__)
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if BRITISH.search(line)
    ]
    assert wrong == [], "\n".join(wrong[:40])


def test_files_are_short() -> None:
    lengths = {file: len(file.read_text("utf-8").splitlines()) for file in SOURCES}
    assert {str(file): length for file, length in lengths.items() if length > LINES} == {}
    assert median(lengths.values()) <= MEDIAN


def test_prose_has_at_most_100_columns() -> None:
    """Tables, quoted output, addresses and a line of one code span cannot be broken.

    Nor can commands and figures in a recipe's comment, which are indented.
    """
    listed = subprocess.run(
        ["git", "ls-files", *PROSE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    wrong = []
    for name in listed.stdout.split():
        fenced = False
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            quoted = fenced or line.startswith(("    ", "#   ", "\t", "|", ">")) or "](" in line
            quoted = quoted or bool(CODE_SPAN.fullmatch(line))
            if len(line) > COLUMNS and not quoted and "://" not in line:
                wrong.append(f"{name}:{number}: {line[:80]}…")
    assert wrong == [], "\n".join(wrong[:40])


SHARED_NAMES = {
    # of the Python API and the command that does the same
    "train", "verify", "load_check",
    "app", "main",
    # one for each framework that load-check asks
    "compare_with_twin", "drive",
    # one for each member of a registry, or for each file that has some
    "RULE", "RULES", "CHECKS", "PROOF", "METRIC", "FACTS", "compute", "score", "work",
    # of types
    "B", "T",
}  # fmt: skip


def public_names(file: Path) -> Iterator[str]:
    """Yield the classes, functions and constants of a module that other modules may use."""
    for node in ast.parse(file.read_text("utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [each.id for one in targets for each in ast.walk(one) if is_set(each)]
            case ast.AnnAssign(target=target):
                names = [each.id for each in ast.walk(target) if is_set(each)]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def is_set(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def test_two_public_things_have_two_names() -> None:
    """A name that is found by a search means one thing."""
    modules: dict[str, list[str]] = {}
    for file in SOURCES:
        for name in set(public_names(file)):
            modules.setdefault(name, []).append(str(file.relative_to(ROOT)))
    several = {name: files for name, files in modules.items() if len(files) > 1}
    assert {name: several[name] for name in several.keys() - SHARED_NAMES} == {}
    assert several.keys() == SHARED_NAMES, "a name of the list is not shared any more"


NAMES_OF_MODEL_FILES = re.compile(
    r"config\.json|(generation|tokenizer|(video_)?(pre)?processor)_config\.json|tokenizer\.json"
    r"|chat_template\.(json|jinja)|(model\.safetensors|pytorch_model\.bin)\.index\.json"
)
ALONE = ("vtool/loading/probe/", "vtool/watch/inject/", "vtool/evaluation/vllm_worker.py")
"""Code that imports nothing of vtool."""


def test_one_module_opens_the_files_of_a_models_folder() -> None:
    """Each of them has one reader, with one limit, and so one meaning."""
    modules = {file: str(file.relative_to(ROOT)) for file in SOURCES}
    assert [
        f"{name}:{node.lineno} {node.value}"
        for file, name in modules.items()
        if name != "vtool/model_folder.py" and not name.startswith(ALONE)
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and NAMES_OF_MODEL_FILES.fullmatch(node.value)
    ] == []


OWN_FILES = {
    # what vtool or a process of its own has written for itself
    "api.py", "data/urls.py", "planning/recompute_process.py", "processes.py",
    "training/recompute.py",
    # what it ships
    "cli/complete.py", "config/foreign/known_words.py", "config/megatron_versions.py",
    "data/audit_cache.py", "doctor/advisories.py", "report/files.py",
    # the machine's, and the code of packages that are installed
    "cli/explain.py", "config/environment/machine.py", "config/foreign/package_fields.py",
    "doctor/interpreter.py", "training/agreement.py", "training/micro_batch.py",
    "watch/command.py",
    # pictures, whose size is compared with that of their pixels
    "models/pictures.py", "report/images.py",
}  # fmt: skip
"""Modules that read whole files, none of which may be anybody's."""


def test_files_of_others_are_read_by_one_helper() -> None:
    """`vtool.contents` refuses pipes, devices and files that go on for gigabytes."""
    modules = {file: str(file.relative_to(ROOT)) for file in SOURCES}
    found = {
        name.removeprefix("vtool/")
        for file, name in modules.items()
        if name.startswith("vtool/") and not name.startswith(ALONE)
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("read_text", "read_bytes")
    }
    assert found == OWN_FILES
