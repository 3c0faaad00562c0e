"""The documentation builds, is true where a program can tell, and every local command in it runs."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
OTHERS = ("README.md", "CHANGELOG.md", "docker/astro/README.md", "docker/astro/gcloud/README.md")
PAGES = sorted([*DOCS.rglob("*.md"), *(CHECKOUT / page for page in OTHERS)])
BIN = Path(sys.executable).parent

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^>]*) -->\n)?^```(?P<kind>console|bash|sh|python)\n(?P<code>.*?)^```$", re.M | re.S
)
SHELL = ("console", "bash", "sh")
# Fences that are no commands and no Python; a new language has to be put somewhere here, on purpose.
SHOWN = ("dockerfile", "hcl", "json", "toml", "yaml", "")
FENCE = re.compile(r"^(?P<indent>[ \t]*)```(?P<language>[\w-]*)(?P<rest>.*)$", re.M)
# What a mark before a block may begin with. What is not run here names, after a colon, the test that
# does, unless nobody can without a project on Google Cloud.
RUN = ("fails", "shown")
NOT_RUN = ("needs Google Cloud", "needs containers", "tested", "set-up")
# Run by other tests: page → first words of a block → the test, and what it must speak of.
ELSEWHERE = {
    "README.md": {
        "make demo": ("tests/e2e/test_demo.py", ["testing.demo"]),
        "pip install": ("tests/install/test_install.py", ["[airflow,local]", '"pip", "install"']),
    },
    "docs/local-stack.md": {
        "$ pip install": ("tests/integration/stack/test_stack_program.py", ["BATCH_EMULATOR_HOST"])
    },
}


def blocks(page: Path, *kinds: str) -> list[re.Match[str]]:
    return [found for found in BLOCK.finditer(page.read_text()) if found["kind"] in kinds]


def name(page: Path) -> str:
    return page.relative_to(CHECKOUT).as_posix()


def is_run_here(page: Path, block: re.Match[str]) -> bool:
    mark = block["mark"] or ""
    elsewhere = ELSEWHERE.get(name(page), {})
    if "--8<--" in block["code"]:  # a file that is shown; it has tests of its own
        return False
    return not mark.startswith(NOT_RUN) and not any(block["code"].startswith(words) for words in elsewhere)


RUNNABLE = [page for page in PAGES if any(is_run_here(page, b) for b in blocks(page, *SHELL))]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages; a broken link, anchor, include or name fails the build."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_the_pages_build_without_a_warning(site: Path) -> None:
    """mkdocs in strict mode, with every page in the navigation."""
    assert (site / "index.html").is_file()
    assert "max_preemptions" in (site / "reference" / "operator.html").read_text()


def test_the_pages_fetch_nothing(site: Path) -> None:
    """Scripts, styles and fonts come with the pages."""
    fetched = re.compile(r"<(?:script|img)[^>]*\ssrc=\"https?://|<link[^>]*stylesheet[^>]*https?://")
    assert [page.name for page in site.rglob("*.html") if fetched.search(page.read_text())] == []


def test_every_example_dag_is_a_how_to_page() -> None:
    """And is shown as it is, not as a copy."""
    shown = "".join(page.read_text() for page in (DOCS / "howto").glob("*.md"))
    files = [path for path in (CHECKOUT / "dags").rglob("*.*") if path.suffix in (".py", ".sh")]
    names = [path.relative_to(CHECKOUT).as_posix() for path in files]
    assert len(names) >= 10
    assert [name for name in names if f'--8<-- "{name}"' not in shown] == []


def test_every_exit_code_has_a_row() -> None:
    """In the failure table and in the contract."""
    from airflow_resume_provider.errors import ExitCode

    for page in ("failures.md", "container-contract.md"):
        rows = set(re.findall(r"^\| (\d+) \|", (DOCS / page).read_text(), re.M))
        assert {str(int(code)) for code in ExitCode if code} <= rows, page


def test_every_parameter_of_the_operator_is_described() -> None:
    """In the docstring that the reference shows."""
    from airflow_resume_provider.operators.train import ResumableTrainOperator

    parameters = inspect.signature(ResumableTrainOperator.__init__).parameters
    named = set(re.findall(r":param (\w+):", ResumableTrainOperator.__doc__ or ""))
    assert set(parameters) - {"self", "kwargs"} == named


def python_blocks() -> list[pytest.ParameterSet]:
    return [
        pytest.param(block["code"], id=f"{name(page)}:{page.read_text()[: block.start()].count(chr(10)) + 1}")
        for page in PAGES
        for block in blocks(page, "python")
        if "--8<--" not in block["code"]
    ]


@pytest.mark.parametrize("code", python_blocks())
def test_python_in_the_pages_is_python_and_uses_what_there_is(code: str) -> None:
    """It compiles, what it imports from here exists, and the operator has the parameters it is given."""
    tree = ast.parse(code.replace("…", "..."))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_resume_provider"):
            check_import(str(node.module), [alias.name for alias in node.names])
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ResumableTrainOperator":
            check_call(node)


def check_import(module: str, names: list[str]) -> None:
    if ".callbacks." in module:  # imports a framework that is not installed here
        assert (CHECKOUT / (module.replace(".", "/") + ".py")).is_file()
        return
    imported = importlib.import_module(module)
    assert [wanted for wanted in names if not hasattr(imported, wanted)] == []


def check_call(call: ast.Call) -> None:
    from airflow.sdk import BaseOperator

    from airflow_resume_provider.operators.train import ResumableTrainOperator

    known = {
        *inspect.signature(ResumableTrainOperator.__init__).parameters,
        *inspect.signature(BaseOperator.__init__).parameters,
    }
    assert {keyword.arg for keyword in call.keywords} - known == set()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_block_is_written_so_that_nothing_looks_at_it(page: Path) -> None:
    """Every fence is at the margin, of a known language, and found by the pattern that runs blocks."""
    fences = list(FENCE.finditer(page.read_text()))
    opening, closing = fences[::2], fences[1::2]
    assert len(opening) == len(closing)
    assert [fence[0] for fence in closing if fence["language"] or fence["rest"].strip()] == []
    assert [fence[0] for fence in opening if fence["indent"] or fence["rest"].strip()] == []
    kinds = [fence["language"] for fence in opening]
    assert set(kinds) <= {*SHELL, "python", *SHOWN}
    assert len([kind for kind in kinds if kind not in SHOWN]) == len(blocks(page, *SHELL, "python"))
    # Commands in a block without a language would be commands that nobody runs.
    assert not re.search(r"^```\n(?:\$ |pip |make |docker |airflow |python )", page.read_text(), re.M)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_is_run_or_says_why_not(page: Path) -> None:
    """By this module, by a test that is named, or it needs Google Cloud, and is about it."""
    for block in blocks(page, *SHELL):
        mark = block["mark"] or ""
        assert not mark or mark.startswith((*RUN, *NOT_RUN)), mark
        if mark.startswith("needs Google Cloud"):
            assert re.search(r"gcloud|terraform|docker push|variables set", block["code"])
        elif mark.startswith(NOT_RUN):
            what, _, test = mark.partition(": ")
            assert what != "set-up" or block["code"].startswith("make install")
            assert what == "set-up" or (CHECKOUT / test).is_file() or is_a_target(test), mark
    for words, (test, spoken) in ELSEWHERE.get(name(page), {}).items():
        assert [b for b in blocks(page, *SHELL) if b["code"].startswith(words)], words
        text = (CHECKOUT / test).read_text()
        assert [word for word in spoken if word not in text] == []


def is_a_target(command: str) -> bool:
    """Whether it is `make TARGET` with a target that there is."""
    make, _, target = command.partition(" ")
    texts = [path.read_text() for path in (CHECKOUT / "Makefile", *CHECKOUT.glob("*.mk"))]
    return make == "make" and any(re.search(rf"^{target}:", text, re.M) for text in texts)


def script(page: Path) -> str:
    """The commands of a page as one script; what should fail must fail."""
    parts = ["set -e"]
    for block in blocks(page, *SHELL):
        if not is_run_here(page, block):
            continue
        if (block["mark"] or "").startswith("fails"):
            parts.append(f"if ( set -e\n{block['code']}); then echo 'should have failed'; exit 99; fi")
        else:
            parts.append(block["code"])
    return "\n".join(parts)


@pytest.fixture
def lineage(tmp_path: Path) -> dict[str, str]:
    """A lineage with three checkpoints, for pages that speak of one."""
    from airflow_resume_provider.checkpoints import Lineage

    store = Lineage.open(f"file://{tmp_path}/lineage")
    files = tmp_path / "files"
    files.mkdir()
    (files / "weights").write_text("1")
    references = [store.commit(files, attempt=1, step=step) for step in (1, 2, 3)]
    return {"LINEAGE": store.uri, "CHECKPOINT": references[0].uri}


@pytest.mark.timeout(400)
def test_the_example_of_a_dag_test_passes() -> None:
    """The page about tests shows one that passes. Airflow reads its settings once, so in its own process."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "RESUME"))}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/docs/example_of_a_dag_test.py",
    ]
    done = subprocess.run(command, cwd=CHECKOUT, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_commands_of_the_page_run(page: Path, tmp_path: Path, lineage: dict[str, str]) -> None:
    """One after the other, in one shell, as a reader would in a checkout."""
    work = tmp_path / "checkout"
    work.mkdir()
    for part in ("dags", "docker", "airflow_resume_provider", "pyproject.toml", "README.md", "LICENSE"):
        (work / part).symlink_to(CHECKOUT / part)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "RESUME"))}
    environment = {**clean, **lineage, "PATH": f"{BIN}:{os.environ['PATH']}"}
    # `pip wheel` builds with what is installed; elsewhere it fetches hatchling first.
    environment["PIP_NO_BUILD_ISOLATION"] = "0"
    try:
        with (tmp_path / "output").open("w+") as output:
            done = subprocess.run(
                ["bash", "-c", script(page)],
                cwd=work,
                env=environment,
                stdout=output,
                stderr=output,
                check=False,
            )
            output.seek(0)
            said = output.read()
    finally:
        subprocess.run([BIN / "resume-local", "down"], cwd=work, check=False, capture_output=True)
    assert done.returncode == 0, said[-6000:]
    if page.name == "tutorial.md":
        assert "resumes at step" in said
        assert "Attempt 1: preempted" in said
        assert "Attempt 2: succeeded" in said
