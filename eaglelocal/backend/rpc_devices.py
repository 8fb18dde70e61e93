"""Connect llama.cpp to rpc-servers, whose devices then count as GPUs, and keep the output on this machine.

Logits are needed here, and heads read states here: with the output on the last device, which may be a server's, both
would cross the link, and drafts over RPC have crashed llama.cpp.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Sequence

from eaglelocal.backend.llama_library import LlamaLibrary, bind
from eaglelocal.errors import EngineError, LibraryError

ADD_SERVER = b"ggml_backend_rpc_add_server"
# tensors of the output, of models with tied embeddings too
OUTPUT_TENSORS = rb"^(output|output_norm|token_embd)\.weight$"


def connect_rpc_servers(library: LlamaLibrary, addresses: Sequence[str]) -> None:
    """Make the devices of these servers known to llama.cpp. They must have answered: for others it aborts.

    Raises LibraryError if it was built without RPC, EngineError for a server without devices.
    """
    if not addresses:
        return
    native = C.CDLL(library.api._lib._name)
    registry = bind(native, "ggml_backend_reg_by_name", [C.c_char_p], C.c_void_p)(b"RPC")
    if not registry:
        raise LibraryError("--rpc: llama.cpp here was built without RPC", hint="eaglelocal doctor")
    find = bind(native, "ggml_backend_reg_get_proc_address", [C.c_void_p, C.c_char_p], C.c_void_p)
    add_server = C.CFUNCTYPE(C.c_void_p, C.c_char_p)(find(registry, ADD_SERVER))
    register = bind(native, "ggml_backend_register", [C.c_void_p], None)
    for address in addresses:
        devices = add_server(address.encode())
        if not devices:
            raise EngineError(f"the rpc-server {address} has no device")
        register(devices)
