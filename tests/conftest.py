"""Fixtures of the tests that cross packages: tiny checkpoints, and every installed platform by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from driver import build, installed_platforms, model_source, open_platform
from equality import Reference, hf_reference
from served import make_tiny_folder
from tiny_models import TINY, TinyModel, make_tiny

from tenon_core.engine.assembly import Assembled

PLATFORMS = ("reference", "cpu", "sim")  # those whose arithmetic can be compared here


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and threads that wait for each other on a busy machine cost seconds."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """Makes a tiny checkpoint once a session."""
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def make(name: str) -> TinyModel:
        return make_tiny(name, folder)

    return make


@pytest.fixture(scope="session")
def reference_of(tiny_model: Callable[[str], TinyModel]) -> Callable[[str], Reference]:
    """The Transformers reference of a tiny checkpoint."""

    @cache
    def make(name: str) -> Reference:
        return hf_reference(tiny_model(name).model)

    return make


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with a byte tokenizer, for servers."""
    return make_tiny_folder(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(params=sorted(TINY))
def tiny_name(request: pytest.FixtureRequest) -> str:
    """Every tiny checkpoint's name."""
    name: str = request.param
    return name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`platform_name`: every installed platform of `PLATFORMS`."""
    if "platform_name" in metafunc.fixturenames:
        metafunc.parametrize("platform_name", installed_platforms(PLATFORMS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Variants of a family, and what the single-group model shows as well, run everywhere under `-m full` only."""
    for item in items:
        known = getattr(item, "callspec", None)
        values = {} if known is None else known.params
        if values.get("platform_name") == "reference":
            continue
        is_variant = "tiny_name" in values and values["tiny_name"] not in ("llama", "qwen2", "qwen3_moe", "gemma3")
        is_repeat = values.get("model") == "gemma3" and values.get("variant") in ("eager", "three rows", "no chunking")
        if is_variant or is_repeat:
            item.add_marker(pytest.mark.full)


@pytest.fixture
def build_tiny(tiny_model: Callable[[str], TinyModel]) -> Callable[..., Assembled]:
    """build_tiny(name, platform_name, **flat configuration) -> an assembled engine."""

    def make(
        name: str,
        platform_name: str,
        *,
        eos_token_ids: tuple[int, ...] = (),
        platform_options: dict[str, Any] | None = None,
        tokenizer_json: Callable[[], str] | None = None,
        **flat: Any,
    ) -> Assembled:
        tiny = tiny_model(name)
        source = model_source(tiny.path, tiny.config, eos_token_ids=eos_token_ids)
        source = replace(source, tokenizer_json=tokenizer_json)
        return build(source, open_platform(platform_name, **(platform_options or {})), **flat)

    return make
