"""Memory predicted from a header alone, compared with llama.cpp's own figures.

Sources of its figures:
planned  llama.cpp plans model and context without allocating (`no_alloc`) and logs the sizes of caches and of compute
         buffers to 0.01 MiB; the weights are `llama_model_size`, which it counts from the tensors that it created
loaded   the same log lines, and those of the weights' buffers, of a model that is really loaded and allocated
The files are sketches: real headers of any size over weights that take no disk space.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
from doubles.block_models import BlockShape, write_block_head
from doubles.layered_heads import add_upper_layers
from doubles.medusa_checkpoints import LENT, ONE, OWN, write_random_medusa
from doubles.mtp_models import TRUNKS, add_mtp, write_assistant, write_gemma
from doubles.random_models import HeadShape, TargetShape, write_head, write_target
from doubles.season_models import SEASON, write_season
from doubles.tiers import some_of
from doubles.weightless_models import REAL, SKETCHES, Sketch, write_sketch

from eaglelocal.backend.context_params import ContextParams, create_context
from eaglelocal.backend.dry_run import DryRunPart, PlannedModel, plan_buffers, record_log, sum_buffer_bytes
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.plan import MAX_BRANCHES, PIECES, Plan
from eaglelocal.gguf.architectures import HYBRID_ARCHITECTURES, RECURRENT_ARCHITECTURES
from eaglelocal.gguf.hazards import graph_problem
from eaglelocal.gguf.medusa_info import read_graph_head
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import ModelShape, read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.loading.context_parts import make_context_params, make_parts, read_models
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind
from eaglelocal.memory.cache_bytes import CacheParams, cache_bytes
from eaglelocal.memory.cache_types import explain_refused_type
from eaglelocal.memory.contexts import SLACK_BYTES, PlannedContext, compute_bytes, plan_contexts
from eaglelocal.memory.estimate import estimate, estimate_context, sum_by_purpose

pytestmark = pytest.mark.full

MIB = 2**20
LOG_STEP = 2**15  # the log's figures are rounded to 0.01 MiB, of each cache
MAX_RATIO = 1.5  # of the bound of compute buffers, where they matter
NEGLIGIBLE = 32 * MIB  # buffers under this may be overestimated more
PLACEMENT = Placement(repack=False)


@dataclass(frozen=True)
class Case:
    """A context as `Plan` asks for it."""

    n_ctx: int
    slots: int = 1
    kv_type: str = "f16"
    flash: str = "on"
    whole: bool = True
    unified: bool | None = None
    piece: int = PIECES[0]

    @property
    def plan(self) -> Plan:
        return Plan(
            target=Path("sketch.gguf"),
            target_label="sketch",
            n_ctx=self.n_ctx,
            num_slots=self.slots,
            kv_type=self.kv_type,
            flash_attn=self.flash,
            swa_full=self.whole,
            unified=self.unified,
            n_batch=self.piece,
        )

    def __str__(self) -> str:
        said = ("" if self.whole else "-windows") + ("-unified" if self.unified else "")
        said += f"-{self.piece}" if self.piece != PIECES[0] else ""
        return f"{self.slots}x{self.n_ctx}-{self.kv_type}-{self.flash}{said}"


CASES = [
    Case(512),
    Case(4096, kv_type="q8_0"),
    Case(4096, slots=2, kv_type="q4_0"),
    Case(4096, slots=2, kv_type="q4_0", unified=True),
    Case(4096, kv_type="q8_0,q5_1"),
    Case(4096, slots=2, kv_type="q5_0,iq4_nl"),
    Case(4096, kv_type="q8_0,f16", flash="off"),
    Case(32768),
    Case(32768, flash="off"),
    *(Case(32768, kv_type="q8_0", piece=piece) for piece in PIECES[1:]),
    Case(8192, slots=4),
    Case(5000, slots=3, flash="off"),
    Case(8192, slots=2, whole=False),
    Case(8192, slots=2, whole=False, unified=True),
    Case(32768, slots=4, whole=False),
]


@dataclass(frozen=True)
class AnswerResult:
    """By llama.cpp."""

    weights: int
    cache: int
    compute: int


@pytest.fixture(scope="module")
def sketches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sketches")
    for name, sketch in (SKETCHES | REAL).items():
        write_sketch(folder / f"{name}.gguf", sketch)
    return folder


def part_of(path: Path, job: PlannedContext, taps: tuple[int, ...] = (), *, flash: str = "on") -> DryRunPart:
    header = read_header(path)
    info = read_graph_head(header) if job.shape.is_head else ModelInfo.from_header(header)
    context = make_context_params(job, flash_attn=flash, threads=1)
    return DryRunPart(info=info, context=context, taps=taps, placement=PLACEMENT)


def planned(part: DryRunPart) -> AnswerResult:
    library = load_library()
    sums = {MemoryKind.CACHE: 0, MemoryKind.BUFFERS: -part.output_bytes}
    for buffer in plan_buffers(library, [part], devices=()):
        if buffer.kind in sums:
            sums[buffer.kind] += buffer.num_bytes
    model = PlannedModel(library, part.header.path, PLACEMENT)
    weights = library.api.llama_model_size(model.handle)
    model.close()
    return AnswerResult(weights, sums[MemoryKind.CACHE], sums[MemoryKind.BUFFERS])


def loaded(path: Path, params: ContextParams) -> AnswerResult:
    library = load_library()
    with record_log(library) as transcript:
        model = LlamaModel(library, path, PLACEMENT)
        context = create_context(model, params)
        taken = sum_buffer_bytes(transcript)
        library.api.llama_free(context)
        model.close()
    return AnswerResult(taken["model"], taken.get("KV", 0) + taken.get("RS", 0), taken["compute"])


def job_of(path: Path, case: Case) -> PlannedContext:
    return plan_contexts(case.plan, read_shape(read_header(path)))[0]


def agrees(predicted: PlannedContext, result: AnswerResult, *, max_ratio: float = MAX_RATIO) -> None:
    shape, sizes = predicted.shape, predicted.sizes
    assert shape.weights_bytes == pytest.approx(result.weights, rel=0.01, abs=LOG_STEP)
    assert cache_bytes(shape, sizes) == pytest.approx(result.cache, rel=0.01, abs=2 * LOG_STEP)
    bound = compute_bytes(shape, sizes, max_outputs=predicted.max_outputs)
    assert result.compute <= bound
    assert bound < max_ratio * result.compute or result.compute < NEGLIGIBLE


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", [*SKETCHES, *REAL])
def test_as_llama_cpp_plans_it(sketches: Path, name: str, case: Case) -> None:
    job = job_of(sketches / f"{name}.gguf", case)
    num_caches = 1 if job.sizes.unified else case.slots
    if graph_problem(job.shape.architecture, kv_type=case.kv_type, num_caches=num_caches):
        pytest.skip("llama.cpp aborts on it, so it is neither planned nor loaded")
    if explain_refused_type(job.shape, case.kv_type, case.flash):
        pytest.skip("llama.cpp refuses it, so it is neither planned nor loaded")
    agrees(job, planned(part_of(sketches / f"{name}.gguf", job, flash=case.flash)))


@pytest.mark.parametrize("case", [Case(512), Case(4096), Case(32768)], ids=str)
@pytest.mark.parametrize("name", SEASON)
def test_what_chooses_its_cells_as_llama_cpp_plans_it(tmp_path: Path, name: str, case: Case) -> None:
    """Its keys to choose by are cached, and scores are computed of all cells; glm5-next scores four at once.

    The last rows of qwen4exp's n-grams, 36 KiB of a slot here, are not counted.
    """
    path = write_season(tmp_path / "m.gguf", name)
    job = job_of(path, case)
    assert job.shape.index_dim
    agrees(job, planned(part_of(path, job, flash=case.flash)), max_ratio=2.0)


@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"])
@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gemma3", "qwen35"])
def test_as_llama_cpp_loads_it(tmp_path: Path, name: str, type_name: str) -> None:
    path = write_sketch(tmp_path / "m.gguf", replace(SKETCHES[name], n_ff_exp=256, type=type_name))
    job = job_of(path, Case(2048, slots=2, kv_type="q8_0"))
    agrees(job, loaded(path, make_context_params(job, flash_attn="on", threads=1)))


@pytest.mark.parametrize("name", [*SKETCHES])
def test_every_architecture_as_llama_cpp_loads_it(sketches: Path, name: str) -> None:
    path = sketches / f"{name}.gguf"
    job = job_of(path, Case(4096, slots=4, whole=False))
    agrees(job, loaded(path, make_context_params(job, flash_attn="on", threads=1)))


STATEFUL = RECURRENT_ARCHITECTURES | HYBRID_ARCHITECTURES
STATES = [
    *product(
        ["qwen35", "lfm2", "nemotron_h", "nemotron_h_moe", "qwen3next", "mamba2"],
        [(2, 0), (2, 3), (4, 8), (16, 4), (16, 8)],
    ),
    *product(["qwen3.6-27b"], [(2, 0), (2, 3), (4, 8), (16, 8)]),  # 150 MiB each, of which nothing may be taken
]


@pytest.mark.parametrize(("name", "counts"), STATES, ids=str)
def test_states_and_what_is_kept_to_roll_back(sketches: Path, name: str, counts: tuple[int, int]) -> None:
    """llama.cpp keeps no snapshots for some architectures, whatever is asked. `counts`: slots, snapshots."""
    slots, snapshots = counts
    path = sketches / f"{name}.gguf"
    job = job_of(path, Case(2048, slots=slots))
    job = replace(job, sizes=replace(job.sizes, num_snapshots=snapshots))
    agrees(job, planned(part_of(path, job)))
    states = job.shape.state_bytes * slots
    grown = cache_bytes(job.shape, job.sizes) - cache_bytes(job.shape, replace(job.sizes, num_snapshots=0))
    assert grown == (snapshots * states if name not in ("mamba2", "qwen3next") else 0)


@pytest.mark.parametrize("counts", [(1, 0), (1, 8), (2, 3), (4, 0), (4, 8), (16, 2)], ids=str)
@pytest.mark.parametrize("name", [name for name, sketch in SKETCHES.items() if sketch.arch in STATEFUL])
def test_states_are_planned_as_they_are_loaded(sketches: Path, name: str, counts: tuple[int, int]) -> None:
    """Computing buffers grow with slots and snapshots too: to the log's last digit. `counts`: slots, snapshots."""
    slots, snapshots = counts
    path = sketches / f"{name}.gguf"
    job = job_of(path, Case(512, slots=slots))
    job = replace(job, sizes=replace(job.sizes, num_snapshots=snapshots))
    plan, real = planned(part_of(path, job)), loaded(path, make_context_params(job, flash_attn="on", threads=1))
    assert plan.compute == real.compute
    assert plan.cache == pytest.approx(real.cache, abs=2 * LOG_STEP)


@pytest.mark.parametrize("name", ["qwen35", "glm4moe"])
def test_layers_that_predict_ahead_stay_in_the_file(tmp_path: Path, name: str) -> None:
    plain = SKETCHES[name]
    ahead = replace(plain, n_layer=plain.n_layer + 1, keys=plain.keys | {"nextn_predict_layers": 1})
    paths = write_sketch(tmp_path / "plain.gguf", plain), write_sketch(tmp_path / "ahead.gguf", ahead)
    without, beside = (read_shape(read_header(path)) for path in paths)
    assert beside.weights_bytes == without.weights_bytes
    assert beside.n_layer_ahead == 1
    job = job_of(paths[1], Case(1024))
    agrees(job, loaded(paths[1], make_context_params(job, flash_attn="on", threads=1)))


def test_windows_hold_no_more_than_windows(sketches: Path) -> None:
    """Gemma 3 27B at 32k: 16 GiB of cache when all is kept, a fifth of it in windows."""
    shape = read_shape(read_header(sketches / "gemma-3-27b.gguf"))
    whole = cache_bytes(shape, CacheParams(n_ctx=32768))
    narrow = cache_bytes(shape, CacheParams(n_ctx=32768, swa_full=False))
    assert whole == 62 * 2 * 16 * 128 * 2 * 32768
    assert narrow == 2 * 16 * 128 * 2 * (10 * 32768 + 52 * 1536)


# ---- a target with a head: trees' sequences, taps, and what the head's context takes
TARGET = TargetShape(n_embd=256, n_layer=4, n_ff=512, n_vocab=2000)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    head = HeadShape(width=256, draft_vocab=500, own_output=True)
    return write_target(tmp_path / "target.gguf", TARGET), write_head(tmp_path / "head.gguf", head, TARGET)


def dry_run_buffers(plan: Plan, pair: tuple[Path, Path]) -> Iterator[Buffer]:
    jobs = plan_contexts(plan, *(read_shape(read_header(path)) for path in pair))
    parts = [part_of(pair[0], jobs[0], taps=(1, 2, 3)), part_of(pair[1], jobs[1])]
    return iter(plan_buffers(load_library(), parts, devices=()))


@pytest.mark.parametrize(
    ("slots", "unified", "num_branches"),
    [(1, None, MAX_BRANCHES), (2, True, MAX_BRANCHES), (2, False, 0), (4, None, 0)],
)
def test_target_and_head_together(pair: tuple[Path, Path], slots: int, unified: bool | None, num_branches: int) -> None:
    plan = replace(Case(2048, slots=slots, unified=unified).plan, draft_kind="eagle3", draft=pair[1])
    shapes = [read_shape(read_header(path)) for path in pair]
    jobs = plan_contexts(plan, *shapes)
    assert jobs[0].sizes.num_branches == num_branches
    predicted = sum_by_purpose(buffer for job in jobs for buffer in estimate_context(job, (), ()))
    result = sum_by_purpose(dry_run_buffers(plan, pair))
    for name in ("weights_bytes", "kv_bytes", "draft_bytes", "draft_kv_bytes"):
        assert getattr(predicted, name) == pytest.approx(getattr(result, name), rel=0.01, abs=2 * LOG_STEP), name
    assert result.compute_bytes <= predicted.compute_bytes < MAX_RATIO * result.compute_bytes + len(jobs) * SLACK_BYTES


@pytest.mark.parametrize("outputs", [OWN, ONE, LENT])
def test_target_and_a_medusa_head(tmp_path: Path, outputs: str) -> None:
    target = write_target(tmp_path / "target.gguf", TARGET)
    pair = target, write_random_medusa(tmp_path / "head.gguf", target, outputs=outputs)
    plan = replace(Case(2048, slots=2).plan, draft_kind="eagle3", draft=pair[1])
    jobs = plan_contexts(plan, *(read_shape(read_header(path)) for path in pair))
    predicted = sum_by_purpose(buffer for job in jobs for buffer in estimate_context(job, (), ()))
    parts = [part_of(pair[0], jobs[0], taps=(5,)), part_of(pair[1], jobs[1])]
    result = sum_by_purpose(plan_buffers(load_library(), parts, devices=()))
    for name in ("weights_bytes", "kv_bytes", "draft_bytes", "draft_kv_bytes"):
        assert getattr(predicted, name) == pytest.approx(getattr(result, name), rel=0.01, abs=2 * LOG_STEP), name
    assert result.compute_bytes <= predicted.compute_bytes < MAX_RATIO * result.compute_bytes + len(jobs) * SLACK_BYTES


def test_a_head_keeps_logits_of_fewer_rows_than_its_target(pair: tuple[Path, Path]) -> None:
    """Of 152 000 tokens, 512 rows would be 300 MB, twice."""
    target, head = (read_shape(read_header(path)) for path in pair)
    plan = replace(Case(2048).plan, draft_kind="eagle3", draft=pair[1])
    rows = {
        slots: plan_contexts(replace(plan, num_slots=slots), target, head)[1].max_outputs for slots in (1, 4, 8, 16)
    }
    assert rows == {1: 128, 4: 128, 8: 256, 16: 512}
    assert plan_contexts(replace(plan, n_batch=64), target, head)[1].sizes.n_batch == 64


UNESTIMATED = "bailingmoe3"  # only llama.cpp's own plan, with which each load begins, has the cells for its MTP layer


@pytest.mark.parametrize(
    ("name", "num_mtp"),
    [
        ("qwen3.6-27b", 1),
        *((name, 1) for name in TRUNKS if name not in ("qwen3next", UNESTIMATED)),
        *(("mimo2", 3), ("step35", 3)),
    ],
)
@pytest.mark.parametrize("slots", [1, 4])
def test_target_and_its_mtp_layers(tmp_path: Path, name: str, num_mtp: int, slots: int) -> None:
    """One file: llama.cpp loads the layers with the target, a plan counts them as the draft's."""
    trunk = REAL[name] if name in REAL else TRUNKS[name]
    path = write_sketch(tmp_path / "m.gguf", add_mtp(trunk, num_mtp))
    plan = replace(Case(8192, slots=slots).plan, target=path, draft_kind="mtp", draft=path, rollback=4)
    sources = read_models(plan)
    jobs = plan_contexts(plan, *(source.shape for source in sources))
    predicted = sum_by_purpose(buffer for job in jobs for buffer in estimate_context(job, (), ()))
    parts = make_parts(plan, sources, [PLACEMENT, PLACEMENT], threads=1)
    result = sum_by_purpose(plan_buffers(load_library(), parts, devices=()))
    assert predicted.draft_bytes > 0 and result.draft_bytes == 0
    weights = predicted.weights_bytes + predicted.draft_bytes
    assert weights == pytest.approx(result.weights_bytes, rel=0.001) == read_header(path).tensor_bytes
    for name in ("kv_bytes", "draft_kv_bytes"):
        assert getattr(predicted, name) == pytest.approx(getattr(result, name), rel=0.01, abs=2 * LOG_STEP), name
    assert result.compute_bytes <= predicted.compute_bytes < MAX_RATIO * result.compute_bytes + len(jobs) * SLACK_BYTES


@pytest.mark.parametrize("slots", [1, 4])
def test_target_and_an_assistant_that_reads_its_cache(tmp_path: Path, slots: int) -> None:
    target = write_gemma(tmp_path / "gemma.gguf")
    assistant = write_assistant(tmp_path / "assistant.gguf", target)
    plan = replace(Case(2048, slots=slots).plan, target=target, draft_kind="mtp", draft=assistant)
    sources = read_models(plan)
    jobs = plan_contexts(plan, *(source.shape for source in sources))
    predicted = sum_by_purpose(buffer for job in jobs for buffer in estimate_context(job, (), ()))
    result = sum_by_purpose(
        plan_buffers(load_library(), make_parts(plan, sources, [PLACEMENT, PLACEMENT], threads=1), devices=())
    )
    assert predicted.draft_bytes == read_header(assistant).tensor_bytes
    for name in ("weights_bytes", "draft_bytes", "kv_bytes"):
        assert getattr(predicted, name) == pytest.approx(getattr(result, name), rel=0.01, abs=2 * LOG_STEP), name
    assert predicted.draft_kv_bytes == 0
    assert result.compute_bytes <= predicted.compute_bytes < result.compute_bytes + NEGLIGIBLE


@pytest.mark.parametrize("slots", some_of([4, 1, 16], rest=pytest.mark.slow))
@pytest.mark.parametrize(
    "head",
    [BlockShape(), BlockShape(window=256), BlockShape(draft_vocab=5000, own_output=True), BlockShape(candidates=8)],
    ids=["whole", "window", "own output", "DFlash2"],
)
def test_target_and_a_head_that_fills_blocks(tmp_path: Path, head: BlockShape, slots: int) -> None:
    """llama.cpp counts all rows of a call as outputs of it; what has left its windows is not kept."""
    shape = TargetShape(n_embd=256, n_vocab=40_000)
    target = write_target(tmp_path / "target.gguf", shape)
    draft = write_block_head(tmp_path / "head.gguf", head, shape)
    check_pair(replace(Case(4096, slots=slots).plan, target=target, draft_kind="dflash", draft=draft))


@pytest.mark.parametrize("slots", some_of([4, 1, 16], rest=pytest.mark.slow))
@pytest.mark.parametrize("draft_vocab", [8000, None])
def test_target_and_a_head_of_several_layers(tmp_path: Path, draft_vocab: int | None, slots: int) -> None:
    """Both of its contexts are counted."""
    shape = TargetShape(n_embd=256, n_vocab=40_000)
    target = write_target(tmp_path / "target.gguf", shape)
    kind = HeadShape(width=256, num_depths=7, own_embeddings=True, own_output=True, draft_vocab=draft_vocab)
    below = write_head(tmp_path / "below.gguf", kind, shape)
    draft = add_upper_layers(below, target, tmp_path / "head.gguf", num_layers=4)
    jobs = check_pair(replace(Case(4096, slots=slots).plan, target=target, draft_kind="eagle3", draft=draft))
    assert jobs[1].shape.n_layer == 4


def check_pair(plan: Plan) -> tuple[PlannedContext, ...]:
    """Compare the estimate of a target and its head with llama.cpp's buffers, and return their contexts."""
    sources = read_models(plan)
    jobs = plan_contexts(plan, *(source.shape for source in sources))
    predicted = sum_by_purpose(buffer for job in jobs for buffer in estimate_context(job, (), ()))
    result = sum_by_purpose(
        plan_buffers(load_library(), make_parts(plan, sources, [PLACEMENT, PLACEMENT], threads=1), devices=())
    )
    for name in ("weights_bytes", "draft_bytes", "kv_bytes", "draft_kv_bytes"):
        assert getattr(predicted, name) == pytest.approx(getattr(result, name), rel=0.01, abs=4 * LOG_STEP), name
    assert result.compute_bytes <= predicted.compute_bytes < MAX_RATIO * result.compute_bytes + len(jobs) * SLACK_BYTES
    return jobs


def test_an_estimate_counts_the_process_too(pair: tuple[Path, Path]) -> None:
    shapes = [read_shape(read_header(path)) for path in pair]
    plan = replace(Case(2048).plan, draft_kind="eagle3", draft=pair[1])
    room = FreeMemory(RAM, 8 * 2**30)
    whole = sum_by_purpose(estimate(plan, shapes[0], shapes[1], [room]))
    result = sum_by_purpose(dry_run_buffers(plan, pair))
    assert whole.total_bytes > result.total_bytes + 100 * MIB


def sketch_and_shape(folder: Path, name: str) -> tuple[Sketch, ModelShape]:
    return (SKETCHES | REAL)[name], read_shape(read_header(folder / f"{name}.gguf"))


def test_figures_of_real_models_as_their_makers_state_them(sketches: Path) -> None:
    """Keys and values of a token, from public logs: 1152 MiB at 8192 for Qwen3-8B, 2048 at 32768 for Qwen3.6-27B."""
    eight, hybrid = (sketch_and_shape(sketches, name)[1] for name in ("qwen3-8b", "qwen3.6-27b"))
    assert cache_bytes(eight, CacheParams(n_ctx=8192)) == 1152 * MIB
    assert cache_bytes(hybrid, CacheParams(n_ctx=32768)) - hybrid.state_bytes == 2048 * MIB
    assert 4 * hybrid.state_bytes == pytest.approx(598.5 * MIB, rel=0.001)  # the log's at n_rs_seq 3
