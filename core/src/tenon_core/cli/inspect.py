"""`tenon inspect MODEL`: what a model is made of. Reads its configuration and its tensors' index; no weights."""

from __future__ import annotations

from typing import Any

import click

from .flags import ENGINE_SECTIONS, SectionedCommand, config_flags, engine_config
from .output import human_bytes, human_count, print_json, print_pairs, print_table


@click.command(cls=SectionedCommand)
@click.option("--architectures", is_flag=True, help="List the architectures that are served, by family.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@config_flags(ENGINE_SECTIONS[0])
def inspect(architectures: bool, as_json: bool, **values: Any) -> None:
    """Show a model's layers, parameters, context and KV cache."""
    if architectures:
        _architectures(as_json)
        return
    from .model_card import open_card, summary

    found = summary(open_card(engine_config(values, kinds=ENGINE_SECTIONS[:1])))
    if as_json:
        print_json(found)
    else:
        _print(found)


def _architectures(as_json: bool) -> None:
    from tenon_core.models.registry import families

    listed = {name: list(family.architectures) for name, family in families().items()}
    if as_json:
        print_json(listed)
    else:
        print_table("model families", ("family", "architectures"), [(n, ", ".join(a)) for n, a in listed.items()])


def _print(found: dict[str, Any]) -> None:
    head = f"{found['head']['kind'].replace('_', ' ')}{', tied to the embedding' if found['head']['tied'] else ''}"
    print_pairs(
        (
            ("model", found["model"]),
            ("path", found["path"]),
            ("format", found["format"]),
            ("architecture", f"{found['architecture']} (family {found['family']})"),
            ("parameters", f"{human_count(found['parameters'])}, {human_bytes(found['bytes'])}"),
            ("type", found["dtype"]),
            ("context", f"{found['context']} tokens"),
            ("vocabulary", found["vocabulary"]),
            ("hidden", found["hidden"]),
            ("head", head),
            ("end tokens", ", ".join(map(str, found["eos_token_ids"])) or "none"),
            ("chat template", "yes" if found["chat_template"] else "no"),
            ("KV cache", f"{human_bytes(found['kv_bytes_per_token'])} a token in {found['kv_dtype']}"),
        )
    )
    click.echo(f"\n{found['num_layers']} layers: {found['layer_pattern']}")
    for kind in found["layers"]:
        click.echo(f"  {kind['kind']} x{kind['count']}")
        click.echo(f"     {kind['mixer']}\n     {kind['ffn']}\n     norms: {kind['norms']}")
    click.echo()
    print_table(
        "weights",
        ("scheme", "tensors", "parameters", "bytes"),
        [
            (item["scheme"], item["tensors"], human_count(item["parameters"]), human_bytes(item["bytes"]))
            for item in found["weights"]
        ],
        right=("tensors", "parameters", "bytes"),
    )
    click.echo()
    print_table(
        "layer groups (each has its own block table)",
        ("group", "layers", "window", "KV heads", "head dim", "KV bytes a token"),
        [
            (
                index,
                len(group["layers"]),
                group["window"] or "none",
                group["num_kv_heads"],
                group["head_dim"],
                group["kv_bytes_per_token"],
            )
            for index, group in enumerate(found["groups"])
        ],
        right=("group", "layers", "window", "KV heads", "head dim", "KV bytes a token"),
    )
