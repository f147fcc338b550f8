"""Architecture, section 8.1 and what belongs to it: rules that are checked by reading the sources.

Each rule is run on our tree, and on a planted tree that breaks it once: a rule that cannot fail says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from architecture.rules import callers, deserialisers, device_names, outside_imports, secrets, text
from architecture.sources import PACKAGES, ROOT, Source, ours, planted, python_of

pytestmark = pytest.mark.unit
PYPROJECT = {
    "tenon_platforms": ROOT / "platforms" / "pyproject.toml",
    "tenon_core": ROOT / "core" / "pyproject.toml",
    "tenon_plugin_sdk": ROOT / "plugin_sdk" / "pyproject.toml",
    "tenon_cpu": ROOT / "plugins" / "cpu" / "pyproject.toml",
    "tenon_cuda": ROOT / "plugins" / "cuda" / "pyproject.toml",
    "tenon_sim": ROOT / "plugins" / "sim" / "pyproject.toml",
    "tenon_triton": ROOT / "plugins" / "triton" / "pyproject.toml",
}
Plant = Callable[..., list[Source]]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """plant(**{"tenon_core/a.py": text}) -> sources."""

    def make(**files: str) -> list[Source]:
        return planted(tmp_path, files)

    return make


def report(found: list[str]) -> str:
    return "\n".join(["", *found])


# imports


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_imports_only_what_it_declares(package: str) -> None:
    assert python_of(ours(package)), f"{package} has no sources"
    allowed = outside_imports.declared(PYPROJECT[package])
    extras = {extra: outside_imports.declared(PYPROJECT["tenon_core"], extra=extra) for extra in outside_imports.EXTRAS}
    found = outside_imports.violations(
        python_of(ours(package)), package, allowed, extras if package == "tenon_core" else {}
    )
    assert not found, report(found)


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("tenon_platforms", "import tenon_core"),
        ("tenon_platforms", "from tenon_core.engine import engine"),
        ("tenon_platforms", "import fastapi"),
        ("tenon_core", "def lazy():\n    import tenon_cpu"),
        ("tenon_core", "from importlib import import_module\nimport_module('tenon_sim.device')"),
        ("tenon_core", "import transformers"),
        ("tenon_cpu", "from tenon_core import LLM"),
        ("tenon_cpu", "import tenon_plugin_sdk"),
        ("tenon_cpu", "import tenon_triton"),
        ("tenon_triton", "import tenon_cuda"),
        ("tenon_triton", "import pynvml"),
        ("tenon_plugin_sdk", "from tenon_core.engine.engine import Engine"),
    ],
)
def test_a_forbidden_import_is_found(plant: Plant, package: str, line: str) -> None:
    sources = plant(**{f"{package}/__init__.py": "", f"{package}/planted.py": line})
    allowed = outside_imports.declared(PYPROJECT[package])
    assert len(outside_imports.violations(sources, package, allowed)) == 1


# device names


@pytest.mark.parametrize("package", ["tenon_platforms", "tenon_core"])
def test_core_and_contract_name_no_device(package: str) -> None:
    found = device_names.violations(ours(package))
    assert not found, report(found)


def test_the_kernel_library_names_no_device_but_its_language() -> None:
    sources = ours("tenon_triton")
    language = {(source.name, "triton"): "its language" for source in sources}
    target = {("tenon_triton/early.py", "cuda"): "the language's own word for the one target that has early launches"}
    found = device_names.violations(sources, language | target)
    assert not found, report(found)


def test_the_list_of_allowed_device_names_is_empty() -> None:
    assert not device_names.ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.cuda.synchronize()",
        "is_cuda = False",
        "class CudaGraph: ...",
        "def f(tensor): return tensor.hip_stream",
        "device = 'npu:0'",
        "import triton",
        "# works on Gaudi only",
        '"""For NVIDIA."""',
        "import torch\ntorch.accelerator.current_device_index()",
        "def f(device): return device.type == 'cpu'",
    ],
)
def test_a_device_name_is_found(plant: Plant, line: str) -> None:
    assert device_names.violations(plant(**{"tenon_core/__init__.py": "", "tenon_core/planted.py": line}))


def test_a_device_name_in_a_data_file_is_found(plant: Plant) -> None:
    table = 'name = "cuda"\n'
    assert device_names.violations(plant(**{"tenon_platforms/builtin/platform.toml": table}))
    assert not device_names.violations(plant(**{"tenon_platforms/known_hardware.toml": table}))[1:]


def test_words_that_only_contain_a_device_name_are_fine(plant: Plant) -> None:
    text_of = "# ships ascending relationships, hipster, intelligible\nchipset = 'metallic'\n"
    assert not device_names.violations(plant(**{"tenon_core/planted.py": text_of}))


# object deserialisers


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_product_code_can_load_objects(package: str) -> None:
    found = deserialisers.violations(python_of(ours(package)))
    assert not found, report(found)


def test_no_script_benchmark_or_test_loads_objects() -> None:
    scripts = [
        Source(path, path.relative_to(ROOT).as_posix(), "") for path in text.text_files(ROOT) if path.suffix == ".py"
    ]
    tests = [source for source in scripts if "tests" in Path(source.name).parts]
    assert tests
    found = deserialisers.violations([source for source in scripts if source not in tests])
    found += deserialisers.violations(tests, is_test=True)
    assert not found, report(found)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "def lazy():\n    import cloudpickle",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import numpy\nnumpy.load('x', allow_pickle=True)",
        "def f(socket): return socket.recv_pyobj()",
        "eval('1')",
        "exec('1')",
        "from multiprocessing import Queue",
        "import torch\ntorch.serialization.load('x', weights_only=True)",
    ],
)
def test_an_object_deserialiser_is_found(plant: Plant, line: str) -> None:
    assert deserialisers.violations(plant(**{"tenon_core/planted.py": line}))


def test_tests_may_make_such_files_but_not_load_them(plant: Plant) -> None:
    makes = plant(**{"tests/test_a.py": "import pickle\npickle.dump(1, open('x', 'wb'))"})
    assert not deserialisers.violations(makes, is_test=True)
    loads = plant(**{"tests/test_a.py": "import pickle\npickle.load(open('x', 'rb'))"})
    assert deserialisers.violations(loads, is_test=True)


# secrets


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_secrets_are_compared_in_constant_time(package: str) -> None:
    found = secrets.violations(python_of(ours(package)))
    assert not found, report(found)


@pytest.mark.parametrize(
    "line",
    [
        "def f(self, sent): return sent == self.secret",
        "def f(config, key): return key in config.api_key",
        "def f(a, b): return sha256(a).digest() != b",
        "def f(known, digest): return digest.hex() == known",
        "def f(password, sent): return password.startswith(sent)",
    ],
)
def test_a_comparison_that_tells_is_found(plant: Plant, line: str) -> None:
    assert len(secrets.violations(plant(**{"tenon_core/planted.py": line}))) == 1


# callers


def test_every_op_has_a_caller_in_core_and_a_reference() -> None:
    found = callers.op_violations(python_of(ours("tenon_platforms")), python_of(ours("tenon_core")))
    assert not found, report(found)


def test_every_hook_is_fired_by_core() -> None:
    found = callers.hook_violations(python_of(ours("tenon_platforms")), python_of(ours("tenon_core")))
    assert not found, report(found)


def test_every_capability_is_read_by_core() -> None:
    found = callers.capability_violations(python_of(ours("tenon_platforms")), python_of(ours("tenon_core")))
    assert not found, report(found)


def test_every_reference_can_be_imported() -> None:
    from importlib import import_module

    from tenon_platforms.ops.references import REFERENCES

    for op, reference in REFERENCES.items():
        module, _, name = reference.factory.partition(":")
        assert callable(getattr(import_module(module), name)), op


CONTRACT = {
    "tenon_platforms/ops/specs.py": (
        "class NormSpec:\n    op: ClassVar[str] = 'norm'\n"
        "class MLPSpec:\n    op: ClassVar[str] = 'mlp'\n"
        "class ActSpec:\n    op: ClassVar[str] = 'act'\n"
    ),
    "tenon_platforms/ops/references.py": (
        "REFERENCES: dict[str, Reference] = {\n"
        "    'norm': _here('ref:norm'), 'mlp': _here('mlp_ref:mlp'), 'act': _here('ref:act')\n}\n"
    ),
    "tenon_platforms/ops/mlp_ref.py": "def mlp(spec, table):\n    return table.choose(ActSpec())\n",
    "tenon_platforms/ops/ref.py": "",
    "tenon_platforms/hooks.py": (
        "class HookSpecs:\n    @hookspec\n    def tenon_ready(self): ...\n"
        "class ControlPlane:\n    def ready(self):\n        self._manager.hook.tenon_ready()\n"
    ),
    "tenon_platforms/capabilities.py": (
        "class Capabilities:\n    dtypes: tuple\n    def best(self): return self.dtypes[0]\n"
    ),
}
CORE = {
    "tenon_core/builder.py": "table.choose(NormSpec())\ntable.choose(MLPSpec())\ncontrol_plane().ready()\ncan.best()\n"
}


def split(sources: list[Source]) -> tuple[list[Source], list[Source]]:
    contract = [one for one in sources if one.name.startswith("tenon_platforms")]
    return contract, [one for one in sources if one not in contract]


def test_what_has_callers_passes(plant: Plant) -> None:
    contract, core = split(plant(**CONTRACT, **CORE))
    assert callers.op_violations(contract, core) == []
    assert callers.hook_violations(contract, core) == []
    assert callers.capability_violations(contract, core) == []


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (callers.op_violations, "table.choose(NormSpec())"),
        (callers.op_violations, "table.choose(MLPSpec())"),  # act dies with it
        (callers.hook_violations, "control_plane().ready()"),
        (callers.capability_violations, "can.best()"),
    ],
)
def test_what_lost_its_caller_is_found(plant: Plant, rule: Callable[..., list[str]], line: str) -> None:
    (name, body), *_ = CORE.items()
    assert rule(*split(plant(**CONTRACT, **{name: body.replace(line, "")})))


def test_an_op_without_a_reference_is_found(plant: Plant) -> None:
    table = "tenon_platforms/ops/references.py"
    without = {**CONTRACT, table: CONTRACT[table].replace("'norm': _here('ref:norm'), ", "")}
    assert callers.op_violations(*split(plant(**without, **CORE))) == ["op 'norm' (NormSpec) has no reference kernel"]


# texts


def test_all_files_are_ascii_and_name_no_registry() -> None:
    files = list(text.text_files(ROOT))
    assert len(files) > 100
    found = text.violations(files, ROOT)
    assert not found, report(found)


@pytest.mark.parametrize("line", ["caf\u00e9 = 1", "# see https://" + text.HOSTS[0] + "/project/x"])
def test_a_text_that_breaks_the_rule_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "planted.py").write_text(line, encoding="utf-8")
    assert len(text.violations(text.text_files(tmp_path), tmp_path)) == 1
