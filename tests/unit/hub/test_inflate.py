"""Inflation: the same answers at another cost, checked with llama.cpp itself; whole files or none."""

from __future__ import annotations

import fcntl
import multiprocessing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from doubles.demo_sources import DemoSources
from doubles.plain_llama import drafted, logits_of

from eaglelocal.errors import IncompatibleError, ModelFileError, ResourceError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.head_info import check_head
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.hub.inflation import generated_files
from eaglelocal.hub.inflation.blueprint import grow_target, plan_head, plan_target
from eaglelocal.hub.inflation.generated_files import Progress, no_progress
from eaglelocal.hub.inflation.inflate import InflatedPair, locate_inflated
from eaglelocal.hub.inflation.inflated_sizes import ModelSize

pytestmark = pytest.mark.full

TEXT = [int(token) for token in np.random.default_rng(5).integers(0, 300, 24)]
TWENTY_M = 20_000_000


def inflate(
    size: ModelSize,
    *,
    source_target: Path,
    source_head: Path,
    folder: Path,
    on_progress: Progress = no_progress,
) -> InflatedPair:
    return locate_inflated(size, (source_target, source_head), folder).write(on_progress)


def grown(folder: Path, sources: DemoSources, size: ModelSize) -> tuple[tuple[Path, Path], InflatedPair]:
    target, head = sources.write(folder)
    return (target, head), inflate(size, source_target=target, source_head=head, folder=folder / "grown")


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference, in standard deviations of the logits."""
    finite = np.isfinite(theirs)
    assert np.array_equal(finite, np.isfinite(ours))
    return float(np.abs(ours[finite] - theirs[finite]).max() / theirs[finite].std())


@pytest.mark.parametrize("millions", [12, 20, 40])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_target_says_the_same(tmp_path: Path, millions: int, kv_heads: int) -> None:
    size = ModelSize(millions * 1_000_000, "f32")
    (target, _), paths = grown(tmp_path, DemoSources(kv_heads=kv_heads), size)
    assert distance(logits_of(paths.target, TEXT), logits_of(target, TEXT)) < 1e-4


HEADS = {
    "3.1": DemoSources(),
    "3.1 without groups": DemoSources(head_kv_heads=4),
    "3": DemoSources(fc_norm=False, norm_output=False),
    "fc_norm only": DemoSources(norm_output=False),
    "norm_before_residual": DemoSources(norm_before_residual=True),
    "reduced vocabulary": DemoSources(draft_vocab=128),
    "P-EAGLE": DemoSources(norm_output=False, num_depths=6),
    "five taps": DemoSources(taps=(0, 1, 2, 4, 5)),
    "one tap, P-EAGLE": DemoSources(taps=(4,), norm_output=False, num_depths=6),
    "P-EAGLE without fc_norm": DemoSources(fc_norm=False, norm_output=False, num_depths=6),
}


@pytest.mark.parametrize("dialect", HEADS)
def test_head_drafts_the_same(tmp_path: Path, dialect: str) -> None:
    (target, head), paths = grown(tmp_path, HEADS[dialect], ModelSize(80_000_000, "f32"))
    info = EagleInfo.from_header(read_header(paths.head))
    assert info.width > 256 and info.width != ModelInfo.from_header(read_header(paths.target)).n_embd
    assert info.has_own_embeddings and info.has_own_output
    ours, theirs = drafted(paths.target, paths.head, TEXT, 6), drafted(target, head, TEXT, 6)
    assert distance(ours, theirs) < 1e-3


def test_a_parallel_head_fits_before_it_is_written(tmp_path: Path) -> None:
    """Plans are made with the header that the file will have; the numbers of its mask grow with the target."""
    target, head = DemoSources(norm_output=False, num_depths=6).write(tmp_path)
    model, eagle = ModelInfo.from_header(read_header(target)), EagleInfo.from_header(read_header(head))
    size = ModelSize(TWENTY_M, "f32")
    sketch = plan_head(size, eagle, model.header, grow_target(size, model)).sketch_header()
    check_head(EagleInfo.from_header(sketch), ModelInfo.from_header(plan_target(size, model).sketch_header()))


@pytest.mark.parametrize("kind", ["bf16", "f16", "q8_0", "q4_0"])
def test_each_type_says_the_same_as_the_source_in_that_type(tmp_path: Path, kind: str) -> None:
    """Not to the last bit: activations are rounded too, and sums in another order now and then round elsewhere."""
    (target, head), paths = grown(tmp_path, DemoSources(stored=kind), ModelSize(TWENTY_M, kind))
    assert distance(logits_of(paths.target, TEXT), logits_of(target, TEXT)) < 0.06
    assert distance(drafted(paths.target, paths.head, TEXT, 1), drafted(target, head, TEXT, 1)) < 0.15
    header = read_header(paths.target)
    matrices = {info.type.name for info in header.tensors.values() if len(info.shape) == 2}
    norms = {info.type.name for info in header.tensors.values() if len(info.shape) == 1}
    assert (matrices, norms) == ({kind.upper()}, {"F32"})


def test_weights_that_run_are_not_zeros(tmp_path: Path) -> None:
    _, paths = grown(tmp_path, DemoSources(), ModelSize(80_000_000, "f32"))
    header = read_header(paths.target)
    names = [name for name, info in header.tensors.items() if len(info.shape) == 2 and name != "token_embd.weight"]
    elements = sum(header.tensors[name].num_elements for name in names)
    zero = sum(np.count_nonzero(read_tensor(header, name) == 0) for name in names)
    assert zero / elements < 0.2
    last = read_tensor(header, names[-1])  # ffn_down of an appended layer
    assert abs(float(last.std()) - 0.02) < 0.002 and abs(float(last.mean())) < 1e-3


def test_files_say_what_they_are(tmp_path: Path) -> None:
    (target, _), paths = grown(tmp_path, DemoSources(), ModelSize(TWENTY_M, "bf16"))
    header, source = read_header(paths.target), read_header(target)
    assert header.metadata["general.name"] == "test guide at the cost of a 20 M model"
    assert header.metadata["eaglelocal.inflated_from"] == f"test guide, {source.tensor_bytes / 1e6:.1f} MB"
    assert header.array("tokenizer.ggml.tokens") == source.array("tokenizer.ggml.tokens")
    assert header.metadata["tokenizer.chat_template"] == source.metadata["tokenizer.chat_template"]
    head = EagleInfo.from_header(read_header(paths.head))
    assert head.fc_norm and head.norm_output and "20 M" in head.name
    check_head(head, ModelInfo.from_header(header))


def test_a_finished_pair_is_returned_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = ModelSize(TWENTY_M, "bf16")
    (target, head), paths = grown(tmp_path, DemoSources(), size)
    stamps = [path.stat().st_mtime_ns for path in (paths.target, paths.head)]
    monkeypatch.setattr(generated_files, "free_bytes", lambda folder: 0)
    again = inflate(size, source_target=target, source_head=head, folder=paths.target.parent)
    assert again == paths
    assert [path.stat().st_mtime_ns for path in (paths.target, paths.head)] == stamps


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    size = ModelSize(TWENTY_M, "q8_0")
    (target, head), paths = grown(tmp_path, DemoSources(), size)
    other = inflate(size, source_target=target, source_head=head, folder=tmp_path / "again")
    assert other.target.name == paths.target.name
    assert other.target.read_bytes() == paths.target.read_bytes()
    assert other.head.read_bytes() == paths.head.read_bytes()


def test_rebuilt_sources_get_files_of_their_own(tmp_path: Path) -> None:
    size = ModelSize(TWENTY_M, "bf16")
    target, head = DemoSources().write(tmp_path)
    before = locate_inflated(size, (target, head), tmp_path)
    DemoSources(seed=12).write(tmp_path)
    after = locate_inflated(size, (target, head), tmp_path)
    assert before.target != after.target and before.head != after.head


class Interruption:
    """Presses Ctrl-C when a fraction of the bytes is written."""

    def __init__(self, fraction: float, error: BaseException) -> None:
        self.fraction, self.error = fraction, error

    def __call__(self, fraction: float, what: str) -> None:
        if fraction >= self.fraction:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the screen failed")])
@pytest.mark.parametrize("fraction", [0.0, 0.6, 1.0])
def test_an_interrupted_write_leaves_nothing(tmp_path: Path, fraction: float, error: BaseException) -> None:
    target, head = DemoSources(layers=2).write(tmp_path)
    folder = tmp_path / "grown"
    with pytest.raises(type(error)):
        inflate(
            ModelSize(TWENTY_M, "bf16"),
            source_target=target,
            source_head=head,
            folder=folder,
            on_progress=Interruption(fraction, error),
        )
    assert list(folder.glob("*.gguf*")) == []


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    target, head = DemoSources(layers=2).write(tmp_path)
    folder = tmp_path / "grown"
    folder.mkdir()
    (folder / "demo-8b-bf16-0123456789ab.gguf.partial").write_bytes(b"half")
    (folder / "notes.partial").write_bytes(b"not ours")
    paths = inflate(ModelSize(TWENTY_M, "bf16"), source_target=target, source_head=head, folder=folder)
    assert {path.name for path in folder.iterdir()} - {".inflate.lock"} == {
        paths.target.name,
        paths.head.name,
        "notes.partial",
    }


def test_it_is_cleared_too_where_nothing_is_to_be_written(tmp_path: Path) -> None:
    target, head = DemoSources(layers=2).write(tmp_path)
    folder = tmp_path / "grown"
    grow = partial(inflate, ModelSize(TWENTY_M, "bf16"), source_target=target, source_head=head, folder=folder)
    paths = grow()
    half = folder / "demo-8b-bf16-0123456789ab.gguf.partial"
    half.write_bytes(b"half")
    with (folder / ".inflate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert grow() == paths and half.exists()  # somebody writes it
    assert grow() == paths and not half.exists()


def test_a_full_disk_is_reported_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated_files, "free_bytes", lambda folder: 20_000_000_000)
    target, head = DemoSources().write(tmp_path)
    folder = tmp_path / "grown"
    with pytest.raises(ResourceError) as caught:
        inflate(
            ModelSize(70_000_000_000, "bf16"),
            source_target=target,
            source_head=head,
            folder=folder,
        )
    assert "takes 14" in caught.value.message and "20.0 GB are free" in caught.value.message
    assert caught.value.hint
    assert list(folder.glob("*.gguf*")) == []


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    target, head = DemoSources().write(tmp_path)
    with pytest.raises(ResourceError, match="cannot write in"):
        inflate(ModelSize(TWENTY_M, "bf16"), source_target=target, source_head=head, folder=target / "below")


def _inflate_in_child(folder: Path, target: Path, head: Path, written: multiprocessing.Queue[int]) -> None:
    progress: list[float] = []
    inflate(
        ModelSize(TWENTY_M, "bf16"),
        source_target=target,
        source_head=head,
        folder=folder,
        on_progress=lambda fraction, what: progress.append(fraction),
    )
    written.put(len(progress))


def test_two_processes_write_once(tmp_path: Path) -> None:
    target, head = DemoSources().write(tmp_path)
    spawn = multiprocessing.get_context("spawn")
    written = spawn.Queue()
    children = [
        spawn.Process(target=_inflate_in_child, args=(tmp_path / "grown", target, head, written)) for _ in range(2)
    ]
    for child in children:
        child.start()
    counts = sorted(written.get(timeout=60) for _ in children)
    for child in children:
        child.join(timeout=60)
    assert counts[0] == 0 < counts[1]


def test_progress_rises_to_one(tmp_path: Path) -> None:
    target, head = DemoSources().write(tmp_path)
    progress: list[float] = []
    inflate(
        ModelSize(TWENTY_M, "q4_0"),
        source_target=target,
        source_head=head,
        folder=tmp_path / "grown",
        on_progress=lambda fraction, what: progress.append(fraction),
    )
    assert progress == sorted(progress) and progress[-1] == 1.0


def test_sources_that_cannot_grow_are_refused(tmp_path: Path) -> None:
    target, head = DemoSources().write(tmp_path)
    folder = tmp_path / "grown"
    size = ModelSize(TWENTY_M, "bf16")
    with pytest.raises(ModelFileError, match="not an eagle3 head"):
        inflate(size, source_target=target, source_head=target, folder=folder)
    with pytest.raises(ModelFileError, match="No such"):
        inflate(size, source_target=tmp_path / "no.gguf", source_head=head, folder=folder)
    other = tmp_path / "other"
    other.mkdir()
    wide_target, _ = DemoSources(width=320, kv_heads=5).write(other)
    with pytest.raises(IncompatibleError, match="hidden size 256, the target has 320"):
        inflate(size, source_target=wide_target, source_head=head, folder=folder)
