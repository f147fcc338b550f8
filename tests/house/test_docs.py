"""The documentation's code runs: the platform that docs/writing-a-platform.md builds serves the tiny model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from architecture.clean_path import clean_path, write_metadata
from architecture.sources import ROOT
from driver import prompts_of
from equality import Reference, assert_greedy_equal
from tiny_models import TinyModel

from tenon_plugin_sdk.scaffold.write import write_plugin

pytestmark = pytest.mark.e2e
PAGE = ROOT / "docs" / "writing-a-platform.md"
BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = {
    "tenon-sdk": ("-m", "tenon_plugin_sdk.scaffold.cli"),
    "tenon": ("-m", "tenon_core.cli.main"),
    "pytest": (
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tenon_plugin_sdk.conformance.plugin"),
        *("-p", "tenon_plugin_sdk.conformance.replay.plugin"),
    ),
}
OTHERS_FLAGS = {"--device", "--pyargs", "--streams"}  # of programs that are not ours, named in a page
OTHERS_COMMANDS = re.compile(r"(?:lm_eval|guidellm|python -m grpc_tools)\b[^`\n]*")
KIT_FLAGS = {
    "--replay",
    "--level",
    "--profile",
    "--report",
    "--html",
    "--exceptions",
    "--seeds",
    "--first-seed",
    "--part",
    "--baseline",
    "--baseline-ratio",
}  # of the conformance kit, for pytest
YAML = re.compile(r"^```yaml\n# \S+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)(?:#[^)]*)?\)")
RUN = """
import json, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from driver import build, drive, model_source, open_platform, request
from tenon_platforms.selection import SelectionRequest, select

machine = Path(sys.argv[4])  # has a /dev/thing0
assert select(SelectionRequest(root=machine)).manifest.name == "thing"
checkpoint = Path(sys.argv[1])
source = model_source(checkpoint, json.loads((checkpoint / "config.json").read_text()))
made = build(source, open_platform("thing"))
prompts = json.loads(sys.argv[3])
outcome = drive(made.engine, [request(i, prompt, max_tokens=16) for i, prompt in enumerate(prompts)])
print(json.dumps({
    "tokens": [outcome.of(i) for i in range(len(prompts))],
    "sources": {choice.spec.op: choice.source for choice in made.table.choices},
}))
"""


@pytest.fixture(scope="module")
def thing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's package, laid out as its file names say."""
    folder = tmp_path_factory.mktemp("thing")
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) >= 5, "the page shows fewer files than it speaks of"
    for name, text in blocks:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "tenon_thing" / "__init__.py").write_text('"""The thing."""\n')
    (folder / "tenon_thing" / "ops" / "__init__.py").write_text("")
    write_metadata(folder, folder / "pyproject.toml")
    return folder


def test_the_platform_of_the_page_serves_a_model(
    thing: Path,
    tiny_model: Callable[[str], TinyModel],
    reference_of: Callable[[str], Reference],
    tmp_path: Path,
) -> None:
    prompts = prompts_of((1, 20, 60))
    node = tmp_path / "machine" / "dev" / "thing0"
    node.parent.mkdir(parents=True)
    node.touch()
    path = clean_path(tmp_path, ("tenon_platforms", "tenon_core"), extra=[thing])
    done = path.run(
        RUN, str(tiny_model("llama").path), str(ROOT / "tests"), json.dumps(prompts), str(tmp_path / "machine")
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["sources"]["rms_norm"] == "thing"
    assert found["sources"]["merged_linear"] == "thing"
    assert found["sources"]["attention"] == "thing"
    assert found["sources"]["rope"] == "reference"
    for prompt, tokens in zip(prompts, found["tokens"], strict=True):
        assert_greedy_equal(tokens, reference_of("llama"), prompt, label="the page's platform")


def test_the_scaffold_is_typed_before_and_after_it_is_filled_in(tmp_path: Path) -> None:
    """`mypy --strict` of what `tenon-sdk new` writes, and of the same with the page's kernels in its files."""
    _, fresh, _ = write_plugin("acme", tmp_path / "acme")
    _, filled, written = write_plugin("thing", tmp_path / "thing")
    for name, text in BLOCK.findall(PAGE.read_text()):
        if name.startswith("tenon_thing/"):
            assert Path("src", name) in written, f"the scaffold has no {name}, which the page fills in"
            (filled / "src" / name).write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10"]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "plugins"), str(fresh / "src"), str(filled / "src")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_platform_of_the_page_is_held_to_the_kit(thing: Path, tmp_path: Path) -> None:
    """The page's suite passes; the page's exception is not needed, so with it the same run fails."""
    (exceptions,) = YAML.findall(PAGE.read_text())
    file = tmp_path / "conformance.yaml"
    file.write_text(exceptions)
    search = os.pathsep.join([str(thing), *sys.path])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tenon_plugin_sdk.conformance.plugin"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(thing), str(thing / "tests" / "test_conformance.py")]
    command += [
        "-k",
        "L1 or manifest or patches or L2/rms_norm or L2/merged_linear or L2/attention or L2/kv_cache or lattice",
    ]
    for extra, code, said in (([], 0, "none failed"), (["--exceptions", str(file)], 1, "1 failed")):
        done = subprocess.run(
            [*command, *extra], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": search}
        )
        assert done.returncode == code, done.stdout[-4000:] + done.stderr[-2000:]
        assert said in done.stdout


def test_every_block_of_the_page_is_run() -> None:
    """Code is a file of the package, YAML the kit's, a shell's lines commands: nothing on the page is only shown."""
    for language, text in FENCE.findall(PAGE.read_text()):
        if language == "sh":
            assert {line.split()[0] for line in text.splitlines()} <= set(COMMANDS), text
        else:
            assert language in ("python", "toml", "yaml") and text.startswith("# "), text


def test_the_commands_of_the_page_work(thing: Path, tiny_folder: Path, tmp_path: Path) -> None:
    """In their order, on the tiny model: first the scaffold as it is, then with the page's kernels in it."""
    lines = [line for block in SHELL.findall(PAGE.read_text()) for line in block.splitlines()]
    assert lines[0] == "tenon-sdk new thing"
    path = [*filter(None, sys.path)]
    _run_line(lines[0], tmp_path, path, tiny_folder)
    plugin = tmp_path / "tenon-thing"
    write_metadata(plugin / "src", plugin / "pyproject.toml")
    for line in lines[1:]:
        if line.startswith("tenon ops record"):
            for name in ("attention.py", "ops/linear.py", "ops/offers.py"):
                shutil.copy(thing / "tenon_thing" / name, plugin / "src" / "tenon_thing" / name)
        _run_line(line, plugin, [str(plugin / "src"), *path], tiny_folder)
    assert (plugin / "cases.safetensors").exists()


def _run_line(line: str, folder: Path, path: list[str], model: Path) -> None:
    program, *words = line.split()
    given = [str(model) if word == "MODEL" else word for word in words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *COMMANDS[program], *given]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=300)
    assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


@pytest.mark.parametrize("name", ["platform.py", "device.py", "attention.py", "ops/offers.py", "ops/linear.py"])
def test_the_code_of_the_page_passes_the_linter(thing: Path, name: str) -> None:
    file = thing / "tenon_thing" / name
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "E,F,W,B,UP",
        "--line-length",
        "120",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "page",
    sorted(
        [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("plugins/*/*.md")]
    ),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", ["README.md", "docs/serving.md", "docs/security.md", "docs/writing-a-platform.md"])
def test_flags_named_in_a_page_exist(name: str) -> None:
    lines = (ROOT / "tests" / "surfaces" / "cli_flags.txt").read_text().splitlines()
    known = {word for line in lines for word in line.split() if word.startswith("--")}
    named = set(FLAG.findall(OTHERS_COMMANDS.sub("", (ROOT / name).read_text()))) - OTHERS_FLAGS - KIT_FLAGS
    assert not named - known - {"--help"}, f"{name} names flags that do not exist: {sorted(named - known)}"


def test_metrics_named_in_a_page_exist() -> None:
    known = {line.split()[0] for line in (ROOT / "tests" / "surfaces" / "metrics.txt").read_text().splitlines()}
    named = set(re.findall(r"tenon:[a-z_]+", (ROOT / "docs" / "serving.md").read_text()))
    assert named, "the page names no metric"
    assert not named - known
