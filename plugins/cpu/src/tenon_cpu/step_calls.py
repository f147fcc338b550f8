"""The step's native kernels as Python calls: the structs of native/src/step/params.h and the functions that take them.

A call builds the struct, runs the kernel and raises what it answered; while a tape records, the library also keeps a
copy (native/src/tape.h). Pointers are of tensors that the caller keeps alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from . import native

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
KV_TYPES = {**TYPES, torch.int8: 3}  # with a scale for each token of a head
CODES = {"p": ctypes.c_void_p, "q": ctypes.c_int64, "i": ctypes.c_int32, "f": ctypes.c_float}

# name: fields in order, "letter:names"
STRUCTS: dict[str, str] = {
    "attention_plan": "p:rows,query_starts,seq_lens,num_valid,plan q:num_rows i:threads,kv_heads,group,window,causal,_",
    "attention": (
        "p:query,output,cache,sinks,block_table,plan,partials,counters q:table_stride,tokens,cache_stride"
        " i:block_size,heads,kv_heads,dim,window,causal,type,kv_type f:scale,soft_cap"
    ),
    "write_kv": (
        "p:key,value,cache,slots q:tokens,key_stride,value_stride,cache_stride i:block_size,kv_heads,dim,type,kv_type,_"
    ),
    "exchange_blocks": "p:cache,canonical,blocks q:count,cache_stride i:block_size,kv_heads,dim,kv_type,imports,_",
    "qk_norm_rope_write": (
        "p:qkv,query,positions,cos_sin,q_weight,k_weight,cache,slots q:tokens,cache_stride"
        " i:block_size,heads,kv_heads,dim,rotary_dim,interleaved,type,kv_type f:q_eps,k_eps,q_offset,k_offset"
    ),
    "rms_norm": "p:x,residual,weight,y,total q:rows,hidden f:eps,offset i:type,_",
    "activation_mul": "p:x,y q:rows,width i:activation,type",
    "gather": "p:source,target,index q:count,line i:scatters,_",
    "scalar": "p:source,target q:count i:operation,amount f:factor,_",
    "choose": "p:condition,first,second,target q:count",
    "prepare_inputs": (
        "p:token_ids,positions,token_rows,rows,num_valid,last_tokens,block_tables,ids,slots"
        " q:tokens,all_rows,blocks i:groups,block_size"
    ),
    "sample": "p:logits,params,positions,counts,edits,grammar_mask,tokens q:rows,vocab i:mode,type",
    "exchange": "p:x,shared q:count,slot_bytes,patience_ms i:rank,size,type,source",
    "token_logprobs": "p:logits,tokens,chosen,rank,top_ids,top q:rows,vocab,k i:type,_",
}

Call = Callable[..., None]


@cache
def kernel(name: str) -> Call:
    """The call of one kernel; arguments are the struct's fields by name, tensors stand for their pointers."""

    def call(**values: Any) -> None:
        bound(name, **values)()

    return call


def bound(name: str, **values: Any) -> Callable[[], None]:
    """The same call with its arguments fixed, to be made again and again; the caller keeps its tensors alive."""
    struct, run = _kernel(name)
    params = struct(**{key: value.data_ptr() if isinstance(value, Tensor) else value for key, value in values.items()})
    address = ctypes.addressof(params)

    def call(kept: Any = params) -> None:
        if status := run(address):
            native.check(status, f"the native kernel {name}")

    return call


@cache
def _kernel(name: str) -> tuple[Any, Any]:
    """(struct of the parameters, function) of one kernel."""
    fields = [(field, CODES[code]) for code, names in _parts(name) for field in names]
    struct = type(f"{name}_params", (ctypes.Structure,), {"_fields_": fields})
    return struct, native.function(f"tenon_{name}", ctypes.c_void_p)


def _parts(name: str) -> list[tuple[str, list[str]]]:
    found = (part.split(":") for part in STRUCTS[name].split())
    return [(code, names.split(",")) for code, names in found]
