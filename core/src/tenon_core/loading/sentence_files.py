"""What a sentence-transformers folder holds beside the model: which modules follow it, and their settings.

    modules.json                 the modules in order
    1_Pooling/config.json        how token states become one vector
    2_Dense/config.json, model.safetensors
    2_Normalize/                 nothing to read
    sentence_bert_config.json    where texts are cut

A module that is not known, or stands where it cannot be served, is refused by name. Nothing named there is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenon_core.models.heads import DenseModule, SentenceLayout
from tenon_platforms.errors import ConfigError

from .files import confined, existing, parse_json, read_bounded, read_json
from .strict_json import loads_strict

MODULES, LENGTHS = "modules.json", "sentence_bert_config.json"
MAX_MODULES, MAX_FEATURES = 16, 1 << 20
_POOLINGS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {"cls": "first", "mean": "mean", "lasttoken": "last"}
_ACTIVATIONS = {"identity": "", "tanh": "tanh", "relu": "relu", "gelu": "gelu", "silu": "silu"}


def read_sentence_layout(folder: Path) -> SentenceLayout | None:
    """The layout of a folder, or None where it is no sentence-transformers model. Raises `ConfigError`."""
    listed = existing(folder, MODULES)
    if listed is None:
        return None
    pooling: str | None = None
    normalize, dense = False, []
    for kind, path in _modules(listed):
        if kind == "Transformer" and pooling is None:
            continue
        if kind == "Pooling" and pooling is None:
            pooling = _pooling(_settings(folder, path), f"{folder}/{path}")
        elif kind == "Dense" and pooling is not None and not normalize:
            dense.append(_dense(_settings(folder, path), path))
        elif kind == "Normalize" and pooling is not None:
            normalize = True
        else:
            raise ConfigError(
                f"{listed} names the module {kind!r:.80} where it is not served: served are Transformer, Pooling, Dense"
                " and Normalize, in this order"
            )
    if pooling is None:
        return None  # a cross-encoder's folder, or a bare model's
    return SentenceLayout(pooling=pooling, normalize=normalize, dense=tuple(dense), max_length=max_length(folder))


def max_length(folder: Path) -> int | None:
    """Where texts are cut, in tokens, if the folder says so."""
    file = existing(folder, LENGTHS)
    value = None if file is None else read_json(file).get("max_seq_length")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{file} has max_seq_length = {value!r:.80}: expected a whole number above 0")
    return value


def _modules(file: Path) -> list[tuple[str, str]]:
    """(class name, folder) of every module in order."""
    try:
        listed = loads_strict(read_bounded(file), max_depth=8, max_digits=32)
    except ValueError as error:
        raise ConfigError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_MODULES:
        raise ConfigError(f"{file} is no list of 1 to {MAX_MODULES} modules")
    found = []
    for one in listed:
        kind, path = (one.get("type"), one.get("path", "")) if isinstance(one, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ConfigError(f"{file} holds a module without a type or path")
        found.append((kind.rpartition(".")[2], path))
    return found


def _settings(folder: Path, path: str) -> dict[str, Any]:
    file = confined(folder, f"{path}/config.json", named_by=str(folder / MODULES))
    return parse_json(read_bounded(file), str(file))


def _pooling(settings: dict[str, Any], where: str) -> str:
    named = settings.get("pooling_mode")
    if named is not None:
        if named not in _NAMES:
            raise ConfigError(f"{where} pools by {named!r:.80}: served are {', '.join(_NAMES)}")
        return _NAMES[named]
    wanted = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    if len(wanted) != 1 or wanted[0] not in _POOLINGS:
        raise ConfigError(f"{where} pools by {', '.join(wanted) or 'nothing'}: served is one of {', '.join(_POOLINGS)}")
    return _POOLINGS[wanted[0]]


def _dense(settings: dict[str, Any], path: str) -> DenseModule:
    def size(key: str) -> int:
        value = settings.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_FEATURES:
            raise ConfigError(f"{path} has {key} = {value!r:.80}: expected 1 to {MAX_FEATURES}")
        return value

    activation = str(settings.get("activation_function") or "torch.nn.Identity").rpartition(".")[2].lower()
    if activation not in _ACTIVATIONS:
        raise ConfigError(f"{path} has the activation {activation!r:.80}: served are {', '.join(_ACTIVATIONS)}")
    return DenseModule(
        folder=path,
        in_features=size("in_features"),
        out_features=size("out_features"),
        bias=settings.get("bias", True) is True,
        activation=_ACTIVATIONS[activation],
    )
