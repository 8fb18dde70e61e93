"""The llama.cpp library: version check, the symbols we call, the log, and the clock of time spent inside.

Knows ctypes and names, not models. Some symbols come from a staging header (llama-ext.h), which no
module of llama-cpp-python binds. It may change with any build, so only the version that was checked is accepted.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import functools
import os
import re
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from eaglelocal.backend.cpu_attention import install_attention, install_products
from eaglelocal.backend.cpu_repack import AMX, find_layouts
from eaglelocal.backend.native_step import SYMBOLS, NativeStep, get_function
from eaglelocal.core.run_options import suggest_ctx
from eaglelocal.core.user_paths import read_package_version
from eaglelocal.errors import EagleLocalError, EngineError, LibraryError, ResourceError
from eaglelocal.memory.budget import RAM, FreeMemory

CHECKED_VERSION = "0.3.36"
BUILD = f"llama-cpp-python {CHECKED_VERSION}"
CACHE_FULL = 1  # returned by llama_decode when its cache is full; the codes below are those of native/native_step.h
NATIVE_CODES = {
    1001: "a row has no logits: it was not an output row",
    1002: "the draft head returned no states",
    1003: "the target returned no rows for a tapped layer",
    1004: "the draft head cannot remove positions",
    1005: "the context is closed",
}
LOST = "failed with status"  # logged by llama.cpp when Metal work failed, which it then treats as done
MAX_LINE_CHARS = 1000  # of a log line: llama.cpp logs names and templates in full
WARNING = 3  # ggml_log_level; 4 is error
PACKAGE = "llama_cpp"
WRAPPER = "llama_cpp.llama"  # the module of the class Llama
REINSTALL = f'pip install "llama-cpp-python=={CHECKED_VERSION}"'


class NativeClock:
    """Counts seconds spent inside llama.cpp, by the thread that owns the context: `with clock: ...`."""

    __slots__ = ("_started_at", "seconds")

    def __init__(self) -> None:
        self.seconds = self._started_at = 0.0

    def __enter__(self) -> None:
        self._started_at = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started_at


class LlamaLog:
    """llama.cpp's log: the buffer sizes since `forget_buffers`, and the lines since `begin`, to explain a failure."""

    def __init__(self) -> None:
        self.buffer_lines: list[str] = []
        self._recent: deque[str] = deque(maxlen=500)
        self._part = ""

    def write(self, text: str) -> None:
        first, *others = text.split("\n")
        *whole, self._part = ((self._part + first)[:MAX_LINE_CHARS], *(line[:MAX_LINE_CHARS] for line in others))
        self._recent.extend(whole)
        self.buffer_lines.extend(line for line in whole if "buffer size" in line)

    def forget_buffers(self) -> None:
        """Forget the buffer sizes, before an engine is loaded: a process may have loaded others."""
        self.buffer_lines.clear()

    def begin(self) -> None:
        """Forget recent lines, before something that may fail."""
        self._recent.clear()

    def reason(self) -> str:
        """Return why something failed: the first error line since `begin`, else the last line."""
        words = ("error", "failed", "invalid", "unable", "missing", "mismatch")
        errors = [line for line in self._recent if any(word in line.lower() for word in words)]
        found = errors[:1] or list(self._recent)[-1:]
        return found[0].strip() if found else "it gave no reason"


class LlamaLibrary:
    """The checked llama_cpp module. There is one per process, because llama.cpp's own state is global."""

    def __init__(self, api: ModuleType) -> None:
        self.api = api
        self.log = LlamaLog()
        self.lost_work = ""  # llama.cpp's message about failed GPU work
        self._echoes_all = bool(os.environ.get("EAGLELOCAL_ENGINE_LOG"))
        self.build = BUILD
        self.log_callback = api.llama_log_callback(self._on_log)  # kept alive: llama.cpp holds only the address
        api.llama_log_set(self.log_callback, C.c_void_p(0))
        api.llama_backend_init()
        self.path: str = api._lib._name  # of the shared library
        native = C.PyDLL(self.path)  # a handle of our own: restypes set here do not leak into llama_cpp
        self._bind_short_calls(native)
        self.has_cpu_attention = install_attention(native)
        self.row_products = install_products(native) if self.has_cpu_attention else ()  # types whose rows round alike
        self.layouts = find_layouts(native)  # that llama.cpp may use for quantized weights
        self.native_step = NativeStep(
            [C.cast(bind(native, symbol, [], None), C.c_void_p).value for symbol in SYMBOLS.values()]
        )

    @property
    def can_repack(self) -> bool:
        return bool(self.layouts) and AMX not in self.layouts

    def _on_log(self, level: int, text: bytes, user_data: object) -> None:
        line = text.decode("utf-8", "replace")
        self.log.write(line)
        if LOST in line:
            self.lost_work = line.strip()
        if level >= WARNING or self._echoes_all:  # the supervisor keeps stderr, for crash reports
            sys.stderr.write(line)

    def _bind_short_calls(self, native: C.PyDLL) -> None:
        """Bind the calls that return at once. They keep the GIL: releasing it would cost more than the call, and would
        let another thread run at every row. Calls that may take long (decode, process, synchronize) go through
        llama_cpp.
        """
        at, i32, flag = C.c_void_p, C.c_int32, C.c_bool
        set_layer_input = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
        self.set_layer_input = bind(native, set_layer_input, [at, C.c_uint32, flag], None)
        self.set_nextn = bind(native, "_Z26llama_set_embeddings_nextnP13llama_contextbb", [at, flag, flag], None)
        # public, bound again to return an address, from which a numpy view is made without a cast
        self.get_logits_row = bind(native, "llama_get_logits_ith", [at, i32], at)
        self.num_devices = bind(native, "ggml_backend_dev_count", [], C.c_size_t)
        self.device_at = bind(native, "ggml_backend_dev_get", [C.c_size_t], at)
        self.device_name = bind(native, "ggml_backend_dev_name", [at], C.c_char_p)
        self.cpu_buffer_type = bind(native, "ggml_backend_cpu_buffer_type", [], at)
        self.device_buffer_type = bind(native, "ggml_backend_dev_buffer_type", [at], at)
        self.remove_cells = bind(native, "llama_memory_seq_rm", [at, i32, i32, i32], flag)
        self.share_cells = bind(native, "llama_memory_seq_cp", [at, i32, i32, i32, i32], None)
        self.last_position = bind(native, "llama_memory_seq_pos_max", [at, i32], i32)
        self.token_to_piece = bind(native, "llama_token_to_piece", [at, i32, at, i32, i32, flag], i32)
        self.is_end = bind(native, "llama_vocab_is_eog", [at, i32], flag)  # of generation


def bind(native: C.CDLL, symbol: str, argtypes: list[type], restype: type | None) -> C._NamedFuncPointer:
    try:
        return get_function(native, symbol, argtypes, restype)
    except AttributeError:
        message = f"llama.cpp in this llama-cpp-python ({read_package_version(PACKAGE)}) has no symbol {symbol}"
        raise LibraryError(message, hint=REINSTALL) from None


def native_error(code: int, num_rows: int, library: LlamaLibrary, *, n_ctx: int = 0) -> EagleLocalError:
    """Return the error for a code of llama_decode, or of the native code. n_ctx: of the context that decodes rows."""
    if code == CACHE_FULL:
        hint = suggest_ctx(n_ctx + num_rows, answer_tokens=0) if n_ctx else ""
        return ResourceError(f"the cache is full: {num_rows} more rows do not fit", hint=hint)
    return EngineError(
        NATIVE_CODES.get(code) or f"llama_decode gave {code} for {num_rows} rows: {library.log.reason()}"
    )


def check_version(installed: str | None) -> None:
    """Raise LibraryError unless it is exactly the version whose staging symbols were checked."""
    if installed is None:
        raise LibraryError("llama-cpp-python is not installed", hint=REINSTALL)
    if installed.split("+")[0] != CHECKED_VERSION:
        message = f"llama-cpp-python {installed} is installed, but eaglelocal needs {CHECKED_VERSION}"
        raise LibraryError(message, hint=REINSTALL)


@contextlib.contextmanager
def leave_out_wrapper() -> Iterator[None]:
    """Keep the package llama_cpp from importing its class Llama, which takes long: only the bindings are used."""
    if WRAPPER in sys.modules:
        yield
        return
    sys.modules[WRAPPER] = ModuleType(WRAPPER)
    try:
        yield
    finally:
        del sys.modules[WRAPPER]  # later imports get it


@functools.cache
def load_bindings() -> ModuleType:
    """Check llama.cpp's version and load it, without initializing devices.

    Raises LibraryError with the reinstall command.
    """
    check_version(read_package_version(PACKAGE))
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # otherwise a crash first attaches a debugger
    try:
        return import_bindings()
    except (ImportError, OSError, RuntimeError) as error:
        message = f"llama.cpp cannot be loaded: {explain_failure(str(error))}"
        raise LibraryError(message, hint="eaglelocal doctor") from error


def import_bindings() -> ModuleType:
    """Return llama_cpp's bindings. If the loader does not find libraries that are installed, load these first."""
    for _ in range(MOST_LOADED):
        try:
            with leave_out_wrapper():
                import llama_cpp.llama_cpp as api
        except (ImportError, OSError, RuntimeError) as error:
            if not load_missing(str(error)):
                raise
        else:
            return api
    raise ImportError("llama.cpp needs too many libraries that are not on the loader's path")


@functools.cache
def load_library() -> LlamaLibrary:
    """Load and initialize llama.cpp. Raises as `load_bindings`."""
    return LlamaLibrary(load_bindings())


# ---- the shared libraries that a llama.cpp built for graphics cards needs
#
# An installed CUDA toolkit is often not on the loader's path, and neither are the libraries that NVIDIA publishes as
# Python packages. They are loaded before llama.cpp, as torch does; then it finds them. The driver's library comes
# with the driver alone.
DRIVER = "libcuda.so.1"
MISSING = re.compile(r"\b(lib[\w.+-]{1,80}): cannot open shared object file")
DRIVER_CALL = re.compile(r"undefined symbol: cu[A-Z]\w+")  # of the driver, not of CUDA's libraries
SYSTEM_FOLDERS = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib", "/opt/cuda/lib64")
MOST_LOADED = 8


def load_missing(failure: str) -> bool:
    """Load the shared library that the loader reports as missing, after its own dependencies.

    Returns False if the message names none, or one is not found.
    """
    named = MISSING.search(failure)
    path = find_library_file(named[1]) if named else None
    if path is None:
        return False
    for _ in range(MOST_LOADED):
        try:
            C.CDLL(str(path), mode=C.RTLD_GLOBAL)
        except OSError as error:
            needed = MISSING.search(str(error))
            if needed is None or needed[1] == path.name or not load_missing(str(error)):
                return False
        else:
            return True
    return False


def find_library_file(name: str) -> Path | None:
    """Return a shared library's file in one of CUDA's usual folders; None if it is in none of them."""
    return next((folder / name for folder in _iter_folders() if (folder / name).is_file()), None)


def _iter_folders() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield from (Path(root) / "lib64", Path(root) / "lib")
    for pattern in SYSTEM_FOLDERS:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    yield from Path(sysconfig.get_path("purelib")).glob("nvidia/*/lib")


def explain_failure(failure: str) -> str:
    """Explain to the user why llama.cpp does not load: a missing part of a card's software, or the message itself."""
    named = MISSING.search(failure)
    if (named and named[1] == DRIVER) or DRIVER_CALL.search(failure):
        return f"it is built for CUDA and needs NVIDIA's driver ({DRIVER}), which is not installed"
    if named and named[1].startswith("libcu"):
        return f"it is built for CUDA and needs {named[1]}; is the folder of CUDA's libraries in LD_LIBRARY_PATH?"
    return failure


# ---- the memory of this machine as llama.cpp sees it: RAM, and each GPU under llama.cpp's own name
#
# NVML numbers devices in another order, ignores which of them are hidden, and sees only NVIDIA's.
GPU, INTEGRATED_GPU = 1, 2  # ggml_backend_dev_type; CPU and BLAS compute in RAM


def free_memory(library: LlamaLibrary, *, ram_bytes: int | None, unified: bool) -> tuple[FreeMemory, ...]:
    """Return the free memory of each device, RAM first.

    unified  all GPUs work in RAM, as on Apple chips and NVIDIA's GB10
    """
    native = C.CDLL(library.path)
    get_type = bind(native, "ggml_backend_dev_type", [C.c_void_p], C.c_int)
    devices = [library.device_at(i) for i in range(library.num_devices())]
    gpus = [
        FreeMemory(
            library.device_name(device).decode(),
            free_bytes(native, device),
            in_ram=unified or get_type(device) == INTEGRATED_GPU,
        )
        for device in devices
        if get_type(device) in (GPU, INTEGRATED_GPU)
    ]
    return (FreeMemory(RAM, ram_bytes), *gpus)


def free_bytes(native: C.CDLL, device: int) -> int | None:
    """Return the free bytes of a device; None if it does not report them (then it gives a total of 0)."""
    get_memory = bind(native, "ggml_backend_dev_memory", [C.c_void_p, C.c_void_p, C.c_void_p], None)
    free, total = C.c_size_t(), C.c_size_t()
    get_memory(device, C.byref(free), C.byref(total))
    return free.value if total.value else None


# ---- rpc-servers, whose devices count as GPUs
#
# Logits are needed here, and heads read states here: with the output on the last device, which may be a server's,
# both would cross the link, and drafts over RPC have crashed llama.cpp.
ADD_SERVER = b"ggml_backend_rpc_add_server"
# tensors of the output, of models with tied embeddings too
OUTPUT_TENSORS = rb"^(output|output_norm|token_embd)\.weight$"


def connect_rpc_servers(library: LlamaLibrary, addresses: Sequence[str]) -> None:
    """Register the devices of these servers with llama.cpp, which aborts for a server that does not answer.

    Raises LibraryError if it was built without RPC, EngineError for a server without devices.
    """
    if not addresses:
        return
    native = C.CDLL(library.path)
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
